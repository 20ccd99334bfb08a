use super::*;

/// The destinations that an egress rule with one peer denies to `web`.
fn denied_by(peer: Value) -> Vec<&'static str> {
    let world = cluster([], [admin_egress(json!([{"action": "Deny", "to": [peer]}]))]);
    [CACHE, DB, OTHER, GHOST, OUTSIDE].into_iter().filter(|destination| to(&world, destination) == Denied).collect()
}

fn with_subject(subject: Value) -> World {
    let mut policy = admin_ingress(json!([everyone("Deny", "from")]));
    policy["spec"]["subject"] = subject;
    cluster([], [policy])
}

#[test]
fn subject_is_namespaces_or_pods() {
    let ingress_of = |subject: Value, pod: &str| judge_flow(&with_subject(subject), CACHE, pod, TCP, 80).ingress;
    let of_other = || json!({"namespaces": {"matchLabels": {"team": "b"}}});
    assert_eq!([ingress_of(of_other(), OTHER), ingress_of(of_other(), WEB)], [Denied, NotIsolated]);
    let webs = || json!({"pods": {"podSelector": {"matchLabels": {"app": "web"}}}});
    assert_eq!([OTHER, WEB, CACHE].map(|pod| ingress_of(webs(), pod)), [Denied, Denied, NotIsolated]);
    let both = || {
        json!({"pods": {"podSelector": {"matchLabels": {"app": "web"}},
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}})
    };
    assert_eq!([OTHER, WEB, CACHE].map(|pod| ingress_of(both(), pod)), [NotIsolated, Denied, NotIsolated]);
}

#[test]
fn host_network_pods_are_neither_subject_nor_peer() {
    let mut world = with_subject(json!({"namespaces": {}}));
    world.pods.push(pod("proxy", json!({}), json!({"hostNetwork": true}), json!({"podIP": "192.0.2.1"})));
    assert_eq!(judge_flow(&world, WEB, OUTSIDE, TCP, 80).ingress, NotLocal);
    assert_eq!(judge_flow(&world, OUTSIDE, WEB, TCP, 80).ingress, NotIsolated);
}

#[test]
fn pods_of_unknown_namespace_open_nothing() {
    let peers = json!([{"namespaces": {"matchLabels": {"team": "c"}}}]);
    let egress_with = |action: &str| {
        let rules = json!([{"action": action, "to": peers}, {"action": "Deny", "to": [{"networks": ["10.0.0.0/8"]}]}]);
        let world = cluster([], [admin_egress(rules)]);
        [decided(&world, GHOST), decided(&world, OTHER)]
    };
    let [first, second] = [0, 1].map(|index| (Denied, rule(PolicyTier::Admin, 0, index)));
    assert_eq!(egress_with("Accept"), [second, second]);
    assert_eq!(egress_with("Pass"), [first, second]);
    assert_eq!(egress_with("Deny"), [first, second]);
    // The pods' own labels are known.
    assert_eq!(denied_by(json!({"pods": {"podSelector": {"matchLabels": {"app": "db"}}}})), [DB]);
    // As a subject.
    let subject = |action: &str| {
        let mut policy = admin_ingress(json!([about(action, "from", "cache")]));
        policy["spec"]["subject"] = json!({"namespaces": {"matchLabels": {"team": "c"}}});
        let world = cluster([], [policy]);
        ["10.0.0.2", "10.0.0.3"].map(|source| {
            let [source, destination] = [source, GHOST].map(|text| text.parse().unwrap());
            judge(&world, "there", &Probe { source, destination, protocol: TCP, port: Some(80) }).ingress
        })
    };
    assert_eq!(subject("Accept"), [NotIsolated, NotIsolated]);
    assert_eq!(subject("Pass"), [Denied, NotIsolated]);
    assert_eq!(subject("Deny"), [Denied, NotIsolated]);
}

#[test]
fn peers_are_united() {
    let to = json!([{"namespaces": {"matchLabels": {"team": "b"}}}, {"networks": ["192.0.2.0/24", "10.0.0.3/32"]}]);
    let world = cluster([], [admin_egress(json!([{"action": "Deny", "to": to}]))]);
    let verdicts = [CACHE, DB, OTHER, OUTSIDE].map(|destination| super::to(&world, destination));
    assert_eq!(verdicts, [NotIsolated, Denied, Denied, Denied]);
}

#[test]
fn nodes_are_matched_by_addresses_of_their_status() {
    let node = |name: &str, zone: &str, addresses: [&str; 2]| {
        let addresses = addresses.map(|address| json!({"type": "InternalIP", "address": address}));
        read(json!({"metadata": {"name": name, "labels": {"zone": zone}}, "status": {"addresses": addresses}}))
    };
    let verdicts = |selector: Value| {
        let mut world = cluster([], [admin_egress(json!([{"action": "Deny", "to": [{"nodes": selector}]}]))]);
        world.nodes = vec![node("n1", "a", ["192.0.2.1", "host"]), node("n2", "b", ["192.0.2.2", "2001:db8::2"])];
        ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|destination| to(&world, destination))
    };
    assert_eq!(verdicts(json!({})), [Denied, Denied, NotIsolated]);
    assert_eq!(verdicts(json!({"matchLabels": {"zone": "b"}})), [NotIsolated, Denied, NotIsolated]);
}

#[test]
fn networks_hold_addresses_of_pods_too() {
    assert_eq!(denied_by(json!({"networks": ["0.0.0.0/0"]})), [CACHE, DB, OTHER, GHOST, OUTSIDE]);
    assert_eq!(denied_by(json!({"networks": ["10.0.0.3/31", "2001:db8::/32"]})), [CACHE, DB]);
    let icmp = cluster([], [admin_egress(json!([{"action": "Deny", "to": [{"networks": ["10.0.0.0/8"]}]}]))]);
    assert_eq!(judge_flow(&icmp, WEB, DB, Probe::ICMP, None).egress, Denied);
    assert_eq!(judge_flow(&icmp, "fd00::1", "fd00::3", Probe::ICMPV6, None).egress, NotIsolated);
}

#[test]
fn domain_names_match_learned_addresses_in_accept_rules() {
    let peers = json!([{"domainNames": ["*.example.org"]}, {"networks": ["192.168.0.0/16"]}]);
    let with = |action: &str| to(&cluster([], [admin_egress(json!([{"action": action, "to": peers}]))]), OUTSIDE);
    assert_eq!(["Accept", "Deny", "Pass"].map(with), [NotIsolated, Denied, Denied]);
    let named = |wanted: &str, learned: &[&str]| {
        let rules = json!([{"action": "Accept", "to": [{"domainNames": [wanted]}]}]);
        let mut world = cluster([], [admin_egress(rules)]);
        world.learned = learned.iter().map(|name| ((*name).to_owned(), OUTSIDE.parse().unwrap())).collect();
        to(&world, OUTSIDE) == Allowed
    };
    assert!(named("Example.org.", &["example.com", "example.org"]) && !named("example.org", &["www.example.org"]));
    assert!(
        named("*.example.org", &["a.www.example.org"]) && !named("*.example.org", &["example.org", "badexample.org"])
    );
}

#[test]
fn addresses_of_pods_count_for_names_of_cluster() {
    let named = |name: &str, address: &str| {
        let rules = json!([{"action": "Accept", "to": [{"domainNames": [name]}]}]);
        let mut world = cluster([], [admin_egress(rules)]);
        world.learned = vec![(name.to_owned(), address.parse().unwrap())];
        to(&world, address) == Allowed
    };
    assert!(named("db.shop.svc.cluster.local", DB) && !named("db.example.org", DB));
    assert!(!named("db.example.org", "127.0.0.1") && named("db.example.org", OUTSIDE));
    let in_range_of_pods = |name: &str| {
        let rules = json!([{"action": "Accept", "to": [{"domainNames": [name]}]}]);
        let mut world = cluster([], [admin_egress(rules)]);
        let range = ipnet::IpNet::new(OUTSIDE.parse().unwrap(), 24).unwrap().trunc().to_string();
        world.nodes = vec![read(json!({"metadata": {"name": "n1"}, "spec": {"podCIDRs": [range]}}))];
        world.learned = vec![(name.to_owned(), OUTSIDE.parse().unwrap())];
        to(&world, OUTSIDE) == Allowed
    };
    assert!(in_range_of_pods("db.shop.svc.cluster.local") && !in_range_of_pods("db.example.org"));
}

#[test]
fn peers_are_pods_of_this_cluster() {
    let by_cluster = json!({"namespaces": {"matchLabels": {"semaphore.uw.systems/cluster": "east"}}});
    let mut world = cluster([], [admin_egress(json!([{"action": "Deny", "to": [by_cluster]}]))]);
    world.remote = Some(kit::oracle::Remote {
        prefixes: vec!["semaphore.uw.systems".into()],
        sets: vec![kit::oracle::RemoteSet {
            cluster: "east".into(),
            namespace: "shop".into(),
            name: "web".into(),
            addresses: vec![OUTSIDE.parse().unwrap()],
        }],
    });
    assert_eq!(to(&world, OUTSIDE), NotIsolated);
}
