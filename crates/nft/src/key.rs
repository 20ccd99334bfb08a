//! Keys of sets and maps: addresses, protocols, ports and interfaces, alone, concatenated or as a range.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::InterfaceName;

/// Address family of IP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4: `ip` in nft's grammar, EtherType 0x0800.
    V4,
    /// IPv6: `ip6` in nft's grammar, EtherType 0x86dd.
    V6,
}

impl Family {
    /// IPv4 first, the order of rules and sets in every ruleset.
    pub const BOTH: [Family; 2] = [Family::V4, Family::V6];

    /// An IPv4-mapped IPv6 address counts as IPv6.
    pub fn of(address: IpAddr) -> Family {
        match address {
            IpAddr::V4(_) => Family::V4,
            IpAddr::V6(_) => Family::V6,
        }
    }
}

/// The transport protocols with ports that rules match.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// IP protocol 6.
    Tcp,
    /// IP protocol 17.
    Udp,
    /// IP protocol 132 (RFC 9260).
    Sctp,
}

impl Protocol {
    /// In the order of their numbers.
    pub const ALL: [Protocol; 3] = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];

    /// The number in the IP header.
    pub fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Sctp => 132,
        }
    }

    /// `None` for any number but 6, 17 and 132.
    pub fn from_number(number: u8) -> Option<Protocol> {
        Protocol::ALL.into_iter().find(|p| p.number() == number)
    }

    /// The keyword of nft's grammar.
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A data type of one field of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyType {
    /// `ipv4_addr`, 4 bytes.
    Ipv4Addr,
    /// `ipv6_addr`, 16 bytes.
    Ipv6Addr,
    /// `inet_proto`: an IP protocol number, 1 byte.
    InetProto,
    /// `inet_service`: a port, 2 bytes in network order.
    InetService,
    /// `ifname`: a name padded with NULs to `IFNAMSIZ` (16 bytes).
    InterfaceName,
}

impl KeyType {
    /// The keyword after `type` in nft's grammar.
    pub fn as_str(self) -> &'static str {
        match self {
            KeyType::Ipv4Addr => "ipv4_addr",
            KeyType::Ipv6Addr => "ipv6_addr",
            KeyType::InetProto => "inet_proto",
            KeyType::InetService => "inet_service",
            KeyType::InterfaceName => "ifname",
        }
    }

    /// Whether sets can hold ranges of the type.
    pub(crate) fn has_ranges(self) -> bool {
        match self {
            KeyType::Ipv4Addr | KeyType::Ipv6Addr | KeyType::InetService => true,
            KeyType::InetProto | KeyType::InterfaceName => false,
        }
    }
}

/// One value of one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Datum {
    /// An `ipv4_addr`.
    V4(Ipv4Addr),
    /// An `ipv6_addr`.
    V6(Ipv6Addr),
    /// An `inet_proto`; sets hold only protocols with ports.
    Protocol(Protocol),
    /// An `inet_service`, in host order.
    Port(u16),
    /// An `ifname`; printed in quotes.
    Interface(InterfaceName),
}

impl Datum {
    /// The type of a set whose key is this value.
    pub fn key_type(self) -> KeyType {
        match self {
            Datum::V4(_) => KeyType::Ipv4Addr,
            Datum::V6(_) => KeyType::Ipv6Addr,
            Datum::Protocol(_) => KeyType::InetProto,
            Datum::Port(_) => KeyType::InetService,
            Datum::Interface(_) => KeyType::InterfaceName,
        }
    }

    /// The largest value of the same type.
    pub(crate) fn largest_alike(self) -> Datum {
        match self {
            Datum::V4(_) => Datum::V4(Ipv4Addr::BROADCAST),
            Datum::V6(_) => Datum::V6(Ipv6Addr::from(u128::MAX)),
            Datum::Protocol(_) => Datum::Protocol(Protocol::Sctp),
            Datum::Port(_) => Datum::Port(u16::MAX),
            // Ranges of interface names are not supported, so no other name is larger.
            Datum::Interface(_) => self,
        }
    }

    /// The value as an integer, in host order.
    fn integer(self) -> u128 {
        match self {
            Datum::V4(a) => u128::from(u32::from(a)),
            Datum::V6(a) => u128::from(a),
            Datum::Protocol(p) => u128::from(p.number()),
            Datum::Port(p) => u128::from(p),
            Datum::Interface(name) => u128::from_be_bytes(name.padded()),
        }
    }

    fn bits(self) -> u32 {
        match self {
            Datum::V4(_) => 32,
            Datum::V6(_) | Datum::Interface(_) => 128,
            Datum::Protocol(_) => 8,
            Datum::Port(_) => 16,
        }
    }

    /// The value after this one, if it is not the largest.
    pub fn successor(self) -> Option<Datum> {
        match self {
            Datum::V4(a) => u32::from(a).checked_add(1).map(|n| Datum::V4(n.into())),
            Datum::V6(a) => u128::from(a).checked_add(1).map(|n| Datum::V6(n.into())),
            Datum::Protocol(_) | Datum::Interface(_) => None,
            Datum::Port(p) => p.checked_add(1).map(Datum::Port),
        }
    }
}

impl From<IpAddr> for Datum {
    fn from(address: IpAddr) -> Datum {
        match address {
            IpAddr::V4(a) => Datum::V4(a),
            IpAddr::V6(a) => Datum::V6(a),
        }
    }
}

impl fmt::Display for Datum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Datum::V4(a) => a.fmt(f),
            Datum::V6(a) => a.fmt(f),
            Datum::Protocol(p) => p.fmt(f),
            Datum::Port(p) => p.fmt(f),
            Datum::Interface(name) => write!(f, "\"{name}\""),
        }
    }
}

/// The key of one element. Sets without intervals hold [`Key::One`] to [`Key::Three`], sets with intervals only
/// [`Key::Range`] (both ends included).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A single field.
    One(Datum),
    /// A concatenation: `a . b`.
    Two(Datum, Datum),
    /// A concatenation: `a . b . c`.
    Three(Datum, Datum, Datum),
    /// First and last value of one field; printed as a prefix (`10.0.0.0/8`) where it is one.
    Range(Datum, Datum),
}

impl Key {
    /// The types of the key's fields; a range has one field.
    pub fn types(self) -> Vec<KeyType> {
        match self {
            Key::One(a) | Key::Range(a, _) => vec![a.key_type()],
            Key::Two(a, b) => vec![a.key_type(), b.key_type()],
            Key::Three(a, b, c) => vec![a.key_type(), b.key_type(), c.key_type()],
        }
    }

    /// Whether the key belongs to a set with `flags interval`.
    pub fn is_range(self) -> bool {
        matches!(self, Key::Range(..))
    }

    /// The key made of a packet's fields, if there are one to three.
    pub fn exact(fields: &[Datum]) -> Option<Key> {
        match *fields {
            [a] => Some(Key::One(a)),
            [a, b] => Some(Key::Two(a, b)),
            [a, b, c] => Some(Key::Three(a, b, c)),
            _ => None,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Key::One(a) => write!(f, "{a}"),
            Key::Two(a, b) => write!(f, "{a} . {b}"),
            Key::Three(a, b, c) => write!(f, "{a} . {b} . {c}"),
            Key::Range(a, b) if a == b => write!(f, "{a}"),
            Key::Range(a, b) => match prefix_length(a, b) {
                Some(length) => write!(f, "{a}/{length}"),
                None => write!(f, "{a}-{b}"),
            },
        }
    }
}

/// The prefix length of a range of addresses if it is exactly one CIDR block.
fn prefix_length(first: Datum, last: Datum) -> Option<u32> {
    if !matches!(first, Datum::V4(_) | Datum::V6(_)) {
        return None;
    }
    let host = first.integer() ^ last.integer();
    let aligned = host & host.wrapping_add(1) == 0 && first.integer() & host == 0;
    aligned.then(|| first.bits() - host.count_ones())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: &str, last: &str) -> String {
        let datum = |s: &str| Datum::from(s.parse::<IpAddr>().unwrap());
        Key::Range(datum(first), datum(last)).to_string()
    }

    #[test]
    fn range_equal_to_cidr_block_prints_as_block() {
        assert_eq!(range("10.0.0.0", "10.255.255.255"), "10.0.0.0/8");
        assert_eq!(range("10.0.0.1", "10.0.0.2"), "10.0.0.1-10.0.0.2");
        assert_eq!(range("10.0.0.1", "10.0.0.1"), "10.0.0.1");
        assert_eq!(range("0.0.0.0", "255.255.255.255"), "0.0.0.0/0");
        assert_eq!(range("::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), "::/0");
        assert_eq!(range("10.0.0.64", "10.0.0.191"), "10.0.0.64-10.0.0.191");
    }

    #[test]
    fn ports_print_as_ranges_never_as_blocks() {
        assert_eq!(Key::Range(Datum::Port(0), Datum::Port(65535)).to_string(), "0-65535");
    }
}
