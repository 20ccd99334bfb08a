//! Rules: what a packet is matched by, and what is done with it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{Comment, Family, HardwareAddress, InterfaceName, Name, Protocol, TableFamily};

/// A value that is read from a packet or from its connection tracking entry.
///
/// The `Flow…` fields come from the entry, so they are the same for packets of both directions: the source before
/// any source translation, the destination after any destination translation, as the first packet showed them in
/// the forward hook.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// `ct original ip saddr`: who opened the flow.
    FlowSource(Family),
    /// `ct reply ip saddr`: who answers it.
    FlowDestination(Family),
    /// `ct reply proto-src`: the port that answers.
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
    /// `iifname`: the interface that this packet came in by. On a bridge it is the port.
    InInterface,
    /// `oifname`: the interface that this packet leaves by. On a bridge it is the port.
    OutInterface,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    Original,
    Reply,
}

/// States of connection tracking that rules ask for.
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

/// The protocols that a frame can carry, as far as rules ask for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EtherType {
    Ipv4,
    Arp,
    Ipv6,
}

impl EtherType {
    /// The number in the frame.
    pub fn number(self) -> u16 {
        match self {
            EtherType::Ipv4 => 0x0800,
            EtherType::Arp => 0x0806,
            EtherType::Ipv6 => 0x86dd,
        }
    }

    /// The family of the packets that such frames carry.
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

/// IGMP messages that hosts send to multicast routers: reports and leaves. Queries, which routers send, are not listed.
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

    /// The first byte of the message.
    pub fn number(self) -> u8 {
        match self {
            IgmpType::ReportV1 => 0x12,
            IgmpType::ReportV2 => 0x16,
            IgmpType::Leave => 0x17,
            IgmpType::ReportV3 => 0x22,
        }
    }
}

/// Parts of an IP header by which a router on the path replaces the destination address. Connection tracking records
/// the address from before that.
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

    /// The option type of IPv4, or the number of the extension header of IPv6.
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

/// The option router alert (RFC 2113) as the 4 bytes of its type, length and value.
pub const ROUTER_ALERT: u32 = 0x9404_0000;

/// One condition; a rule applies when all of its conditions hold. A field that the packet does not have (no
/// connection, another family, no ports) makes its condition false.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// The bits of the connection mark under `mask` equal `value`. `mask` is one run of bits that ends at the top.
    Mark {
        mask: u32,
        value: u32,
    },
    State(Vec<State>),
    Direction(Direction),
    /// `ct status dnat`: the flow's destination was translated, as that of a Service is.
    DestinationTranslated,
    Family(Family),
    Protocol(Protocol),
    /// The packet has another transport protocol than this one.
    NotProtocol(Protocol),
    /// An ICMP type (IPv4) in a range, both ends included, where the header has no options. What follows a header of
    /// 20 bytes is read at its place in the packet, as in [`Match::PlainIcmpv6Type`].
    IcmpType(u8, u8),
    /// The IGMP message behind an IPv4 header of this length in words of 4 bytes.
    IgmpType(u8, IgmpType),
    /// An ICMPv6 type in a range, both ends included, wherever the kernel has found the ICMPv6 header.
    Icmpv6Type(u8, u8),
    /// An ICMPv6 type in a range, both ends included, right behind the IPv6 header. It is read at its place in the
    /// packet: where the transport header is, and which, the kernel finds out before the first rule of a base chain
    /// (`nft_set_pktinfo_ipv6`), thus before [`Match::PrivateBytes`].
    PlainIcmpv6Type(u8, u8),
    /// [`Match::PlainIcmpv6Type`] of a packet that no router has passed on: its hop limit is 255.
    OnLinkIcmpv6Type(u8, u8),
    /// An ICMPv6 type in a range, both ends included, behind hop-by-hop options of 8 bytes, which is the length of the
    /// router alert. The hop limit is 1 (RFC 3810, section 5).
    ListenerReport(u8, u8),
    /// An ICMPv6 type in a range, both ends included, in the first fragment of a packet.
    FragmentedIcmpv6Type(u8, u8),
    /// The packet that an ICMP error quotes was sent to this address (RFC 792; RFC 4443, section 3). It comes after
    /// [`Match::IcmpType`] or [`Match::PlainIcmpv6Type`], as the other conditions on ICMP messages.
    QuotedDestination(IpAddr),
    /// The IPv4 packet that an ICMP error quotes has no options.
    QuotedWithoutOptions,
    /// The packet that an ICMP error quotes carries something else than this.
    NotQuotedProtocol(u8),
    /// The IPv6 header of the packet that an ICMPv6 error quotes announces this.
    QuotedNextHeader(u8),
    /// The IPv6 header of the packet that an ICMPv6 error quotes announces another header than this.
    NotQuotedNextHeader(u8),
    /// The IPv6 hop limit of this packet. 255 says that no router has passed it on: one takes 1 off before its forward
    /// hook, a bridge does not.
    HopLimit(u8),
    Rerouting(Rerouting),
    /// The port that answers the flow is in a range, both ends included.
    FlowPort(u16, u16),
    /// The port from which the flow was opened is in a range, both ends included.
    FlowSourcePort(u16, u16),
    /// The destination port of this packet is in a range, both ends included.
    DestinationPort(u16, u16),
    /// The packet has another priority than this.
    NotPriority(PacketPriority),
    /// The IPv4 header has this length in words of 4 bytes: 5 without options.
    Ipv4HeaderWords(u8),
    /// The IPv4 header has another length than this, in words of 4 bytes.
    NotIpv4HeaderWords(u8),
    /// The packet was sent to a multicast address of the link layer.
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
    /// The packet has all of the fields, and their concatenation is no key of the named set.
    NotInSet {
        fields: Vec<Field>,
        set: Name,
    },
    /// The number in the IP header is this one, which has no ports that rules look at.
    IpProtocol(u8),
    /// The frame carries this protocol.
    EtherType(EtherType),
    /// The frame says that it carries something else than this, first of all: a frame with a VLAN tag carries the tag,
    /// which `meta protocol` passes over. In tables of frames only (`bridge`, `netdev`).
    NotEtherType(EtherType),
    /// The packet's source address is this one.
    SourceIs(IpAddr),
    /// The packet has as many bytes as this, from its network header on, and from here on they are in memory that
    /// only the kernel can write to: a sender may have left them in pages that it still maps (`splice`), and change them
    /// behind the conditions that have read them. For that the last of them is written back (`skb_ensure_writable`). It
    /// comes after a condition on what the frame carries, and before those whose fields are to stay.
    PrivateBytes(u16),
    /// The IPv4 packet carries this protocol.
    Ipv4Protocol(u8),
    /// The IPv4 packet carries something else than this protocol.
    NotIpProtocol(u8),
    /// This header follows the IPv6 header at once, without extension headers between.
    NextHeader(u8),
    /// The packet is a fragment: the first, a later or, in IPv6, the only one (RFC 6946).
    Fragment(Family),
    /// The packet is no fragment.
    NotFragment(Family),
    /// The IPv4 packet is no fragment, or the first one.
    FirstFragment,
    /// The packet is a fragment of an IPv6 packet whose part behind the fragment header begins with another header than
    /// this one.
    FragmentOfOther(u8),
    /// The frame's sender is another one than this. In tables of frames only.
    NotFromHardware(HardwareAddress),
    /// The ARP packet is a request. In tables of frames only, as the other conditions on ARP.
    ArpRequest,
    /// The ARP packet's sender protocol address is this one.
    ArpSender(Ipv4Addr),
    /// The ARP packet's target protocol address is this one.
    ArpTarget(Ipv4Addr),
    /// The ARP packet's sender hardware address is another one than this.
    NotArpSenderHardware(HardwareAddress),
    /// The target of a neighbour solicitation or advertisement is this address (RFC 4861, sections 4.3 and 4.4).
    NeighbourTarget(Ipv6Addr),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    Accept,
    Drop,
    /// Goes on in another chain and does not come back.
    Goto(Name),
    /// Goes on in another chain, and behind this rule when that one ends without a verdict.
    Jump(Name),
}

impl Verdict {
    /// The chain in which it goes on.
    pub fn target(&self) -> Option<&Name> {
        match self {
            Verdict::Goto(chain) | Verdict::Jump(chain) => Some(chain),
            Verdict::Accept | Verdict::Drop => None,
        }
    }
}

/// The priority of a packet (`meta priority`, `skb->priority`): a handle of traffic control, which a device that hands the
/// packet to another network namespace sets to zero (`____dev_forward_skb`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketPriority {
    pub major: u16,
    pub minor: u16,
}

impl PacketPriority {
    /// As the kernel has it.
    pub fn number(self) -> u32 {
        u32::from(self.major) << 16 | u32::from(self.minor)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Counts packets and bytes. What was counted is not part of the value.
    Counter,
    /// Replaces the bits of the connection mark under `mask` by `value`.
    SetMark {
        mask: u32,
        value: u32,
    },
    /// Gives the packet this priority.
    SetPriority(PacketPriority),
    Verdict(Verdict),
    /// The verdict of the named map's element for the field; goes on with the next rule when there is none.
    VerdictMap {
        field: Field,
        map: Name,
    },
    /// Goes on with the rule only for packets within the limit.
    Limit(Limit),
    /// Puts the fields into the dynamic set as an element with a counter, or counts in the one that is there and renews
    /// its timeout; goes on with the rule only for packets within the element's own limit.
    Record {
        fields: Vec<Field>,
        set: Name,
        limit: Limit,
    },
    /// Sends the packet to whoever listens to the group.
    Log(Log),
}

/// `limit rate …`: a bucket that holds `burst` packets and is filled with `packets` of them per period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub packets: u64,
    pub per: Period,
    pub burst: u32,
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
    /// Bytes of the packet that are sent along, from its network header on.
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

    /// Every verdict that the rule itself can give.
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

    /// The sets and maps that the rule names.
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

    /// Whether the rule tells of packets, and leaves them as they are: such a rule decides nothing.
    pub fn only_reports(&self) -> bool {
        !self.actions.is_empty() && self.actions.iter().all(Action::reports)
    }
}

impl Action {
    /// Whether it tells of packets, rather than deciding about them.
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

/// Where a base chain is attached. Its policy is `accept` (Ringfence only ever drops, since an accept in one table is
/// not final for the others), except at the ingress of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Of an `inet` table, at priority `filter` (0): packets that are routed.
    Forward,
    /// Of an `inet` table, at priority `filter` (0): packets to the node itself.
    Input,
    /// Of a `bridge` table, at priority `dstnat` (-300): frames as they come in, before anything else looks at them.
    Prerouting,
    /// Of a `bridge` table, at priority `filter` (-200): frames that pass from one port to another.
    BridgeForward,
    /// Of an `inet` table, at priority -450: packets as they come in, before fragments are joined (-400) and connection tracking.
    EarlyPrerouting,
    /// Of an `inet` table, at priority `filter` (0): packets that the node itself sends.
    Output,
    /// Of a `netdev` table, at priority -500: frames as they enter the interface. Its policy is `drop`.
    Ingress(InterfaceName),
}

impl Hook {
    /// The family of the tables that can have the hook.
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
