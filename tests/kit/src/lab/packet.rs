//! Packets of protocols without sockets: built from the header on, and recognised on arrival.

use std::net::IpAddr;

use crate::oracle::Probe;

const HOP_LIMIT: u8 = 64;
const ECHO_REQUEST: u8 = 8;
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST_V6: u8 = 128;
const ECHO_REPLY_V6: u8 = 129;
const SCTP_INIT: u8 = 1;

/// The identity of a packet. The marker is the source port of SCTP, the identifier of an echo, and the payload of any
/// other protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PacketIdentity {
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    marker: u16,
}

/// The packet that proves the probe's arrival: itself at its destination, or the echo reply at its source.
pub(super) fn proof(probe: &Probe, marker: u16) -> PacketIdentity {
    let Probe { source, destination, protocol, port: _ } = *probe;
    if is_echo(probe) {
        PacketIdentity { source: destination, destination: source, protocol, marker }
    } else {
        PacketIdentity { source, destination, protocol, marker }
    }
}

/// An echo of the family's own control protocol, which every host answers.
pub(super) fn is_echo(probe: &Probe) -> bool {
    probe.protocol == if probe.source.is_ipv4() { Probe::ICMP } else { Probe::ICMPV6 }
}

/// A packet of the probe, from the IP header on.
pub(super) fn build(probe: &Probe, marker: u16) -> Vec<u8> {
    let payload = match probe.protocol {
        _ if is_echo(probe) => echo_request(probe, marker),
        Probe::SCTP => sctp_init(marker, probe.port.unwrap_or(0)),
        // The first half is zero, so that a protocol that the kernel parses (GRE) has its simplest form.
        _ => [[0; 8], [[0; 6].as_slice(), &marker.to_be_bytes()].concat().try_into().expect("8 bytes")].concat(),
    };
    let mut packet = match (probe.source, probe.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            // RFC 791. The kernel fills in the identification and the checksum.
            let length = u16::try_from(20 + payload.len()).expect("a short packet");
            let mut header = vec![0x45, 0];
            header.extend(length.to_be_bytes());
            header.extend([0, 0, 0, 0, HOP_LIMIT, probe.protocol, 0, 0]);
            header.extend(source.octets());
            header.extend(destination.octets());
            header
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            // RFC 8200.
            let length = u16::try_from(payload.len()).expect("a short packet");
            let mut header = vec![0x60, 0, 0, 0];
            header.extend(length.to_be_bytes());
            header.extend([probe.protocol, HOP_LIMIT]);
            header.extend(source.octets());
            header.extend(destination.octets());
            header
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => panic!("{probe} crosses families"),
    };
    packet.extend(payload);
    packet
}

/// The identity of a received packet; `None` for packets that prove nothing, such as echo requests.
pub(super) fn recognise(packet: &[u8]) -> Option<PacketIdentity> {
    let (source, destination, protocol, payload) = match packet.first()? >> 4 {
        4 => {
            let header_length = usize::from(packet[0] & 0xf) * 4;
            let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            let destination: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
            (IpAddr::from(source), IpAddr::from(destination), packet[9], packet.get(header_length..)?)
        }
        6 => {
            let source: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            let destination: [u8; 16] = packet.get(24..40)?.try_into().ok()?;
            (IpAddr::from(source), IpAddr::from(destination), packet[6], packet.get(40..)?)
        }
        _ => return None,
    };
    let two_bytes = |offset: usize| Some(u16::from_be_bytes(payload.get(offset..offset + 2)?.try_into().ok()?));
    let marker = match (protocol, source.is_ipv4()) {
        (Probe::ICMP, true) if *payload.first()? == ECHO_REPLY => two_bytes(4)?,
        (Probe::ICMPV6, false) if *payload.first()? == ECHO_REPLY_V6 => two_bytes(4)?,
        (Probe::ICMP, true) | (Probe::ICMPV6, false) | (Probe::TCP | Probe::UDP, _) => return None,
        (Probe::SCTP, _) => two_bytes(0)?,
        _ => two_bytes(14)?,
    };
    Some(PacketIdentity { source, destination, protocol, marker })
}

/// RFC 792, RFC 4443.
fn echo_request(probe: &Probe, marker: u16) -> Vec<u8> {
    let kind = if probe.source.is_ipv4() { ECHO_REQUEST } else { ECHO_REQUEST_V6 };
    let mut message = vec![kind, 0, 0, 0];
    message.extend(marker.to_be_bytes());
    message.extend([0, 1]);
    // The checksum of ICMPv6 covers a pseudo-header: addresses, length, next header (RFC 8200, 8.1).
    let mut covered = match (probe.source, probe.destination) {
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let length = u8::try_from(message.len()).expect("a short message");
            [&source.octets()[..], &destination.octets(), &[0, 0, 0, length, 0, 0, 0, Probe::ICMPV6]].concat()
        }
        _ => Vec::new(),
    };
    covered.extend(&message);
    message[2..4].copy_from_slice(&internet_checksum(&covered).to_be_bytes());
    message
}

/// An INIT alone in its packet (RFC 9260, 3.3.2).
fn sctp_init(source_port: u16, destination_port: u16) -> Vec<u8> {
    const CHUNK_LENGTH: u8 = 20;
    let mut packet = Vec::new();
    packet.extend(source_port.to_be_bytes());
    packet.extend(destination_port.to_be_bytes());
    packet.extend([0; 8]); // verification tag: 0 in an INIT; checksum: filled in below
    packet.extend([SCTP_INIT, 0, 0, CHUNK_LENGTH]);
    packet.extend([0, 0, 0, 1]); // initiate tag, never 0
    packet.extend([0, 0, 0xff, 0xff]); // receiver window
    packet.extend([0, 1, 0, 1]); // outbound and inbound streams
    packet.extend([0, 0, 0, 1]); // first TSN
    let checksum = crc32c(&packet);
    packet[8..12].copy_from_slice(&checksum.to_le_bytes());
    packet
}

/// RFC 1071, over an even number of bytes.
fn internet_checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// The Castagnoli CRC, which SCTP puts on the wire low byte first (RFC 9260, appendix A).
fn crc32c(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crc32c_gives_the_check_value_of_its_catalogue() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn built_packets_are_recognised_except_echo_requests() {
        for (source, destination) in [("10.1.0.1", "10.2.0.2"), ("fd00:1::1", "fd00:2::2")] {
            for protocol in [Probe::SCTP, 47, 253] {
                let probe = Probe {
                    source: source.parse().expect("an address"),
                    destination: destination.parse().expect("an address"),
                    protocol,
                    port: Some(80),
                };
                assert_eq!(recognise(&build(&probe, 4711)), Some(proof(&probe, 4711)));
            }
            let echo = Probe {
                source: source.parse().expect("an address"),
                destination: destination.parse().expect("an address"),
                protocol: if source.contains(':') { Probe::ICMPV6 } else { Probe::ICMP },
                port: None,
            };
            assert_eq!(recognise(&build(&echo, 4711)), None);
        }
    }
}
