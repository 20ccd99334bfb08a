//! Generated cluster policies: both tiers, equal priorities, every action, peer and protocol, and invalid parts.

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use super::objects::{
    NAME_LABEL, NAMESPACE_LABELS, NAMESPACE_VALUES, NODE_LABELS, NODE_VALUES, POD_LABELS, POD_VALUES, PORT_NAMES,
    PORT_NUMBERS,
};
use super::policies::{BLOCKS, put, selector};
use super::{NAMESPACES, annotations, object, optional};

/// Priorities, of which several policies have the same.
const PRIORITIES: [u16; 5] = [0, 5, 6, 500, 1000];

/// Parts of names, which decide between equal priorities and are in no order of their own.
const NAME_PARTS: [&str; 6] = ["m", "a", "z", "a-b", "ab", "0"];

const DOMAIN_NAMES: [&str; 6] =
    ["example.org", "*.example.org", "WWW.Example.ORG.", "*.org.", "*.svc.cluster.local", "db.red.svc.cluster.local"];

/// Names in answers, with addresses of pods, nodes, the outside, and what is none of another host.
const LEARNED_NAMES: [&str; 5] =
    ["example.org", "www.example.org", "a.www.example.org", "db.red.svc.cluster.local", "example.com"];
const LEARNED_ADDRESSES: [&str; 14] = [
    "10.1.0.1",
    "10.1.0.2",
    "10.1.0.3",
    "10.2.0.1",
    "10.2.0.2",
    "10.2.0.3",
    "fd00:1::1",
    "fd00:2::2",
    "192.0.2.1",
    "198.51.100.7",
    "203.0.113.9",
    "2001:db8::1",
    "127.0.0.1",
    "169.254.169.254",
];

/// A path in a policy with the value that makes it invalid, or that must change nothing.
type Damage = (&'static [&'static str], Value);

/// Cluster policies with unique names.
pub(super) fn cluster_policies() -> BoxedStrategy<Vec<Value>> {
    vec((select(&NAME_PARTS[..]), policy()), 1..=10)
        .prop_map(|drawn| {
            let named = drawn.into_iter().enumerate().map(|(index, (part, mut policy))| {
                policy["metadata"]["name"] = format!("{part}-{index}").into();
                policy
            });
            named.collect()
        })
        .boxed()
}

/// Learned names with their addresses.
pub(super) fn learned() -> BoxedStrategy<Vec<(String, IpAddr)>> {
    let address = select(&LEARNED_ADDRESSES[..]).prop_map(|text| text.parse().expect("an address"));
    vec((select(&LEARNED_NAMES[..]).prop_map(str::to_owned), address), 0..=12).boxed()
}

/// A policy without a name.
fn policy() -> BoxedStrategy<Value> {
    let version = select(vec!["v1alpha2", "v1alpha2", "v1beta1"]);
    let damage = prop_oneof![11 => Just(None), 1 => damage().prop_map(Some)];
    (version, spec(), annotations::of_cluster_policy(), damage)
        .prop_map(|(version, spec, annotations, damage)| {
            let mut policy = json!({
                "apiVersion": format!("policy.networking.k8s.io/{version}"),
                "kind": "ClusterNetworkPolicy",
                "metadata": object([("annotations", annotations)]),
                "spec": spec,
            });
            if let Some((path, value)) = damage {
                put(&mut policy, path, value);
            }
            policy
        })
        .boxed()
}

/// Damages that deny everything to every pod are rare: each hides the other policies of its world.
fn damage() -> BoxedStrategy<Damage> {
    let of_selected: Vec<Damage> = vec![
        (&["apiVersion"], json!("policy.networking.k8s.io/v1alpha1")),
        (&["defaultAction"], json!("Accept")),
        (&["spec", "tier"], json!("NetworkPolicy")),
        (&["spec", "tier"], Value::Null),
        (&["spec", "scope"], json!("Cluster")),
        (&["spec", "priority"], json!(1001)),
        (&["spec", "priority"], json!("5")),
        (&["spec", "priority"], Value::Null),
        (&["spec", "ingress"], json!({})),
        (&["spec", "egress"], json!("all")),
    ];
    let of_every_pod: Vec<Damage> = vec![
        (&["spec", "subject"], json!({})),
        (&["spec", "subject"], json!({"namespaces": {}, "pods": {"podSelector": {}}})),
        (&["spec", "subject"], json!({"pods": {"namespaceSelector": {}}})),
        (&["spec", "subject"], json!({"namespaces": {"matchLabels": ["team"]}})),
        (&["spec"], Value::Null),
        (&["spec"], json!("deny")),
    ];
    let of_none: Vec<Damage> = vec![
        (&["spec", "scope"], Value::Null),
        (&["spec", "ingress"], Value::Null),
        (&["spec", "egress"], json!([])),
        (&["metadata", "finaliser"], json!("unknown, ignored")),
        (&["status"], json!({"conditions": [{"odd": true}]})),
    ];
    prop_oneof![6 => select(of_selected), 1 => select(of_every_pod), 2 => select(of_none)].boxed()
}

fn spec() -> BoxedStrategy<Value> {
    let tier = select(vec!["Admin", "Admin", "Baseline"]);
    (tier, select(&PRIORITIES[..]), subject(), optional(0.7, rules("from")), optional(0.7, rules("to")))
        .prop_map(|(tier, priority, subject, ingress, egress)| {
            object([
                ("tier", Some(tier.into())),
                ("priority", Some(priority.into())),
                ("subject", Some(subject)),
                ("ingress", ingress),
                ("egress", egress),
            ])
        })
        .boxed()
}

fn subject() -> BoxedStrategy<Value> {
    prop_oneof![
        3 => Just(json!({"namespaces": {}})),
        3 => namespaces().prop_map(|namespaces| json!({"namespaces": namespaces, "pods": null})),
        3 => scope().prop_map(|scope| json!({"pods": scope})),
    ]
    .boxed()
}

/// Pods by their own labels and, mostly, those of their namespace.
fn scope() -> BoxedStrategy<Value> {
    (optional(0.7, namespaces()), selector(&POD_LABELS, &POD_VALUES, 0))
        .prop_map(|(namespaces, pods)| object([("namespaceSelector", namespaces), ("podSelector", Some(pods))]))
        .boxed()
}

fn namespaces() -> BoxedStrategy<Value> {
    let by_name = select(&NAMESPACES[..]).prop_map(|name| json!({"matchLabels": {NAME_LABEL: name}}));
    let by_names = subsequence(NAMESPACES.to_vec(), 1..=2)
        .prop_map(|names| json!({"matchExpressions": [{"key": NAME_LABEL, "operator": "NotIn", "values": names}]}));
    prop_oneof![3 => selector(&NAMESPACE_LABELS, &NAMESPACE_VALUES, 0), 1 => by_name, 1 => by_names].boxed()
}

fn rules(peers: &'static str) -> BoxedStrategy<Value> {
    vec(rule(peers), 0..=5).prop_map(Value::from).boxed()
}

fn rule(peers: &'static str) -> BoxedStrategy<Value> {
    let action = select(vec!["Accept", "Accept", "Accept", "Accept", "Deny", "Deny", "Pass", "Pass"]);
    let name = optional(0.3, select(vec!["dns", "metrics from monitoring"]).prop_map(Value::from));
    let valid = (name, action, vec(peer(peers), 1..=3), optional(0.4, vec(protocol(), 1..=3).prop_map(Value::from)))
        .prop_map(move |(name, action, chosen, protocols)| {
            object([
                ("name", name),
                ("action", Some(action.into())),
                (peers, Some(chosen.into())),
                ("protocols", protocols),
            ])
        });
    let named_port_beside_networks = select(vec!["Accept", "Deny", "Pass"]).prop_map(move |action| {
        let chosen = json!([{"namespaces": {}}, {"networks": ["10.0.0.0/8"]}]);
        object([
            ("action", Some(action.into())),
            (peers, Some(chosen)),
            ("protocols", Some(json!([{"destinationNamedPort": "http"}, protocol_entry("udp", 53)]))),
        ])
    });
    let every_pod = json!([{"namespaces": {}}]);
    let invalid = select(vec![
        json!({"action": "Allow", peers: every_pod}),
        json!({"action": null, peers: every_pod}),
        json!("Accept"),
        json!({"action": "Accept"}),
        json!({"action": "Deny"}),
        json!({"action": "Pass", peers: []}),
        json!({"action": "Accept", peers: []}),
        json!({"action": "Accept", peers: {"namespaces": {}}}),
        json!({"action": "Accept", peers: every_pod, "ports": []}),
        json!({"action": "Deny", peers: every_pod, "log": true}),
        json!({"action": "Pass", peers: every_pod, "name": 7}),
        json!({"action": "Accept", peers: every_pod, "protocols": []}),
        json!({"action": "Deny", peers: every_pod, "protocols": {}}),
    ]);
    prop_oneof![80 => valid, 2 => invalid, 1 => named_port_beside_networks].boxed()
}

fn peer(peers: &'static str) -> BoxedStrategy<Value> {
    let pods = prop_oneof![
        3 => Just(json!({"namespaces": {}})),
        4 => namespaces().prop_map(|namespaces| json!({"namespaces": namespaces})),
        5 => scope().prop_map(|scope| json!({"pods": scope, "networks": null})),
    ];
    let networks = vec(select(&BLOCKS[..]), 1..=3).prop_map(|networks| json!({"networks": networks}));
    let nodes = selector(&NODE_LABELS, &NODE_VALUES, 0).prop_map(|nodes| json!({"nodes": nodes}));
    let invalid = select(vec![
        json!({}),
        json!("everyone"),
        json!({"serviceAccounts": {}}),
        json!({"namespaces": {}, "pods": {"podSelector": {}}}),
        json!({"namespaces": {}, "tenants": {}}),
        json!({"namespaces": {"matchExpressions": [{"key": "team", "operator": "Gt", "values": ["1"]}]}}),
        json!({"namespaces": "red"}),
        json!({"pods": {"namespaceSelector": {}}}),
        json!({"pods": {"podSelector": {"matchLabels": {"app": 7}}}}),
        json!({"pods": {"podSelector": {}, "nodeSelector": {}}}),
        json!({"nodes": {"matchFields": []}}),
        json!({"nodes": {}, "networks": ["10.0.0.0/8"]}),
        json!({"networks": []}),
        json!({"networks": ["10.0.0.0/8", "10.0.0.1"]}),
        json!({"networks": ["10.0.0.0/33"]}),
        json!({"networks": ["::ffff:10.0.0.0/104"]}),
        json!({"networks": "10.0.0.0/8"}),
        json!({"domainNames": []}),
        json!({"domainNames": ["*"]}),
        json!({"domainNames": ["example.org", "a..b"]}),
        json!({"domainNames": ["exa mple"]}),
    ]);
    let names = vec(select(&DOMAIN_NAMES[..]), 1..=2).prop_map(|names| json!({"domainNames": names}));
    // Sources are pods only.
    match peers {
        "from" => prop_oneof![120 => pods, 1 => networks, 1 => invalid].boxed(),
        _ => prop_oneof![70 => pods, 35 => networks, 15 => nodes, 12 => names, 1 => invalid].boxed(),
    }
}

fn protocol_entry(protocol: &str, port: u16) -> Value {
    json!({protocol: {"destinationPort": {"number": port}}})
}

fn protocol() -> BoxedStrategy<Value> {
    let protocol = || select(vec!["tcp", "tcp", "udp", "sctp"]);
    let number = || prop_oneof![5 => select(&PORT_NUMBERS[..]), 1 => select(vec![1_u16, 65535])];
    let range = (protocol(), select(&PORT_NUMBERS[..]), prop_oneof![Just(1), 1..2000_u16, Just(u16::MAX)]).prop_map(
        |(protocol, start, more)| {
            json!({protocol: {"destinationPort": {"range": {"start": start, "end": start.saturating_add(more)}}}})
        },
    );
    let invalid = select(vec![
        json!({}),
        json!(80),
        json!({"tcp": {}}),
        json!({"tcp": {"destinationPort": {}}}),
        json!({"tcp": {"destinationPort": 80}}),
        json!({"tcp": {"destinationPort": {"number": 0}}}),
        json!({"tcp": {"destinationPort": {"number": 65536}}}),
        json!({"tcp": {"destinationPort": {"number": 80, "range": {"start": 1, "end": 100}}}}),
        json!({"tcp": {"destinationPort": {"number": 80}, "sourcePort": {"number": 1}}}),
        json!({"udp": {"destinationPort": {"range": {"start": 80, "end": 80}}}}),
        json!({"udp": {"destinationPort": {"range": {"start": 81, "end": 80}}}}),
        json!({"udp": {"destinationPort": {"range": {"start": 80}}}}),
        json!({"tcp": {"destinationPort": {"number": 80}}, "udp": {"destinationPort": {"number": 80}}}),
        json!({"icmp": {}}),
        json!({"destinationNamedPort": ""}),
        json!({"destinationNamedPort": 80}),
    ]);
    prop_oneof![
        24 => (protocol(), number()).prop_map(|(protocol, port)| protocol_entry(protocol, port)),
        16 => range,
        3 => select(&PORT_NAMES[..]).prop_map(|name| json!({"destinationNamedPort": name, "tcp": null})),
        1 => invalid,
    ]
    .boxed()
}
