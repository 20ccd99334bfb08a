//! Netlink messages as bytes: small requests are written here, and datagrams from the kernel are split into messages
//! and attributes. Every length is checked before use.

use nft::TableFamily;

use crate::decode::DecodeError;

/// Length of `struct nlmsghdr`.
pub(crate) const HEADER: usize = 16;
/// Length of `struct nfgenmsg`, which follows `struct nlmsghdr` in netfilter messages.
pub(crate) const GENERAL: usize = 4;

/// `NFNL_SUBSYS_NFTABLES`, `NFNL_SUBSYS_CTNETLINK` and `NFNL_SUBSYS_ULOG`, in the upper byte of a message's type.
pub(crate) const NFTABLES: u16 = 10 << 8;
pub(crate) const CTNETLINK: u16 = 1 << 8;
pub(crate) const ULOG: u16 = 4 << 8;

/// `NFPROTO_INET`, `NFPROTO_NETDEV` and `NFPROTO_BRIDGE`
const INET: u8 = 1;
const NETDEV: u8 = 5;
const BRIDGE: u8 = 7;

/// The family as netlink encodes it.
pub(crate) fn family_number(family: TableFamily) -> u8 {
    match family {
        TableFamily::Inet => INET,
        TableFamily::Bridge => BRIDGE,
        TableFamily::Netdev => NETDEV,
    }
}

/// Mask without the two upper bits of an attribute's type, which mark it as nested or in network order.
const TYPE_MASK: u16 = 0x3fff;
const NESTED: u16 = 0x8000;

/// A request of one message.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn new(kind: u16, flags: i32, sequence: u32, family: u8) -> Writer {
        Writer::with_resource(kind, flags, sequence, family, 0)
    }

    /// `resource` is the `res_id` of `struct nfgenmsg`, which holds the subsystem in messages that begin or end a
    /// batch.
    pub(crate) fn with_resource(kind: u16, flags: i32, sequence: u32, family: u8, resource: u16) -> Writer {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&((libc::NLM_F_REQUEST | flags) as u16).to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&[family, 0]);
        bytes.extend_from_slice(&resource.to_be_bytes());
        Writer(bytes)
    }

    pub(crate) fn put(mut self, kind: u16, value: &[u8]) -> Writer {
        // Values are names, numbers and tuples copied from another attribute, all far below 64 KiB.
        debug_assert!(value.len() < usize::from(u16::MAX) - 4);
        self.0.extend_from_slice(&((value.len() + 4) as u16).to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    pub(crate) fn put_nested(self, kind: u16, attributes: &[u8]) -> Writer {
        self.put(kind | NESTED, attributes)
    }

    pub(crate) fn put_text(self, kind: u16, text: &str) -> Writer {
        let mut value = text.as_bytes().to_vec();
        value.push(0);
        self.put(kind, &value)
    }

    pub(crate) fn put_number(self, kind: u16, number: u32) -> Writer {
        self.put(kind, &number.to_be_bytes())
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let length = self.0.len() as u32;
        self.0[..4].copy_from_slice(&length.to_ne_bytes());
        self.0
    }
}

/// One message that the kernel sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    pub(crate) sequence: u32,
    /// Everything after the header.
    pub(crate) body: &'a [u8],
}

impl<'a> Message<'a> {
    /// The family and the attributes of a netfilter message.
    pub(crate) fn general(&self) -> Result<(u8, Attributes<'a>), DecodeError> {
        match self.body.split_at_checked(GENERAL) {
            Some((general, rest)) => Ok((general[0], Attributes(rest))),
            None => Err(DecodeError::Truncated("a netfilter message")),
        }
    }
}

/// Splits a datagram into messages.
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, DecodeError>;

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

fn cut_message(bytes: &[u8]) -> Result<(Message<'_>, &[u8]), DecodeError> {
    let truncated = DecodeError::Truncated("a netlink message");
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

#[derive(Debug, Clone, Copy)]
pub(crate) struct Attribute<'a> {
    pub(crate) kind: u16,
    pub(crate) value: &'a [u8],
}

/// Splits the body of a message or of a nested attribute into attributes.
#[derive(Debug, Clone)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, DecodeError>;

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

fn cut_attribute(bytes: &[u8]) -> Result<(Attribute<'_>, &[u8]), DecodeError> {
    let truncated = DecodeError::Truncated("a netlink attribute");
    let [l0, l1, k0, k1, ..] = *bytes else { return Err(truncated) };
    let length = usize::from(u16::from_ne_bytes([l0, l1]));
    let Some(value) = bytes.get(4..length) else { return Err(truncated) };
    let attribute = Attribute { kind: u16::from_ne_bytes([k0, k1]) & TYPE_MASK, value };
    Ok((attribute, bytes.get(length.next_multiple_of(4)..).unwrap_or(&[])))
}

impl<'a> Attribute<'a> {
    pub(crate) fn nested(&self) -> Attributes<'a> {
        Attributes(self.value)
    }

    /// A 32-bit number in network order.
    pub(crate) fn number(&self) -> Result<u32, DecodeError> {
        match *self.value {
            [a, b, c, d] => Ok(u32::from_be_bytes([a, b, c, d])),
            _ => Err(self.of_wrong_length()),
        }
    }

    /// A 16-bit number in network order.
    pub(crate) fn short(&self) -> Result<u16, DecodeError> {
        let bytes = self.value.try_into().map_err(|_| self.of_wrong_length())?;
        Ok(u16::from_be_bytes(bytes))
    }

    /// A 64-bit number in network order.
    pub(crate) fn long(&self) -> Result<u64, DecodeError> {
        let bytes = self.value.try_into().map_err(|_| self.of_wrong_length())?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// The value, which must have exactly `N` bytes.
    pub(crate) fn array<const N: usize>(&self) -> Result<[u8; N], DecodeError> {
        self.value.try_into().map_err(|_| self.of_wrong_length())
    }

    fn of_wrong_length(&self) -> DecodeError {
        DecodeError::Length { attribute: self.kind, length: self.value.len() }
    }

    pub(crate) fn byte(&self) -> Result<u8, DecodeError> {
        match *self.value {
            [byte] => Ok(byte),
            _ => Err(self.of_wrong_length()),
        }
    }

    /// Arbitrary text without its trailing NUL.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.value.strip_suffix(&[0]).unwrap_or(self.value)
    }

    /// A name without its trailing NUL.
    pub(crate) fn text(&self) -> Result<&'a str, DecodeError> {
        std::str::from_utf8(self.bytes()).map_err(|_| DecodeError::Text { attribute: self.kind })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_round_trips_through_writer() {
        let bytes = Writer::new(NFTABLES | 1, libc::NLM_F_DUMP, 7, 1).put_text(1, "x").put_number(2, 5).finish();
        let message = Messages(&bytes).next().unwrap().unwrap();
        assert_eq!((message.kind, message.sequence), (NFTABLES | 1, 7));
        let (family, mut attributes) = message.general().unwrap();
        assert_eq!(family, 1);
        assert_eq!(attributes.next().unwrap().unwrap().text(), Ok("x"));
        assert_eq!(attributes.next().unwrap().unwrap().number(), Ok(5));
        assert!(attributes.next().is_none());
    }

    #[test]
    fn invalid_lengths_are_errors_and_end_iteration() {
        for bytes in [&[0; 4][..], &[9, 0, 1, 0], &[3, 0, 1, 0], &[4, 0]] {
            let mut attributes = Attributes(bytes);
            assert!(attributes.next().unwrap().is_err(), "{bytes:?}");
            assert!(attributes.next().is_none());
        }
        let mut short = Writer::new(0, 0, 0, 0).finish();
        short.pop();
        assert!(Messages(&short).next().unwrap().is_err());
        assert!(Messages(&[0; 16]).next().unwrap().is_err());
    }
}
