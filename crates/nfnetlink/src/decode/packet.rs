//! Parses the headers of a packet: addresses, protocol, ports, ICMP type.
//!
//! The sender of a packet controls its bytes, and the kernel truncates them to the requested length. So a short or
//! malformed packet yields fewer fields and is never an error.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// `ETH_P_IP` and `ETH_P_IPV6`
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;

/// Limit of extension headers parsed in one IPv6 packet. RFC 8200, section 4.1, defines six that may precede the upper
/// layer, one of them twice; a longer chain is an attack.
const MOST_EXTENSIONS: usize = 8;

/// Protocol numbers (IANA), including the extension headers of IPv6.
const HOP_BY_HOP: u8 = 0;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const ICMPV6: u8 = 58;
const DESTINATION_OPTIONS: u8 = 60;
const SCTP: u8 = 132;

/// Length of a UDP header in bytes.
const UDP_HEADER: usize = 8;

/// Length of a TCP header without options in bytes.
const TCP_HEADER: usize = 20;

/// Kinds of TCP options (IANA).
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
const MULTIPATH: u8 = 30;

/// Fields of the headers of an IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketHead {
    /// In the outermost IP header.
    pub source: IpAddr,
    /// In the outermost IP header; a routing header of IPv6 may name a later destination.
    pub destination: IpAddr,
    /// IANA protocol number, with IPv6 that of the header after the extension headers. If the extension headers are
    /// truncated, or there are too many, the number of the one at which parsing stopped.
    pub protocol: u8,
    /// Source and destination port of TCP, UDP and SCTP.
    pub ports: Option<(u16, u16)>,
    /// Type and code of ICMP and ICMPv6.
    pub icmp: Option<(u8, u8)>,
}

/// A TCP segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpSegment<'a> {
    /// Sequence number of the first byte of the payload, or of the SYN before it.
    pub sequence: u32,
    /// The sender sends nothing further.
    pub fin: bool,
    /// The connection begins.
    pub syn: bool,
    /// The connection is reset.
    pub rst: bool,
    /// Sequence number of the byte that the sender expects next; `None` without the flag ACK.
    pub acknowledged: Option<u32>,
    /// It has an option of Multipath TCP (RFC 8684): its payload may be a part of a stream that several connections carry.
    pub is_multipath: bool,
    /// As far as it was copied.
    pub payload: &'a [u8],
    /// Whether the whole payload was copied.
    pub is_whole: bool,
}

impl PacketHead {
    /// Parses bytes that begin at the network header. Returns `None` if they are not IP or the IP header is truncated.
    /// A fragment other than the first has neither ports nor an ICMP type.
    pub fn parse(ether_type: u16, bytes: &[u8]) -> Option<PacketHead> {
        match ether_type {
            IPV4 => ipv4(bytes),
            IPV6 => ipv6(bytes),
            _ => None,
        }
    }

    /// The payload of a UDP datagram, as far as it was copied; the bytes begin at the network header. `None` for other
    /// packets, and for fragments.
    pub fn udp_payload(ether_type: u16, bytes: &[u8]) -> Option<&[u8]> {
        let Upper { protocol, bytes, length: _ } = upper_of_whole(ether_type, bytes)?;
        let (header, payload) = bytes.split_first_chunk::<UDP_HEADER>()?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let payload = payload.get(..length.checked_sub(UDP_HEADER)?).unwrap_or(payload);
        (protocol == UDP).then_some(payload)
    }

    /// The TCP segment in a packet, whose bytes begin at the network header. `None` for other packets, for fragments, and
    /// if the header of TCP is truncated.
    pub fn tcp_segment(ether_type: u16, bytes: &[u8]) -> Option<TcpSegment<'_>> {
        let Upper { protocol, bytes, length } = upper_of_whole(ether_type, bytes)?;
        let header = bytes.first_chunk::<TCP_HEADER>()?;
        let offset = usize::from(header[12] >> 4) * 4;
        let payload = bytes.get(offset..).filter(|_| protocol == TCP && offset >= TCP_HEADER)?;
        // Padding of the frame may follow the packet.
        let stated = length?.checked_sub(offset)?;
        let [fin, syn, rst, ack] = [0x01, 0x02, 0x04, 0x10].map(|flag| header[13] & flag != 0);
        let sequence = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        let acknowledged = ack.then(|| u32::from_be_bytes([header[8], header[9], header[10], header[11]]));
        let is_whole = payload.len() >= stated;
        let payload = payload.get(..stated).unwrap_or(payload);
        let is_multipath = has_option(bytes.get(TCP_HEADER..offset)?, MULTIPATH);
        Some(TcpSegment { sequence, fin, syn, rst, acknowledged, is_multipath, payload, is_whole })
    }

    /// The class of service (DSCP, RFC 2474) of a packet, whose bytes begin at the network header. `None` if it is not IP.
    pub fn service_class(ether_type: u16, bytes: &[u8]) -> Option<u8> {
        match (ether_type, bytes) {
            (IPV4, [_, traffic_class, ..]) => Some(traffic_class >> 2),
            (IPV6, [first, second, ..]) => Some((first & 0x0f) << 2 | second >> 6),
            _ => None,
        }
    }

    /// Whether a router may fragment a packet, whose bytes begin at the network header: one of IPv4 with more than the 576
    /// bytes that each host accepts (RFC 791, section 2.3) and without the flag Don't Fragment.
    pub fn may_be_fragmented(ether_type: u16, bytes: &[u8]) -> bool {
        match (ether_type, bytes) {
            (IPV4, [_, _, high, low, _, _, flags, ..]) => flags & 0x40 == 0 && u16::from_be_bytes([*high, *low]) > 576,
            _ => false,
        }
    }

    /// Whether the number is that of an IPv6 extension header, and so not that of an upper-layer protocol.
    pub fn is_extension_header(protocol: u8) -> bool {
        [HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION_OPTIONS].contains(&protocol)
    }

    fn of(source: IpAddr, destination: IpAddr, protocol: u8, upper: &[u8]) -> PacketHead {
        let ports = match (protocol, upper) {
            (TCP | UDP | SCTP, [s0, s1, d0, d1, ..]) => {
                Some((u16::from_be_bytes([*s0, *s1]), u16::from_be_bytes([*d0, *d1])))
            }
            _ => None,
        };
        let icmp = match (protocol, upper) {
            (ICMP | ICMPV6, [kind, code, ..]) => Some((*kind, *code)),
            _ => None,
        };
        PacketHead { source, destination, protocol, ports, icmp }
    }
}

/// Whether TCP options (RFC 9293, section 3.2) have one of this kind. Those after a malformed one do not count.
fn has_option(mut options: &[u8], kind: u8) -> bool {
    loop {
        options = match options {
            [found, ..] if *found == kind => return true,
            [END_OF_OPTIONS, ..] | [] | [_] => return false,
            [NO_OPERATION, rest @ ..] => rest,
            [_, length, ..] => match options.get(usize::from(*length)..) {
                Some(rest) if *length >= 2 => rest,
                Some(_) | None => return false,
            },
        };
    }
}

/// The bytes behind the IP header of a packet that is not a fragment.
struct Upper<'a> {
    protocol: u8,
    /// As far as they were copied.
    bytes: &'a [u8],
    /// Their number by the IP header; `None` if it has none, as in packets of more than 64 KiB.
    length: Option<usize>,
}

/// `None` for fragments, and for packets other than IP. With IPv6, only the header that directly follows is found.
fn upper_of_whole(ether_type: u16, bytes: &[u8]) -> Option<Upper<'_>> {
    match ether_type {
        IPV4 => {
            let header = bytes.first_chunk::<20>()?;
            // The flag for more fragments, and the offset.
            let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
            let length = usize::from(header[0] & 0x0f) * 4;
            let upper = bytes.get(length..).filter(|_| !is_fragment && length >= header.len())?;
            let total = usize::from(u16::from_be_bytes([header[2], header[3]]));
            Some(Upper { protocol: header[9], bytes: upper, length: total.checked_sub(length) })
        }
        IPV6 => {
            let (header, rest) = bytes.split_first_chunk::<40>()?;
            let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
            Some(Upper { protocol: header[6], bytes: rest, length: Some(length).filter(|length| *length > 0) })
        }
        _ => None,
    }
}

/// RFC 791, section 3.1.
fn ipv4(bytes: &[u8]) -> Option<PacketHead> {
    let header = bytes.first_chunk::<20>()?;
    let length = usize::from(header[0] & 0x0f) * 4;
    if header[0] >> 4 != 4 || length < header.len() {
        return None;
    }
    let [.., s0, s1, s2, s3, d0, d1, d2, d3] = *header;
    let later = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
    let upper = if later { None } else { bytes.get(length..) };
    let (source, destination) = (Ipv4Addr::new(s0, s1, s2, s3), Ipv4Addr::new(d0, d1, d2, d3));
    Some(PacketHead::of(source.into(), destination.into(), header[9], upper.unwrap_or(&[])))
}

/// RFC 8200, section 3.
fn ipv6(bytes: &[u8]) -> Option<PacketHead> {
    let (header, rest) = bytes.split_first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let address = |start: usize| Some(Ipv6Addr::from(*header.get(start..)?.first_chunk::<16>()?));
    let (protocol, upper) = upper_layer(header[6], rest);
    Some(PacketHead::of(address(8)?.into(), address(24)?.into(), protocol, upper))
}

/// Skips extension headers as the kernel's `ipv6_find_hdr` does. Returns the upper-layer protocol and its bytes.
fn upper_layer(first: u8, bytes: &[u8]) -> (u8, &[u8]) {
    let (mut kind, mut rest) = (first, bytes);
    for _ in 0..MOST_EXTENSIONS {
        let Some(length) = extension_length(kind, rest) else { return (kind, rest) };
        let Some((header, after)) = rest.split_at_checked(length) else { return (kind, &[]) };
        // A fragment other than the first; only the first one contains the upper-layer header.
        if kind == FRAGMENT && u16::from_be_bytes([header[2], header[3]]) & 0xfff8 != 0 {
            return (header[0], &[]);
        }
        (kind, rest) = (header[0], after);
    }
    (kind, rest)
}

/// The length of the extension header at the start of the bytes, at least 8; `None` if this is not an extension header,
/// or is truncated before its length field.
fn extension_length(kind: u8, bytes: &[u8]) -> Option<usize> {
    let units = usize::from(*bytes.get(1)?);
    match kind {
        HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS => Some((units + 1) * 8),
        FRAGMENT => Some(8),
        // RFC 4302, section 2.2.
        AUTHENTICATION => Some((units + 2) * 4),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 header from 10.0.0.1 to 10.0.0.2 with `options` words of options, followed by `upper`.
    fn four(options: u8, fragment: u16, protocol: u8, upper: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x45 + options, 0, 0, 0, 0, 0];
        bytes.extend(fragment.to_be_bytes());
        bytes.extend([64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.resize(bytes.len() + usize::from(options) * 4, 1);
        [&bytes, upper].concat()
    }

    /// An IPv6 header from fd00::1 to fd00::2, followed by `rest`.
    fn six(next: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0x60, 0, 0, 0, 0, 0, next, 64];
        for last in [1, 2] {
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        }
        [&bytes, rest].concat()
    }

    const PORTS: [u8; 4] = [0x9c, 0x40, 0x00, 0x50];
    const ECHO: [u8; 4] = [8, 0, 0, 0];

    /// Protocol, ports, type and code as text.
    fn said(ether_type: u16, bytes: &[u8]) -> String {
        let Some(head) = PacketHead::parse(ether_type, bytes) else { return "nothing".into() };
        let ends = match ether_type {
            IPV4 => ("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()),
            _ => ("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()),
        };
        assert_eq!((head.source, head.destination), ends);
        match (head.ports, head.icmp) {
            (Some((from, to)), None) => format!("{}: {from} to {to}", head.protocol),
            (None, Some((kind, code))) => format!("{}: type {kind} code {code}", head.protocol),
            (None, None) => head.protocol.to_string(),
            (Some(_), Some(_)) => panic!("{head:?}"),
        }
    }

    #[test]
    fn ipv4_transport_header_is_read_after_options() {
        for (bytes, expected) in [
            (four(0, 0, 6, &PORTS), "6: 40000 to 80"),
            (four(0, 0, 17, &PORTS), "17: 40000 to 80"),
            (four(0, 0, 132, &PORTS), "132: 40000 to 80"),
            (four(3, 0, 6, &PORTS), "6: 40000 to 80"),
            (four(10, 0, 17, &PORTS), "17: 40000 to 80"),
            (four(0, 0, 1, &ECHO), "1: type 8 code 0"),
            (four(0, 0, 1, &[3, 1]), "1: type 3 code 1"),
            // Do not fragment; the first fragment; a later one; the last one.
            (four(0, 0x4000, 6, &PORTS), "6: 40000 to 80"),
            (four(0, 0x2000, 17, &PORTS), "17: 40000 to 80"),
            (four(0, 0x2001, 17, &PORTS), "17"),
            (four(0, 0x00b9, 1, &ECHO), "1"),
            // GRE, and AH, which is not an extension header of IPv4.
            (four(0, 0, 47, &PORTS), "47"),
            (four(0, 0, 51, &PORTS), "51"),
        ] {
            assert_eq!(said(IPV4, &bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn ipv6_transport_header_is_read_after_extension_headers() {
        let options = |next: u8, eights: u8| {
            let mut header = vec![next, eights - 1];
            header.resize(usize::from(eights) * 8, 0);
            header
        };
        let fragment = |next: u8, offset: u16| {
            let [high, low] = (offset << 3 | 1).to_be_bytes();
            vec![next, 0, high, low, 0, 0, 0, 7]
        };
        let authentication = |next: u8| {
            let mut header = vec![next, 4];
            header.resize(24, 0);
            header
        };
        let ports = PORTS.to_vec();
        let echo = vec![128, 0];
        for (next, parts, expected) in [
            (6, vec![ports.clone()], "6: 40000 to 80"),
            (17, vec![ports.clone()], "17: 40000 to 80"),
            (132, vec![ports.clone()], "132: 40000 to 80"),
            (58, vec![echo.clone()], "58: type 128 code 0"),
            (0, vec![options(58, 1), echo.clone()], "58: type 128 code 0"),
            (43, vec![options(6, 3), ports.clone()], "6: 40000 to 80"),
            (51, vec![authentication(17), ports.clone()], "17: 40000 to 80"),
            (
                0,
                vec![
                    options(60, 2),
                    options(43, 1),
                    options(44, 1),
                    fragment(51, 0),
                    authentication(60),
                    options(6, 1),
                    ports.clone(),
                ],
                "6: 40000 to 80",
            ),
            (44, vec![fragment(17, 0), ports.clone()], "17: 40000 to 80"),
            (44, vec![fragment(17, 185), ports.clone()], "17"),
            (44, vec![fragment(60, 1), ports.clone()], "60"),
            // No next header; ESP; an unassigned protocol number.
            (59, vec![ports.clone()], "59"),
            (50, vec![ports.clone()], "50"),
            (253, vec![ports.clone()], "253"),
            // The shortest authentication header, which has no sequence number.
            (51, vec![vec![6, 0, 0, 0, 0, 0, 0, 0], ports.clone()], "6: 40000 to 80"),
        ] {
            let bytes = six(next, &parts.concat());
            assert_eq!(said(IPV6, &bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn class_and_fragmentation_are_read_from_ip_header() {
        let v4 = |class, length: u16, flags| {
            let [high, low] = length.to_be_bytes();
            [&[0x45, class, high, low, 0, 1, flags, 0][..], &[0; 12]].concat()
        };
        assert_eq!(PacketHead::service_class(IPV4, &v4(0xb8, 40, 0)), Some(46), "expedited forwarding");
        assert_eq!(PacketHead::service_class(IPV4, &v4(0x03, 40, 0)), Some(0), "congestion experienced");
        assert_eq!(PacketHead::service_class(IPV6, &[0x6b, 0x80]), Some(46));
        assert_eq!(PacketHead::service_class(IPV6, &[0x60, 0x3f]), Some(0), "a flow label");
        assert_eq!(PacketHead::service_class(0x0806, &[0; 28]), None);
        for (length, flags, expected) in [(577, 0, true), (576, 0, false), (1500, 0x40, false)] {
            assert_eq!(PacketHead::may_be_fragmented(IPV4, &v4(0, length, flags)), expected, "{length} {flags}");
        }
        assert!(!PacketHead::may_be_fragmented(IPV6, &[0x60; 2000]));
    }

    #[test]
    fn multipath_option_is_found_among_others() {
        for (options, expected) in [
            (&[][..], false),
            (&[30, 4, 0, 0], true),
            (&[1, 1, 30, 2], true),
            (&[2, 4, 5, 30, 1, 3, 3, 7], false),
            (&[2, 4, 5, 0xb4, 8, 10, 30, 30, 30, 30, 0, 0, 0, 0, 30, 12, 0, 0], true),
            (&[0, 30, 4, 0], false),
            (&[2, 1, 30, 2], false),
            (&[2, 200, 30, 2], false),
            (&[30], true),
            (&[2], false),
        ] {
            assert_eq!(has_option(options, MULTIPATH), expected, "{options:?}");
        }
    }

    #[test]
    fn tcp_segment_is_read_without_padding() {
        let tcp = |flags: u8, rest: &[u8]| {
            let head = [0, 53, 0x9c, 0x40, 0, 0, 1, 0, 0, 0, 2, 0, 0x60, flags, 0, 0, 0, 0, 0, 0, 2, 4, 5, 0xb4];
            [&head[..], rest].concat()
        };
        let v4 = |rest: &[u8]| {
            let mut bytes = four(1, 0, 6, &tcp(0x12, rest));
            bytes[3] = bytes.len() as u8;
            bytes
        };
        let v6 = |rest: &[u8]| {
            let mut bytes = six(6, &tcp(0x11, rest));
            bytes[5] = bytes.len() as u8 - 40;
            bytes
        };
        let expected = TcpSegment {
            sequence: 256,
            fin: false,
            syn: true,
            rst: false,
            acknowledged: Some(512),
            is_multipath: false,
            payload: b"answer",
            is_whole: true,
        };
        for padding in [0, 3] {
            let padded = |bytes: Vec<u8>| [bytes, vec![0; padding]].concat();
            assert_eq!(PacketHead::tcp_segment(IPV4, &padded(v4(b"answer"))), Some(expected));
            let finished = TcpSegment { fin: true, syn: false, ..expected };
            assert_eq!(PacketHead::tcp_segment(IPV6, &padded(v6(b"answer"))), Some(finished));
        }
        let whole = v4(b"answer");
        for length in 0..whole.len() {
            let segment = PacketHead::tcp_segment(IPV4, &whole[..length]);
            let truncated = TcpSegment { payload: &whole[48.min(length)..length], is_whole: false, ..expected };
            assert_eq!(segment, (length >= 48).then_some(truncated), "{length}");
        }
        // A fragment, a datagram, and a header whose length is less than its own.
        for (place, value) in [(6, 0x20), (9, 17), (24 + 12, 0x40)] {
            let mut changed = whole.clone();
            changed[place] = value;
            assert_eq!(PacketHead::tcp_segment(IPV4, &changed), None, "{place}");
        }
    }

    #[test]
    fn endless_extension_headers_are_not_followed() {
        let long = [0, 0, 0, 0, 0, 0, 0, 0].repeat(1000);
        assert_eq!(said(IPV6, &six(0, &long)), "0");
        let eight = [[60, 0, 0, 0, 0, 0, 0, 0].repeat(7), vec![6, 0, 0, 0, 0, 0, 0, 0], PORTS.to_vec()].concat();
        assert_eq!(said(IPV6, &six(60, &eight)), "6: 40000 to 80");
    }

    #[test]
    fn truncated_packet_yields_less_detail() {
        let whole = four(1, 0, 6, &PORTS);
        for length in 0..whole.len() {
            let expected = match length {
                ..20 => "nothing",
                _ => "6",
            };
            assert_eq!(said(IPV4, &whole[..length]), expected, "{length}");
        }
        let whole = six(0, &[&[58, 0, 0, 0, 0, 0, 0, 0][..], &[128, 0]].concat());
        for length in 0..whole.len() {
            let expected = match length {
                ..40 => "nothing",
                40..48 => "0",
                _ => "58",
            };
            assert_eq!(said(IPV6, &whole[..length]), expected, "{length}");
        }
    }

    #[test]
    fn packet_other_than_ip_yields_nothing() {
        let (v4, v6) = (four(0, 0, 6, &PORTS), six(6, &PORTS));
        let mut short_header = v4.clone();
        short_header[0] = 0x44;
        for (ether_type, bytes) in
            [(IPV6, &v4), (IPV4, &v6), (0x0806, &v4), (0x8100, &v4), (0, &v6), (IPV4, &short_header), (IPV4, &vec![])]
        {
            assert_eq!(said(ether_type, bytes), "nothing", "{ether_type:#x} {bytes:?}");
        }
    }

    #[test]
    fn packet_parser_never_panics() {
        let (v4, v6) = (four(2, 0, 1, &ECHO), six(0, &[[60, 0, 0, 0, 0, 0, 0, 0], [6, 0, 0, 0, 0, 0, 0, 0]].concat()));
        for (ether_type, whole) in [(IPV4, v4), (IPV6, v6)] {
            for place in 0..whole.len() {
                for value in 0..=255 {
                    let mut damaged = whole.clone();
                    damaged[place] = value;
                    if let Some(head) = PacketHead::parse(ether_type, &damaged) {
                        assert!(head.ports.is_none() || head.icmp.is_none(), "{head:?}");
                    }
                }
            }
        }
    }
}
