//! Server-sent events (HTML standard, section 9.2) as far as feeds use them: encoding, and [`Parser`].
//!
//! A stream begins with `position`, followed by `delta`s, whose id is their position; `pull` means that the deltas
//! before its position are not available from this stream.

mod parser;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};

pub use parser::{ParsedEvent, Parser, TooLong};

use crate::Position;

/// Event type of the opening; its data is a [`Position`].
pub const POSITION: &str = "position";
/// Event type of deltas; its id is a [`Position`].
pub const DELTA: &str = "delta";
/// Event type of requests to get the baseline; its data is [`PullData`].
pub const PULL: &str = "pull";
/// Keepalive comment, so that a silent connection is a dead one.
pub const STILL_HERE: Bytes = Bytes::from_static(b": still here\n\n");
/// Keepalive interval: a follower that misses two and waits for a third considers the stream dead.
pub const STILL_HERE_EVERY: std::time::Duration = std::time::Duration::from_secs(15);

/// The data of a `pull`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullData {
    /// The position at which the stream resumes: a table at this position needs no baseline.
    #[serde(flatten)]
    pub position: Position,
    /// For people and logs.
    pub reason: String,
}

/// An event of a stream other than a feed's. Its JSON is one line.
///
/// # Panics
/// If a part of it contains a line break.
pub fn event(name: &str, id: Option<&str>, json: &[u8]) -> Bytes {
    assert!(!name.contains(['\n', '\r']) && !id.is_some_and(|id| id.contains(['\n', '\r'])), "a field is one line");
    frame(name, id, json)
}

/// The opening event: the stream carries the deltas after this position.
pub fn position(at: Position) -> Bytes {
    frame(POSITION, None, &json(&at))
}

/// Deltas up to `at` are not available from the stream; the subscriber has to pull.
pub fn pull(at: Position, reason: impl Into<String>) -> Bytes {
    frame(PULL, None, &json(&PullData { position: at, reason: reason.into() }))
}

/// A delta. Its JSON is one line.
///
/// # Panics
/// If the JSON contains a line break, which would begin another field. Compact JSON contains none.
pub fn delta(at: Position, json: &[u8]) -> Bytes {
    frame(DELTA, Some(&at.to_string()), json)
}

fn json(value: &impl Serialize) -> Vec<u8> {
    match serde_json::to_vec(value) {
        Ok(json) => json,
        Err(e) => unreachable!("plain fields: {e}"),
    }
}

const DATA: &[u8] = b"data: ";
const END: &[u8] = b"\n\n";

fn frame(event: &str, id: Option<&str>, data: &[u8]) -> Bytes {
    assert!(!data.iter().any(|b| matches!(b, b'\n' | b'\r')), "an event's data is one line");
    let id = id.map_or(String::new(), |id| format!("id: {id}\n"));
    let mut frame = BytesMut::with_capacity("event: \n".len() + event.len() + id.len() + DATA.len() + data.len() + 2);
    frame.put_slice(b"event: ");
    frame.put_slice(event.as_bytes());
    frame.put_u8(b'\n');
    frame.put_slice(id.as_bytes());
    frame.put_slice(DATA);
    frame.put_slice(data);
    frame.put_slice(END);
    frame.freeze()
}

/// The data of a frame that was encoded here, as a slice of the same memory.
pub(crate) fn data_of(frame: &Bytes, data_bytes: usize) -> Bytes {
    let end = frame.len() - END.len();
    frame.slice(end - data_bytes..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Position = Position { epoch: 7, seq: 3 };

    #[test]
    fn frames_are_written_to_the_letter() {
        assert_eq!(&position(AT)[..], b"event: position\ndata: {\"epoch\":7,\"seq\":3}\n\n");
        assert_eq!(&delta(AT, b"{\"removes\":[]}")[..], b"event: delta\nid: 7:3\ndata: {\"removes\":[]}\n\n");
        assert_eq!(
            &pull(AT, "say \"when\"\n")[..],
            b"event: pull\ndata: {\"epoch\":7,\"seq\":3,\"reason\":\"say \\\"when\\\"\\n\"}\n\n"
        );
    }

    #[test]
    fn event_of_another_stream_has_its_id() {
        assert_eq!(&event("flows", Some("a-1"), b"{}")[..], b"event: flows\nid: a-1\ndata: {}\n\n");
        assert_eq!(&event("gap", None, b"{}")[..], b"event: gap\ndata: {}\n\n");
    }

    #[test]
    #[should_panic = "one line"]
    fn delta_refuses_data_with_line_breaks() {
        delta(AT, b"{}\nevent: pull");
    }

    #[test]
    fn a_frame_holds_its_data_once() {
        let frame = delta(AT, b"{\"a\":1}");
        let data = data_of(&frame, 7);
        assert_eq!(&data[..], b"{\"a\":1}");
        assert!(frame.as_ptr_range().contains(&data.as_ptr()));
    }
}
