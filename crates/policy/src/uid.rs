//! UIDs of objects, stored compactly: there is one for each pod of the cluster.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// A UID, which may be any text, in compact form: almost all are UUIDs in the format of RFC 9562. Equality and order
/// are those of the texts.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Uid(UidForm);

#[derive(Clone, PartialEq, Eq, Hash)]
enum UidForm {
    /// The bytes of a lower-case UUID with [`DASHES`].
    Uuid([u8; 16]),
    /// Any other text.
    Otherwise(Arc<str>),
}

/// Length of a UUID's text in bytes.
const LENGTH: usize = 36;

/// Positions of the dashes in a UUID's text.
const DASHES: [usize; 4] = [8, 13, 18, 23];

impl Uid {
    /// Whether the object has no UID, as in manifests.
    pub fn is_empty(&self) -> bool {
        match &self.0 {
            UidForm::Uuid(_) => false,
            UidForm::Otherwise(text) => text.is_empty(),
        }
    }

    /// The heap allocation, if any.
    pub(crate) fn text_apart(&self) -> Option<&Arc<str>> {
        match &self.0 {
            UidForm::Uuid(_) => None,
            UidForm::Otherwise(text) => (!text.is_empty()).then_some(text),
        }
    }

    /// Calls the function with the text.
    fn with_text<T>(&self, call: impl FnOnce(&[u8]) -> T) -> T {
        match &self.0 {
            UidForm::Uuid(bytes) => call(&text(bytes)),
            UidForm::Otherwise(text) => call(text.as_bytes()),
        }
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Uid {
        Uid(match parse(text.as_bytes()) {
            Some(bytes) => UidForm::Uuid(bytes),
            None if text.is_empty() => UidForm::Otherwise(Arc::default()),
            None => UidForm::Otherwise(text.into()),
        })
    }
}

impl Ord for Uid {
    fn cmp(&self, other: &Uid) -> Ordering {
        match (&self.0, &other.0) {
            // The order of bytes is that of their hex digits: digits precede letters in ASCII.
            (UidForm::Uuid(a), UidForm::Uuid(b)) => a.cmp(b),
            (UidForm::Otherwise(a), UidForm::Otherwise(b)) => a.cmp(b),
            (UidForm::Uuid(_), UidForm::Otherwise(_)) | (UidForm::Otherwise(_), UidForm::Uuid(_)) => {
                self.with_text(|a| other.with_text(|b| a.cmp(b)))
            }
        }
    }
}

impl PartialOrd for Uid {
    fn partial_cmp(&self, other: &Uid) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| f.pad(std::str::from_utf8(text).map_err(|_| fmt::Error)?))
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| String::from_utf8_lossy(text).fmt(f))
    }
}

/// The bytes, if the text is a UUID in canonical form.
fn parse(text: &[u8]) -> Option<[u8; 16]> {
    if text.len() != LENGTH {
        return None;
    }
    let mut bytes = [0; 16];
    let mut digits = 0;
    for (at, character) in text.iter().enumerate() {
        let digit = match character {
            b'-' if DASHES.contains(&at) => continue,
            _ if DASHES.contains(&at) => return None,
            b'0'..=b'9' => character - b'0',
            b'a'..=b'f' => character - b'a' + 10,
            _ => return None,
        };
        bytes[digits / 2] = bytes[digits / 2] << 4 | digit;
        digits += 1;
    }
    Some(bytes)
}

fn text(bytes: &[u8; 16]) -> [u8; LENGTH] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; LENGTH];
    let places = (0..LENGTH).filter(|at| !DASHES.contains(at));
    let nibbles = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    for (at, nibble) in places.zip(nibbles) {
        text[at] = DIGITS[usize::from(nibble)];
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts() -> impl Strategy<Value = String> {
        prop_oneof![
            4 => "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
            // Texts with a long common prefix, so that the last characters decide the order.
            4 => "01234567-89ab-cdef-0123-456789abcd[/-g]{2}",
            2 => "[0-9a-fA-F-]{36}",
            1 => "[0-9a-f]{32}",
            1 => "0123456(7-89ab-cdef-0123-456789abcdef)?",
            1 => ".{0,40}",
        ]
    }

    proptest! {
        #[test]
        fn uids_compare_like_their_texts(a in texts(), b in texts()) {
            let (first, second) = (Uid::from(a.as_str()), Uid::from(b.as_str()));
            prop_assert_eq!(first.cmp(&second), a.cmp(&b));
            prop_assert_eq!(first == second, a == b);
            prop_assert_eq!(first.is_empty(), a.is_empty());
            prop_assert_eq!(first.to_string(), a);
        }
    }

    #[test]
    fn lowercase_uuid_needs_no_allocation() {
        assert!(Uid::from("0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9").text_apart().is_none());
        assert!(Uid::from("0A1B2C3D-4e5f-6071-8293-a4b5c6d7e8f9").text_apart().is_some());
        assert!(Uid::from("").text_apart().is_none());
        assert_eq!(size_of::<Uid>(), 24);
    }
}
