//! The data section: consecutive values, with pointers to earlier copies.
//!
//! Only records are top-level: a text is stored in the first record that contains it, and later records point into that
//! one, so that readers which verify a file find no unreferenced data.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{MmdbWriteError, Value};

const POINTER: u8 = 1;
const TEXT: u8 = 2;
pub(super) const UINT16: u8 = 5;
pub(super) const UINT32: u8 = 6;
pub(super) const MAP: u8 = 7;
pub(super) const UINT64: u8 = 9;
pub(super) const ARRAY: u8 = 11;
const BOOL: u8 = 14;

/// Larger types do not fit into the control byte.
const EXTENDED: u8 = 8;
/// A pointer takes two to five bytes. Values of up to this length are repeated.
const WORTH_POINTING_TO: usize = 5;
/// The longest text or map that a control byte and three more can express.
const SIZE_MAX: usize = 65_821 + 0xff_ffff;

pub(super) struct Data<'t, R> {
    bytes: Vec<u8>,
    records: HashMap<&'t R, u32>,
    /// Offset of the first value by the hash of its encoding. Bytes are compared before a pointer is written, so a hash
    /// collision only costs a few bytes.
    written: HashMap<u64, u32>,
}

impl<'t, R: Eq + Hash> Data<'t, R> {
    pub(super) fn new() -> Data<'t, R> {
        Data { bytes: vec![], records: HashMap::new(), written: HashMap::new() }
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Offset of the record in the section, for the tree.
    pub(super) fn record(&mut self, record: &'t R, encode: impl Fn(&'t R) -> Value<'t>) -> Result<u32, MmdbWriteError> {
        if let Some(offset) = self.records.get(record) {
            return Ok(*offset);
        }
        let offset = offset_of(self.bytes.len())?;
        match encode(record) {
            Value::Map(pairs) => self.pairs(&pairs)?,
            single => self.value(&single)?,
        }
        self.records.insert(record, offset);
        Ok(offset)
    }

    fn value(&mut self, value: &Value<'_>) -> Result<(), MmdbWriteError> {
        match value {
            Value::Text(value) => self.text(value),
            Value::Bool(value) => {
                control(&mut self.bytes, BOOL, usize::from(*value));
                Ok(())
            }
            Value::Uint32(value) => {
                unsigned(&mut self.bytes, UINT32, u64::from(*value));
                Ok(())
            }
            Value::Array(items) => {
                let start = self.bytes.len();
                control(&mut self.bytes, ARRAY, items.len());
                for item in items {
                    self.value(item)?;
                }
                self.point_back(start)
            }
            Value::Map(pairs) => {
                let start = self.bytes.len();
                self.pairs(pairs)?;
                self.point_back(start)
            }
        }
    }

    fn pairs(&mut self, pairs: &[(&str, Value<'_>)]) -> Result<(), MmdbWriteError> {
        control(&mut self.bytes, MAP, pairs.len());
        for (key, value) in pairs {
            self.text(key)?;
            self.value(value)?;
        }
        Ok(())
    }

    fn text(&mut self, value: &str) -> Result<(), MmdbWriteError> {
        let start = self.bytes.len();
        text(&mut self.bytes, value)?;
        self.point_back(start)
    }

    /// Replaces the value at the end by a pointer if an earlier copy exists. The first map of its kind contains texts
    /// where the second has pointers, so maps are shared from the third on.
    fn point_back(&mut self, start: usize) -> Result<(), MmdbWriteError> {
        let last = &self.bytes[start..];
        if last.len() <= WORTH_POINTING_TO {
            return Ok(());
        }
        let mut hasher = DefaultHasher::new();
        last.hash(&mut hasher);
        let place = offset_of(start)?;
        let first = *self.written.entry(hasher.finish()).or_insert(place);
        let range = first as usize..first as usize + last.len();
        if first != place && range.end <= start && self.bytes[range] == *last {
            self.bytes.truncate(start);
            pointer(&mut self.bytes, first);
        }
        Ok(())
    }
}

/// Data offsets share their 28 bits with nodes; the tree checks the limit.
fn offset_of(len: usize) -> Result<u32, MmdbWriteError> {
    u32::try_from(len).map_err(|_| MmdbWriteError::TooLarge { nodes: 0, data: len as u64 })
}

pub(super) fn text(out: &mut Vec<u8>, text: &str) -> Result<(), MmdbWriteError> {
    if text.len() > SIZE_MAX {
        return Err(MmdbWriteError::TextTooLong { bytes: text.len() });
    }
    control(out, TEXT, text.len());
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// Without leading zero bytes.
pub(super) fn unsigned(out: &mut Vec<u8>, kind: u8, value: u64) {
    let bytes = &value.to_be_bytes()[value.leading_zeros() as usize / 8..];
    control(out, kind, bytes.len());
    out.extend_from_slice(bytes);
}

/// Type and size of a value: three and five bits, and more bytes if needed.
pub(super) fn control(out: &mut Vec<u8>, kind: u8, size: usize) {
    let (low, more, bytes) = match size {
        0..29 => (size, 0, 0),
        29..285 => (29, size - 29, 1),
        285..65_821 => (30, size - 285, 2),
        _ => (31, size - 65_821, 3),
    };
    let high = if kind < EXTENDED { kind << 5 } else { 0 };
    out.push(high | low as u8);
    if kind >= EXTENDED {
        out.push(kind - 7);
    }
    out.extend_from_slice(&(more as u32).to_be_bytes()[4 - bytes..]);
}

/// Two bits encode the number of bytes; each longer form starts where the shorter one ends.
fn pointer(out: &mut Vec<u8>, to: u32) {
    const TWO: u32 = 1 << 11;
    const THREE: u32 = TWO + (1 << 19);
    const FOUR: u32 = THREE + (1 << 27);
    let (size, value, bytes) = match to {
        0..TWO => (0, to, 1),
        TWO..THREE => (1, to - TWO, 2),
        THREE..FOUR => (2, to - THREE, 3),
        FOUR.. => (3, to, 4),
    };
    let high = if size == 3 { 0 } else { (value >> (8 * bytes)) as u8 };
    out.push(POINTER << 5 | size << 3 | high);
    out.extend_from_slice(&value.to_be_bytes()[4 - bytes..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_bytes_are_those_of_the_format() {
        let of = |kind, size| {
            let mut out = vec![];
            control(&mut out, kind, size);
            out
        };
        assert_eq!(of(TEXT, 0), [0x40]);
        assert_eq!(of(TEXT, 28), [0x5c]);
        assert_eq!(of(TEXT, 29), [0x5d, 0]);
        assert_eq!(of(TEXT, 284), [0x5d, 255]);
        assert_eq!(of(TEXT, 285), [0x5e, 0, 0]);
        assert_eq!(of(TEXT, 65_820), [0x5e, 255, 255]);
        assert_eq!(of(TEXT, 65_821), [0x5f, 0, 0, 0]);
        assert_eq!(of(BOOL, 1), [0x01, 7]);
        assert_eq!(of(ARRAY, 30), [0x1d, 4, 1]);
    }

    #[test]
    fn pointers_are_those_of_the_format() {
        let of = |to| {
            let mut out = vec![];
            pointer(&mut out, to);
            out
        };
        assert_eq!(of(0), [0x20, 0]);
        assert_eq!(of(2_047), [0x27, 0xff]);
        assert_eq!(of(2_048), [0x28, 0, 0]);
        assert_eq!(of(526_335), [0x2f, 0xff, 0xff]);
        assert_eq!(of(526_336), [0x30, 0, 0, 0]);
        assert_eq!(of(134_744_063), [0x37, 0xff, 0xff, 0xff]);
        assert_eq!(of(134_744_064), [0x38, 0x08, 0x08, 0x08, 0x00]);
    }

    #[test]
    fn numbers_have_no_leading_zeros() {
        for (value, bytes) in
            [(0, &[0xc0][..]), (1, &[0xc1, 1]), (256, &[0xc2, 1, 0]), (u32::MAX, &[0xc4, 255, 255, 255, 255])]
        {
            let mut out = vec![];
            unsigned(&mut out, UINT32, u64::from(value));
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn equal_records_share_offset_and_repetitions_use_pointers() {
        let labels = || Value::Map(vec![("tier", Value::text("frontend")), ("team", Value::text("checkout"))]);
        let encode = |number: &u32| Value::Map(vec![("number", Value::Uint32(*number)), ("labels", labels())]);
        let mut data = Data::new();
        let (one, same, two, three, four) = (1, 1, 2, 3, 4);
        assert_eq!(data.record(&one, encode).unwrap(), 0);
        let first = data.bytes.len();
        assert_eq!(data.record(&same, encode).unwrap(), 0);
        assert_eq!(data.bytes.len(), first);
        let mut took = vec![];
        for record in [&two, &three, &four] {
            let before = data.bytes.len();
            data.record(record, encode).unwrap();
            took.push(data.bytes.len() - before);
        }
        // Control byte, pointer to the key, number, pointer to the key, and two pointers for each label or one for all;
        // a text of four bytes is repeated.
        assert_eq!((first, took), (46, vec![22, 9, 9]));
    }

    #[test]
    fn text_over_format_limit_is_refused() {
        let mut out = vec![];
        assert_eq!(text(&mut out, &"x".repeat(SIZE_MAX + 1)), Err(MmdbWriteError::TextTooLong { bytes: SIZE_MAX + 1 }));
        assert!(text(&mut out, &"x".repeat(SIZE_MAX)).is_ok());
    }
}
