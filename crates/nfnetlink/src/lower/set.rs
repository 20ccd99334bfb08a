//! Compiles sets to headers, keys to bytes and ranges to pairs of elements, and converts elements in the kernel back.
//!
//! An interval set stores a range as two elements: its start, and an end one past it with `NFT_SET_ELEM_INTERVAL_END`.
//! A range up to the largest value has no end. Where the first range of a new set does not start at 0, nft adds an end
//! without a start at 0; it matches nothing (`nft_rbtree.c`), so we do not write it and ignore an existing one.

use std::net::{Ipv4Addr, Ipv6Addr};

use nft::{Datum, Element, InterfaceName, Key, KeyType, Protocol, Set};

use crate::expression::VerdictCode;
use crate::table_snapshot::RawElement;

/// `NFT_SET_INTERVAL`, `NFT_SET_MAP`, and `NFT_SET_TIMEOUT` with `NFT_SET_EVAL`
const INTERVAL: u32 = 4;
const MAP: u32 = 8;
const DYNAMIC: u32 = 0x30;
/// `NFT_DATA_VERDICT`, the data type of a verdict map.
const DATA_VERDICT: u32 = 0xffff_ff00;
/// Bits of one data type in the type of a concatenation (nft's `TYPE_BITS`).
const TYPE_BITS: u32 = 6;

/// The properties that determine which elements a set in the kernel can hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetHeader {
    /// `NFT_SET_*`, without the flags that the kernel sets by itself.
    pub flags: u32,
    /// nft's number of the type, or of the concatenation with 6 bits for each field (`NFTA_SET_KEY_TYPE`). The kernel
    /// does not interpret it.
    pub key_type: u32,
    /// In bytes, with each field of a concatenation padded to 4 (`NFTA_SET_KEY_LEN`).
    pub key_length: u32,
    /// The data type of a map; `None` for a set.
    pub data_type: Option<u32>,
    /// Maximum number of elements.
    pub size: Option<u32>,
    /// The timeout after which elements expire.
    pub timeout_millis: Option<u64>,
    /// From the user data of the set (`NFTA_SET_USERDATA`).
    pub comment: Option<String>,
}

impl SetHeader {
    /// Whether rules add elements to the set.
    pub fn is_dynamic(&self) -> bool {
        self.flags & DYNAMIC == DYNAMIC
    }

    /// The header that the kernel reports for a set of this declaration.
    pub fn of(set: &Set) -> SetHeader {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags = flag(set.interval, INTERVAL) | flag(set.verdicts, MAP) | flag(set.dynamic.is_some(), DYNAMIC);
        SetHeader {
            flags,
            key_type: set.types.iter().fold(0, |all, t| all << TYPE_BITS | type_number(*t)),
            key_length: key_length(&set.types) as u32,
            data_type: set.verdicts.then_some(DATA_VERDICT),
            size: set.size,
            timeout_millis: set.dynamic.map(|d| u64::from(d.timeout_seconds) * 1000),
            comment: set.comment.as_ref().map(|c| c.as_str().to_owned()),
        }
    }
}

/// nft's `enum datatypes`.
fn type_number(key: KeyType) -> u32 {
    match key {
        KeyType::Ipv4Addr => 7,
        KeyType::Ipv6Addr => 8,
        KeyType::InetProto => 12,
        KeyType::InetService => 13,
        KeyType::InterfaceName => 41,
    }
}

/// Width of a value of the type in bytes.
pub(super) fn width(key: KeyType) -> u32 {
    match key {
        KeyType::Ipv4Addr => 4,
        KeyType::Ipv6Addr => 16,
        KeyType::InetProto => 1,
        KeyType::InetService => 2,
        KeyType::InterfaceName => InterfaceName::WIDTH as u32,
    }
}

/// Length of a key in bytes: unpadded for one field, each field padded to a register in a concatenation.
fn key_length(types: &[KeyType]) -> usize {
    let length: u32 = match types {
        [one] => width(*one),
        many => many.iter().map(|t| width(*t).next_multiple_of(4)).sum(),
    };
    length as usize
}

fn put_datum(bytes: &mut Vec<u8>, datum: Datum) {
    match datum {
        Datum::V4(address) => bytes.extend_from_slice(&address.octets()),
        Datum::V6(address) => bytes.extend_from_slice(&address.octets()),
        Datum::Protocol(protocol) => bytes.push(protocol.number()),
        Datum::Port(port) => bytes.extend_from_slice(&port.to_be_bytes()),
        Datum::Interface(name) => bytes.extend_from_slice(&name.padded()),
    }
}

fn key_bytes(data: &[Datum]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16 * data.len());
    for datum in data {
        put_datum(&mut bytes, *datum);
        if data.len() > 1 {
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
    }
    bytes
}

/// The one or two elements that encode an element of the language. A range's verdict and comment belong to its start.
pub(crate) fn lower_element(key: &Key, element: &Element) -> (RawElement, Option<RawElement>) {
    let (start, after) = match *key {
        Key::One(a) => (key_bytes(&[a]), None),
        Key::Two(a, b) => (key_bytes(&[a, b]), None),
        Key::Three(a, b, c) => (key_bytes(&[a, b, c]), None),
        Key::Range(first, last) => (key_bytes(&[first]), Some(last.successor())),
    };
    let open = after == Some(None);
    let end = after.flatten().map(|datum| RawElement { end: true, ..RawElement::of_key(key_bytes(&[datum])) });
    let raw = RawElement {
        verdict: element.verdict.as_ref().map(VerdictCode::from),
        comment: element.comment.as_ref().map(|c| c.as_str().into()),
        open,
        ..RawElement::of_key(start)
    };
    (raw, end)
}

/// An element of a set in the kernel whose key the language cannot express: an unknown protocol, a start without an
/// end, an end without a start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unspeakable;

/// Converts the elements of a set in the kernel to keys of the language, sorted by key.
pub(crate) fn raise_elements<'a>(
    set: &Set,
    elements: &'a [RawElement],
) -> Result<Vec<(Key, &'a RawElement)>, Unspeakable> {
    let mut raised = match (set.interval, &set.types[..]) {
        (true, [one]) => raise_ranges(*one, elements)?,
        (true, _) => return Err(Unspeakable),
        (false, types) => raise_keys(types, elements)?,
    };
    raised.sort_unstable_by_key(|(key, _)| *key);
    Ok(raised)
}

fn raise_keys<'a>(types: &[KeyType], elements: &'a [RawElement]) -> Result<Vec<(Key, &'a RawElement)>, Unspeakable> {
    let mut raised = Vec::with_capacity(elements.len());
    let mut data = Vec::with_capacity(types.len());
    for element in elements {
        data.clear();
        if element.end || element.key.len() != key_length(types) {
            return Err(Unspeakable);
        }
        let mut rest = &element.key[..];
        for key_type in types {
            let (value, next) = rest.split_at(width(*key_type) as usize);
            data.push(datum(*key_type, value).ok_or(Unspeakable)?);
            // The key's length is a multiple of 4 if there is more than one field, so the remainder is padding.
            let (padding, next) = next.split_at(next.len() % 4);
            if padding.iter().any(|b| *b != 0) {
                return Err(Unspeakable);
            }
            rest = next;
        }
        raised.push((Key::exact(&data).ok_or(Unspeakable)?, element));
    }
    Ok(raised)
}

fn raise_ranges(key_type: KeyType, elements: &[RawElement]) -> Result<Vec<(Key, &RawElement)>, Unspeakable> {
    let mut sorted: Vec<&RawElement> = elements.iter().collect();
    // The end of one range and the start of the next may have the same key.
    sorted.sort_unstable_by(|a, b| a.key.cmp(&b.key).then(b.end.cmp(&a.end)));
    let mut raised = Vec::with_capacity(elements.len() / 2 + 1);
    let mut start: Option<(Datum, &RawElement)> = None;
    for element in sorted {
        let here = datum(key_type, &element.key).ok_or(Unspeakable)?;
        match (start.take(), element.end) {
            (None, false) => start = Some((here, element)),
            (Some((first, head)), true) => {
                let last = predecessor(here).ok_or(Unspeakable)?;
                raised.push((Key::Range(first, last), head));
            }
            (None, true) if element.key.iter().all(|b| *b == 0) => {}
            (None, true) | (Some(_), false) => return Err(Unspeakable),
        }
    }
    if let Some((first, head)) = start {
        raised.push((Key::Range(first, largest(key_type).ok_or(Unspeakable)?), head));
    }
    Ok(raised)
}

fn datum(key_type: KeyType, bytes: &[u8]) -> Option<Datum> {
    match key_type {
        KeyType::Ipv4Addr => Some(Datum::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?))),
        KeyType::Ipv6Addr => Some(Datum::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?))),
        KeyType::InetProto => match *bytes {
            [number] => Protocol::from_number(number).map(Datum::Protocol),
            _ => None,
        },
        KeyType::InetService => Some(Datum::Port(u16::from_be_bytes(bytes.try_into().ok()?))),
        KeyType::InterfaceName => InterfaceName::from_padded(bytes.try_into().ok()?).map(Datum::Interface),
    }
}

fn predecessor(datum: Datum) -> Option<Datum> {
    match datum {
        Datum::V4(a) => u32::from(a).checked_sub(1).map(|n| Datum::V4(n.into())),
        Datum::V6(a) => u128::from(a).checked_sub(1).map(|n| Datum::V6(n.into())),
        Datum::Protocol(_) | Datum::Interface(_) => None,
        Datum::Port(p) => p.checked_sub(1).map(Datum::Port),
    }
}

fn largest(key_type: KeyType) -> Option<Datum> {
    match key_type {
        KeyType::Ipv4Addr => Some(Datum::V4(Ipv4Addr::BROADCAST)),
        KeyType::Ipv6Addr => Some(Datum::V6(Ipv6Addr::from(u128::MAX))),
        KeyType::InetProto | KeyType::InterfaceName => None,
        KeyType::InetService => Some(Datum::Port(u16::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(first: u16, last: u16) -> Key {
        Key::Range(Datum::Port(first), Datum::Port(last))
    }

    fn lowered(keys: &[Key]) -> Vec<RawElement> {
        let pairs = keys.iter().map(|k| lower_element(k, &Element::default()));
        pairs.flat_map(|(start, end)| [Some(start), end]).flatten().collect()
    }

    #[test]
    fn range_lowers_to_start_and_end_unless_open() {
        let elements = lowered(&[ports(80, 90), ports(60000, 65535)]);
        let shape: Vec<_> = elements.iter().map(|e| (&e.key[..], e.end, e.open)).collect();
        assert_eq!(shape, [(&[0, 80][..], false, false), (&[0, 91], true, false), (&[0xea, 0x60], false, true)]);
    }

    #[test]
    fn ranges_raise_from_unordered_elements_with_null_segment() {
        let set = Set { interval: true, ..Set::of(&[KeyType::InetService]) };
        let keys = [ports(80, 90), ports(91, 91), ports(60000, 65535)];
        let mut elements = lowered(&keys);
        elements.push(RawElement { end: true, ..RawElement::of_key(vec![0, 0]) });
        elements.reverse();
        let raised = raise_elements(&set, &elements).unwrap();
        assert_eq!(raised.iter().map(|(k, _)| *k).collect::<Vec<_>>(), keys);
    }

    #[test]
    fn unpaired_range_elements_are_refused() {
        let set = Set { interval: true, ..Set::of(&[KeyType::InetService]) };
        let at = |port: u8, end| RawElement { end, ..RawElement::of_key(vec![0, port]) };
        assert_eq!(raise_elements(&set, &[at(1, false), at(2, false)]).err(), Some(Unspeakable));
        assert_eq!(raise_elements(&set, &[at(1, true)]).err(), Some(Unspeakable));
    }

    #[test]
    fn concatenated_fields_are_padded_and_found_again() {
        let types = [KeyType::Ipv4Addr, KeyType::InetProto, KeyType::InetService];
        let set = Set::of(&types);
        let key = Key::Three(Datum::V4([10, 0, 0, 1].into()), Datum::Protocol(Protocol::Tcp), Datum::Port(80));
        let elements = lowered(&[key]);
        assert_eq!(elements[0].key, [10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]);
        assert_eq!(raise_elements(&set, &elements).unwrap()[0].0, key);
        assert_eq!(SetHeader::of(&set).key_type, 0x730d);
    }
}
