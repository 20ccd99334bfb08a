//! Source routing: the node replaces the destination after conntrack has seen the packet.

use std::net::{IpAddr, SocketAddr};

use kit::frame::{ip_packet, udp_datagram, with_ipv4_options};
use kit::kernel_table::{load_text, nft};
use kit::lab::Lab;

use super::{dropped, enforced_lab, places, received};
use crate::stage::NODE;

/// Makes the node accept source routes.
fn accept_source_routes(lab: &Lab) {
    lab.node_exec(NODE, || {
        for interface in ["all", "uplink"] {
            for key in ["ipv4/conf/{}/accept_source_route", "ipv6/conf/{}/seg6_enabled", "ipv6/conf/{}/rpl_seg_enabled"]
            {
                let path = format!("/proc/sys/net/{}", key.replace("{}", interface));
                std::fs::write(&path, "1").unwrap_or_else(|error| panic!("{path}: {error}"));
            }
        }
    });
}

/// RFC 791: an IPv4 packet with the option, whose one remaining hop is `victim`.
fn with_option(packet: &[u8], kind: u8, victim: IpAddr) -> Vec<u8> {
    with_one_hop(packet, kind, 4, victim)
}

/// `pointer` is 4 before the packet has visited the hop, and 8 afterwards.
fn with_one_hop(packet: &[u8], kind: u8, pointer: u8, hop: IpAddr) -> Vec<u8> {
    let IpAddr::V4(hop) = hop else { panic!("an IPv4 address") };
    with_ipv4_options(packet, &[&[kind, 7, pointer][..], &hop.octets(), &[1]].concat())
}

/// The same with an earlier, already visited hop: the kernel follows the route, and nft does not find it.
fn with_option_under_way(packet: &[u8], kind: u8, victim: IpAddr) -> Vec<u8> {
    let IpAddr::V4(victim) = victim else { panic!("an IPv4 address") };
    let option = [&[kind, 11, 8][..], &[192, 0, 2, 77], &victim.octets(), &[1]].concat();
    with_ipv4_options(packet, &option)
}

/// RFC 8754 (type 4): an IPv6 packet whose last segment is `victim`; RFC 6554 (type 3) without compression.
fn with_routing_header(packet: &[u8], kind: u8, victim: IpAddr) -> Vec<u8> {
    let IpAddr::V6(victim) = victim else { panic!("an IPv6 address") };
    let node = &packet[24..40];
    let segments = match kind {
        4 => [&victim.octets()[..], node].concat(),
        _ => victim.octets().to_vec(),
    };
    let words = u8::try_from(segments.len() / 8).expect("few segments");
    let last_entry = if kind == 4 { 1 } else { 0 };
    let header = [&[packet[6], words, kind, 1, last_entry, 0, 0, 0][..], &segments].concat();
    let mut routed = [&packet[..40], &header, &packet[40..]].concat();
    let length = u16::try_from(routed.len() - 40).expect("a short packet");
    routed[4..6].copy_from_slice(&length.to_be_bytes());
    routed[6] = 43;
    routed
}

/// A route whose last hop was visited: a host answers along the reversed route, which begins with that hop
/// (`ip_options_echo`).
fn with_finished_option(packet: &[u8], kind: u8, victim: IpAddr) -> Vec<u8> {
    with_one_hop(packet, kind, 8, victim)
}

#[test]
fn node_answers_no_pod_by_source_route() {
    let lab = enforced_lab();
    accept_source_routes(&lab);
    let at = places()[0];
    for kind in [131, 137] {
        let plain = udp_datagram(SocketAddr::new(at.open, 40_000), SocketAddr::new(at.node, 9), b"reflected");
        let packet = with_finished_option(&plain, kind, at.closed);
        let answers = "icmp type destination-unreachable";
        assert_eq!(received(&lab, at.closed, answers, at.open, &[packet]), 0, "type {kind}");
    }
    assert_eq!(dropped(&lab, "deny/source-route"), 2);
}

#[test]
fn source_route_under_way_reaches_no_pod() {
    let lab = enforced_lab();
    accept_source_routes(&lab);
    let at = places()[0];
    for kind in [131, 137] {
        let plain = udp_datagram(SocketAddr::new(at.client, 40_000), SocketAddr::new(at.node, 9), b"source-routed");
        for victim in [at.closed, at.open] {
            let packet = with_option_under_way(&plain, kind, victim);
            let condition = format!("ip daddr {victim} meta mark 0");
            assert_eq!(received(&lab, victim, &condition, at.client, &[packet]), 0, "type {kind} to {victim}");
        }
    }
    assert_eq!(dropped(&lab, "deny/source-route"), 4);
}

/// Multicast group reports may have an option, the router alert.
#[test]
fn source_route_of_igmp_reaches_no_pod() {
    let lab = enforced_lab();
    accept_source_routes(&lab);
    let at = places()[0];
    let report = ip_packet(at.client, at.node, 2, &[0x16, 0, 0xf9, 0xfc, 239, 1, 1, 1]);
    for kind in [131, 137] {
        for packet in [with_option(&report, kind, at.closed), with_option_under_way(&report, kind, at.closed)] {
            let condition = format!("ip daddr {} meta l4proto igmp", at.closed);
            assert_eq!(received(&lab, at.closed, &condition, at.client, &[packet]), 0, "type {kind}");
        }
    }
    assert_eq!(dropped(&lab, "deny/source-route"), 4);
}

#[test]
fn source_route_does_not_reach_isolated_pod() {
    let lab = enforced_lab();
    accept_source_routes(&lab);
    let [v4, v6] = places();
    for (at, kind) in [(v4, 131), (v4, 137), (v6, 4), (v6, 3)] {
        let plain = udp_datagram(SocketAddr::new(at.client, 40_000), SocketAddr::new(at.node, 9), b"source-routed");
        let routed = |victim| match at.node {
            IpAddr::V4(_) => with_option(&plain, kind, victim),
            IpAddr::V6(_) => with_routing_header(&plain, kind, victim),
        };
        let family = if at.node.is_ipv4() { "ip" } else { "ip6" };
        let arrives = |victim: IpAddr| {
            received(&lab, victim, &format!("{family} daddr {victim} meta mark 0"), at.client, &[routed(victim)])
        };
        assert_eq!(arrives(at.closed), 0, "type {kind} to a pod that nobody may reach");
        // A flow to the node that was approved on the way to another pod would give that approval to this pod.
        assert_eq!(arrives(at.open), 0, "type {kind} to a pod that no policy selects");
    }
    assert_eq!(dropped(&lab, "deny/source-route"), 8);
}

/// Runs while a rule of another program writes the destination behind conntrack.
fn while_translated<T>(lab: &Lab, name: &str, from: IpAddr, to: IpAddr, run: impl FnOnce() -> T) -> T {
    let family = if from.is_ipv4() { "ip" } else { "ip6" };
    let table = format!(
        "table {family} {name} {{\nchain prerouting {{\ntype filter hook prerouting priority mangle\n\
         {family} daddr {from} {family} daddr set {to}\n}}\n}}\n"
    );
    lab.node_exec(NODE, || load_text(&table));
    let result = run();
    lab.node_exec(NODE, || nft(&format!("delete table {family} {name}")));
    result
}

#[test]
fn stateless_translation_leads_to_no_isolated_pod() {
    let lab = enforced_lab();
    for (at, virtual_address) in places().into_iter().zip(["10.96.0.9", "fd00:96::9"]) {
        let to = SocketAddr::new(virtual_address.parse().expect("an address"), 53);
        let arrived = |name: &str, destination: IpAddr| {
            let packet = udp_datagram(SocketAddr::new(at.open, 40_000), to, b"translated");
            while_translated(&lab, name, to.ip(), destination, || {
                received(&lab, destination, "udp dport 53", at.open, &[packet])
            })
        };
        assert_eq!(arrived("to-client", at.client), 1, "{virtual_address}");
        for isolated in [at.closed, at.server] {
            assert_eq!(arrived("to-isolated", isolated), 0, "{isolated}");
        }
    }
    assert_eq!(dropped(&lab, "deny/destination"), 4);
}

#[test]
fn stateless_translation_leads_no_reply_to_isolated_pod() {
    let lab = enforced_lab();
    for at in places() {
        let [client, server] = [SocketAddr::new(at.client, 40_000), SocketAddr::new(at.open, 53)];
        let question = udp_datagram(client, server, b"question");
        assert_eq!(received(&lab, at.open, "udp dport 53", at.client, &[question]), 1, "{client}");
        let arrived = |name: &str, destination: IpAddr| {
            let answer = udp_datagram(server, client, b"answer");
            while_translated(&lab, name, at.client, destination, || {
                received(&lab, destination, "udp sport 53", at.open, &[answer])
            })
        };
        assert_eq!(arrived("to-router", at.router), 1, "{client}");
        for isolated in [at.closed, at.server] {
            assert_eq!(arrived("to-isolated", isolated), 0, "{isolated}");
        }
    }
    assert_eq!(dropped(&lab, "deny/destination"), 4);
}
