//! The producer's side: numbers deltas, and keeps a backlog of them for reconnecting subscribers.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::{Position, sse};

/// Limit of deltas in the backlog. At peak load there are one or a few per second: enough for a subscriber that was
/// disconnected for half an hour at least.
pub(crate) const BACKLOG_EVENTS: usize = 4_096;
/// Size limit of the backlog. Most deltas have a few hundred bytes; a subscriber that would need more than this is
/// better served with a baseline.
pub(crate) const BACKLOG_BYTES: usize = 16 << 20;

/// Limits of the backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Number of deltas.
    pub(crate) events: usize,
    /// Size of the deltas as server-sent events.
    pub(crate) bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { events: BACKLOG_EVENTS, bytes: BACKLOG_BYTES }
    }
}

/// A published delta, encoded once for all subscribers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeltaEvent {
    /// The position of a table with this delta.
    pub position: Position,
    /// The encoded delta.
    pub json: Bytes,
    /// The delta as a server-sent event.
    pub frame: Bytes,
}

impl DeltaEvent {
    fn new(position: Position, json: &[u8]) -> DeltaEvent {
        let frame = sse::delta(position, json);
        DeltaEvent { position, json: sse::data_of(&frame, json.len()), frame }
    }
}

/// Position and backlog of one feed.
#[derive(Debug)]
pub struct FeedBacklog {
    position: Position,
    bounds: Bounds,
    /// Consecutive deltas up to `position`.
    backlog: VecDeque<Arc<DeltaEvent>>,
    backlog_bytes: usize,
}

/// The beginning of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamOpening {
    /// The stream carries the deltas after this position.
    pub begins: Position,
    /// Deltas after `begins` that were published before the subscription, or why a baseline is needed instead.
    pub rest: Result<Vec<Arc<DeltaEvent>>, NoReplay>,
}

/// Reason why a stream cannot resume at a subscriber's position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoReplay {
    /// The producer has restarted or renewed its epoch, or the subscriber followed another producer.
    OtherEpoch {
        /// Position of the subscriber's table.
        asked: Position,
        /// Current epoch.
        epoch: u64,
    },
    /// The subscriber was disconnected for longer than the backlog lasts.
    NotKept {
        /// Position of the subscriber's table.
        asked: Position,
        /// Sequence number of the oldest delta in the backlog.
        oldest: u64,
    },
    /// The subscriber's table contains deltas that this producer has not published.
    Ahead {
        /// Position of the subscriber's table.
        asked: Position,
        /// Sequence number of the latest delta.
        at: u64,
    },
}

impl fmt::Display for NoReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoReplay::OtherEpoch { asked, epoch } => {
                write!(f, "position {asked} is from another epoch: expected {epoch}")
            }
            NoReplay::NotKept { asked, oldest } => {
                write!(f, "position {asked} is older than the backlog, which starts at {oldest}")
            }
            NoReplay::Ahead { asked, at } => write!(f, "position {asked} is ahead of the producer, which is at {at}"),
        }
    }
}

impl StreamOpening {
    /// Frames that are written to the stream first.
    pub fn frames(&self) -> Vec<Bytes> {
        let mut frames = vec![sse::position(self.begins)];
        match &self.rest {
            Ok(replay) => frames.extend(replay.iter().map(|event| event.frame.clone())),
            Err(why) => frames.push(sse::pull(self.begins, why.to_string())),
        }
        frames
    }
}

impl FeedBacklog {
    /// Starts at seq 0.
    pub fn new(epoch: u64) -> FeedBacklog {
        FeedBacklog::with_bounds(epoch, Bounds::default())
    }

    /// Starts at seq 0, with a backlog of this size.
    pub(crate) fn with_bounds(epoch: u64, bounds: Bounds) -> FeedBacklog {
        FeedBacklog { position: Position::start_of(epoch), bounds, backlog: VecDeque::new(), backlog_bytes: 0 }
    }

    /// Starts at a position without a backlog: for another encoding of the same deltas, at its first subscription.
    pub fn starting_at(position: Position) -> FeedBacklog {
        FeedBacklog { position, ..FeedBacklog::new(position.epoch) }
    }

    /// The position of the last published delta. A table with all deltas applied is a baseline at this position.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Publishes a delta, encoded for the position that it gets: JSON without a line break.
    ///
    /// # Panics
    /// If the JSON contains a line break.
    pub fn publish(&mut self, encode: impl FnOnce(Position) -> Vec<u8>) -> Arc<DeltaEvent> {
        let position = self.position.next();
        let event = Arc::new(DeltaEvent::new(position, &encode(position)));
        self.position = position;
        self.backlog_bytes += event.frame.len();
        self.backlog.push_back(event.clone());
        while self.backlog.len() > self.bounds.events || self.backlog_bytes > self.bounds.bytes {
            let Some(oldest) = self.backlog.pop_front() else { break };
            self.backlog_bytes -= oldest.frame.len();
        }
        event
    }

    /// The opening for a subscriber with a table at `from`; without a table, the stream begins at the current position.
    pub fn since(&self, from: Option<Position>) -> StreamOpening {
        let Some(asked) = from else { return StreamOpening { begins: self.position, rest: Ok(vec![]) } };
        match self.replay(asked) {
            Ok(replay) => StreamOpening { begins: asked, rest: Ok(replay) },
            Err(why) => StreamOpening { begins: self.position, rest: Err(why) },
        }
    }

    fn replay(&self, asked: Position) -> Result<Vec<Arc<DeltaEvent>>, NoReplay> {
        if asked.epoch != self.position.epoch {
            return Err(NoReplay::OtherEpoch { asked, epoch: self.position.epoch });
        }
        let Some(missing) = self.position.seq.checked_sub(asked.seq) else {
            return Err(NoReplay::Ahead { asked, at: self.position.seq });
        };
        match usize::try_from(missing) {
            Ok(missing) if missing <= self.backlog.len() => {
                Ok(self.backlog.range(self.backlog.len() - missing..).cloned().collect())
            }
            Ok(_) | Err(_) => {
                let oldest = self.position.seq + 1 - self.backlog.len() as u64;
                Err(NoReplay::NotKept { asked, oldest })
            }
        }
    }

    /// Starts a new epoch at seq 0: after a change of leader, or when published deltas are in doubt. Epochs only grow:
    /// one that is not greater than the current epoch is replaced by the next.
    ///
    /// The caller notifies open streams with [`sse::pull`].
    pub fn renew(&mut self, epoch: u64) -> Position {
        self.position = Position::start_of(epoch.max(self.position.epoch + 1));
        self.backlog.clear();
        self.backlog_bytes = 0;
        self.position
    }

    /// Deltas in the backlog.
    pub fn backlog_events(&self) -> usize {
        self.backlog.len()
    }

    /// Size of the backlog as server-sent events.
    pub fn backlog_bytes(&self) -> usize {
        self.backlog_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(count: u64, bounds: Bounds) -> FeedBacklog {
        let mut publication = FeedBacklog::with_bounds(7, bounds);
        for _ in 0..count {
            publication.publish(|at| format!("{{\"seq\":{}}}", at.seq).into_bytes());
        }
        publication
    }

    fn at(seq: u64) -> Position {
        Position { epoch: 7, seq }
    }

    fn seqs(opening: &StreamOpening) -> Vec<u64> {
        opening.rest.as_ref().unwrap().iter().map(|event| event.position.seq).collect()
    }

    #[test]
    fn deltas_are_numbered_from_1_without_gaps() {
        let mut publication = FeedBacklog::new(7);
        assert_eq!(publication.position(), at(0));
        for seq in 1..4 {
            let event = publication.publish(|position| position.seq.to_string().into_bytes());
            assert_eq!((event.position, &event.json[..]), (at(seq), seq.to_string().as_bytes()));
            assert_eq!(event.frame, format!("event: delta\nid: 7:{seq}\ndata: {seq}\n\n"));
        }
        assert_eq!(publication.position(), at(3));
    }

    #[test]
    fn publication_replays_deltas_after_given_position() {
        let publication = published(3, Bounds::default());
        for (from, begins, replay) in
            [(None, 3, vec![]), (Some(3), 3, vec![]), (Some(1), 1, vec![2, 3]), (Some(0), 0, vec![1, 2, 3])]
        {
            let opening = publication.since(from.map(at));
            assert_eq!((opening.begins, seqs(&opening)), (at(begins), replay));
        }
    }

    #[test]
    fn follower_must_pull_if_replay_is_impossible() {
        let publication = published(5, Bounds { events: 2, bytes: usize::MAX });
        assert_eq!(seqs(&publication.since(Some(at(3)))), [4, 5]);
        for (asked, why) in [
            (at(2), NoReplay::NotKept { asked: at(2), oldest: 4 }),
            (at(6), NoReplay::Ahead { asked: at(6), at: 5 }),
            (Position { epoch: 6, seq: 4 }, NoReplay::OtherEpoch { asked: Position { epoch: 6, seq: 4 }, epoch: 7 }),
        ] {
            let opening = publication.since(Some(asked));
            assert_eq!((opening.begins, &opening.rest), (at(5), &Err(why)));
            let frames = opening.frames();
            assert_eq!(frames, [sse::position(at(5)), sse::pull(at(5), why.to_string())]);
        }
    }

    #[test]
    fn backlog_is_bounded_by_count_and_bytes() {
        let one = published(1, Bounds::default()).backlog_bytes();
        let publication = published(9, Bounds { events: 100, bytes: 3 * one });
        assert_eq!((publication.backlog_events(), publication.backlog_bytes()), (3, 3 * one));
        let publication = published(9, Bounds { events: 2, bytes: usize::MAX });
        assert_eq!((publication.backlog_events(), publication.backlog_bytes()), (2, 2 * one));
        let publication = published(9, Bounds { events: 100, bytes: one - 1 });
        assert_eq!((publication.backlog_events(), publication.backlog_bytes()), (0, 0), "larger than all that is kept");
        assert!(publication.since(Some(at(8))).rest.is_err());
        assert_eq!(seqs(&publication.since(Some(at(9)))), [] as [u64; 0]);
    }

    #[test]
    fn renewed_epoch_begins_at_zero_and_increases() {
        let mut publication = published(3, Bounds::default());
        assert_eq!(publication.renew(9), Position { epoch: 9, seq: 0 });
        assert_eq!((publication.backlog_events(), publication.backlog_bytes()), (0, 0));
        assert!(publication.since(Some(at(3))).rest.is_err());
        assert_eq!(publication.renew(9), Position { epoch: 10, seq: 0 });
        assert_eq!(publication.renew(2), Position { epoch: 11, seq: 0 });
    }

    #[test]
    fn publication_starting_late_replays_nothing_earlier() {
        let mut publication = FeedBacklog::starting_at(at(3));
        assert_eq!(publication.position(), at(3));
        assert_eq!(seqs(&publication.since(Some(at(3)))), [] as [u64; 0]);
        let not_kept = NoReplay::NotKept { asked: at(2), oldest: 4 };
        assert_eq!(publication.since(Some(at(2))).rest, Err(not_kept));
        assert_eq!(publication.publish(|_| b"{}".to_vec()).position, at(4));
        assert_eq!(seqs(&publication.since(Some(at(3)))), [4]);
    }

    #[test]
    fn stream_begins_with_position_and_replay() {
        let publication = published(2, Bounds::default());
        let frames = publication.since(Some(at(1))).frames();
        assert_eq!(frames, [sse::position(at(1)), sse::delta(at(2), b"{\"seq\":2}")]);
    }
}
