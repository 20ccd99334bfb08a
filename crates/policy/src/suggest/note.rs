//! What no rule is suggested for, and why.

use std::fmt;

use crate::{Direction, Traffic};

/// A flow that was seen and that the suggested policies do not allow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    pub direction: Direction,
    /// `namespace/workload`, or `namespace/pod` where that has none.
    pub local: String,
    /// The same, or an address.
    pub peer: String,
    pub traffic: Traffic,
    pub reason: Unsuggested,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unsuggested {
    /// ICMP and other protocols without ports.
    Portless,
    /// The API has no such port.
    PortZero,
    LocalWithoutLabels,
    PeerWithoutLabels,
    LocalNotKnown,
    PeerNotKnown,
    LocalNotUnderstood,
    PeerNotUnderstood,
    /// Its object is not there, or its labels were not understood: no namespaceSelector matches it.
    PeerNamespaceNotKnown,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Note { direction, local, peer, traffic, reason } = self;
        let traffic = match traffic {
            Traffic::Port(..) => traffic.to_string(),
            Traffic::Portless => "icmp or what else has no ports".into(),
        };
        match direction {
            Direction::Egress => write!(f, "not allowed: {local} to {peer}, {traffic}: {reason}"),
            Direction::Ingress => write!(f, "not allowed: {peer} to {local}, {traffic}: {reason}"),
        }
    }
}

impl fmt::Display for Unsuggested {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Unsuggested::Portless => "only a rule without ports allows it, and such a rule allows every port",
            Unsuggested::PortZero => "no rule can name port 0",
            Unsuggested::LocalWithoutLabels => {
                "the pod has no label of its own that lasts, so no selector means it alone"
            }
            Unsuggested::PeerWithoutLabels => {
                "the peer has no label of its own that lasts, so no selector means it alone"
            }
            Unsuggested::LocalNotKnown => "the pod is gone, or its object is not known",
            Unsuggested::PeerNotKnown => "the peer is gone, or its object is not known",
            Unsuggested::LocalNotUnderstood => {
                "the pod's object was not understood; until it is, it is denied everything"
            }
            Unsuggested::PeerNotUnderstood => {
                "the peer's object was not understood; until it is, no selector matches it"
            }
            Unsuggested::PeerNamespaceNotKnown => "the peer's namespace is not known or not understood",
        })
    }
}
