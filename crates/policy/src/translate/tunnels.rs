//! Tunnels: a pod does not send to where a node takes tunnels in.
//!
//! What a pod wraps into a tunnel comes out at a node with any source it likes, and from no pod's interface. So a packet
//! of this node's pods to a tunnel of a node is denied, whichever direction of its flow it belongs to. A flow that could
//! have such packets is never approved, so that each of its packets is judged, and established flows pay nothing.
//!
//! Pods are known by their addresses here: the check of sources keeps them from using others.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use nft::{
    Action, Chain, Comment, Datum, Element, Family, Field, Hook, Key, KeyType, Match, Name, Protocol, Rule, Ruleset,
    Set, State, Verdict,
};

use super::layout::{Layout, address_type, fixed};
use super::reporting::{Cause, add_deny_chain, denied_for};
use crate::Block;
use crate::peers::block_ranges;

pub(super) const INPUT: &str = "input";
/// Packets to tunnels that this node forwards.
const FORWARDED: &str = "tunnel/forwarded";
/// Packets to tunnels of this node.
const OWN_NODE: &str = "tunnel/own-node";
const PORTS: &str = "tunnel-ports";

/// Where nodes take tunnels in over UDP: VXLAN as registered (4789), with GPE (4790) and as Linux began it (8472, which
/// flannel uses), Geneve (6081), Weave Net (6784), flannel's udp backend (8285).
pub const TUNNEL_PORTS: [u16; 6] = [4789, 4790, 6081, 6784, 8285, 8472];
/// Protocols that wrap packets: IPv4 and IPv6 in IP (RFC 2003, 4213), GRE (RFC 2784), and the authentication header
/// (RFC 4302), which for rules is the protocol of an IPv6 packet whatever follows it.
const WRAPPERS: [u8; 4] = [4, 41, 47, 51];

fn nodes(family: Family) -> Name {
    fixed(match family {
        Family::V4 => "nodes4",
        Family::V6 => "nodes6",
    })
}

/// The addresses of this node's pods, each paired with itself.
pub(super) fn own_pods(family: Family) -> Name {
    fixed(match family {
        Family::V4 => "own-pods4",
        Family::V6 => "own-pods6",
    })
}

pub(super) fn is_chain(chain: &Name) -> bool {
    [FORWARDED, OWN_NODE].contains(&chain.as_str())
}

/// Whether fewer elements of the set check less.
pub(super) fn names_checked(set: &Name) -> bool {
    set.as_str() == PORTS || is_of_addresses(set)
}

/// Whether flows could be approved before a port was among those of tunnels.
pub(super) fn restricts(set: &Name) -> bool {
    set.as_str() == PORTS
}

/// Whether the set says where nodes or this node's pods are: no flow to a tunnel is approved, whoever its ends are.
pub(super) fn is_of_addresses(set: &Name) -> bool {
    Family::BOTH.into_iter().any(|family| *set == nodes(family) || *set == own_pods(family))
}

/// Adds what does not depend on the nodes. The chain at the input hook is there even if it is empty: base chains do not
/// come and go.
pub(super) fn add(ruleset: &mut Ruleset, layout: &Layout, families: &BTreeSet<Family>) {
    if !layout.checks_sources() {
        return;
    }
    let mut at_input = vec![];
    if !families.is_empty() {
        let mut ports = Set::of(&[KeyType::InetService]);
        ports.comment = Some(Comment::new("where nodes take tunnels in"));
        let numbers = TUNNEL_PORTS.iter().chain(layout.tunnel_ports());
        ports.elements = numbers.map(|port| (Key::One(Datum::Port(*port)), Element::default())).collect();
        ruleset.sets.insert(fixed(PORTS), Arc::new(ports));
        add_deny_chain(ruleset, layout, Cause::Tunnel);
        let own_node = families.iter().map(|&family| deny(family, vec![])).collect();
        ruleset.chains.insert(fixed(OWN_NODE), Arc::new(Chain { hook: None, rules: own_node }));
        at_input =
            to_tunnels(ruleset, OWN_NODE).map_or_else(Vec::new, |rules| [rules.over_udp, rules.wrapped].concat());
        place_nodes(ruleset, layout, None);
    }
    ruleset.chains.insert(fixed(INPUT), Arc::new(Chain { hook: Some(Hook::Input), rules: at_input }));
}

/// Brings the addresses of nodes up to date. While none of a family is known, any address of it counts as that of a node.
pub(super) fn place_nodes(ruleset: &mut Ruleset, layout: &Layout, ranges: Option<&[IpNet]>) {
    if !ruleset.sets.contains_key(&fixed(PORTS)) {
        return;
    }
    let present = |family: &Family| ruleset.sets.contains_key(&own_pods(*family));
    let families: Vec<Family> = Family::BOTH.into_iter().filter(present).collect();
    let known = |family: Family| {
        let Some(ranges) = ranges else { return vec![] };
        let all = ranges.iter().chain(layout.node_ranges());
        let blocks: BTreeSet<Block> = all.map(|range| Block { cidr: range.trunc(), except: vec![] }).collect();
        block_ranges(&blocks, family)
    };
    let mut rules = Vec::new();
    for family in families {
        let ranges = known(family);
        if ranges.is_empty() {
            ruleset.sets.remove(&nodes(family));
            rules.push(deny(family, vec![]));
            continue;
        }
        let mut set = Set { interval: true, ..Set::of(&[address_type(family)]) };
        set.comment = Some(Comment::new("addresses of nodes, and where their pods have theirs"));
        let elements = ranges.into_iter().map(|(first, last)| (Key::Range(first, last), Element::default()));
        set.elements = elements.collect();
        ruleset.sets.insert(nodes(family), Arc::new(set));
        let to_node = Match::InSet { fields: vec![Field::Destination(family)], set: nodes(family) };
        rules.push(deny(family, vec![to_node]));
    }
    ruleset.chains.insert(fixed(FORWARDED), Arc::new(Chain { hook: None, rules }));
}

/// What this node's pods send there.
fn deny(family: Family, there: Vec<Match>) -> Rule {
    let source = Field::Source(family);
    let from_own_pod = Match::InSet { fields: vec![source, source], set: own_pods(family) };
    let matches = std::iter::once(from_own_pod).chain(there).collect();
    Rule::new(matches, denied_for(Cause::Tunnel)).commented("what comes out of a tunnel has any source it likes")
}

/// Rules about tunnels, by the protocol that carries these.
pub(super) struct ByProtocol {
    pub(super) over_udp: Vec<Rule>,
    /// In IP itself.
    pub(super) wrapped: Vec<Rule>,
}

fn rules_of_wrappers(actions: &[Action]) -> Vec<Rule> {
    WRAPPERS.map(|number| Rule::new(vec![Match::IpProtocol(number)], actions.to_vec())).into()
}

/// Leads the packets to tunnels into the chain.
fn to_tunnels(ruleset: &Ruleset, chain: &str) -> Option<ByProtocol> {
    let jump = [Action::Verdict(Verdict::Jump(fixed(chain)))];
    let over_udp = over_udp(ruleset, Field::DestinationPort)?;
    Some(ByProtocol { over_udp: vec![Rule::new(over_udp, jump.to_vec())], wrapped: rules_of_wrappers(&jump) })
}

/// UDP with one of the tunnels' ports; none if sources are not checked. A range costs less than a look into a set, and
/// most packets are beyond it.
fn over_udp(ruleset: &Ruleset, field: Field) -> Option<Vec<Match>> {
    let ports = &ruleset.sets.get(&fixed(PORTS))?.elements;
    let numbers =
        || ports.keys().filter_map(|key| if let Key::One(Datum::Port(port)) = key { Some(port) } else { None });
    let (first, last) = (numbers().min()?, numbers().max()?);
    let within = match field {
        Field::SourcePort => Match::SourcePort(first, last),
        _ => Match::DestinationPort(first, last),
    };
    Some(vec![Match::Protocol(Protocol::Udp), within, Match::InSet { fields: vec![field], set: fixed(PORTS) }])
}

/// For packets of flows that are not approved.
pub(super) fn judging_rules(ruleset: &Ruleset) -> Option<ByProtocol> {
    to_tunnels(ruleset, FORWARDED)
}

/// What is allowed and never approved: flows with a packet to a tunnel in one of their directions. The ports of a packet
/// are those of its flow in the forward hook, where the destination is translated already and the source not yet.
pub(super) fn unapproved_rules(ruleset: &Ruleset) -> Option<ByProtocol> {
    let accept = [Action::Verdict(Verdict::Accept)];
    let of = |field| over_udp(ruleset, field).map(|matches| Rule::new(matches, accept.to_vec()));
    let over_udp = vec![of(Field::DestinationPort)?, of(Field::SourcePort)?];
    // An ICMP error is a packet of the flow that it quotes, and of another protocol.
    let error = Rule::new(vec![Match::State(vec![State::Related])], accept.to_vec());
    let wrapped = [vec![error], rules_of_wrappers(&accept)].concat();
    Some(ByProtocol { over_udp, wrapped })
}
