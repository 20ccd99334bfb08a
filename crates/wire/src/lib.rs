//! Parts of foreign gRPC protocols that prost lacks: decoding that reports unknown fields, and Timestamp.
//!
//! prost drops unknown fields. A filter whose field was dropped would admit what its client wants to exclude.

use prost::DecodeError;
use prost::Message;
use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, skip_field};

/// A message whose fields are all known by number.
pub trait KnownFields: Message + Default {
    /// Numbers of all fields that the message has here.
    const FIELDS: &'static [u32];
}

/// A message, and the number of the first field that is not known.
///
/// ```
/// use prost::Message;
/// use wire::{KnownFields, Strict};
///
/// #[derive(Clone, PartialEq, Eq, Message)]
/// struct Filter {
///     #[prost(string, tag = "1")]
///     name: String,
/// }
///
/// impl KnownFields for Filter {
///     const FIELDS: &'static [u32] = &[1];
/// }
///
/// let newer = b"\x0a\x03web\x10\x01";
/// let filter = Strict::<Filter>::decode(&newer[..])?;
/// assert_eq!((filter.message.name.as_str(), filter.unknown), ("web", Some(2)));
/// # Ok::<(), prost::DecodeError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Strict<M> {
    pub message: M,
    pub unknown: Option<u32>,
}

impl<M> From<M> for Strict<M> {
    fn from(message: M) -> Strict<M> {
        Strict { message, unknown: None }
    }
}

impl<M: KnownFields> Message for Strict<M> {
    fn encode_raw(&self, buffer: &mut impl BufMut) {
        self.message.encode_raw(buffer);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buffer: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        if M::FIELDS.contains(&tag) {
            return self.message.merge_field(tag, wire_type, buffer, context);
        }
        self.unknown.get_or_insert(tag);
        skip_field(wire_type, tag, buffer, context)
    }

    fn encoded_len(&self) -> usize {
        self.message.encoded_len()
    }

    fn clear(&mut self) {
        self.message.clear();
        self.unknown = None;
    }
}

/// `google.protobuf.Timestamp`
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// A hash of 128 bits (FNV-1a) that is the same in every process, for identifiers that clients keep.
#[derive(Debug, Clone, Copy)]
pub struct StableHasher(u128);

impl StableHasher {
    pub fn finish128(self) -> u128 {
        self.0
    }
}

impl Default for StableHasher {
    fn default() -> StableHasher {
        StableHasher(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl std::hash::Hasher for StableHasher {
    fn finish(&self) -> u64 {
        (self.0 >> 64) as u64 ^ self.0 as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u128::from(*byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use super::*;

    #[derive(Clone, PartialEq, Eq, Message)]
    struct Inner {
        #[prost(uint32, repeated, tag = "2")]
        numbers: Vec<u32>,
    }

    impl KnownFields for Inner {
        const FIELDS: &'static [u32] = &[2];
    }

    #[derive(Clone, PartialEq, Message)]
    struct Outer {
        #[prost(message, repeated, tag = "1")]
        inner: Vec<Strict<Inner>>,
    }

    #[test]
    fn unknown_fields_within_messages_are_kept() {
        let bytes = b"\x0a\x03\x12\x01\x07\x0a\x06\x12\x01\x08\xfa\x01\x00\x0a\x02\x18\x01";
        let outer = Outer::decode(&bytes[..]).unwrap();
        let seen: Vec<_> = outer.inner.iter().map(|inner| (inner.message.numbers.clone(), inner.unknown)).collect();
        assert_eq!(seen, [(vec![7], None), (vec![8], Some(31)), (vec![], Some(3))]);
        assert_eq!(outer.inner[0].encode_to_vec(), b"\x12\x01\x07");
    }

    /// Test vectors of draft-eastlake-fnv.
    #[test]
    fn stable_hash_is_fnv_1a() {
        let hash = |text: &[u8]| {
            let mut hasher = StableHasher::default();
            hasher.write(text);
            hasher.finish128()
        };
        assert_eq!(hash(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(hash(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert_eq!(hash(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }
}
