//! Rules of any table that set the connection mark.

use super::DecodeError;
use super::attributes::Fields;
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

/// The content of a register, as far as it matters to a connection mark set from it.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    /// The connection mark, except for these bits.
    MarkExcept(u32),
    Other,
}

fn written_bits(list: Attributes<'_>) -> Result<u32, DecodeError> {
    let mut bits = 0;
    // nft loads, changes and writes the mark in one register, in consecutive expressions.
    let mut source = Source::Other;
    for attribute in list {
        let fields = Fields::of("an expression", attribute?.nested())?;
        let name = fields.need(1)?.text()?;
        let data = Fields::of("an expression's data", fields.get(2).map_or(Attributes::new(&[]), |a| a.nested()))?;
        match name {
            "ct" => {
                let is_mark = data.number(2)? == Some(CtKey::Mark.number());
                match (is_mark, data.get(4).is_some(), source) {
                    (true, true, Source::MarkExcept(changed)) => bits |= changed,
                    (true, true, Source::Other) => bits = u32::MAX,
                    (true, false, _) => source = Source::MarkExcept(0),
                    (false, ..) => source = Source::Other,
                }
            }
            "bitwise" => {
                source = match (source, constant(&data, 4)?, constant(&data, 5)?) {
                    (Source::MarkExcept(changed), Some(mask), Some(xor)) => Source::MarkExcept(changed | !mask | xor),
                    _ => Source::Other,
                }
            }
            "target" if data.need(1)?.text()? == "CONNMARK" => {
                bits |= written_by_connmark(data.number(2)?, data.get(3).map_or(&[], |a| a.value))
            }
            "counter" | "cmp" => {}
            _ => source = Source::Other,
        }
    }
    Ok(bits)
}

/// A 32-bit constant in host order; `None` for any other data.
fn constant(data: &Fields<'_>, number: u16) -> Result<Option<u32>, DecodeError> {
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
