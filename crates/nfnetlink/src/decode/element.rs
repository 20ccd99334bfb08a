//! The elements of sets.

use super::DecodeError;
use super::attributes::AttributeIndex;
use super::bytecode::{value, verdict};
use crate::message::{Attribute, Messages, NFTABLES, family_and_attributes};
use crate::table_snapshot::RawElement;
use crate::userdata;

/// `NFT_MSG_NEWSETELEM`
pub(super) const NEW_ELEMENTS: u16 = NFTABLES | 12;
/// `NFT_SET_ELEM_INTERVAL_END`
const INTERVAL_END: u32 = 1;

/// The elements in one datagram of a dump of one set.
pub fn decode_elements(datagram: &[u8]) -> Result<Vec<RawElement>, DecodeError> {
    let mut elements = Vec::new();
    for_each_element(datagram, |attribute| {
        elements.push(element(attribute)?);
        Ok(())
    })?;
    Ok(elements)
}

/// Passes every element in one datagram of a dump of one set, still undecoded, to a callback.
pub(super) fn for_each_element<'a>(
    datagram: &'a [u8],
    mut visit: impl FnMut(Attribute<'a>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    for message in Messages::new(datagram) {
        let message = message?;
        if message.kind != NEW_ELEMENTS {
            continue;
        }
        let (_, attributes) = family_and_attributes(&message)?;
        let Some(list) = AttributeIndex::of("a list of elements", attributes)?.get(3) else { continue };
        for attribute in list.nested() {
            visit(attribute?)?;
        }
    }
    Ok(())
}

fn element(attribute: Attribute<'_>) -> Result<RawElement, DecodeError> {
    let f = AttributeIndex::of("an element", attribute.nested())?;
    let key = match f.get(1) {
        Some(data) => value(data)?,
        None => None,
    };
    let verdict = match f.get(2) {
        Some(data) => verdict(data)?,
        None => None,
    };
    let flags = f.number(3)?.unwrap_or(0);
    let comment = f.get(6).and_then(|a| userdata::text(a.value, userdata::COMMENT)).map(String::into_boxed_str);
    // This crate writes no element with a timeout (4), expiration (5), expression (7), object (9), end of a concatenated
    // range (10), list of expressions (11) or data other than a verdict.
    let foreign =
        f.has_any(&[4, 5, 7, 9, 10, 11]) || flags & !INTERVAL_END != 0 || (f.get(2).is_some() && verdict.is_none());
    let end = flags & INTERVAL_END != 0;
    // A catch-all element has no key.
    Ok(RawElement { verdict, comment, end, foreign, ..RawElement::of_key(key.unwrap_or(Vec::new())) })
}
