//! Rules of any table that set the connection mark.

use super::DecodeError;
use super::attributes::AttributeIndex;
use super::bytecode::value;
use super::objects::{NEW_RULE, records};
use crate::expression::CtKey;
use crate::message::Attributes;

/// A rule that sets the connection mark, and the bits that it changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkWriterRecord {
    /// `NFPROTO_*`
    pub family: u8,
    /// Table of the rule.
    pub table: String,
    /// Chain of the rule.
    pub chain: String,
    /// The bits whose value the rule may change.
    pub bits: u32,
}

/// The rules in one datagram that set the connection mark.
pub fn decode_mark_writers(datagram: &[u8]) -> Result<Vec<MarkWriterRecord>, DecodeError> {
    let rules = records(datagram, NEW_RULE, "a rule", |family, f| {
        let bits = f.get(4).map_or(Ok(0), |list| written_bits(list.nested()))?;
        Ok(MarkWriterRecord { family, table: f.need(1)?.text()?.into(), chain: f.need(2)?.text()?.into(), bits })
    })?;
    Ok(rules.into_iter().filter(|rule| rule.bits != 0).collect())
}

/// A register that holds the connection mark, except for these bits.
#[derive(Clone, Copy)]
struct MarkIn {
    register: u32,
    changed: u32,
}

fn written_bits(list: Attributes<'_>) -> Result<u32, DecodeError> {
    let mut bits = 0;
    // nft loads, changes and writes the mark in one register, in consecutive expressions. Other programs may use several
    // registers; an expression that is not known here may write to any.
    let mut source: Option<MarkIn> = None;
    for attribute in list {
        let fields = AttributeIndex::of("an expression", attribute?.nested())?;
        let name = fields.need(1)?.text()?;
        let data =
            AttributeIndex::of("an expression's data", fields.get(2).map_or(Attributes::new(&[]), |a| a.nested()))?;
        let held = |number: u16| -> Result<Option<MarkIn>, DecodeError> {
            let read = data.number(number)?.map(register);
            Ok(source.filter(|held| Some(held.register) == read))
        };
        match name {
            "ct" => {
                let is_mark = data.number(2)? == Some(CtKey::Mark.number());
                match (is_mark, data.get(4).is_some()) {
                    (true, true) => bits |= held(4)?.map_or(u32::MAX, |held| held.changed),
                    (true, false) => source = data.number(1)?.map(|to| MarkIn { register: register(to), changed: 0 }),
                    (false, _) => source = None,
                }
            }
            "bitwise" => {
                source = match (held(1)?, data.number(2)?, constant(&data, 4)?, constant(&data, 5)?) {
                    (Some(held), Some(to), Some(mask), Some(xor)) => {
                        Some(MarkIn { register: register(to), changed: held.changed | !mask | xor })
                    }
                    _ => None,
                }
            }
            "target" if data.need(1)?.text()? == "CONNMARK" => {
                bits |= written_by_connmark(data.number(2)?, data.get(3).map_or(&[], |a| a.value))
            }
            "counter" | "cmp" => {}
            _ => source = None,
        }
    }
    Ok(bits)
}

/// The number of the register's first 32 bits: `NFT_REG_1` to `NFT_REG_4` are four of `NFT_REG32_00` and following each.
fn register(number: u32) -> u32 {
    match number {
        1..=4 => 4 * number + 4,
        number => number,
    }
}

/// A 32-bit constant in host order; `None` for any other data.
fn constant(data: &AttributeIndex<'_>, number: u16) -> Result<Option<u32>, DecodeError> {
    let bytes = data.get(number).map(value).transpose()?.flatten();
    Ok(bytes.and_then(|bytes| <[u8; 4]>::try_from(bytes).ok()).map(u32::from_ne_bytes))
}

/// `struct xt_connmark_tginfo1` and, for revision 2, `xt_connmark_tginfo2` of `uapi/linux/netfilter/xt_connmark.h`.
/// Returns all bits if the data is invalid or the target shifts marks.
pub(crate) fn written_by_connmark(revision: Option<u32>, info: &[u8]) -> u32 {
    const SET: u8 = 0;
    const SAVE: u8 = 1;
    const RESTORE: u8 = 2;
    let number = |at: usize| info.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    let (shift, mode) = match revision {
        Some(1) => (Some(0), info.get(12)),
        Some(2) => (info.get(13).copied(), info.get(14)),
        _ => (None, None),
    };
    match (number(0), number(4), number(8), shift, mode) {
        // RESTORE sets the packet mark.
        (.., Some(&RESTORE)) => 0,
        (Some(mark), Some(mask), _, Some(0), Some(&SET)) => mark | mask,
        (_, Some(mask), Some(packet_mask), Some(0), Some(&SAVE)) => mask | packet_mask,
        _ => u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let length = u16::try_from(payload.len() + 4).unwrap();
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(payload);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn number(kind: u16, value: u32) -> Vec<u8> {
        attribute(kind, &value.to_be_bytes())
    }

    fn constant(kind: u16, value: u32) -> Vec<u8> {
        attribute(kind, &attribute(1, &value.to_ne_bytes()))
    }

    fn expression(name: &str, data: &[Vec<u8>]) -> Vec<u8> {
        attribute(1, &[attribute(1, &[name.as_bytes(), b"\0"].concat()), attribute(2, &data.concat())].concat())
    }

    fn load(to: u32) -> Vec<u8> {
        expression("ct", &[number(1, to), number(2, CtKey::Mark.number())])
    }

    fn write(from: u32) -> Vec<u8> {
        expression("ct", &[number(4, from), number(2, CtKey::Mark.number())])
    }

    fn change(from: u32, to: u32, mask: u32, xor: u32) -> Vec<u8> {
        expression("bitwise", &[number(1, from), number(2, to), constant(4, mask), constant(5, xor)])
    }

    fn written(expressions: &[Vec<u8>]) -> u32 {
        written_bits(Attributes::new(&expressions.concat())).unwrap()
    }

    #[test]
    fn only_unchanged_bits_of_mark_are_not_written() {
        assert_eq!(written(&[load(1), change(1, 1, !0xff, 0x12), write(1)]), 0xff);
        assert_eq!(written(&[load(1), change(1, 9, !0xff, 0x12), write(9)]), 0xff);
        assert_eq!(written(&[load(1), write(8)]), 0, "the first 32 bits of the same register");
        assert_eq!(written(&[write(1)]), u32::MAX);
    }

    #[test]
    fn mark_written_from_another_register_is_found() {
        let immediate = expression("immediate", &[number(1, 2), constant(2, 0xa001_0000)]);
        let compare = expression("cmp", &[number(1, 1), number(2, 0), constant(3, 0)]);
        assert_eq!(written(&[immediate.clone(), load(1), compare, write(2)]), u32::MAX);
        assert_eq!(written(&[immediate, load(1), change(2, 1, !0, 0), write(1)]), u32::MAX);
    }
}
