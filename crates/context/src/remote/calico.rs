//! Exports remote sets as GlobalNetworkSets, for clusters whose policies Calico enforces: plans the writes for one
//! object per set. Policies select them by labels; names only have to be unique.

mod export;
mod names;
mod ownership;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use cluster::network_sets::{MANAGED_BY, NetworkSet, WantedSet};
use policy::remote::{LabelPrefix, RemoteChange, RemoteSet};

use super::table::RemoteSetTable;
pub(crate) use export::{Export, Failures};
use names::names;
pub(crate) use ownership::Exporter;

/// Values of the `managed-by` label: the one that every exported object gets, and those of kube-policy-semaphore from
/// 0.1.2 on and of semaphore-policy, its later name, whose objects are adopted. Other operators use these values too,
/// so none of them alone proves ownership.
pub(super) const MANAGERS: [&str; 3] =
    ["calico-global-network-sync-operator", "kube-policy-semaphore", "semaphore-policy"];

/// The published state that the export depends on.
#[derive(Debug, Clone, Default)]
pub(crate) struct ExportInput {
    pub(super) table: RemoteSetTable,
    /// The label families of each configured cluster. Objects get labels of the first one.
    pub(super) families: BTreeMap<Arc<str>, Vec<LabelPrefix>>,
    /// Clusters without a known state: their objects stay unchanged.
    pub(super) unknown: BTreeSet<Arc<str>>,
}

/// A write, for a cluster.
#[derive(Debug, PartialEq)]
pub(super) enum SetWrite<'a> {
    Create(WantedSet),
    Replace(&'a NetworkSet, WantedSet),
    Delete(&'a NetworkSet),
}

/// Desired objects by name, with their cluster.
type WantedSets = BTreeMap<String, (Arc<str>, WantedSet)>;

impl ExportInput {
    /// The changes from an older snapshot, or from an empty one.
    pub(crate) fn changes_since(&self, older: Option<&ExportInput>) -> Vec<RemoteChange> {
        let none = RemoteSetTable::default();
        self.table.changes_since(older.map_or(&none, |older| &older.table))
    }

    pub(super) fn wanted(&self, exporter: &Exporter) -> WantedSets {
        let keys: Vec<&RemoteSet> = self.table.iter().map(|(set, _)| set).collect();
        let names = names(&keys);
        let sets = self.table.iter().zip(names);
        let wanted = |((set, addresses), name): ((&RemoteSet, &Arc<[IpAddr]>), String)| {
            let family = self.families.get(&set.cluster)?.first()?;
            let wanted = wanted_set(set, addresses, family, exporter, name);
            Some((wanted.name.clone(), (set.cluster.clone(), wanted)))
        };
        sets.filter_map(wanted).collect()
    }
}

fn wanted_set(
    set: &RemoteSet,
    addresses: &[IpAddr],
    family: &LabelPrefix,
    exporter: &Exporter,
    name: String,
) -> WantedSet {
    let label = |key: Arc<str>, value: &Arc<str>| (key.to_string(), value.to_string());
    let labels = vec![
        exporter.label(),
        label(family.cluster_label(), &set.cluster),
        label(family.namespace_label(), &set.namespace),
        label(family.name_label(), &set.name),
    ];
    let mut nets: Vec<String> = addresses.iter().map(net).collect();
    nets.sort_unstable();
    WantedSet { name, labels, nets }
}

/// The address as a host prefix.
fn net(address: &IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("{v4}/32"),
        IpAddr::V6(v6) => format!("{v6}/128"),
    }
}

/// The steps from the existing objects to the desired ones, each with its cluster. Objects of other operators are
/// neither replaced nor deleted; if one has a desired name, the step is a creation, which fails and is reported.
pub(super) fn plan<'a>(
    snapshot: &ExportInput,
    exporter: &Exporter,
    wanted: &WantedSets,
    existing: &'a BTreeMap<String, NetworkSet>,
) -> Vec<(Arc<str>, SetWrite<'a>)> {
    let (owned, foreign): (BTreeMap<&str, &NetworkSet>, BTreeMap<&str, &NetworkSet>) =
        existing.iter().map(|(name, set)| (&**name, set)).partition(|(_, set)| snapshot.owns(exporter, set));
    for (name, set) in foreign {
        tracing::debug!(
            name,
            cluster = &*snapshot.cluster_of(set),
            "GlobalNetworkSet belongs to another operator; left unchanged"
        );
    }
    let mut steps = vec![];
    for (name, (cluster, wanted)) in wanted {
        match owned.get(&**name) {
            None => steps.push((cluster.clone(), SetWrite::Create(wanted.clone()))),
            Some(set) if is_as(set, wanted) => {}
            Some(set) => steps.push((cluster.clone(), SetWrite::Replace(set, wanted.clone()))),
        }
    }
    for (name, set) in owned.into_iter().filter(|(name, _)| !wanted.contains_key(*name)) {
        let cluster = snapshot.cluster_of(set);
        match snapshot.unknown.contains(&cluster) {
            true => tracing::debug!(name, cluster = &*cluster, "GlobalNetworkSet kept: its cluster is not synced yet"),
            false => steps.push((cluster, SetWrite::Delete(set))),
        }
    }
    steps
}

/// Compares only the fields that the export owns.
fn is_as(set: &NetworkSet, wanted: &WantedSet) -> bool {
    let has = |(key, value): &(String, String)| set.label(key) == Some(value);
    set.label(MANAGED_BY) == Some(MANAGERS[0])
        && wanted.labels.iter().all(has)
        && set.nets().is_some_and(|nets| nets == wanted.nets)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::remote::table::RemoteSetChanges;

    const FAMILY: &str = "semaphore.uw.systems";

    fn snapshot(sets: &[(&str, &str, &str, &[&str])], unknown: &[&str]) -> ExportInput {
        let mut snapshot = ExportInput::default();
        for (cluster, namespace, name, addresses) in sets {
            let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
            snapshot.table.set(RemoteSet::new(cluster, namespace, name), &addresses, &mut RemoteSetChanges::default());
            snapshot.families.insert((*cluster).into(), vec![FAMILY.parse().unwrap()]);
        }
        for cluster in unknown {
            snapshot.families.insert((*cluster).into(), vec![FAMILY.parse().unwrap()]);
            snapshot.unknown.insert((*cluster).into());
        }
        snapshot
    }

    fn exporter() -> Exporter {
        Exporter::of_lease("ringfence", "ringfence-context")
    }

    /// An object that this provider has exported.
    fn exported(cluster: &str, name: &str, nets: &[&str]) -> (String, NetworkSet) {
        labelled(cluster, name, nets, &[exporter().label()])
    }

    fn labelled(cluster: &str, name: &str, nets: &[&str], more: &[(String, String)]) -> (String, NetworkSet) {
        let label = |part: &str| format!("{FAMILY}/{part}");
        let mut labels = json!({
            "managed-by": MANAGERS[0], label("cluster"): cluster, label("namespace"): "my-ns", label("name"): "my-app", "more": "x",
        });
        for (key, value) in more {
            labels[key] = value.as_str().into();
        }
        let object = json!({"metadata": {"name": name, "labels": labels}, "spec": {"nets": nets}});
        (name.to_owned(), NetworkSet::of(object))
    }

    fn steps(snapshot: &ExportInput, objects: Vec<(String, NetworkSet)>) -> Vec<String> {
        let objects = objects.into_iter().collect();
        let text = |step: &SetWrite| match step {
            SetWrite::Create(wanted) => format!("create {}", wanted.name),
            SetWrite::Replace(seen, _) => format!("replace {}", seen.name()),
            SetWrite::Delete(seen) => format!("delete {}", seen.name()),
        };
        let wanted = snapshot.wanted(&exporter());
        plan(snapshot, &exporter(), &wanted, &objects).iter().map(|(_, step)| text(step)).collect()
    }

    #[test]
    fn set_becomes_object_with_labels_and_host_nets() {
        let addresses: &[&str] = &["10.4.1.38", "2001:db8::1", "10.4.1.4"];
        let snapshot = snapshot(&[("my-cluster", "my-ns", "my-app", addresses)], &[]);
        let steps = plan(&snapshot, &exporter(), &snapshot.wanted(&exporter()), &BTreeMap::new())
            .into_iter()
            .map(|(cluster, step)| (cluster.to_string(), format!("{step:?}")))
            .collect::<Vec<_>>();
        let pair = |part: &str, value: &str| (format!("{FAMILY}/{part}"), value.to_owned());
        let wanted = WantedSet {
            name: "my-cluster-my-ns-my-app".into(),
            labels: vec![
                exporter().label(),
                pair("cluster", "my-cluster"),
                pair("namespace", "my-ns"),
                pair("name", "my-app"),
            ],
            nets: vec!["10.4.1.38/32".into(), "10.4.1.4/32".into(), "2001:db8::1/128".into()],
        };
        assert_eq!(steps, [("my-cluster".to_owned(), format!("{:?}", SetWrite::Create(wanted)))]);
    }

    #[test]
    fn plan_replaces_and_deletes_own_sets_that_differ() {
        let snapshot = snapshot(&[("my-cluster", "my-ns", "my-app", &["10.4.1.38"])], &["away"]);
        let name = "my-cluster-my-ns-my-app";
        let steps = |objects| steps(&snapshot, objects);
        let right = || exported("my-cluster", name, &["10.4.1.38/32"]);
        assert_eq!(steps(vec![right()]), Vec::<String>::new());
        assert_eq!(steps(vec![exported("my-cluster", name, &["10.4.1.39/32"])]), [format!("replace {name}")]);
        assert_eq!(steps(vec![exported("other", name, &["10.4.1.38/32"])]), [format!("replace {name}")]);
        assert_eq!(steps(vec![right(), exported("my-cluster", "old", &[])]), ["delete old"]);
        assert_eq!(
            steps(vec![right(), exported("gone", "old", &[])]),
            ["delete old"],
            "of a cluster that is not watched"
        );
        assert_eq!(steps(vec![right(), exported("away", "old", &[])]), Vec::<String>::new(), "nothing is known of it");
    }

    #[test]
    fn plan_takes_over_sets_of_configured_clusters() {
        let snapshot = snapshot(&[("my-cluster", "my-ns", "my-app", &["10.4.1.38"])], &["away"]);
        let name = "my-cluster-my-ns-my-app";
        let other = [Exporter::of_lease("elsewhere", "ringfence-context").label()];
        for labels in [&[][..], &other] {
            let same = || labelled("my-cluster", name, &["10.4.1.38/32"], labels);
            assert_eq!(steps(&snapshot, vec![same()]), [format!("replace {name}")], "it lacks the label");
            let old = labelled("my-cluster", "old", &[], labels);
            assert_eq!(steps(&snapshot, vec![same(), old]), [format!("replace {name}"), "delete old".to_owned()]);
            let away = labelled("away", "old", &[], labels);
            assert_eq!(steps(&snapshot, vec![same(), away]), [format!("replace {name}")]);
        }
    }

    #[test]
    fn plan_leaves_sets_of_other_operators() {
        let snapshot = snapshot(&[("my-cluster", "my-ns", "my-app", &["10.4.1.38"])], &[]);
        let name = "my-cluster-my-ns-my-app";
        let right = || exported("my-cluster", name, &["10.4.1.38/32"]);
        let other_exporter = [Exporter::of_lease("elsewhere", "ringfence-context").label()];
        // A label key that only ends like a cluster label does not assign the object to the cluster.
        let other_cluster_label = [("argocd.example/cluster".to_owned(), "my-cluster".to_owned())];
        for labels in [&[][..], &other_exporter, &other_cluster_label] {
            let foreign = labelled("west", "west-my-ns-my-app", &["192.0.2.1/32"], labels);
            assert_eq!(steps(&snapshot, vec![right(), foreign]), Vec::<String>::new());
            let same_name = labelled("west", name, &["192.0.2.1/32"], labels);
            assert_eq!(steps(&snapshot, vec![same_name]), [format!("create {name}")]);
        }
        let unlabelled = NetworkSet::of(json!({"metadata": {"name": "x", "labels": {"managed-by": MANAGERS[0]}}}));
        assert_eq!(steps(&snapshot, vec![right(), ("x".to_owned(), unlabelled)]), Vec::<String>::new());
    }
}
