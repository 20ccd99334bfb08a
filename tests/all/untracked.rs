//! Packets that conntrack does not track do not bypass the policies.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::os::fd::AsRawFd;

use kit::kernel_table::counted;
use kit::lab::{Lab, LabSpec, NodeSpec, PodSpec};
use kit::oracle::World;
use nfnetlink::Kernel;
use nft::{Packet, Ruleset, State, Stop, create, evaluate};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn6, sendto, setsockopt, socket, sockopt,
};
use policy::{Layout, translate};
use serde_json::json;
use tests::objects::state_of;

const A: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 2);
const B: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 0, 0, 0, 0, 0, 3);

/// Types that conntrack leaves untracked (`noct_valid_new` of `nf_conntrack_proto_icmpv6.c`).
const DISCOVERY: [u8; 8] = [130, 131, 132, 133, 134, 135, 136, 143];

/// Two pods of one node that may neither send nor receive anything.
fn closed_pods() -> Ruleset {
    let pod = |name: &str, address: Ipv6Addr| {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"nodeName": "node-a", "containers": []},
            "status": {"podIPs": [{"ip": address.to_string()}]}
        }))
        .unwrap()
    };
    let deny_all = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "deny-all", "namespace": "shop"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    });
    let world = World {
        namespaces: vec![],
        pods: vec![pod("a", A), pod("b", B)],
        policies: vec![deny_all],
        ..World::default()
    };
    translate(&state_of(&world), "node-a", &Layout::for_table("ringfence").unwrap()).ruleset.in_first_generation()
}

#[test]
fn discovery_passes_on_its_link_and_nowhere_else() {
    let ruleset = closed_pods();
    let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
    for icmpv6_type in DISCOVERY {
        let verdict = |destination: Ipv6Addr, hop_limit: u8| {
            let first = Packet::first(A.into(), destination.into(), 58, None);
            let stray =
                Packet { icmpv6_type: Some(icmpv6_type), hop_limit, state: State::Untracked, flow: None, ..first };
            evaluate(&ruleset, &stray).stop
        };
        assert_eq!(verdict(B, 254), Stop::Dropped, "type {icmpv6_type}, passed on by a router");
        assert_eq!(verdict(B, 255), Stop::Accepted, "type {icmpv6_type}, on the link");
        assert_eq!(verdict(all_nodes, 1), Stop::Accepted, "type {icmpv6_type}, to the link's multicast");
    }
    let echo = Packet { state: State::Untracked, flow: None, ..Packet::first(A.into(), B.into(), 58, None) };
    assert_eq!(evaluate(&ruleset, &echo).stop, Stop::Dropped);
}

#[test]
fn icmp_errors_pass_only_with_approved_flows() {
    let ruleset = closed_pods();
    let approved = Layout::for_table("ringfence").unwrap().first_generation();
    for (mark, expected) in [(approved.mark(), Stop::Accepted), (approved.next().mark(), Stop::Dropped)] {
        let quoted = Packet::first(A.into(), B.into(), 17, Some(53)).reply(mark);
        let error = Packet { protocol: 58, state: State::Related, ..quoted };
        assert_eq!(evaluate(&ruleset, &error).stop, expected, "an error that quotes a flow with mark {mark:#x}");
    }
}

#[test]
fn kernel_drops_routed_discovery_between_isolated_pods() {
    let pod = |name: &str, address: Ipv6Addr| PodSpec { name: name.into(), addresses: vec![address.into()] };
    let node = NodeSpec { name: "node-a".into(), pods: vec![pod("a", A), pod("b", B)], ..NodeSpec::default() };
    let lab = Lab::new(&LabSpec { nodes: vec![node], outside: vec![] });
    lab.node_exec("node-a", || {
        let mut kernel = Kernel::open().unwrap();
        let generation = kernel.generation().unwrap();
        kernel.commit(&create(&closed_pods()), generation).unwrap();
    });
    lab.in_namespace_of(A.into(), || {
        let raw = socket(AddressFamily::Inet6, SockType::Raw, SockFlag::empty(), SockProtocol::IcmpV6).unwrap();
        setsockopt(&raw, sockopt::Ipv6Ttl, &255).unwrap();
        let to = SockaddrIn6::from(SocketAddrV6::new(B, 0, 0, 0));
        for icmpv6_type in DISCOVERY {
            // Type, code, checksum (filled in by the kernel), and an arbitrary payload.
            let mut message = vec![icmpv6_type, 0, 0, 0];
            message.extend([0x5a; 64]);
            sendto(raw.as_raw_fd(), &message, &to, MsgFlags::empty()).unwrap();
        }
    });
    let dropped = lab.node_exec("node-a", || counted("chain inet ringfence deny/stray"));
    assert_eq!(dropped, DISCOVERY.len() as u64);
}
