use std::net::IpAddr;

use kit::agent_process::until;
use kit::frame::{ip_packet, ipv4_packet, send_frame, udp_packet, with_ipv4_options};

use super::edge::{BRIDGE, CHECKS, GATEWAY4, GATEWAY6, Network, PTP, count_incoming, incoming, neighbour};
use super::forged::{Node, hardware_address};
use super::{Place, Pod};

/// The more-fragments bit in the first byte of the flags and the fragment offset.
const MORE_FRAGMENTS: u8 = 0x20;

/// A source route that has already visited the victim (RFC 791), and a second one, which the kernel refuses: it sends a
/// parameter problem along the first, without checking whether source routes are accepted.
fn refused_options(kind: u8, victim: [u8; 4]) -> Vec<u8> {
    [&[kind, 7, 8][..], &victim, &[1], &[kind, 3, 4, 1]].concat()
}

fn node_does_not_answer_along_ip_options(network: Network) {
    for (arguments, reflects) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, network(&place), false, arguments);
        let (IpAddr::V4(own), IpAddr::V4(victim)) = (node.addresses["web"], node.addresses["other"]) else {
            panic!("IPv4 addresses")
        };
        let (to, from) = (neighbour(&node.web, GATEWAY4.into()), hardware_address(&node.web));
        let plain = udp_packet(own.octets(), GATEWAY4.octets(), 9, b"reflected");
        node.other.sandbox.run(|| count_incoming("icmp type parameter-problem"));
        for kind in [131, 137] {
            let packet = with_ipv4_options(&plain, &refused_options(kind, victim.octets()));
            let frame = [&to[..], &from, &[0x08, 0], &packet].concat();
            node.web.sandbox.run(|| send_frame("eth0", &frame));
        }
        assert_eq!(node.other.sandbox.run(incoming) > 0, reflects, "{arguments:?}");
        node.end();
    }
}

/// A reassembling host answers when the other fragments do not arrive (RFC 792, time exceeded).
#[test]
fn node_reflects_no_fragment_of_routed_pod() {
    for (arguments, reflects) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, PTP(&place), false, arguments);
        let (IpAddr::V4(own), IpAddr::V4(victim)) = (node.addresses["web"], node.addresses["other"]) else {
            panic!("IPv4 addresses")
        };
        node.runtime.on_node(|| {
            for (file, value) in [("ipfrag_time", "1"), ("icmp_ratelimit", "0")] {
                std::fs::write(format!("/proc/sys/net/ipv4/{file}"), value).unwrap();
            }
        });
        let (to, from) = (neighbour(&node.web, GATEWAY4.into()), hardware_address(&node.web));
        for pod in [&node.web, &node.other] {
            pod.sandbox.run(|| count_incoming("icmp type time-exceeded"));
        }
        // The pod's own fragment is sent last, so its answer is the last one.
        for source in [victim, own] {
            let mut packet = udp_packet(source.octets(), GATEWAY4.octets(), 9, b"reflected");
            packet[6] = MORE_FRAGMENTS;
            let frame = [&to[..], &from, &[0x08, 0], &with_ipv4_options(&packet, &[])].concat();
            node.web.sandbox.run(|| send_frame("eth0", &frame));
        }
        let answered = |pod: &Pod| (pod.sandbox.run(incoming) > 0).then_some(());
        until("the pod's own fragment is answered", || answered(&node.web));
        if reflects {
            until("the forged one is answered", || answered(&node.other));
        }
        assert_eq!(node.other.sandbox.run(incoming) > 0, reflects, "{arguments:?}");
        node.end();
    }
}

/// Of two fragments with the same offset the first one wins: a pod could send it with another pod's source address.
#[test]
fn forged_fragment_joins_no_datagram_of_others() {
    const ROOM: usize = 24;
    for (arguments, joins) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, PTP(&place), false, arguments);
        let (IpAddr::V4(from), IpAddr::V4(to)) = (node.addresses["other"], node.addresses["db"]) else {
            panic!("IPv4 addresses")
        };
        let fragments = |letter: u8| {
            let whole = udp_packet(from.octets(), to.octets(), 9, &[letter; 40]);
            let part = |offset: usize, more: u8, data: &[u8]| {
                let mut fragment = ipv4_packet(from.octets(), to.octets(), 17, data);
                (fragment[6], fragment[7]) = (more, u8::try_from(offset / 8).expect("a small offset"));
                with_ipv4_options(&fragment, &[])
            };
            let (first, second) = whole[20..].split_at(ROOM);
            [part(0, MORE_FRAGMENTS, first), part(ROOM, 0, second)]
        };
        // The first payload byte after the two headers.
        let first_with = |letter: u8| {
            let condition = format!("ip saddr {from} ip frag-off & 0x1fff == 0 @nh,224,8 {letter:#x}");
            node.db.sandbox.run(|| count_incoming(&condition));
            for (pod, letter, count) in [(&node.web, b'E', 1), (&node.other, b'g', 2)] {
                let (to, from) = (neighbour(pod, GATEWAY4.into()), hardware_address(pod));
                pod.sandbox.run(|| {
                    for fragment in fragments(letter).iter().take(count) {
                        send_frame("eth0", &[&to[..], &from, &[0x08, 0], fragment].concat());
                    }
                });
            }
            node.db.sandbox.run(incoming) > 0
        };
        assert_eq!(first_with(b'E'), joins, "{arguments:?}");
        assert_eq!(first_with(b'g'), !joins, "{arguments:?}");
        node.end();
    }
}

/// A hop-by-hop option whose type requires an answer from a host that does not recognize it (RFC 8200, section 4.2).
pub(super) const UNKNOWN_OPTION: [u8; 8] = [59, 0, 0x9e, 4, 0, 0, 0, 0];

#[test]
fn node_does_not_answer_about_ipv6_options() {
    for (arguments, reflects) in CHECKS {
        let place = Place::new();
        let node = Node::start(&place, PTP(&place), true, arguments);
        let victim = node.addresses["other"];
        let (to, from) = (neighbour(&node.web, GATEWAY6.into()), hardware_address(&node.web));
        let packet = ip_packet(victim, GATEWAY6.into(), 0, &UNKNOWN_OPTION);
        let frame = [&to[..], &from, &[0x86, 0xdd], &packet].concat();
        node.other.sandbox.run(|| count_incoming("icmpv6 type parameter-problem"));
        node.web.sandbox.run(|| (0..5).for_each(|_| send_frame("eth0", &frame)));
        assert_eq!(node.other.sandbox.run(incoming) > 0, reflects, "{arguments:?}");
        node.end();
    }
}

#[test]
fn options_of_routed_pod_send_no_answer() {
    node_does_not_answer_along_ip_options(PTP);
}

#[test]
fn options_of_bridged_pod_send_no_answer() {
    node_does_not_answer_along_ip_options(BRIDGE);
}
