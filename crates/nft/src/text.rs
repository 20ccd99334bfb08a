//! The ruleset as text for `nft -f` and for people. The output depends only on the value.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use crate::{
    Action, Chain, Comment, ConntrackDirection, Dynamic, Element, Family, Field, Hook, Key, Limit, Log, Match, Name,
    PacketPriority, ROUTER_ALERT, Rule, Ruleset, Set, Table, Verdict,
};

impl Display for Ruleset {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        TableHead { table: &self.table, comment: &self.comment }.fmt(f)?;
        for (name, set) in &self.sets {
            SetBlock { name, set }.fmt(f)?;
        }
        for (name, chain) in &self.chains {
            ChainBlock { name, chain }.fmt(f)?;
        }
        f.write_str(TABLE_END)
    }
}

impl Ruleset {
    /// The text in one part per set or chain, so that the text of a large table is never in memory as a whole.
    pub fn into_text_parts(self) -> impl Iterator<Item = String> + Send {
        let Ruleset { table, protected: _, comment, sets, chains } = self;
        let head = TableHead { table: &table, comment: &comment }.to_string();
        let sets = sets.into_iter().map(|(name, set)| SetBlock { name: &name, set: &set }.to_string());
        let chains = chains.into_iter().map(|(name, chain)| ChainBlock { name: &name, chain: &chain }.to_string());
        std::iter::once(head).chain(sets).chain(chains).chain(std::iter::once(TABLE_END.to_owned()))
    }
}

/// Protection is omitted: nft 1.0.6 has no keywords for the flags `owner` and `persist`.
struct TableHead<'a> {
    table: &'a Table,
    comment: &'a Comment,
}

const TABLE_END: &str = "}\n";

impl Display for TableHead<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "table {} {{", self.table)?;
        writeln!(f, "\tcomment {}", self.comment)
    }
}

struct SetBlock<'a> {
    name: &'a Name,
    set: &'a Set,
}

impl Display for SetBlock<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let SetBlock { name, set } = self;
        writeln!(f, "\n\t{} {name} {{", set_word(set))?;
        writeln!(f, "\t\ttype {}", SetType(set))?;
        if let Some(size) = set.size {
            writeln!(f, "\t\tsize {size}")?;
        }
        if let Some(flags) = set_flags(set) {
            writeln!(f, "\t\tflags {flags}")?;
        }
        if let Some(Dynamic { timeout_seconds }) = set.dynamic {
            writeln!(f, "\t\ttimeout {timeout_seconds}s")?;
        }
        if let Some(comment) = &set.comment {
            writeln!(f, "\t\tcomment {comment}")?;
        }
        for (i, (key, element)) in set.elements.iter().enumerate() {
            let lead = if i == 0 { "elements = { " } else { "             " };
            let tail = if i + 1 == set.elements.len() { " }" } else { "," };
            writeln!(f, "\t\t{lead}{}{tail}", ElementText(&key, element))?;
        }
        writeln!(f, "\t}}")
    }
}

struct ChainBlock<'a> {
    name: &'a Name,
    chain: &'a Chain,
}

impl Display for ChainBlock<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n\tchain {} {{", self.name)?;
        if let Some(hook) = self.chain.hook {
            writeln!(f, "\t\t{}", HookText(hook))?;
        }
        for rule in &self.chain.rules {
            writeln!(f, "\t\t{rule}")?;
        }
        writeln!(f, "\t}}")
    }
}

/// `map` or `set`.
pub(crate) fn set_word(set: &Set) -> &'static str {
    if set.verdicts { "map" } else { "set" }
}

/// The value of `flags`.
pub(crate) fn set_flags(set: &Set) -> Option<&'static str> {
    match (set.interval, set.dynamic) {
        (true, _) => Some("interval"),
        (false, Some(_)) => Some("dynamic,timeout"),
        (false, None) => None,
    }
}

/// `ipv4_addr . inet_service : verdict`
pub(crate) struct SetType<'a>(pub(crate) &'a Set);

impl Display for SetType<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.0.types.iter().map(|t| t.as_str()).collect();
        f.write_str(&words.join(" . "))?;
        if self.0.verdicts { f.write_str(" : verdict") } else { Ok(()) }
    }
}

/// `10.0.0.2 comment "shop/web" : goto egress/shop/web`
pub(crate) struct ElementText<'a>(pub(crate) &'a Key, pub(crate) &'a Element);

impl Display for ElementText<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        if let Some(comment) = &self.1.comment {
            write!(f, " comment {comment}")?;
        }
        match &self.1.verdict {
            Some(verdict) => write!(f, " : {verdict}"),
            None => Ok(()),
        }
    }
}

pub(crate) struct HookText(pub(crate) Hook);

impl Display for HookText {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Hook::Forward | Hook::BridgeForward => {
                f.write_str("type filter hook forward priority filter; policy accept;")
            }
            Hook::Input => f.write_str("type filter hook input priority filter; policy accept;"),
            Hook::Output | Hook::BridgeOutput => f.write_str("type filter hook output priority filter; policy accept;"),
            Hook::EarlyForward => f.write_str("type filter hook forward priority -250; policy accept;"),
            Hook::LatePostrouting => f.write_str("type filter hook postrouting priority 200; policy accept;"),
            Hook::Prerouting => f.write_str("type filter hook prerouting priority -300; policy accept;"),
            Hook::EarlyPrerouting => f.write_str("type filter hook prerouting priority -450; policy accept;"),
            Hook::Ingress(interface) => {
                write!(f, "type filter hook ingress device \"{interface}\" priority -500; policy drop;")
            }
        }
    }
}

impl Display for Rule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = self.matches.iter().map(Match::to_string).collect();
        words.extend(self.actions.iter().map(Action::to_string));
        if let Some(comment) = &self.comment {
            words.push(format!("comment {comment}"));
        }
        f.write_str(&words.join(" "))
    }
}

impl Display for Match {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Match::Mark { mask, value } => write!(f, "ct mark & {mask:#010x} == {value:#010x}"),
            Match::State(states) => {
                let words: Vec<_> = states.iter().map(|s| s.as_str()).collect();
                write!(f, "ct state {}", words.join(","))
            }
            Match::Direction(ConntrackDirection::Original) => f.write_str("ct direction original"),
            Match::Direction(ConntrackDirection::Reply) => f.write_str("ct direction reply"),
            Match::DestinationTranslated => f.write_str("ct status dnat"),
            Match::SourceTranslated => f.write_str("ct status snat"),
            // nft has no word for the bit of `IPS_HELPER`.
            Match::InvolvesHelper => f.write_str("ct status 0x2001"),
            Match::Family(Family::V4) => f.write_str("meta nfproto ipv4"),
            Match::Family(Family::V6) => f.write_str("meta nfproto ipv6"),
            Match::Protocol(protocol) => write!(f, "meta l4proto {protocol}"),
            Match::NotProtocol(protocol) => write!(f, "meta l4proto != {protocol}"),
            Match::NotTcpSyn => f.write_str("tcp flags & (fin | syn | rst | ack) != syn"),
            // nft's `icmp` and `icmpv6` read where the kernel has found the transport header. A fixed offset needs a
            // raw payload: 20 or 40 bytes, and 8 more after an extension header.
            Match::IcmpType(first, last) => write!(f, "ip protocol 1 @nh,160,8 {}", Span(*first, *last)),
            Match::PlainIcmpv6Type(first, last) => write!(f, "ip6 nexthdr 58 @nh,320,8 {}", Span(*first, *last)),
            Match::OnLinkIcmpv6Type(first, last) => {
                write!(f, "ip6 nexthdr 58 ip6 hoplimit 255 @nh,320,8 {}", Span(*first, *last))
            }
            Match::ListenerReport(first, last) => {
                write!(f, "ip6 nexthdr 0 ip6 hoplimit 1 @nh,320,16 0x3a00 @nh,384,8 {}", Span(*first, *last))
            }
            Match::FragmentedIcmpv6Type(first, last) => {
                let span = Span(*first, *last);
                write!(f, "ip6 nexthdr 44 @nh,320,8 58 @nh,336,16 & 0xfff8 == 0 @nh,384,8 {span}")
            }
            Match::Icmpv6Type(first, last) => write!(f, "icmpv6 type {}", Span(*first, *last)),
            Match::IgmpType(words, kind) => {
                write!(f, "ip protocol 2 ip hdrlength {words} @nh,{},8 {:#04x}", u16::from(*words) * 32, kind.number())
            }
            Match::HopLimit(limit) => write!(f, "ip6 hoplimit {limit}"),
            Match::Rerouting(rerouting) => f.write_str(rerouting.condition()),
            Match::FlowPort(first, last) => write!(f, "{} {}", Field::FlowPort, Span(*first, *last)),
            Match::FlowSourcePort(first, last) => write!(f, "{} {}", Field::FlowSourcePort, Span(*first, *last)),
            Match::SourcePort(first, last) => write!(f, "{} {}", Field::SourcePort, Span(*first, *last)),
            Match::DestinationPort(first, last) => write!(f, "{} {}", Field::DestinationPort, Span(*first, *last)),
            Match::MulticastFrame => f.write_str("meta pkttype multicast"),
            // The kernel reads no realm of a packet without a route (`nft_meta_get_eval`).
            Match::HasRoute => f.write_str("meta rtclassid & 0 == 0"),
            Match::Ipv4HeaderWords(words) => write!(f, "ip hdrlength {words}"),
            Match::NotIpv4HeaderWords(words) => write!(f, "ip hdrlength != {words}"),
            Match::NotPriority(priority) => write!(f, "meta priority != {priority}"),
            // nft has no keyword for the first option, which follows the 20 bytes of the header.
            Match::RouterAlert => write!(f, "@nh,160,32 {ROUTER_ALERT:#010x}"),
            Match::NotRouterAlert => write!(f, "@nh,160,32 != {ROUTER_ALERT:#010x}"),
            Match::InSet { fields, set } => write!(f, "{} @{set}", concatenation(fields)),
            Match::NotInSet { fields, set } => write!(f, "{} != @{set}", concatenation(fields)),
            Match::IpProtocol(number) => write!(f, "meta l4proto {number}"),
            Match::EtherType(kind) => write!(f, "meta protocol {}", kind.as_str()),
            Match::NotEtherType(kind) => write!(f, "ether type != {}", kind.as_str()),
            Match::SourceIs(IpAddr::V4(address)) => write!(f, "ip saddr {address}"),
            Match::SourceIs(IpAddr::V6(address)) => write!(f, "ip6 saddr {address}"),
            Match::PrivateBytes(bytes) => {
                let last = u32::from(*bytes).saturating_sub(1) * 8;
                write!(f, "@nh,{last},8 set @nh,{last},8")
            }
            Match::Ipv4Protocol(number) => write!(f, "ip protocol {number}"),
            Match::NotIpProtocol(number) => write!(f, "ip protocol != {number}"),
            Match::NextHeader(number) => write!(f, "ip6 nexthdr {number}"),
            Match::Fragment(Family::V4) => f.write_str("ip frag-off & 0x3fff != 0"),
            Match::Fragment(Family::V6) => f.write_str("exthdr frag exists"),
            Match::NotFragment(Family::V4) => f.write_str("ip frag-off & 0x3fff == 0"),
            Match::NotFragment(Family::V6) => f.write_str("exthdr frag missing"),
            Match::FirstFragment => f.write_str("ip frag-off & 0x1fff == 0"),
            Match::FragmentOfOther(number) => write!(f, "frag nexthdr != {number}"),
            Match::NotFromHardware(address) => write!(f, "ether saddr != {address}"),
            Match::ArpRequest => f.write_str("arp operation request"),
            Match::ArpSender(address) => write!(f, "arp saddr ip {address}"),
            Match::ArpTarget(address) => write!(f, "arp daddr ip {address}"),
            Match::NotArpSenderHardware(address) => write!(f, "arp saddr ether != {address}"),
            // nft has no keyword for the quoted packet. It follows the 64 bits of the ICMP header, and its destination
            // is at byte 16 of it (IPv4) or 24 (IPv6).
            Match::QuotedDestination(IpAddr::V4(address)) => write!(f, "@nh,352,32 {:#010x}", u32::from(*address)),
            Match::QuotedDestination(IpAddr::V6(address)) => write!(f, "@nh,576,128 {:#034x}", u128::from(*address)),
            Match::QuotedWithoutOptions => f.write_str("@nh,224,8 0x45"),
            Match::NotQuotedProtocol(number) => write!(f, "@nh,296,8 != {number}"),
            Match::QuotedNextHeader(number) => write!(f, "@nh,432,8 {number}"),
            Match::NotQuotedNextHeader(number) => write!(f, "@nh,432,8 != {number}"),
            // The target follows the first 64 bits of the ICMPv6 message.
            Match::NeighbourTarget(address) => write!(f, "@nh,384,128 {:#034x}", u128::from(*address)),
            // The options follow the IPv6 header and the message.
            Match::NotLinkAddress(option, address) => {
                let (bytes, option) = (option.message_bytes(), u64::from_be_bytes(option.with(*address)));
                write!(f, "ip6 length != {bytes} @nh,{},64 != {option:#018x}", (40 + bytes) * 8)
            }
        }
    }
}

/// One number, or a range of them.
struct Span<T>(T, T);

impl<T: Display + PartialEq> Display for Span<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Span(first, last) = self;
        if first == last { write!(f, "{first}") } else { write!(f, "{first}-{last}") }
    }
}

fn concatenation(fields: &[Field]) -> String {
    fields.iter().map(Field::to_string).collect::<Vec<_>>().join(" . ")
}

impl Display for Field {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Field::FlowSource(Family::V4) => "ct original ip saddr",
            Field::FlowSource(Family::V6) => "ct original ip6 saddr",
            Field::FlowDestination(Family::V4) => "ct reply ip saddr",
            Field::FlowDestination(Family::V6) => "ct reply ip6 saddr",
            Field::FlowPort => "ct reply proto-src",
            Field::FlowSourcePort => "ct original proto-src",
            Field::Source(Family::V4) => "ip saddr",
            Field::Source(Family::V6) => "ip6 saddr",
            Field::Destination(Family::V4) => "ip daddr",
            Field::Destination(Family::V6) => "ip6 daddr",
            Field::L4Proto => "meta l4proto",
            Field::SourcePort => "th sport",
            Field::DestinationPort => "th dport",
            Field::InInterface => "iifname",
            Field::OutInterface => "oifname",
        })
    }
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Action::Counter => f.write_str("counter"),
            Action::SetMark { mask, value } => write!(f, "ct mark set ct mark & {:#010x} | {value:#010x}", !mask),
            Action::SetPriority(priority) => write!(f, "meta priority set {priority}"),
            Action::Verdict(verdict) => verdict.fmt(f),
            Action::VerdictMap { field, map } => write!(f, "{field} vmap @{map}"),
            Action::Limit(limit) => limit.fmt(f),
            Action::Record { fields, set, limit } => {
                write!(f, "update @{set} {{ {} counter {limit} }}", concatenation(fields))
            }
            Action::Log(Log { prefix, group, snap_bytes }) => {
                write!(f, "log prefix {prefix} group {group} snaplen {snap_bytes}")
            }
        }
    }
}

impl Display for PacketPriority {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.major, self.minor)
    }
}

impl Display for Limit {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Limit { packets, per, burst, over } = self;
        let over = if *over { "over " } else { "" };
        write!(f, "limit rate {over}{packets}/{} burst {burst} packets", per.as_str())
    }
}

impl Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Datum, EtherType, InterfaceName, KeyType};

    #[test]
    fn bridge_table_prints_in_nft_syntax() {
        let name = |text| Name::new(text).unwrap();
        let mut ports = Set::of(&[KeyType::InterfaceName, KeyType::Ipv4Addr]);
        let key = Key::Two(Datum::Interface(InterfaceName::new("veth0").unwrap()), Datum::V4([10, 0, 0, 2].into()));
        ports.elements.insert(key, Element::default());
        let drop = || vec![Action::Verdict(Verdict::Drop)];
        let fields = vec![Field::InInterface, Field::Source(Family::V4)];
        let rules = vec![
            Rule::new(vec![Match::NotInSet { fields, set: name("ports4") }], drop()),
            Rule::new(vec![Match::NotEtherType(EtherType::Arp), Match::NotEtherType(EtherType::Ipv6)], drop()),
        ];
        let mut ruleset = Ruleset::new(Table::bridge(name("ringfence")), Comment::new("x")).protected(true);
        ruleset.sets.insert(name("ports4"), Arc::new(ports));
        ruleset.chains.insert(name("prerouting"), Arc::new(Chain { hook: Some(Hook::Prerouting), rules }));
        let expected = "\
table bridge ringfence {
\tcomment \"x\"

\tset ports4 {
\t\ttype ifname . ipv4_addr
\t\telements = { \"veth0\" . 10.0.0.2 }
\t}

\tchain prerouting {
\t\ttype filter hook prerouting priority -300; policy accept;
\t\tiifname . ip saddr != @ports4 drop
\t\tether type != arp ether type != ip6 drop
\t}
}
";
        assert_eq!(ruleset.to_string(), expected);
        assert_eq!(ruleset.into_text_parts().collect::<String>(), expected);
    }
}
