//! Addresses that no known pod has, in the pod range of a node: those of pods that are not known yet.
//!
//! Rules of cluster policies for Deny and Pass that select pods may match such an address, so it is denied. The pod
//! ranges are `spec.podCIDRs` of all nodes. Where a network plugin assigns addresses of other ranges, pods that are not
//! known count as addresses outside.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nft::{Element, Elements, Family, Key};

use crate::ClusterState;
use crate::address_ranges::{complement, datum, integer, merge};
use crate::state::nodes::range_of_pods;

/// The addresses of known pods, and of attached pods whose objects are unknown.
pub(super) fn of_pods(state: &ClusterState) -> impl Iterator<Item = IpAddr> {
    let known = state.pods().flat_map(|pod| state.addresses_of_known(pod));
    let attached = state.attachments().flat_map(|attachment| attachment.addresses.iter().copied());
    known.chain(attached)
}

/// The addresses of these pods, and of nodes.
pub(super) fn known(state: &ClusterState) -> BTreeSet<IpAddr> {
    of_pods(state).chain(state.nodes().flat_map(|node| node.addresses.iter())).collect()
}

/// The ranges of the addresses that are not those of a node's pods.
pub(super) fn outside(state: &ClusterState, family: Family) -> Elements {
    let of_nodes = state.nodes().flat_map(|node| &node.pod_ranges).map(range_of_pods);
    let of_family = of_nodes.filter(|(first, _)| Family::of(*first) == family);
    let ranges = merge(of_family.map(|(first, last)| (integer(first), integer(last))).collect());
    let key = |(first, last)| (Key::Range(datum(first, family), datum(last, family)), Element::default());
    complement(ranges, family).into_iter().map(key).collect()
}

#[cfg(test)]
mod tests {
    use nft::{Packet, Ruleset, Stop, evaluate};
    use serde_json::{Value, json};

    use crate::{Change, ClusterState, Kind, Layout, ObjectName, Traffic, Translator, explain, lower, translate};

    const NODE: &str = "node-a";
    const WEB: &str = "10.1.0.9";
    const UNKNOWN: &str = "10.2.0.9";

    fn set(kind: Kind, object: &Value) -> Change {
        Change::Set(lower(kind, object).unwrap())
    }

    fn pod(name: &str, node: &str, address: &str) -> Change {
        let object = json!({
            "metadata": {"namespace": "shop", "name": name, "labels": {"app": name}},
            "spec": {"nodeName": node}, "status": {"podIP": address},
        });
        set(Kind::Pod, &object)
    }

    fn node(name: &str, ranges: &[&str], address: &str) -> Change {
        let object = json!({
            "metadata": {"name": name}, "spec": {"podCIDRs": ranges},
            "status": {"addresses": [{"type": "InternalIP", "address": address}]},
        });
        set(Kind::Node, &object)
    }

    fn policy(tier: &str, ingress: &Value, egress: &Value) -> Change {
        let object = json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha2", "metadata": {"name": "pods"},
            "spec": {
                "tier": tier, "priority": 1, "subject": {"namespaces": {}}, "ingress": ingress, "egress": egress,
            },
        });
        set(Kind::ClusterNetworkPolicy, &object)
    }

    fn pods(action: &str, direction: &str, protocols: Option<Value>) -> Value {
        let mut rule = json!({"action": action});
        rule[direction] = json!([{"pods": {"podSelector": {"matchLabels": {"app": "db"}}}}]);
        if let Some(protocols) = protocols {
            rule["protocols"] = protocols;
        }
        rule
    }

    fn cluster() -> ClusterState {
        let mut state = ClusterState::new();
        state.apply(set(Kind::Namespace, &json!({"metadata": {"name": "shop"}})));
        state.apply(pod("web", NODE, WEB));
        state.apply(node("node-b", &["10.2.0.0/24"], "192.0.2.2"));
        state
    }

    fn passes(ruleset: &Ruleset, source: &str, destination: &str, port: u16) -> bool {
        let [source, destination] = [source, destination].map(|text| text.parse().unwrap());
        let packet = Packet::first(source, destination, 6, Some(port));
        evaluate(ruleset, &packet).stop == Stop::Accepted
    }

    /// Whether TCP to ports 80 and 81 passes, by the ruleset and by the explanation.
    fn passed(state: &ClusterState, source: &str, destination: &str) -> [bool; 2] {
        let ruleset = translate(state, NODE, &Layout::for_table("ringfence").unwrap()).ruleset.in_first_generation();
        let passed = [80, 81].map(|port| passes(&ruleset, source, destination, port));
        let [from, to] = [source, destination].map(|text| text.parse().unwrap());
        let explained = [80, 81].map(|port| explain(state, from, to, Traffic::Port(nft::Protocol::Tcp, port)).allowed);
        assert_eq!(explained, passed, "{source} > {destination}");
        passed
    }

    #[test]
    fn rules_about_pods_deny_unknown_pods() {
        let http = || Some(json!([{"tcp": {"destinationPort": {"number": 80}}}]));
        let cases = [
            ("Deny", None, [false, false]),
            ("Deny", http(), [false, true]),
            ("Pass", None, [false, false]),
            ("Pass", http(), [false, true]),
            ("Accept", None, [true, true]),
        ];
        let mut state = cluster();
        for tier in ["Admin", "Baseline"] {
            let allowed_in = |action: &str| tier == "Admin" || action != "Pass";
            for (action, protocols, expected) in cases.iter().filter(|(action, ..)| allowed_in(action)) {
                let [from, to] = ["from", "to"].map(|direction| json!([pods(action, direction, protocols.clone())]));
                state.apply(policy(tier, &from, &to));
                assert_eq!(passed(&state, UNKNOWN, WEB), *expected, "ingress, {tier} {action}");
                assert_eq!(passed(&state, WEB, UNKNOWN), *expected, "egress, {tier} {action}");
                for outside in ["10.2.0.0", "10.2.0.1", "10.2.1.9", "192.0.2.2"] {
                    assert_eq!(passed(&state, outside, WEB), [true, true], "{outside} is no address of a pod");
                }
            }
        }
        let deny = json!([pods("Deny", "from", None)]);
        state.apply(policy("Admin", &deny, &json!([])));
        state.apply(pod("client", "node-b", UNKNOWN));
        assert_eq!(passed(&state, UNKNOWN, WEB), [true, true], "no rule selects the pod");
        state.apply(pod("db", "node-b", "10.2.0.10"));
        assert_eq!(passed(&state, "10.2.0.10", WEB), [false, false]);
    }

    #[test]
    fn earlier_rules_decide_about_unknown_pods() {
        let mut state = cluster();
        let http = json!([{"tcp": {"destinationPort": {"number": 80}}}]);
        let accept = json!({"action": "Accept", "to": [{"networks": ["10.2.0.0/16"]}], "protocols": http});
        let named = Some(json!([{"destinationNamedPort": "web"}]));
        let cases = [
            (json!([accept, pods("Deny", "to", None)]), [true, false]),
            (json!([pods("Deny", "to", None), accept]), [false, false]),
            (json!([accept, pods("Pass", "to", named)]), [true, false]),
        ];
        for (rules, expected) in cases {
            state.apply(policy("Admin", &json!([]), &rules));
            assert_eq!(passed(&state, WEB, UNKNOWN), expected, "{rules}");
        }
    }

    #[test]
    fn unknown_pods_follow_pods_and_nodes() {
        let mut state = cluster();
        state.apply(policy("Admin", &json!([pods("Deny", "from", None)]), &json!([])));
        let layout = || Layout::for_table("ringfence").unwrap();
        let mut translator = Translator::new(NODE, layout());
        translator.begin(&state);
        for (change, expected) in [
            (pod("client", "node-b", UNKNOWN), true),
            (Change::Remove(Kind::Pod, ObjectName::new("shop", "client")), false),
            (node("node-c", &[], UNKNOWN), true),
            (node("node-c", &[], "192.0.2.3"), false),
            (node("node-b", &["10.3.0.0/24"], "192.0.2.2"), true),
            (node("node-c", &["10.2.0.0/24"], "192.0.2.3"), false),
            (Change::Remove(Kind::Node, ObjectName::new("", "node-c")), true),
        ] {
            let changed = state.apply(change);
            translator.update(&state, &changed);
            let ruleset = translator.translation().ruleset.in_first_generation();
            assert_eq!(passes(&ruleset, UNKNOWN, WEB, 80), expected);
            assert_eq!(ruleset, translate(&state, NODE, &layout()).ruleset.in_first_generation());
        }
    }
}
