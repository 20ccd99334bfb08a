//! Generated policies, with every feature of the API and with invalid values.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use super::objects::{
    NAME_LABEL, NAMESPACE_LABELS, NAMESPACE_VALUES, POD_LABELS, POD_VALUES, PORT_NAMES, PORT_NUMBERS, PROTOCOLS,
};
use super::{NAMESPACES, annotations, object, optional};

/// Blocks that overlap, adjoin and contain each other, some with host bits.
pub(super) const BLOCKS: [&str; 26] = [
    "0.0.0.0/0",
    "10.0.0.0/8",
    "10.1.0.0/16",
    "10.1.0.0/24",
    "10.1.0.0/28",
    "10.1.0.5/28",
    "10.1.0.16/28",
    "10.1.0.10/31",
    "10.1.0.12/32",
    "10.2.0.0/24",
    "10.2.0.99/25",
    "192.0.2.0/24",
    "192.0.2.0/25",
    "192.0.2.128/25",
    "198.51.100.0/24",
    "198.51.100.7/32",
    "::/0",
    "fd00::/16",
    "fd00:1::/64",
    "fd00:1::/124",
    "fd00:1::a/127",
    "fd00:1::c/128",
    "fd00:2::/64",
    "fd00:2::7:1/64",
    "2001:db8::/32",
    "2001:db8::8/125",
];

/// A policy without a name.
pub(super) fn policy(names: &'static [&'static str]) -> BoxedStrategy<Value> {
    policy_with(names, &peer())
}

/// A policy without a name, with these peers.
pub(super) fn policy_with(names: &'static [&'static str], peer: &BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let whole = (select(names), spec(peer), annotations::of_policy()).prop_map(|(namespace, spec, annotations)| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": object([("namespace", Some(namespace.into())), ("annotations", annotations)]),
            "spec": spec,
        })
    });
    (whole, prop_oneof![8 => Just(None), 1 => damage().prop_map(Some)])
        .prop_map(|(mut policy, damage)| {
            if let Some((path, value)) = damage {
                put(&mut policy, path, value);
            }
            policy
        })
        .boxed()
}

pub(super) fn named(mut policies: Vec<Value>) -> Vec<Value> {
    for (index, policy) in policies.iter_mut().enumerate() {
        policy["metadata"]["name"] = format!("policy-{index}").into();
    }
    policies
}

/// Draws a path in a policy and a value to set there. The last three must not change how the policy is parsed; all
/// others must.
fn damage() -> BoxedStrategy<(&'static [&'static str], Value)> {
    let places: Vec<(&'static [&'static str], Value)> = vec![
        (&["apiVersion"], json!("networking.k8s.io/v2")),
        (&["apiVersion"], json!("extensions/v1beta1")),
        (&["defaultAction"], json!("Allow")),
        (&["spec"], Value::Null),
        (&["spec"], json!("allow")),
        (&["spec"], json!([])),
        (&["spec", "priority"], json!(7)),
        (&["spec", "podSelector"], json!({"matchLabels": "app"})),
        (&["spec", "podSelector"], json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["w"]}]})),
        (&["spec", "podSelector"], json!({"matchNames": ["a"]})),
        (&["spec", "podSelector"], json!("app=web")),
        (&["spec", "policyTypes"], json!(["Ingress", "Forward"])),
        (&["spec", "policyTypes"], json!(["Forward"])),
        (&["spec", "policyTypes"], json!(["Forward", "Egress"])),
        (&["spec", "policyTypes"], json!(["ingress"])),
        (&["spec", "ingress"], json!({})),
        (&["spec", "ingress"], json!("all")),
        (&["spec", "egress"], json!({"to": []})),
        (&["spec", "egress"], json!(true)),
        (&["spec", "priority"], Value::Null),
        (&["metadata", "finaliser"], json!("unknown, ignored")),
        (&["status"], json!({"conditions": [{"odd": true}]})),
    ];
    select(places).boxed()
}

pub(super) fn put(object: &mut Value, path: &[&str], value: Value) {
    match path {
        [] => *object = value,
        [name, rest @ ..] => put(&mut object[*name], rest, value),
    }
}

/// A policy without a name that isolates every pod of its namespace in one direction, and allows one peer.
pub(super) fn one_peer(names: &'static [&'static str], peer: &BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    (select(names), peer.clone(), any::<bool>())
        .prop_map(|(namespace, peer, ingress)| {
            let (kind, rules, peers) =
                if ingress { ("Ingress", "ingress", "from") } else { ("Egress", "egress", "to") };
            json!({
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"namespace": namespace, "annotations": {"ringfence.io/enforcement": "enforce"}},
                "spec": {"podSelector": {}, "policyTypes": [kind], rules: [{peers: [peer]}]},
            })
        })
        .boxed()
}

fn spec(peer: &BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let types = subsequence(vec!["Ingress", "Egress"], 0..=2).prop_map(|types| json!(types));
    (
        optional(0.95, selector(&POD_LABELS, &POD_VALUES, 0)),
        optional(0.7, types),
        optional(0.75, rules("from", "to", peer)),
        optional(0.6, rules("to", "from", peer)),
    )
        .prop_map(|(pods, types, ingress, egress)| {
            object([("podSelector", pods), ("policyTypes", types), ("ingress", ingress), ("egress", egress)])
        })
        .boxed()
}

/// Draws a list of rules. `wrong` is the name of the peer field of the other direction, which is invalid here.
fn rules(peers: &'static str, wrong: &'static str, peer: &BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    let rule = (
        optional(0.75, vec(peer.clone(), 0..=4).prop_map(Value::from)),
        optional(0.55, vec(port(), 0..=4).prop_map(Value::from)),
    )
        .prop_map(move |(chosen, ports)| object([(peers, chosen), ("ports", ports)]));
    let unreadable = select(vec![
        json!("all"),
        json!([]),
        json!({wrong: [{"podSelector": {}}]}),
        json!({peers: [], "ports": [], "icmps": []}),
        json!({peers: {"podSelector": {}}}),
        json!({peers: "any"}),
        json!({"ports": {"port": 80}}),
        json!({"ports": 80}),
    ]);
    vec(prop_oneof![16 => rule, 1 => unreadable], 0..=4).prop_map(Value::from).boxed()
}

pub(super) fn peer() -> BoxedStrategy<Value> {
    let pods = || selector(&POD_LABELS, &POD_VALUES, 1);
    let namespaces = || {
        let by_name = select(&NAMESPACES[..]).prop_map(|name| json!({"matchLabels": {NAME_LABEL: name}})).boxed();
        let by_names = subsequence(NAMESPACES.to_vec(), 1..=2)
            .prop_map(|names| json!({"matchExpressions": [{"key": NAME_LABEL, "operator": "NotIn", "values": names}]}));
        prop_oneof![4 => selector(&NAMESPACE_LABELS, &NAMESPACE_VALUES, 1), 1 => by_name, 1 => by_names]
    };
    let block =
        (select(&BLOCKS[..]), vec(select(&BLOCKS[..]), 0..=2), any::<bool>()).prop_map(|(cidr, except, always)| {
            let except = (always || !except.is_empty()).then(|| json!(except));
            json!({"ipBlock": object([("cidr", Some(cidr.into())), ("except", except)])})
        });
    let unreadable = select(vec![
        json!({}),
        json!("everyone"),
        json!([]),
        json!({"serviceAccountSelector": {}}),
        json!({"podSelector": {}, "nodeSelector": {}}),
        json!({"ipBlock": {"cidr": "0.0.0.0/0"}, "podSelector": {}}),
        json!({"ipBlock": {"cidr": "0.0.0.0/0"}, "namespaceSelector": {}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/33"}}),
        json!({"ipBlock": {"cidr": "10.1.0.10"}}),
        json!({"ipBlock": {"cidr": "fd00::/129"}}),
        json!({"ipBlock": {"cidr": "10.1.0/24"}}),
        json!({"ipBlock": {"cidr": 10}}),
        json!({"ipBlock": {}}),
        json!({"ipBlock": "10.0.0.0/8"}),
        json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0"]}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": "10.1.0.0/24"}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/8", "ports": []}}),
    ]);
    prop_oneof![
        6 => pods().prop_map(|pods| json!({"podSelector": pods})),
        4 => namespaces().prop_map(|namespaces| json!({"namespaceSelector": namespaces})),
        4 => (pods(), namespaces()).prop_map(|(pods, namespaces)| {
            json!({"podSelector": pods, "namespaceSelector": namespaces, "ipBlock": null})
        }),
        6 => block,
        1 => unreadable,
    ]
    .boxed()
}

/// A label selector over these keys and values; it is invalid `unreadable` times out of 24.
pub(super) fn selector(
    keys: &'static [&'static str],
    values: &'static [&'static str],
    unreadable: u32,
) -> BoxedStrategy<Value> {
    let labels = || (select(keys), select(values)).prop_map(|(key, value)| json!({key: value}));
    let chosen = || subsequence(values, 1..=2);
    let expression = prop_oneof![
        (select(keys), select(vec!["In", "NotIn"]), chosen())
            .prop_map(|(key, operator, values)| json!({"key": key, "operator": operator, "values": values})),
        (select(keys), select(vec!["Exists", "DoesNotExist"]), select(vec![Value::Null, json!([])]))
            .prop_map(|(key, operator, values)| json!({"key": key, "operator": operator, "values": values})),
    ];
    let expressions = vec(expression, 1..=2);
    let strange = select(vec![
        json!("app=web"),
        json!([]),
        json!({"matchNames": ["web"]}),
        json!({"matchLabels": ["app"]}),
        json!({"matchLabels": {"app": 7}}),
        json!({"matchExpressions": {"key": "app", "operator": "Exists"}}),
        json!({"matchExpressions": ["app"]}),
        json!({"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "exists"}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "In", "values": []}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "NotIn"}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": "web"}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [7]}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["web"]}]}),
        json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist", "values": ["web"]}]}),
        json!({"matchExpressions": [{"operator": "DoesNotExist"}]}),
        json!({"matchExpressions": [{"key": "tier"}]}),
        json!({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist", "weight": 1}]}),
    ]);
    let readable = prop_oneof![
        5 => Just(json!({})),
        9 => labels().prop_map(|labels| json!({"matchLabels": labels})),
        7 => expressions.clone().prop_map(|expressions| json!({"matchExpressions": expressions})),
        2 => (labels(), expressions)
            .prop_map(|(labels, expressions)| json!({"matchLabels": labels, "matchExpressions": expressions})),
    ];
    (0..24_u32, readable, strange)
        .prop_map(move |(drawn, readable, strange)| {
            // The largest numbers draw an invalid selector, so that shrinking (towards 0) results in a valid one.
            if drawn >= 24 - unreadable { strange } else { readable }
        })
        .boxed()
}

fn port() -> BoxedStrategy<Value> {
    let number = || prop_oneof![5 => select(&PORT_NUMBERS[..]), 1 => select(vec![1_u16, 65535])];
    let range = (number(), prop_oneof![Just(0), Just(1), 1..2000_u16])
        .prop_map(|(first, more)| (Some(json!(first)), Some(json!(first.saturating_add(more)))));
    let which = prop_oneof![
        1 => Just((None, None)),
        5 => number().prop_map(|number| (Some(json!(number)), None)),
        3 => range,
        4 => select(&PORT_NAMES[..]).prop_map(|name| (Some(json!(name)), None)),
    ];
    let protocol = optional(0.7, select(&PROTOCOLS[..]).prop_map(Value::from));
    let entry = (protocol, which)
        .prop_map(|(protocol, (port, end))| object([("protocol", protocol), ("port", port), ("endPort", end)]));
    let unreadable = select(vec![
        json!(80),
        json!("http"),
        json!({"protocol": "ICMP"}),
        json!({"protocol": "tcp", "port": 80}),
        json!({"protocol": 6, "port": 80}),
        json!({"port": 0}),
        json!({"port": 65536}),
        json!({"port": -80}),
        json!({"port": 80.5}),
        json!({"port": true}),
        json!({"port": [80]}),
        json!({"endPort": 443}),
        json!({"port": "http", "endPort": 443}),
        json!({"port": 443, "endPort": 80}),
        json!({"port": 80, "endPort": 70000}),
        json!({"port": 80, "endPort": "443"}),
        json!({"port": 80, "ports": [443]}),
    ]);
    prop_oneof![20 => entry, 1 => unreadable].boxed()
}
