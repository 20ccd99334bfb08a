//! Builds a NetworkPolicy that allows the observed flows of one workload.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nft::Protocol;
use serde_json::{Value, json};

use super::SeenPeer;
use super::workload::{Workload, Workloads};
use crate::lower::NAME_LABEL;
use crate::remote::{LabelPrefix, RemoteSet};
use crate::{Direction, ENFORCEMENT_ANNOTATION, Enforcement, ObjectName};

const NAME_PREFIX: &str = "ringfence-suggested-";

/// The peers and their ports, by direction.
#[derive(Debug, Default)]
pub(super) struct Allowances {
    by_direction: BTreeMap<Direction, BTreeMap<SeenPeer, BTreeSet<(Protocol, u16)>>>,
}

impl Allowances {
    pub(super) fn add(&mut self, direction: Direction, peer: SeenPeer, port: (Protocol, u16)) {
        self.by_direction.entry(direction).or_default().entry(peer).or_default().insert(port);
    }
}

/// The document, with its name.
pub(super) fn policy(workloads: &Workloads, workload: &Workload, allowances: &Allowances) -> (String, Value) {
    let namespace = &*workload.namespace;
    let name = free_name(workloads, workload);
    let mut metadata = json!({"namespace": namespace, "name": name});
    match workloads.state.enforcement_in(namespace) {
        Enforcement::Enforce => metadata["annotations"] = json!({ENFORCEMENT_ANNOTATION: "audit"}),
        Enforcement::Audit => {}
    }
    let mut spec = json!({"podSelector": workload.selector(workloads), "policyTypes": []});
    for (direction, peers) in allowances.by_direction.iter().rev() {
        let (kind, field) = match direction {
            Direction::Ingress => ("Ingress", "from"),
            Direction::Egress => ("Egress", "to"),
        };
        let rule = |(seen, ports): (&SeenPeer, &BTreeSet<(Protocol, u16)>)| {
            let ports: Vec<Value> = ports.iter().map(port).collect();
            json!({field: [peer(workloads, workload, seen)], "ports": ports})
        };
        if let Value::Array(types) = &mut spec["policyTypes"] {
            types.push(kind.into());
        }
        spec[direction.as_str()] = peers.iter().map(rule).collect();
    }
    let document =
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec});
    (name, document)
}

/// An earlier suggestion that was applied is left unchanged, and the new one adds to it: applying it under the same
/// name would revoke what the earlier one allows.
fn free_name(workloads: &Workloads, workload: &Workload) -> String {
    let names = workloads.names(&workload.namespace);
    let Some(short) = names.get(workload) else { unreachable!("a pod of the state has brought the workload") };
    let first = format!("{NAME_PREFIX}{short}");
    let is_free = |name: &String| workloads.state.policy(&ObjectName::new(&workload.namespace, name)).is_none();
    let numbered = (2_usize..).map(|number| format!("{first}-{number}"));
    let mut candidates = std::iter::once(first.clone()).chain(numbered);
    candidates.find(is_free).unwrap_or(first)
}

fn peer(workloads: &Workloads, workload: &Workload, seen: &SeenPeer) -> Value {
    match seen {
        SeenPeer::Workload(other) if other.namespace == workload.namespace => {
            json!({"podSelector": other.selector(workloads)})
        }
        SeenPeer::Workload(other) => json!({
            "namespaceSelector": {"matchLabels": {NAME_LABEL: &*other.namespace}},
            "podSelector": other.selector(workloads),
        }),
        SeenPeer::Remote(family, set) => remote(family, set),
        SeenPeer::Address(address @ IpAddr::V4(_)) => json!({"ipBlock": {"cidr": format!("{address}/32")}}),
        SeenPeer::Address(address @ IpAddr::V6(_)) => json!({"ipBlock": {"cidr": format!("{address}/128")}}),
    }
}

fn remote(family: &LabelPrefix, set: &RemoteSet) -> Value {
    let [cluster, namespace, name] = [family.cluster_label(), family.namespace_label(), family.name_label()];
    json!({
        "namespaceSelector": {"matchLabels": {&*cluster: &*set.cluster, &*namespace: &*set.namespace}},
        "podSelector": {"matchLabels": {&*name: &*set.name}},
    })
}

fn port((protocol, number): &(Protocol, u16)) -> Value {
    let protocol = match protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Sctp => "SCTP",
    };
    json!({"protocol": protocol, "port": number})
}

#[cfg(test)]
mod tests {
    use super::super::{EndSeen, FlowSeen, SuggestedPods, Suggestion, WhoSeen, suggest};
    use super::*;
    use crate::remote::RemoteChange;
    use crate::{Change, ClusterState, Kind, Object, Traffic, lower};

    fn pod(name: &str, address: &str, labels: Value) -> (Kind, Value) {
        let (namespace, name) = name.split_once('/').unwrap();
        let object = json!({
            "metadata": {"namespace": namespace, "name": name, "labels": labels},
            "status": {"podIPs": [{"ip": address}]},
        });
        (Kind::Pod, object)
    }

    fn shop() -> Vec<(Kind, Value)> {
        vec![
            (Kind::Namespace, json!({"metadata": {"name": "shop"}})),
            (Kind::Namespace, json!({"metadata": {"name": "ops"}})),
            pod("shop/web-1", "10.0.0.1", json!({"app": "web", "pod-template-hash": "5d4f"})),
            pod("shop/web-2", "10.0.0.2", json!({"app": "web", "pod-template-hash": "77c9"})),
            pod("shop/api", "10.0.0.3", json!({"app": "api"})),
            pod("ops/probe", "10.0.0.4", json!({"k8s-app": "probe"})),
            pod("shop/bare", "10.0.0.5", json!({"job-name": "backup-29", "controller-uid": "0f"})),
        ]
    }

    fn state(objects: Vec<(Kind, Value)>) -> ClusterState {
        let mut state = ClusterState::new();
        for (kind, object) in objects {
            state.apply(Change::Set(lower(kind, &object).unwrap()));
        }
        state
    }

    fn end(address: &str) -> EndSeen {
        EndSeen { address: address.parse().unwrap(), who: WhoSeen::NoPod }
    }

    fn seen(direction: Direction, local: &str, peer: &str, port: u16) -> FlowSeen {
        FlowSeen { direction, local: end(local), peer: end(peer), traffic: Traffic::Port(Protocol::Tcp, port) }
    }

    fn in_shop(state: &ClusterState, flows: &[FlowSeen]) -> Suggestion {
        suggest(&Workloads::of(state), &SuggestedPods::Namespace("shop".into()), flows)
    }

    fn notes(suggestion: &Suggestion) -> Vec<String> {
        suggestion.notes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn suggested_policy_has_one_rule_per_peer() {
        let state = state(shop());
        let flows = [
            seen(Direction::Ingress, "10.0.0.2", "10.0.0.3", 8080),
            seen(Direction::Ingress, "10.0.0.1", "10.0.0.3", 80),
            seen(Direction::Ingress, "10.0.0.1", "10.0.0.3", 80),
            seen(Direction::Ingress, "10.0.0.1", "10.0.0.4", 9090),
            seen(Direction::Egress, "10.0.0.1", "192.0.2.7", 443),
            seen(Direction::Egress, "10.0.0.1", "2001:db8::7", 443),
            // In another namespace.
            seen(Direction::Egress, "10.0.0.4", "10.0.0.1", 9090),
        ];
        let suggestion = in_shop(&state, &flows);
        assert_eq!(notes(&suggestion), Vec::<String>::new());
        let tcp = |numbers: &[u16]| {
            numbers.iter().map(|number| json!({"protocol": "TCP", "port": number})).collect::<Vec<Value>>()
        };
        assert_eq!(
            suggestion.policies,
            [json!({
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {
                    "namespace": "shop",
                    "name": "ringfence-suggested-web",
                    "annotations": {"ringfence.io/enforcement": "audit"},
                },
                "spec": {
                    "podSelector": {"matchLabels": {"app": "web"}},
                    "policyTypes": ["Ingress", "Egress"],
                    "ingress": [
                        {
                            "from": [{
                                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "ops"}},
                                "podSelector": {"matchLabels": {"k8s-app": "probe"}},
                            }],
                            "ports": tcp(&[9090]),
                        },
                        {"from": [{"podSelector": {"matchLabels": {"app": "api"}}}], "ports": tcp(&[80, 8080])},
                    ],
                    "egress": [
                        {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": tcp(&[443])},
                        {"to": [{"ipBlock": {"cidr": "2001:db8::7/128"}}], "ports": tcp(&[443])},
                    ],
                },
            })]
        );
        let Object::Policy(policy) = lower(Kind::NetworkPolicy, &suggestion.policies[0]).unwrap() else {
            unreachable!()
        };
        assert_eq!((&policy.problems[..], policy.enforcement), (&[][..], Some(Enforcement::Audit)));
    }

    #[test]
    fn suggestion_omits_audit_annotation_if_already_default() {
        let flows = [seen(Direction::Ingress, "10.0.0.1", "10.0.0.3", 80)];
        let mut by_default = state(shop());
        by_default.set_default_enforcement(Enforcement::Audit);
        let mut by_namespace = state(shop());
        let namespace = json!({"metadata": {"name": "shop", "annotations": {ENFORCEMENT_ANNOTATION: "audit"}}});
        by_namespace.apply(Change::Set(lower(Kind::Namespace, &namespace).unwrap()));
        for state in [by_default, by_namespace] {
            assert_eq!(in_shop(&state, &flows).policies[0]["metadata"]["annotations"], Value::Null);
        }
    }

    #[test]
    fn inexpressible_flows_are_notes_without_policy() {
        let mut objects = shop();
        objects.push(pod("ghost/web", "10.0.0.6", json!({"app": "web"})));
        let state = state(objects);
        let portless = FlowSeen { traffic: Traffic::Portless, ..seen(Direction::Ingress, "10.0.0.1", "10.0.0.3", 0) };
        let gone =
            EndSeen { address: "10.0.0.3".parse().unwrap(), who: WhoSeen::Pod(ObjectName::new("shop", "api-old")) };
        let flows = [
            portless.clone(),
            FlowSeen { local: end("10.0.0.2"), ..portless },
            FlowSeen { peer: gone.clone(), ..seen(Direction::Egress, "10.0.0.1", "10.0.0.3", 80) },
            FlowSeen { local: gone, ..seen(Direction::Egress, "10.0.0.3", "10.0.0.1", 80) },
            seen(Direction::Egress, "10.0.0.5", "10.0.0.3", 80),
            seen(Direction::Egress, "10.0.0.3", "10.0.0.5", 80),
            seen(Direction::Egress, "10.0.0.3", "10.0.0.6", 80),
            seen(Direction::Egress, "10.0.0.3", "10.0.0.1", 0),
            // A pod always reaches itself.
            seen(Direction::Egress, "10.0.0.3", "10.0.0.3", 80),
        ];
        let suggestion = in_shop(&state, &flows);
        assert_eq!(suggestion.policies, Vec::<Value>::new());
        assert_eq!(
            notes(&suggestion),
            [
                "not allowed: shop/api to ghost/web, 80/tcp: the peer's namespace was not found or is invalid",
                "not allowed: shop/api to shop/bare, 80/tcp: the peer has no stable label of its own, so no selector \
                 matches only this peer",
                "not allowed: shop/api to shop/web, 0/tcp: no rule can name port 0",
                "not allowed: shop/api-old to shop/web, 80/tcp: the pod was deleted, or its object has not been \
                 received",
                "not allowed: shop/bare to shop/api, 80/tcp: the pod has no stable label of its own, so no selector \
                 matches only this pod",
                "not allowed: shop/web to shop/api-old, 80/tcp: the peer was deleted, or its object has not been \
                 received",
                "not allowed: shop/api to shop/web, traffic without ports, such as icmp: only a rule without ports \
                 allows such traffic, and that rule would allow every port",
            ]
        );
    }

    #[test]
    fn pods_with_more_labels_are_another_workload() {
        let mut objects = shop();
        objects.push(pod("shop/canary", "10.0.0.7", json!({"app": "web", "track": "canary"})));
        let state = state(objects);
        let suggestion = in_shop(&state, &[seen(Direction::Ingress, "10.0.0.1", "10.0.0.3", 80)]);
        assert_eq!(
            suggestion.policies[0]["spec"]["podSelector"],
            json!({"matchLabels": {"app": "web"}, "matchExpressions": [{"key": "track", "operator": "DoesNotExist"}]})
        );
        let name = suggestion.policies[0]["metadata"]["name"].as_str().unwrap();
        assert!(name.starts_with("ringfence-suggested-web-"), "both are called web: {name}");
    }

    #[test]
    fn suggestion_name_differs_from_applied_suggestions() {
        let mut state = state(shop());
        let flows = [seen(Direction::Ingress, "10.0.0.1", "10.0.0.3", 80)];
        for expected in ["ringfence-suggested-web", "ringfence-suggested-web-2", "ringfence-suggested-web-3"] {
            let suggested = in_shop(&state, &flows).policies.remove(0);
            assert_eq!(suggested["metadata"]["name"], expected);
            state.apply(Change::Set(lower(Kind::NetworkPolicy, &suggested).unwrap()));
        }
    }

    #[test]
    fn pod_or_workload_scope_covers_whole_workload() {
        let state = state(shop());
        let flows = [
            seen(Direction::Ingress, "10.0.0.1", "10.0.0.3", 80),
            seen(Direction::Ingress, "10.0.0.2", "10.0.0.3", 81),
            seen(Direction::Egress, "10.0.0.3", "10.0.0.1", 80),
        ];
        let names = |scope: SuggestedPods| {
            let policies = suggest(&Workloads::of(&state), &scope, &flows).policies;
            policies.iter().map(|policy| policy["spec"]["ingress"][0]["ports"].to_string()).collect::<Vec<String>>()
        };
        let both = [r#"[{"port":80,"protocol":"TCP"},{"port":81,"protocol":"TCP"}]"#];
        assert_eq!(names(SuggestedPods::Pod(ObjectName::new("shop", "web-2"))), both);
        assert_eq!(names(SuggestedPods::Workload { namespace: "shop".into(), name: "web".into() }), both);
        assert_eq!(
            names(SuggestedPods::Workload { namespace: "shop".into(), name: "db".into() }),
            Vec::<String>::new()
        );
        assert_eq!(names(SuggestedPods::Pod(ObjectName::new("shop", "gone"))), Vec::<String>::new());
    }

    #[test]
    fn suggested_names_are_valid_for_any_labels() {
        let long = "a".repeat(63);
        let labels = ["", "-", "Web_1.x", "ä", long.as_str(), "9"];
        let pods = labels.iter().enumerate().flat_map(|(i, value)| {
            let of = |j: usize, labels: Value| pod(&format!("shop/p{i}-{j}"), &format!("10.0.{j}.{}", i + 1), labels);
            [of(0, json!({"app": value})), of(1, json!({"app": value, "tier": value}))]
        });
        let state = state(pods.collect());
        let flows: Vec<FlowSeen> = state
            .pods()
            .map(|pod| seen(Direction::Egress, &pod.addresses.iter().next().unwrap().to_string(), "192.0.2.1", 80))
            .collect();
        let suggestion = in_shop(&state, &flows);
        let names: BTreeSet<&str> =
            suggestion.policies.iter().filter_map(|policy| policy["metadata"]["name"].as_str()).collect();
        assert_eq!(names.len(), 2 * labels.len(), "{names:?}");
        for name in names {
            assert!(name.len() <= 63 - "-999".len(), "{name}");
            assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'), "{name}");
            assert!(!name.ends_with('-'), "{name}");
        }
    }

    #[test]
    fn unknown_pod_address_is_note_without_rule() {
        let state = state(shop());
        let nameless = EndSeen { who: WhoSeen::UnknownPod, ..end("10.0.0.99") };
        let flow = FlowSeen { peer: nameless, ..seen(Direction::Egress, "10.0.0.1", "10.0.0.99", 80) };
        let suggestion = in_shop(&state, &[flow]);
        assert_eq!(suggestion.policies, Vec::<Value>::new());
        let [note] = &notes(&suggestion)[..] else { panic!("{suggestion:?}") };
        assert!(note.contains("an unknown pod (10.0.0.99), 80/tcp: the peer was deleted"), "{note}");
    }

    #[test]
    fn suggested_flow_is_allowed_once_applied() {
        let closed = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {
                "namespace": "shop", "name": "closed", "annotations": {"ringfence.io/enforcement": "audit"},
            },
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
        });
        let mut state = state(shop());
        state.apply(Change::Set(lower(Kind::NetworkPolicy, &closed).unwrap()));
        let flow = seen(Direction::Ingress, "10.0.0.1", "10.0.0.3", 80);
        assert!(flow.is_denied_still(&state));
        let suggestion = in_shop(&state, std::slice::from_ref(&flow));
        state.apply(Change::Set(lower(Kind::NetworkPolicy, &suggestion.policies[0]).unwrap()));
        assert!(!flow.is_denied_still(&state));
        assert!(seen(Direction::Ingress, "10.0.0.1", "10.0.0.3", 81).is_denied_still(&state));
    }

    #[test]
    fn remote_pod_is_suggested_by_its_remote_set() {
        let mut state = state(shop());
        let set = RemoteSet::new("east", "back", "queue");
        let change = RemoteChange::Update { set, adds: vec!["10.9.0.1".parse().unwrap()], removes: vec![] };
        state.apply_remote(change);
        let flow = seen(Direction::Egress, "10.0.0.1", "10.9.0.1", 5672);
        let suggestion = in_shop(&state, std::slice::from_ref(&flow));
        assert_eq!(
            suggestion.policies[0]["spec"]["egress"][0]["to"],
            json!([{
                "namespaceSelector": {"matchLabels": {
                    "semaphore.uw.systems/cluster": "east", "semaphore.uw.systems/namespace": "back",
                }},
                "podSelector": {"matchLabels": {"semaphore.uw.systems/name": "queue"}},
            }])
        );
        state.apply(Change::Set(lower(Kind::NetworkPolicy, &suggestion.policies[0]).unwrap()));
        assert!(!flow.is_denied_still(&state));
        let portless = FlowSeen { traffic: Traffic::Portless, ..flow };
        assert_eq!(
            notes(&in_shop(&state, &[portless])),
            ["not allowed: shop/web to remote east/back/queue, traffic without ports, such as icmp: only a rule \
                 without ports allows such traffic, and that rule would allow every port"]
        );
        state.set_remote_prefixes(vec![]);
        let flow = seen(Direction::Egress, "10.0.0.1", "10.9.0.1", 5672);
        let suggested = &in_shop(&state, &[flow]).policies[0]["spec"]["egress"][0]["to"];
        assert_eq!(*suggested, json!([{"ipBlock": {"cidr": "10.9.0.1/32"}}]));
    }
}
