//! Packets that rules log to a group (`nfnetlink_log`). Attribute numbers are those of
//! `uapi/linux/netfilter/nfnetlink_log.h`.

use super::DecodeError;
use super::attributes::AttributeIndex;
use super::conntrack::{TrackedTuple, tuples};
use super::packet::PacketHead;
use crate::message::{Messages, ULOG, family_and_attributes};

/// `NFULNL_MSG_PACKET`
const PACKET: u16 = ULOG;

/// `NFULA_*`
const PACKET_HEADER: u16 = 1;
const INPUT: u16 = 4;
const OUTPUT: u16 = 5;
const INPUT_PORT: u16 = 6;
const OUTPUT_PORT: u16 = 7;
const PAYLOAD: u16 = 9;
const PREFIX: u16 = 10;
const SEQUENCE: u16 = 12;
const CONNECTION: u16 = 18;

/// A packet that a rule logged, as the kernel reports it. `I` is an interface: the kernel reports its index, which
/// [`LogRecord::resolve`] turns into its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord<I = String> {
    /// The log prefix of the rule. Invalid UTF-8 is replaced.
    pub prefix: String,
    /// `ETH_P_*`
    pub ether_type: u16,
    /// The input interface; for a bridge, the bridge port. `None` on the output path, or if the interface no longer
    /// exists.
    pub input: Option<I>,
    /// The output interface; for a bridge, the bridge port. `None` before routing, or if the interface no longer
    /// exists.
    pub output: Option<I>,
    /// Sequence number within the group, if requested.
    pub sequence: Option<u32>,
    /// `None` if the packet is not IP, or its IP header is truncated.
    pub content: Option<PacketHead>,
    /// The copied bytes, from the network header on.
    pub bytes: Vec<u8>,
    /// The flow's original direction, before any destination translation. `None` for packets without a conntrack entry,
    /// and if the kernel does not report it ([`PacketLog::shows_connections`](crate::PacketLog::shows_connections)).
    pub original: Option<TrackedTuple>,
    /// The flow's reply direction, as the replies arrive: before any translation of them is reversed. `None` like
    /// `original`.
    pub reply: Option<TrackedTuple>,
}

impl<I> LogRecord<I> {
    /// The record with other interfaces.
    ///
    /// # Errors
    /// The first error of `interface`, which returns `None` for an interface that no longer exists.
    pub fn resolve<J, E>(self, interface: impl Fn(I) -> Result<Option<J>, E>) -> Result<LogRecord<J>, E> {
        let LogRecord { prefix, ether_type, input, output, sequence, content, bytes, original, reply } = self;
        let resolve = |index: Option<I>| index.map(&interface).transpose().map(Option::flatten);
        let (input, output) = (resolve(input)?, resolve(output)?);
        Ok(LogRecord { prefix, ether_type, input, output, sequence, content, bytes, original, reply })
    }
}

/// The logged packets in one datagram.
pub fn decode_logged(datagram: &[u8]) -> Result<Vec<LogRecord<u32>>, DecodeError> {
    let mut packets = Vec::new();
    for message in Messages::new(datagram) {
        let message = message?;
        if message.kind == PACKET {
            let (_, attributes) = family_and_attributes(&message)?;
            packets.push(packet(&AttributeIndex::of("a logged packet", attributes)?)?);
        }
    }
    Ok(packets)
}

fn packet(f: &AttributeIndex<'_>) -> Result<LogRecord<u32>, DecodeError> {
    let header = f.need(PACKET_HEADER)?.value;
    // `struct nfulnl_msg_packet_hdr`: protocol, hook, padding.
    let [high, low, _, _] = *header else {
        return Err(DecodeError::length(PACKET_HEADER, header.len()));
    };
    let ether_type = u16::from_be_bytes([high, low]);
    // For a bridge the port is the physical interface (`__build_packet_message`).
    let interface = |port, other| -> Result<_, DecodeError> { Ok(f.number(port)?.or(f.number(other)?)) };
    let [original, reply] = f.get(CONNECTION).map(tuples).transpose()?.map_or([None; 2], |both| both.map(Some));
    Ok(LogRecord {
        prefix: f.get(PREFIX).map_or(String::new(), |a| String::from_utf8_lossy(a.bytes()).into_owned()),
        ether_type,
        input: interface(INPUT_PORT, INPUT)?,
        output: interface(OUTPUT_PORT, OUTPUT)?,
        sequence: f.number(SEQUENCE)?,
        content: f.get(PAYLOAD).and_then(|a| PacketHead::parse(ether_type, a.value)),
        bytes: f.get(PAYLOAD).map_or(vec![], |a| a.value.to_vec()),
        original,
        reply,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Writer;

    /// UDP from 10.0.0.1:40000 to 10.0.0.2:80.
    const DATAGRAM: [u8; 28] =
        [0x45, 0, 0, 28, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x9c, 0x40, 0, 80, 0, 8, 0, 0];

    fn header() -> Writer {
        Writer::new(PACKET, 0, 0, 2).put(PACKET_HEADER, &[0x08, 0x00, 1, 0])
    }

    #[test]
    fn logged_packet_decodes_prefix_interfaces_and_addresses() {
        let message = header().put_text(PREFIX, "ringfence deny/ingress").put_number(INPUT, 7).put_number(OUTPUT, 8);
        let message = message.put(PAYLOAD, &DATAGRAM).put_number(SEQUENCE, 41).finish();
        let content = PacketHead {
            source: "10.0.0.1".parse().unwrap(),
            destination: "10.0.0.2".parse().unwrap(),
            protocol: 17,
            ports: Some((40_000, 80)),
            icmp: None,
        };
        let expected = LogRecord {
            prefix: "ringfence deny/ingress".into(),
            ether_type: 0x0800,
            input: Some(7),
            output: Some(8),
            sequence: Some(41),
            content: Some(content),
            bytes: DATAGRAM.to_vec(),
            original: None,
            reply: None,
        };
        assert_eq!(decode_logged(&message), Ok(vec![expected]));
    }

    #[test]
    fn logged_packet_has_both_directions_of_its_flow() {
        // A tuple of a conntrack entry: UDP from 10.0.0.1:40000 to 10.96.0.10:53.
        let addresses = [[8, 0, 1, 0, 10, 0, 0, 1], [8, 0, 2, 0, 10, 96, 0, 10]].concat();
        let protocol = [[5, 0, 1, 0, 17, 0, 0, 0], [6, 0, 2, 0, 0x9c, 0x40, 0, 0], [6, 0, 3, 0, 0, 53, 0, 0]].concat();
        let nested = |kind: u16, content: &[u8]| {
            let [length, kind] = [content.len() as u16 + 4, kind | 0x8000].map(u16::to_ne_bytes);
            [&length, &kind, content].concat()
        };
        let tuple = [nested(1, &addresses), nested(2, &protocol)].concat();
        let message = header().put(CONNECTION, &[nested(1, &tuple), nested(2, &tuple)].concat()).finish();
        let record = decode_logged(&message).unwrap().remove(0);
        for direction in [record.original.unwrap(), record.reply.unwrap()] {
            assert_eq!((direction.destination, direction.destination_port), ("10.96.0.10".parse().unwrap(), Some(53)));
        }
        for (number, missing) in [(1, "CTA_TUPLE_REPLY"), (2, "CTA_TUPLE_ORIG")] {
            let message = header().put(CONNECTION, &nested(number, &tuple)).finish();
            assert!(decode_logged(&message).unwrap_err().to_string().contains(missing));
        }
    }

    #[test]
    fn bridge_port_replaces_bridge_as_interface() {
        let message = header().put_number(INPUT, 3).put_number(INPUT_PORT, 7).put_number(OUTPUT_PORT, 8).finish();
        let packets = decode_logged(&message).unwrap();
        assert_eq!((packets[0].input, packets[0].output), (Some(7), Some(8)));
    }

    #[test]
    fn packets_of_one_datagram_keep_their_order() {
        let messages: Vec<Vec<u8>> = (0..3).map(|n| header().put_number(SEQUENCE, n).finish()).collect();
        let done = Writer::new(libc::NLMSG_DONE as u16, 0, 0, 0).finish();
        let packets = decode_logged(&[messages.concat(), done].concat()).unwrap();
        assert_eq!(packets.iter().map(|p| p.sequence).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
        let LogRecord { prefix, input, output, content, .. } = &packets[0];
        assert_eq!((prefix.as_str(), input, output, content), ("", &None, &None, &None));
    }

    #[test]
    fn a_packet_without_its_protocol_is_an_error() {
        let missing = DecodeError::Missing { object: "a logged packet", attribute: PACKET_HEADER };
        assert_eq!(decode_logged(&Writer::new(PACKET, 0, 0, 2).finish()), Err(missing));
        let short = Writer::new(PACKET, 0, 0, 2).put(PACKET_HEADER, &[8, 0]).finish();
        assert_eq!(decode_logged(&short), Err(DecodeError::length(PACKET_HEADER, 2)));
    }

    #[test]
    fn damaged_log_messages_do_not_panic() {
        let whole = header().put_text(PREFIX, "x").put_number(INPUT, 7).put(PAYLOAD, &DATAGRAM).finish();
        for length in 1..whole.len() {
            assert!(decode_logged(&whole[..length]).is_err());
        }
        for place in 0..whole.len() {
            for value in [0, 1, 4, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[place] = value;
                drop(decode_logged(&damaged));
            }
        }
    }
}
