//! Flow records: the connections of one key in one window.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use identity::EndIdentity;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Endpoint, Member, ServicePort, SideTrace, Verdict, Volume};

/// Length of a window. Windows are aligned to the wall clock: they begin at multiples of it since 1970.
pub const WINDOW_SECONDS: i64 = 15;

/// Addresses, pods, labels and identities that one record lists for an end. Further ones are counted.
pub const MOST_MEMBERS: usize = 100;

/// What makes connections alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowKey {
    pub source: Endpoint,
    pub destination: Endpoint,
    /// IANA number of the protocol.
    pub protocol: u8,
    /// The port of the destination after destination translation; `None` for protocols without ports.
    pub port: Option<u16>,
    /// Type of the ICMP message that opened the flow.
    pub icmp_type: Option<u8>,
    /// The Service that the client asked for; `None` if it asked for the destination itself.
    pub service: Option<ServicePort>,
    pub verdict: Verdict,
    /// Why packets that no policy denied were dropped (`forged-source`, `tunnel`); `None` for all others.
    pub drop_cause: Option<Arc<str>>,
    pub egress: SideTrace,
    pub ingress: SideTrace,
}

/// What one connection is about. Connections between the same ends share it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subject {
    pub key: Arc<FlowKey>,
    pub source: Member,
    pub destination: Member,
    /// The generation of the policies that decided; `None` for flows that no policy judged.
    pub generation: Option<u32>,
}

/// The connections of one key in one window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowRecord {
    /// RFC 3339. The window ends [`WINDOW_SECONDS`] later.
    pub window: Timestamp,
    /// The node that reports it.
    pub node: Arc<str>,
    #[serde(flatten)]
    pub key: Arc<FlowKey>,
    pub sources: EndSample,
    pub destinations: EndSample,
    pub connections: Connections,
    /// From the source to the destination; `None` if it is not known of any connection of the record.
    pub sent: Option<Volume>,
    /// From the destination to the source.
    pub received: Option<Volume>,
    /// Connections whose volume is not known, and is not in `sent` and `received`.
    pub unknown_volume: u64,
    /// Packets that were denied, or would be. A denied flow has no connection.
    pub denied_packets: u64,
    /// The newest generation of policies that decided about a connection of the record.
    pub generation: Option<u32>,
    /// First and last event of the record within the window.
    pub first: Timestamp,
    pub last: Timestamp,
}

/// Connections of a record within its window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    pub started: u64,
    pub ended: u64,
    /// At the end of the window.
    pub live: u64,
    /// Connections of which no end was reported, although they are gone.
    pub lost: u64,
}

/// Who was at one end of a record's connections, at most [`MOST_MEMBERS`] of each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndSample {
    pub addresses: BTreeSet<IpAddr>,
    /// `namespace/name`
    pub pods: BTreeSet<Arc<str>>,
    pub nodes: BTreeSet<Arc<str>>,
    /// `key=value`; of all pods of the record.
    pub labels: BTreeSet<Arc<str>>,
    pub identities: Vec<EndIdentity>,
    /// Whether there were more than are listed.
    pub truncated: bool,
}
