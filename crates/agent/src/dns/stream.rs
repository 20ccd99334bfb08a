//! Assembles DNS messages from copied TCP segments of resolvers (RFC 7766: a message follows its length in two bytes).
//!
//! Sans-I/O: callers pass the present time. The agent must find the same message boundaries as the pod: a message read
//! from the middle of another one would let the author of the outer one open addresses for any name. So a stream begins
//! with a SYN-ACK, continues without a gap, and ends before the kernel resumes after a pause (`LONGEST_IDLE`). A
//! stream that cannot be continued is removed, and the rest of its connection is ignored.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use policy::PAUSED_SECONDS;

/// A stream without segments is removed after this time. Resolvers keep idle connections for some seconds. A pod that
/// exceeds the limit of copies gets none for [`PAUSED_SECONDS`], after which no stream from before is continued.
pub(crate) const LONGEST_IDLE: Duration = Duration::from_secs(15);
const _: () = assert!(2 * LONGEST_IDLE.as_secs() <= PAUSED_SECONDS as u64);

/// Bytes of a message that is decoded. 256 addresses of IPv6, their signatures and aliases take half of it.
pub const MOST_MESSAGE_BYTES: usize = 16 << 10;

/// Bytes of a stream that wait for an earlier segment, and the segments that have them. Segments are rarely reordered
/// within a node.
const MOST_WAITING_BYTES: usize = 32 << 10;
const MOST_WAITING_SEGMENTS: usize = 16;

/// Streams of one pod, and of all: with the bounds above, 12 MiB of memory.
const MOST_STREAMS_OF_POD: usize = 16;
const MOST_STREAMS: usize = 256;

/// The connection of a segment. The kernel copies no two at a time with the same addresses and ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamKey {
    pub pod: SocketAddr,
    pub resolver: SocketAddr,
}

/// A segment from a resolver to a pod.
#[derive(Debug, Clone, Copy)]
pub struct ResolverSegment<'a> {
    /// Sequence number of the first byte of the payload, or of the SYN before it.
    pub sequence: u32,
    /// SYN with ACK: it begins the connection.
    pub starts: bool,
    /// FIN: nothing follows the payload.
    pub ends: bool,
    /// RST
    pub resets: bool,
    pub payload: &'a [u8],
    /// Whether the whole payload was copied.
    pub is_whole: bool,
}

/// Why a payload is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IgnoreReason {
    /// The begin of its connection was not copied, or its stream was removed.
    StartMissing,
    /// Too much of its stream waits for an earlier segment.
    Gap,
    /// Only a part of it was copied.
    Truncated,
    /// It has a message that is longer than any that is decoded.
    TooLong,
    /// There are too many streams.
    NoRoom,
}

impl IgnoreReason {
    pub const ALL: [IgnoreReason; 5] = [
        IgnoreReason::StartMissing,
        IgnoreReason::Gap,
        IgnoreReason::Truncated,
        IgnoreReason::TooLong,
        IgnoreReason::NoRoom,
    ];
}

/// The outcome of a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Assembly {
    /// The messages that it completes.
    pub messages: Vec<Vec<u8>>,
    pub ignored: Option<IgnoreReason>,
}

/// The streams of all connections.
#[derive(Debug, Default)]
pub struct Streams {
    streams: BTreeMap<StreamKey, Stream>,
}

impl Streams {
    pub fn push(&mut self, key: StreamKey, segment: ResolverSegment<'_>, now: Instant) -> Assembly {
        let mut assembled = Assembly::default();
        if segment.resets {
            self.streams.remove(&key);
            return assembled;
        }
        let mut sequence = segment.sequence;
        if segment.starts {
            sequence = sequence.wrapping_add(1);
            if !self.start(key, sequence, now) {
                assembled.ignored = Some(IgnoreReason::NoRoom);
                return assembled;
            }
        }
        let stream = self.streams.get_mut(&key).filter(|stream| !stream.is_idle(now));
        let Some(stream) = stream else {
            self.streams.remove(&key);
            assembled.ignored = (!segment.payload.is_empty()).then_some(IgnoreReason::StartMissing);
            return assembled;
        };
        stream.last = now;
        let mut continues = stream.push(sequence, segment.payload, &mut assembled);
        if !segment.is_whole {
            assembled.ignored = Some(IgnoreReason::Truncated);
            continues = false;
        }
        if segment.ends {
            stream.end = Some(sequence.wrapping_add(segment.payload.len() as u32));
        }
        if !continues || stream.end == Some(stream.next) {
            self.streams.remove(&key);
        }
        assembled
    }

    /// Begins a stream, unless the segment is a retransmission. Returns whether there is room for it.
    fn start(&mut self, key: StreamKey, first: u32, now: Instant) -> bool {
        if self.streams.get(&key).is_some_and(|stream| stream.first == first && !stream.is_idle(now)) {
            return true;
        }
        self.streams.retain(|of, stream| *of != key && !stream.is_idle(now));
        let of_pod = self.streams.iter().filter(|(of, _)| of.pod.ip() == key.pod.ip());
        if of_pod.clone().count() >= MOST_STREAMS_OF_POD
            && let Some(oldest) = of_pod.min_by_key(|(_, stream)| stream.last).map(|(of, _)| *of)
        {
            self.streams.remove(&oldest);
        }
        let has_room = self.streams.len() < MOST_STREAMS;
        if has_room {
            self.streams.insert(key, Stream::new(first, now));
        }
        has_room
    }

    /// Removes all streams, since copies may have been lost.
    pub fn clear(&mut self) {
        self.streams.clear();
    }
}

#[derive(Debug)]
struct Stream {
    /// Sequence number of its first byte.
    first: u32,
    /// Sequence number of the next byte.
    next: u32,
    /// Sequence number after its last byte, once known.
    end: Option<u32>,
    /// Payloads after a gap, each with its sequence number.
    waiting: Vec<(u32, Vec<u8>)>,
    /// The begin of the message whose end has not arrived, with its length.
    message: Vec<u8>,
    /// Bytes that are left of a message that is too long.
    skipped: usize,
    last: Instant,
}

impl Stream {
    fn new(first: u32, now: Instant) -> Stream {
        Stream { first, next: first, end: None, waiting: vec![], message: vec![], skipped: 0, last: now }
    }

    fn is_idle(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last) >= LONGEST_IDLE
    }

    /// Returns whether the stream can be continued.
    fn push(&mut self, sequence: u32, payload: &[u8], assembled: &mut Assembly) -> bool {
        if payload.is_empty() {
            return true;
        }
        if self.distance(sequence) > 0 {
            let waiting: usize = self.waiting.iter().map(|(_, payload)| payload.len()).sum();
            if waiting + payload.len() > MOST_WAITING_BYTES || self.waiting.len() >= MOST_WAITING_SEGMENTS {
                assembled.ignored = Some(IgnoreReason::Gap);
                return false;
            }
            self.waiting.push((sequence, payload.to_vec()));
            return true;
        }
        self.advance(sequence, payload, assembled);
        while let Some(place) = self.waiting.iter().position(|(sequence, _)| self.distance(*sequence) <= 0) {
            let (sequence, payload) = self.waiting.swap_remove(place);
            self.advance(sequence, &payload, assembled);
        }
        true
    }

    /// Bytes from the next one to this sequence number; not above zero for those that have arrived (RFC 9293, section
    /// 3.4).
    fn distance(&self, sequence: u32) -> i32 {
        sequence.wrapping_sub(self.next).cast_signed()
    }

    /// Reads what is new in a payload that begins at the next byte or before it.
    fn advance(&mut self, sequence: u32, payload: &[u8], assembled: &mut Assembly) {
        let known = self.distance(sequence).unsigned_abs() as usize;
        let Some(new) = payload.get(known..) else { return };
        self.next = self.next.wrapping_add(new.len() as u32);
        self.read(new, assembled);
    }

    fn read(&mut self, mut bytes: &[u8], assembled: &mut Assembly) {
        while !bytes.is_empty() {
            if self.skipped > 0 {
                let skipped = self.skipped.min(bytes.len());
                self.skipped -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let length = |message: &[u8]| match message {
                [high, low, ..] => Some(usize::from(u16::from_be_bytes([*high, *low]))),
                [] | [_] => None,
            };
            let wanted = 2 + length(&self.message).unwrap_or(0);
            let (taken, rest) = bytes.split_at((wanted - self.message.len()).min(bytes.len()));
            self.message.extend(taken);
            bytes = rest;
            match length(&self.message) {
                Some(length) if length > MOST_MESSAGE_BYTES => {
                    assembled.ignored = Some(IgnoreReason::TooLong);
                    (self.message, self.skipped) = (vec![], length);
                }
                Some(length) if self.message.len() == 2 + length => {
                    assembled.messages.push(self.message.split_off(2));
                    self.message.clear();
                }
                Some(_) | None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(port: u16) -> StreamKey {
        let pod = SocketAddr::from(([10, 0, 0, 1], port));
        StreamKey { pod, resolver: ([10, 0, 0, 2], 53).into() }
    }

    fn data(sequence: u32, payload: &[u8]) -> ResolverSegment<'_> {
        ResolverSegment { sequence, starts: false, ends: false, resets: false, payload, is_whole: true }
    }

    fn start(sequence: u32) -> ResolverSegment<'static> {
        ResolverSegment { starts: true, ..data(sequence, &[]) }
    }

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        messages.iter().flat_map(|m| [&(m.len() as u16).to_be_bytes()[..], m].concat()).collect()
    }

    /// A connection from sequence number 0 on.
    struct Connection {
        streams: Streams,
        now: Instant,
    }

    impl Connection {
        fn new() -> Connection {
            let mut connection = Connection { streams: Streams::default(), now: Instant::now() };
            assert_eq!(connection.push(start(u32::MAX)), Assembly::default());
            connection
        }

        fn push(&mut self, segment: ResolverSegment<'_>) -> Assembly {
            self.streams.push(key(1), segment, self.now)
        }

        /// The last message that the segment completes.
        fn message(&mut self, segment: ResolverSegment<'_>) -> Option<Vec<u8>> {
            self.push(segment).messages.pop()
        }
    }

    #[test]
    fn connection_without_start_is_ignored() {
        let mut streams = Streams::default();
        let now = Instant::now();
        let bytes = framed(&[b"answer".to_vec()]);
        let missing = Assembly { messages: vec![], ignored: Some(IgnoreReason::StartMissing) };
        assert_eq!(streams.push(key(1), data(0, &bytes), now), missing);
        assert_eq!(streams.push(key(1), data(0, &[]), now), Assembly::default());
        streams.push(key(1), start(9), now);
        let other = StreamKey { resolver: ([10, 0, 0, 3], 53).into(), ..key(1) };
        assert_eq!(streams.push(other, data(10, &bytes), now), missing);
        assert_eq!(streams.push(key(1), data(10, &bytes), now).messages, [b"answer"]);
        streams.clear();
        assert_eq!(streams.push(key(1), data(18, &bytes), now), missing);
    }

    #[test]
    fn new_start_forgets_earlier_connection() {
        let bytes = framed(&[b"answer".to_vec()]);
        let mut connection = Connection::new();
        assert_eq!(connection.message(data(0, &bytes[..3])), None);
        // A retransmission.
        connection.push(start(u32::MAX));
        assert_eq!(connection.message(data(3, &bytes[3..])).as_deref(), Some(&b"answer"[..]));
        connection.push(data(8, &bytes[..3]));
        connection.push(start(99));
        assert_eq!(connection.push(data(11, &bytes[3..])), Assembly::default(), "before the start");
        assert_eq!(connection.message(data(100, &bytes)).as_deref(), Some(&b"answer"[..]));
    }

    #[test]
    fn end_reset_and_idleness_remove_stream() {
        let bytes = framed(&[b"answer".to_vec()]);
        let missing = Some(IgnoreReason::StartMissing);
        let mut connection = Connection::new();
        connection.push(ResolverSegment { ends: true, ..data(4, &bytes[4..]) });
        assert_eq!(connection.message(data(0, &bytes[..4])).as_deref(), Some(&b"answer"[..]), "the end waits");
        assert_eq!(connection.push(data(8, &bytes)).ignored, missing);
        let mut connection = Connection::new();
        connection.push(ResolverSegment { resets: true, ..data(0, &[]) });
        assert_eq!(connection.push(data(0, &bytes)).ignored, missing);
        let mut connection = Connection::new();
        connection.now += LONGEST_IDLE - Duration::from_millis(1);
        assert_eq!(connection.message(data(0, &bytes)).as_deref(), Some(&b"answer"[..]));
        connection.now += LONGEST_IDLE;
        assert_eq!(connection.push(data(8, &bytes)).ignored, missing);
    }

    #[test]
    fn gap_and_truncated_segment_remove_stream() {
        let missing = Some(IgnoreReason::StartMissing);
        for (sequence, length, is_whole, expected) in [
            (1, MOST_WAITING_BYTES, true, None),
            (1, MOST_WAITING_BYTES + 1, true, Some(IgnoreReason::Gap)),
            (0, 5, false, Some(IgnoreReason::Truncated)),
        ] {
            let mut connection = Connection::new();
            let bytes = vec![0; length];
            assert_eq!(connection.push(ResolverSegment { is_whole, ..data(sequence, &bytes) }).ignored, expected);
            let after = connection.push(data(0, &[0])).ignored;
            assert_eq!(after, expected.and(missing), "{length}");
        }
        let mut connection = Connection::new();
        let many = (1..=MOST_WAITING_SEGMENTS as u32 + 1).map(|place| connection.push(data(2 * place, &[0])).ignored);
        assert_eq!(many.last(), Some(Some(IgnoreReason::Gap)));
    }

    #[test]
    fn long_message_is_skipped() {
        let bytes = framed(&[vec![7; MOST_MESSAGE_BYTES + 1], b"answer".to_vec()]);
        let mut connection = Connection::new();
        let (begin, rest) = bytes.split_at(1000);
        assert_eq!(connection.push(data(0, begin)).ignored, Some(IgnoreReason::TooLong));
        assert_eq!(connection.message(data(1000, rest)).as_deref(), Some(&b"answer"[..]));
    }

    #[test]
    fn streams_are_bounded_by_pod_and_in_all() {
        let (mut streams, now) = (Streams::default(), Instant::now());
        for port in 0..1000 {
            let at = now + Duration::from_millis(port.into());
            assert_eq!(streams.push(key(port), start(0), at).ignored, None);
        }
        let ports: Vec<u16> = streams.streams.keys().map(|key| key.pod.port()).collect();
        assert_eq!(ports, (984..1000).collect::<Vec<u16>>(), "the oldest make room");
        let mut refused = 0;
        for pod in 0..=255 {
            for port in 0..4 {
                let key = StreamKey { pod: ([10, 1, 0, pod], port).into(), ..key(port) };
                refused += usize::from(streams.push(key, start(0), now).ignored == Some(IgnoreReason::NoRoom));
            }
        }
        assert_eq!((streams.streams.len(), refused), (MOST_STREAMS, 1024 + 16 - MOST_STREAMS));
        streams.push(key(1), start(0), now + 2 * LONGEST_IDLE);
        assert_eq!(streams.streams.len(), 1, "idle ones make room");
    }

    proptest! {
        /// Segments overlap, repeat and change places with the next one, and sequence numbers wrap around.
        #[test]
        fn any_segments_give_messages_of_whole_stream(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..8),
            cuts in prop::collection::vec((any::<usize>(), 0_usize..40, any::<bool>()), 0..20),
            first in any::<u32>(),
        ) {
            let bytes = framed(&messages);
            let mut places: Vec<(usize, usize, bool)> =
                cuts.iter().map(|(place, overlap, swap)| (place % bytes.len(), *overlap, *swap)).collect();
            places.extend([(0, 0, false), (bytes.len(), 0, false)]);
            places.sort_unstable();
            let mut segments: Vec<(usize, usize)> = places
                .windows(2)
                .map(|pair| (pair[0].0.saturating_sub(pair[0].1), pair[1].0))
                .collect();
            for (place, (_, _, swap)) in (1..segments.len()).zip(&places[1..]) {
                if *swap {
                    segments.swap(place - 1, place);
                }
            }
            let (mut streams, now) = (Streams::default(), Instant::now());
            streams.push(key(1), start(first.wrapping_sub(1)), now);
            let mut found = Vec::new();
            for (from, to) in segments {
                let sequence = first.wrapping_add(from as u32);
                let assembled = streams.push(key(1), data(sequence, &bytes[from..to]), now);
                prop_assert_eq!(assembled.ignored, None);
                found.extend(assembled.messages);
            }
            prop_assert_eq!(found, messages);
        }

        #[test]
        fn memory_is_bounded_whatever_arrives(
            segments in prop::collection::vec(
                (0_u16..40, any::<u8>(), any::<u32>(), 0_usize..20_000, any::<u8>()),
                0..200,
            ),
        ) {
            let (mut streams, mut now) = (Streams::default(), Instant::now());
            for (port, flags, sequence, length, fill) in segments {
                let [starts, ends, resets, is_whole] = [1, 2, 4, 8].map(|flag| flags & flag != 0);
                let bytes = vec![fill; length];
                let sequence = sequence % 100_000;
                let segment = ResolverSegment { sequence, starts, ends, resets, payload: &bytes, is_whole };
                drop(streams.push(key(port), segment, now));
                now += Duration::from_millis(u64::from(fill));
            }
            prop_assert!(streams.streams.len() <= MOST_STREAMS_OF_POD);
            for stream in streams.streams.values() {
                prop_assert!(stream.waiting.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() <= MOST_WAITING_BYTES);
                prop_assert!(stream.message.len() <= 2 + MOST_MESSAGE_BYTES);
            }
        }
    }
}
