//! Remote sets as GlobalNetworkSets, for clusters whose policies Calico enforces: what is to be written so that there is
//! one for each set. Policies select them by their labels; their names only have to be different.

mod export;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use cluster::network_sets::{NetworkSet, WantedSet};
use policy::remote::{LabelPrefix, RemoteSet};

use super::table::Table;
pub(crate) use export::{Export, Failures};
use names::names;

/// Whose objects these are.
pub(super) const MANAGER: &str = "calico-global-network-sync-operator";

/// What is published, as far as it decides what is written.
#[derive(Debug, Clone, Default)]
pub(crate) struct Snapshot {
    pub(super) table: Table,
    /// The family of the labels of each cluster's objects.
    pub(super) families: BTreeMap<Arc<str>, LabelPrefix>,
    /// Clusters of which nothing is known yet: their objects stay as they are.
    pub(super) unknown: BTreeSet<Arc<str>>,
}

/// Something to be written, for a cluster.
#[derive(Debug, PartialEq)]
pub(super) enum Step<'a> {
    Create(WantedSet),
    Replace(&'a NetworkSet, WantedSet),
    Delete(&'a NetworkSet),
}

/// An object as it should be, and of which cluster's set.
type Wanted = BTreeMap<String, (Arc<str>, WantedSet)>;

impl Snapshot {
    pub(super) fn wanted(&self) -> Wanted {
        let keys: Vec<&RemoteSet> = self.table.iter().map(|(set, _)| set).collect();
        let names = names(&keys);
        let sets = self.table.iter().zip(names);
        let wanted = |((set, addresses), name): ((&RemoteSet, &Arc<[IpAddr]>), String)| {
            let family = self.families.get(&set.cluster)?;
            Some((name.clone(), (set.cluster.clone(), wanted_set(set, addresses, family, name))))
        };
        sets.filter_map(wanted).collect()
    }
}

fn wanted_set(set: &RemoteSet, addresses: &[IpAddr], family: &LabelPrefix, name: String) -> WantedSet {
    let label = |key: Arc<str>, value: &Arc<str>| (key.to_string(), value.to_string());
    let labels = vec![
        label(family.cluster_label(), &set.cluster),
        label(family.namespace_label(), &set.namespace),
        label(family.name_label(), &set.name),
    ];
    let mut nets: Vec<String> = addresses.iter().map(net).collect();
    nets.sort_unstable();
    WantedSet { name, labels, nets }
}

/// The address, and no neighbour of it.
fn net(address: &IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("{v4}/32"),
        IpAddr::V6(v6) => format!("{v6}/128"),
    }
}

/// What is to be done so that what is there becomes what is wanted. Of each step the cluster whose it is.
pub(super) fn plan<'a>(
    wanted: &Wanted,
    there: &'a BTreeMap<String, NetworkSet>,
    unknown: &BTreeSet<Arc<str>>,
) -> Vec<(Arc<str>, Step<'a>)> {
    let mut steps = vec![];
    for (name, (cluster, wanted)) in wanted {
        match there.get(name) {
            None => steps.push((cluster.clone(), Step::Create(wanted.clone()))),
            Some(set) if is_as(set, wanted) => {}
            Some(set) => steps.push((cluster.clone(), Step::Replace(set, wanted.clone()))),
        }
    }
    for (name, set) in there.iter().filter(|(name, _)| !wanted.contains_key(*name)) {
        let cluster = cluster_of(set).unwrap_or("");
        match unknown.contains(cluster) {
            true => tracing::debug!(name, cluster, "its cluster is not known yet: it stays"),
            false => steps.push((cluster.into(), Step::Delete(set))),
        }
    }
    steps
}

/// Whatever else it holds is somebody else's concern.
fn is_as(set: &NetworkSet, wanted: &WantedSet) -> bool {
    let labels: BTreeMap<&str, &str> = set.labels().collect();
    let has = |(key, value): &(String, String)| labels.get(key.as_str()) == Some(&value.as_str());
    wanted.labels.iter().all(has) && set.nets().is_some_and(|nets| nets == wanted.nets)
}

/// Of whichever family.
fn cluster_of(set: &NetworkSet) -> Option<&str> {
    set.labels().find(|(key, _)| key.ends_with("/cluster")).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::remote::table::Difference;

    const FAMILY: &str = "semaphore.uw.systems";

    fn snapshot(sets: &[(&str, &str, &str, &[&str])], unknown: &[&str]) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for (cluster, namespace, name, addresses) in sets {
            let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
            snapshot.table.set(RemoteSet::new(cluster, namespace, name), &addresses, &mut Difference::default());
            snapshot.families.insert((*cluster).into(), FAMILY.parse().unwrap());
        }
        snapshot.unknown = unknown.iter().map(|cluster| (*cluster).into()).collect();
        snapshot
    }

    fn there(cluster: &str, name: &str, nets: &[&str]) -> (String, NetworkSet) {
        let label = |part: &str| format!("{FAMILY}/{part}");
        let labels = json!({
            "managed-by": MANAGER, label("cluster"): cluster, label("namespace"): "my-ns", label("name"): "my-app", "more": "x",
        });
        let object = json!({"metadata": {"name": name, "labels": labels}, "spec": {"nets": nets}});
        (name.to_owned(), NetworkSet::of(object))
    }

    #[test]
    fn a_set_becomes_an_object_with_its_labels_and_one_net_for_each_address() {
        let addresses: &[&str] = &["10.4.1.38", "2001:db8::1", "10.4.1.4"];
        let snapshot = snapshot(&[("my-cluster", "my-ns", "my-app", addresses)], &[]);
        let steps = plan(&snapshot.wanted(), &BTreeMap::new(), &BTreeSet::new())
            .into_iter()
            .map(|(cluster, step)| (cluster.to_string(), format!("{step:?}")))
            .collect::<Vec<_>>();
        let pair = |part: &str, value: &str| (format!("{FAMILY}/{part}"), value.to_owned());
        let wanted = WantedSet {
            name: "my-cluster-my-ns-my-app".into(),
            labels: vec![pair("cluster", "my-cluster"), pair("namespace", "my-ns"), pair("name", "my-app")],
            nets: vec!["10.4.1.38/32".into(), "10.4.1.4/32".into(), "2001:db8::1/128".into()],
        };
        assert_eq!(steps, [("my-cluster".to_owned(), format!("{:?}", Step::Create(wanted)))]);
    }

    #[test]
    fn what_is_as_it_should_be_is_not_written_and_what_is_not_wanted_goes() {
        let snapshot = snapshot(&[("my-cluster", "my-ns", "my-app", &["10.4.1.38"])], &["away"]);
        let name = "my-cluster-my-ns-my-app";
        let steps = |objects: Vec<(String, NetworkSet)>| -> Vec<String> {
            let objects = objects.into_iter().collect();
            let steps = plan(&snapshot.wanted(), &objects, &snapshot.unknown);
            let text = |step: &Step| match step {
                Step::Create(wanted) => format!("create {}", wanted.name),
                Step::Replace(seen, _) => format!("replace {}", seen.name()),
                Step::Delete(seen) => format!("delete {}", seen.name()),
            };
            steps.iter().map(|(_, step)| text(step)).collect()
        };
        let right = || there("my-cluster", name, &["10.4.1.38/32"]);
        assert_eq!(steps(vec![right()]), Vec::<String>::new());
        assert_eq!(steps(vec![there("my-cluster", name, &["10.4.1.39/32"])]), [format!("replace {name}")]);
        assert_eq!(steps(vec![there("other", name, &["10.4.1.38/32"])]), [format!("replace {name}")]);
        assert_eq!(steps(vec![right(), there("my-cluster", "old", &[])]), ["delete old"]);
        assert_eq!(steps(vec![right(), there("gone", "old", &[])]), ["delete old"], "of a cluster that is not watched");
        assert_eq!(steps(vec![right(), there("away", "old", &[])]), Vec::<String>::new(), "nothing is known of it");
    }
}
