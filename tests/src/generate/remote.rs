//! Generated pods of other clusters, and peers that name them or resemble such peers.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use super::policies::selector;
use kit::oracle::{Remote, RemoteSet};

const CLUSTERS: [&str; 2] = ["east", "west"];

/// One has the name of a namespace of this cluster.
const NAMESPACES: [&str; 2] = ["back", "red"];
const NAMES: [&str; 2] = ["web", "db"];

/// Their own addresses, those of pods of this cluster, of a node, and of the outside.
const ADDRESSES: [&str; 16] = [
    "10.9.0.1",
    "10.9.0.2",
    "10.9.0.3",
    "10.9.0.4",
    "fd00:9::1",
    "fd00:9::2",
    "fd00:9::3",
    "10.1.0.10",
    "10.1.0.11",
    "10.2.0.12",
    "10.1.0.1",
    "fd00:1::a",
    "fd00:2::b",
    "fd00:2::1",
    "192.0.2.101",
    "192.0.2.1",
];

const PREFIXES: [&str; 3] = ["semaphore.uw.systems", "policy.semaphore.uw.io", "example.com"];

/// Keys of namespace selectors, of which only some require a cluster.
const NAMESPACE_KEYS: [&str; 6] = [
    "semaphore.uw.systems/cluster",
    "semaphore.uw.systems/cluster",
    "policy.semaphore.uw.io/cluster",
    "example.com/cluster",
    "semaphore.uw.systems/namespace",
    "team",
];
const NAMESPACE_VALUES: [&str; 5] = ["east", "west", "back", "red", "x"];
const POD_KEYS: [&str; 4] =
    ["semaphore.uw.systems/name", "policy.semaphore.uw.io/name", "semaphore.uw.systems/cluster", "app"];
const POD_VALUES: [&str; 3] = ["web", "db", "east"];

pub(super) fn remote() -> BoxedStrategy<Remote> {
    let set = (select(&CLUSTERS[..]), select(&NAMESPACES[..]), select(&NAMES[..]));
    let addresses = subsequence(ADDRESSES.to_vec(), 1..=8);
    let prefixes = prop_oneof![
        4 => Just(vec![PREFIXES[0], PREFIXES[1]]),
        2 => subsequence(PREFIXES.to_vec(), 0..=2),
    ];
    (prefixes, vec((set, addresses), 0..=10))
        .prop_map(|(prefixes, sets)| {
            let sets: BTreeMap<_, _> = sets.into_iter().collect();
            let set = |((cluster, namespace, name), addresses): ((&str, &str, &str), Vec<&str>)| RemoteSet {
                cluster: cluster.into(),
                namespace: namespace.into(),
                name: name.into(),
                addresses: addresses.into_iter().map(|text| text.parse::<IpAddr>().expect("an address")).collect(),
            };
            Remote {
                prefixes: prefixes.into_iter().map(String::from).collect(),
                sets: sets.into_iter().map(set).collect(),
            }
        })
        .boxed()
}

/// A peer whose selectors use the labels of other clusters, in every form.
pub(super) fn peer() -> BoxedStrategy<Value> {
    let named = (select(&PREFIXES[..2]), select(&CLUSTERS[..]), weighted(0.5, select(&NAMESPACES[..])));
    let named = named.prop_map(|(prefix, cluster, namespace)| {
        let cluster = Some((format!("{prefix}/cluster"), cluster));
        let namespace = namespace.map(|namespace| (format!("{prefix}/namespace"), namespace));
        json!({"matchLabels": cluster.into_iter().chain(namespace).collect::<BTreeMap<String, &str>>()})
    });
    let by_namespace = prop_oneof![3 => named, 2 => selector(&NAMESPACE_KEYS, &NAMESPACE_VALUES, 1)];
    with_pods(by_namespace.boxed())
}

/// A peer whose namespaceSelector does not require the label of a cluster, but may mention it.
pub(super) fn peer_of_no_cluster() -> BoxedStrategy<Value> {
    let cluster = |prefix: &str| format!("{prefix}/cluster");
    let negative = (select(&PREFIXES[..]), subsequence(CLUSTERS.to_vec(), 1..=2), any::<bool>());
    let negative = negative.prop_map(move |(prefix, values, absent)| match absent {
        true => json!({"key": cluster(prefix), "operator": "DoesNotExist"}),
        false => json!({"key": cluster(prefix), "operator": "NotIn", "values": values}),
    });
    let other_keys = vec!["semaphore.uw.systems/namespace", "example.com/namespace", "semaphore.uw.systems/name"];
    let other = (select(other_keys), select(vec!["In", "NotIn", "Exists"]), subsequence(NAMESPACES.to_vec(), 1..=2));
    let other = other.prop_map(|(key, operator, values)| match operator {
        "Exists" => json!({"key": key, "operator": operator}),
        operator => json!({"key": key, "operator": operator, "values": values}),
    });
    let expressions = (vec(negative, 0..=2), vec(other, 0..=1)).prop_map(|(mut expressions, others)| {
        expressions.extend(others);
        json!({"matchExpressions": expressions})
    });
    with_pods(prop_oneof![1 => Just(json!({})), 4 => expressions].boxed())
}

fn with_pods(namespaces: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let pods = selector(&POD_KEYS, &POD_VALUES, 1);
    prop_oneof![
        2 => namespaces.clone().prop_map(|namespaces| json!({"namespaceSelector": namespaces})),
        1 => (namespaces, pods)
            .prop_map(|(namespaces, pods)| json!({"namespaceSelector": namespaces, "podSelector": pods})),
    ]
    .boxed()
}

/// Adds labels of these families to some of the cluster's own objects: policies must treat them like any other label.
pub(super) fn claim(namespaces: &mut [Namespace], pods: &mut [Pod], claims: &[Option<&'static str>]) {
    let metadata = namespaces.iter_mut().map(|namespace| (&mut namespace.metadata, "cluster", "east"));
    let metadata = metadata.chain(pods.iter_mut().map(|pod| (&mut pod.metadata, "name", "web")));
    for ((metadata, key, value), prefix) in metadata.zip(claims.iter().cycle()) {
        if let Some(prefix) = prefix {
            metadata.labels.get_or_insert_default().insert(format!("{prefix}/{key}"), value.into());
        }
    }
}

pub(super) fn claims() -> BoxedStrategy<Vec<Option<&'static str>>> {
    vec(weighted(0.2, select(&PREFIXES[..])), 7).boxed()
}
