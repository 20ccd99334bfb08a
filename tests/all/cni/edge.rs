//! Real packets from a pod with forged sources, to the node and the neighbours, at each hook that checks them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::process::Command;

use kit::agent_process::{AgentProcess, ringfence, until};
use kit::cni_runtime::Sandbox;
use kit::frame::{arp_frame, icmpv6_packet, ipv4_packet, send_frame, send_with_free_source};
use kit::kernel_table::{counted, load_text, nft};
use serde_json::Value;

use super::forged::{Node, hardware_address, index_of_eth0, link_local, send};
use super::{Families, NODE, OUTSIDE, Place, Pod};

pub(super) const GATEWAY4: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);
pub(super) const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 1);

/// The source check at each of its hooks, and without the check as the positive control.
pub(super) const CHECKS: [(&[&str], bool); 3] = [
    (&["--source-check-hook", "ingress"], false),
    (&["--source-check-hook", "prerouting"], false),
    (&["--source-check", "off"], true),
];

pub(super) type Network = fn(&Place) -> Value;
pub(super) const PTP: Network = |place| place.ptp(Families::Dual);
pub(super) const BRIDGE: Network = |place| place.bridge(Families::Dual);

/// Counts the answers to echo requests and to datagrams to closed ports.
const ANSWERS: &str = "table inet seen { }
delete table inet seen
table inet seen {
    chain input {
        type filter hook prerouting priority raw;
        icmp type { echo-reply, destination-unreachable } counter
        icmpv6 type { echo-reply, destination-unreachable } counter
    }
}
";

fn count_answers() {
    load_text(ANSWERS);
}

fn answers() -> u64 {
    counted("table inet seen")
}

pub(super) fn six(bytes: &[u8]) -> [u8; 6] {
    bytes.try_into().expect("a hardware address")
}

pub(super) fn ip(words: &str) -> String {
    let output = Command::new("ip").args(words.split(' ')).output().expect("iproute2");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The hardware address of a neighbour, which the pod resolves.
pub(super) fn neighbour(pod: &Pod, address: IpAddr) -> [u8; 6] {
    pod.sandbox.run(|| {
        let any: IpAddr = if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).unwrap();
        until("the neighbour answers", || {
            let sent = socket.send_to(b"hello", (address, 9));
            let shown = ip(&format!("neighbour show {address} dev eth0"));
            let words: Vec<&str> = shown.split_whitespace().collect();
            let at = words.iter().position(|word| *word == "lladdr").filter(|_| sent.is_ok() || !words.is_empty())?;
            let bytes: Vec<u8> = words[at + 1].split(':').map(|b| u8::from_str_radix(b, 16).unwrap()).collect();
            Some(six(&bytes))
        })
    })
}

fn set_reverse_path(node: &Node, value: &str) {
    node.runtime.on_node(|| {
        for interface in std::fs::read_dir("/proc/sys/net/ipv4/conf").unwrap() {
            std::fs::write(interface.unwrap().path().join("rp_filter"), value).unwrap();
        }
    });
}

/// Sends an echo request from the pod `web` to its node, as a raw socket does.
fn send_echo(node: &Node, source: Ipv4Addr) {
    send_echo_to(node, neighbour(&node.web, GATEWAY4.into()), source);
}

fn send_echo_to(node: &Node, to: [u8; 6], source: Ipv4Addr) {
    let from = hardware_address(&node.web);
    // Type 8, its checksum, an identifier and a sequence number (RFC 792).
    let packet = ipv4_packet(source.octets(), GATEWAY4.octets(), 1, &[8, 0, 0xf7, 0xfd, 0, 1, 0, 1]);
    let frame = [&to[..], &from, &[0x08, 0], &packet].concat();
    node.web.sandbox.run(|| (0..20).for_each(|_| send_frame("eth0", &frame)));
}

fn node_reflects_nothing_over_ipv4(network: Network) {
    for (arguments, reflects) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, network(&place), false, arguments);
        let IpAddr::V4(other) = node.addresses["other"] else { panic!("an IPv4 address") };
        let outside: Ipv4Addr = OUTSIDE.parse().unwrap();
        for filter in ["0", "2"] {
            set_reverse_path(&node, filter);
            node.other.sandbox.run(count_answers);
            send_echo(&node, other);
            let echoed = node.other.sandbox.run(answers);
            node.web.sandbox.run(|| send((other, 0).into(), (GATEWAY4, 9).into()));
            let all = node.other.sandbox.run(answers);
            assert_eq!(echoed > 0, reflects, "an echo to a pod, {arguments:?}, rp_filter {filter}");
            // The kernel limits the rate of its port-unreachable errors (`icmp_ratelimit`).
            let answers_again = reflects && filter == "0";
            assert!(all == echoed || reflects, "a datagram, {arguments:?}, rp_filter {filter}");
            assert!(all > echoed || !answers_again, "a datagram, {arguments:?}, rp_filter {filter}");
            place.lab.in_namespace_of(outside.into(), count_answers);
            send_echo(&node, outside);
            let echoed = place.lab.in_namespace_of(outside.into(), answers);
            assert_eq!(echoed > 0, reflects, "to the LAN, {arguments:?}, rp_filter {filter}");
        }
        node.end();
    }
}

#[test]
fn node_reflects_nothing_for_routed_ipv4_pod() {
    node_reflects_nothing_over_ipv4(PTP);
}

#[test]
fn node_reflects_nothing_for_bridged_ipv4_pod() {
    node_reflects_nothing_over_ipv4(BRIDGE);
}

/// Over IPv6 this attack needs no capability.
fn node_reflects_nothing_over_ipv6(network: Network) {
    for (arguments, reflects) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, network(&place), true, arguments);
        let IpAddr::V6(other) = node.addresses["other"] else { panic!("an IPv6 address") };
        neighbour(&node.web, GATEWAY6.into());
        node.other.sandbox.run(count_answers);
        node.web.sandbox.run(|| send_with_free_source(other, SocketAddrV6::new(GATEWAY6, 9, 0, 0), 5));
        assert_eq!(node.other.sandbox.run(answers) > 0, reflects, "a datagram, {arguments:?}");
        node.end();
    }
}

#[test]
fn node_reflects_nothing_for_routed_ipv6_pod() {
    node_reflects_nothing_over_ipv6(PTP);
}

#[test]
fn node_reflects_nothing_for_bridged_ipv6_pod() {
    node_reflects_nothing_over_ipv6(BRIDGE);
}

#[test]
fn link_local_source_is_not_reflected_on_bridge() {
    for (arguments, reflects) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, BRIDGE(&place), true, arguments);
        let victim = link_local(&node.db);
        let to = neighbour(&node.web, GATEWAY6.into());
        let own = hardware_address(&node.web);
        let scope = node.runtime.on_node(|| ip("-o -6 address show dev cni0 scope link"));
        let word = scope.split_whitespace().find(|word| word.starts_with("fe80:")).expect("an address of the bridge");
        let gateway: Ipv6Addr = word.split('/').next().unwrap().parse().unwrap();
        for destination in [gateway, GATEWAY6] {
            node.db.sandbox.run(count_answers);
            let packet = icmpv6_packet(victim, destination, 128, &[0, 1, 0, 1]);
            let frame = [&to[..], &own, &[0x86, 0xdd], &packet].concat();
            node.web.sandbox.run(|| (0..5).for_each(|_| send_frame("eth0", &frame)));
            // The bridge may first have to resolve the victim's address.
            if reflects && destination == gateway {
                node.db.sandbox.run(|| until("an answer is reflected", || (answers() > 0).then_some(())));
            } else if !reflects {
                assert_eq!(node.db.sandbox.run(answers), 0, "{arguments:?}");
            }
        }
        node.end();
    }
}

/// The neighbour entry of `db` for `other`'s address when `web` claims it, over ARP and by neighbour advertisements.
#[test]
fn pod_does_not_answer_for_others_on_bridge() {
    for (arguments, believed) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, BRIDGE(&place), false, arguments);
        let IpAddr::V4(claimed) = node.addresses["other"] else { panic!("an IPv4 address") };
        let IpAddr::V4(asked) = node.addresses["db"] else { panic!("an IPv4 address") };
        let [web, db, other] = [&node.web, &node.db, &node.other].map(|pod| six(&hardware_address(pod)));
        assert_eq!(neighbour(&node.db, claimed.into()), other);
        let known = |address: IpAddr| node.db.sandbox.run(|| ip(&format!("neighbour show {address} dev eth0")));
        let colons = |bytes: [u8; 6]| bytes.map(|b| format!("{b:02x}")).join(":");
        // ARP does not replace an entry that was just confirmed (`arp_process`: locktime), so the test makes it stale.
        node.db.sandbox.run(|| ip(&format!("neighbour replace {claimed} lladdr {} dev eth0 nud stale", colons(other))));
        let claims = [(2, web), (1, web), (2, other)];
        for (operation, from) in claims {
            let frame = arp_frame(db, from, operation, (web, claimed.octets()), asked.octets());
            node.web.sandbox.run(|| send_frame("eth0", &frame));
        }
        // A later packet with its own source passes: when it arrives, the claims have been processed or dropped.
        node.web.sandbox.run(|| ip("neighbour flush dev eth0"));
        neighbour(&node.web, asked.into());
        assert_eq!(known(claimed.into()).contains(&colons(web)), believed, "ARP, {arguments:?}");

        let v6 = |pod: &Pod| link_local(pod);
        let (source, target, to) = (v6(&node.web), v6(&node.other), v6(&node.db));
        let scoped = |address: Ipv6Addr, pod: &Pod| SocketAddrV6::new(address, 9, 0, pod.sandbox.run(index_of_eth0));
        node.db.sandbox.run(|| ip(&format!("neighbour replace {target} lladdr {} dev eth0 nud stale", colons(other))));
        // RFC 4861, section 4.4: solicited and override, the target, and its link-layer address.
        let mut advertisement = vec![0x60, 0, 0, 0];
        advertisement.extend(target.octets());
        advertisement.extend([2, 1]);
        advertisement.extend(web);
        let packet = icmpv6_packet(source, to, 136, &advertisement);
        let frame = [&db[..], &web, &[0x86, 0xdd], &packet].concat();
        node.web.sandbox.run(|| send_frame("eth0", &frame));
        node.web.sandbox.run(|| {
            UdpSocket::bind("[::]:0").unwrap().send_to(b"after", scoped(to, &node.web)).unwrap();
        });
        assert_eq!(known(target.into()).contains(&colons(web)), believed, "an advertisement, {arguments:?}");
        node.end();
    }
}

/// The bridge learns the port of a hardware address from the sender address of any frame.
#[test]
fn foreign_hardware_address_is_not_learned_by_bridge() {
    for (arguments, learned) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, BRIDGE(&place), false, arguments);
        let (IpAddr::V4(own), IpAddr::V4(to)) = (node.addresses["web"], node.addresses["db"]) else {
            panic!("IPv4 addresses")
        };
        let [db, victim] = [&node.db, &node.other].map(hardware_address);
        let port_of = |hardware: &[u8]| {
            let text = hardware.iter().map(|b| format!("{b:02x}")).collect::<Vec<_>>().join(":");
            let shown = node.runtime.on_node(|| {
                let output = Command::new("bridge").args(["fdb", "show", "br", "cni0"]).output().expect("iproute2");
                String::from_utf8(output.stdout).unwrap()
            });
            let line = shown.lines().find(|line| line.starts_with(&text)).map(ToOwned::to_owned);
            line.and_then(|line| line.split_whitespace().nth(2).map(ToOwned::to_owned))
        };
        neighbour(&node.other, GATEWAY4.into());
        let before = port_of(&victim).expect("the victim has sent something");
        let packet = ipv4_packet(own.octets(), to.octets(), 17, &[0, 9, 0, 9, 0, 8, 0, 0]);
        let frame = [&db[..], &victim, &[0x08, 0], &packet].concat();
        let moves = || {
            node.web.sandbox.run(|| send_frame("eth0", &frame));
            port_of(&victim).expect("an entry") != before
        };
        match learned {
            // A frame from the victim restores the bridge's entry for its address.
            true => until("the bridge learns the address", || moves().then_some(())),
            false => assert!(!moves(), "{arguments:?}"),
        }
        node.end();
    }
}

fn pods_find_each_other(network: Network) {
    for (arguments, _) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, network(&place), false, arguments);
        let v6 = |pod: &Pod| -> IpAddr {
            let shown = pod.sandbox.run(|| ip("-o -6 address show dev eth0 scope global"));
            let word = shown.split_whitespace().find(|word| word.starts_with("fd00:")).expect("an address");
            word.split('/').next().unwrap().parse::<IpAddr>().unwrap()
        };
        let to = [GATEWAY4.into(), GATEWAY6.into(), node.addresses["db"], v6(&node.db)];
        for address in to {
            let from = if address == to[0] || address == to[1] { &node.web } else { &node.other };
            from.sandbox.run(|| {
                count_answers();
                let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                let socket = UdpSocket::bind(any).unwrap();
                until("a closed port answers", || {
                    // An error answers an earlier datagram, and is counted.
                    let refused = socket.send_to(b"hello", (address, 9)).is_err();
                    (refused || answers() > 0).then_some(())
                });
            });
        }
        node.end();
    }
}

#[test]
fn routed_pods_find_gateway_and_each_other() {
    pods_find_each_other(PTP);
}

#[test]
fn bridged_pods_find_gateway_and_each_other() {
    pods_find_each_other(BRIDGE);
}

/// Duplicate address detection sends without a source address (RFC 4862, section 5.4.2). A solicitation for an address
/// that another pod is about to use prevents its use.
#[test]
fn duplicate_address_detection_is_for_own_addresses() {
    for (arguments, passes) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, BRIDGE(&place), true, arguments);
        let own = hardware_address(&node.web);
        for (target, arrives) in [("db", passes), ("web", true)] {
            let IpAddr::V6(target) = node.addresses[target] else { panic!("an IPv6 address") };
            let count = "table inet seen { }\ndelete table inet seen\n\
                         table inet seen {\nchain input {\ntype filter hook prerouting priority raw;\n\
                         ip6 saddr :: icmpv6 type nd-neighbor-solicit counter\n}\n}\n";
            node.db.sandbox.run(|| load_text(count));
            let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            let rest = [&[0; 4][..], &target.octets()].concat();
            let packet = icmpv6_packet(Ipv6Addr::UNSPECIFIED, all_nodes, 135, &rest);
            let frame = [&[0x33, 0x33, 0, 0, 0, 1], &own[..], &[0x86, 0xdd], &packet].concat();
            // A bridge forwards frames within the call that sends them.
            node.web.sandbox.run(|| (0..3).for_each(|_| send_frame("eth0", &frame)));
            assert_eq!(node.db.sandbox.run(answers) > 0, arrives, "{target}, {arguments:?}");
        }
        node.end();
    }
}

/// A node sends to the hardware address in the options, past the rules between ports of the bridge: with a group
/// address, to every port.
#[test]
fn link_address_options_are_own() {
    const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
    for (arguments, passes) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, BRIDGE(&place), true, arguments);
        let IpAddr::V6(own) = node.addresses["web"] else { panic!("an IPv6 address") };
        let (gateway, from) = (neighbour(&node.web, GATEWAY6.into()), hardware_address(&node.web));
        let local = link_local(&node.web);
        let text = |address: &[u8]| address.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
        let learns = |source: Ipv6Addr, to: Ipv6Addr, kind: u8, message: &[u8], claimed: &[u8]| {
            node.runtime
                .on_node(|| ip(&format!("neighbour replace {source} lladdr {} dev cni0 nud stale", text(&from))));
            let packet = icmpv6_packet(source, to, kind, &[message, claimed].concat());
            let frame = [&gateway[..], &from, &[0x86, 0xdd], &packet].concat();
            node.web.sandbox.run(|| send_frame("eth0", &frame));
            !node.runtime.on_node(|| ip(&format!("neighbour show {source} dev cni0"))).contains(&text(&from))
        };
        let target = |flags: u8, address: Ipv6Addr| [&[flags, 0, 0, 0][..], &address.octets()].concat();
        let option = |kind: u8, address: &[u8]| [&[kind, 1], address].concat();
        let nonce = [14, 1, 1, 2, 3, 4, 5, 6];
        for claimed in [&hardware_address(&node.other)[..], &[0x33, 0x33, 0, 0, 0, 1]] {
            let source = option(1, claimed);
            for sender in [own, local] {
                assert_eq!(learns(sender, ALL_ROUTERS, 133, &[0; 4], &source), passes, "{sender}, {arguments:?}");
                for options in [source.clone(), [&nonce[..], &source].concat()] {
                    let learned = learns(sender, GATEWAY6, 135, &target(0, GATEWAY6), &options);
                    assert_eq!(learned, passes, "{sender}, {options:?}, {arguments:?}");
                }
                let learned = learns(sender, GATEWAY6, 136, &target(0x20, sender), &option(2, claimed));
                assert_eq!(learned, passes, "{sender}, {arguments:?}");
            }
            node.other.sandbox.run(|| count_incoming(&format!("ip6 daddr {own}")));
            learns(own, GATEWAY6, 135, &target(0, GATEWAY6), &source);
            node.runtime.on_node(|| UdpSocket::bind("[::]:0").unwrap().send_to(b"to web", (own, 9)).unwrap());
            assert_eq!(node.other.sandbox.run(incoming) > 0, passes, "{claimed:?}, {arguments:?}");
        }
        node.end();
    }
}

/// Counts packets that enter by the pod's interface, in the pod's namespace.
pub(super) fn count_incoming(condition: &str) {
    load_text(&format!(
        "table netdev seen {{ }}\ndelete table netdev seen\n\
         table netdev seen {{\nchain ingress {{\ntype filter hook ingress device \"eth0\" priority 0;\n\
         {condition} counter\n}}\n}}\n"
    ));
}

pub(super) fn incoming() -> u64 {
    counted("table netdev seen")
}

/// RFC 5227, section 1.1: a host does not use an address for which it sees another host's probe.
#[test]
fn arp_probes_are_for_own_addresses() {
    for (arguments, passes) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, BRIDGE(&place), false, arguments);
        let own = six(&hardware_address(&node.web));
        for (target, arrives) in [("other", passes), ("web", true)] {
            let IpAddr::V4(target) = node.addresses[target] else { panic!("an IPv4 address") };
            node.db.sandbox.run(|| count_incoming("arp saddr ip 0.0.0.0"));
            let frame = arp_frame([0xff; 6], own, 1, (own, [0; 4]), target.octets());
            node.web.sandbox.run(|| (0..3).for_each(|_| send_frame("eth0", &frame)));
            assert_eq!(node.db.sandbox.run(incoming) > 0, arrives, "{target}, {arguments:?}");
        }
        node.end();
    }
}

/// A snooping bridge treats the sender of a query as the querier, and sends no multicast to ports without a report.
#[test]
fn bridged_pod_reports_groups_and_sends_no_query() {
    const GROUP: [u8; 4] = [239, 1, 1, 1];
    for (arguments, passes) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, BRIDGE(&place), false, arguments);
        let IpAddr::V4(own) = node.addresses["other"] else { panic!("an IPv4 address") };
        let from = hardware_address(&node.other);
        // RFC 2236, section 2: the type, the maximum response time, the checksum, the group. The first message has no
        // group, so it is a general query to all systems.
        let messages =
            [([224, 0, 0, 1], [0x11, 100, 0xee, 0x9b, 0, 0, 0, 0]), (GROUP, [0x16, 0, 0xf9, 0xfc, 239, 1, 1, 1])];
        node.db.sandbox.run(|| count_incoming("igmp type membership-query"));
        for (to, message) in messages {
            let packet = ipv4_packet(own.octets(), to, 2, &message);
            let frame = [&[0x01, 0, 0x5e, to[1], to[2], to[3]][..], &from, &[0x08, 0], &packet].concat();
            node.other.sandbox.run(|| send_frame("eth0", &frame));
        }
        let groups = node.runtime.on_node(|| {
            let output = Command::new("bridge").args(["mdb", "show", "dev", "cni0"]).output().expect("iproute2");
            String::from_utf8(output.stdout).unwrap()
        });
        assert!(groups.contains("grp 239.1.1.1"), "{arguments:?}: {groups}");
        assert_eq!(node.db.sandbox.run(incoming) > 0, passes, "a query, {arguments:?}");
        node.end();
    }
}

/// Frames to these addresses (IEEE 802.1Q, table 8-1) are delivered through the bridge port, not through the bridge.
#[test]
fn frames_to_reserved_addresses_are_checked() {
    for (arguments, reflects) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, BRIDGE(&place), false, arguments);
        let IpAddr::V4(other) = node.addresses["other"] else { panic!("an IPv4 address") };
        set_reverse_path(&node, "0");
        node.other.sandbox.run(count_answers);
        for last in [0x02, 0x03, 0x0e] {
            send_echo_to(&node, [0x01, 0x80, 0xc2, 0, 0, last], other);
        }
        assert_eq!(node.other.sandbox.run(answers) > 0, reflects, "{arguments:?}");
        node.end();
    }
}

/// A report that other listeners receive and the bridge does not makes the bridge expire their group.
#[test]
fn listener_reports_are_sent_to_their_groups() {
    const REPORTS: &str = "table bridge seen {\nchain prerouting {\ntype filter hook prerouting priority 100;\n\
                           icmpv6 type mld-listener-report counter\nigmp type membership-report-v2 counter\n}\n}\n";
    const TO_ALL: [u8; 6] = [0xff; 6];
    for (arguments, passes) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, BRIDGE(&place), false, arguments);
        let IpAddr::V4(own) = node.addresses["web"] else { panic!("an IPv4 address") };
        let (from, source) = (hardware_address(&node.web), link_local(&node.web));
        let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0x77);
        // RFC 2710, section 3: a maximum delay, 2 reserved bytes and the group.
        let report = icmpv6_packet(source, group, 131, &[&[0; 4][..], &group.octets()].concat());
        // RFC 2711: the router alert precedes the report.
        let mut alerted = [&report[..40], &[58, 0, 5, 2, 0, 0, 1, 0], &report[40..]].concat();
        (alerted[5], alerted[6]) = (alerted[5] + 8, 0);
        let of_igmp = ipv4_packet(own.octets(), [239, 1, 1, 1], 2, &[0x16, 0, 0xf9, 0xfc, 239, 1, 1, 1]);
        // RFC 2710, section 3: the hop limit.
        let mut without_alert = report;
        (alerted[7], without_alert[7]) = (1, 1);
        let to_group = [0x33, 0x33, 0xff, 0, 0, 0x77];
        let six = [0x86, 0xdd];
        let arrives = |to: [u8; 6], kind: [u8; 2], packet: &[u8]| {
            node.runtime
                .on_node(|| load_text(&format!("table bridge seen {{ }}\ndelete table bridge seen\n{REPORTS}")));
            let frame = [&to[..], &from, &kind, packet].concat();
            node.web.sandbox.run(|| send_frame("eth0", &frame));
            node.runtime.on_node(|| counted("table bridge seen")) > 0
        };
        assert!(arrives(to_group, six, &alerted), "{arguments:?}");
        assert!(arrives([0x01, 0, 0x5e, 1, 1, 1], [0x08, 0], &of_igmp), "{arguments:?}");
        assert_eq!(arrives(TO_ALL, six, &alerted), passes, "to all, {arguments:?}");
        assert_eq!(arrives(to_group, six, &without_alert), passes, "without the alert, {arguments:?}");
        assert_eq!(arrives(TO_ALL, [0x08, 0], &of_igmp), passes, "IGMP to all, {arguments:?}");
        node.end();
    }
}

#[test]
fn renamed_interface_stays_guarded() {
    let place = Place::new();
    let mut node = Node::start(&place, place.ptp(Families::V4), false, &["--table-owner", "off"]);
    let IpAddr::V4(other) = node.addresses["other"] else { panic!("an IPv4 address") };
    let attached = place.attachments().into_iter().find(|attachment| attachment.pod == "web").unwrap();
    let interface = attached.host_interface.unwrap();
    neighbour(&node.web, GATEWAY4.into());
    node.runtime.on_node(|| {
        let own = node.addresses["web"];
        for words in [
            format!("link set {interface} down"),
            format!("link set {interface} name renamed0 up"),
            format!("route replace {own} dev renamed0"),
        ] {
            assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
        }
    });
    let list = || node.runtime.on_node(|| nft("list table netdev ringfence"));
    until("the chain has the interface's new name", || {
        let table = list();
        (table.contains("device \"renamed0\"") && !table.contains(&interface)).then_some(())
    });
    node.other.sandbox.run(count_answers);
    send_echo(&node, other);
    assert_eq!(node.other.sandbox.run(answers), 0);
    node.agent.until_ready();
    node.end();
}

/// It keeps its index, and is not announced as the one of the pod's ADD.
#[test]
fn interface_that_comes_back_is_guarded() {
    let place = Place::new();
    let node = Node::start(&place, place.ptp(Families::V4), false, &["--table-owner", "off", "--resync-secs", "3600"]);
    let attached = place.attachments().into_iter().find(|attachment| attachment.pod == "web").unwrap();
    let interface = attached.host_interface.unwrap();
    let guards = || node.runtime.on_node(|| nft("list table netdev ringfence")).contains(&interface);
    let away = Sandbox::new();
    let home = place.lab.node_namespace_path(NODE);
    node.runtime.on_node(|| ip(&format!("link set {interface} netns {}", away.path())));
    until("the chain goes with the interface", || (!guards()).then_some(()));
    away.run(|| ip(&format!("link set {interface} netns {home}")));
    until("the chain comes back with the interface", || guards().then_some(()));
    node.end();
}

#[test]
fn vanished_interface_denies_no_other_pod() {
    let place = Place::new();
    let mut node = Node::start(&place, place.ptp(Families::V4), false, &["--table-owner", "off"]);
    let attached = place.attachments().into_iter().find(|attachment| attachment.pod == "other").unwrap();
    let interface = attached.host_interface.unwrap();
    node.runtime.on_node(|| ip(&format!("link delete {interface}")));
    until("the chain goes with the interface", || {
        let table = node.runtime.on_node(|| nft("list table netdev ringfence"));
        (!table.contains(&interface) && table.contains("shop/web")).then_some(())
    });
    // The start of another pod causes a commit, which verifies the remaining tables.
    let late = Pod::new("late");
    let added = node.runtime.add(&late.container);
    assert!(added.is_err(), "nobody knows the pod, so that it waits until its time is over");
    node.runtime.delete(&late.container).unwrap();
    assert_eq!(node.arrives_from(node.addresses["other"]), 0);
    node.agent.until_ready();
    node.end();
}

#[test]
fn edge_chains_are_adopted_without_commit() {
    let place = Place::new();
    // A sandbox removes its pod's interface when it is dropped.
    let Node { agent, runtime, web: _web, db: _db, other: _other, addresses: _ } =
        Node::start(&place, BRIDGE(&place), false, &[]);
    let list = || runtime.on_node(|| nft("-a list table netdev ringfence"));
    let before = list();
    agent.stop();
    let mut command = ringfence();
    command.args(["agent", "--node-name", NODE, "--run-dir"]).arg(place.path("run")).arg("--manifests");
    command.arg(place.path("manifests"));
    let mut second = AgentProcess::start(&place.lab, NODE, command);
    second.until_ready();
    assert_eq!(second.metric("ringfence_commits_total"), 0);
    // Rules that were not replaced keep their kernel handles.
    assert_eq!(list(), before);
}

#[test]
fn source_check_off_leaves_edge_table_out() {
    let place = Place::new();
    let node = Node::start(&place, BRIDGE(&place), false, &["--source-check", "off"]);
    let tables = node.runtime.on_node(|| nft("list tables"));
    assert!(tables.contains("inet ringfence") && tables.contains("bridge ringfence"), "{tables}");
    assert!(!tables.contains("netdev"), "{tables}");
    let address: SocketAddr = (GATEWAY4, 9).into();
    node.web.sandbox.run(|| send((node.addresses["web"], 0).into(), address));
    node.end();
}
