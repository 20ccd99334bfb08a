//! Datagrams as messages and attributes. Every length is checked before use, and iteration ends at the first error.

use std::io;

use crate::{ERROR, HEADER};

/// The part of an attribute's type without its two flags: nested, and network byte order.
const TYPE_MASK: u16 = 0x3fff;

/// Why bytes are not valid netlink.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedNetlink {
    /// A length field, or a fixed header, exceeds the bytes that there are. Names the object.
    #[error("{0} is truncated")]
    Truncated(&'static str),
    /// The value of an attribute does not have the length of its type.
    #[error("invalid length of attribute {attribute}: {length} bytes")]
    Length {
        /// The type of the attribute.
        attribute: u16,
        /// The length of its value in bytes.
        length: usize,
    },
    /// The value of an attribute is not UTF-8.
    #[error("attribute {attribute} is not a string")]
    Text {
        /// The type of the attribute.
        attribute: u16,
    },
}

impl From<MalformedNetlink> for io::Error {
    fn from(error: MalformedNetlink) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("cannot decode the kernel's netlink message: {error}"))
    }
}

/// A message that the kernel sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// The message type, `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`, see [`crate::flags`].
    pub flags: u16,
    /// `nlmsg_seq`, that of the request.
    pub sequence: u32,
    /// The bytes behind `struct nlmsghdr`.
    pub body: &'a [u8],
}

/// The answer to a request that has no other response, or that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledgement {
    /// The sequence number of the request.
    pub sequence: u32,
    /// 0 for success, else an errno such as `EPERM`.
    pub errno: i32,
}

impl Acknowledgement {
    /// The errno as an error.
    pub fn result(self) -> io::Result<()> {
        match self.errno {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

impl<'a> Message<'a> {
    /// The fixed header of `length` bytes, and the attributes behind it.
    pub fn split(&self, length: usize) -> Result<(&'a [u8], Attributes<'a>), MalformedNetlink> {
        match self.body.split_at_checked(length) {
            Some((header, attributes)) => Ok((header, Attributes(attributes))),
            None => Err(MalformedNetlink::Truncated("the header of a netlink message")),
        }
    }

    /// The acknowledgement; `None` if the message is another.
    pub fn acknowledgement(&self) -> Result<Option<Acknowledgement>, MalformedNetlink> {
        if self.kind != ERROR {
            return Ok(None);
        }
        let code = self.body.first_chunk().ok_or(MalformedNetlink::Truncated("a netlink error"))?;
        // The kernel's codes are negative; i32::MIN cannot be negated.
        let errno = i32::from_ne_bytes(*code).saturating_neg();
        Ok(Some(Acknowledgement { sequence: self.sequence, errno }))
    }
}

/// Splits a datagram into messages.
#[derive(Debug, Clone)]
pub struct Messages<'a>(&'a [u8]);

impl<'a> Messages<'a> {
    /// The messages of the datagram.
    pub fn new(datagram: &'a [u8]) -> Messages<'a> {
        Messages(datagram)
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, MalformedNetlink>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let cut = cut_message(self.0);
        self.0 = match &cut {
            Ok((_, rest)) => rest,
            Err(_) => &[],
        };
        Some(cut.map(|(message, _)| message))
    }
}

fn cut_message(bytes: &[u8]) -> Result<(Message<'_>, &[u8]), MalformedNetlink> {
    let truncated = MalformedNetlink::Truncated("a netlink message");
    let Some((header, _)) = bytes.split_first_chunk::<HEADER>() else { return Err(truncated) };
    let [a, b, c, d, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *header;
    let length = u32::from_ne_bytes([a, b, c, d]) as usize;
    let Some(body) = bytes.get(HEADER..length) else { return Err(truncated) };
    let message = Message {
        kind: u16::from_ne_bytes([k0, k1]),
        flags: u16::from_ne_bytes([f0, f1]),
        sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
        body,
    };
    // The last message of a datagram may be unpadded.
    Ok((message, bytes.get(length.next_multiple_of(4)..).unwrap_or(&[])))
}

/// An attribute. The flags of its type are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// The attribute's type.
    pub kind: u16,
    /// Its value without padding.
    pub value: &'a [u8],
}

/// Splits bytes into attributes: those behind the fixed header of a message, or those nested in an attribute.
#[derive(Debug, Clone)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// The attributes in these bytes.
    pub fn new(bytes: &'a [u8]) -> Attributes<'a> {
        Attributes(bytes)
    }

    /// The first attribute of that type before an invalid one.
    pub fn find_kind(mut self, kind: u16) -> Option<Attribute<'a>> {
        self.find_map(|attribute| attribute.ok().filter(|attribute| attribute.kind == kind))
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, MalformedNetlink>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let cut = cut_attribute(self.0);
        self.0 = match &cut {
            Ok((_, rest)) => rest,
            Err(_) => &[],
        };
        Some(cut.map(|(attribute, _)| attribute))
    }
}

fn cut_attribute(bytes: &[u8]) -> Result<(Attribute<'_>, &[u8]), MalformedNetlink> {
    let truncated = MalformedNetlink::Truncated("a netlink attribute");
    let [l0, l1, k0, k1, ..] = *bytes else { return Err(truncated) };
    let length = usize::from(u16::from_ne_bytes([l0, l1]));
    let Some(value) = bytes.get(4..length) else { return Err(truncated) };
    let attribute = Attribute { kind: u16::from_ne_bytes([k0, k1]) & TYPE_MASK, value };
    Ok((attribute, bytes.get(length.next_multiple_of(4)..).unwrap_or(&[])))
}

impl<'a> Attribute<'a> {
    /// The attributes in the value.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes(self.value)
    }

    /// The value, which must have exactly `N` bytes.
    pub fn array<const N: usize>(&self) -> Result<[u8; N], MalformedNetlink> {
        self.value.try_into().map_err(|_| MalformedNetlink::Length { attribute: self.kind, length: self.value.len() })
    }

    /// An 8-bit number.
    pub fn byte(&self) -> Result<u8, MalformedNetlink> {
        self.array().map(|[byte]| byte)
    }

    /// A 16-bit number in network byte order.
    pub fn be16(&self) -> Result<u16, MalformedNetlink> {
        self.array().map(u16::from_be_bytes)
    }

    /// A 32-bit number in network byte order.
    pub fn be32(&self) -> Result<u32, MalformedNetlink> {
        self.array().map(u32::from_be_bytes)
    }

    /// A 64-bit number in network byte order.
    pub fn be64(&self) -> Result<u64, MalformedNetlink> {
        self.array().map(u64::from_be_bytes)
    }

    /// A 16-bit number in host byte order.
    pub fn ne16(&self) -> Result<u16, MalformedNetlink> {
        self.array().map(u16::from_ne_bytes)
    }

    /// A 32-bit number in host byte order.
    pub fn ne32(&self) -> Result<u32, MalformedNetlink> {
        self.array().map(u32::from_ne_bytes)
    }

    /// The value without a trailing NUL, of any encoding.
    pub fn bytes(&self) -> &'a [u8] {
        self.value.strip_suffix(&[0]).unwrap_or(self.value)
    }

    /// A string without its terminating NUL.
    pub fn text(&self) -> Result<&'a str, MalformedNetlink> {
        std::str::from_utf8(self.bytes()).map_err(|_| MalformedNetlink::Text { attribute: self.kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttributeList, NESTED, flags, message};

    #[test]
    fn message_and_attributes_survive_a_round_trip() {
        let nested = AttributeList::new().put(3, &[7]);
        let attributes = AttributeList::new().put_text(1, "x").put_be32(2, 5).put_ne32(3, 6).put_nested(4, &nested);
        let bytes = message(9, flags::ACK, 7, &[2, 0, 0, 0], &attributes);
        let message = Messages::new(&bytes).next().unwrap().unwrap();
        assert_eq!((message.kind, message.flags, message.sequence), (9, flags::ACK | flags::REQUEST, 7));
        assert_eq!(message.acknowledgement(), Ok(None));
        let (header, mut attributes) = message.split(4).unwrap();
        assert_eq!(header, [2, 0, 0, 0]);
        let mut next = || attributes.next().unwrap().unwrap();
        assert_eq!(next().text(), Ok("x"));
        assert_eq!(next().be32(), Ok(5));
        assert_eq!(next().ne32(), Ok(6));
        let last = next();
        assert_eq!((last.kind, last.nested().find_kind(3).unwrap().byte()), (4, Ok(7)));
        assert!(attributes.next().is_none());
        assert!(bytes.windows(2).any(|pair| pair == (4 | NESTED).to_ne_bytes()));
    }

    #[test]
    fn invalid_lengths_are_errors_and_end_iteration() {
        for bytes in [&[0; 4][..], &[9, 0, 1, 0], &[3, 0, 1, 0], &[4, 0]] {
            let mut attributes = Attributes(bytes);
            assert!(attributes.next().unwrap().is_err(), "{bytes:?}");
            assert!(attributes.next().is_none());
        }
        let mut short = message(0, 0, 0, &[], &AttributeList::new());
        short.pop();
        assert!(Messages(&short).next().unwrap().is_err());
        assert!(Messages(&[0; HEADER]).next().unwrap().is_err());
        let whole = message(0, 0, 0, &[0; 4], &AttributeList::new());
        assert!(Messages(&whole).next().unwrap().unwrap().split(5).is_err());
    }

    #[test]
    fn values_of_another_length_are_errors() {
        let attribute = Attribute { kind: 3, value: &[0; 5] };
        let expected = MalformedNetlink::Length { attribute: 3, length: 5 };
        assert_eq!(attribute.byte(), Err(expected.clone()));
        assert_eq!(attribute.be16(), Err(expected.clone()));
        assert_eq!(attribute.be32(), Err(expected.clone()));
        assert_eq!(attribute.be64(), Err(expected.clone()));
        assert_eq!(attribute.ne32(), Err(expected));
        assert_eq!(Attribute { kind: 3, value: &[0xff] }.text(), Err(MalformedNetlink::Text { attribute: 3 }));
    }

    #[test]
    fn errno_of_an_error_is_positive() {
        let answer = |code: i32| message(ERROR, 0, 4, &code.to_ne_bytes(), &AttributeList::new());
        let errno = |code| {
            let bytes = answer(code);
            Messages::new(&bytes).next().unwrap().unwrap().acknowledgement().unwrap().unwrap()
        };
        assert_eq!(errno(0), Acknowledgement { sequence: 4, errno: 0 });
        assert_eq!(errno(-1).result().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(errno(i32::MIN).errno, i32::MAX);
        let short = message(ERROR, 0, 4, &[], &AttributeList::new());
        assert!(Messages::new(&short).next().unwrap().unwrap().acknowledgement().is_err());
    }
}
