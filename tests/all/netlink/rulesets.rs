//! Rulesets that use every form of the ruleset language.

use std::net::IpAddr;

use super::*;

pub(crate) fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(crate) fn all() -> Vec<Ruleset> {
    vec![empty(), every_set(), every_rule(), every_bridge_rule(), every_report(), every_bridge_report()]
}

pub(crate) fn empty() -> Ruleset {
    Ruleset::new(Table::inet(name("ringfence")), Comment::new("Ringfence's own, node a"))
}

pub(crate) fn with_set(mut ruleset: Ruleset, set_name: &str, set: Set) -> Ruleset {
    ruleset.sets.insert(name(set_name), Arc::new(set));
    ruleset
}

pub(crate) fn with_chain(mut ruleset: Ruleset, chain: &str, hook: Option<Hook>, rules: Vec<Rule>) -> Ruleset {
    ruleset.chains.insert(name(chain), Arc::new(Chain { hook, rules }));
    ruleset
}

pub(crate) fn goto(chain: &str) -> Rule {
    Rule::new(vec![], vec![Action::Verdict(Verdict::Goto(name(chain)))])
}

pub(crate) fn commented(verdict: Option<Verdict>, comment: &str) -> Element {
    Element { verdict, comment: Some(Comment::new(comment)) }
}

pub(crate) fn ports(ports: &[u16]) -> Set {
    let mut set = Set::of(&[KeyType::InetService]);
    set.elements.extend(ports.iter().map(|p| (Key::One(Datum::Port(*p)), Element::default())));
    set
}

pub(crate) fn port_ranges(ranges: &[(u16, u16)]) -> Set {
    let mut set = Set { interval: true, ..Set::of(&[KeyType::InetService]) };
    let key = |(a, b): &(u16, u16)| Key::Range(Datum::Port(*a), Datum::Port(*b));
    set.elements.extend(ranges.iter().map(|r| (key(r), Element::default())));
    set
}

fn v4(text: &str) -> Datum {
    Datum::V4(text.parse().unwrap())
}

fn interface(text: &str) -> Datum {
    Datum::Interface(InterfaceName::new(text).unwrap())
}

fn v6(text: &str) -> Datum {
    Datum::V6(text.parse().unwrap())
}

pub(crate) fn range4(first: &str, last: &str) -> Key {
    Key::Range(v4(first), v4(last))
}

fn set(types: &[KeyType], elements: Vec<(Key, Element)>) -> Set {
    let interval = elements.first().is_some_and(|(k, _)| k.is_range());
    let verdicts = elements.first().is_some_and(|(_, e)| e.verdict.is_some());
    Set { interval, verdicts, elements: elements.into_iter().collect(), ..Set::of(types) }
}

/// Every key type alone and concatenated, ranges at both ends and over everything, maps of each.
pub(crate) fn every_set() -> Ruleset {
    use KeyType::{InetProto, InetService, InterfaceName, Ipv4Addr, Ipv6Addr};
    let top6 = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
    let plain = Element::default;
    let (tcp, udp) = (Datum::Protocol(Protocol::Tcp), Datum::Protocol(Protocol::Udp));
    let go = || Some(Verdict::Goto(name("program/a")));
    let ports = |a, b| Key::Range(Datum::Port(a), Datum::Port(b));
    let mut r = with_chain(empty(), "program/a", None, vec![]);
    let sets = [
        ("nothing", set(&[Ipv4Addr], vec![])),
        ("nothing-said", Set { comment: Some(Comment::new("nothing, \"said\"")), ..set(&[InetProto], vec![]) }),
        (
            "hosts4",
            set(
                &[Ipv4Addr],
                vec![
                    (Key::One(v4("10.0.0.2")), commented(go(), "shop/web")),
                    (Key::One(v4("10.0.0.3")), Element { verdict: Some(Verdict::Drop), comment: None }),
                ],
            ),
        ),
        (
            "sized-hosts4",
            Set {
                size: Some(4096),
                comment: Some(Comment::new("with room")),
                ..set(&[Ipv4Addr], vec![(Key::One(v4("10.0.0.2")), commented(go(), "shop/web"))])
            },
        ),
        ("sized-peers4", Set { size: Some(1), ..set(&[Ipv4Addr], vec![(Key::One(v4("10.0.0.2")), plain())]) }),
        ("sized-nothing6", Set { size: Some(65536), ..set(&[Ipv6Addr], vec![]) }),
        ("hosts6", set(&[Ipv6Addr], vec![(Key::One(v6("fd00::2")), commented(Some(Verdict::Accept), "six"))])),
        (
            "peers6",
            set(&[Ipv6Addr], vec![(Key::One(v6("fd00::2")), plain()), (Key::One(v6("::")), commented(None, "any"))]),
        ),
        (
            "protocols",
            set(
                &[InetProto],
                vec![(Key::One(tcp), plain()), (Key::One(Datum::Protocol(Protocol::Sctp)), commented(None, "sctp"))],
            ),
        ),
        (
            "ports",
            set(
                &[InetService],
                vec![(Key::One(Datum::Port(0)), plain()), (Key::One(Datum::Port(65535)), commented(None, "last"))],
            ),
        ),
        (
            "pairs4",
            set(&[Ipv4Addr, Ipv4Addr], vec![(Key::Two(v4("10.0.0.1"), v4("10.0.0.2")), commented(None, "pair"))]),
        ),
        ("pairs6", set(&[Ipv6Addr, Ipv6Addr], vec![(Key::Two(v6("fd00::1"), v6("fd00::2")), plain())])),
        (
            "services",
            set(
                &[InetService],
                vec![
                    (ports(0, 79), Element { verdict: Some(Verdict::Accept), comment: None }),
                    (ports(80, 90), commented(go(), "web")),
                    (ports(100, 100), commented(Some(Verdict::Drop), "one")),
                    (ports(60000, 65535), commented(Some(Verdict::Accept), "high")),
                ],
            ),
        ),
        (
            "late-services",
            set(&[InetService], vec![(ports(5, 6), Element { verdict: Some(Verdict::Drop), comment: None })]),
        ),
        (
            "protocol-ports",
            set(
                &[InetProto, InetService],
                vec![
                    (Key::Two(tcp, Datum::Port(80)), commented(None, "http")),
                    (Key::Two(udp, Datum::Port(53)), plain()),
                ],
            ),
        ),
        ("port-map", set(&[InetService], vec![(Key::One(Datum::Port(80)), commented(go(), "x"))])),
        ("pair-map", set(&[InetProto, InetService], vec![(Key::Two(tcp, Datum::Port(80)), commented(go(), "http"))])),
        (
            "triples4",
            set(
                &[Ipv4Addr, InetProto, InetService],
                vec![(Key::Three(v4("10.0.0.1"), udp, Datum::Port(53)), commented(None, "dns"))],
            ),
        ),
        (
            "triples6",
            set(
                &[Ipv6Addr, Ipv6Addr, InetService],
                vec![(Key::Three(v6("fd00::1"), v6("fd00::2"), Datum::Port(53)), plain())],
            ),
        ),
        (
            "mixed6",
            set(&[InetProto, Ipv6Addr, InetService], vec![(Key::Three(udp, v6("fd00::2"), Datum::Port(53)), plain())]),
        ),
        (
            "blocks4",
            set(
                &[Ipv4Addr],
                vec![
                    (range4("10.0.0.0", "10.255.255.255"), commented(None, "ten")),
                    (range4("192.168.0.1", "192.168.0.9"), plain()),
                    (range4("255.0.0.0", "255.255.255.255"), commented(None, "top")),
                ],
            ),
        ),
        (
            "blocks6",
            set(
                &[Ipv6Addr],
                vec![
                    (Key::Range(v6("fd00::"), v6("fd00::ff")), commented(None, "low")),
                    (Key::Range(v6("ff00::"), v6(top6)), plain()),
                ],
            ),
        ),
        (
            "interfaces",
            set(
                &[InterfaceName],
                vec![
                    (Key::One(interface("veth0")), commented(None, "shop/web")),
                    (Key::One(interface("fifteen-bytes.x")), plain()),
                    (Key::One(interface("a@b#c;d{}%$!'")), plain()),
                ],
            ),
        ),
        ("interface-map", set(&[InterfaceName], vec![(Key::One(interface("veth0")), commented(go(), "x"))])),
        (
            "interface-addresses4",
            set(
                &[InterfaceName, Ipv4Addr],
                vec![
                    (Key::Two(interface("veth0"), v4("10.0.0.2")), commented(None, "shop/web")),
                    (Key::Two(interface("fifteen-bytes.x"), v4("10.0.0.3")), plain()),
                ],
            ),
        ),
        (
            "interface-addresses6",
            set(&[InterfaceName, Ipv6Addr], vec![(Key::Two(interface("veth0"), v6("fd00::2")), plain())]),
        ),
        (
            "address-interfaces6",
            set(
                &[Ipv6Addr, InterfaceName, InetService],
                vec![(Key::Three(v6("fd00::2"), interface("v"), Datum::Port(53)), plain())],
            ),
        ),
        ("all4", set(&[Ipv4Addr], vec![(range4("0.0.0.0", "255.255.255.255"), commented(None, "all"))])),
        ("all6", set(&[Ipv6Addr], vec![(Key::Range(v6("::"), v6(top6)), plain())])),
        ("all-ports", port_ranges(&[(0, 65535)])),
        (
            "block-map",
            set(
                &[Ipv4Addr],
                vec![
                    (range4("10.0.0.0", "10.0.0.255"), commented(go(), "a")),
                    (range4("10.0.1.0", "10.0.1.255"), commented(Some(Verdict::Drop), "b")),
                ],
            ),
        ),
    ];
    for (set_name, set) in sets {
        let comment = set.comment.clone().or_else(|| (set_name.len() % 2 == 0).then(|| Comment::new(set_name)));
        r = with_set(r, set_name, Set { comment, ..set });
    }
    r
}

/// Every condition, field and action, each alone and after the conditions that it depends on.
pub(crate) fn every_rule() -> Ruleset {
    use Family::{V4, V6};
    let within = |fields: &[Field], set: &str| Match::InSet { fields: fields.to_vec(), set: name(set) };
    let beyond = |fields: &[Field], set: &str| Match::NotInSet { fields: fields.to_vec(), set: name(set) };
    let accept = || Action::Verdict(Verdict::Accept);
    let vmap = |field, map: &str| Action::VerdictMap { field, map: name(map) };
    let mark = |mask, value| Match::Mark { mask, value };
    let set_mark = |mask, value| Action::SetMark { mask, value };
    let (tcp, udp) = (|| Match::Protocol(Protocol::Tcp), || Match::Protocol(Protocol::Udp));
    let rules = vec![
        Rule::new(vec![Match::Direction(ConntrackDirection::Reply), mark(0xfff0_0000, 0x0010_0000)], vec![accept()]),
        Rule::new(vec![Match::Direction(ConntrackDirection::Original), mark(0xffff_ffff, 0x0010_0000)], vec![accept()]),
        Rule::new(vec![mark(0x8000_0000, 0x8000_0000)], vec![accept()]),
        Rule::new(vec![mark(0xfff0_0000, 0)], vec![Action::Counter]),
        Rule::new(vec![Match::State(vec![State::Established, State::Related])], vec![accept()]),
        Rule::new(vec![Match::State(vec![State::New])], vec![Action::Counter]).commented("a single state"),
        Rule::new(vec![Match::State(vec![State::Untracked, State::Invalid])], vec![Action::Counter, accept()]),
        Rule::new(vec![Match::Family(V4)], vec![Action::Counter]),
        Rule::new(vec![Match::Family(V6), Match::Icmpv6Type(133, 137)], vec![accept()]),
        Rule::new(vec![Match::Icmpv6Type(143, 143)], vec![accept()]).commented("MLD"),
        Rule::new(vec![Match::Icmpv6Type(0, 255)], vec![accept()]),
        Rule::new(vec![Match::HopLimit(255)], vec![accept()]),
        Rule::new(vec![Match::State(vec![State::New]), Match::NotTcpSyn], vec![accept()]),
        Rule::new(vec![tcp(), Match::NotTcpSyn], vec![accept()]),
        Rule::new(vec![Match::NotIpv4HeaderWords(5)], vec![accept()]),
        Rule::new(vec![Match::Ipv4HeaderWords(6), Match::RouterAlert], vec![accept()]),
        Rule::new(vec![Match::NotRouterAlert], vec![accept()]),
        Rule::new(vec![Match::NotPriority(PacketPriority { major: 0x5246, minor: 0x10 })], vec![accept()]),
        Rule::new(vec![], vec![Action::SetPriority(PacketPriority { major: 0x5246, minor: 0x10 })]),
        Rule::new(vec![Match::Family(V6), Match::MulticastFrame, Match::ListenerReport(131, 132)], vec![accept()]),
        Rule::new(vec![Match::ListenerReport(143, 143)], vec![accept()]),
        Rule::new(vec![Match::Family(V6), Match::OnLinkIcmpv6Type(133, 133)], vec![accept()]),
        Rule::new(vec![Match::OnLinkIcmpv6Type(135, 136), Match::NeighbourTarget("fd00::5".parse().unwrap())], vec![]),
        Rule::new(
            vec![
                Match::PlainIcmpv6Type(135, 135),
                Match::NotLinkAddress(LinkAddressOption::NeighbourSolicitation, "02:00:5e:10:00:01".parse().unwrap()),
            ],
            vec![accept()],
        ),
        Rule::new(vec![Match::SourceIs(ip("fd00::5")), Match::FragmentedIcmpv6Type(130, 137)], vec![accept()]),
        Rule::new(vec![Match::FragmentedIcmpv6Type(143, 143)], vec![accept()]),
        Rule::new(vec![Match::PlainIcmpv6Type(4, 4), Match::QuotedNextHeader(0)], vec![accept()]),
        Rule::new(vec![Match::Family(V4), Match::PrivateBytes(56)], vec![]),
        Rule::new(
            vec![Match::Family(V4), Match::PrivateBytes(34), Match::SourceIs(ip("10.1.0.5")), Match::NotIpProtocol(1)],
            vec![accept()],
        ),
        Rule::new(vec![Match::Family(V6), Match::PrivateBytes(40), Match::NextHeader(6)], vec![accept()]),
        Rule::new(vec![udp(), Match::DestinationPort(4789, 8472)], vec![accept()]),
        Rule::new(vec![tcp(), Match::SourcePort(53, 53)], vec![accept()]),
        Rule::new([Protocol::Tcp, Protocol::Udp].map(Match::NotProtocol).into(), vec![accept()]),
        Rule::new(
            vec![udp(), Match::FlowSourcePort(4789, 8472), within(&[Field::FlowSourcePort], "ports")],
            vec![accept()],
        ),
        Rule::new(vec![Match::SourceIs(ip("10.1.0.5")), Match::NotIpProtocol(1)], vec![accept()]),
        Rule::new(vec![Match::Rerouting(ReroutingOption::LooseSourceRoute)], vec![accept()]),
        Rule::new(vec![Match::Family(V4), Match::Rerouting(ReroutingOption::StrictSourceRoute)], vec![accept()]),
        Rule::new(vec![Match::Rerouting(ReroutingOption::RoutingHeader)], vec![accept()]),
        Rule::new(vec![Match::DestinationTranslated, within(&[Field::FlowSource(V4)], "blocks4")], vec![accept()]),
        Rule::new(vec![Match::SourceTranslated], vec![accept()]),
        Rule::new(vec![Match::InvolvesHelper], vec![accept()]),
        Rule::new(vec![within(&[Field::FlowSource(V4), Field::Source(V4)], "pairs4")], vec![accept()]),
        Rule::new(vec![within(&[Field::FlowDestination(V6), Field::Source(V6)], "pairs6")], vec![accept()]),
        Rule::new(vec![tcp(), within(&[Field::FlowSourcePort], "ports")], vec![accept()]),
        Rule::new(vec![tcp(), Match::FlowPort(80, 80)], vec![accept()]),
        Rule::new(vec![Match::Protocol(Protocol::Udp), Match::FlowPort(80, 90)], vec![accept()]),
        Rule::new(vec![Match::Protocol(Protocol::Sctp), Match::FlowPort(0, 65535)], vec![accept()]),
        Rule::new(
            vec![within(&[Field::Source(V4)], "blocks4"), within(&[Field::Destination(V4)], "all4")],
            vec![accept()],
        ),
        Rule::new(
            vec![within(&[Field::Source(V6)], "blocks6"), within(&[Field::Destination(V6)], "all6")],
            vec![accept()],
        ),
        Rule::new(vec![Match::Family(V4), within(&[Field::Destination(V4)], "blocks4")], vec![accept()]),
        Rule::new(
            vec![within(&[Field::FlowSource(V4)], "blocks4"), within(&[Field::FlowDestination(V4)], "all4")],
            vec![accept()],
        ),
        Rule::new(
            vec![within(&[Field::FlowSource(V6)], "blocks6"), within(&[Field::FlowDestination(V6)], "peers6")],
            vec![accept()],
        ),
        Rule::new(vec![within(&[Field::Source(V4), Field::Destination(V4)], "pairs4")], vec![accept()]),
        Rule::new(vec![within(&[Field::Source(V6), Field::Destination(V6)], "pairs6")], vec![accept()]),
        Rule::new(vec![within(&[Field::FlowSource(V4), Field::FlowDestination(V4)], "pairs4")], vec![accept()]),
        Rule::new(vec![within(&[Field::FlowSource(V6), Field::FlowDestination(V6)], "pairs6")], vec![accept()]),
        Rule::new(vec![within(&[Field::L4Proto, Field::DestinationPort], "protocol-ports")], vec![accept()]),
        Rule::new(vec![tcp(), within(&[Field::L4Proto, Field::FlowPort], "protocol-ports")], vec![accept()]),
        Rule::new(
            vec![within(&[Field::Source(V4), Field::L4Proto, Field::DestinationPort], "triples4")],
            vec![accept()],
        ),
        Rule::new(
            vec![within(&[Field::Source(V6), Field::Destination(V6), Field::SourcePort], "triples6")],
            vec![accept()],
        ),
        Rule::new(vec![within(&[Field::L4Proto, Field::Source(V6), Field::DestinationPort], "mixed6")], vec![accept()]),
        Rule::new(vec![within(&[Field::L4Proto], "protocols"), within(&[Field::SourcePort], "ports")], vec![accept()]),
        Rule::new(vec![tcp(), within(&[Field::DestinationPort], "all-ports")], vec![accept()]),
        Rule::new(vec![tcp(), within(&[Field::FlowPort], "ports")], vec![accept()]),
        Rule::new(
            vec![
                within(&[Field::InInterface], "interfaces"),
                beyond(&[Field::InInterface, Field::Source(V4)], "interface-addresses4"),
            ],
            vec![accept()],
        ),
        Rule::new(vec![beyond(&[Field::InInterface, Field::Source(V6)], "interface-addresses6")], vec![accept()]),
        Rule::new(
            vec![beyond(&[Field::Source(V6), Field::InInterface, Field::DestinationPort], "address-interfaces6")],
            vec![accept()],
        ),
        Rule::new(vec![beyond(&[Field::Destination(V4)], "blocks4")], vec![Action::Counter]).commented("elsewhere"),
        Rule::new(vec![beyond(&[Field::FlowSource(V4)], "blocks4")], vec![Action::Counter]),
        Rule::new(vec![tcp(), beyond(&[Field::FlowPort], "ports")], vec![Action::Counter]),
        Rule::new(vec![], vec![vmap(Field::InInterface, "interface-map")]),
        Rule::new(vec![], vec![vmap(Field::Source(V4), "hosts4")]),
        Rule::new(vec![within(&[Field::Source(V4)], "blocks4")], vec![vmap(Field::Destination(V4), "block-map")]),
        Rule::new(vec![], vec![vmap(Field::FlowSource(V6), "hosts6")]).commented("who opened it"),
        Rule::new(vec![], vec![vmap(Field::DestinationPort, "services")]),
        Rule::new(vec![tcp()], vec![vmap(Field::FlowPort, "late-services")]),
        Rule::new(vec![tcp()], vec![vmap(Field::DestinationPort, "port-map")]),
        Rule::new(vec![], vec![set_mark(0xfff0_0000, 0x0010_0000), accept()]),
        Rule::new(vec![], vec![Action::Counter, set_mark(0xfff0_0000, 0)]),
        Rule::new(vec![], vec![set_mark(0xffff_ffff, 0x8000_0001)]),
        goto("program/a").commented("a long comment, to the end: ".repeat(10).as_str()),
    ];
    let drops = vec![Rule::new(vec![], vec![Action::Verdict(Verdict::Drop)])];
    let ruleset = with_chain(every_set(), "forward", Some(Hook::Forward), rules);
    let answers = vec![Rule::new(vec![Match::PlainIcmpv6Type(4, 4)], vec![Action::Counter])];
    let ruleset = with_chain(ruleset, "output", Some(Hook::Output), answers);
    with_chain(with_chain(ruleset, "program/a", None, drops), "program/empty", None, vec![])
}

/// Every set, and every condition and field that tables of the family `bridge` can have.
pub(crate) fn every_bridge_rule() -> Ruleset {
    use Family::{V4, V6};
    let within = |fields: &[Field], set: &str| Match::InSet { fields: fields.to_vec(), set: name(set) };
    let beyond = |fields: &[Field], set: &str| Match::NotInSet { fields: fields.to_vec(), set: name(set) };
    let other = Match::NotEtherType;
    let drop = || vec![Action::Counter, Action::Verdict(Verdict::Drop)];
    let (ipv4, ipv6) = (|| Match::EtherType(EtherType::Ipv4), || Match::EtherType(EtherType::Ipv6));
    let of_ports = || within(&[Field::InInterface], "interfaces");
    let rules = vec![
        Rule::new(vec![of_ports(), other(EtherType::Arp), other(EtherType::Ipv4), other(EtherType::Ipv6)], drop()),
        Rule::new(vec![of_ports(), beyond(&[Field::InInterface, Field::Source(V4)], "interface-addresses4")], drop()),
        Rule::new(vec![of_ports(), beyond(&[Field::InInterface, Field::Source(V6)], "interface-addresses6")], drop()),
        Rule::new(vec![other(EtherType::Ipv4), within(&[Field::Source(V6)], "blocks6")], drop()),
        Rule::new(vec![Match::EtherType(EtherType::Ipv6), of_ports(), Match::Icmpv6Type(130, 136)], drop()),
        Rule::new(vec![Match::EtherType(EtherType::Ipv4), of_ports()], drop()),
        Rule::new(vec![Match::EtherType(EtherType::Arp)], drop()),
        Rule::new(vec![Match::EtherType(EtherType::Arp), Match::PrivateBytes(28)], vec![]),
        Rule::new(vec![ipv4(), Match::PrivateBytes(1), Match::Ipv4Protocol(103)], drop()),
        Rule::new(vec![ipv4(), Match::IgmpType(6, IgmpType::ReportV3), Match::FirstFragment], drop()),
        Rule::new(vec![Match::IgmpType(5, IgmpType::ReportV1)], drop()),
        Rule::new(vec![ipv4(), Match::IcmpType(3, 5), Match::QuotedDestination(ip("10.1.0.5"))], drop()),
        Rule::new(vec![Match::IcmpType(3, 3), Match::QuotedWithoutOptions, Match::NotQuotedProtocol(41)], drop()),
        Rule::new(vec![Match::NotFragment(V4), Match::IcmpType(11, 11)], drop()),
        Rule::new(vec![Match::Fragment(V4)], drop()),
        Rule::new(vec![ipv6(), Match::PlainIcmpv6Type(0, 127), Match::QuotedDestination(ip("fd00::5"))], drop()),
        Rule::new(vec![ipv6(), Match::NotFragment(V6), Match::Icmpv6Type(1, 1)], drop()),
        Rule::new(vec![ipv6(), Match::PlainIcmpv6Type(1, 1), Match::NotQuotedNextHeader(43)], drop()),
        Rule::new(vec![ipv6(), Match::Fragment(V6), Match::FragmentOfOther(6), Match::FragmentOfOther(17)], drop()),
        Rule::new(vec![Match::NextHeader(6)], drop()),
        Rule::new(vec![Match::SourceIs(ip("fd00::5")), Match::NextHeader(17)], drop()),
        Rule::new(vec![within(&[Field::Source(V4)], "blocks4"), beyond(&[Field::Destination(V4)], "blocks4")], drop())
            .commented("one family"),
        Rule::new(vec![Match::HopLimit(255), within(&[Field::Source(V6)], "peers6")], drop()),
        Rule::new(vec![Match::Protocol(Protocol::Udp), within(&[Field::DestinationPort], "ports")], drop()),
        Rule::new(vec![within(&[Field::L4Proto, Field::DestinationPort], "protocol-ports")], drop()),
        Rule::new(vec![], vec![Action::VerdictMap { field: Field::InInterface, map: name("interface-map") }]),
        Rule::new(vec![], vec![Action::VerdictMap { field: Field::Source(V4), map: name("hosts4") }]),
    ];
    let ruleset = Ruleset { table: Table::bridge(name("ringfence")), ..every_set() };
    with_chain(ruleset, "prerouting", Some(Hook::Prerouting), rules)
}

/// Dynamic sets of every shape, and the rules that fill them and log.
pub(crate) fn every_report() -> Ruleset {
    use Family::{V4, V6};
    use KeyType::{InetProto, InetService, Ipv4Addr, Ipv6Addr};
    let dynamic = Some(Dynamic { timeout_seconds: 60 });
    let table = |types: &[KeyType], comment: Option<&str>| Set {
        dynamic,
        size: Some(4096),
        comment: comment.map(Comment::new),
        ..Set::of(types)
    };
    let once = Limit { packets: 1, per: Period::Minute, burst: 1, over: false };
    let record = |fields: &[Field], set: &str| {
        let record = Action::Record { fields: fields.to_vec(), set: name(set), limit: once };
        vec![
            record,
            Action::Limit(Limit { packets: 100, per: Period::Second, burst: 5, over: false }),
            logged("ringfence a/b"),
        ]
    };
    let over = Limit { over: true, ..once };
    let above = Action::Record { fields: vec![Field::Source(V4)], set: name("sources4"), limit: over };
    let original = || Match::Direction(ConntrackDirection::Original);
    let rules = vec![
        Rule::new(vec![original()], record(&[Field::Source(V4), Field::Destination(V4), Field::L4Proto], "portless4")),
        Rule::new(
            vec![Match::NotInSet { fields: vec![Field::L4Proto], set: name("protocols") }],
            record(&[Field::Source(V6), Field::Destination(V6), Field::L4Proto, Field::DestinationPort], "flows6"),
        )
        .commented("with a comment"),
        Rule::new(vec![], record(&[Field::Source(V4)], "sources4")),
        Rule::new(vec![], vec![above, Action::Limit(over)]),
        Rule::new(vec![], vec![logged("no limit at all")]),
    ];
    let mut protocols = Set::of(&[InetProto]);
    protocols.elements.insert(Key::One(Datum::Protocol(Protocol::Sctp)), Element::default());
    let mut ruleset = empty();
    for (set_name, set) in [
        ("portless4", table(&[Ipv4Addr, Ipv4Addr, InetProto], Some("with a comment"))),
        ("flows6", table(&[Ipv6Addr, Ipv6Addr, InetProto, InetService], None)),
        ("sources4", table(&[Ipv4Addr], None)),
        ("protocols", protocols),
    ] {
        ruleset = with_set(ruleset, set_name, set);
    }
    with_chain(ruleset, "forward", Some(Hook::Forward), rules)
}

/// A log of frames.
pub(crate) fn every_bridge_report() -> Ruleset {
    let limit = Action::Limit(Limit { packets: 10, per: Period::Second, burst: 20, over: false });
    let rules =
        vec![Rule::new(vec![Match::NotEtherType(EtherType::Arp)], vec![limit, logged("ringfence deny/source")])];
    let ruleset = Ruleset { table: Table::bridge(name("ringfence")), ..empty() };
    with_chain(ruleset, "prerouting", Some(Hook::Prerouting), rules)
}

fn logged(prefix: &str) -> Action {
    Action::Log(Log { prefix: Comment::new(prefix), group: 9470, snap_bytes: 128 })
}
