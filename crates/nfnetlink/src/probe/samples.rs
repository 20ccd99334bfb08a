//! Minimal rulesets that exercise each feature completely.

use std::sync::Arc;

use nft::{
    Action, Chain, Comment, ConntrackDirection, Datum, Dynamic, Element, EtherType, Family, Field, HardwareAddress,
    Hook, InterfaceName, Key, KeyType, Limit, Log, Match, Name, PacketPriority, Period, Protocol, ReroutingOption,
    Rule, Ruleset, Set, State, Table, Verdict,
};

fn name(text: &str) -> Name {
    Name::new(text).expect("a valid name")
}

fn empty(table: fn(Name) -> Table) -> Ruleset {
    Ruleset::new(table(name("feature-probe")), Comment::new("probes features of the kernel"))
}

fn with_chain(mut ruleset: Ruleset, chain: &str, hook: Option<Hook>, rules: Vec<Rule>) -> Ruleset {
    ruleset.chains.insert(name(chain), Arc::new(Chain { hook, rules }));
    ruleset
}

fn with_set(mut ruleset: Ruleset, set_name: &str, set: Set) -> Ruleset {
    ruleset.sets.insert(name(set_name), Arc::new(set));
    ruleset
}

fn drop_if(condition: Match) -> Rule {
    Rule::new(vec![condition], vec![Action::Counter, Action::Verdict(Verdict::Drop)]).commented("a comment")
}

fn interface() -> Datum {
    Datum::Interface(InterfaceName::new("veth0").expect("a name of an interface"))
}

const ADDRESS4: Datum = Datum::V4(std::net::Ipv4Addr::LOCALHOST);
const ADDRESS6: Datum = Datum::V6(std::net::Ipv6Addr::LOCALHOST);
const PORT: Datum = Datum::Port(80);

/// A table and its comment.
pub(super) fn commented() -> Ruleset {
    empty(Table::inet)
}

/// Conditions on headers of routed packets, and verdicts.
pub(super) fn routed_packets() -> Ruleset {
    let rules = vec![
        drop_if(Match::Family(Family::V4)),
        drop_if(Match::Protocol(Protocol::Sctp)),
        drop_if(Match::Icmpv6Type(130, 136)),
        drop_if(Match::HopLimit(255)),
        drop_if(Match::NotTcpSyn),
        drop_if(Match::Rerouting(ReroutingOption::LooseSourceRoute)),
        drop_if(Match::Rerouting(ReroutingOption::RoutingHeader)),
        Rule::new(vec![], vec![Action::Verdict(Verdict::Goto(name("next")))]),
    ];
    let next = vec![Rule::new(vec![], vec![Action::Verdict(Verdict::Accept)])];
    with_chain(with_chain(empty(Table::inet), "forward", Some(Hook::Forward), rules), "next", None, next)
}

/// Conditions on a conntrack entry, and the action that sets its mark.
pub(super) fn flows() -> Ruleset {
    let (mask, value) = (0xffff_0000, 0x0001_0000);
    let mut ends = Set::of(&[KeyType::Ipv4Addr, KeyType::Ipv4Addr]);
    ends.elements.insert(Key::Two(ADDRESS4, ADDRESS4), Element::default());
    let fields = vec![Field::FlowSource(Family::V4), Field::FlowDestination(Family::V4)];
    let tcp = Match::Protocol(Protocol::Tcp);
    let drop = || Action::Verdict(Verdict::Drop);
    let rules = vec![
        drop_if(Match::Mark { mask, value }),
        drop_if(Match::State(vec![State::Invalid, State::Untracked])),
        drop_if(Match::Direction(ConntrackDirection::Reply)),
        drop_if(Match::DestinationTranslated),
        drop_if(Match::InvolvesHelper),
        drop_if(Match::InSet { fields, set: name("ends") }),
        Rule::new(vec![tcp, Match::FlowPort(80, 90)], vec![drop()]),
        Rule::new(vec![], vec![Action::SetMark { mask, value }]),
    ];
    with_chain(with_set(empty(Table::inet), "ends", ends), "forward", Some(Hook::Forward), rules)
}

/// Each type of set: plain, interval, concatenated, verdict map; keyed by addresses, protocols, ports and interfaces.
pub(super) fn sets() -> Ruleset {
    use KeyType::{InetProto, InetService, Ipv4Addr, Ipv6Addr};
    let tcp = Datum::Protocol(Protocol::Tcp);
    let set = |types: &[KeyType], key: Key| {
        let mut set = Set { interval: key.is_range(), comment: Some(Comment::new("a comment")), ..Set::of(types) };
        set.elements.insert(key, Element { verdict: None, comment: Some(Comment::new("a comment")) });
        set
    };
    let mut map = Set { verdicts: true, ..Set::of(&[InetService]) };
    let verdict = Some(Verdict::Goto(name("next")));
    map.elements.insert(Key::One(PORT), Element { verdict, comment: None });
    let mut ruleset = empty(Table::inet);
    for (set_name, set) in [
        ("addresses4", set(&[Ipv4Addr], Key::One(ADDRESS4))),
        ("addresses6", set(&[Ipv6Addr], Key::One(ADDRESS6))),
        ("ranges4", set(&[Ipv4Addr], Key::Range(ADDRESS4, ADDRESS4))),
        ("ranges6", set(&[Ipv6Addr], Key::Range(ADDRESS6, ADDRESS6))),
        ("ends6", set(&[Ipv6Addr, InetProto, InetService], Key::Three(ADDRESS6, tcp, PORT))),
        ("interfaces6", set(&[KeyType::InterfaceName, Ipv6Addr], Key::Two(interface(), ADDRESS6))),
        ("ports", map),
    ] {
        ruleset = with_set(ruleset, set_name, set);
    }
    let source = Field::Source(Family::V6);
    let within = |fields: &[Field], set: &str| Match::InSet { fields: fields.to_vec(), set: name(set) };
    let forged = Match::NotInSet { fields: vec![Field::InInterface, source], set: name("interfaces6") };
    let rules = vec![
        drop_if(within(&[source], "addresses6")),
        drop_if(within(&[source], "ranges6")),
        drop_if(within(&[source, Field::L4Proto, Field::DestinationPort], "ends6")),
        drop_if(forged),
        Rule::new(vec![], vec![Action::VerdictMap { field: Field::DestinationPort, map: name("ports") }]),
    ];
    with_chain(with_chain(ruleset, "forward", Some(Hook::Forward), rules), "next", None, vec![])
}

/// Logs, limits, and dynamic sets.
pub(super) fn reports() -> Ruleset {
    let limit = Limit { packets: 1, per: Period::Minute, burst: 1, over: false };
    let mut flows = Set::of(&[KeyType::Ipv4Addr, KeyType::Ipv4Addr, KeyType::InetProto, KeyType::InetService]);
    (flows.dynamic, flows.size) = (Some(Dynamic { timeout_seconds: 60 }), Some(16));
    let fields =
        vec![Field::Source(Family::V4), Field::Destination(Family::V4), Field::L4Proto, Field::DestinationPort];
    let log = Log { prefix: Comment::new("feature probe"), group: u16::MAX, snap_bytes: 64 };
    let actions = vec![Action::Record { fields, set: name("flows"), limit }, Action::Limit(limit), Action::Log(log)];
    let rules = vec![Rule::new(vec![], actions)];
    with_chain(with_set(empty(Table::inet), "flows", flows), "forward", Some(Hook::Forward), rules)
}

/// Source addresses by bridge port, and EtherTypes.
pub(super) fn bridged_frames() -> Ruleset {
    let mut ports = Set::of(&[KeyType::InterfaceName, KeyType::Ipv4Addr]);
    ports.elements.insert(Key::Two(interface(), ADDRESS4), Element::default());
    let fields = vec![Field::InInterface, Field::Source(Family::V4)];
    let rules =
        vec![drop_if(Match::NotInSet { fields, set: name("ports4") }), drop_if(Match::NotEtherType(EtherType::Arp))];
    with_chain(with_set(empty(Table::bridge), "ports4", ports), "prerouting", Some(Hook::Prerouting), rules)
}

/// Conditions on received frames, at the only interface that every namespace has.
pub(super) fn interface_ingress() -> Ruleset {
    let interface = InterfaceName::new("lo").expect("a name of an interface");
    let hardware = HardwareAddress([2, 0, 0, 0, 0, 1]);
    let rules = vec![
        drop_if(Match::NotFromHardware(hardware)),
        drop_if(Match::NotEtherType(EtherType::Arp)),
        drop_if(Match::ArpSender(std::net::Ipv4Addr::LOCALHOST)),
        drop_if(Match::SourceIs(std::net::Ipv6Addr::LOCALHOST.into())),
        Rule::new(vec![Match::EtherType(EtherType::Ipv4), Match::PrivateBytes(20)], vec![]),
        Rule::new(vec![], vec![Action::SetPriority(PacketPriority { major: 1, minor: 1 })]),
    ];
    with_chain(empty(Table::netdev), "received/lo", Some(Hook::Ingress(interface)), rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_samples_are_valid() {
        for sample in [commented(), routed_packets(), flows(), sets(), bridged_frames(), interface_ingress(), reports()]
        {
            assert_eq!(sample.validate(), [], "{sample}");
        }
    }
}
