//! The scheme of a cluster whose name is configured or learned from its objects.

use std::sync::Arc;

use policy::ClusterState;

use crate::{LabelFilter, Scheme, cluster_uid};

/// The cluster name and the label filter of identities, as configured or learned from the informer.
///
/// ```
/// use identity::{ClusterName, ClusterScheme, LabelFilter};
/// use policy::{Change, ClusterState, Kind, lower};
/// use serde_json::json;
///
/// let mut scheme = ClusterScheme::new(ClusterName::UidOfKubeSystem, LabelFilter::default());
/// let mut state = ClusterState::new();
/// scheme.update(&state);
/// assert_eq!(scheme.scheme(), None);
///
/// let namespace = json!({"metadata": {"name": "kube-system", "uid": "0a1b2c3d"}});
/// state.apply(Change::Set(lower(Kind::Namespace, &namespace).unwrap()));
/// scheme.update(&state);
/// assert_eq!(scheme.scheme().map(|scheme| &*scheme.cluster), Some("0a1b2c3d"));
/// ```
#[derive(Debug, Clone)]
pub struct ClusterScheme {
    cluster: ClusterName,
    filter: LabelFilter,
    scheme: Option<Scheme>,
}

/// The name of the cluster in its identities.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterName {
    Configured(Arc<str>),
    /// The UID of the namespace kube-system, from the informer.
    UidOfKubeSystem,
}

impl ClusterName {
    /// The name by the arguments of a program: its `--cluster-id`; without one, the UID of kube-system, or the empty name
    /// for a folder of manifests, which often lacks that namespace.
    pub fn of_arguments(cluster_id: Option<&str>, reads_manifests: bool) -> ClusterName {
        match cluster_id {
            Some(id) => ClusterName::Configured(id.into()),
            None if reads_manifests => ClusterName::Configured("".into()),
            None => ClusterName::UidOfKubeSystem,
        }
    }
}

impl ClusterScheme {
    pub fn new(cluster: ClusterName, filter: LabelFilter) -> ClusterScheme {
        let scheme = match &cluster {
            ClusterName::Configured(name) => Some(Scheme { cluster: name.clone(), filter: filter.clone() }),
            ClusterName::UidOfKubeSystem => None,
        };
        ClusterScheme { cluster, filter, scheme }
    }

    /// Updates the name of the cluster from the state, unless it is configured.
    pub fn update(&mut self, state: &ClusterState) {
        match self.cluster {
            ClusterName::Configured(_) => {}
            ClusterName::UidOfKubeSystem => {
                let uid = cluster_uid(state);
                if uid.as_ref() != self.scheme.as_ref().map(|scheme| &scheme.cluster) {
                    self.scheme = uid.map(|cluster| Scheme { cluster, filter: self.filter.clone() });
                }
            }
        }
    }

    /// The scheme of identities; `None` while the name of the cluster is unknown.
    pub fn scheme(&self) -> Option<&Scheme> {
        self.scheme.as_ref()
    }
}
