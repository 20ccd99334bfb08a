//! Compiles rules to bytecode.
//!
//! nft adds the conditions that a field depends on (`ip saddr` requires an IPv4 packet) unless an earlier condition of
//! the same rule implies them; `nft --debug=netlink` shows what it adds.

use std::net::IpAddr;

use nft::{Action, ConntrackDirection, EtherType, Family, Field, Match, ROUTER_ALERT, Rule, TableFamily};

use crate::expression::{Base, Compare, CtKey, Expression, MetaKey, Register, VerdictCode};

/// `IPS_*` of `nf_conntrack_common.h`.
const IPS_SRC_NAT: u32 = 1 << 4;
const IPS_EXPECTED: u32 = 1;
const IPS_DST_NAT: u32 = 1 << 5;
const IPS_HELPER: u32 = 1 << 13;
/// `IPPROTO_IGMP`
const IGMP: u8 = 2;
/// `IPPROTO_ICMP` and `IPPROTO_ICMPV6`
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// `IPPROTO_TCP`
const TCP: u8 = 6;
/// Flags of a TCP segment (RFC 9293, section 3.1).
const TCP_FIN: u8 = 0x01;
const TCP_SYN: u8 = 0x02;
const TCP_RST: u8 = 0x04;
const TCP_ACK: u8 = 0x10;
/// `IPPROTO_HOPOPTS`
const HOP_BY_HOP: u8 = 0;
/// Bytes of headers: IPv4 without options; IPv6; IPv6 with one extension header of 8 bytes.
const IPV4_HEADER: u32 = 20;
const IPV6_HEADER: u32 = 40;
const EXTENDED_HEADER: u32 = IPV6_HEADER + 8;
/// `PACKET_MULTICAST` of `if_packet.h`
const PACKET_MULTICAST: u8 = 2;
/// `IPPROTO_FRAGMENT`
const FRAGMENT: u8 = 44;
/// `ARPHRD_ETHER`
const ETHERNET: u16 = 1;

/// The bytecode of the rule in a table of the family. The comment is not part of it.
pub fn lower_rule(rule: &Rule, table: TableFamily) -> Vec<Expression> {
    let mut code = Code { expressions: Vec::new(), table, ethernet: false, arp: false, family: None, protocol: None };
    for condition in &rule.matches {
        code.condition(condition);
    }
    for action in &rule.actions {
        code.action(action);
    }
    code.expressions
}

struct Code {
    expressions: Vec<Expression>,
    table: TableFamily,
    /// The conditions so far imply that the interface is an Ethernet one.
    ethernet: bool,
    /// The conditions so far imply that the frame carries ARP.
    arp: bool,
    /// The address family that the conditions so far imply.
    family: Option<Family>,
    /// The transport protocol that the conditions so far imply.
    protocol: Option<u8>,
}

impl Code {
    fn condition(&mut self, condition: &Match) {
        match condition {
            Match::Mark { mask, value } => {
                self.ct(CtKey::Mark, None);
                self.bitwise(*mask, 0);
                self.compare(Compare::Equal, &value.to_ne_bytes());
            }
            Match::State(states) => {
                let bits = states.iter().fold(0, |bits, state| bits | state.bit());
                self.ct(CtKey::State, None);
                self.bitwise(bits, 0);
                self.compare(Compare::NotEqual, &[0; 4]);
            }
            Match::Direction(direction) => {
                self.ct(CtKey::Direction, None);
                self.compare(Compare::Equal, &[direction_number(*direction)]);
            }
            Match::DestinationTranslated => {
                self.ct(CtKey::Status, None);
                self.bitwise(IPS_DST_NAT, 0);
                self.compare(Compare::NotEqual, &[0; 4]);
            }
            Match::SourceTranslated => {
                self.ct(CtKey::Status, None);
                self.bitwise(IPS_SRC_NAT, 0);
                self.compare(Compare::NotEqual, &[0; 4]);
            }
            Match::InvolvesHelper => {
                self.ct(CtKey::Status, None);
                self.bitwise(IPS_EXPECTED | IPS_HELPER, 0);
                self.compare(Compare::NotEqual, &[0; 4]);
            }
            Match::Rerouting(rerouting) => {
                self.require_family(rerouting.family());
                let (family, kind) = (rerouting.family(), rerouting.number());
                self.expressions.push(Expression::HeaderPresent { family, kind, to: Register::FIRST });
                self.compare(Compare::Equal, &[1]);
            }
            Match::Family(family) => self.match_family(*family),
            Match::Protocol(protocol) => self.match_protocol(protocol.number()),
            Match::NotProtocol(protocol) => {
                self.meta(MetaKey::L4proto, Register::FIRST);
                self.compare(Compare::NotEqual, &[protocol.number()]);
            }
            Match::NotTcpSyn => {
                self.require_protocol(TCP);
                // RFC 9293, section 3.1: the flags are the fourteenth byte.
                self.payload(Base::Transport, 13, 1, Register::FIRST);
                let (from, to) = (Register::FIRST, Register::FIRST);
                let mask = vec![TCP_FIN | TCP_SYN | TCP_RST | TCP_ACK];
                self.expressions.push(Expression::Bitwise { from, to, mask, xor: vec![0] });
                self.compare(Compare::NotEqual, &[TCP_SYN]);
            }
            Match::IcmpType(first, last) => {
                self.ipv4_protocol(Compare::Equal, ICMP);
                self.byte_in_range(IPV4_HEADER, (*first, *last));
            }
            Match::Icmpv6Type(first, last) => self.icmpv6_type((*first, *last)),
            Match::PlainIcmpv6Type(first, last) => {
                self.next_header(ICMPV6);
                self.byte_in_range(IPV6_HEADER, (*first, *last));
            }
            Match::OnLinkIcmpv6Type(first, last) => {
                self.next_header_and_hop_limit(ICMPV6, 255);
                self.byte_in_range(IPV6_HEADER, (*first, *last));
            }
            Match::ListenerReport(first, last) => {
                self.next_header_and_hop_limit(HOP_BY_HOP, 1);
                // RFC 8200, section 4.3: the next header, and the length in units of 8 bytes, without the first 8.
                self.payload(Base::Network, IPV6_HEADER, 2, Register::FIRST);
                self.compare(Compare::Equal, &[ICMPV6, 0]);
                self.byte_in_range(EXTENDED_HEADER, (*first, *last));
            }
            Match::FragmentedIcmpv6Type(first, last) => {
                // RFC 8200, section 4.5: the next header, and the offset in the upper 13 bits of the third and fourth byte.
                self.next_header(FRAGMENT);
                self.byte_in_range(IPV6_HEADER, (ICMPV6, ICMPV6));
                self.payload(Base::Network, IPV6_HEADER + 2, 2, Register::FIRST);
                self.masked(0xfff8, Compare::Equal);
                self.byte_in_range(EXTENDED_HEADER, (*first, *last));
            }
            Match::IgmpType(words, kind) => {
                self.ipv4_protocol(Compare::Equal, IGMP);
                self.ipv4_header_words(Compare::Equal, *words);
                // RFC 2236, section 2: the first byte.
                self.byte_in_range(u32::from(*words) * 4, (kind.number(), kind.number()));
            }
            Match::HopLimit(limit) => {
                self.require_family(Family::V6);
                // RFC 8200, section 3: the eighth byte.
                self.payload(Base::Network, 7, 1, Register::FIRST);
                self.compare(Compare::Equal, &[*limit]);
            }
            Match::FlowPort(first, last) => {
                self.load(Field::FlowPort, Register::FIRST);
                self.compare_range(&first.to_be_bytes(), &last.to_be_bytes());
            }
            Match::FlowSourcePort(first, last) => {
                self.load(Field::FlowSourcePort, Register::FIRST);
                self.compare_range(&first.to_be_bytes(), &last.to_be_bytes());
            }
            Match::SourcePort(first, last) => {
                self.load(Field::SourcePort, Register::FIRST);
                self.compare_range(&first.to_be_bytes(), &last.to_be_bytes());
            }
            Match::DestinationPort(first, last) => {
                self.load(Field::DestinationPort, Register::FIRST);
                self.compare_range(&first.to_be_bytes(), &last.to_be_bytes());
            }
            Match::MulticastFrame => {
                self.meta(MetaKey::PacketType, Register::FIRST);
                self.compare(Compare::Equal, &[PACKET_MULTICAST]);
            }
            Match::HasRoute => {
                self.meta(MetaKey::RouteRealm, Register::FIRST);
                self.bitwise(0, 0);
                self.compare(Compare::Equal, &[0; 4]);
            }
            Match::NotPriority(priority) => {
                self.meta(MetaKey::Priority, Register::FIRST);
                self.compare(Compare::NotEqual, &priority.number().to_ne_bytes());
            }
            Match::Ipv4HeaderWords(words) => self.ipv4_header_words(Compare::Equal, *words),
            Match::NotIpv4HeaderWords(words) => self.ipv4_header_words(Compare::NotEqual, *words),
            Match::RouterAlert => self.first_option(Compare::Equal, ROUTER_ALERT),
            Match::NotRouterAlert => self.first_option(Compare::NotEqual, ROUTER_ALERT),
            Match::InSet { fields, set } => {
                self.load_key(fields);
                self.lookup(set, None, false);
            }
            Match::NotInSet { fields, set } => {
                self.load_key(fields);
                self.lookup(set, None, true);
            }
            Match::IpProtocol(number) => self.match_protocol(*number),
            Match::EtherType(kind) => {
                self.meta(MetaKey::Protocol, Register::FIRST);
                self.compare(Compare::Equal, &kind.number().to_be_bytes());
                self.family = kind.family().or(self.family);
                self.arp |= *kind == EtherType::Arp;
            }
            Match::NotEtherType(kind) => {
                // IEEE 802.3: the type field after both addresses. The kernel reinserts a VLAN tag that the hardware
                // stripped (`nft_payload_copy_vlan`).
                self.require_ethernet();
                self.payload(Base::Link, 12, 2, Register::FIRST);
                self.compare(Compare::NotEqual, &kind.number().to_be_bytes());
            }
            Match::SourceIs(address) => {
                let family = Family::of(*address);
                self.require_family(family);
                self.load(Field::Source(family), Register::FIRST);
                self.compare_address(address);
            }
            Match::PrivateBytes(bytes) => {
                let (base, offset, length) = (Base::Network, u32::from(*bytes).saturating_sub(1), 1);
                self.payload(base, offset, length, Register::FIRST);
                self.expressions.push(Expression::PayloadSet { base, offset, length, from: Register::FIRST });
            }
            Match::Ipv4Protocol(number) => self.ipv4_protocol(Compare::Equal, *number),
            Match::NotIpProtocol(number) => self.ipv4_protocol(Compare::NotEqual, *number),
            Match::NextHeader(number) => self.next_header(*number),
            Match::Fragment(family) => self.fragment(*family, true),
            Match::NotFragment(family) => self.fragment(*family, false),
            Match::FirstFragment => {
                self.require_family(Family::V4);
                self.payload(Base::Network, 6, 2, Register::FIRST);
                self.masked(0x1fff, Compare::Equal);
            }
            Match::FragmentOfOther(number) => {
                self.require_family(Family::V6);
                self.expressions.push(Expression::HeaderByte { kind: FRAGMENT, offset: 0, to: Register::FIRST });
                self.compare(Compare::NotEqual, &[*number]);
            }
            Match::NotFromHardware(address) => {
                self.require_ethernet();
                self.payload(Base::Link, 6, 6, Register::FIRST);
                self.compare(Compare::NotEqual, &address.0);
            }
            // RFC 826: the operation, then the sender's hardware and protocol address, then those of the target.
            Match::ArpRequest => {
                self.require_arp();
                self.payload(Base::Network, 6, 2, Register::FIRST);
                self.compare(Compare::Equal, &1u16.to_be_bytes());
            }
            Match::ArpSender(address) => {
                self.require_arp();
                self.payload(Base::Network, 14, 4, Register::FIRST);
                self.compare(Compare::Equal, &address.octets());
            }
            Match::ArpTarget(address) => {
                self.require_arp();
                self.payload(Base::Network, 24, 4, Register::FIRST);
                self.compare(Compare::Equal, &address.octets());
            }
            Match::NotArpSenderHardware(address) => {
                self.require_arp();
                self.payload(Base::Network, 8, 6, Register::FIRST);
                self.compare(Compare::NotEqual, &address.0);
            }
            Match::QuotedDestination(address) => {
                match address {
                    IpAddr::V4(_) => self.quoted(IPV4_HEADER, 16, 4),
                    IpAddr::V6(_) => self.quoted(IPV6_HEADER, 24, 16),
                }
                self.compare_address(address);
            }
            Match::QuotedWithoutOptions => self.quoted_byte(IPV4_HEADER, 0, Compare::Equal, 0x45),
            Match::NotQuotedProtocol(number) => self.quoted_byte(IPV4_HEADER, 9, Compare::NotEqual, *number),
            Match::QuotedNextHeader(number) => self.quoted_byte(IPV6_HEADER, 6, Compare::Equal, *number),
            Match::NotQuotedNextHeader(number) => self.quoted_byte(IPV6_HEADER, 6, Compare::NotEqual, *number),
            Match::NeighbourTarget(address) => {
                self.payload(Base::Network, IPV6_HEADER + 8, 16, Register::FIRST);
                self.compare(Compare::Equal, &address.octets());
            }
            Match::NotLinkAddress(option, address) => {
                let bytes = option.message_bytes();
                // RFC 8200, section 3: the length of the payload.
                self.require_family(Family::V6);
                self.payload(Base::Network, 4, 2, Register::FIRST);
                self.compare(Compare::NotEqual, &bytes.to_be_bytes());
                self.payload(Base::Network, IPV6_HEADER + u32::from(bytes), 8, Register::FIRST);
                self.compare(Compare::NotEqual, &option.with(*address));
            }
        }
    }

    /// RFC 791: the length of the header in words of 4 bytes, 5 without options.
    fn ipv4_header_words(&mut self, operator: Compare, words: u8) {
        self.require_family(Family::V4);
        self.payload(Base::Network, 0, 1, Register::FIRST);
        let (from, to) = (Register::FIRST, Register::FIRST);
        self.expressions.push(Expression::Bitwise { from, to, mask: vec![0x0f], xor: vec![0] });
        self.compare(operator, &[words]);
    }

    /// RFC 791: the bytes after the 20-byte header. A raw payload match implies no address family to nft.
    fn first_option(&mut self, operator: Compare, option: u32) {
        self.payload(Base::Network, 20, 4, Register::FIRST);
        self.compare(operator, &option.to_be_bytes());
    }

    /// RFC 791: the tenth byte.
    fn ipv4_protocol(&mut self, operator: Compare, number: u8) {
        self.require_family(Family::V4);
        self.payload(Base::Network, 9, 1, Register::FIRST);
        self.compare(operator, &[number]);
    }

    /// RFC 8200, section 3: the seventh byte.
    fn next_header(&mut self, number: u8) {
        self.require_family(Family::V6);
        self.payload(Base::Network, 6, 1, Register::FIRST);
        self.compare(Compare::Equal, &[number]);
        // nft derives the transport protocol from this condition.
        self.protocol = Some(number);
    }

    /// nft merges two comparisons of adjacent bytes.
    fn next_header_and_hop_limit(&mut self, number: u8, limit: u8) {
        self.require_family(Family::V6);
        self.payload(Base::Network, 6, 2, Register::FIRST);
        self.compare(Compare::Equal, &[number, limit]);
        self.protocol = Some(number);
    }

    fn byte_in_range(&mut self, offset: u32, (first, last): (u8, u8)) {
        self.payload(Base::Network, offset, 1, Register::FIRST);
        self.compare_range(&[first], &[last]);
    }

    /// Compares the masked bits of the two bytes in the register with 0.
    fn masked(&mut self, mask: u16, operator: Compare) {
        let (from, to) = (Register::FIRST, Register::FIRST);
        self.expressions.push(Expression::Bitwise { from, to, mask: mask.to_be_bytes().to_vec(), xor: vec![0; 2] });
        self.compare(operator, &[0; 2]);
    }

    /// Loads part of the packet quoted by an ICMP error, after the error's IP header and the 8 bytes of its ICMP
    /// header.
    fn quoted(&mut self, own_header: u32, offset: u32, length: u32) {
        self.payload(Base::Network, own_header + 8 + offset, length, Register::FIRST);
    }

    fn quoted_byte(&mut self, own_header: u32, offset: u32, operator: Compare, value: u8) {
        self.quoted(own_header, offset, 1);
        self.compare(operator, &[value]);
    }

    fn icmpv6_type(&mut self, (first, last): (u8, u8)) {
        self.require_family(Family::V6);
        self.require_protocol(ICMPV6);
        self.payload(Base::Transport, 0, 1, Register::FIRST);
        self.compare_range(&[first], &[last]);
    }

    /// RFC 791: a packet with the more-fragments flag or an offset other than 0. RFC 8200, section 4.5: a packet with a
    /// fragment header.
    fn fragment(&mut self, family: Family, wanted: bool) {
        self.require_family(family);
        match family {
            Family::V4 => {
                self.payload(Base::Network, 6, 2, Register::FIRST);
                self.masked(0x3fff, if wanted { Compare::NotEqual } else { Compare::Equal });
            }
            Family::V6 => {
                let (kind, to) = (FRAGMENT, Register::FIRST);
                self.expressions.push(Expression::HeaderPresent { family, kind, to });
                self.compare(Compare::Equal, &[u8::from(wanted)]);
            }
        }
    }

    fn compare_address(&mut self, address: &IpAddr) {
        match address {
            IpAddr::V4(address) => self.compare(Compare::Equal, &address.octets()),
            IpAddr::V6(address) => self.compare(Compare::Equal, &address.octets()),
        }
    }

    fn require_protocol(&mut self, number: u8) {
        if self.protocol != Some(number) {
            self.match_protocol(number);
        }
    }

    fn require_ethernet(&mut self) {
        match self.table {
            // Ports of a bridge are Ethernet interfaces.
            TableFamily::Bridge => {}
            TableFamily::Inet | TableFamily::Netdev if self.ethernet => {}
            TableFamily::Inet | TableFamily::Netdev => {
                self.meta(MetaKey::InInterfaceType, Register::FIRST);
                self.compare(Compare::Equal, &ETHERNET.to_ne_bytes());
                self.ethernet = true;
            }
        }
    }

    fn require_arp(&mut self) {
        if !self.arp {
            self.condition(&Match::EtherType(EtherType::Arp));
        }
    }

    fn action(&mut self, action: &Action) {
        match action {
            Action::Counter => self.expressions.push(Expression::Counter),
            Action::SetMark { mask, value } => {
                self.ct(CtKey::Mark, None);
                // nft encodes `& keep | value` as `& (keep & ~value) ^ value`.
                self.bitwise(!mask & !value, *value);
                self.expressions.push(Expression::CtSet { key: CtKey::Mark, from: Register::FIRST });
            }
            Action::SetPriority(priority) => {
                let data = priority.number().to_ne_bytes().to_vec();
                self.expressions.push(Expression::Immediate { to: Register::FIRST, data });
                self.expressions.push(Expression::MetaSet { key: MetaKey::Priority, from: Register::FIRST });
            }
            Action::Verdict(verdict) => self.expressions.push(Expression::Verdict(VerdictCode::from(verdict))),
            Action::Limit(limit) => self.expressions.push(Expression::Limit(limit.into())),
            Action::Record { fields, set, limit } => {
                self.load_key(fields);
                let (set, from) = (set.to_string(), Register::FIRST);
                self.expressions.push(Expression::Record { set, from, limit: limit.into() });
            }
            Action::Log(nft::Log { prefix, group, snap_bytes }) => {
                let prefix = prefix.as_str().to_owned();
                self.expressions.push(Expression::Log { prefix, group: *group, snap_bytes: *snap_bytes });
            }
            Action::VerdictMap { field, map } => {
                self.load_key(std::slice::from_ref(field));
                self.lookup(map, Some(Register::VERDICT), false);
            }
        }
    }

    fn require_family(&mut self, family: Family) {
        if self.family != Some(family) {
            self.match_family(family);
        }
    }

    fn match_family(&mut self, family: Family) {
        match self.table {
            TableFamily::Inet => {
                // NFPROTO_IPV4 and NFPROTO_IPV6
                let number = match family {
                    Family::V4 => 2,
                    Family::V6 => 10,
                };
                self.meta(MetaKey::Nfproto, Register::FIRST);
                self.compare(Compare::Equal, &[number]);
            }
            // In these tables nfproto is always the family of the table itself.
            TableFamily::Bridge | TableFamily::Netdev => {
                let kind = match family {
                    Family::V4 => EtherType::Ipv4,
                    Family::V6 => EtherType::Ipv6,
                };
                self.meta(MetaKey::Protocol, Register::FIRST);
                self.compare(Compare::Equal, &kind.number().to_be_bytes());
            }
        }
        self.family = Some(family);
    }

    fn match_protocol(&mut self, number: u8) {
        self.meta(MetaKey::L4proto, Register::FIRST);
        self.compare(Compare::Equal, &[number]);
        self.protocol = Some(number);
    }

    /// Loads the fields into consecutive registers, each padded to a multiple of 4 bytes. Their dependencies precede
    /// all of them.
    fn load_key(&mut self, fields: &[Field]) {
        for field in fields {
            match field {
                Field::Source(family) | Field::Destination(family) => {
                    self.require_family(*family);
                }
                Field::FlowSource(_)
                | Field::FlowDestination(_)
                | Field::FlowPort
                | Field::FlowSourcePort
                | Field::L4Proto
                | Field::SourcePort
                | Field::DestinationPort
                | Field::InInterface
                | Field::OutInterface => {}
            }
        }
        let mut word = 0;
        for field in fields {
            self.load(*field, Register::at_word(word));
            word += crate::lower::set::width(field.key_type()).div_ceil(4);
        }
    }

    fn load(&mut self, field: Field, to: Register) {
        let address = |family| match family {
            Family::V4 => CtKey::SourceIp,
            Family::V6 => CtKey::SourceIp6,
        };
        let (original, reply) = (Some(0), Some(1));
        match field {
            Field::FlowSource(family) => self.ct_to(address(family), original, to),
            Field::FlowDestination(family) => self.ct_to(address(family), reply, to),
            Field::FlowPort => self.ct_to(CtKey::ProtoSource, reply, to),
            Field::FlowSourcePort => self.ct_to(CtKey::ProtoSource, original, to),
            // Offsets in `struct iphdr`, `struct ipv6hdr`, and the first words of any transport header with ports.
            Field::Source(Family::V4) => self.payload(Base::Network, 12, 4, to),
            Field::Source(Family::V6) => self.payload(Base::Network, 8, 16, to),
            Field::Destination(Family::V4) => self.payload(Base::Network, 16, 4, to),
            Field::Destination(Family::V6) => self.payload(Base::Network, 24, 16, to),
            Field::L4Proto => self.meta(MetaKey::L4proto, to),
            Field::SourcePort => self.payload(Base::Transport, 0, 2, to),
            Field::DestinationPort => self.payload(Base::Transport, 2, 2, to),
            Field::InInterface => self.meta(MetaKey::InInterfaceName, to),
            Field::OutInterface => self.meta(MetaKey::OutInterfaceName, to),
        }
    }

    fn meta(&mut self, key: MetaKey, to: Register) {
        self.expressions.push(Expression::Meta { key, to });
    }

    fn ct(&mut self, key: CtKey, direction: Option<u8>) {
        self.ct_to(key, direction, Register::FIRST);
    }

    fn ct_to(&mut self, key: CtKey, direction: Option<u8>, to: Register) {
        self.expressions.push(Expression::Ct { key, direction, to });
    }

    fn payload(&mut self, base: Base, offset: u32, length: u32, to: Register) {
        self.expressions.push(Expression::Payload { base, offset, length, to });
    }

    fn bitwise(&mut self, mask: u32, xor: u32) {
        let (mask, xor) = (mask.to_ne_bytes().to_vec(), xor.to_ne_bytes().to_vec());
        self.expressions.push(Expression::Bitwise { from: Register::FIRST, to: Register::FIRST, mask, xor });
    }

    fn compare(&mut self, operator: Compare, data: &[u8]) {
        self.expressions.push(Expression::Cmp { operator, from: Register::FIRST, data: data.to_vec() });
    }

    fn compare_range(&mut self, first: &[u8], last: &[u8]) {
        if first == last {
            self.compare(Compare::Equal, first);
        } else {
            self.compare(Compare::AtLeast, first);
            self.compare(Compare::AtMost, last);
        }
    }

    fn lookup(&mut self, set: &nft::Name, to: Option<Register>, inverted: bool) {
        self.expressions.push(Expression::Lookup { set: set.to_string(), from: Register::FIRST, to, inverted });
    }
}

/// `IP_CT_DIR_ORIGINAL` and `IP_CT_DIR_REPLY`
fn direction_number(direction: ConntrackDirection) -> u8 {
    match direction {
        ConntrackDirection::Original => 0,
        ConntrackDirection::Reply => 1,
    }
}

#[cfg(test)]
mod tests;
