//! Reserved identities: fixed numbers for addresses without a computed identity.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number that computed identities share if all numbers are in use.
pub const UNNUMBERED: u32 = 0;

/// An identity that is not computed from labels. As JSON it is its [`text`](ReservedIdentity::text).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReservedIdentity {
    /// An address of a node.
    Host,
    /// An address outside of the cluster.
    World,
    /// A pod on a node without an agent.
    Unmanaged,
    /// A health check.
    Health,
    /// A pod with unknown labels, its own or those of its namespace.
    Init,
    /// An address of another node.
    RemoteNode,
    /// The API server.
    KubeApiserver,
    /// An ingress of the cluster.
    Ingress,
    /// A pod of another cluster.
    Remote,
}

impl ReservedIdentity {
    pub const ALL: [ReservedIdentity; 9] = [
        ReservedIdentity::Host,
        ReservedIdentity::World,
        ReservedIdentity::Unmanaged,
        ReservedIdentity::Health,
        ReservedIdentity::Init,
        ReservedIdentity::RemoteNode,
        ReservedIdentity::KubeApiserver,
        ReservedIdentity::Ingress,
        ReservedIdentity::Remote,
    ];

    /// The number, below those of computed identities.
    ///
    /// ```
    /// # use identity::ReservedIdentity;
    /// assert_eq!(ReservedIdentity::Init.num(), 5);
    /// ```
    pub fn num(self) -> u32 {
        match self {
            ReservedIdentity::Host => 1,
            ReservedIdentity::World => 2,
            ReservedIdentity::Unmanaged => 3,
            ReservedIdentity::Health => 4,
            ReservedIdentity::Init => 5,
            ReservedIdentity::RemoteNode => 6,
            ReservedIdentity::KubeApiserver => 7,
            ReservedIdentity::Ingress => 8,
            ReservedIdentity::Remote => 9,
        }
    }

    /// The name that records, events and JSON use.
    ///
    /// ```
    /// # use identity::ReservedIdentity;
    /// assert_eq!(ReservedIdentity::KubeApiserver.text(), "kube-apiserver");
    /// ```
    pub fn text(self) -> &'static str {
        match self {
            ReservedIdentity::Host => "host",
            ReservedIdentity::World => "world",
            ReservedIdentity::Unmanaged => "unmanaged",
            ReservedIdentity::Health => "health",
            ReservedIdentity::Init => "init",
            ReservedIdentity::RemoteNode => "remote-node",
            ReservedIdentity::KubeApiserver => "kube-apiserver",
            ReservedIdentity::Ingress => "ingress",
            ReservedIdentity::Remote => "remote",
        }
    }
}

impl fmt::Display for ReservedIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_lists_each_reserved_number() {
        let document = include_str!("../../../docs/identity.md");
        for identity in ReservedIdentity::ALL {
            let row = format!("| {} | {}", identity.num(), identity.text());
            assert!(document.lines().any(|line| line.starts_with(&row)), "docs/identity.md lacks '{row}'");
            assert_eq!(serde_json::to_string(&identity).unwrap(), format!("\"{}\"", identity.text()));
        }
    }
}
