//! Splits a streamed response body into lines.

use std::io;
use std::time::Duration;

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};

/// Limit of the length of a line, which is one object. etcd stores none above 1.5 MiB, and the JSON of stored protobuf
/// is a few times that.
pub(super) const LINE_BYTES: usize = 32 << 20;

/// The body of a watch.
pub(super) struct WatchLines {
    body: std::pin::Pin<Box<dyn AsyncBufRead + Send>>,
    /// The start of an incomplete line.
    partial: Vec<u8>,
}

pub(super) enum Read {
    Line(Vec<u8>),
    /// The body has ended. An incomplete last line is discarded.
    End,
    /// Timed out without a byte. The incomplete line is kept.
    Silence,
    TooLong,
    Broken(io::Error),
}

impl WatchLines {
    pub(super) fn new(body: impl AsyncBufRead + Send + 'static) -> WatchLines {
        WatchLines { body: Box::pin(body), partial: Vec::new() }
    }

    /// The next non-empty line. Cancel safe.
    pub(super) async fn next(&mut self, patience: Duration) -> Read {
        loop {
            let piece = match tokio::time::timeout(patience, self.body.fill_buf()).await {
                Err(_) => return Read::Silence,
                Ok(Err(e)) => return Read::Broken(e),
                Ok(Ok([])) => return Read::End,
                Ok(Ok(piece)) => piece,
            };
            let (length, complete) = match piece.iter().position(|byte| *byte == b'\n') {
                Some(end) => (end + 1, true),
                None => (piece.len(), false),
            };
            self.partial.extend_from_slice(&piece[..length]);
            self.body.as_mut().consume(length);
            if self.partial.len() > LINE_BYTES {
                return Read::TooLong;
            }
            if complete {
                let line = std::mem::take(&mut self.partial);
                if !line.trim_ascii().is_empty() {
                    return Read::Line(line);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream::{self, StreamExt as _, TryStreamExt as _};

    const SOON: Duration = Duration::from_millis(10);

    fn lines(pieces: &[&'static [u8]]) -> WatchLines {
        WatchLines::new(stream::iter(pieces.to_vec()).map(io::Result::Ok).into_async_read())
    }

    #[tokio::test]
    async fn lines_are_assembled_from_arbitrary_chunks() {
        let mut lines = lines(&[b"on", b"e\ntwo\n", b"\n\r\nthr", b"ee\nhalf"]);
        for expected in ["one\n", "two\n", "three\n"] {
            let Read::Line(line) = lines.next(SOON).await else { panic!("no {expected}") };
            assert_eq!(line, expected.as_bytes());
        }
        assert!(matches!(lines.next(SOON).await, Read::End));
    }

    #[tokio::test]
    async fn silence_keeps_the_line_that_has_begun() {
        let (send, receive) = futures::channel::mpsc::unbounded::<io::Result<&'static [u8]>>();
        let mut lines = WatchLines::new(receive.into_async_read());
        send.unbounded_send(Ok(b"be")).unwrap();
        assert!(matches!(lines.next(SOON).await, Read::Silence));
        send.unbounded_send(Ok(b"gun\n")).unwrap();
        let Read::Line(line) = lines.next(SOON).await else { panic!("no line") };
        assert_eq!(line, b"begun\n");
    }

    #[tokio::test]
    async fn endless_line_is_too_long() {
        let piece: &'static [u8] = &[b'x'; 1 << 16];
        let mut lines = WatchLines::new(stream::repeat(piece).map(io::Result::Ok).into_async_read());
        assert!(matches!(lines.next(SOON).await, Read::TooLong));
    }
}
