use super::*;

/// Checks which (protocol, port) pairs a Deny rule with these protocols matches, from `cache` to `web`.
#[track_caller]
fn assert_matches(protocols: Value, matched: &[(u8, u16)], others: &[(u8, u16)]) {
    let rule = json!({"action": "Deny", "from": [{"namespaces": {}}], "protocols": protocols});
    let world = cluster([], [admin_ingress(json!([rule]))]);
    for (pairs, expected) in [(matched, Denied), (others, NotIsolated)] {
        for (protocol, port) in pairs {
            assert_eq!(judge_flow(&world, CACHE, WEB, *protocol, *port).ingress, expected, "{protocol} {port}");
        }
    }
}

#[test]
fn rules_match_ports_of_their_protocol() {
    let tcp = json!([{"tcp": {"destinationPort": {"number": 80}}}]);
    assert_matches(tcp, &[(TCP, 80)], &[(TCP, 81), (UDP, 80), (SCTP, 80)]);
    let ranges = json!([
        {"udp": {"destinationPort": {"range": {"start": 8000, "end": 8080}}}},
        {"sctp": {"destinationPort": {"number": 7}}},
    ]);
    assert_matches(ranges, &[(UDP, 8000), (UDP, 8080), (SCTP, 7)], &[(UDP, 7999), (UDP, 8081), (TCP, 8000), (TCP, 7)]);
    assert_matches(Value::Null, &[(TCP, 80), (UDP, 1), (SCTP, 65535)], &[]);
}

#[test]
fn icmp_matches_rules_without_protocols() {
    let with = |protocols: Value| {
        let rule = json!({"action": "Deny", "from": [{"namespaces": {}}], "protocols": protocols});
        judge_flow(&cluster([], [admin_ingress(json!([rule]))]), CACHE, WEB, Probe::ICMP, None).ingress
    };
    assert_eq!(with(Value::Null), Denied);
    assert_eq!(with(json!([{"tcp": {"destinationPort": {"range": {"start": 1, "end": 65535}}}}])), NotIsolated);
}

#[test]
fn named_port_is_that_of_the_destination_pod() {
    let named = json!([{"destinationNamedPort": "http"}]);
    assert_matches(named.clone(), &[(TCP, 8080)], &[(TCP, 9090), (UDP, 8080)]);
    let rule = json!({"action": "Deny", "to": [{"namespaces": {}}], "protocols": named});
    let world = cluster([], [admin_egress(json!([rule]))]);
    let egress = |destination: &str, port: u16| judge_flow(&world, WEB, destination, TCP, port).egress;
    assert_eq!([egress(CACHE, 9090), egress(DB, 7070), egress(DB, 9090)], [Denied, Denied, NotIsolated]);
}

#[test]
fn named_port_resolves_for_each_protocol() {
    let ports = json!([{"name": "dns", "containerPort": 53, "protocol": "UDP"}, {"name": "dns", "containerPort": 54}]);
    let rule = json!({"action": "Deny", "from": [{"namespaces": {}}], "protocols": [{"destinationNamedPort": "dns"}]});
    let mut world = cluster([], [admin_ingress(json!([rule]))]);
    world.pods.push(pod("dns", json!({}), json!({"containers": [{"name": "main", "ports": ports}]}), json!({})));
    let verdict = |protocol: u8, port: u16| judge_flow(&world, CACHE, "10.0.0.9", protocol, port).ingress;
    assert_eq!([verdict(UDP, 53), verdict(TCP, 54)], [Denied, Denied]);
    assert_eq!([verdict(UDP, 54), verdict(TCP, 53), verdict(SCTP, 53)], [NotIsolated; 3]);
}

#[test]
fn named_port_beside_networks_fails_closed() {
    for peer in [json!({"networks": ["10.0.0.0/8"]}), json!({"nodes": {}})] {
        let with = |action: &str| {
            let to = json!([{"namespaces": {}}, peer]);
            let protocols = json!([{"destinationNamedPort": "http"}, {"tcp": {"destinationPort": {"number": 443}}}]);
            let rule = json!({"action": action, "to": to, "protocols": protocols});
            let world = cluster([], [admin_egress(json!([rule]))]);
            [(CACHE, 9090), (CACHE, 443), (OUTSIDE, 1)].map(|(to, port)| judge_flow(&world, WEB, to, TCP, port).egress)
        };
        assert_eq!(with("Accept"), [NotIsolated, Allowed, NotIsolated]);
        assert_eq!(with("Deny"), [Denied; 3]);
        assert_eq!(with("Pass"), [Denied; 3]);
    }
}
