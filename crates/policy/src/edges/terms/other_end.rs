//! The other end of a flow, as the rules of policies name it.

use ipnet::IpNet;

use crate::edges::vocabulary::NodeIndex;
use crate::peers::PodPeer;
use crate::{Block, NamedPort, PodScope, Selector};

/// A peer in a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::edges) enum PeerTerm {
    /// Pods by a peer of a NetworkPolicy.
    Pods(PodPeer),
    Block(Block),
    /// Pods by a peer of a ClusterNetworkPolicy.
    Scope(PodScope),
    /// Pods of which it is not known whether the peer selects them.
    PossibleScope(PodScope),
    /// Pods whose address is one of a node.
    Nodes(Selector),
    /// Pods whose address is one of a node with unknown labels.
    PossibleNodes,
}

impl PeerTerm {
    pub(in crate::edges) fn pod_peer(&self) -> Option<&PodPeer> {
        match self {
            PeerTerm::Pods(peer) => Some(peer),
            PeerTerm::Block(_)
            | PeerTerm::Scope(_)
            | PeerTerm::PossibleScope(_)
            | PeerTerm::Nodes(_)
            | PeerTerm::PossibleNodes => None,
        }
    }
}

/// The other end of a flow.
#[derive(Clone, Copy)]
pub(in crate::edges) enum OtherEnd<'a> {
    /// Pods of a class.
    Pods(PodEnd<'a>),
    /// A pod that no indexed peer selects, of a known namespace and readable or neither.
    Unnamed { ordinary: bool },
    /// Addresses of no pod, of which the networks that rules name contain all or none.
    Outside { addresses: &'a IpNet, nodes: &'a NodeIndex },
}

/// Pods of a class at the other end of a flow, with the properties that terms depend on.
#[derive(Clone, Copy)]
pub(in crate::edges) struct PodEnd<'a> {
    /// The peers of rules that select the pods, sorted.
    pub(in crate::edges) peers: &'a [u32],
    /// A rule for all pods of all namespaces selects the pods.
    pub(in crate::edges) ordinary: bool,
    pub(in crate::edges) unreadable: bool,
    pub(in crate::edges) ports: &'a [NamedPort],
}

impl PodEnd<'_> {
    pub(super) fn is_matched_by(&self, peer: u32) -> bool {
        self.peers.binary_search(&peer).is_ok()
    }
}
