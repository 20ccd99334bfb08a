//! Evaluates a ruleset for a packet, as the kernel does.

use std::net::IpAddr;

use crate::{
    Action, ConntrackDirection, Datum, Family, Field, Hook, InterfaceName, Match, Name, Protocol, ReroutingOption,
    Rule, Ruleset, State, TableFamily, Verdict,
};

/// A packet at a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// The input interface, if known. Otherwise no condition on the interface holds.
    pub interface: Option<InterfaceName>,
    /// Source in the IP header at the hook: before source translation in postrouting.
    pub source: IpAddr,
    /// Destination in the IP header at the hook: after destination translation in prerouting.
    pub destination: IpAddr,
    /// Number of the transport protocol.
    pub protocol: u8,
    /// `None` for protocols without ports.
    pub source_port: Option<u16>,
    /// `None` for protocols without ports.
    pub destination_port: Option<u16>,
    /// Whether a TCP segment has SYN, and none of FIN, RST and ACK. False for other protocols.
    pub tcp_syn: bool,
    /// `None` unless the protocol is ICMPv6 (58).
    pub icmpv6_type: Option<u8>,
    /// As the forward hook sees it.
    pub hop_limit: u8,
    /// `None` without source routing. Modelled packets have at most one kind.
    pub rerouting: Option<ReroutingOption>,
    /// The value of `ct state`.
    pub state: State,
    /// The conntrack entry; `None` for packets that are invalid or untracked.
    pub flow: Option<Flow>,
}

/// A conntrack entry, and the packet's direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// `ct original ip saddr`: the client's address before source translation.
    pub source: IpAddr,
    /// `ct reply ip saddr`: the address after destination translation.
    pub destination: IpAddr,
    /// The destination's port, of TCP, UDP and SCTP.
    pub port: Option<u16>,
    /// The client's port, of TCP, UDP and SCTP.
    pub source_port: Option<u16>,
    /// Whether the destination was translated, as for a Service.
    pub destination_translated: bool,
    /// `ct direction` of this packet.
    pub direction: ConntrackDirection,
    /// The connection mark (`ct mark`) before evaluation.
    pub mark: u32,
}

impl Packet {
    /// The first packet of a flow. `port` is the destination's; the source port is arbitrary.
    pub fn first(source: IpAddr, destination: IpAddr, protocol: u8, port: Option<u16>) -> Packet {
        let direction = ConntrackDirection::Original;
        Packet {
            interface: None,
            source,
            destination,
            protocol,
            source_port: port.map(|_| 40_000),
            destination_port: port,
            tcp_syn: protocol == Protocol::Tcp.number(),
            icmpv6_type: None,
            hop_limit: 63,
            rerouting: None,
            state: State::New,
            flow: Some(Flow {
                source,
                destination,
                port,
                source_port: port.map(|_| 40_000),
                // A host sends to its own address over the network only if another host translates the destination.
                destination_translated: source == destination,
                direction,
                mark: 0,
            }),
        }
    }

    /// A reply packet of the same flow, without an input interface, with a connection mark of `mark`.
    pub fn reply(&self, mark: u32) -> Packet {
        Packet {
            interface: None,
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            tcp_syn: false,
            state: State::Established,
            flow: self.flow.clone().map(|f| Flow { direction: ConntrackDirection::Reply, mark, ..f }),
            ..self.clone()
        }
    }
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Evaluation {
    /// The verdict, or the policy of the base chain.
    pub stop: Stop,
    /// The connection mark after evaluation.
    pub mark: u32,
    /// The chains that the packet traversed, the base chain first.
    pub path: Vec<Name>,
}

/// The verdict of the hook. An accepted packet is evaluated by the base chains of other tables next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// `NF_ACCEPT`.
    Accepted,
    /// `NF_DROP`.
    Dropped,
}

/// Evaluates the chain at the forward hook, as [`evaluate_at`] does.
pub fn evaluate(ruleset: &Ruleset, packet: &Packet) -> Evaluation {
    evaluate_at(ruleset, packet, Hook::Forward)
}

/// Evaluates the chain at the hook; without one the packet is accepted. Without a verdict the policy of the base chain
/// applies.
///
/// In a ruleset that [`Ruleset::validate`] rejects, a dangling reference drops.
pub fn evaluate_at(ruleset: &Ruleset, packet: &Packet, hook: Hook) -> Evaluation {
    walk(ruleset, packet, hook, |_, _| {})
}

/// The rules that the packet reaches at the hook, in order: the chain, and the index of the rule in it. The last one
/// decides, or ends the chain.
pub fn rules_met(ruleset: &Ruleset, packet: &Packet, hook: Hook) -> Vec<(Name, usize)> {
    let mut met = Vec::new();
    walk(ruleset, packet, hook, |chain, rule| met.push((chain.clone(), rule)));
    met
}

/// Calls `meet` for each rule before it runs.
fn walk(ruleset: &Ruleset, packet: &Packet, hook: Hook, mut meet: impl FnMut(&Name, usize)) -> Evaluation {
    let mut mark = packet.flow.as_ref().map_or(0, |f| f.mark);
    let mut path = Vec::new();
    let base = ruleset.chains.iter().find(|(_, c)| c.hook == Some(hook));
    let policy = match hook.family() {
        TableFamily::Netdev => Stop::Dropped,
        TableFamily::Inet | TableFamily::Bridge => Stop::Accepted,
    };
    let Some((name, chain)) = base else { return Evaluation { stop: Stop::Accepted, mark, path } };
    path.push(name.clone());
    // A ruleset without loops enters no chain more often than there are jumps.
    let longest = 2 * ruleset.chains.len();
    let (mut chain_name, mut rules) = (name, chain.rules.iter().enumerate());
    let mut returns = Vec::new();
    loop {
        let Some((number, rule)) = rules.next() else {
            match returns.pop() {
                Some(rest) => (chain_name, rules) = rest,
                None => return Evaluation { stop: policy, mark, path },
            }
            continue;
        };
        meet(chain_name, number);
        let target = match run(ruleset, rule, packet, &mut mark) {
            None => continue,
            Some(Verdict::Accept) => return Evaluation { stop: Stop::Accepted, mark, path },
            Some(Verdict::Drop) => return Evaluation { stop: Stop::Dropped, mark, path },
            Some(Verdict::Goto(target)) => target,
            Some(Verdict::Jump(target)) => {
                returns.push((chain_name, rules.clone()));
                target
            }
        };
        path.push(target.clone());
        match ruleset.chains.get_key_value(&target) {
            Some((name, next)) if path.len() <= longest => (chain_name, rules) = (name, next.rules.iter().enumerate()),
            _ => return Evaluation { stop: Stop::Dropped, mark, path },
        }
    }
}

fn run(ruleset: &Ruleset, rule: &Rule, packet: &Packet, mark: &mut u32) -> Option<Verdict> {
    if !rule.matches.iter().all(|m| holds(ruleset, m, packet, *mark)) {
        return None;
    }
    for action in &rule.actions {
        match action {
            // These actions only report packets, and a rule with one of them never decides.
            Action::Counter | Action::Limit(_) | Action::Record { .. } | Action::Log(_) => {}
            // Modelled packets already have the priority that rules set.
            Action::SetPriority(_) => {}
            Action::SetMark { mask, value } => {
                packet.flow.as_ref()?;
                *mark = (*mark & !mask) | value;
            }
            Action::Verdict(verdict) => return Some(verdict.clone()),
            Action::VerdictMap { field, map } => {
                let element = ruleset.sets.get(map)?.find(&[read(*field, packet)?])?;
                return element.verdict.clone();
            }
        }
    }
    None
}

/// Header length without options.
const IPV4_HEADER_WORDS: u8 = 5;
/// Header length with a source route of one address, the only option of modelled packets.
const WORDS_WITH_SOURCE_ROUTE: u8 = 7;

fn ipv4_header_words(packet: &Packet) -> Option<u8> {
    let has_source_route = packet.rerouting.is_some_and(|rerouting| rerouting.family() == Family::V4);
    let words = if has_source_route { WORDS_WITH_SOURCE_ROUTE } else { IPV4_HEADER_WORDS };
    packet.source.is_ipv4().then_some(words)
}

fn holds(ruleset: &Ruleset, condition: &Match, packet: &Packet, mark: u32) -> bool {
    match condition {
        Match::Mark { mask, value } => packet.flow.is_some() && mark & mask == *value,
        Match::State(states) => states.contains(&packet.state),
        Match::Direction(direction) => packet.flow.as_ref().is_some_and(|f| f.direction == *direction),
        Match::DestinationTranslated => packet.flow.as_ref().is_some_and(|f| f.destination_translated),
        // Flows have their own source here.
        Match::SourceTranslated => false,
        Match::Rerouting(rerouting) => packet.rerouting == Some(*rerouting),
        Match::Family(family) => Family::of(packet.source) == *family,
        Match::Protocol(protocol) => packet.protocol == protocol.number(),
        Match::NotProtocol(protocol) => packet.protocol != protocol.number(),
        Match::NotTcpSyn => packet.protocol == Protocol::Tcp.number() && !packet.tcp_syn,
        Match::Icmpv6Type(first, last) | Match::PlainIcmpv6Type(first, last) => {
            packet.icmpv6_type.is_some_and(|t| (*first..=*last).contains(&t))
        }
        Match::OnLinkIcmpv6Type(first, last) => {
            packet.hop_limit == 255 && packet.icmpv6_type.is_some_and(|t| (*first..=*last).contains(&t))
        }
        Match::HopLimit(limit) => packet.source.is_ipv6() && packet.hop_limit == *limit,
        Match::FlowPort(first, last) => match read(Field::FlowPort, packet) {
            Some(Datum::Port(port)) => (*first..=*last).contains(&port),
            _ => false,
        },
        Match::FlowSourcePort(first, last) => {
            packet.flow.as_ref().and_then(|flow| flow.source_port).is_some_and(|port| (*first..=*last).contains(&port))
        }
        Match::SourcePort(first, last) => packet.source_port.is_some_and(|port| (*first..=*last).contains(&port)),
        Match::DestinationPort(first, last) => {
            packet.destination_port.is_some_and(|port| (*first..=*last).contains(&port))
        }
        Match::Ipv4HeaderWords(words) => ipv4_header_words(packet) == Some(*words),
        Match::NotIpv4HeaderWords(words) => ipv4_header_words(packet).is_some_and(|length| length != *words),
        Match::NotRouterAlert => ipv4_header_words(packet).is_some_and(|length| length > IPV4_HEADER_WORDS),
        Match::InSet { fields, set } => is_in_set(ruleset, fields, set, packet) == Some(true),
        Match::NotInSet { fields, set } => is_in_set(ruleset, fields, set, packet) == Some(false),
        Match::IpProtocol(number) => packet.protocol == *number,
        Match::EtherType(kind) => kind.family() == Some(Family::of(packet.source)),
        Match::NotEtherType(kind) => kind.family() != Some(Family::of(packet.source)),
        Match::SourceIs(address) => packet.source == *address,
        Match::Ipv4Protocol(number) => packet.source.is_ipv4() && packet.protocol == *number,
        Match::NotIpProtocol(number) => packet.source.is_ipv4() && packet.protocol != *number,
        Match::NextHeader(number) => packet.source.is_ipv6() && packet.protocol == *number,
        Match::NotFragment(family) => Family::of(packet.source) == *family,
        Match::FirstFragment => packet.source.is_ipv4(),
        // Modelled packets are long enough for every rule.
        Match::PrivateBytes(_) => true,
        // Modelled packets were already checked at the interface, if there is such a check.
        Match::NotPriority(_) => false,
        // No helper is assigned to modelled flows.
        Match::InvolvesHelper => false,
        // Modelled packets have no link header (as if the expected sender had sent them), are never ARP or fragments,
        // and have no ICMP fields except the type of ICMPv6.
        Match::NotFromHardware(_)
        | Match::ArpRequest
        | Match::ArpSender(_)
        | Match::ArpTarget(_)
        | Match::NotArpSenderHardware(_)
        | Match::IcmpType(..)
        | Match::IgmpType(..)
        | Match::ListenerReport(..)
        | Match::FragmentedIcmpv6Type(..)
        | Match::Fragment(_)
        | Match::FragmentOfOther(_)
        | Match::QuotedDestination(_)
        | Match::QuotedWithoutOptions
        | Match::NotQuotedProtocol(_)
        | Match::QuotedNextHeader(_)
        | Match::NotQuotedNextHeader(_)
        | Match::RouterAlert
        | Match::MulticastFrame
        | Match::HasRoute
        | Match::NotLinkAddress(..)
        | Match::NeighbourTarget(_) => false,
    }
}

/// `None` if the packet lacks one of the fields, or the ruleset the set.
fn is_in_set(ruleset: &Ruleset, fields: &[Field], set: &Name, packet: &Packet) -> Option<bool> {
    // Every packet has a protocol, but sets only contain those that [`Protocol`] names.
    if fields.contains(&Field::L4Proto) && Protocol::from_number(packet.protocol).is_none() {
        return Some(false);
    }
    let data: Option<Vec<Datum>> = fields.iter().map(|f| read(*f, packet)).collect();
    Some(ruleset.sets.get(set)?.find(&data?).is_some())
}

fn read(field: Field, packet: &Packet) -> Option<Datum> {
    let of = |family: Family, address: IpAddr| (Family::of(address) == family).then_some(Datum::from(address));
    let flow = packet.flow.as_ref();
    match field {
        Field::FlowSource(family) => of(family, flow?.source),
        Field::FlowDestination(family) => of(family, flow?.destination),
        Field::FlowPort => flow?.port.map(Datum::Port),
        Field::FlowSourcePort => flow?.source_port.map(Datum::Port),
        Field::Source(family) => of(family, packet.source),
        Field::Destination(family) => of(family, packet.destination),
        Field::L4Proto => Protocol::from_number(packet.protocol).map(Datum::Protocol),
        Field::SourcePort => packet.source_port.map(Datum::Port),
        Field::DestinationPort => packet.destination_port.map(Datum::Port),
        // Routing determines the output interface, and a ruleset contains no routes.
        Field::OutInterface => None,
        Field::InInterface => packet.interface.map(Datum::Interface),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Chain, Comment, Element, EtherType, Key, KeyType, Set, Table};

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn forged_source_is_dropped_at_interface() {
        let veth = |text: &str| InterfaceName::new(text).unwrap();
        let address = |last: u8| IpAddr::from([10, 0, 0, last]);
        let mut ports = Set::of(&[KeyType::InterfaceName, KeyType::Ipv4Addr]);
        let key = Key::Two(Datum::Interface(veth("veth2")), Datum::from(address(2)));
        ports.elements.insert(key, Element::default());
        let fields = vec![Field::InInterface, Field::Source(Family::V4)];
        let forged = Match::NotInSet { fields, set: name("ports4") };
        for (table, hook) in [(Table::inet(name("t")), Hook::Forward), (Table::bridge(name("t")), Hook::Prerouting)] {
            let mut ruleset = Ruleset::new(table, Comment::new(""));
            ruleset.sets.insert(name("ports4"), Arc::new(ports.clone()));
            let rule = Rule::new(vec![forged.clone()], vec![Action::Verdict(Verdict::Drop)]);
            ruleset.chains.insert(name("c"), Arc::new(Chain { hook: Some(hook), rules: vec![rule] }));
            let stop = |source: u8, interface: Option<&str>| {
                let first = Packet::first(address(source), address(9), 17, Some(53));
                evaluate_at(&ruleset, &Packet { interface: interface.map(veth), ..first }, hook).stop
            };
            assert_eq!(stop(2, Some("veth2")), Stop::Accepted);
            assert_eq!(stop(3, Some("veth2")), Stop::Dropped);
            assert_eq!(stop(2, Some("veth3")), Stop::Dropped);
            // A packet without an interface has no concatenation that `NotInSet` could match.
            assert_eq!(stop(3, None), Stop::Accepted);
        }
    }

    #[test]
    fn rules_met_follow_jumps_until_final_verdict() {
        let mut ruleset = Ruleset::new(Table::inet(name("t")), Comment::new(""));
        let rule = |protocol, verdict| Rule::new(vec![Match::Protocol(protocol)], vec![Action::Verdict(verdict)]);
        let mut chain = |text: &str, hook: Option<Hook>, rules: Vec<Rule>| {
            ruleset.chains.insert(name(text), Arc::new(Chain { hook, rules }));
        };
        let jump = Verdict::Jump(name("jumped-to"));
        let base = vec![
            rule(Protocol::Tcp, Verdict::Drop),
            rule(Protocol::Udp, jump),
            rule(Protocol::Udp, Verdict::Accept),
            rule(Protocol::Udp, Verdict::Drop),
        ];
        chain("base", Some(Hook::Forward), base);
        chain("jumped-to", None, vec![rule(Protocol::Tcp, Verdict::Drop)]);
        let packet = Packet::first([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, Some(53));
        let met = rules_met(&ruleset, &packet, Hook::Forward);
        let met: Vec<(&str, usize)> = met.iter().map(|(chain, rule)| (chain.as_str(), *rule)).collect();
        assert_eq!(met, [("base", 0), ("base", 1), ("jumped-to", 0), ("base", 2)]);
        assert_eq!(rules_met(&ruleset, &packet, Hook::Input), []);
    }

    #[test]
    fn ip_packet_ether_type_differs_from_arp() {
        let first = Packet::first([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, None);
        let ruleset = Ruleset::new(Table::bridge(name("t")), Comment::new(""));
        let others = [EtherType::Ipv4, EtherType::Arp, EtherType::Ipv6]
            .map(|kind| holds(&ruleset, &Match::NotEtherType(kind), &first, 0));
        assert_eq!(others, [false, true, true]);
    }
}
