//! Pods of other clusters, as this cluster's policies may name them.
//!
//! A remote set is the addresses that pods of another cluster offer under one name. To a policy it is a pod in a
//! namespace of that cluster, with labels of every prefix ([`LabelPrefix`]). Only a namespaceSelector that requires the
//! cluster label selects it, so policies written for a single cluster allow remote sets nothing. This module does not
//! depend on the source of the addresses, nor on how stale ones are handled.

mod labels;
mod prefix;
mod sets;
pub mod wire;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ObjectName;
use crate::sanitize::plain;

pub(crate) use labels::{LabelFamilies, RemoteLabels};
pub use prefix::{DEFAULT_PREFIXES, LabelPrefix, NotALabelPrefix};
pub(crate) use sets::{MembershipDelta, RemoteSets};

/// The identity of a remote set, ordered by cluster, namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RemoteSet {
    /// The name under which the provider watches the cluster.
    pub cluster: Arc<str>,
    /// The namespace in the other cluster.
    pub namespace: Arc<str>,
    /// The value of the label `PREFIX/name` of its pods.
    pub name: Arc<str>,
}

impl RemoteSet {
    /// Accepts any text: [`Display`](fmt::Display) replaces control characters.
    pub fn new(cluster: &str, namespace: &str, name: &str) -> RemoteSet {
        RemoteSet { cluster: cluster.into(), namespace: namespace.into(), name: name.into() }
    }

    /// The name within the other cluster.
    pub fn object_name(&self) -> ObjectName {
        ObjectName { namespace: self.namespace.clone(), name: self.name.clone() }
    }
}

/// `cluster/namespace/name`
impl fmt::Display for RemoteSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The name is untrusted: anyone who can create a pod in the other cluster chooses it.
        write!(f, "{}/{}/{}", plain(&self.cluster), plain(&self.namespace), plain(&self.name))
    }
}

/// Why a text is not `cluster/namespace/name`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid remote set '{0}': expected CLUSTER/NAMESPACE/NAME")]
pub struct NotARemoteSet(String);

impl std::str::FromStr for RemoteSet {
    type Err = NotARemoteSet;
    fn from_str(text: &str) -> Result<RemoteSet, NotARemoteSet> {
        match text.split('/').collect::<Vec<&str>>()[..] {
            [cluster, namespace, name] if ![cluster, namespace, name].contains(&"") => {
                Ok(RemoteSet::new(cluster, namespace, name))
            }
            _ => Err(NotARemoteSet(text.into())),
        }
    }
}

/// A change of remote sets. A set without addresses does not exist. IPv4-mapped IPv6 addresses are treated as IPv4.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteChange {
    /// Replaces all sets. Several entries of the same set are merged.
    Replace(Vec<(RemoteSet, Vec<IpAddr>)>),
    /// Changes the addresses of one set; removals are applied first.
    Update {
        /// Created if it does not exist.
        set: RemoteSet,
        /// Addresses that it gains; existing ones are ignored.
        adds: Vec<IpAddr>,
        /// Addresses that it loses; missing ones are ignored.
        removes: Vec<IpAddr>,
    },
    /// Removes all sets of a cluster that is no longer watched.
    RemoveCluster(Arc<str>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_set_is_named_in_three_parts() {
        let set = RemoteSet::new("my-cluster", "my-ns", "my-app");
        assert_eq!((set.to_string().as_str(), "my-cluster/my-ns/my-app".parse()), ("my-cluster/my-ns/my-app", Ok(set)));
        for text in ["", "a", "a/b", "a/b/", "/b/c", "a//c", "a/b/c/d", "//"] {
            assert!(text.parse::<RemoteSet>().is_err(), "{text}");
        }
    }

    #[test]
    fn remote_sets_with_equal_joined_names_differ() {
        assert_ne!(RemoteSet::new("a", "b-c", "d"), RemoteSet::new("a-b", "c", "d"));
    }
}
