//! A frame of a stream of deltas, plain and compressed: it is compressed at most once, for all subscribers that accept
//! it.
//!
//! A compressed stream is one unterminated gzip member (RFC 1952). The DEFLATE blocks (RFC 1951) of a frame are
//! byte-aligned and refer to no earlier data, so that they can follow those of any other frame.

use std::sync::{Arc, OnceLock};

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, FlushCompress, Status};

/// The header of a compressed stream: DEFLATE, without name, time and operating system.
const GZIP_HEADER: Bytes = Bytes::from_static(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);

/// Content encoding of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentCoding {
    Plain,
    Gzip,
}

/// A frame that all subscribers share.
#[derive(Debug, Clone)]
pub(crate) struct EventFrame(Arc<SharedFrame>);

#[derive(Debug)]
struct SharedFrame {
    plain: Bytes,
    compressed: OnceLock<Bytes>,
}

impl EventFrame {
    pub(crate) fn new(plain: Bytes) -> EventFrame {
        EventFrame(Arc::new(SharedFrame { plain, compressed: OnceLock::new() }))
    }

    /// The encoded frame, compressed on first use.
    pub(crate) fn bytes(&self, coding: ContentCoding) -> Bytes {
        let SharedFrame { plain, compressed } = &*self.0;
        match coding {
            ContentCoding::Plain => plain.clone(),
            ContentCoding::Gzip => compressed.get_or_init(|| deflate(plain)).clone(),
        }
    }
}

impl ContentCoding {
    /// The frames that open the stream of one subscriber. They are not compressed, whatever the coding: a backlog of
    /// megabytes would be compressed anew for each of the subscribers that reconnect together.
    pub(crate) fn opening(self, frames: Vec<Bytes>) -> Vec<Bytes> {
        match self {
            ContentCoding::Plain => frames,
            ContentCoding::Gzip => {
                std::iter::once(GZIP_HEADER).chain(frames.iter().map(|frame| store(frame))).collect()
            }
        }
    }

    /// A small frame for one subscriber.
    pub(crate) fn single(self, frame: Bytes) -> Bytes {
        match self {
            ContentCoding::Plain => frame,
            ContentCoding::Gzip => store(&frame),
        }
    }
}

/// DEFLATE blocks of the bytes, without the final one.
fn deflate(plain: &[u8]) -> Bytes {
    let mut compress = Compress::new(Compression::default(), false);
    let mut out = Vec::with_capacity(plain.len() / 4 + 64);
    loop {
        let rest = plain.get(compress.total_in() as usize..).unwrap_or_default();
        match compress.compress_vec(rest, &mut out, FlushCompress::Full) {
            // Unused capacity means that everything was flushed.
            Ok(_) if out.len() < out.capacity() => return out.into(),
            Ok(Status::Ok | Status::BufError | Status::StreamEnd) => out.reserve(out.capacity().max(64)),
            // Uncompressed blocks are valid, too.
            Err(_) => return store(plain),
        }
    }
}

/// The length of a stored block has 16 bits.
const STORED_BYTES: usize = 0xffff;

/// Stored DEFLATE blocks of the bytes (RFC 1951, section 3.2.4), without the final one.
fn store(plain: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(plain.len() + 5 * (plain.len() / STORED_BYTES + 1));
    for block in plain.chunks(STORED_BYTES) {
        let length = block.len() as u16;
        out.put_u8(0);
        out.put_u16_le(length);
        out.put_u16_le(!length);
        out.put_slice(block);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::write::GzDecoder;
    use proptest::prelude::*;

    use super::*;

    /// The plain text of an unterminated compressed stream.
    fn inflated(stream: &[Bytes]) -> Vec<u8> {
        let mut decoder = GzDecoder::new(Vec::new());
        stream.iter().for_each(|part| decoder.write_all(part).unwrap());
        decoder.flush().unwrap();
        decoder.get_ref().clone()
    }

    proptest! {
        #[test]
        fn compressed_frames_fit_behind_any_others(
            opening in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..3),
            frames in prop::collection::vec((prop::collection::vec(0..4_u8, 0..3_000), 1..40_usize, any::<bool>()), 0..6),
        ) {
            let opening: Vec<Bytes> = opening.into_iter().map(Bytes::from).collect();
            let mut plain = opening.concat();
            let mut stream = ContentCoding::Gzip.opening(opening);
            for (bytes, times, is_shared) in frames {
                let frame = Bytes::from(bytes.repeat(times));
                plain.extend_from_slice(&frame);
                stream.push(match is_shared {
                    true => EventFrame::new(frame).bytes(ContentCoding::Gzip),
                    false => ContentCoding::Gzip.single(frame),
                });
            }
            prop_assert_eq!(inflated(&stream), plain);
        }
    }

    #[test]
    fn frame_is_compressed_once_for_all_subscribers() {
        let frame = EventFrame::new(Bytes::from("data: {}\n".repeat(1_000)));
        let [first, second] = [frame.clone(), frame.clone()].map(|frame| frame.bytes(ContentCoding::Gzip));
        assert_eq!(first.as_ptr(), second.as_ptr());
        assert!(first.len() < 100, "{}", first.len());
        assert_eq!(frame.bytes(ContentCoding::Plain).len(), 9_000);
    }
}
