//! Policies that allow exactly the flows that were seen, as documents for a person to judge and apply.
//!
//! What was seen is an address, a peer and a port; what a policy says is labels. So flows are gathered by *workload*:
//! the pods of one namespace that have the same labels, but for those that differ from pod to pod. What cannot be said
//! without allowing more than was seen becomes a [`Note`] instead of a rule.

mod document;
mod note;
mod workload;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use nft::Protocol;
use serde_json::Value;

pub use note::{Note, Unsuggested};
pub use workload::Workloads;

use crate::remote::{LabelPrefix, RemoteSet};
use crate::{ClusterState, Direction, Holder, ObjectName, Pod, SideVerdict, Traffic, explain_side};
use document::Allowances;
use workload::Workload;

/// Whose policies are asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// One document for every workload of the namespace.
    Namespace(Arc<str>),
    /// The workload that the pod belongs to: a policy cannot tell its pods apart.
    Pod(ObjectName),
    /// The workload that a suggestion names so: `web` of `ringfence-suggested-web`.
    Workload { namespace: Arc<str>, name: String },
}

/// A flow that was seen, on the side of one of its pods.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowSeen {
    /// As seen from `local`.
    pub direction: Direction,
    /// The pod that the policy is to be for.
    pub local: EndSeen,
    pub peer: EndSeen,
    pub traffic: Traffic,
}

/// An end of a flow, as it was known when the flow was seen. Addresses pass from pod to pod: a pod that is named is
/// looked up by its name, and one that is not by the address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndSeen {
    pub address: IpAddr,
    pub who: WhoSeen,
}

/// Who had the address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WhoSeen {
    Pod(ObjectName),
    /// Some pod of the node: the address will be another's.
    UnknownPod,
    /// No pod, as far as is known.
    NoPod,
}

/// What is suggested.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Suggestion {
    /// NetworkPolicy objects of `networking.k8s.io/v1`, in the order of their names. Where policies that say nothing
    /// of their own are enforced, they carry the annotation that has them audited: one that is enforced beside
    /// audited ones would deny what those allow.
    pub policies: Vec<Value>,
    /// What is not suggested, and why.
    pub notes: Vec<Note>,
}

/// Policies that allow the flows seen on the side of pods in the scope, and nothing else to workloads other than
/// these, from others, or at other ports. They isolate only for the directions in which something was seen.
pub fn suggest<'a>(workloads: &Workloads, scope: &Scope, seen: impl IntoIterator<Item = &'a FlowSeen>) -> Suggestion {
    let state = workloads.state;
    let mut allowed: BTreeMap<Workload, Allowances> = BTreeMap::new();
    let mut notes: BTreeSet<Note> = BTreeSet::new();
    for flow in seen.into_iter().filter(|flow| flow.local.address != flow.peer.address) {
        let local = Found::of(state, &flow.local);
        if !scope.holds(workloads, &local) {
            continue;
        }
        match rule(state, &local, flow) {
            Ok((workload, peer, port)) => {
                allowed.entry(workload).or_default().add(flow.direction, peer, port);
            }
            Err(reason) => {
                let peer = Found::of(state, &flow.peer).describe(workloads);
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

/// What a rule names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SeenPeer {
    Workload(Workload),
    /// A pod of another cluster, by the labels of this family. One that has several names is suggested by the first.
    Remote(LabelPrefix, RemoteSet),
    /// No pod's.
    Address(IpAddr),
}

/// The rule that allows the flow and no other.
fn rule(
    state: &ClusterState,
    local: &Found,
    flow: &FlowSeen,
) -> Result<(Workload, SeenPeer, (Protocol, u16)), Unsuggested> {
    let workload = match local {
        Found::Pod(pod) if pod.unreadable => return Err(Unsuggested::LocalNotUnderstood),
        Found::Pod(pod) => Workload::of(pod).ok_or(Unsuggested::LocalWithoutLabels)?,
        Found::Gone(_) | Found::Nameless(_) | Found::Remote(..) | Found::Address(_) => {
            return Err(Unsuggested::LocalNotKnown);
        }
    };
    let port = match flow.traffic {
        Traffic::Portless => return Err(Unsuggested::Portless),
        Traffic::Port(_, 0) => return Err(Unsuggested::PortZero),
        Traffic::Port(protocol, number) => (protocol, number),
    };
    let peer = match Found::of(state, &flow.peer) {
        Found::Pod(pod) if pod.unreadable => return Err(Unsuggested::PeerNotUnderstood),
        Found::Pod(pod) => {
            let peer = Workload::of(pod).ok_or(Unsuggested::PeerWithoutLabels)?;
            if peer.namespace != workload.namespace && state.namespace_labels(&peer.namespace).is_none() {
                return Err(Unsuggested::PeerNamespaceNotKnown);
            }
            SeenPeer::Workload(peer)
        }
        Found::Gone(_) | Found::Nameless(_) => return Err(Unsuggested::PeerNotKnown),
        Found::Remote(set, address) => match state.remote_prefixes().next() {
            Some(family) => SeenPeer::Remote(family.clone(), set.clone()),
            None => SeenPeer::Address(address),
        },
        Found::Address(address) => SeenPeer::Address(address),
    };
    Ok((workload, peer, port))
}

/// What the state says of an end.
enum Found<'a> {
    Pod(&'a Arc<Pod>),
    /// A pod that is not there any more, or not yet.
    Gone(ObjectName),
    /// A pod of which no more is known.
    Nameless(IpAddr),
    /// A pod of another cluster's.
    Remote(&'a RemoteSet, IpAddr),
    /// No pod's: of a node, or outside the cluster.
    Address(IpAddr),
}

impl<'a> Found<'a> {
    fn of(state: &'a ClusterState, end: &EndSeen) -> Found<'a> {
        let address = end.address.to_canonical();
        match &end.who {
            WhoSeen::Pod(name) => match state.pod(name) {
                None => Found::Gone(name.clone()),
                Some(pod) if pod.host_network => Found::Address(address),
                Some(pod) => Found::Pod(pod),
            },
            who @ (WhoSeen::UnknownPod | WhoSeen::NoPod) => match state.holder(address) {
                None if *who == WhoSeen::UnknownPod => Found::Nameless(address),
                None => match state.remote_sets_with(address).next() {
                    Some(set) => Found::Remote(set, address),
                    None => Found::Address(address),
                },
                Some(Holder::Pod(pod)) => Found::Pod(pod),
                Some(Holder::Unknown(attachment)) => Found::Gone(attachment.pod.clone()),
            },
        }
    }

    fn describe(&self, workloads: &Workloads) -> String {
        match self {
            Found::Pod(pod) => match Workload::of(pod) {
                None => pod.name.to_string(),
                Some(workload) => workload.title(workloads),
            },
            Found::Gone(name) => name.to_string(),
            Found::Nameless(address) => format!("an unknown pod ({address})"),
            Found::Remote(set, _) => format!("remote {set}"),
            Found::Address(address) => address.to_string(),
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Namespace(namespace) => write!(f, "namespace {namespace}"),
            Scope::Pod(name) => write!(f, "pod {name}"),
            Scope::Workload { namespace, name } => write!(f, "workload {namespace}/{name}"),
        }
    }
}

impl FlowSeen {
    /// Whether the policies of now would deny the flow, or do. Addresses pass from pod to pod: a pod that is named is
    /// asked about by the address that it has now. Of what is gone nobody can tell, so it counts.
    pub fn is_denied_still(&self, state: &ClusterState) -> bool {
        let address = |end: &EndSeen| match Found::of(state, end) {
            Found::Pod(pod) => {
                let of_family = |address: &IpAddr| address.is_ipv4() == end.address.to_canonical().is_ipv4();
                let now: Vec<IpAddr> = state.addresses_of(pod).filter(of_family).collect();
                now.iter().find(|address| **address == end.address.to_canonical()).or(now.first()).copied()
            }
            Found::Remote(_, address) | Found::Address(address) => Some(address),
            Found::Gone(_) | Found::Nameless(_) => None,
        };
        let (Some(local), Some(peer)) = (address(&self.local), address(&self.peer)) else { return true };
        let (source, destination) = match self.direction {
            Direction::Egress => (local, peer),
            Direction::Ingress => (peer, local),
        };
        match explain_side(state, source, destination, self.traffic, self.direction) {
            SideVerdict::Denied { .. } | SideVerdict::WouldDeny { .. } | SideVerdict::Unreadable { .. } => true,
            SideVerdict::NotAPod
            | SideVerdict::NotIsolated
            | SideVerdict::Itself
            | SideVerdict::OwnNode
            | SideVerdict::Allowed { .. }
            | SideVerdict::WouldAllow { .. } => false,
        }
    }

    /// What the flow is called in a note.
    pub fn ends_now(&self, workloads: &Workloads) -> (String, String) {
        let now = |end: &EndSeen| Found::of(workloads.state, end).describe(workloads);
        (now(&self.local), now(&self.peer))
    }
}

impl Scope {
    /// Whether the flow is one of a pod in the scope.
    pub fn concerns(&self, workloads: &Workloads, flow: &FlowSeen) -> bool {
        self.holds(workloads, &Found::of(workloads.state, &flow.local))
    }

    /// Whether there is such a thing. A namespace is also known by what is in it.
    pub fn is_known(&self, workloads: &Workloads) -> bool {
        let state = workloads.state;
        match self {
            Scope::Namespace(namespace) => {
                state.namespaces().any(|known| *known.name.name == **namespace)
                    || state.pods_in(namespace).next().is_some()
                    || state.policies_in(namespace).next().is_some()
            }
            Scope::Pod(name) => state.pod(name).is_some(),
            Scope::Workload { namespace, name } => workloads.names(namespace).values().any(|known| known == name),
        }
    }

    fn holds(&self, workloads: &Workloads, local: &Found) -> bool {
        let (name, workload) = match local {
            Found::Pod(pod) => (&pod.name, Workload::of(pod)),
            Found::Gone(name) => (name, None),
            Found::Nameless(_) | Found::Remote(..) | Found::Address(_) => return false,
        };
        match self {
            Scope::Namespace(namespace) => *namespace == name.namespace,
            Scope::Pod(asked) => {
                let asked_workload = || workloads.state.pod(asked).and_then(|pod| Workload::of(pod));
                asked == name || (workload.is_some() && workload == asked_workload())
            }
            Scope::Workload { namespace, name: asked } => workload.is_some_and(|workload| {
                *namespace == workload.namespace && workloads.names(namespace).get(&workload) == Some(asked)
            }),
        }
    }
}
