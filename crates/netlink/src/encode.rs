//! Requests as bytes.

use crate::{HEADER, flags};

/// `NLA_F_NESTED`, the flag of an attribute's type that marks a nested attribute.
pub const NESTED: u16 = 0x8000;

/// Encoded attributes: those of a message, or those nested in another attribute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttributeList(Vec<u8>);

impl AttributeList {
    /// An empty list.
    pub fn new() -> AttributeList {
        AttributeList::default()
    }

    /// Appends an attribute with its padding.
    ///
    /// # Panics
    /// If the value is longer than the 65,531 bytes that the length field of an attribute can express.
    #[must_use]
    pub fn put(mut self, kind: u16, value: &[u8]) -> AttributeList {
        let length = u16::try_from(value.len() + 4).expect("an attribute is shorter than 64 KiB");
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends an attribute that contains others, with `NLA_F_NESTED`.
    #[must_use]
    pub fn put_nested(self, kind: u16, attributes: impl AsRef<[u8]>) -> AttributeList {
        self.put(kind | NESTED, attributes.as_ref())
    }

    /// Appends a string with its terminating NUL.
    #[must_use]
    pub fn put_text(self, kind: u16, text: &str) -> AttributeList {
        self.put(kind, &[text.as_bytes(), &[0]].concat())
    }

    /// Appends a number in network byte order, as netfilter has them.
    #[must_use]
    pub fn put_be32(self, kind: u16, number: u32) -> AttributeList {
        self.put(kind, &number.to_be_bytes())
    }

    /// Appends a number in host byte order.
    #[must_use]
    pub fn put_ne32(self, kind: u16, number: u32) -> AttributeList {
        self.put(kind, &number.to_ne_bytes())
    }
}

impl AsRef<[u8]> for AttributeList {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A request as bytes: `struct nlmsghdr` with the flag `NLM_F_REQUEST`, the fixed header of the message type, and the
/// attributes. `kind` is the message type. `header` has a length that is a multiple of 4.
///
/// # Panics
/// If the message is longer than the 4 GiB that its length field can express.
pub fn message(kind: u16, flags: u16, sequence: u32, header: &[u8], attributes: &AttributeList) -> Vec<u8> {
    let length = HEADER + header.len() + attributes.0.len();
    let mut bytes = Vec::with_capacity(length);
    bytes.extend_from_slice(&u32::try_from(length).expect("a message is shorter than 4 GiB").to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(&(flags | flags::REQUEST).to_ne_bytes());
    bytes.extend_from_slice(&sequence.to_ne_bytes());
    // The port id of the kernel is 0.
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend_from_slice(header);
    bytes.extend_from_slice(&attributes.0);
    bytes
}
