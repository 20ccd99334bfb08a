//! Headers that change after the check, in memory that a pod shares with the packets that it sends.

use std::net::{IpAddr, SocketAddr};

use kit::agent_process::until;
use kit::frame::{icmpv6_packet, ip_packet, udp_datagram, unreachable_packet};
use kit::kernel_table::load_text;
use tests::shared_memory::{Change, make_returning_tunnel, send_changing};

use super::Place;
use super::edge::{CHECKS, GATEWAY4, GATEWAY6, PTP, count_incoming, incoming, neighbour, six};
use super::forged::{Node, hardware_address};

/// How often each packet is sent in a round: without the copy a few of a hundred change, unless the thread that changes
/// them waits for a processor.
const SENT: usize = 2_000;
const ROUNDS: usize = 5;

/// A packet with two values of a field; later readers of the packet see the second.
struct Case {
    name: &'static str,
    packet: Vec<u8>,
    change: Change,
    /// Match of the second value in nft syntax.
    second: String,
}

fn case(name: &'static str, packets: [Vec<u8>; 2], at: usize, second: String) -> Case {
    let [packet, other] = packets;
    let values = [&packet, &other].map(|packet| packet[at..at + 8].try_into().expect("8 bytes"));
    let outside = |packet: &[u8]| [&packet[..at], &packet[at + 8..]].concat();
    assert_eq!(outside(&packet), outside(&other), "{name} changes at once");
    Case { name, packet, change: Change { at, values }, second }
}

/// Zeroes the checksum of the transport header, which no rule reads.
fn without_checksum(mut packet: Vec<u8>, at: usize) -> Vec<u8> {
    packet[at..at + 2].fill(0);
    packet
}

/// RFC 9293: a segment with these flags.
fn segment(from: IpAddr, to: IpAddr, flags: u8) -> Vec<u8> {
    let mut header = vec![0x9c, 0x40, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0];
    header.extend(b"from shared memory");
    ip_packet(from, to, 6, &header)
}

fn cases(own: IpAddr, other: IpAddr, to: IpAddr, gateway: IpAddr) -> Vec<Case> {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let (word, header) = if own.is_ipv4() { ("ip", 20) } else { ("ip6", 40) };
    let datagram = |from: IpAddr, port: u16| {
        let packet = udp_datagram(SocketAddr::new(from, 40_000), SocketAddr::new(to, port), b"from shared memory");
        without_checksum(packet, header + 6)
    };
    let quoted = |destination: IpAddr| {
        let quoted = udp_datagram(SocketAddr::new(gateway, 53), SocketAddr::new(destination, 53), b"requests");
        let quoted = without_checksum(quoted, header + 6);
        match (own, to) {
            (IpAddr::V6(own), IpAddr::V6(to)) => {
                without_checksum(icmpv6_packet(own, to, 1, &[&[0; 4], &quoted[..]].concat()), header + 2)
            }
            _ => {
                // Nothing verifies the checksum of the quoted header.
                let quoted = without_checksum(quoted, 10);
                without_checksum(unreachable_packet(own, to, &quoted), header + 2)
            }
        }
    };
    // Offsets of the 8-byte words that contain the fields. In IPv4 one word has the header checksum and the source.
    let source_at = if own.is_ipv4() { 8 } else { 16 };
    let quoted_at = header + 8 + if own.is_ipv4() { 16 } else { 32 };
    let to_end = if own.is_ipv4() { 32 } else { 128 };
    let of_quoted = match other {
        IpAddr::V4(other) => format!("{:#x}", u32::from(other)),
        IpAddr::V6(other) => format!("{:#x}", u128::from(other)),
    };
    let quoted_bits = if own.is_ipv4() { 192 } else { 256 };
    vec![
        case("source", [datagram(own, 9), datagram(other, 9)], source_at, format!("{word} saddr {other} udp dport 9")),
        case("port", [datagram(own, 9), datagram(own, 10)], header, "udp dport 10".into()),
        case(
            "flags",
            [segment(own, to, ACK), segment(own, to, SYN)],
            header + 12,
            format!("{word} saddr {own} tcp flags syn"),
        ),
        case(
            "quoted destination",
            [quoted(own), quoted(other)],
            quoted_at,
            format!("meta l4proto {{ icmp, icmpv6 }} @th,{quoted_bits},{to_end} {of_quoted}"),
        ),
    ]
}

/// A reader after the check, such as a policy, sees the delivered header. A rule that drops packets with the second
/// value stands in for policies.
fn headers_stay_behind_check(v6: bool) {
    for (arguments, change) in CHECKS {
        let place = Place::new();
        let plugins = [PTP(&place), place.ours(serde_json::json!({}))];
        let node = Node::start_with(&place, &plugins, &[], v6, arguments);
        let gateway: IpAddr = if v6 { GATEWAY6.into() } else { GATEWAY4.into() };
        let [own, other, to] = ["web", "other", "db"].map(|name| node.addresses[name]);
        let hardware = neighbour(&node.web, gateway);
        let from = six(&hardware_address(&node.web));
        let attached = place.attachments().into_iter().find(|attachment| attachment.pod == "web").unwrap();
        let interface = attached.host_interface.unwrap();
        let at_interface = !arguments.contains(&"prerouting");
        node.web.sandbox.run(make_returning_tunnel);
        for Case { name, packet, change: values, second } in cases(own, other, to, gateway) {
            let (table, hook) = match at_interface {
                true => ("netdev", format!("ingress device {interface} priority -490")),
                false => ("inet", "prerouting priority -440".to_owned()),
            };
            let judge = format!(
                "table {table} judge {{ }}\ndelete table {table} judge\n\
                 table {table} judge {{\nchain c {{\ntype filter hook {hook};\n{second} drop\n}}\n}}\n"
            );
            node.runtime.on_node(|| load_text(&judge));
            let send = || node.web.sandbox.run(|| send_changing(hardware, from, &packet, &values, SENT));
            let arrived = || node.db.sandbox.run(incoming);
            node.db.sandbox.run(|| count_incoming(&second));
            if change {
                until(&format!("the {name} changes behind the rule"), || {
                    send();
                    (arrived() > 0).then_some(())
                });
                continue;
            }
            (0..ROUNDS).for_each(|_| send());
            assert_eq!(arrived(), 0, "the {name} has changed behind the check, {arguments:?}");
            node.db.sandbox.run(|| count_incoming(""));
            until(&format!("a packet with the first {name} arrives"), || {
                send();
                (arrived() > 0).then_some(())
            });
        }
        node.end();
    }
}

#[test]
fn ipv4_headers_stay_behind_check() {
    headers_stay_behind_check(false);
}

#[test]
fn ipv6_headers_stay_behind_check() {
    headers_stay_behind_check(true);
}
