//! Tunnels: pods must not send to the tunnel endpoints of nodes.
//!
//! A node decapsulates a pod's tunnel packet outside of the pod's interface, and the inner source may be forged. So
//! packets from this node's pods to a tunnel endpoint of a node are denied, in either direction of their flow. A flow
//! that could have such packets is never approved, so each of its packets is judged, while established flows pay
//! nothing.
//!
//! Pods are matched by their addresses here; the source check keeps them from using others.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use nft::{
    Action, Chain, Comment, Datum, Element, Family, Field, Hook, Key, KeyType, Match, Name, Protocol, Rule, Ruleset,
    Set, State, Verdict,
};

use super::Direction;
use super::dispatch::{SOURCE_ROUTE, has_options};
use super::layout::{Layout, address_type, fixed};
use super::reporting::{Cause, add_deny_chain, denied_for};
use super::roles::SetRole;
use crate::Block;
use crate::peers::block_ranges;

pub(super) const INPUT: &str = "input";
/// Packets to tunnels that this node forwards.
pub(super) const FORWARDED: &str = "tunnel/forwarded";
/// Packets of protocols other than TCP and UDP that this node forwards.
pub(super) const WRAPPED: &str = "tunnel/wrapped";
/// Packets to tunnels of this node.
pub(super) const OWN_NODE: &str = "tunnel/own-node";
pub(super) const PORTS: &str = "tunnel-ports";

/// UDP ports at which nodes terminate tunnels: VXLAN as registered (4789), with GPE (4790) and the original Linux port
/// (8472, used by flannel), Geneve (6081), Weave Net (6783 and 6784), flannel's udp backend (8285).
pub const TUNNEL_PORTS: [u16; 7] = [4789, 4790, 6081, 6783, 6784, 8285, 8472];
/// Encapsulating protocols: IPv4 and IPv6 in IP (RFC 2003, 4213), GRE (RFC 2784), L2TPv3 and MPLS in IP (RFC 3931,
/// 4023), and the authentication header (RFC 4302), which nftables takes for the upper-layer protocol of an IPv6
/// packet. An L2TPv3 session accepts frames from any sender that knows its number (`l2tp_ip_recv`).
const WRAPPERS: [u8; 6] = [4, 41, 47, AUTHENTICATION, 115, 137];
pub(super) const AUTHENTICATION: u8 = 51;

fn nodes(family: Family) -> Name {
    SetRole::Nodes(family).name()
}

/// The addresses of this node's pods, each paired with itself.
pub(super) fn own_pods(family: Family) -> Name {
    SetRole::OwnPods(family).name()
}

/// Adds everything that does not depend on the nodes. The chain at the input hook is present even if it is empty: base
/// chains are never added or removed later.
pub(super) fn add(ruleset: &mut Ruleset, layout: &Layout, families: &BTreeSet<Family>) {
    if !layout.checks_sources() {
        return;
    }
    let mut at_input = vec![];
    if !families.is_empty() {
        let mut ports = Set::of(&[KeyType::InetService]);
        ports.comment = Some(Comment::new("UDP ports at which nodes receive tunnels"));
        let numbers = TUNNEL_PORTS.iter().chain(layout.tunnel_ports());
        ports.elements = numbers.map(|port| (Key::One(Datum::Port(*port)), Element::default())).collect();
        ruleset.sets.insert(fixed(PORTS), Arc::new(ports));
        add_deny_chain(ruleset, layout, Cause::Tunnel);
        let of_pods = families.iter().map(|&family| deny(family, vec![]));
        let own_node = std::iter::once(deny_translated(vec![])).chain(of_pods).collect();
        ruleset.chains.insert(fixed(OWN_NODE), Arc::new(Chain { hook: None, rules: own_node }));
        let wrapped = rules_of_wrappers(Verdict::Goto(fixed(FORWARDED)));
        ruleset.chains.insert(fixed(WRAPPED), Arc::new(Chain { hook: None, rules: wrapped }));
        let own_node = Verdict::Jump(fixed(OWN_NODE));
        if families.contains(&Family::V4) {
            at_input.push(options_of_own_pods());
        }
        at_input.extend(to_tunnel_port(ruleset, own_node.clone()));
        at_input.extend(rules_of_wrappers(own_node));
        place_nodes(ruleset, layout, None);
    }
    ruleset.chains.insert(fixed(INPUT), Arc::new(Chain { hook: Some(Hook::Input), rules: at_input }));
}

/// Updates the addresses of nodes. While none of a family is known, any address of that family counts as a node's.
pub(super) fn place_nodes(ruleset: &mut Ruleset, layout: &Layout, ranges: Option<&[IpNet]>) {
    if !ruleset.sets.contains_key(&fixed(PORTS)) {
        return;
    }
    let present = |family: &Family| ruleset.sets.contains_key(&own_pods(*family));
    let families: Vec<Family> = Family::BOTH.into_iter().filter(present).collect();
    let known = |family: Family| {
        let Some(ranges) = ranges else { return vec![] };
        let all = ranges.iter().chain(layout.node_ranges()).copied();
        let of_family: Vec<IpNet> = all.filter(|range| Family::of(range.addr()) == family).collect();
        if of_family.is_empty() {
            return vec![];
        }
        let shared = shared_ranges(family, &of_family, layout.own_subnets());
        let all = of_family.iter().chain(&shared);
        let blocks: BTreeSet<Block> = all.map(|range| Block { cidr: range.trunc(), except: vec![] }).collect();
        block_ranges(&blocks, family)
    };
    let mut rules = Vec::new();
    for family in families {
        let ranges = known(family);
        if ranges.is_empty() {
            ruleset.sets.remove(&nodes(family));
            rules.push(deny_translated(vec![Match::Family(family)]));
            rules.push(deny(family, vec![]));
            continue;
        }
        let mut set = Set { interval: true, ..Set::of(&[address_type(family)]) };
        set.comment = Some(Comment::new("addresses and pod ranges of nodes"));
        let elements = ranges.into_iter().map(|(first, last)| (Key::Range(first, last), Element::default()));
        set.elements = elements.collect();
        ruleset.sets.insert(nodes(family), Arc::new(set));
        let to_node = Match::InSet { fields: vec![Field::Destination(family)], set: nodes(family) };
        rules.push(deny_translated(vec![to_node.clone()]));
        rules.push(deny(family, vec![to_node]));
    }
    ruleset.chains.insert(fixed(FORWARDED), Arc::new(Chain { hook: None, rules }));
}

/// The node's reply to a packet with a source route follows that route back (`ip_options_echo`), also to a pod.
fn options_of_own_pods() -> Rule {
    let to_source_route = Verdict::Jump(fixed(SOURCE_ROUTE));
    Rule::new(vec![has_options(), from_own_pod(Family::V4)], vec![Action::Verdict(to_source_route)])
        .commented("replies of the node reverse the source route")
}

/// Addresses that several nodes receive at: multicast, broadcast, link-local addresses, and the subnet-router anycast
/// addresses (RFC 4291, section 2.6.1) of the nodes' /64 subnets. For this node's own subnets the prefix length is
/// known.
fn shared_ranges(family: Family, of_nodes: &[IpNet], own_subnets: &[IpNet]) -> Vec<IpNet> {
    let mut shared: Vec<IpNet> = match family {
        // Multicast, reserved addresses and the limited broadcast address.
        Family::V4 => vec![net(Ipv4Addr::new(224, 0, 0, 0), 3)],
        Family::V6 => {
            let of_subnet = |node: &IpNet| net(node.addr(), 64).network().into();
            let link_local = net(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10);
            let multicast = net(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8);
            [link_local, multicast].into_iter().chain(of_nodes.iter().map(of_subnet)).collect()
        }
    };
    for subnet in own_subnets.iter().filter(|subnet| Family::of(subnet.addr()) == family) {
        shared.push(subnet.network().into());
        if family == Family::V4 {
            shared.push(subnet.broadcast().into());
        }
    }
    shared
}

fn net(address: impl Into<IpAddr>, length: u8) -> IpNet {
    IpNet::new_assert(address.into(), length)
}

/// Matches packets whose source is a pod of this node.
fn from_own_pod(family: Family) -> Match {
    let source = Field::Source(family);
    Match::InSet { fields: vec![source, source], set: own_pods(family) }
}

/// Denies packets from this node's pods to this destination.
fn deny(family: Family, there: Vec<Match>) -> Rule {
    let matches = std::iter::once(from_own_pod(family)).chain(there).collect();
    Rule::new(matches, denied_for(Cause::Tunnel)).commented("packets inside a tunnel can have any source address")
}

/// Also denies translated destinations such as a Service's, from whichever pod or host: the translating node may be
/// another than the pod's, and may replace the source.
fn deny_translated(there: Vec<Match>) -> Rule {
    let conditions = [Match::DestinationTranslated, Match::Direction(nft::ConntrackDirection::Original)];
    let matches = there.into_iter().chain(conditions).collect();
    Rule::new(matches, denied_for(Cause::Tunnel)).commented("no Service leads to a node's tunnel")
}

fn rules_of_wrappers(verdict: Verdict) -> Vec<Rule> {
    WRAPPERS.map(|number| Rule::new(vec![Match::IpProtocol(number)], vec![Action::Verdict(verdict.clone())])).into()
}

/// A rule for UDP packets to one of the tunnel ports; `None` if sources are not checked.
fn to_tunnel_port(ruleset: &Ruleset, verdict: Verdict) -> Option<Rule> {
    over_udp(ruleset, Match::DestinationPort, Field::DestinationPort, verdict)
}

/// A rule for UDP with a tunnel port in the field. `in_range` matches the field with the first and the last port: a
/// range check is cheaper than a set lookup, and most ports are outside of the range.
fn over_udp(
    ruleset: &Ruleset,
    in_range: impl FnOnce(u16, u16) -> Match,
    field: Field,
    verdict: Verdict,
) -> Option<Rule> {
    let ports = &ruleset.sets.get(&fixed(PORTS))?.elements;
    let numbers =
        || ports.keys().filter_map(|key| if let Key::One(Datum::Port(port)) = key { Some(port) } else { None });
    let in_range = in_range(numbers().min()?, numbers().max()?);
    let in_set = Match::InSet { fields: vec![field], set: fixed(PORTS) };
    Some(Rule::new(vec![Match::Protocol(Protocol::Udp), in_range, in_set], vec![Action::Verdict(verdict)]))
}

/// The rules of the forward hook for packets of flows that are not approved; empty if sources are not checked. Almost
/// every packet is TCP or UDP and is not compared with the encapsulating protocols.
pub(super) fn forward_rules(ruleset: &Ruleset) -> Vec<Rule> {
    let Some(over_udp) = to_tunnel_port(ruleset, Verdict::Jump(fixed(FORWARDED))) else {
        return vec![];
    };
    let neither_tcp_nor_udp = [Protocol::Tcp, Protocol::Udp].map(Match::NotProtocol).into();
    vec![Rule::new(neither_tcp_nor_udp, vec![Action::Verdict(Verdict::Jump(fixed(WRAPPED)))]), over_udp]
}

/// Rules for flows that are accepted without an approval.
pub(super) struct UnapprovedRules {
    pub(super) over_udp: Rule,
    /// For protocols other than TCP and UDP.
    pub(super) others: Vec<Rule>,
}

/// Accepts without an approval the flows that could have packets from a pod to a tunnel of a node, so that each of
/// their packets is judged; `None` if sources are not checked. The ports are those of the connection tracking entry, so
/// packets of both directions are treated alike.
///
/// The pod whose program of the direction allows the flow is its source (egress) or its destination (ingress), and
/// sends to the port of the other end. Packets from the other end go to the pod, which is not a node.
pub(super) fn unapproved_rules(ruleset: &Ruleset, direction: Direction) -> Option<UnapprovedRules> {
    let over_udp = match direction {
        Direction::Egress => over_udp(ruleset, Match::FlowPort, Field::FlowPort, Verdict::Accept)?,
        Direction::Ingress => over_udp(ruleset, Match::FlowSourcePort, Field::FlowSourcePort, Verdict::Accept)?,
    };
    let others = [vec![error_rule()], rules_of_wrappers(Verdict::Accept)].concat();
    Some(UnapprovedRules { over_udp, others })
}

/// Accepts without an approval packets for which rules see another protocol than that of their flow, and so no port
/// that the flow has: a cluster policy may deny this port. Only needed where [`unapproved_rules`] has no rules.
pub(super) fn rules_of_hidden_protocols() -> Vec<Rule> {
    let authenticated = Rule::new(vec![Match::IpProtocol(AUTHENTICATION)], vec![Action::Verdict(Verdict::Accept)]);
    vec![error_rule(), authenticated]
}

/// An ICMP error is a packet of the flow that it quotes.
fn error_rule() -> Rule {
    Rule::new(vec![Match::State(vec![State::Related])], vec![Action::Verdict(Verdict::Accept)])
}

#[cfg(test)]
mod tests {
    use nft::{Flow, Hook, Packet, Stop, evaluate, evaluate_at};
    use serde_json::json;

    use super::*;
    use crate::{Change, ClusterState, Kind, lower, translate};

    const UDP: u8 = 17;

    /// The rules for a pod in a cluster with another node.
    fn ruleset() -> Ruleset {
        ruleset_with(&[])
    }

    fn ruleset_with(policies: &[serde_json::Value]) -> Ruleset {
        let mut state = ClusterState::new();
        let pod = json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"nodeName": "node-a"},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]},
        });
        let addresses = ["192.0.2.7", "2001:db8:7::7"].map(|ip| json!({"type": "InternalIP", "address": ip}));
        let node = json!({"metadata": {"name": "node-b"}, "status": {"addresses": addresses}});
        for (kind, object) in [(Kind::Pod, pod), (Kind::Node, node)] {
            state.apply(Change::Set(lower(kind, &object).unwrap()));
        }
        for policy in policies {
            state.apply(Change::Set(lower(Kind::NetworkPolicy, policy).unwrap()));
        }
        let own_subnets = ["192.0.2.6/25", "2001:db8:6::6/80"].map(|subnet| subnet.parse().unwrap());
        let layout = Layout::for_table("ringfence").unwrap().in_subnets(own_subnets.into());
        translate(&state, "node-a", &layout).ruleset.in_first_generation()
    }

    #[test]
    fn tunnel_traffic_to_node_addresses_is_dropped() {
        let ruleset = ruleset();
        let of_nodes = [
            "192.0.2.7",
            "192.0.2.127",
            "192.0.2.0",
            "224.0.0.1",
            "255.255.255.255",
            "2001:db8:7::7",
            "2001:db8:7::",
            "2001:db8:6::",
            "ff02::1",
        ];
        let of_others = ["192.0.2.8", "192.0.2.255", "2001:db8:7::8", "2001:db8:8::"];
        let passes = |to: &str, port| {
            let to: IpAddr = to.parse().unwrap();
            let from = if to.is_ipv4() { "10.0.0.1" } else { "fd00::1" };
            let packet = Packet::first(from.parse().unwrap(), to, UDP, Some(port));
            evaluate(&ruleset, &packet).stop == Stop::Accepted
        };
        for to in of_nodes {
            assert!(!passes(to, 4789), "{to}");
            assert!(passes(to, 53), "{to}");
        }
        for to in of_others {
            assert!(passes(to, 4789), "{to}");
        }
    }

    #[test]
    fn no_direction_approves_flow_of_tunnel_port() {
        let ruleset = ruleset_with(&[json!({
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": "all"},
            "spec": {"podSelector": {}, "ingress": [{}], "egress": [{}], "policyTypes": ["Ingress", "Egress"]},
        })]);
        let (pod, peer) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([198, 51, 100, 1]));
        let to_peer = Packet::first(pod, peer, UDP, Some(8472));
        let from_peer = from_port(Packet::first(peer, pod, UDP, Some(53)), 8472);
        for first in [to_peer, from_peer] {
            for packet in [first.clone(), first.reply(0)] {
                let evaluation = evaluate(&ruleset, &packet);
                assert_eq!((evaluation.stop, evaluation.mark), (Stop::Accepted, 0), "{packet:?}");
            }
        }
    }

    #[test]
    fn no_service_leads_to_tunnel_of_node() {
        let ruleset = ruleset();
        let (host, node) = (IpAddr::from([198, 51, 100, 1]), IpAddr::from([192, 0, 2, 7]));
        for (destination, port, hook, stop) in [
            (node, 8472, Hook::Forward, Stop::Dropped),
            (node, 8472, Hook::Input, Stop::Dropped),
            (node, 53, Hook::Forward, Stop::Accepted),
            (node, 53, Hook::Input, Stop::Accepted),
            (host, 8472, Hook::Forward, Stop::Accepted),
        ] {
            let direct = Packet::first(IpAddr::from([203, 0, 113, 1]), destination, UDP, Some(port));
            assert_eq!(evaluate_at(&ruleset, &direct, hook).stop, Stop::Accepted, "{direct:?}");
            let translated = translated(direct);
            assert_eq!(evaluate_at(&ruleset, &translated, hook).stop, stop, "{translated:?}");
            assert_eq!(evaluate_at(&ruleset, &translated.reply(0), hook).stop, Stop::Accepted);
        }
    }

    fn from_port(packet: Packet, port: u16) -> Packet {
        let flow = packet.flow.clone().map(|flow| Flow { source_port: Some(port), ..flow });
        Packet { source_port: Some(port), flow, ..packet }
    }

    fn translated(packet: Packet) -> Packet {
        let flow = packet.flow.clone().map(|flow| Flow { destination_translated: true, ..flow });
        Packet { flow, ..packet }
    }
}
