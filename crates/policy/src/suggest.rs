//! Suggests policies that allow exactly the observed flows, as documents to review and apply.
//!
//! A flow is observed as an address, a peer and a port, but policies select by labels. So flows are grouped by
//! *workload*: the pods of one namespace that have the same labels, except labels that differ from pod to pod. A flow
//! that cannot be expressed without allowing more becomes a [`Note`] instead of a rule.

mod document;
mod note;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use nft::Protocol;
use serde_json::Value;

pub use note::{Note, SuggestionObstacle};
pub use workload::Workloads;

use crate::remote::{LabelPrefix, RemoteSet};
use crate::{ClusterState, Direction, Holder, ObjectName, Pod, SideVerdict, Tier, Traffic, explain_side};
use document::Allowances;
use workload::Workload;

/// The pods for which policies are suggested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SuggestedPods {
    /// One document for every workload of the namespace.
    Namespace(Arc<str>),
    /// The workload of the pod: a policy cannot distinguish the pods of one workload.
    Pod(ObjectName),
    /// The workload by its name in suggestions: `web` of `ringfence-suggested-web`.
    Workload {
        /// Namespace of the workload's pods.
        namespace: Arc<str>,
        /// The name after `ringfence-suggested-`.
        name: String,
    },
}

/// An observed flow, on the side of one of its pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowSeen {
    /// The direction relative to `local`.
    pub direction: Direction,
    /// The pod that the policy is for.
    pub local: EndSeen,
    /// The other end.
    pub peer: EndSeen,
    /// Destination port and protocol.
    pub traffic: Traffic,
}

/// An end of a flow, as known when the flow was observed. Addresses are reused by other pods: a named pod is looked up
/// by name, any other end by address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndSeen {
    /// The address in the packet, after destination translation.
    pub address: IpAddr,
    /// The owner at that time.
    pub who: WhoSeen,
}

/// The owner of the address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WhoSeen {
    /// A pod, looked up by name.
    Pod(ObjectName),
    /// An unknown pod of the node. The address may be reused by another pod.
    UnknownPod,
    /// Not a pod, as far as known.
    NoPod,
}

/// The suggested policies and notes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Suggestion {
    /// NetworkPolicy objects of `networking.k8s.io/v1`, sorted by name. Where policies without an annotation are
    /// enforced, these carry the annotation for audit: an enforced policy beside audited ones would deny what those
    /// allow.
    pub policies: Vec<Value>,
    /// Flows without a suggestion, and why.
    pub notes: Vec<Note>,
}

/// Policies that allow the flows observed on the side of pods in the scope, and no flow with other workloads or at
/// other ports. They isolate only for the directions in which a flow was observed.
pub fn suggest<'a>(
    workloads: &Workloads,
    scope: &SuggestedPods,
    seen: impl IntoIterator<Item = &'a FlowSeen>,
) -> Suggestion {
    let state = workloads.state;
    let mut allowed: BTreeMap<Workload, Allowances> = BTreeMap::new();
    let mut notes: BTreeSet<Note> = BTreeSet::new();
    for flow in seen.into_iter().filter(|flow| flow.local.address != flow.peer.address) {
        let local = EndOwner::of(state, &flow.local);
        if !scope.holds(workloads, &local) {
            continue;
        }
        match rule(state, &local, flow) {
            Ok((workload, peer, port)) => {
                allowed.entry(workload).or_default().add(flow.direction, peer, port);
            }
            Err(reason) => {
                let peer = EndOwner::of(state, &flow.peer).describe(workloads);
                let (direction, local) = (flow.direction, local.describe(workloads));
                notes.insert(Note { direction, local, peer, traffic: flow.traffic, reason });
            }
        }
    }
    let document = |(workload, allowances): (&Workload, &Allowances)| document::policy(workloads, workload, allowances);
    let mut policies: Vec<(String, Value)> = allowed.iter().map(document).collect();
    policies.sort_by(|a, b| a.0.cmp(&b.0));
    Suggestion { policies: policies.into_iter().map(|(_, p)| p).collect(), notes: notes.into_iter().collect() }
}

/// The peer in a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SeenPeer {
    Workload(Workload),
    /// A pod of another cluster, by labels with this prefix. One that is in several remote sets is suggested by the
    /// first.
    Remote(LabelPrefix, RemoteSet),
    /// An address that is not a pod's.
    Address(IpAddr),
}

/// The rule that allows exactly this flow.
fn rule(
    state: &ClusterState,
    local: &EndOwner,
    flow: &FlowSeen,
) -> Result<(Workload, SeenPeer, (Protocol, u16)), SuggestionObstacle> {
    let workload = match local {
        EndOwner::Pod(pod) if pod.unreadable => return Err(SuggestionObstacle::LocalNotUnderstood),
        EndOwner::Pod(pod) => Workload::of(pod).ok_or(SuggestionObstacle::LocalWithoutLabels)?,
        EndOwner::Gone(_) | EndOwner::Nameless(_) | EndOwner::Remote(..) | EndOwner::Address(_) => {
            return Err(SuggestionObstacle::LocalNotKnown);
        }
    };
    let port = match flow.traffic {
        Traffic::Portless => return Err(SuggestionObstacle::Portless),
        Traffic::Port(_, 0) => return Err(SuggestionObstacle::PortZero),
        Traffic::Port(protocol, number) => (protocol, number),
    };
    let peer = match EndOwner::of(state, &flow.peer) {
        EndOwner::Pod(pod) if pod.unreadable => return Err(SuggestionObstacle::PeerNotUnderstood),
        EndOwner::Pod(pod) => {
            let peer = Workload::of(pod).ok_or(SuggestionObstacle::PeerWithoutLabels)?;
            if peer.namespace != workload.namespace && state.namespace_labels(&peer.namespace).is_none() {
                return Err(SuggestionObstacle::PeerNamespaceNotKnown);
            }
            SeenPeer::Workload(peer)
        }
        EndOwner::Gone(_) | EndOwner::Nameless(_) => return Err(SuggestionObstacle::PeerNotKnown),
        EndOwner::Remote(set, address) => match state.remote_prefixes().next() {
            Some(family) => SeenPeer::Remote(family.clone(), set.clone()),
            None => SeenPeer::Address(address),
        },
        EndOwner::Address(address) => SeenPeer::Address(address),
    };
    Ok((workload, peer, port))
}

/// An end as resolved in the state.
enum EndOwner<'a> {
    Pod(&'a Arc<Pod>),
    /// A pod that was deleted, or is not in the store yet.
    Gone(ObjectName),
    /// A pod of which only the address is known.
    Nameless(IpAddr),
    /// A pod of another cluster.
    Remote(&'a RemoteSet, IpAddr),
    /// Not a pod: a node, or outside the cluster.
    Address(IpAddr),
}

impl<'a> EndOwner<'a> {
    fn of(state: &'a ClusterState, end: &EndSeen) -> EndOwner<'a> {
        let address = end.address.to_canonical();
        match &end.who {
            WhoSeen::Pod(name) => match state.pod(name) {
                None => EndOwner::Gone(name.clone()),
                Some(pod) if pod.host_network => EndOwner::Address(address),
                Some(pod) => EndOwner::Pod(pod),
            },
            who @ (WhoSeen::UnknownPod | WhoSeen::NoPod) => match state.holder(address) {
                None if *who == WhoSeen::UnknownPod => EndOwner::Nameless(address),
                None => match state.remote_sets_with(address).next() {
                    Some(set) => EndOwner::Remote(set, address),
                    None => EndOwner::Address(address),
                },
                Some(Holder::Pod(pod)) => EndOwner::Pod(pod),
                Some(Holder::Unknown(attachment)) => EndOwner::Gone(attachment.pod.clone()),
            },
        }
    }

    fn describe(&self, workloads: &Workloads) -> String {
        match self {
            EndOwner::Pod(pod) => match Workload::of(pod) {
                None => pod.name.to_string(),
                Some(workload) => workload.title(workloads),
            },
            EndOwner::Gone(name) => name.to_string(),
            EndOwner::Nameless(address) => format!("an unknown pod ({address})"),
            EndOwner::Remote(set, _) => format!("remote {set}"),
            EndOwner::Address(address) => address.to_string(),
        }
    }
}

impl fmt::Display for SuggestedPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SuggestedPods::Namespace(namespace) => write!(f, "namespace {namespace}"),
            SuggestedPods::Pod(name) => write!(f, "pod {name}"),
            SuggestedPods::Workload { namespace, name } => write!(f, "workload {namespace}/{name}"),
        }
    }
}

impl FlowSeen {
    /// Whether current policies deny the flow, or would, and a NetworkPolicy can allow it: none overrides a rule of the
    /// Admin tier. Addresses are reused: a named pod is looked up by its current
    /// address. A flow of a deleted pod cannot be judged, so it counts as denied.
    pub fn is_denied_still(&self, state: &ClusterState) -> bool {
        let Some(verdict) = self.verdict(state) else { return true };
        match verdict {
            SideVerdict::DeniedByRule { rule } | SideVerdict::WouldDenyByRule { rule } => match rule.tier {
                // No NetworkPolicy could allow it.
                Tier::Admin => false,
                Tier::Baseline => true,
            },
            other => denies(&other),
        }
    }

    /// Whether policies, enforced or audited, deny it now. A flow of a deleted pod counts as denied.
    pub fn is_denied(&self, state: &ClusterState) -> bool {
        self.verdict(state).is_none_or(|verdict| denies(&verdict))
    }

    /// `None` if one of its pods is gone.
    fn verdict(&self, state: &ClusterState) -> Option<SideVerdict> {
        let address = |end: &EndSeen| match EndOwner::of(state, end) {
            EndOwner::Pod(pod) => {
                let of_family = |address: &IpAddr| address.is_ipv4() == end.address.to_canonical().is_ipv4();
                let now: Vec<IpAddr> = state.addresses_of(pod).filter(of_family).collect();
                now.iter().find(|address| **address == end.address.to_canonical()).or(now.first()).copied()
            }
            EndOwner::Remote(_, address) | EndOwner::Address(address) => Some(address),
            EndOwner::Gone(_) | EndOwner::Nameless(_) => None,
        };
        let (local, peer) = (address(&self.local)?, address(&self.peer)?);
        let (source, destination) = match self.direction {
            Direction::Egress => (local, peer),
            Direction::Ingress => (peer, local),
        };
        Some(explain_side(state, source, destination, self.traffic, self.direction).verdict)
    }

    /// The names of the flow's ends in a note.
    pub fn ends_now(&self, workloads: &Workloads) -> (String, String) {
        let now = |end: &EndSeen| EndOwner::of(workloads.state, end).describe(workloads);
        (now(&self.local), now(&self.peer))
    }
}

/// Whether enforced or audited policies deny.
fn denies(verdict: &SideVerdict) -> bool {
    !verdict.allows() || verdict.would_deny()
}

impl SuggestedPods {
    /// Whether the flow is one of a pod in the scope.
    pub fn concerns(&self, workloads: &Workloads, flow: &FlowSeen) -> bool {
        self.holds(workloads, &EndOwner::of(workloads.state, &flow.local))
    }

    /// Whether the scope exists. A namespace also exists if it contains objects.
    pub fn is_known(&self, workloads: &Workloads) -> bool {
        let state = workloads.state;
        match self {
            SuggestedPods::Namespace(namespace) => {
                state.namespaces().any(|known| *known.name.name == **namespace)
                    || state.pods_in(namespace).next().is_some()
                    || state.policies_in(namespace).next().is_some()
            }
            SuggestedPods::Pod(name) => state.pod(name).is_some(),
            SuggestedPods::Workload { namespace, name } => {
                workloads.names(namespace).values().any(|known| known == name)
            }
        }
    }

    fn holds(&self, workloads: &Workloads, local: &EndOwner) -> bool {
        let (name, workload) = match local {
            EndOwner::Pod(pod) => (&pod.name, Workload::of(pod)),
            EndOwner::Gone(name) => (name, None),
            EndOwner::Nameless(_) | EndOwner::Remote(..) | EndOwner::Address(_) => return false,
        };
        match self {
            SuggestedPods::Namespace(namespace) => *namespace == name.namespace,
            SuggestedPods::Pod(asked) => {
                let asked_workload = || workloads.state.pod(asked).and_then(|pod| Workload::of(pod));
                asked == name || (workload.is_some() && workload == asked_workload())
            }
            SuggestedPods::Workload { namespace, name: asked } => workload.is_some_and(|workload| {
                *namespace == workload.namespace && workloads.names(namespace).get(&workload) == Some(asked)
            }),
        }
    }
}
