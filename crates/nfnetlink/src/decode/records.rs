//! Counters of rules: the elements that rules add to dynamic sets, and the rules' own counters. Attribute numbers are
//! those of `uapi/linux/netfilter/nf_tables.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::DecodeError;
use super::attributes::AttributeIndex;
use super::bytecode::value;
use super::element::for_each_element;
use crate::message::{Attribute, Attributes, Messages, NFTABLES, family_and_attributes};

/// `NFT_MSG_NEWRULE`
const NEW_RULE: u16 = NFTABLES | 6;

/// `NFTA_SET_ELEM_KEY`, `NFTA_SET_ELEM_EXPR` and `NFTA_SET_ELEM_EXPRESSIONS`
const KEY: u16 = 1;
const EXPRESSION: u16 = 7;
const EXPRESSIONS: u16 = 11;

/// Packets and bytes, without link-layer headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counter {
    /// Wraps at 2^64, as in the kernel.
    pub packets: u64,
    /// From the network header on.
    pub bytes: u64,
}

impl Counter {
    /// The sum, which wraps as the kernel's own counters do.
    pub(crate) fn plus(self, other: Counter) -> Counter {
        let Counter { packets, bytes } = other;
        Counter { packets: self.packets.wrapping_add(packets), bytes: self.bytes.wrapping_add(bytes) }
    }
}

/// One flow of a dynamic set, and its counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConntrackRecord {
    /// First field of the element's key.
    pub source: IpAddr,
    /// Second field of the element's key.
    pub destination: IpAddr,
    /// IANA number.
    pub protocol: u8,
    /// Destination port; `None` in sets for protocols without ports.
    pub port: Option<u16>,
    /// Packets since the element was added; an element that expires loses its counter.
    pub packets: u64,
    /// Bytes of these packets, from the network header on.
    pub bytes: u64,
}

/// The sum of the counters of one rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChainCounterRecord {
    /// Table of the rule; the family is that of the request.
    pub table: String,
    /// Chain of the rule.
    pub chain: String,
    /// Sum over the `counter` expressions of the rule.
    pub counter: Counter,
}

/// The flows in one datagram of a dump of one set, whose key is source and destination address, protocol, and
/// optionally destination port. An element without a counter was added by hand; it records no packet and is skipped.
pub fn decode_flow_records(datagram: &[u8]) -> Result<Vec<ConntrackRecord>, DecodeError> {
    let mut records = Vec::new();
    for_each_element(datagram, |element| {
        records.extend(flow(element)?);
        Ok(())
    })?;
    Ok(records)
}

/// The rules with a counter in one datagram.
pub fn decode_rule_counters(datagram: &[u8]) -> Result<Vec<ChainCounterRecord>, DecodeError> {
    let mut records = Vec::new();
    for message in Messages::new(datagram) {
        let message = message?;
        if message.kind != NEW_RULE {
            continue;
        }
        let (_, attributes) = family_and_attributes(&message)?;
        let f = AttributeIndex::of("a rule", attributes)?;
        let Some(list) = f.get(4) else { continue };
        if let Some(counter) = counters(list.nested())? {
            let (table, chain) = (f.need(1)?.text()?.into(), f.need(2)?.text()?.into());
            records.push(ChainCounterRecord { table, chain, counter });
        }
    }
    Ok(records)
}

fn flow(element: Attribute<'_>) -> Result<Option<ConntrackRecord>, DecodeError> {
    let f = AttributeIndex::of("a flow", element.nested())?;
    // A single expression has its own attribute, several are in a list (`nft_set_elem_expr_dump`).
    let counter = match (f.get(EXPRESSION), f.get(EXPRESSIONS)) {
        (Some(one), _) => counter(one)?,
        (None, Some(list)) => counters(list.nested())?,
        (None, None) => None,
    };
    let Some(Counter { packets, bytes }) = counter else { return Ok(None) };
    let key = value(f.need(KEY)?)?.unwrap_or(Vec::new());
    let (source, destination, rest) = ends(&key).ok_or(wrong_key(&key))?;
    // Each field of a key is padded to a multiple of 4 bytes.
    let (protocol, port) = match *rest {
        [protocol, _, _, _] => (protocol, None),
        [protocol, _, _, _, high, low, _, _] => (protocol, Some(u16::from_be_bytes([high, low]))),
        _ => return Err(wrong_key(&key)),
    };
    Ok(Some(ConntrackRecord { source, destination, protocol, port, packets, bytes }))
}

fn wrong_key(key: &[u8]) -> DecodeError {
    DecodeError::length(KEY, key.len())
}

/// The addresses at the start of a key, whose length determines their family, and the rest of the key.
fn ends(key: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    if key.len() <= 16 {
        let (source, rest) = key.split_first_chunk::<4>()?;
        let (destination, rest) = rest.split_first_chunk::<4>()?;
        Some((Ipv4Addr::from(*source).into(), Ipv4Addr::from(*destination).into(), rest))
    } else {
        let (source, rest) = key.split_first_chunk::<16>()?;
        let (destination, rest) = rest.split_first_chunk::<16>()?;
        Some((Ipv6Addr::from(*source).into(), Ipv6Addr::from(*destination).into(), rest))
    }
}

/// The sum of the counters in a list of expressions; `None` if there are none.
fn counters(list: Attributes<'_>) -> Result<Option<Counter>, DecodeError> {
    let mut sum: Option<Counter> = None;
    for expression in list {
        if let Some(counter) = counter(expression?)? {
            sum = Some(sum.map_or(counter, |sum| sum.plus(counter)));
        }
    }
    Ok(sum)
}

/// The packets and bytes of the expression if it is a counter.
fn counter(expression: Attribute<'_>) -> Result<Option<Counter>, DecodeError> {
    let f = AttributeIndex::of("an expression", expression.nested())?;
    if f.need(1)?.text()? != "counter" {
        return Ok(None);
    }
    let data = AttributeIndex::of("a counter", f.need(2)?.nested())?;
    Ok(Some(Counter { bytes: data.need(1)?.be64()?, packets: data.need(2)?.be64()? }))
}

#[cfg(test)]
mod tests {
    use super::super::element::NEW_ELEMENTS;
    use super::*;
    use crate::message::{GENERAL, HEADER, Writer};

    fn nest() -> Writer {
        Writer::new(0, 0, 0, 0)
    }

    fn plain(writer: Writer) -> Vec<u8> {
        writer.finish()[HEADER + GENERAL..].to_vec()
    }

    fn counting(packets: u64, bytes: u64) -> Vec<u8> {
        let data = plain(nest().put(1, &bytes.to_be_bytes()).put(2, &packets.to_be_bytes()));
        plain(nest().put_text(1, "counter").put_nested(2, &data))
    }

    fn other(name: &str, data: &[u8]) -> Vec<u8> {
        plain(nest().put_text(1, name).put_nested(2, data))
    }

    fn list(expressions: &[Vec<u8>]) -> Vec<u8> {
        plain(expressions.iter().fold(nest(), |w, e| w.put_nested(1, e)))
    }

    fn elements(all: &[Vec<u8>]) -> Vec<u8> {
        let all = list(all);
        Writer::new(NEW_ELEMENTS, 0, 1, 1).put_text(1, "t").put_text(2, "denied4").put_nested(3, &all).finish()
    }

    fn keyed(key: &[u8]) -> Writer {
        nest().put_nested(KEY, &plain(nest().put(1, key)))
    }

    const KEY4: [u8; 16] = [10, 0, 0, 1, 10, 0, 0, 2, 6, 0, 0, 0, 0, 80, 0, 0];

    fn key6() -> Vec<u8> {
        let address = |last| [&[0xfd][..], &[0; 14], &[last]].concat();
        [address(1), address(2), vec![17, 0, 0, 0, 0, 53, 0, 0]].concat()
    }

    #[test]
    fn flow_record_decodes_with_or_without_limit() {
        let limit = other("limit", &[]);
        let both = plain(keyed(&KEY4).put_nested(EXPRESSIONS, &list(&[counting(3, 180), limit])));
        let alone = plain(keyed(&key6()).put_nested(EXPRESSION, &counting(1, u64::MAX)));
        let of = |a: &str, b: &str, protocol, port, packets, bytes| {
            let (source, destination) = (a.parse().unwrap(), b.parse().unwrap());
            ConntrackRecord { source, destination, protocol, port, packets, bytes }
        };
        let expected =
            [of("10.0.0.1", "10.0.0.2", 6, Some(80), 3, 180), of("fd00::1", "fd00::2", 17, Some(53), 1, u64::MAX)];
        assert_eq!(decode_flow_records(&elements(&[both, alone])), Ok(expected.to_vec()));
        let portless = |key: &[u8]| plain(keyed(key).put_nested(EXPRESSION, &counting(2, 168)));
        let found = decode_flow_records(&elements(&[portless(&KEY4[..12]), portless(&key6()[..36])])).unwrap();
        let expected = [of("10.0.0.1", "10.0.0.2", 6, None, 2, 168), of("fd00::1", "fd00::2", 17, None, 2, 168)];
        assert_eq!(found, expected);
    }

    #[test]
    fn element_without_counter_is_not_a_flow() {
        let bare = plain(keyed(&KEY4));
        let limited = plain(keyed(&KEY4).put_nested(EXPRESSION, &other("limit", &[])));
        assert_eq!(decode_flow_records(&elements(&[bare, limited])), Ok(vec![]));
    }

    #[test]
    fn keys_that_are_no_flows_are_errors() {
        for length in [0, 4, 8, 11, 13, 15, 17, 32, 37, 44, 64] {
            let key = vec![0; length];
            let found = decode_flow_records(&elements(&[plain(keyed(&key).put_nested(EXPRESSION, &counting(1, 1)))]));
            assert_eq!(found, Err(wrong_key(&key)), "{length}");
        }
    }

    #[test]
    fn rule_counters_exclude_dynset_element_counters() {
        let inner = plain(nest().put_text(1, "denied4").put_nested(10, &list(&[counting(99, 99)])));
        let expressions = list(&[other("dynset", &inner), counting(3, 180), other("log", &[]), counting(2, 120)]);
        let rule = |expressions: &[u8]| {
            Writer::new(NEW_RULE, 0, 1, 1).put_text(1, "t").put_text(2, "deny").put_nested(4, expressions).finish()
        };
        let datagram = [rule(&expressions), rule(&list(&[other("dynset", &inner)]))].concat();
        let counter = Counter { packets: 5, bytes: 300 };
        let expected = ChainCounterRecord { table: "t".into(), chain: "deny".into(), counter };
        assert_eq!(decode_rule_counters(&datagram), Ok(vec![expected]));
    }

    #[test]
    fn damaged_record_messages_do_not_panic() {
        let expressions = list(&[counting(3, 180), other("limit", &[])]);
        let flows = elements(&[plain(keyed(&KEY4).put_nested(EXPRESSIONS, &expressions))]);
        let rule = Writer::new(NEW_RULE, 0, 1, 1).put_text(1, "t").put_text(2, "deny").put_nested(4, &expressions);
        let rule = rule.finish();
        for whole in [flows, rule] {
            for length in 1..whole.len() {
                assert!(decode_flow_records(&whole[..length]).is_err());
                assert!(decode_rule_counters(&whole[..length]).is_err());
            }
            for place in 0..whole.len() {
                for value in [0, 1, 4, 0x7f, 0xff] {
                    let mut damaged = whole.clone();
                    damaged[place] = value;
                    drop(decode_flow_records(&damaged));
                    drop(decode_rule_counters(&damaged));
                }
            }
        }
    }
}
