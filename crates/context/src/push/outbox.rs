//! Queue of deltas that the relay has not accepted yet.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use feed::Position;
use tokio::sync::Notify;

/// Limit of queued deltas. At a few a second, that is an hour of downtime of the relay; beyond it, a baseline is
/// smaller.
const DELTAS: usize = 16_384;
/// Size limit of the queue.
const BYTES: usize = 64 << 20;

/// A queued delta.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueuedDelta {
    pub(crate) position: Position,
    pub(crate) json: Bytes,
    /// An empty delta that reveals a gap before it, as any later delta does.
    pub(crate) is_notice: bool,
}

impl QueuedDelta {
    pub(crate) fn delta(position: Position, json: Bytes) -> QueuedDelta {
        QueuedDelta { position, json, is_notice: false }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Whether deltas are queued at all.
    open: bool,
    waiting: VecDeque<QueuedDelta>,
    bytes: usize,
    /// Deltas were dropped, and no notice was queued yet.
    dropped: bool,
}

impl Outbox {
    pub(crate) fn enqueue(&self, deltas: impl IntoIterator<Item = QueuedDelta>) {
        let mut state = self.lock();
        if state.open {
            for delta in deltas {
                state.drop_notice();
                state.bytes += delta.json.len();
                state.waiting.push_back(delta);
            }
            if state.waiting.len() > DELTAS || state.bytes > BYTES {
                state.clear();
                state.dropped = true;
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// The next delta to push.
    pub(crate) fn first(&self) -> Option<QueuedDelta> {
        self.lock().waiting.front().cloned()
    }

    /// Removes a delta that the relay has accepted.
    pub(crate) fn acknowledge(&self, delta: &QueuedDelta) {
        let mut state = self.lock();
        if state.waiting.front().is_some_and(|first| first.position == delta.position) {
            state.waiting.pop_front();
            state.bytes -= delta.json.len();
        }
    }

    /// Drops all queued deltas: a baseline replaces them.
    pub(crate) fn drop_all(&self) {
        let mut state = self.lock();
        state.clear();
        state.dropped = true;
    }

    /// Whether deltas were dropped since the last call.
    pub(crate) fn take_dropped(&self) -> bool {
        std::mem::take(&mut self.lock().dropped)
    }

    /// Starts queueing deltas.
    pub(crate) fn open(&self) {
        let mut state = self.lock();
        state.clear();
        state.open = true;
    }

    /// Stops queueing deltas.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.clear();
        state.open = false;
    }

    /// Waits until a delta is queued.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    pub(crate) fn waiting(&self) -> usize {
        self.lock().waiting.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn drop_notice(&mut self) {
        if self.waiting.front().is_some_and(|first| first.is_notice)
            && let Some(notice) = self.waiting.pop_front()
        {
            self.bytes -= notice.json.len();
        }
    }

    fn clear(&mut self) {
        self.waiting.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(seq: u64) -> QueuedDelta {
        QueuedDelta::delta(Position { epoch: 1, seq }, Bytes::from_static(b"{}"))
    }

    #[test]
    fn outbox_keeps_deltas_in_order_until_taken() {
        let outbox = Outbox::default();
        outbox.open();
        outbox.enqueue([delta(1), delta(2)]);
        assert_eq!((outbox.first(), outbox.first()), (Some(delta(1)), Some(delta(1))));
        outbox.acknowledge(&delta(1));
        assert_eq!(outbox.first(), Some(delta(2)));
        outbox.acknowledge(&delta(1));
        assert_eq!(outbox.waiting(), 1);
    }

    #[test]
    fn nothing_waits_while_another_pushes() {
        let outbox = Outbox::default();
        outbox.enqueue([delta(1)]);
        assert_eq!(outbox.first(), None);
        outbox.open();
        outbox.enqueue([delta(2)]);
        outbox.close();
        assert_eq!(outbox.waiting(), 0);
    }

    #[test]
    fn outbox_overflow_drops_deltas_and_reports_once() {
        let outbox = Outbox::default();
        outbox.open();
        outbox.enqueue((1..=DELTAS as u64).map(delta));
        assert!(!outbox.take_dropped());
        outbox.enqueue([delta(DELTAS as u64 + 1)]);
        assert_eq!((outbox.waiting(), outbox.take_dropped(), outbox.take_dropped()), (0, true, false));
        outbox.enqueue([delta(DELTAS as u64 + 2)]);
        assert_eq!(outbox.waiting(), 1);
    }

    #[test]
    fn notice_is_superseded_by_next_delta() {
        let outbox = Outbox::default();
        outbox.open();
        let notice = QueuedDelta { is_notice: true, ..delta(1) };
        outbox.enqueue([notice.clone()]);
        assert_eq!(outbox.first(), Some(notice.clone()));
        outbox.enqueue([delta(2)]);
        assert_eq!((outbox.first(), outbox.waiting()), (Some(delta(2)), 1));
        // It may be dropped while it is in flight.
        outbox.acknowledge(&notice);
        assert_eq!(outbox.waiting(), 1);
    }
}
