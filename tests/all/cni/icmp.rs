//! ICMP messages from a pod about other hosts' packets, whole and fragmented, at each hook that checks them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use kit::frame::{icmpv6_packet, ip_packet, send_frame, udp_datagram, unreachable_packet, with_ipv4_options};
use kit::kernel_table::{counted, load_text};

use super::edge::{BRIDGE, CHECKS, GATEWAY4, GATEWAY6, Network, PTP, ip, neighbour, six};
use super::forged::{Node, hardware_address};
use super::{OUTSIDE, Place};

/// Counts the ICMP errors that the node receives.
const ERRORS: &str = "table inet seen { }
delete table inet seen
table inet seen {
    chain input {
        type filter hook input priority filter + 10;
        icmp type destination-unreachable counter
        icmpv6 type { destination-unreachable, packet-too-big } counter
    }
}
";

fn errors(node: &Node) -> u64 {
    node.runtime.on_node(|| counted("table inet seen"))
}

fn gateway(v6: bool) -> IpAddr {
    if v6 { GATEWAY6.into() } else { GATEWAY4.into() }
}

/// Sends the packets from the pod `web` to its node.
fn send(node: &Node, packets: &[Vec<u8>]) {
    let v6 = packets[0][0] >> 4 == 6;
    let (to, from) = (neighbour(&node.web, gateway(v6)), hardware_address(&node.web));
    let kind = if v6 { [0x86, 0xdd] } else { [0x08, 0] };
    node.web.sandbox.run(|| {
        for packet in packets {
            send_frame("eth0", &[&to[..], &from, &kind, packet].concat());
        }
    });
}

/// The node accepts a pod's ICMP errors about packets to that pod, and drops those about packets to other hosts.
fn errors_are_about_packets_to_the_pod(network: Network) {
    for (arguments, foreign_pass) in CHECKS {
        for v6 in [false, true] {
            let place = Place::new();
            let node = Node::start(&place, network(&place), v6, arguments);
            node.runtime.on_node(|| load_text(ERRORS));
            let (own, other) = (node.addresses["web"], node.addresses["other"]);
            let at = |address: IpAddr| SocketAddr::new(address, 53);
            let quote = |to: IpAddr| udp_datagram(at(gateway(v6)), at(to), b"requests");
            let error = |quoted: &[u8]| unreachable_packet(own, gateway(v6), quoted);
            send(&node, &[error(&quote(own))]);
            assert_eq!(errors(&node), 1, "its own, {own}, {arguments:?}");
            send(&node, &[error(&quote(other)), error(&quote(gateway(v6)))]);
            assert_eq!(errors(&node), if foreign_pass { 3 } else { 1 }, "of others, {own}, {arguments:?}");
            node.end();
        }
    }
}

#[test]
fn routed_pod_reports_errors_of_own_packets() {
    errors_are_about_packets_to_the_pod(PTP);
}

#[test]
fn bridged_pod_reports_errors_of_own_packets() {
    errors_are_about_packets_to_the_pod(BRIDGE);
}

/// The kernel delivers an error about a packet with a segment routing header to the flow of its last segment
/// (`seg6_icmp_srh`).
fn errors_quote_no_extension_header(network: Network) {
    for (arguments, passes) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, network(&place), true, arguments);
        node.runtime.on_node(|| load_text(ERRORS));
        let (own, IpAddr::V6(segment)) = (node.addresses["web"], node.addresses["other"]) else {
            panic!("IPv6 addresses")
        };
        let datagram = udp_datagram(SocketAddr::new(gateway(true), 53), SocketAddr::new(own, 53), b"requests");
        // RFC 8754, section 2: next header UDP, 24 bytes, type 4, no segments left, the last entry is the first one.
        let routing = [&[17, 2, 4, 0, 0, 0, 0, 0][..], &segment.octets(), &datagram[40..]].concat();
        let options = [&[17, 0, 1, 4, 0, 0, 0, 0][..], &datagram[40..]].concat();
        for (number, payload) in [(43, routing), (60, options)] {
            let before = errors(&node);
            send(&node, &[unreachable_packet(own, gateway(true), &ip_packet(gateway(true), own, number, &payload))]);
            assert_eq!(errors(&node) > before, passes, "header {number}, {arguments:?}");
        }
        node.end();
    }
}

#[test]
fn routed_pod_quotes_no_extension_header() {
    errors_quote_no_extension_header(PTP);
}

#[test]
fn bridged_pod_quotes_no_extension_header() {
    errors_quote_no_extension_header(BRIDGE);
}

/// A node that decapsulates tunnels relays an error about a tunnel packet to the source of the inner packet, which the
/// pod has written. After IPv4 options the quoted ports are not at the offset that rules match.
fn errors_quote_no_tunnel(network: Network) {
    for (arguments, passes) in CHECKS {
        for v6 in [false, true] {
            let place = Place::new();
            let node = Node::start(&place, network(&place), v6, arguments);
            node.runtime.on_node(|| load_text(ERRORS));
            let (own, other, gateway) = (node.addresses["web"], node.addresses["other"], gateway(v6));
            let inside = udp_datagram(SocketAddr::new(other, 9), SocketAddr::new(own, 9), b"inside");
            let mut quotes: Vec<(String, Vec<u8>)> = [4, 41, 47]
                .map(|number| (format!("protocol {number}"), ip_packet(gateway, own, number, &inside)))
                .into();
            if !v6 {
                let plain = udp_datagram(SocketAddr::new(gateway, 9), SocketAddr::new(own, 9), b"requests");
                quotes.push(("options".into(), with_ipv4_options(&plain, &[1, 1, 1, 1])));
            }
            for (name, quoted) in quotes {
                let before = errors(&node);
                send(&node, &[unreachable_packet(own, gateway, &quoted)]);
                assert_eq!(errors(&node) > before, passes, "{name} of {own}, {arguments:?}");
            }
            node.end();
        }
    }
}

#[test]
fn routed_pod_quotes_no_tunnel() {
    errors_quote_no_tunnel(PTP);
}

#[test]
fn bridged_pod_quotes_no_tunnel() {
    errors_quote_no_tunnel(BRIDGE);
}

/// The kernel accepts an error about an echo reply without checking whether one was sent (`icmp_err`).
fn path_mtu_of_other_hosts_stays(network: Network) {
    for (arguments, is_lowered) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, network(&place), false, arguments);
        let own = node.addresses["web"];
        let echo = ip_packet(gateway(false), OUTSIDE.parse().unwrap(), 1, &[0, 0, 0xff, 0xfd, 0, 1, 0, 1]);
        let mut error = unreachable_packet(own, gateway(false), &echo);
        // RFC 1191: fragmentation needed, with an MTU of 600. The checksums are adjusted for the replaced bytes.
        let at = 20;
        error[at + 1] = 4;
        error[at + 6..at + 8].copy_from_slice(&600u16.to_be_bytes());
        error[at + 2..at + 4].copy_from_slice(&[0, 0]);
        let sum: u32 = error[at..].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let folded = !u16::try_from((sum & 0xffff) + (sum >> 16)).expect("one carry");
        error[at + 2..at + 4].copy_from_slice(&folded.to_be_bytes());
        send(&node, &[error]);
        let route = node.runtime.on_node(|| ip(&format!("route get {OUTSIDE}")));
        assert_eq!(route.contains("mtu 600"), is_lowered, "{arguments:?}: {route}");
        node.end();
    }
}

#[test]
fn routed_pod_lowers_no_path_mtu() {
    path_mtu_of_other_hosts_stays(PTP);
}

#[test]
fn bridged_pod_lowers_no_path_mtu() {
    path_mtu_of_other_hosts_stays(BRIDGE);
}

/// A fragment of an IPv6 packet: the next header of its fragment header, the offset, the more-fragments flag, its data,
/// and trailing bytes after the packet's length.
fn fragment(ends: [Ipv6Addr; 2], next: u8, offset: u16, more: bool, data: &[u8], behind: &[u8]) -> Vec<u8> {
    let place = (offset | u16::from(more)).to_be_bytes();
    let payload = [&[next, 0, place[0], place[1], 0, 0, 0, 7], data].concat();
    let mut packet = ip_packet(ends[0].into(), ends[1].into(), 44, &payload);
    packet[7] = 255;
    packet.extend(behind);
    packet
}

/// The bridge trims the bytes after the packet's length and reassembles the fragments, after the check.
#[test]
fn fragments_hide_no_advertisement_on_bridge() {
    for (arguments, believed) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, BRIDGE(&place), true, arguments);
        let [IpAddr::V6(own), IpAddr::V6(claimed), IpAddr::V6(to)] =
            ["web", "other", "db"].map(|name| node.addresses[name])
        else {
            panic!("IPv6 addresses")
        };
        let [web, db, other] = [&node.web, &node.db, &node.other].map(|pod| six(&hardware_address(pod)));
        let colons = |bytes: [u8; 6]| bytes.map(|b| format!("{b:02x}")).join(":");
        node.db.sandbox.run(|| ip(&format!("neighbour replace {claimed} lladdr {} dev eth0 nud stale", colons(other))));
        let rest = [&[0x60, 0, 0, 0][..], &claimed.octets(), &[2, 1], &web].concat();
        let whole = icmpv6_packet(own, to, 136, &rest);
        let (first, second) = whole[40..].split_at(8);
        let packets =
            [fragment([own, to], 58, 0, true, first, &own.octets()), fragment([own, to], 58, 8, false, second, &[])];
        node.web.sandbox.run(|| {
            for packet in &packets {
                send_frame("eth0", &[&db[..], &web, &[0x86, 0xdd], packet].concat());
            }
        });
        let known = node.db.sandbox.run(|| ip(&format!("neighbour show {claimed} dev eth0")));
        assert_eq!(known.contains(&colons(web)), believed, "{arguments:?}: {known}");
        node.end();
    }
}

/// After extension headers a fragment could hide its transport protocol.
#[test]
fn fragments_of_routed_pod_show_their_protocol() {
    for (arguments, hidden_pass) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, PTP(&place), true, arguments);
        node.runtime.on_node(|| load_text(ERRORS));
        let [IpAddr::V6(own), IpAddr::V6(other)] = ["web", "other"].map(|name| node.addresses[name]) else {
            panic!("IPv6 addresses")
        };
        let quoted = udp_datagram((GATEWAY6, 53).into(), (other, 53).into(), b"requests");
        let error = unreachable_packet(own.into(), GATEWAY6.into(), &quoted);
        // Destination options (RFC 8200, section 4.6) of 8 bytes, and the ICMPv6 header: the kernel drops a first
        // fragment without it.
        let (header, body) = error[40..].split_at(8);
        let first = [&[58, 0, 1, 4, 0, 0, 0, 0], header].concat();
        let ends = [own, GATEWAY6];
        let hidden = [fragment(ends, 60, 0, true, &first, &[]), fragment(ends, 60, 16, false, body, &[])];
        send(&node, &hidden);
        assert_eq!(errors(&node), u64::from(hidden_pass), "{arguments:?}");
        node.end();
    }
}

/// A header after an extension header is not at the offset that rules match.
fn extension_headers_leave_no_pod(network: Network) {
    const HEADERS: &str = "table inet seen {\nchain input {\ntype filter hook input priority filter + 10;\n\
                           udp dport 11 counter\n}\n}\n";
    for (arguments, passes) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, network(&place), true, arguments);
        node.runtime.on_node(|| load_text(HEADERS));
        let own = node.addresses["web"];
        let datagram = udp_datagram(SocketAddr::new(own, 40_000), SocketAddr::new(gateway(true), 11), b"hidden");
        let options = [17, 0, 1, 4, 0, 0, 0, 0];
        for number in [0, 60] {
            let before = errors(&node);
            send(&node, &[ip_packet(own, gateway(true), number, &[&options, &datagram[40..]].concat())]);
            assert_eq!(errors(&node) > before, passes, "header {number}, {arguments:?}");
        }
        node.end();
    }
}

#[test]
fn routed_pod_sends_no_extension_header() {
    extension_headers_leave_no_pod(PTP);
}

#[test]
fn bridged_pod_sends_no_extension_header() {
    extension_headers_leave_no_pod(BRIDGE);
}

/// Rules parse a packet up to its authentication header only, and conntrack parses on after it.
fn authentication_header_leaves_no_pod(network: Network) {
    const HEADERS: &str = "table inet seen {\nchain input {\ntype filter hook input priority filter + 10;\n\
                           meta l4proto 51 counter\n}\n}\n";
    for (arguments, passes) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, network(&place), true, arguments);
        node.runtime.on_node(|| load_text(HEADERS));
        let own = node.addresses["web"];
        // RFC 4302, section 2: next header UDP, 24 bytes, an SPI, a sequence number and an integrity check value.
        let datagram = udp_datagram(SocketAddr::new(own, 40_000), SocketAddr::new(gateway(true), 9), b"hidden");
        let header = [&[17, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1][..], &[0; 12]].concat();
        let options = [51, 0, 1, 4, 0, 0, 0, 0];
        send(
            &node,
            &[
                ip_packet(own, gateway(true), 51, &[&header, &datagram[40..]].concat()),
                ip_packet(own, gateway(true), 60, &[&options[..], &header, &datagram[40..]].concat()),
            ],
        );
        assert_eq!(errors(&node), if passes { 2 } else { 0 }, "{arguments:?}");
        node.end();
    }
}

#[test]
fn routed_pod_sends_no_authentication_header() {
    authentication_header_leaves_no_pod(PTP);
}

#[test]
fn bridged_pod_sends_no_authentication_header() {
    authentication_header_leaves_no_pod(BRIDGE);
}
