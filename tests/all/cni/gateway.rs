//! Packets over the gateway of a bridge, and from a host behind its uplink, to pods of the bridge.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::process::Command;

use kit::agent_process::until;
use kit::frame::{icmpv6_packet, ipv4_packet, send_frame, udp_datagram, with_ipv4_options};
use kit::kernel_table::counted;

use super::edge::{BRIDGE, GATEWAY4, GATEWAY6, count_incoming, incoming, ip, neighbour};
use super::forged::{Node, hardware_address, link_local};
use super::{Place, Pod};

/// Without the queries of the multicast router, a pod reports its groups once, and the bridge stops to forward them.
#[test]
fn queries_behind_uplink_reach_closed_pods() {
    let place = Place::new();
    let node = Node::start(&place, BRIDGE(&place), false, &[]);
    add_host_behind_uplink(&node);
    // RFC 2236, section 2: a general query. RFC 2113: the router alert.
    let query = ipv4_packet([10, 1, 0, 77], [224, 0, 0, 1], 2, &[0x11, 100, 0xee, 0x9b, 0, 0, 0, 0]);
    let alerted = with_ipv4_options(&query, &[0x94, 4, 0, 0]);
    for (name, pod, open) in [("web", &node.web, true), ("other", &node.other, false)] {
        for (packet, passes) in [(&alerted, true), (&query, open)] {
            let frame = [&[1, 0, 0x5e, 0, 0, 1], &[2, 0, 0, 0, 0, 0x77], &[0x08, 0][..], packet].concat();
            pod.sandbox.run(|| count_incoming("ip protocol igmp"));
            node.runtime.on_node(|| (0..5).for_each(|_| send_frame("host0", &frame)));
            assert_eq!(pod.sandbox.run(incoming) > 0, passes, "{name}, {} bytes", packet.len());
        }
    }
    node.end();
}

/// No service is reachable at a link-local address, and a socket that receives at one answers from a global address.
#[test]
fn gateway_leads_to_no_link_local_address() {
    let place = Place::new();
    let node = Node::start(&place, BRIDGE(&place), true, &[]);
    let IpAddr::V6(own) = node.addresses["db"] else { panic!("an IPv6 address") };
    let (to, from) = (neighbour(&node.db, GATEWAY6.into()), hardware_address(&node.db));
    let arrives = |receiver: &Pod, destination: IpAddr| {
        receiver.sandbox.run(|| count_incoming(&format!("ip6 saddr {own} udp dport 9")));
        let packet = udp_datagram(SocketAddr::new(own.into(), 40_000), SocketAddr::new(destination, 9), b"around");
        let frame = [&to[..], &from, &[0x86, 0xdd], &packet].concat();
        node.db.sandbox.run(|| send_frame("eth0", &frame));
        receiver.sandbox.run(incoming) > 0
    };
    assert!(arrives(&node.web, node.addresses["web"]), "the gateway leads to a pod that all may reach");
    for receiver in [&node.other, &node.web] {
        assert!(!arrives(receiver, link_local(receiver).into()));
    }
    node.end();
}

/// Gives the node a neighbour entry for an address at the pod's interface, as an advertisement does.
fn lead_to(node: &Node, address: impl Into<IpAddr>, pod: &Pod) {
    let address = address.into();
    let hardware: Vec<String> = hardware_address(pod).iter().map(|byte| format!("{byte:02x}")).collect();
    node.runtime.on_node(|| ip(&format!("neighbour replace {address} lladdr {} dev cni0", hardware.join(":"))));
}

/// Makes `host0` a host behind the uplink of the bridge, whose frames pass no pod interface's check.
pub(super) fn add_host_behind_uplink(node: &Node) {
    node.runtime.on_node(|| {
        for words in [
            "link add uplink0 type veth peer name host0",
            "link set uplink0 master cni0 up",
            "link set host0 addrgenmode none",
            "link set host0 up",
        ] {
            assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
        }
    });
}

/// A host behind the bridge's uplink sends to the gateway's hardware address.
#[test]
fn gateway_forwards_no_link_local_source_to_pod() {
    let place = Place::new();
    let node = Node::start(&place, BRIDGE(&place), true, &[]);
    let host: Ipv6Addr = "fe80::77".parse().unwrap();
    let to = neighbour(&node.db, GATEWAY6.into());
    add_host_behind_uplink(&node);
    let received = |pod: &Pod| pod.sandbox.run(incoming);
    for (pod, passes) in [(&node.web, true), (&node.other, false)] {
        let destination = link_local(pod);
        lead_to(&node, destination, pod);
        let packet = udp_datagram(SocketAddr::new(host.into(), 40_000), SocketAddr::new(destination.into(), 9), b"x");
        let frame = [&to[..], &[2, 0, 0, 0, 0, 0x77], &[0x86, 0xdd], &packet].concat();
        let from_host = format!("ip6 saddr {host}");
        if passes {
            pod.sandbox.run(|| count_incoming(&format!("{from_host} udp dport 9")));
            until("a datagram arrives", || {
                node.runtime.on_node(|| send_frame("host0", &frame));
                (received(pod) > 0).then_some(())
            });
        } else {
            pod.sandbox.run(|| count_incoming(&format!("{from_host} udp dport 9")));
            node.runtime.on_node(|| (0..20).for_each(|_| send_frame("host0", &frame)));
            assert_eq!(received(pod), 0);
            let bridge = node.runtime.on_node(|| nix::net::if_::if_nametoindex("cni0").unwrap());
            pod.sandbox.run(|| count_incoming("udp dport 9"));
            node.runtime.on_node(|| {
                let address = SocketAddrV6::new(destination, 9, 0, bridge);
                UdpSocket::bind("[::]:0").unwrap().send_to(b"hello", address).unwrap();
            });
            assert_eq!(received(pod), 0, "from the node: no answer could leave the pod");
            let denied = node.runtime.on_node(|| counted("chain inet ringfence deny/destination"));
            assert!(denied >= 20, "{denied}");
        }
    }
    node.end();
}

/// A pod adds a link-local address that the CNI plugin has not seen. What the node itself sends there is not for a
/// service of the pod either.
#[test]
fn gateway_leads_to_no_added_link_local_address() {
    let place = Place::new();
    let node = Node::start(&place, BRIDGE(&place), true, &[]);
    let [host, added] = ["fe80::77", "fe80::bad"].map(|address| address.parse::<Ipv6Addr>().unwrap());
    let gateway = neighbour(&node.db, GATEWAY6.into());
    add_host_behind_uplink(&node);
    let bridge = node.runtime.on_node(|| nix::net::if_::if_nametoindex("cni0").unwrap());
    for (name, pod, passes) in [("web", &node.web, true), ("other", &node.other, false)] {
        pod.sandbox.run(|| ip(&format!("address add {added}/64 dev eth0 nodad")));
        lead_to(&node, added, pod);
        let arrives = |send: &(dyn Fn() + Sync)| {
            pod.sandbox.run(|| count_incoming("udp dport 9"));
            node.runtime.on_node(|| (0..20).for_each(|_| send()));
            pod.sandbox.run(incoming) > 0
        };
        let packet = udp_datagram(SocketAddr::new(host.into(), 40_000), SocketAddr::new(added.into(), 9), b"x");
        let frame = [&gateway[..], &[2, 0, 0, 0, 0, 0x77], &[0x86, 0xdd], &packet].concat();
        assert_eq!(arrives(&|| send_frame("host0", &frame)), passes, "{name}, over the gateway");
        let socket_address = SocketAddrV6::new(added, 9, 0, bridge);
        let from_node = || drop(UdpSocket::bind("[::]:0").unwrap().send_to(b"hello", socket_address));
        assert_eq!(arrives(&from_node), passes, "{name}, from the node");
    }
    node.end();
}

/// A host behind the bridge's uplink has the pods configure addresses, and the node forward packets there.
#[test]
fn gateway_leads_to_no_autoconfigured_address() {
    const HOST: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
    let place = Place::new();
    let node = Node::start(&place, BRIDGE(&place), true, &[]);
    add_host_behind_uplink(&node);
    let gateway = neighbour(&node.db, GATEWAY6.into());
    let send_from_host = |to: &[u8], packet: &[u8]| {
        let frame = [to, &HOST, &[0x86, 0xdd], packet].concat();
        node.runtime.on_node(|| send_frame("host0", &frame));
    };
    // RFC 4861, sections 4.2 and 4.6.2: a router lifetime of half an hour, and the pods' prefix for autoconfiguration.
    let mut advertisement = vec![64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0];
    advertisement.extend([3, 4, 64, 0xc0, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0]);
    advertisement.extend(Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0).octets());
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    let router: Ipv6Addr = "fe80::77".parse().unwrap();
    let advertisement = icmpv6_packet(router, all_nodes, 134, &advertisement);
    for (name, pod, arrives) in [("web", &node.web, true), ("other", &node.other, false)] {
        let own = node.addresses[name];
        let configured = until("the pod configures an address", || {
            send_from_host(&[0x33, 0x33, 0, 0, 0, 1], &advertisement);
            let shown = pod.sandbox.run(|| ip("-6 -o address show dev eth0 scope global"));
            let words = shown.split_whitespace().filter_map(|word| word.split('/').next());
            words.filter_map(|word| word.parse::<Ipv6Addr>().ok()).find(|address| IpAddr::from(*address) != own)
        });
        let hardware = hardware_address(pod);
        let link_address = [&[0; 4][..], &GATEWAY6.octets(), &[1, 1], &hardware].concat();
        send_from_host(&gateway, &icmpv6_packet(configured, GATEWAY6, 135, &link_address));
        let source = SocketAddr::new(Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0x99).into(), 40_000);
        let packet = udp_datagram(source, SocketAddr::new(configured.into(), 9), b"around");
        pod.sandbox.run(|| count_incoming("udp dport 9"));
        (0..20).for_each(|_| send_from_host(&gateway, &packet));
        assert_eq!(pod.sandbox.run(incoming) > 0, arrives, "{name}");
    }
    node.end();
}

/// Conntrack tracks no discovery, and rules accept it: a packet of such a type that a router may have forwarded is none.
#[test]
fn closed_pod_receives_no_forwarded_discovery() {
    const HOST: [u8; 6] = [2, 0, 0, 0, 0, 0x77];
    let place = Place::new();
    let node = Node::start(&place, BRIDGE(&place), true, &[]);
    add_host_behind_uplink(&node);
    let gateway = neighbour(&node.db, GATEWAY6.into());
    let configured = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 0xdead);
    let [on_net, on_link] = ["fd00:1::99", "fe80::77"].map(|address| address.parse::<Ipv6Addr>().unwrap());
    for (name, pod, passes) in [("web", &node.web, true), ("other", &node.other, false)] {
        let (hardware, local) = (hardware_address(pod), link_local(pod));
        for address in [configured, local] {
            lead_to(&node, address, pod);
        }
        let arrives = |source: Ipv6Addr, destination: Ipv6Addr, to: &[u8], kind: u8, hop_limit: u8| {
            let mut packet = icmpv6_packet(source, destination, kind, &[&[0; 4][..], &destination.octets()].concat());
            packet[7] = hop_limit;
            let frame = [to, &HOST, &[0x86, 0xdd], &packet].concat();
            pod.sandbox.run(|| count_incoming(&format!("ip6 saddr {source} icmpv6 type {kind}")));
            node.runtime.on_node(|| (0..5).for_each(|_| send_frame("host0", &frame)));
            pod.sandbox.run(incoming) > 0
        };
        for kind in (130..=136).chain([143]) {
            for hop_limit in [2, 64, 255] {
                for (source, destination) in [(on_net, configured), (on_link, local)] {
                    let arrived = arrives(source, destination, &gateway, kind, hop_limit);
                    assert_eq!(arrived, passes, "{name} at {destination}, type {kind}, {hop_limit}, over the gateway");
                    let is_discovery = (133..=136).contains(&kind) && hop_limit == 255;
                    let arrived = arrives(source, destination, &hardware, kind, hop_limit);
                    assert_eq!(arrived, passes || is_discovery, "{name} at {destination}, type {kind}, {hop_limit}");
                }
                assert!(!arrives(on_net, local, &gateway, kind, hop_limit), "{name}, type {kind}, {hop_limit}");
            }
        }
    }
    node.end();
}

/// A neighbour entry leads to an address that the pod may have configured itself, and the node forwards broadcasts.
#[test]
fn gateway_leads_to_own_ipv4_addresses_only() {
    let place = Place::new();
    let node = Node::start(&place, BRIDGE(&place), false, &[]);
    let IpAddr::V4(from) = node.addresses["db"] else { panic!("an IPv4 address") };
    let (gateway, hardware) = (neighbour(&node.db, GATEWAY4.into()), hardware_address(&node.db));
    let configured = Ipv4Addr::new(10, 1, 0, 77);
    for (name, pod, arrives) in [("web", &node.web, true), ("other", &node.other, false)] {
        let IpAddr::V4(own) = node.addresses[name] else { panic!("an IPv4 address") };
        lead_to(&node, configured, pod);
        node.runtime.on_node(|| {
            for interface in ["all", "cni0"] {
                std::fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/bc_forwarding"), "1").unwrap();
            }
        });
        for destination in [configured, Ipv4Addr::new(10, 1, 255, 255)] {
            let packet = udp_datagram((from, 40_000).into(), (destination, 9).into(), b"around");
            let frame = [&gateway[..], &hardware, &[0x08, 0], &packet].concat();
            pod.sandbox.run(|| count_incoming("udp dport 9"));
            node.db.sandbox.run(|| (0..20).for_each(|_| send_frame("eth0", &frame)));
            assert_eq!(pod.sandbox.run(incoming) > 0, arrives, "{name} at {destination}");
        }
        pod.sandbox.run(|| count_incoming("udp dport 9"));
        node.runtime.on_node(|| UdpSocket::bind("0.0.0.0:0").unwrap().send_to(b"hello", (own, 9)).unwrap());
        assert_eq!(pod.sandbox.run(incoming), 1, "from the node to {name}");
    }
    node.end();
}
