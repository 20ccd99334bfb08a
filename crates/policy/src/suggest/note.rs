//! Notes: flows for which no rule is suggested, and why.

use std::fmt;

use crate::{Direction, Traffic};

/// An observed flow that the suggested policies do not allow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// The direction relative to `local`.
    pub direction: Direction,
    /// `namespace/workload`, or `namespace/pod` if the pod has no workload.
    pub local: String,
    /// The same, or an address.
    pub peer: String,
    /// Destination port and protocol.
    pub traffic: Traffic,
    /// Why no rule is suggested.
    pub reason: SuggestionObstacle,
}

/// Why a flow cannot be expressed as a rule that allows this flow alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SuggestionObstacle {
    /// ICMP and other protocols without ports.
    Portless,
    /// The API has no such port.
    PortZero,
    /// All labels of the pod differ between pods, rollouts or runs.
    LocalWithoutLabels,
    /// The same for the peer.
    PeerWithoutLabels,
    /// No known pod has the name or, if it has none, the address.
    LocalNotKnown,
    /// The same for the peer.
    PeerNotKnown,
    /// The object is [unreadable](crate::Pod::unreadable).
    LocalNotUnderstood,
    /// The same for the peer.
    PeerNotUnderstood,
    /// Its object is missing, or its labels are invalid: no namespaceSelector matches it.
    PeerNamespaceNotKnown,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Note { direction, local, peer, traffic, reason } = self;
        let traffic = match traffic {
            Traffic::Port(..) => traffic.to_string(),
            Traffic::Portless => "traffic without ports, such as icmp".into(),
        };
        match direction {
            Direction::Egress => write!(f, "not allowed: {local} to {peer}, {traffic}: {reason}"),
            Direction::Ingress => write!(f, "not allowed: {peer} to {local}, {traffic}: {reason}"),
        }
    }
}

impl fmt::Display for SuggestionObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SuggestionObstacle::Portless => {
                "only a rule without ports allows such traffic, and that rule would allow every port"
            }
            SuggestionObstacle::PortZero => "no rule can name port 0",
            SuggestionObstacle::LocalWithoutLabels => {
                "the pod has no stable label of its own, so no selector matches only this pod"
            }
            SuggestionObstacle::PeerWithoutLabels => {
                "the peer has no stable label of its own, so no selector matches only this peer"
            }
            SuggestionObstacle::LocalNotKnown => "the pod was deleted, or its object has not been received",
            SuggestionObstacle::PeerNotKnown => "the peer was deleted, or its object has not been received",
            SuggestionObstacle::LocalNotUnderstood => {
                "the pod's object is invalid; all its traffic is denied until it is corrected"
            }
            SuggestionObstacle::PeerNotUnderstood => {
                "the peer's object is invalid; no selector matches it until it is corrected"
            }
            SuggestionObstacle::PeerNamespaceNotKnown => "the peer's namespace was not found or is invalid",
        })
    }
}
