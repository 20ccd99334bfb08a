//! Remote sets as the selectors of a policy match them: as a pod in a remote namespace.

use std::sync::Arc;

use super::{LabelPrefix, RemoteSet};
use crate::{Labels, Selector};

/// The label keys of remote sets, for every prefix.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct LabelFamilies(Vec<LabelFamily>);

#[derive(Debug, Clone, PartialEq)]
struct LabelFamily {
    prefix: LabelPrefix,
    /// The label keys.
    cluster: Arc<str>,
    namespace: Arc<str>,
    name: Arc<str>,
}

/// The labels of a remote set's pod and of its namespace, for every prefix.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RemoteLabels {
    pub(crate) pod: Labels,
    pub(crate) namespace: Labels,
}

impl LabelFamilies {
    pub(super) fn of(prefixes: Vec<LabelPrefix>) -> LabelFamilies {
        let family = |prefix: LabelPrefix| LabelFamily {
            cluster: prefix.cluster_label(),
            namespace: prefix.namespace_label(),
            name: prefix.name_label(),
            prefix,
        };
        LabelFamilies(prefixes.into_iter().map(family).collect())
    }

    pub(super) fn prefixes(&self) -> impl Iterator<Item = &LabelPrefix> {
        self.0.iter().map(|family| &family.prefix)
    }

    /// Whether a namespaceSelector can match a remote namespace: it must require the cluster label. A selector that
    /// also matches namespaces without the label was not written for other clusters.
    pub(crate) fn are_required_by(&self, namespaces: &Selector) -> bool {
        self.0.iter().any(|family| namespaces.requires(&family.cluster))
    }

    pub(super) fn show(&self, set: &RemoteSet) -> RemoteLabels {
        let of_namespace = |family: &LabelFamily| {
            [(family.cluster.clone(), set.cluster.clone()), (family.namespace.clone(), set.namespace.clone())]
        };
        let of_pod = |family: &LabelFamily| [(family.name.clone(), set.name.clone())];
        let namespace = || self.0.iter().flat_map(of_namespace);
        RemoteLabels {
            pod: namespace().chain(self.0.iter().flat_map(of_pod)).collect(),
            namespace: namespace().collect(),
        }
    }
}

impl Default for LabelFamilies {
    fn default() -> LabelFamilies {
        LabelFamilies::of(LabelPrefix::defaults())
    }
}
