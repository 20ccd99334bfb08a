use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use kit::lab::{Lab, LabSpec, NodeSpec, PodSpec, probe_all};
use kit::oracle::Probe;

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn node(name: &str, number: u8, pods: u8) -> NodeSpec {
    let pod = |index: u8| PodSpec {
        name: format!("pod-{index}"),
        addresses: vec![address(&format!("10.{number}.0.{index}")), address(&format!("fd00:{number}::{index}"))],
    };
    NodeSpec { name: name.into(), addresses: Vec::new(), pods: (1..=pods).map(pod).collect() }
}

fn two_nodes_and_an_outside() -> LabSpec {
    LabSpec {
        nodes: vec![node("node-a", 1, 3), node("node-b", 2, 1)],
        outside: vec![address("192.0.2.1"), address("2001:db8::1")],
    }
}

fn addresses(spec: &LabSpec) -> Vec<IpAddr> {
    let pods = spec.nodes.iter().flat_map(|node| node.pods.iter().flat_map(|pod| pod.addresses.clone()));
    pods.chain(spec.outside.clone()).collect()
}

/// Every protocol from every address to every address of its family, itself included.
fn all_pairs(spec: &LabSpec) -> Vec<Probe> {
    let mut probes = Vec::new();
    for source in addresses(spec) {
        for destination in addresses(spec) {
            if source.is_ipv4() != destination.is_ipv4() {
                continue;
            }
            let echo = if source.is_ipv4() { Probe::ICMP } else { Probe::ICMPV6 };
            for (protocol, port) in [
                (Probe::TCP, Some(80)),
                (Probe::TCP, Some(81)),
                (Probe::UDP, Some(80)),
                (Probe::SCTP, Some(80)),
                (echo, None),
                (47, None),
                (253, None),
            ] {
                probes.push(Probe { source, destination, protocol, port });
            }
        }
    }
    probes
}

/// Drops matching packets in the forward hook of a node.
fn drop_on(lab: &Lab, node: &str, rules: &[&str]) {
    let rules: String = rules.iter().map(|rule| format!("{rule} drop\n")).collect();
    let script =
        format!("table inet lab {{ chain forward {{ type filter hook forward priority filter;\n{rules}}}\n}}\n");
    let output = lab.node_exec(node, || Command::new("nft").arg(&script).output().expect("nft is installed"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn dropped(probes: &[Probe], reached: &[bool]) -> BTreeSet<Probe> {
    probes.iter().zip(reached).filter(|(_, reached)| !**reached).map(|(probe, _)| *probe).collect()
}

#[track_caller]
fn assert_dropped(probes: &[Probe], reached: &[bool], expected: impl Fn(&Probe) -> bool) {
    let expected: BTreeSet<Probe> = probes.iter().copied().filter(expected).collect();
    let actual = dropped(probes, reached);
    let difference: Vec<String> = expected.symmetric_difference(&actual).map(Probe::to_string).collect();
    assert!(difference.is_empty(), "{} differ:\n{}", difference.len(), difference.join("\n"));
}

#[test]
fn without_rules_every_probe_passes() {
    let spec = two_nodes_and_an_outside();
    let lab = Lab::new(&spec);
    let probes = all_pairs(&spec);
    assert_dropped(&probes, &probe_all(&lab, &probes), |_| false);
}

#[test]
fn exactly_what_a_rule_drops_fails() {
    let spec = two_nodes_and_an_outside();
    let lab = Lab::new(&spec);
    drop_on(
        &lab,
        "node-a",
        &[
            "ip saddr 10.1.0.1 ip daddr 10.1.0.2",
            "ip6 saddr fd00:1::1 meta l4proto tcp th dport 80",
            "ip daddr 10.1.0.3 meta l4proto { udp, icmp, 253 }",
            "ip saddr 192.0.2.1 meta l4proto sctp th dport 80",
            "ip6 daddr fd00:1::3 meta l4proto { sctp, ipv6-icmp, gre }",
        ],
    );
    let is = |address: IpAddr, text: &str| address == text.parse::<IpAddr>().expect("an address");
    let probes = all_pairs(&spec);
    assert_dropped(&probes, &probe_all(&lab, &probes), |probe| {
        let Probe { source, destination, protocol, port } = *probe;
        // An echo needs a reply, and the rules apply to replies as well.
        let echo_to = |text| matches!(protocol, Probe::ICMP | Probe::ICMPV6) && is(source, text);
        // Datagrams need a reply, too.
        let datagram_to = |text| protocol == Probe::UDP && is(source, text);
        let crosses = source != destination;
        let forwarded_by_a = [source, destination].iter().any(|a| a.to_string().starts_with("10.1."))
            || [source, destination].iter().any(|a| a.to_string().starts_with("fd00:1:"));
        crosses
            && forwarded_by_a
            && ((is(source, "10.1.0.1") && is(destination, "10.1.0.2"))
                || (is(source, "10.1.0.2")
                    && is(destination, "10.1.0.1")
                    && matches!(protocol, Probe::TCP | Probe::UDP | Probe::ICMP))
                || (is(source, "fd00:1::1") && protocol == Probe::TCP && port == Some(80))
                || (is(destination, "10.1.0.3") && matches!(protocol, Probe::UDP | Probe::ICMP | 253))
                || echo_to("10.1.0.3")
                || datagram_to("10.1.0.3")
                || (is(source, "192.0.2.1") && protocol == Probe::SCTP)
                || (is(destination, "fd00:1::3") && matches!(protocol, Probe::SCTP | Probe::ICMPV6 | 47))
                || echo_to("fd00:1::3"))
    });
}

#[test]
fn node_drops_only_packets_that_it_forwards() {
    let spec = two_nodes_and_an_outside();
    let lab = Lab::new(&spec);
    drop_on(&lab, "node-a", &["meta l4proto != 255"]);
    let probes = all_pairs(&spec);
    let of_node_a = |a: IpAddr| a.to_string().starts_with("10.1.") || a.to_string().starts_with("fd00:1:");
    assert_dropped(&probes, &probe_all(&lab, &probes), |probe| {
        probe.source != probe.destination && (of_node_a(probe.source) || of_node_a(probe.destination))
    });
}

#[test]
fn lab_of_eight_pods_probes_within_deadline() {
    // Generous, for a loaded machine: a pass takes about 0.1 s, and 0.3 s more if packets are dropped.
    const ENOUGH: Duration = Duration::from_secs(30);
    let spec = LabSpec { nodes: vec![node("node-a", 1, 8)], outside: vec![address("192.0.2.1")] };
    let before = Instant::now();
    let lab = Lab::new(&spec);
    let built = before.elapsed();

    let probes: Vec<Probe> = all_pairs(&spec).into_iter().take(500).collect();
    let before = Instant::now();
    let reached = probe_all(&lab, &probes);
    let probed = before.elapsed();

    drop_on(&lab, "node-a", &["meta l4proto tcp"]);
    let before = Instant::now();
    let after = probe_all(&lab, &probes);
    let probed_with_drops = before.elapsed();

    let before = Instant::now();
    drop(lab);
    let removed = before.elapsed();
    println!("built {built:?}, probed {probed:?}, with drops {probed_with_drops:?}, removed {removed:?}");
    assert_dropped(&probes, &reached, |_| false);
    assert_dropped(&probes, &after, |probe| probe.protocol == Probe::TCP && probe.source != probe.destination);
    for took in [built, probed, probed_with_drops, removed] {
        assert!(took < ENOUGH, "{took:?}");
    }
}

#[test]
fn a_lab_removes_its_namespaces() {
    let spec = two_nodes_and_an_outside();
    let lab = Lab::new(&spec);
    let path = lab.node_namespace_path("node-a");
    assert!(std::path::Path::new(&path).exists());
    drop(lab);
    assert!(!std::path::Path::new(&path).exists());

    let leaked = std::panic::catch_unwind(|| {
        let lab = Lab::new(&spec);
        std::panic::panic_any(lab.node_namespace_path("node-a"));
    });
    let path = leaked.expect_err("it panics").downcast::<String>().expect("the path");
    assert!(!std::path::Path::new(&*path).exists());
}
