use super::*;

// Semantics 9.

#[test]
fn protocol_of_a_port_defaults_to_tcp() {
    assert_ports(json!([{"port": 80}]), &[(TCP, 80)], &[(UDP, 80), (SCTP, 80), (TCP, 81)]);
    assert_ports(json!([{"port": 80, "protocol": null}]), &[(TCP, 80)], &[(UDP, 80)]);
    assert_ports(json!([{"port": 80, "protocol": "UDP"}]), &[(UDP, 80)], &[(TCP, 80), (SCTP, 80)]);
    assert_ports(json!([{"port": 80, "protocol": "SCTP"}]), &[(SCTP, 80)], &[(TCP, 80), (UDP, 80)]);
}

#[test]
fn entry_without_port_allows_its_whole_protocol() {
    assert_ports(json!([{}]), &[(TCP, 1), (TCP, 65535)], &[(UDP, 1)]);
    assert_ports(json!([{"protocol": "UDP"}, {"port": 80}]), &[(UDP, 1), (TCP, 80)], &[(TCP, 81), (SCTP, 80)]);
    assert_ports(json!([{"port": 80, "protocol": "UDP"}, {"protocol": "UDP"}]), &[(UDP, 81)], &[(TCP, 80)]);
}

#[test]
fn end_port_is_inclusive() {
    assert_ports(json!([{"port": 80, "endPort": 82}]), &[(TCP, 80), (TCP, 82)], &[(TCP, 79), (TCP, 83), (UDP, 80)]);
    assert_ports(json!([{"port": 80, "endPort": 80}]), &[(TCP, 80)], &[(TCP, 81)]);
}

// Semantics 10.

#[test]
fn ingress_named_port_resolves_on_each_selected_pod() {
    let world = world([policy(json!({"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]}))]);
    let reach = |pod: &str, port: u16| judge_flow(&world, OUTSIDE, pod, TCP, port).ingress;
    assert_eq!([reach(WEB, 8080), reach(WEB, 9090)], [Allowed, Denied]);
    assert_eq!([reach(CACHE, 8080), reach(CACHE, 9090)], [Denied, Allowed]);
}

#[test]
fn egress_named_port_resolves_on_each_peer() {
    let world = world([egress(json!([{"to": [{"podSelector": {}}], "ports": [{"port": "http"}]}]))]);
    let reach = |pod: &str, port: u16| judge_flow(&world, WEB, pod, TCP, port).egress;
    assert_eq!(
        [reach(CACHE, 9090), reach(CACHE, 8080), reach(DB, 7070), reach(DB, 9090)],
        [Allowed, Denied, Allowed, Denied]
    );
}

#[test]
fn egress_named_port_without_peers_resolves_on_pods() {
    let world = world([egress(json!([{"ports": [{"port": "http"}]}]))]);
    let reach = |pod: &str, port: u16| judge_flow(&world, WEB, pod, TCP, port).egress;
    assert_eq!(
        [reach(DB, 7070), reach(DB, 8080), reach(OUTSIDE, 8080), reach(OTHER, 8080)],
        [Allowed, Denied, Denied, Denied]
    );
}

#[test]
fn ip_block_named_port_resolves_on_its_pods() {
    let world_of =
        |block: serde_json::Value| world([egress(json!([{"to": [{"ipBlock": block}], "ports": [{"port": "http"}]}]))]);
    let everywhere = world_of(json!({"cidr": "0.0.0.0/0"}));
    let reach = |pod: &str, port: u16| judge_flow(&everywhere, WEB, pod, TCP, port).egress;
    assert_eq!([reach(CACHE, 9090), reach(DB, 7070), reach(DB, 8080)], [Allowed, Allowed, Denied]);
    assert_eq!([reach(OUTSIDE, 80), reach(OUTSIDE, 7070)], [Denied, Denied]);
    let excepting = world_of(json!({"cidr": "0.0.0.0/0", "except": [format!("{DB}/32")]}));
    let reach = |pod: &str, port: u16| judge_flow(&excepting, WEB, pod, TCP, port).egress;
    assert_eq!([reach(CACHE, 9090), reach(DB, 7070)], [Allowed, Denied]);
}

#[test]
fn named_port_resolves_in_containers_then_sidecars() {
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
        judge_flow(&world, OUTSIDE, "10.0.0.9", protocol, number).ingress
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
fn rule_with_only_unresolved_port_allows_nothing() {
    assert_ports(json!([{"port": "nobody"}]), &[], &[(TCP, 80), (TCP, 8080)]);
    assert_ports(json!([{"port": "nobody"}, {"port": 80}]), &[(TCP, 80)], &[(TCP, 8080)]);
    assert_ports(json!([{"port": "http", "protocol": "UDP"}]), &[], &[(UDP, 8080), (TCP, 8080)]);
}

// Semantics 11.

#[test]
fn protocols_without_ports_match_only_rules_without_ports() {
    let with = world([ingress(json!([{"ports": [{"protocol": "TCP"}, {"protocol": "UDP"}, {"protocol": "SCTP"}]}]))]);
    let without = world([ingress(json!([{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]))]);
    for protocol in [Probe::ICMP, 47, 253] {
        assert_eq!(judge_flow(&with, OUTSIDE, WEB, protocol, None).ingress, Denied);
        assert_eq!(judge_flow(&without, OUTSIDE, WEB, protocol, None).ingress, Allowed);
    }
}
