//! Ownership of GlobalNetworkSets: which ones this provider may replace and delete. Other operators use the same
//! `managed-by` label, so each object also carries a label with the name of the exporting provider.

use std::sync::Arc;

use cluster::network_sets::NetworkSet;
use policy::remote::LabelPrefix;
use sha2::{Digest, Sha256};

use super::ExportInput;

/// Key of the label that names the exporting provider.
const EXPORTED_BY: &str = "ringfence.io/exported-by";

/// Longest value of a label (Kubernetes API, `metav1.LabelSelector`).
const LABEL_VALUE_BYTES: usize = 63;

/// Bytes of the hash that replaces a name which is too long for a label: 128 bits.
const HASH_BYTES: usize = 16;

/// Name of the provider in the label. It is derived from the Lease, so that replicas share it and it outlives their
/// pods and disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Exporter(String);

impl Exporter {
    pub(crate) fn of_lease(namespace: &str, name: &str) -> Exporter {
        let plain = format!("{namespace}.{name}");
        if plain.len() <= LABEL_VALUE_BYTES {
            return Exporter(plain);
        }
        let hash = Sha256::digest(plain);
        Exporter(hash.iter().take(HASH_BYTES).map(|byte| format!("{byte:02x}")).collect())
    }

    pub(super) fn label(&self) -> (String, String) {
        (EXPORTED_BY.to_owned(), self.0.clone())
    }
}

impl ExportInput {
    /// True if the object carries the label of this provider, or belongs to a configured cluster: the provider adopts
    /// the objects of such a cluster. All others stay unchanged.
    pub(super) fn owns(&self, exporter: &Exporter, set: &NetworkSet) -> bool {
        set.label(EXPORTED_BY) == Some(&exporter.0) || self.configured_cluster(set).is_some()
    }

    /// The cluster of the object, or the empty name if no label of the object names one.
    pub(super) fn cluster_of(&self, set: &NetworkSet) -> Arc<str> {
        let by_any_family = || set.labels().find(|(key, _)| key.ends_with("/cluster")).map(|(_, value)| value.into());
        self.configured_cluster(set).cloned().or_else(by_any_family).unwrap_or_default()
    }

    /// The configured cluster that the object belongs to by a label of one of the cluster's families.
    fn configured_cluster(&self, set: &NetworkSet) -> Option<&Arc<str>> {
        let names = |(cluster, families): &(&Arc<str>, &Vec<LabelPrefix>)| {
            families.iter().any(|family| set.label(&family.cluster_label()) == Some(cluster))
        };
        self.families.iter().find(names).map(|(cluster, _)| cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exporter_is_named_by_its_lease() {
        let (key, value) = Exporter::of_lease("ringfence", "ringfence-context").label();
        assert_eq!((&*key, &*value), ("ringfence.io/exported-by", "ringfence.ringfence-context"));
        assert_ne!(Exporter::of_lease("a", "b"), Exporter::of_lease("a", "c"));
    }

    #[test]
    fn exporter_hashes_names_longer_than_labels() {
        let long = "n".repeat(LABEL_VALUE_BYTES);
        let [one, other] = ["a", "b"].map(|name| Exporter::of_lease(&long, name));
        assert_ne!(one, other);
        assert_eq!(one.0.len(), 2 * HASH_BYTES);
    }
}
