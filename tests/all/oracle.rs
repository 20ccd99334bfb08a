// Policies that are audited: 20 to 22.
mod audit;
// Pods of other clusters: 23 to 26.
mod remote;

use serde_json::{Value, json};
use tests::oracle::Side::{Allowed, Denied, NotIsolated, NotLocal};
use tests::oracle::{Judgement, Probe, Side, World, judge, owner};

const TCP: u8 = Probe::TCP;
const UDP: u8 = Probe::UDP;
const SCTP: u8 = Probe::SCTP;

/// The cluster of most tests. Everything but `db` runs on the node that judges, `here`.
fn world(policies: impl IntoIterator<Item = Value>) -> World {
    let pod = |namespace: &str, name: &str, number: u8, node: &str, ports: Value| {
        read(json!({
            "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "ports": ports}]},
            "status": {"phase": "Running", "podIP": format!("10.0.0.{number}"), "podIPs": [
                {"ip": format!("10.0.0.{number}")}, {"ip": format!("fd00::{number}")}]},
        }))
    };
    let named = |number: u16| json!([{"name": "http", "containerPort": number}]);
    World {
        namespaces: vec![
            read(json!({"metadata": {"name": "shop", "labels": {"team": "a"}}})),
            read(json!({"metadata": {"name": "other", "labels": {"team": "b"}}})),
        ],
        pods: vec![
            pod("shop", "web", 1, "here", named(8080)),
            pod("shop", "cache", 2, "here", named(9090)),
            pod("shop", "db", 3, "there", named(7070)),
            pod("other", "web", 4, "here", json!([])),
            pod("ghost", "web", 5, "there", json!([])),
        ],
        policies: policies.into_iter().collect(),
        ..World::default()
    }
}

const WEB: &str = "10.0.0.1";
const CACHE: &str = "10.0.0.2";
const DB: &str = "10.0.0.3";
const OTHER: &str = "10.0.0.4";
/// A pod in a namespace without an object.
const GHOST: &str = "10.0.0.5";
const OUTSIDE: &str = "192.0.2.1";

fn read<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an API object")
}

/// A policy in the namespace `shop`.
fn policy(spec: Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "policy"},
        "spec": spec,
    })
}

/// A policy that selects `web` for ingress.
fn ingress(rules: Value) -> Value {
    policy(json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": rules}))
}

/// A policy that selects `web` for egress.
fn egress(rules: Value) -> Value {
    policy(json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": rules}))
}

fn ask(world: &World, source: &str, destination: &str, protocol: u8, port: impl Into<Option<u16>>) -> Judgement {
    let [source, destination] = [source, destination].map(|text| text.parse().expect("an address"));
    judge(world, "here", &Probe { source, destination, protocol, port: port.into() })
}

/// What ingress to `web` on TCP port 80 says of a source.
fn from(world: &World, source: &str) -> Side {
    ask(world, source, WEB, TCP, 80).ingress
}

/// What egress from `web` on TCP port 80 says of a destination.
fn to(world: &World, destination: &str) -> Side {
    ask(world, WEB, destination, TCP, 80).egress
}

#[track_caller]
fn assert_sources(rules: Value, allowed: &[&str], denied: &[&str]) {
    let world = world([ingress(rules)]);
    allowed.iter().for_each(|source| assert_eq!(from(&world, source), Allowed, "from {source}"));
    denied.iter().for_each(|source| assert_eq!(from(&world, source), Denied, "from {source}"));
}

/// Which (protocol, port) pairs a list of port entries allows to reach `web`.
#[track_caller]
fn assert_ports(ports: Value, allowed: &[(u8, u16)], denied: &[(u8, u16)]) {
    let world = world([ingress(json!([{"ports": ports}]))]);
    for (pairs, expected) in [(allowed, Allowed), (denied, Denied)] {
        for (protocol, port) in pairs {
            assert_eq!(ask(&world, OUTSIDE, WEB, *protocol, *port).ingress, expected, "{protocol} {port}");
        }
    }
}

/// Both sides of `web`: what comes from `cache` and what goes to it, on TCP port 80.
fn both_sides(policy: Value) -> [Side; 2] {
    let world = world([policy]);
    [from(&world, CACHE), to(&world, CACHE)]
}

// 1

#[test]
fn without_policy_types_a_policy_isolates_for_ingress_and_for_egress_only_with_an_entry() {
    for types in [Value::Null, json!([])] {
        let of = |more: Value| {
            let mut spec = json!({"podSelector": {}, "policyTypes": types});
            spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            both_sides(policy(spec))
        };
        assert_eq!(of(json!({})), [Denied, NotIsolated]);
        assert_eq!(of(json!({"egress": []})), [Denied, NotIsolated]);
        assert_eq!(of(json!({"egress": null})), [Denied, NotIsolated]);
        assert_eq!(of(json!({"egress": [{}]})), [Denied, Allowed]);
        assert_eq!(of(json!({"egress": [{"to": [{}]}], "ingress": [{}]})), [Allowed, Denied]);
    }
}

#[test]
fn policy_types_win_over_the_rules_that_are_there() {
    let rules = |types: Value| json!({"podSelector": {}, "policyTypes": types, "ingress": [{}], "egress": [{}]});
    assert_eq!(both_sides(policy(rules(json!(["Ingress"])))), [Allowed, NotIsolated]);
    assert_eq!(both_sides(policy(rules(json!(["Egress"])))), [NotIsolated, Allowed]);
    assert_eq!(both_sides(policy(json!({"podSelector": {}, "policyTypes": ["Egress"]}))), [NotIsolated, Denied]);
}

// 2

#[test]
fn a_connection_needs_the_egress_side_of_its_source_and_the_ingress_side_of_its_destination() {
    let to_cache = json!([{"to": [{"podSelector": {"matchLabels": {"app": "cache"}}}]}]);
    let deny_cache = policy(json!({"podSelector": {"matchLabels": {"app": "cache"}}}));
    let judgement = ask(&world([egress(to_cache), deny_cache]), WEB, CACHE, TCP, 80);
    assert_eq!(judgement, Judgement { egress: Allowed, ingress: Denied, itself: false });
    assert!(!judgement.passes());
}

#[test]
fn what_is_allowed_is_the_union_of_the_policies_that_select_the_pod() {
    let by = |app: &str| ingress(json!([{"from": [{"podSelector": {"matchLabels": {"app": app}}}]}]));
    let world = world([by("cache"), by("db"), ingress(json!([]))]);
    assert_eq!([CACHE, DB, OTHER].map(|source| from(&world, source)), [Allowed, Allowed, Denied]);
}

#[test]
fn a_policy_selects_pods_of_its_own_namespace_only() {
    let deny_all = policy(json!({"podSelector": {}}));
    assert_eq!(ask(&world([deny_all]), OUTSIDE, OTHER, TCP, 80).ingress, NotIsolated);
}

#[test]
fn a_policy_works_in_a_namespace_without_an_object() {
    let mut deny = policy(json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}]}]}));
    deny["metadata"]["namespace"] = "ghost".into();
    let mut world = world([deny]);
    world.pods.push(pod("friend", json!({"namespace": "ghost"}), json!({}), json!({"podIP": "10.0.0.9"})));
    let probe = |source: &str| Probe {
        source: source.parse().unwrap(),
        destination: GHOST.parse().unwrap(),
        protocol: TCP,
        port: Some(80),
    };
    assert_eq!(judge(&world, "there", &probe("10.0.0.9")).ingress, Allowed);
    assert_eq!(judge(&world, "there", &probe(WEB)).ingress, Denied);
}

#[test]
fn a_node_judges_only_the_sides_of_its_own_pods() {
    let world = world([policy(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))]);
    assert_eq!(ask(&world, DB, WEB, TCP, 80), Judgement { egress: NotLocal, ingress: Denied, itself: false });
    assert_eq!(ask(&world, WEB, DB, TCP, 80), Judgement { egress: Denied, ingress: NotLocal, itself: false });
    assert_eq!(ask(&world, WEB, CACHE, TCP, 80), Judgement { egress: Denied, ingress: Denied, itself: false });
    assert!(ask(&world, DB, OUTSIDE, TCP, 80).passes());
}

// 3

#[test]
fn ingress_without_rules_denies_all_and_with_an_empty_rule_allows_all() {
    let all = [CACHE, DB, OTHER, GHOST, OUTSIDE];
    assert_sources(json!([]), &[], &all);
    assert_sources(Value::Null, &[], &all);
    assert_sources(json!([{}]), &all, &[]);
    assert_sources(json!([{"from": []}]), &all, &[]);
    assert_sources(json!([{"from": null, "ports": null}]), &all, &[]);
}

#[test]
fn a_rule_without_ports_allows_every_port_and_protocol() {
    for rule in [json!({}), json!({"ports": []}), json!({"ports": null})] {
        let world = world([ingress(json!([rule]))]);
        for (protocol, port) in [(TCP, Some(1)), (UDP, Some(65535)), (SCTP, Some(80)), (1, None), (47, None)] {
            assert_eq!(ask(&world, OUTSIDE, WEB, protocol, port).ingress, Allowed);
        }
    }
}

// 4

#[test]
fn the_selectors_of_one_peer_are_both_required_and_two_peers_are_alternatives() {
    let b = json!({"matchLabels": {"team": "b"}});
    let web = json!({"matchLabels": {"app": "web"}});
    let db = json!({"matchLabels": {"app": "db"}});
    assert_sources(json!([{"from": [{"namespaceSelector": b, "podSelector": web}]}]), &[OTHER], &[CACHE, DB, GHOST]);
    assert_sources(json!([{"from": [{"namespaceSelector": b, "podSelector": db}]}]), &[], &[DB, OTHER]);
    assert_sources(json!([{"from": [{"namespaceSelector": b}, {"podSelector": db}]}]), &[DB, OTHER], &[CACHE]);
}

#[test]
fn a_pod_selector_alone_means_the_policys_own_namespace() {
    assert_sources(json!([{"from": [{"podSelector": {}}]}]), &[CACHE, DB], &[OTHER, GHOST, OUTSIDE]);
}

#[test]
fn an_absent_selector_and_an_empty_one_differ() {
    assert_sources(json!([{"from": [{"namespaceSelector": {}}]}]), &[CACHE, DB, OTHER], &[GHOST, OUTSIDE]);
    assert_sources(json!([{"from": [{"namespaceSelector": null, "podSelector": {}}]}]), &[CACHE], &[OTHER]);
    assert_sources(json!([{"from": [{}]}]), &[], &[CACHE, OTHER, OUTSIDE]);
}

#[test]
fn all_four_operators_work_and_the_negative_ones_match_objects_without_the_key() {
    let select = |key: &str, operator: &str, values: Value| {
        json!([{"from": [{"podSelector":
            {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}}]}])
    };
    assert_sources(select("app", "In", json!(["db", "x"])), &[DB], &[CACHE]);
    assert_sources(select("app", "NotIn", json!(["db"])), &[CACHE], &[DB]);
    assert_sources(select("none", "NotIn", json!(["db"])), &[CACHE, DB], &[]);
    assert_sources(select("app", "Exists", Value::Null), &[CACHE, DB], &[]);
    assert_sources(select("none", "Exists", json!([])), &[], &[CACHE, DB]);
    assert_sources(select("app", "DoesNotExist", Value::Null), &[], &[CACHE, DB]);
    assert_sources(select("none", "DoesNotExist", json!([])), &[CACHE, DB], &[]);
}

#[test]
fn labels_and_expressions_are_anded() {
    let selector = json!({"matchLabels": {"app": "db"}, "matchExpressions": [{"key": "none", "operator": "Exists"}]});
    assert_sources(json!([{"from": [{"podSelector": selector}]}]), &[], &[DB, CACHE]);
}

#[test]
fn the_name_label_is_on_every_namespace_and_cannot_lie() {
    let named =
        |name: &str| json!([{"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}]}]);
    let mut world = world([ingress(named("other"))]);
    let lie = [("kubernetes.io/metadata.name".to_owned(), "shop".to_owned())];
    world.namespaces[1].metadata.labels.as_mut().unwrap().extend(lie);
    assert_eq!([OTHER, CACHE].map(|source| from(&world, source)), [Allowed, Denied]);
    assert_sources(named("ghost"), &[], &[GHOST]);
}

// 5

fn pod(name: &str, metadata: Value, spec: Value, status: Value) -> k8s_openapi::api::core::v1::Pod {
    let mut object = json!({
        "metadata": {"namespace": "shop", "name": name, "uid": name},
        "spec": {"nodeName": "here", "containers": []},
        "status": {"phase": "Running", "podIP": "10.0.0.9"},
    });
    for (part, more) in [("metadata", metadata), ("spec", spec), ("status", status)] {
        object[part].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    }
    read(object)
}

fn owner_of(pods: impl IntoIterator<Item = k8s_openapi::api::core::v1::Pod>) -> Option<String> {
    let world = World { pods: pods.into_iter().collect(), ..World::default() };
    owner(&world, "10.0.0.9".parse().unwrap()).and_then(|pod| pod.metadata.name.clone())
}

#[test]
fn a_finished_pod_has_no_address_and_a_terminating_one_still_has() {
    for (phase, expected) in [("Succeeded", None), ("Failed", None), ("Pending", Some("a")), ("Unknown", Some("a"))] {
        assert_eq!(owner_of([pod("a", json!({}), json!({}), json!({"phase": phase}))]).as_deref(), expected);
    }
    let terminating = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert_eq!(owner_of([pod("a", terminating, json!({}), json!({}))]).as_deref(), Some("a"));
}

#[test]
fn of_two_pods_that_claim_an_address_the_newest_live_one_has_it() {
    let [early, late] = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"];
    let metadata = |value: Value| pod("a", value, json!({}), json!({"startTime": early}));
    let rivals = [
        ("not deleted", metadata(json!({"deletionTimestamp": late})), json!({"uid": "0"}), Value::Null),
        ("started later", metadata(json!({"creationTimestamp": late})), json!({"uid": "0"}), json!(late)),
        (
            "created later",
            metadata(json!({"creationTimestamp": early})),
            json!({"creationTimestamp": late}),
            json!(early),
        ),
        ("created at all", metadata(json!({})), json!({"creationTimestamp": early, "uid": "0"}), json!(early)),
        ("of greater uid", metadata(json!({"uid": "1"})), json!({"uid": "2", "name": "Z"}), json!(early)),
        ("of greater name", metadata(json!({"uid": null})), json!({"uid": null}), json!(early)),
        (
            "of greater namespace",
            metadata(json!({"uid": null})),
            json!({"uid": null, "namespace": "z", "name": "A"}),
            json!(early),
        ),
    ];
    for (reason, loser, winner, started) in rivals {
        let winner = pod("b", winner, json!({}), json!({"startTime": started}));
        let expected = winner.metadata.name.clone();
        assert_eq!(owner_of([loser.clone(), winner.clone()]), expected, "{reason}");
        assert_eq!(owner_of([winner, loser]), expected, "{reason}");
    }
    let [none, some] = [json!({}), json!({"startTime": early})].map(|status| pod("x", json!({}), json!({}), status));
    let some = {
        let mut some = some;
        some.metadata.name = Some("started".into());
        some
    };
    assert_eq!(owner_of([some, none]).as_deref(), Some("started"));
}

#[test]
fn the_loser_of_an_address_is_neither_policed_nor_a_peer_under_it() {
    let mut world = world([ingress(json!([{"from": [{"podSelector": {"matchLabels": {"app": "old"}}}]}]))]);
    let started = json!({"podIP": "10.0.0.9", "startTime": "2026-01-01T00:00:00Z"});
    world.pods.push(pod("old", json!({"labels": {"app": "old"}}), json!({}), json!({})));
    assert_eq!(from(&world, "10.0.0.9"), Allowed);
    world.pods.push(pod("new", json!({"labels": {"app": "new"}}), json!({"nodeName": "there"}), started));
    assert_eq!(from(&world, "10.0.0.9"), Denied);
    assert_eq!(ask(&world, "10.0.0.9", OUTSIDE, TCP, 80).egress, NotLocal);
}

// 6

#[test]
fn pods_of_the_host_network_are_neither_selected_nor_peers() {
    let deny_all = policy(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {}}]}]}));
    let mut world = world([deny_all]);
    world.pods.push(pod("agent", json!({}), json!({"hostNetwork": true}), json!({})));
    assert_eq!(ask(&world, OUTSIDE, "10.0.0.9", TCP, 80).ingress, NotLocal);
    assert_eq!(from(&world, "10.0.0.9"), Denied);
    assert_eq!(from(&world, CACHE), Allowed);
}

// 7

#[test]
fn both_families_of_a_pod_are_policed_alike() {
    let world = world([ingress(json!([{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}]))]);
    assert_eq!(ask(&world, "fd00::3", "fd00::1", TCP, 80).ingress, Allowed);
    assert_eq!(ask(&world, "fd00::2", "fd00::1", TCP, 80).ingress, Denied);
}

// 8

#[test]
fn a_pod_always_reaches_itself() {
    let world = world([policy(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}))]);
    let judgement = ask(&world, WEB, WEB, TCP, 80);
    assert_eq!(judgement, Judgement { egress: Denied, ingress: Denied, itself: true });
    assert!(judgement.passes());
    assert!(!ask(&world, OUTSIDE, OUTSIDE, TCP, 80).itself);
}

// 9

#[test]
fn the_protocol_of_a_port_is_tcp_unless_it_says_otherwise() {
    assert_ports(json!([{"port": 80}]), &[(TCP, 80)], &[(UDP, 80), (SCTP, 80), (TCP, 81)]);
    assert_ports(json!([{"port": 80, "protocol": null}]), &[(TCP, 80)], &[(UDP, 80)]);
    assert_ports(json!([{"port": 80, "protocol": "UDP"}]), &[(UDP, 80)], &[(TCP, 80), (SCTP, 80)]);
    assert_ports(json!([{"port": 80, "protocol": "SCTP"}]), &[(SCTP, 80)], &[(TCP, 80), (UDP, 80)]);
}

#[test]
fn an_entry_without_a_port_is_every_port_of_its_protocol_beside_numbered_ones_too() {
    assert_ports(json!([{}]), &[(TCP, 1), (TCP, 65535)], &[(UDP, 1)]);
    assert_ports(json!([{"protocol": "UDP"}, {"port": 80}]), &[(UDP, 1), (TCP, 80)], &[(TCP, 81), (SCTP, 80)]);
    assert_ports(json!([{"port": 80, "protocol": "UDP"}, {"protocol": "UDP"}]), &[(UDP, 81)], &[(TCP, 80)]);
}

#[test]
fn end_port_is_inclusive() {
    assert_ports(json!([{"port": 80, "endPort": 82}]), &[(TCP, 80), (TCP, 82)], &[(TCP, 79), (TCP, 83), (UDP, 80)]);
    assert_ports(json!([{"port": 80, "endPort": 80}]), &[(TCP, 80)], &[(TCP, 81)]);
}

// 10

#[test]
fn a_named_port_of_ingress_resolves_on_each_selected_pod() {
    let world = world([policy(json!({"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]}))]);
    let reach = |pod: &str, port: u16| ask(&world, OUTSIDE, pod, TCP, port).ingress;
    assert_eq!([reach(WEB, 8080), reach(WEB, 9090)], [Allowed, Denied]);
    assert_eq!([reach(CACHE, 8080), reach(CACHE, 9090)], [Denied, Allowed]);
}

#[test]
fn a_named_port_of_egress_resolves_on_each_peer() {
    let world = world([egress(json!([{"to": [{"podSelector": {}}], "ports": [{"port": "http"}]}]))]);
    let reach = |pod: &str, port: u16| ask(&world, WEB, pod, TCP, port).egress;
    assert_eq!(
        [reach(CACHE, 9090), reach(CACHE, 8080), reach(DB, 7070), reach(DB, 9090)],
        [Allowed, Denied, Allowed, Denied]
    );
}

#[test]
fn a_named_port_of_egress_without_peers_resolves_on_any_pod_and_on_nothing_else() {
    let world = world([egress(json!([{"ports": [{"port": "http"}]}]))]);
    let reach = |pod: &str, port: u16| ask(&world, WEB, pod, TCP, port).egress;
    assert_eq!(
        [reach(DB, 7070), reach(DB, 8080), reach(OUTSIDE, 8080), reach(OTHER, 8080)],
        [Allowed, Denied, Denied, Denied]
    );
}

#[test]
fn named_port_at_ip_block_resolves_on_its_pods() {
    let world_of =
        |block: serde_json::Value| world([egress(json!([{"to": [{"ipBlock": block}], "ports": [{"port": "http"}]}]))]);
    let everywhere = world_of(json!({"cidr": "0.0.0.0/0"}));
    let reach = |pod: &str, port: u16| ask(&everywhere, WEB, pod, TCP, port).egress;
    assert_eq!([reach(CACHE, 9090), reach(DB, 7070), reach(DB, 8080)], [Allowed, Allowed, Denied]);
    assert_eq!([reach(OUTSIDE, 80), reach(OUTSIDE, 7070)], [Denied, Denied]);
    let excepting = world_of(json!({"cidr": "0.0.0.0/0", "except": [format!("{DB}/32")]}));
    let reach = |pod: &str, port: u16| ask(&excepting, WEB, pod, TCP, port).egress;
    assert_eq!([reach(CACHE, 9090), reach(DB, 7070)], [Allowed, Denied]);
}

#[test]
fn a_name_resolves_by_protocol_in_containers_and_then_in_restartable_init_containers() {
    let port =
        |name: &str, number: u16, protocol: &str| json!({"name": name, "containerPort": number, "protocol": protocol});
    let containers = json!({
        "containers": [{"name": "a", "ports": [port("both", 1, "UDP"), port("both", 2, "TCP"), port("80", 8, "TCP")]},
            {"name": "b", "ports": [port("both", 3, "TCP")]}],
        "initContainers": [{"name": "c", "ports": [port("once", 4, "TCP")]},
            {"name": "d", "restartPolicy": "Always", "ports": [port("both", 5, "TCP"), port("side", 6, "TCP")]}],
    });
    let ask = |entry: Value, protocol: u8, number: u16| {
        let mut world = world([policy(json!({"podSelector": {}, "ingress": [{"ports": [entry]}]}))]);
        world.pods.push(pod("many", json!({}), containers.clone(), json!({})));
        ask(&world, OUTSIDE, "10.0.0.9", protocol, number).ingress
    };
    assert_eq!(ask(json!({"port": "both"}), TCP, 2), Allowed);
    assert_eq!(ask(json!({"port": "both"}), TCP, 3), Denied);
    assert_eq!(ask(json!({"port": "both"}), TCP, 5), Denied);
    assert_eq!(ask(json!({"port": "both", "protocol": "UDP"}), UDP, 1), Allowed);
    assert_eq!(ask(json!({"port": "side"}), TCP, 6), Allowed);
    assert_eq!(ask(json!({"port": "once"}), TCP, 4), Denied);
    assert_eq!(ask(json!({"port": "80"}), TCP, 8), Allowed);
    assert_eq!(ask(json!({"port": "80"}), TCP, 80), Denied);
}

#[test]
fn a_rule_whose_only_port_is_unresolved_allows_nothing() {
    assert_ports(json!([{"port": "nobody"}]), &[], &[(TCP, 80), (TCP, 8080)]);
    assert_ports(json!([{"port": "nobody"}, {"port": 80}]), &[(TCP, 80)], &[(TCP, 8080)]);
    assert_ports(json!([{"port": "http", "protocol": "UDP"}]), &[], &[(UDP, 8080), (TCP, 8080)]);
}

// 11

#[test]
fn protocols_without_ports_match_only_rules_without_ports() {
    let with = world([ingress(json!([{"ports": [{"protocol": "TCP"}, {"protocol": "UDP"}, {"protocol": "SCTP"}]}]))]);
    let without = world([ingress(json!([{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]))]);
    for protocol in [Probe::ICMP, 47, 253] {
        assert_eq!(ask(&with, OUTSIDE, WEB, protocol, None).ingress, Denied);
        assert_eq!(ask(&without, OUTSIDE, WEB, protocol, None).ingress, Allowed);
    }
}

// 12

#[test]
fn except_belongs_to_its_own_block() {
    let block = |cidr: &str, except: &[&str]| json!({"ipBlock": {"cidr": cidr, "except": except}});
    assert_sources(
        json!([{"from": [block("192.0.2.0/24", &["192.0.2.0/31"])]}]),
        &["192.0.2.2"],
        &[OUTSIDE, "192.0.3.1"],
    );
    let another = json!([{"from": [block("192.0.2.0/24", &["192.0.2.0/31"]), block("192.0.2.1/32", &[])]}]);
    assert_sources(another, &[OUTSIDE], &["192.0.2.0"]);
    let rules = json!([{"from": [block("0.0.0.0/0", &["192.0.2.0/24"])]}, {"from": [block("192.0.2.0/30", &[])]}]);
    assert_sources(rules, &[OUTSIDE, "8.8.8.8"], &["192.0.2.4"]);
}

#[test]
fn blocks_hold_what_their_prefix_holds_in_their_own_family() {
    let block = |cidr: &str| json!([{"from": [{"ipBlock": {"cidr": cidr}}]}]);
    assert_sources(block("0.0.0.0/0"), &[OUTSIDE, "255.255.255.255"], &[]);
    assert_sources(block("192.0.2.77/25"), &[OUTSIDE, "192.0.2.127"], &["192.0.2.128"]);
    assert_sources(block("::/0"), &[], &[OUTSIDE]);
    let v6 = |cidr: &str| ask(&world([ingress(block(cidr))]), "2001:db8::1", "fd00::1", TCP, 80).ingress;
    assert_eq!(["::/0", "2001:db8::ff/64", "2001:db8::2/127", "0.0.0.0/0"].map(v6), [Allowed, Allowed, Denied, Denied]);
}

// 13

#[test]
fn a_block_holds_the_addresses_of_pods_too() {
    assert_sources(json!([{"from": [{"ipBlock": {"cidr": "10.0.0.0/30"}}]}]), &[CACHE, DB], &[OTHER]);
}

// 15

#[test]
fn a_selector_that_is_not_understood_as_a_peer_matches_nothing_and_the_others_count() {
    for selector in [
        json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["d*"]}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "In", "values": []}]}),
        json!({"matchExpressions": [{"key": "none", "operator": "NotIn"}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["db"]}]}),
        json!({"matchExpressions": [{"key": "none", "operator": "DoesNotExist", "values": ["db"]}]}),
        json!({"matchExpressions": [{"key": "app", "operator": "Exists", "weight": 1}]}),
        json!({"matchExpressions": [{"operator": "Exists"}]}),
        json!({"matchExpressions": {}}),
        json!({"matchLabels": {"app": 1}}),
        json!({"matchLabels": []}),
        json!({"matchFields": []}),
        json!("app=db"),
    ] {
        let cache = json!({"podSelector": {"matchLabels": {"app": "cache"}}});
        assert_sources(json!([{"from": [{"podSelector": selector}, cache]}]), &[CACHE], &[DB]);
        assert_sources(json!([{"from": [{"namespaceSelector": selector}]}]), &[], &[CACHE, DB, OTHER]);
        // As the policy's own selector it selects everything and allows nothing.
        let types = json!(["Ingress"]);
        let spec = json!({"podSelector": selector, "policyTypes": types, "ingress": [{}], "egress": [{}]});
        assert_eq!(both_sides(policy(spec)), [Denied, NotIsolated]);
    }
}

#[test]
fn a_peer_that_is_not_understood_matches_nothing_and_the_others_count() {
    for peer in [
        json!({}),
        json!("all"),
        json!({"nodeSelector": {}}),
        json!({"podSelector": {}, "nodeSelector": {}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/33"}}),
        json!({"ipBlock": {"cidr": "10.0.0.0"}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/+8"}}),
        json!({"ipBlock": {}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": ["1.2.3.4"]}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/8", "except": "10.0.0.1/32"}}),
        json!({"ipBlock": {"cidr": "10.0.0.0/8", "port": 80}}),
    ] {
        let cache = json!({"podSelector": {"matchLabels": {"app": "cache"}}});
        assert_sources(json!([{"from": [peer, cache]}]), &[CACHE], &[DB]);
    }
}

#[test]
fn a_port_that_is_not_understood_matches_nothing_and_the_others_count() {
    for port in [
        json!(80),
        json!({"protocol": "tcp"}),
        json!({"protocol": "ICMP"}),
        json!({"protocol": 6}),
        json!({"port": 0}),
        json!({"port": 65536}),
        json!({"port": 80.0}),
        json!({"port": [80]}),
        json!({"endPort": 80}),
        json!({"port": "http", "endPort": 9000}),
        json!({"port": 80, "endPort": 79}),
        json!({"port": 80, "endPort": 65536}),
        json!({"port": 80, "name": "http"}),
    ] {
        assert_ports(json!([port, {"port": 443}]), &[(TCP, 443)], &[(TCP, 80), (UDP, 80), (TCP, 8080)]);
    }
}

#[test]
fn a_rule_that_is_not_understood_allows_nothing_and_the_others_count() {
    for rule in [
        json!("all"),
        json!([]),
        json!({"to": [{"podSelector": {}}]}),
        json!({"icmps": []}),
        json!({"from": {}}),
        json!({"from": "all"}),
        json!({"ports": 80}),
        json!({"ports": {"port": 80}}),
    ] {
        let from_cache = json!({"from": [{"podSelector": {"matchLabels": {"app": "cache"}}}]});
        assert_sources(json!([rule, from_cache]), &[CACHE], &[DB]);
    }
    let peers_of_ingress = egress(json!([{"from": [{"podSelector": {}}]}]));
    assert_eq!(to(&world([peers_of_ingress]), CACHE), Denied);
}

#[test]
fn a_policy_with_something_unknown_isolates_in_its_directions_and_allows_nothing() {
    let open =
        || policy(json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": [{}]}));
    let damaged = |damage: fn(&mut Value)| {
        let mut policy = open();
        damage(&mut policy);
        both_sides(policy)
    };
    assert_eq!(damaged(|_| ()), [NotIsolated, Allowed]);
    assert_eq!(damaged(|policy| policy["spec"]["priority"] = 1.into()), [NotIsolated, Denied]);
    assert_eq!(damaged(|policy| policy["action"] = "Allow".into()), [NotIsolated, Denied]);
    assert_eq!(damaged(|policy| policy["apiVersion"] = "networking.k8s.io/v2".into()), [NotIsolated, Denied]);
    assert_eq!(damaged(|policy| policy["spec"]["egress"] = json!({})), [NotIsolated, Denied]);
    assert_eq!(damaged(|policy| policy["spec"] = Value::Null), [Denied, Denied]);
    assert_eq!(damaged(|policy| policy["spec"] = "open".into()), [Denied, Denied]);
    let without_types = policy(json!({"egress": {}}));
    assert_eq!(both_sides(without_types), [Denied, Denied]);
}

#[test]
fn what_does_not_bear_on_the_meaning_is_ignored() {
    let mut open = egress(json!([{}]));
    open["metadata"]["unheard"] = "of".into();
    open["status"] = json!({"conditions": 7});
    open["spec"]["priority"] = Value::Null;
    assert_eq!(both_sides(open), [NotIsolated, Allowed]);
}

#[test]
fn an_unknown_policy_type_isolates_in_both_directions_and_only_listed_known_types_allow() {
    let of = |types: Value| both_sides(policy(json!({"policyTypes": types, "ingress": [{}], "egress": [{}]})));
    assert_eq!(of(json!(["Forward"])), [Denied, Denied]);
    assert_eq!(of(json!(["Ingress", "Forward"])), [Allowed, Denied]);
    assert_eq!(of(json!(["Forward", "Egress"])), [Denied, Allowed]);
}
