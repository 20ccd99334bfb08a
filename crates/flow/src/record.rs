//! Flow records: the connections of one key in one window.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::AddAssign;
use std::sync::Arc;

use identity::EndIdentity;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Endpoint, FlowVerdict, Member, PolicyAction, PolicyHit, ServicePort, SideTrace, Volume};

/// Length of a window. Windows are aligned to the wall clock: they begin at multiples of this length since 1970.
pub const WINDOW_SECONDS: i64 = 15;

/// Limit of the addresses, pods, nodes, labels and identities that one record lists per end: enough for the replicas of
/// a workload, and small enough that a record about the whole Internet stays below 32 KiB. `truncated` is set if there
/// were more.
pub const MOST_MEMBERS: usize = 100;

/// Key by which connections are aggregated into a record.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowKey {
    pub source: Endpoint,
    pub destination: Endpoint,
    /// IANA number of the protocol.
    pub protocol: u8,
    /// Destination port after destination translation; `None` for protocols without ports, and for records that
    /// aggregate many ports ([`crate::Windows::folded_records`]).
    pub port: Option<u16>,
    /// Type of the ICMP message that opened the flow.
    pub icmp_type: Option<u8>,
    /// Service that the client connected to; `None` if it connected to the destination directly.
    pub service: Option<ServicePort>,
    pub verdict: FlowVerdict,
    /// Drop reason of packets that no policy denied (`forged-source`, `tunnel`); `None` for all other flows.
    pub drop_cause: Option<Arc<str>>,
    pub egress: SideTrace,
    pub ingress: SideTrace,
}

/// Attribution of a connection: its key and both ends. Connections between the same ends share a subject.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub key: Arc<FlowKey>,
    pub source: Member,
    pub destination: Member,
    /// Generation of the policies that decided; `None` for flows that no policy judged.
    pub generation: Option<u32>,
}

/// The connections of one key in one window. The JSON form is in `flow/src/record.rs` (test `record_has_this_json`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowRecord {
    /// RFC 3339. The window ends [`WINDOW_SECONDS`] later.
    pub window: Timestamp,
    /// Reporting node.
    pub node: Arc<str>,
    #[serde(flatten)]
    pub key: Arc<FlowKey>,
    /// Records of successive windows share a sample that has not changed.
    pub sources: Arc<EndSample>,
    pub destinations: Arc<EndSample>,
    pub connections: Connections,
    /// Volume reported in this window, from the source to the destination (original direction); `None` if no connection
    /// of the record reported counters in this window. The first counters of a connection may be reported in a later
    /// window than its start.
    pub sent: Option<Volume>,
    /// From the destination to the source (reply direction).
    pub received: Option<Volume>,
    /// Connections without counters, whose volume is unknown: created before accounting was enabled. Each counts once
    /// per window in which a listing or its end event reported it.
    pub unknown_volume: u64,
    /// Packets that were denied, or would be. Denied flows have no connection.
    pub denied_packets: u64,
    /// Newest policy generation that decided about a connection of the record.
    pub generation: Option<u32>,
    /// First and last event of the record within the window; begin and end of the window if its connections had no
    /// event in it.
    pub first: Timestamp,
    pub last: Timestamp,
}

impl FlowKey {
    /// Policies that decided, would have decided, or passed the flow to the next tier, on either side.
    pub fn policies(&self) -> impl Iterator<Item = &PolicyHit> {
        let sides = [&self.egress, &self.ingress].into_iter();
        sides.flat_map(|side| side.enforced.iter().chain(&side.pending).chain(&side.passed_by))
    }

    /// Policies that denied the flow or, if it passed, audited ones that would deny it: those of the sides whose nodes
    /// report, since the trace of the other side is an evaluation that no node enforced.
    pub fn denying_policies(&self) -> impl Iterator<Item = &PolicyHit> {
        let sides = [&self.egress, &self.ingress].into_iter().filter(|side| side.enforced_here);
        let hits = sides.flat_map(|side| match self.verdict {
            FlowVerdict::Denied => side.enforced.as_slice(),
            FlowVerdict::WouldDeny => side.pending.as_slice(),
            FlowVerdict::Allowed => &[],
        });
        hits.filter(|hit| hit.action == PolicyAction::Deny)
    }
}

impl FlowRecord {
    /// End of the record's window (exclusive).
    pub fn window_end(&self) -> Timestamp {
        Timestamp::from_second(self.window.as_second().saturating_add(WINDOW_SECONDS)).unwrap_or(Timestamp::MAX)
    }
}

/// Connections of a record within its window. For each key, `live` of a window is `live` of the window before
/// + `started` − `ended` − `lost`, unless observations were dropped ([`crate::DroppedRecords`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Connections that began, or that existed when the agent started.
    pub started: u64,
    pub ended: u64,
    /// Connections at the end of the window.
    pub live: u64,
    /// Connections that disappeared without an end event.
    pub lost: u64,
}

impl AddAssign for Connections {
    fn add_assign(&mut self, other: Connections) {
        let Connections { started, ended, live, lost } = other;
        self.started = self.started.saturating_add(started);
        self.ended = self.ended.saturating_add(ended);
        self.live = self.live.saturating_add(live);
        self.lost = self.lost.saturating_add(lost);
    }
}

/// Members at one end of a record's connections, at most [`MOST_MEMBERS`] of each kind.
///
/// ```
/// use flow::{EndSample, Member};
///
/// let web = Member {
///     address: "10.0.1.7".parse()?,
///     pod: Some("shop/web-0".into()),
///     node: Some("worker-1".into()),
///     labels: [("app".into(), "web".into())].into(),
///     identity: None,
/// };
/// let mut sample = EndSample::default();
/// sample.add(&web);
/// sample.add(&Member { address: "10.0.1.8".parse()?, pod: Some("shop/web-1".into()), ..web });
/// assert_eq!((sample.addresses.len(), sample.pods.len(), sample.nodes.len(), sample.truncated), (2, 2, 1, false));
/// assert!(sample.labels.contains("app=web"));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EndSample {
    pub addresses: BTreeSet<IpAddr>,
    /// `namespace/name`
    pub pods: BTreeSet<Arc<str>>,
    pub nodes: BTreeSet<Arc<str>>,
    /// `key=value`; of all pods of the record.
    pub labels: BTreeSet<Arc<str>>,
    pub identities: Vec<EndIdentity>,
    /// Whether members were omitted because there were more than [`MOST_MEMBERS`].
    pub truncated: bool,
}

impl EndSample {
    /// Adds a holder of an address of this end.
    pub fn add(&mut self, member: &Member) {
        let Member { address, pod, node, labels, identity } = member;
        self.truncated |= !insert(&mut self.addresses, address);
        if let Some(pod) = pod {
            self.truncated |= !insert(&mut self.pods, pod);
        }
        if let Some(node) = node {
            self.truncated |= !insert(&mut self.nodes, node);
        }
        for (key, value) in labels.iter() {
            self.add_label(key, value);
        }
        if let Some(identity) = identity {
            self.add_identity(identity);
        }
    }

    /// Adds the members of another sample of the same end.
    pub fn merge(&mut self, other: &EndSample) {
        let EndSample { addresses, pods, nodes, labels, identities, truncated } = other;
        self.truncated |= *truncated;
        for address in addresses {
            self.truncated |= !insert(&mut self.addresses, address);
        }
        for (mine, theirs) in [(&mut self.pods, pods), (&mut self.nodes, nodes), (&mut self.labels, labels)] {
            for name in theirs {
                self.truncated |= !insert(mine, name);
            }
        }
        for identity in identities {
            self.add_identity(identity);
        }
    }

    fn add_label(&mut self, key: &str, value: &str) {
        let mut label = String::with_capacity(key.len() + 1 + value.len());
        label.push_str(key);
        label.push('=');
        label.push_str(value);
        if self.labels.contains(label.as_str()) {
            return;
        }
        if self.labels.len() < MOST_MEMBERS {
            self.labels.insert(label.into());
        } else {
            self.truncated = true;
        }
    }

    fn add_identity(&mut self, identity: &EndIdentity) {
        if self.identities.contains(identity) {
            return;
        }
        if self.identities.len() < MOST_MEMBERS {
            self.identities.push(identity.clone());
        } else {
            self.truncated = true;
        }
    }
}

/// False if the set is full.
fn insert<T: Ord + Clone>(set: &mut BTreeSet<T>, item: &T) -> bool {
    if set.contains(item) {
        return true;
    }
    set.len() < MOST_MEMBERS && set.insert(item.clone())
}

#[cfg(test)]
mod tests;
