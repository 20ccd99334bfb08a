//! Generated namespaces and pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::{NODES, annotations, object};

/// Label keys of pods, of namespaces and of nodes, and the values of each.
pub(super) const POD_LABELS: [&str; 2] = ["app", "tier"];
pub(super) const POD_VALUES: [&str; 3] = ["web", "db", "cache"];
pub(super) const NAMESPACE_LABELS: [&str; 2] = ["team", "env"];
pub(super) const NAMESPACE_VALUES: [&str; 3] = ["x", "y", "z"];
pub(super) const NODE_LABELS: [&str; 2] = ["zone", "role"];
pub(super) const NODE_VALUES: [&str; 2] = ["x", "y"];
pub(super) const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Names and numbers of ports, for containers and policies. One name is all digits.
pub(super) const PORT_NAMES: [&str; 4] = ["http", "dns", "metrics", "8080"];
pub(super) const PORT_NUMBERS: [u16; 5] = [53, 80, 443, 8080, 9090];
pub(super) const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];

/// The namespaces of these names, of which some may be missing. The label with their name may be missing or wrong,
/// which is impossible in a real cluster: the name is authoritative.
pub(super) fn namespaces(names: &'static [&'static str]) -> BoxedStrategy<Vec<Namespace>> {
    let claimed = weighted(0.4, select(&super::NAMESPACES[..]));
    let drawn_labels = labels(&NAMESPACE_LABELS, &NAMESPACE_VALUES);
    let one = (prop::bool::weighted(0.93), drawn_labels, claimed, annotations::of_namespace());
    vec(one, names.len())
        .prop_map(|drafts| {
            let existing = names.iter().zip(drafts).filter(|(_, (exists, ..))| *exists);
            existing
                .map(|(name, (_, mut labels, claimed, annotations))| {
                    labels.extend(claimed.map(|claimed| (NAME_LABEL.into(), claimed.into())));
                    read(json!({"metadata": {"name": name, "labels": labels, "annotations": annotations}}))
                })
                .collect()
        })
        .boxed()
}

/// Node objects, of which some may be missing: nodes with addresses and pod ranges of one family, of both or of none,
/// and addresses that change. Rarely, one of them is invalid.
pub(super) fn nodes() -> BoxedStrategy<Vec<Node>> {
    let address = select(&["192.0.2.1", "192.0.2.2", "198.51.100.1", "2001:db8::1", "2001:db8::2", "wrong"][..]);
    let address = (select(&["InternalIP", "ExternalIP", "Hostname"][..]), address)
        .prop_map(|(sort, address)| json!({"type": sort, "address": address}));
    let range = select(&["10.1.0.0/24", "10.1.0.0/16", "10.2.0.0/24", "fd00:1::/64"][..]);
    let one = (prop::bool::weighted(0.8), vec(address, 0..3), vec(range, 0..3), labels(&NODE_LABELS, &NODE_VALUES));
    vec(one, NODES.len())
        .prop_map(|drafts| {
            let existing = NODES.iter().zip(drafts).filter(|(_, (exists, ..))| *exists);
            existing
                .map(|(name, (_, addresses, ranges, labels))| {
                    read(json!({
                        "metadata": {"name": name, "labels": labels},
                        "spec": {"podCIDRs": ranges},
                        "status": {"addresses": addresses},
                    }))
                })
                .collect()
        })
        .boxed()
}

/// A pod without its index in the world, which determines its name and address.
#[derive(Debug, Clone)]
pub(super) struct PodDraft {
    namespace: &'static str,
    labels: BTreeMap<String, String>,
    life: Life,
    place: Place,
    containers: Vec<Value>,
    init_containers: Option<Vec<Value>>,
}

#[derive(Debug, Clone)]
struct Life {
    phase: Option<&'static str>,
    terminating: bool,
    started: Option<u8>,
    created: Option<u8>,
    uid: Option<u8>,
}

#[derive(Debug, Clone)]
struct Place {
    /// Index into [`NODES`]; `None` if not bound.
    node: Option<usize>,
    /// Bound to one node, with an address of the other's range.
    moved: bool,
    host_network: bool,
    /// The status of a host-network pod has a pod address.
    odd_host_network: bool,
    families: (bool, bool),
    /// The host part, if shared with another pod.
    shared: Option<u8>,
    /// The status has no `podIPs`, only `podIP`.
    single: bool,
}

pub(super) fn pod(names: &'static [&'static str]) -> BoxedStrategy<PodDraft> {
    let phase = prop_oneof![
        12 => Just(Some("Running")),
        1 => Just(Some("Pending")),
        1 => Just(Some("Succeeded")),
        1 => Just(Some("Failed")),
        1 => Just(None),
    ];
    let moment = || of(0..3_u8);
    let life = (phase, prop::bool::weighted(0.12), moment(), moment(), weighted(0.8, 0..3_u8))
        .prop_map(|(phase, terminating, started, created, uid)| Life { phase, terminating, started, created, uid });
    let place = (
        weighted(0.96, 0..NODES.len()),
        prop::bool::weighted(0.05),
        prop::bool::weighted(0.08),
        prop::bool::weighted(0.3),
        prop_oneof![3 => Just((true, true)), 2 => Just((true, false)), 1 => Just((false, true))],
        weighted(0.15, 1..=4_u8),
        prop::bool::weighted(0.1),
    )
        .prop_map(|(node, moved, host_network, odd_host_network, families, shared, single)| Place {
            node,
            moved,
            host_network,
            odd_host_network,
            families,
            shared,
            single,
        });
    let restart_policy = || prop_oneof![3 => Just(Some("Always")), 1 => Just(None), 1 => Just(Some("OnFailure"))];
    let init_container = (container(), restart_policy()).prop_map(|(mut container, policy)| {
        if let Some(policy) = policy {
            container["restartPolicy"] = policy.into();
        }
        container
    });
    let containers = (vec(container(), 1..=2), weighted(0.4, vec(init_container, 1..=2)));
    (select(names), labels(&POD_LABELS, &POD_VALUES), life, place, containers)
        .prop_map(|(namespace, labels, life, place, (containers, init_containers))| PodDraft {
            namespace,
            labels,
            life,
            place,
            containers,
            init_containers,
        })
        .boxed()
}

impl PodDraft {
    pub(super) fn finish(self, index: usize) -> Pod {
        let PodDraft { namespace, labels, life, place, containers, init_containers } = self;
        let Life { phase, terminating, started, created, uid } = life;
        let moment = |minute: u8| json!(format!("2026-01-01T00:0{minute}:00Z"));
        let metadata = object([
            ("namespace", Some(namespace.into())),
            ("name", Some(format!("pod-{index}").into())),
            // The number makes the uid unique but is its suffix, so that the order of uids is not that of the pods.
            ("uid", uid.map(|uid| format!("{uid}-{index}").into())),
            ("labels", Some(json!(labels))),
            ("creationTimestamp", created.map(moment)),
            ("deletionTimestamp", terminating.then(|| moment(9))),
        ]);
        let spec = object([
            ("nodeName", place.node.map(|node| NODES[node].into())),
            ("hostNetwork", place.host_network.then(|| true.into())),
            ("containers", Some(containers.into())),
            ("initContainers", init_containers.map(Value::from)),
        ]);
        let addresses = place.addresses(index);
        let entries: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
        let status = object([
            ("phase", phase.map(Value::from)),
            ("startTime", started.map(moment)),
            ("podIP", addresses.first().map(|address| address.as_str().into())),
            ("podIPs", (!place.single).then(|| entries.into())),
        ]);
        read(json!({"metadata": metadata, "spec": spec, "status": status}))
    }
}

impl Place {
    fn addresses(&self, index: usize) -> Vec<String> {
        let node = self.node.unwrap_or(0);
        let subnet = 1 + if self.moved { NODES.len() - 1 - node } else { node };
        let (v4, v6) = if self.host_network && !self.odd_host_network {
            (format!("192.0.2.{}", 100 + subnet), format!("2001:db8::{}", 100 + subnet))
        } else {
            let host = self.shared.map_or(10 + index, usize::from);
            (format!("10.{subnet}.0.{host}"), format!("fd00:{subnet}::{host:x}"))
        };
        let (has_v4, has_v6) = self.families;
        [has_v4.then_some(v4), has_v6.then_some(v6)].into_iter().flatten().collect()
    }
}

fn labels(keys: &'static [&'static str], values: &'static [&'static str]) -> BoxedStrategy<BTreeMap<String, String>> {
    vec(weighted(0.75, select(values)), keys.len())
        .prop_map(|drawn| {
            let pairs = keys.iter().zip(drawn);
            pairs.filter_map(|(key, value)| Some((key.to_string(), value?.to_string()))).collect()
        })
        .boxed()
}

fn container() -> BoxedStrategy<Value> {
    let protocol = weighted(0.6, select(&PROTOCOLS[..]));
    let port = (weighted(0.9, select(&PORT_NAMES[..])), select(&PORT_NUMBERS[..]), protocol).prop_map(
        |(name, number, protocol)| {
            object([
                ("name", name.map(Value::from)),
                ("containerPort", Some(number.into())),
                ("protocol", protocol.map(Value::from)),
            ])
        },
    );
    vec(port, 0..=3).prop_map(|ports| json!({"name": "main", "ports": ports})).boxed()
}

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an API object")
}
