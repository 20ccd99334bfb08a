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

/// Direction of a packet relative to the first packet of its flow (`ct direction`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConntrackDirection {
    /// The direction of the first packet: `original`, 0 in the kernel's `enum ip_conntrack_dir`.
    Original,
    /// The opposite direction: `reply`, 1.
    Reply,
}

/// Conntrack states that rules match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Conntrack cannot assign the packet to a flow, such as a TCP segment outside of the window.
    Invalid,
    /// The flow has had packets in both directions.
    Established,
    /// An ICMP error about a flow, or the first packet of a flow that a conntrack helper expects.
    Related,
    /// The first packet of a flow, or a later one in the original direction before any reply.
    New,
    /// Exempt from conntrack (`notrack`), or of a type that conntrack does not track, such as neighbour discovery.
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

    /// The keyword after `ct state` in nft's grammar.
    pub fn as_str(self) -> &'static str {
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
    /// 0x0800.
    Ipv4,
    /// 0x0806.
    Arp,
    /// 0x86dd.
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

    /// The keyword after `ether type` in nft's grammar.
    pub fn as_str(self) -> &'static str {
        match self {
            EtherType::Ipv4 => "ip",
            EtherType::Arp => "arp",
            EtherType::Ipv6 => "ip6",
        }
    }
}

/// IGMP messages: the queries of multicast routers, and the reports and leaves of hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IgmpType {
    /// RFC 1112, RFC 2236 and RFC 3376, distinguished by their lengths.
    Query,
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
    /// Messages of hosts, in the order of their numbers.
    pub const OF_HOSTS: [IgmpType; 4] = [IgmpType::ReportV1, IgmpType::ReportV2, IgmpType::Leave, IgmpType::ReportV3];

    /// The type, which is the first byte of the message.
    pub fn number(self) -> u8 {
        match self {
            IgmpType::Query => 0x11,
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
pub enum ReroutingOption {
    /// The IPv4 option LSRR (RFC 791).
    LooseSourceRoute,
    /// The IPv4 option SSRR (RFC 791).
    StrictSourceRoute,
    /// The IPv6 routing header (RFC 8200): segment routing (RFC 8754), RPL (RFC 6554).
    RoutingHeader,
}

impl ReroutingOption {
    /// IPv4 options first.
    pub const ALL: [ReroutingOption; 3] =
        [ReroutingOption::LooseSourceRoute, ReroutingOption::StrictSourceRoute, ReroutingOption::RoutingHeader];

    /// The address family whose header has the part.
    pub fn family(self) -> Family {
        match self {
            ReroutingOption::LooseSourceRoute | ReroutingOption::StrictSourceRoute => Family::V4,
            ReroutingOption::RoutingHeader => Family::V6,
        }
    }

    /// The IPv4 option type, or the number of the IPv6 extension header.
    pub fn number(self) -> u8 {
        match self {
            ReroutingOption::LooseSourceRoute => 131,
            ReroutingOption::StrictSourceRoute => 137,
            ReroutingOption::RoutingHeader => 43,
        }
    }

    /// The condition in nft's grammar.
    pub fn condition(self) -> &'static str {
        match self {
            ReroutingOption::LooseSourceRoute => "ip option lsrr exists",
            ReroutingOption::StrictSourceRoute => "ip option ssrr exists",
            ReroutingOption::RoutingHeader => "exthdr rt exists",
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
        /// Bits to compare; other tables and programs own the rest of the mark.
        mask: u32,
        /// Zero outside of `mask`.
        value: u32,
    },
    /// `ct state`: one of these states. An empty list never matches.
    State(Vec<State>),
    /// `ct direction`.
    Direction(ConntrackDirection),
    /// `ct status dnat`: the flow's destination was translated, as for a Service.
    DestinationTranslated,
    /// `ct status snat`: the flow's source was translated, its address or its port.
    SourceTranslated,
    /// `ct status` has the bit `expected` or `helper`: a conntrack helper was assigned to the flow, or has announced it.
    InvolvesHelper,
    /// `meta nfproto`, which only tables of routed packets support.
    Family(Family),
    /// `meta l4proto`: the transport protocol, after IPv6 extension headers.
    Protocol(Protocol),
    /// The transport protocol differs from this one.
    NotProtocol(Protocol),
    /// A TCP segment that opens no connection: with FIN, RST or ACK, or without SYN.
    NotTcpSyn,
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
    /// The header has this option or extension header (`exists` in nft's grammar).
    Rerouting(ReroutingOption),
    /// The destination port of the flow after translation is in a range, both ends included.
    FlowPort(u16, u16),
    /// The source port of the flow is in a range, both ends included.
    FlowSourcePort(u16, u16),
    /// The source port of this packet is in a range, both ends included.
    SourcePort(u16, u16),
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
    /// The packet has a route. A bridge that has called the hooks of IP for a frame gives it one
    /// (`br_nf_pre_routing_finish`). Needs `CONFIG_IP_ROUTE_CLASSID`.
    HasRoute,
    /// The first option of the IPv4 header is the router alert (RFC 2113).
    RouterAlert,
    /// The IPv4 header has a first option other than the router alert.
    NotRouterAlert,
    /// The concatenated fields are a key of the named set.
    InSet {
        /// Read in this order; their types are those of the set.
        fields: Vec<Field>,
        /// A set of the same table.
        set: Name,
    },
    /// The packet has all of the fields, and their concatenation is not a key of the named set.
    NotInSet {
        /// Read in this order; their types are those of the set.
        fields: Vec<Field>,
        /// A set of the same table. A dynamic set counts the packet in the element found.
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

/// The verdict that ends a chain or continues in another one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Final for this table only: chains of other tables at the hook still follow.
    Accept,
    /// Final for all tables; the sender gets no ICMP error.
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
    /// The qdisc's half of the handle, the upper 16 bits.
    pub major: u16,
    /// The class's half of the handle, the lower 16 bits.
    pub minor: u16,
}

impl PacketPriority {
    /// The kernel's number of the priority.
    pub fn number(self) -> u32 {
        u32::from(self.major) << 16 | u32::from(self.minor)
    }
}

/// A statement of nft's grammar; the actions of a rule run in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Counts packets and bytes. The counts are not part of the value.
    Counter,
    /// Replaces the bits of the connection mark under `mask` by `value`.
    SetMark {
        /// Bits to replace.
        mask: u32,
        /// Zero outside of `mask`.
        value: u32,
    },
    /// Sets the priority of the packet.
    SetPriority(PacketPriority),
    /// Ends the rule with the verdict.
    Verdict(Verdict),
    /// The verdict of the named map's element for the field; continues with the next rule if there is none.
    VerdictMap {
        /// The key of the map, which has a single field.
        field: Field,
        /// A verdict map of the same table (`vmap @…`).
        map: Name,
    },
    /// Continues the rule only for packets that the limit lets through.
    Limit(Limit),
    /// Adds an element with a counter for the fields to the dynamic set, or updates the counter and timeout of the
    /// existing one; continues the rule only for packets that the element's own limit lets through.
    Record {
        /// The key of the element; a packet that lacks one of the fields ends the rule.
        fields: Vec<Field>,
        /// A set with [`Set::dynamic`](crate::Set::dynamic), of the same table.
        set: Name,
        /// The limit of each element by itself.
        limit: Limit,
    },
    /// Sends the packet to the subscriber of the group.
    Log(Log),
}

/// `limit rate …`: a token bucket that holds `burst` packets and is refilled with `packets` of them per period.
/// `limit rate over …` continues the rule for the other packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// Refill of the bucket in each period.
    pub packets: u64,
    /// The period of the refill.
    pub per: Period,
    /// Size of the bucket in packets: nft's `burst … packets`.
    pub burst: u32,
    /// `over`: the limit applies to packets above the rate.
    pub over: bool,
}

/// Unit of time in `limit rate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// `/second`.
    Second,
    /// `/minute`.
    Minute,
}

impl Period {
    /// 1 or 60, the kernel's `NFTA_LIMIT_UNIT`.
    pub fn seconds(self) -> u64 {
        match self {
            Period::Second => 1,
            Period::Minute => 60,
        }
    }

    /// The keyword after `rate …/` in nft's grammar.
    pub fn as_str(self) -> &'static str {
        match self {
            Period::Second => "second",
            Period::Minute => "minute",
        }
    }
}

/// `log prefix … group … snaplen …`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// Sent with each packet (`NFULA_PREFIX`), by which the subscriber distinguishes rules.
    pub prefix: Comment,
    /// The group of nfnetlink_log.
    pub group: u16,
    /// Number of bytes of the packet to copy, from its network header on.
    pub snap_bytes: u32,
}

/// One rule of a chain: if all matches hold, the actions run in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Conditions, evaluated in order up to the first that fails. Without any, the rule applies to every packet.
    pub matches: Vec<Match>,
    /// Statements; without a verdict the next rule follows.
    pub actions: Vec<Action>,
    /// A change of the comment recreates the rules of the chain.
    pub comment: Option<Comment>,
}

impl Rule {
    /// A rule without a comment.
    pub fn new(matches: Vec<Match>, actions: Vec<Action>) -> Rule {
        Rule { matches, actions, comment: None }
    }

    /// The same rule with a comment, cleaned as in [`Comment::new`].
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

/// The hook of a base chain. Its policy is `accept` (rules only drop, since an accept in one table is not final for
/// other tables), except at the ingress of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Forwarded packets, in an `inet` table at priority `filter` (0).
    Forward,
    /// Forwarded packets before rules of other programs, in an `inet` table at priority -250.
    EarlyForward,
    /// Packets to the node itself, in an `inet` table at priority `filter` (0).
    Input,
    /// Received frames before other processing, in a `bridge` table at priority `dstnat` (-300).
    Prerouting,
    /// Frames forwarded from one port to another, in a `bridge` table at priority `filter` (-200).
    BridgeForward,
    /// Frames that the node itself sends to a port, forwarded packets included, in a `bridge` table at priority `filter`
    /// (-200).
    BridgeOutput,
    /// Received packets before defragmentation (-400) and conntrack, in an `inet` table at priority -450.
    EarlyPrerouting,
    /// Packets sent by the node itself, in an `inet` table at priority `filter` (0).
    Output,
    /// Packets that leave the node, after source address translation (100), in an `inet` table at priority 200.
    LatePostrouting,
    /// Frames received by the interface, in a `netdev` table at priority -500. The policy is `drop`.
    Ingress(InterfaceName),
}

impl Hook {
    /// The family of tables in which the hook exists.
    pub fn family(self) -> TableFamily {
        match self {
            Hook::Forward
            | Hook::EarlyForward
            | Hook::Input
            | Hook::Output
            | Hook::EarlyPrerouting
            | Hook::LatePostrouting => TableFamily::Inet,
            Hook::Prerouting | Hook::BridgeForward | Hook::BridgeOutput => TableFamily::Bridge,
            Hook::Ingress(_) => TableFamily::Netdev,
        }
    }
}

/// A base chain at a hook, or a chain that only jumps reach. Its name is its key in the ruleset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chain {
    /// Set for a base chain.
    pub hook: Option<Hook>,
    /// Evaluated in order.
    pub rules: Vec<Rule>,
}
