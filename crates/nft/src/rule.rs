//! Rules: conditions on a packet, and actions.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Comment, Family, HardwareAddress, InterfaceName, Name, Protocol, TableFamily};

/// A field of a packet or of its conntrack entry.
///
/// The `Flow…` fields are read from the entry, so they are the same for packets of both directions: the source before
/// any source translation, the destination after any destination translation, as in the first packet at the forward
/// hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// `ct original ip saddr`: the client that opened the flow.
    FlowSource(Family),
    /// `ct reply ip saddr`: the destination after translation.
    FlowDestination(Family),
    /// `ct reply proto-src`: the destination port after translation.
    FlowPort,
    /// `ct original proto-src`: the port of the client that opened the flow.
    FlowSourcePort,
    /// `ip saddr` of this packet.
    Source(Family),
    /// `ip daddr` of this packet.
    Destination(Family),
    /// `meta l4proto`.
    L4Proto,
    /// `th sport`.
    SourcePort,
    /// `th dport`.
    DestinationPort,
    /// `iifname`: the input interface of this packet; for a bridge, the port.
    InInterface,
    /// `oifname`: the output interface of this packet; for a bridge, the port.
    OutInterface,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    Original,
    Reply,
}

/// Conntrack states that rules match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    Invalid,
    Established,
    Related,
    New,
    Untracked,
}

impl State {
    /// The bit of the state in `ct state` (`NF_CT_STATE_*` in the kernel's `nf_conntrack_common.h`).
    pub fn bit(self) -> u32 {
        match self {
            State::Invalid => 1,
            State::Established => 2,
            State::Related => 4,
            State::New => 8,
            State::Untracked => 64,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            State::Invalid => "invalid",
            State::Established => "established",
            State::Related => "related",
            State::New => "new",
            State::Untracked => "untracked",
        }
    }
}

/// The EtherTypes that rules match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EtherType {
    Ipv4,
    Arp,
    Ipv6,
}

impl EtherType {
    /// The EtherType number.
    pub fn number(self) -> u16 {
        match self {
            EtherType::Ipv4 => 0x0800,
            EtherType::Arp => 0x0806,
            EtherType::Ipv6 => 0x86dd,
        }
    }

    /// The address family of packets in such frames.
    pub fn family(self) -> Option<Family> {
        match self {
            EtherType::Ipv4 => Some(Family::V4),
            EtherType::Ipv6 => Some(Family::V6),
            EtherType::Arp => None,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            EtherType::Ipv4 => "ip",
            EtherType::Arp => "arp",
            EtherType::Ipv6 => "ip6",
        }
    }
}

/// IGMP messages from hosts to multicast routers: reports and leaves. Queries, which routers send, are left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IgmpType {
    /// RFC 1112.
    ReportV1,
    /// RFC 2236.
    ReportV2,
    /// RFC 2236.
    Leave,
    /// RFC 3376.
    ReportV3,
}

impl IgmpType {
    pub const ALL: [IgmpType; 4] = [IgmpType::ReportV1, IgmpType::ReportV2, IgmpType::Leave, IgmpType::ReportV3];

    /// The type, which is the first byte of the message.
    pub fn number(self) -> u8 {
        match self {
            IgmpType::ReportV1 => 0x12,
            IgmpType::ReportV2 => 0x16,
            IgmpType::Leave => 0x17,
            IgmpType::ReportV3 => 0x22,
        }
    }
}

/// Parts of an IP header by which a router on the path replaces the destination address. Conntrack records the address
/// before the replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rerouting {
    /// The IPv4 option LSRR (RFC 791).
    LooseSourceRoute,
    /// The IPv4 option SSRR (RFC 791).
    StrictSourceRoute,
    /// The IPv6 routing header (RFC 8200): segment routing (RFC 8754), RPL (RFC 6554).
    RoutingHeader,
}

impl Rerouting {
    pub const ALL: [Rerouting; 3] =
        [Rerouting::LooseSourceRoute, Rerouting::StrictSourceRoute, Rerouting::RoutingHeader];

    pub fn family(self) -> Family {
        match self {
            Rerouting::LooseSourceRoute | Rerouting::StrictSourceRoute => Family::V4,
            Rerouting::RoutingHeader => Family::V6,
        }
    }

    /// The IPv4 option type, or the number of the IPv6 extension header.
    pub fn number(self) -> u8 {
        match self {
            Rerouting::LooseSourceRoute => 131,
            Rerouting::StrictSourceRoute => 137,
            Rerouting::RoutingHeader => 43,
        }
    }

    /// The condition in nft's grammar.
    pub fn condition(self) -> &'static str {
        match self {
            Rerouting::LooseSourceRoute => "ip option lsrr exists",
            Rerouting::StrictSourceRoute => "ip option ssrr exists",
            Rerouting::RoutingHeader => "exthdr rt exists",
        }
    }
}

/// The router alert option (RFC 2113) as the 4 bytes of its type, length and value.
pub const ROUTER_ALERT: u32 = 0x9404_0000;

/// One condition; a rule applies if all of its conditions hold. A condition is false if the packet lacks its field (no
/// conntrack entry, another family, no ports).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// The bits of the connection mark under `mask` equal `value`. `mask` is one run of bits that includes the highest.
    Mark {
        mask: u32,
        value: u32,
    },
    State(Vec<State>),
    Direction(Direction),
    /// `ct status dnat`: the flow's destination was translated, as for a Service.
    DestinationTranslated,
    /// `ct status ! snat`: the flow's source is not translated, neither its address nor its port.
    SourceNotTranslated,
    Family(Family),
    Protocol(Protocol),
    /// The transport protocol differs from this one.
    NotProtocol(Protocol),
    /// An ICMP type (IPv4) in a range, both ends included, if the header has no options. The type is read at a fixed
    /// offset, after a header of 20 bytes, as in [`Match::PlainIcmpv6Type`].
    IcmpType(u8, u8),
    /// The IGMP message after an IPv4 header of this length in words of 4 bytes.
    IgmpType(u8, IgmpType),
    /// An ICMPv6 type in a range, both ends included, wherever the kernel has found the ICMPv6 header.
    Icmpv6Type(u8, u8),
    /// An ICMPv6 type in a range, both ends included, directly after the IPv6 header. It is read at a fixed offset: the
    /// kernel determines the transport header and its offset before the first rule of a base chain
    /// (`nft_set_pktinfo_ipv6`), thus before [`Match::PrivateBytes`].
    PlainIcmpv6Type(u8, u8),
    /// [`Match::PlainIcmpv6Type`] of a packet that no router has forwarded: its hop limit is 255.
    OnLinkIcmpv6Type(u8, u8),
    /// An ICMPv6 type in a range, both ends included, after hop-by-hop options of 8 bytes, the length of the router
    /// alert. The hop limit is 1 (RFC 3810, section 5).
    ListenerReport(u8, u8),
    /// An ICMPv6 type in a range, both ends included, in the first fragment of a packet.
    FragmentedIcmpv6Type(u8, u8),
    /// The destination of the packet quoted by an ICMP error (RFC 792; RFC 4443, section 3). Like all conditions on
    /// ICMP messages it must follow [`Match::IcmpType`] or [`Match::PlainIcmpv6Type`].
    QuotedDestination(IpAddr),
    /// The IPv4 packet quoted by an ICMP error has no options.
    QuotedWithoutOptions,
    /// The protocol of the packet quoted by an ICMP error differs from this one.
    NotQuotedProtocol(u8),
    /// The next header of the IPv6 packet quoted by an ICMPv6 error.
    QuotedNextHeader(u8),
    /// The next header of the IPv6 packet quoted by an ICMPv6 error differs from this one.
    NotQuotedNextHeader(u8),
    /// The IPv6 hop limit of this packet. 255 means that no router has forwarded it: a router subtracts 1 before its
    /// forward hook, a bridge does not.
    HopLimit(u8),
    Rerouting(Rerouting),
    /// The destination port of the flow after translation is in a range, both ends included.
    FlowPort(u16, u16),
    /// The source port of the flow is in a range, both ends included.
    FlowSourcePort(u16, u16),
    /// The destination port of this packet is in a range, both ends included.
    DestinationPort(u16, u16),
    /// The packet's priority differs from this one.
    NotPriority(PacketPriority),
    /// The IPv4 header has this length in words of 4 bytes: 5 without options.
    Ipv4HeaderWords(u8),
    /// The length of the IPv4 header in words of 4 bytes differs from this one.
    NotIpv4HeaderWords(u8),
    /// The destination is a link-layer multicast address.
    MulticastFrame,
    /// The first option of the IPv4 header is the router alert (RFC 2113).
    RouterAlert,
    /// The IPv4 header has a first option other than the router alert.
    NotRouterAlert,
    /// The concatenated fields are a key of the named set.
    InSet {
        fields: Vec<Field>,
        set: Name,
    },
    /// The packet has all of the fields, and their concatenation is not a key of the named set.
    NotInSet {
        fields: Vec<Field>,
        set: Name,
    },
    /// The protocol number in the IP header, for protocols without ports that rules match.
    IpProtocol(u8),
    /// The EtherType of the frame, without VLAN tags.
    EtherType(EtherType),
    /// The first EtherType of the frame differs from this one: that of a frame with a VLAN tag is the tag's, which
    /// `meta protocol` skips. Only in tables of frames (`bridge`, `netdev`).
    NotEtherType(EtherType),
    /// The packet's source address is this one.
    SourceIs(IpAddr),
    /// The packet has at least this many bytes from its network header on, and the kernel moves them to memory that
    /// only it can write to: a sender may have left them in pages that it still maps (`splice`), and change them after
    /// conditions have read them. To that end the last byte is written back (`skb_ensure_writable`). It must follow a
    /// condition on the EtherType, and precede conditions on the protected fields.
    PrivateBytes(u16),
    /// The protocol of the IPv4 packet.
    Ipv4Protocol(u8),
    /// The protocol of the IPv4 packet differs from this one.
    NotIpProtocol(u8),
    /// The header directly after the IPv6 header, without extension headers between.
    NextHeader(u8),
    /// The packet is a fragment: the first, a later or, in IPv6, an atomic one (RFC 6946).
    Fragment(Family),
    /// The packet is not a fragment.
    NotFragment(Family),
    /// The IPv4 packet is not a fragment, or is the first one.
    FirstFragment,
    /// The packet is a fragment of an IPv6 packet whose first header after the fragment header differs from this one.
    FragmentOfOther(u8),
    /// The source hardware address of the frame differs from this one. Only in tables of frames.
    NotFromHardware(HardwareAddress),
    /// The ARP packet is a request. Only in tables of frames, like the other conditions on ARP.
    ArpRequest,
    /// The ARP packet's sender protocol address is this one.
    ArpSender(Ipv4Addr),
    /// The ARP packet's target protocol address is this one.
    ArpTarget(Ipv4Addr),
    /// The ARP packet's sender hardware address differs from this one.
    NotArpSenderHardware(HardwareAddress),
    /// The target of a neighbour solicitation or advertisement is this address (RFC 4861, sections 4.3 and 4.4).
    NeighbourTarget(Ipv6Addr),
    /// A message of neighbour discovery has options, and the first one is not this option with this hardware address.
    NotLinkAddress(LinkAddressOption, HardwareAddress),
}

/// The options of neighbour discovery that contain a hardware address (RFC 4861, section 4.6.1), by the message that
/// may have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LinkAddressOption {
    /// The source's address in a router solicitation.
    RouterSolicitation,
    /// The source's address in a neighbour solicitation.
    NeighbourSolicitation,
    /// The target's address in a neighbour advertisement.
    NeighbourAdvertisement,
}

impl LinkAddressOption {
    /// Length in bytes of the message without options (RFC 4861, sections 4.1, 4.3 and 4.4).
    pub fn message_bytes(self) -> u16 {
        match self {
            LinkAddressOption::RouterSolicitation => 8,
            LinkAddressOption::NeighbourSolicitation | LinkAddressOption::NeighbourAdvertisement => 24,
        }
    }

    /// The option: its type, its length in units of 8 bytes, and the address.
    pub fn with(self, HardwareAddress([a, b, c, d, e, f]): HardwareAddress) -> [u8; 8] {
        let kind = match self {
            LinkAddressOption::RouterSolicitation | LinkAddressOption::NeighbourSolicitation => 1,
            LinkAddressOption::NeighbourAdvertisement => 2,
        };
        [kind, 1, a, b, c, d, e, f]
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Accept,
    Drop,
    /// Continues in another chain without returning.
    Goto(Name),
    /// Continues in another chain, and returns to the next rule if that chain ends without a verdict.
    Jump(Name),
}

impl Verdict {
    /// The chain that the verdict jumps or goes to.
    pub fn target(&self) -> Option<&Name> {
        match self {
            Verdict::Goto(chain) | Verdict::Jump(chain) => Some(chain),
            Verdict::Accept | Verdict::Drop => None,
        }
    }
}

/// The priority of a packet (`meta priority`, `skb->priority`): a traffic control handle, which a device that passes
/// the packet to another network namespace resets to zero (`____dev_forward_skb`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketPriority {
    pub major: u16,
    pub minor: u16,
}

impl PacketPriority {
    /// The kernel's number of the priority.
    pub fn number(self) -> u32 {
        u32::from(self.major) << 16 | u32::from(self.minor)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Counts packets and bytes. The counts are not part of the value.
    Counter,
    /// Replaces the bits of the connection mark under `mask` by `value`.
    SetMark {
        mask: u32,
        value: u32,
    },
    /// Sets the priority of the packet.
    SetPriority(PacketPriority),
    Verdict(Verdict),
    /// The verdict of the named map's element for the field; continues with the next rule if there is none.
    VerdictMap {
        field: Field,
        map: Name,
    },
    /// Continues the rule only for packets that the limit lets through.
    Limit(Limit),
    /// Adds an element with a counter for the fields to the dynamic set, or updates the counter and timeout of the
    /// existing one; continues the rule only for packets that the element's own limit lets through.
    Record {
        fields: Vec<Field>,
        set: Name,
        limit: Limit,
    },
    /// Sends the packet to the subscriber of the group.
    Log(Log),
}

/// `limit rate …`: a token bucket that holds `burst` packets and is refilled with `packets` of them per period.
/// `limit rate over …` continues the rule for the other packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub packets: u64,
    pub per: Period,
    pub burst: u32,
    /// `over`: the limit applies to packets above the rate.
    pub over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    Second,
    Minute,
}

impl Period {
    pub fn seconds(self) -> u64 {
        match self {
            Period::Second => 1,
            Period::Minute => 60,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Period::Second => "second",
            Period::Minute => "minute",
        }
    }
}

/// `log prefix … group … snaplen …`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    pub prefix: Comment,
    /// The group of nfnetlink_log.
    pub group: u16,
    /// Number of bytes of the packet to copy, from its network header on.
    pub snap_bytes: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    pub matches: Vec<Match>,
    pub actions: Vec<Action>,
    pub comment: Option<Comment>,
}

impl Rule {
    pub fn new(matches: Vec<Match>, actions: Vec<Action>) -> Rule {
        Rule { matches, actions, comment: None }
    }

    pub fn commented(self, text: &str) -> Rule {
        Rule { comment: Some(Comment::new(text)), ..self }
    }

    /// The verdict of the rule itself, without those of verdict maps.
    pub(crate) fn verdict(&self) -> Option<&Verdict> {
        self.actions.iter().find_map(|a| match a {
            Action::Verdict(v) => Some(v),
            Action::Counter
            | Action::SetMark { .. }
            | Action::SetPriority(_)
            | Action::VerdictMap { .. }
            | Action::Limit(_)
            | Action::Record { .. }
            | Action::Log(_) => None,
        })
    }

    /// The sets and maps that the rule refers to.
    pub fn sets(&self) -> impl Iterator<Item = &Name> {
        let matched = self.matches.iter().filter_map(Match::set);
        let acted_on = self.actions.iter().filter_map(|action| match action {
            Action::VerdictMap { map: set, .. } | Action::Record { set, .. } => Some(set),
            Action::Counter
            | Action::SetMark { .. }
            | Action::SetPriority(_)
            | Action::Verdict(_)
            | Action::Limit(_)
            | Action::Log(_) => None,
        });
        matched.chain(acted_on)
    }

    /// Whether the rule only reports packets (limit, record, log): such a rule never decides.
    pub fn only_reports(&self) -> bool {
        !self.actions.is_empty() && self.actions.iter().all(Action::reports)
    }
}

impl Action {
    /// Whether the action reports packets instead of deciding.
    pub(crate) fn reports(&self) -> bool {
        match self {
            Action::Limit(_) | Action::Record { .. } | Action::Log(_) => true,
            Action::Counter
            | Action::SetMark { .. }
            | Action::SetPriority(_)
            | Action::Verdict(_)
            | Action::VerdictMap { .. } => false,
        }
    }
}

/// The hook of a base chain. Its policy is `accept` (Ringfence only drops, since an accept in one table is not final
/// for other tables), except at the ingress of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Forwarded packets, in an `inet` table at priority `filter` (0).
    Forward,
    /// Packets to the node itself, in an `inet` table at priority `filter` (0).
    Input,
    /// Received frames before other processing, in a `bridge` table at priority `dstnat` (-300).
    Prerouting,
    /// Frames forwarded from one port to another, in a `bridge` table at priority `filter` (-200).
    BridgeForward,
    /// Received packets before defragmentation (-400) and conntrack, in an `inet` table at priority -450.
    EarlyPrerouting,
    /// Packets sent by the node itself, in an `inet` table at priority `filter` (0).
    Output,
    /// Frames received by the interface, in a `netdev` table at priority -500. The policy is `drop`.
    Ingress(InterfaceName),
}

impl Hook {
    /// The family of tables in which the hook exists.
    pub fn family(self) -> TableFamily {
        match self {
            Hook::Forward | Hook::Input | Hook::Output | Hook::EarlyPrerouting => TableFamily::Inet,
            Hook::Prerouting | Hook::BridgeForward => TableFamily::Bridge,
            Hook::Ingress(_) => TableFamily::Netdev,
        }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// Set for a base chain.
    pub hook: Option<Hook>,
    pub rules: Vec<Rule>,
}
