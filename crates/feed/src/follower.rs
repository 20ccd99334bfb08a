//! The consumer's side: decides which deltas a follower applies, and when it needs a baseline.

use std::fmt;

use crate::Position;

/// Tracks the positions of the follower's table and of the stream; the table itself is elsewhere.
///
/// A delta is applied only if it is the next one. Any other delta is either in the table already, or reveals a gap:
/// then a baseline is needed that covers every position seen on the stream. Deltas that arrive until then are dropped,
/// since the baseline contains them.
#[derive(Debug, Clone, Default)]
pub struct Follower {
    table: Option<Position>,
    /// The latest position seen on the stream. Epochs only grow within a stream; another stream, perhaps of another
    /// producer, may be of an earlier epoch.
    latest: Option<Position>,
    lacking: Option<Pull>,
}

/// The follower's next step after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Apply the delta: it is the next one.
    Apply,
    /// Ignore it: the table contains it already.
    Known,
    /// Get a baseline.
    Pull(Pull),
}

/// Why a baseline is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pull {
    /// The follower has never had a baseline.
    NoTable,
    /// Deltas between the table and this position are missing.
    Gap {
        /// Position of the follower's table.
        table: Position,
        /// Latest position seen on the stream, of the same epoch.
        latest: Position,
    },
    /// The producer has restarted, or the stream is of another producer.
    OtherEpoch {
        /// Position of the follower's table.
        table: Position,
        /// Latest position seen on the stream.
        latest: Position,
    },
    /// The producer sent `pull`.
    Requested {
        /// Reason in the event, for people.
        reason: String,
    },
}

impl fmt::Display for Pull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pull::NoTable => f.write_str("no table yet"),
            Pull::Gap { table, latest } => {
                write!(f, "gap in the stream: the table is at position {table}, the stream at {latest}")
            }
            Pull::OtherEpoch { table, latest } => {
                write!(f, "the table is at position {table}, in another epoch than the stream at {latest}")
            }
            Pull::Requested { reason } => write!(f, "the producer requests a pull: {reason}"),
        }
    }
}

impl Follower {
    /// Without a table: the first event needs a baseline.
    pub fn new() -> Follower {
        Follower::default()
    }

    /// The table's position, which does not change while a baseline is needed.
    pub fn position(&self) -> Option<Position> {
        self.table
    }

    /// A stream was opened that resumes after this position. Positions seen on earlier streams are discarded.
    pub fn begins(&mut self, at: Position) -> Next {
        self.latest = Some(at);
        self.lacking = None;
        self.receive(at, Pull::behind)
    }

    /// A delta has arrived. With [`Next::Apply`], this is the table's new position.
    pub fn delta(&mut self, at: Position) -> Next {
        if self.lacking.is_none() && self.table.is_some_and(|table| table.next() == at) {
            self.table = Some(at);
            self.latest = self.latest.max(Some(at));
            return Next::Apply;
        }
        self.receive(at, Pull::behind)
    }

    /// A `pull` event: deltas up to this position are not available from the stream.
    pub fn pull_requested(&mut self, at: Position, reason: &str) -> Next {
        self.receive(at, |_, _| Pull::Requested { reason: reason.to_owned() })
    }

    /// The table was replaced by a baseline. With [`Next::Known`] the stream joins it.
    ///
    /// With [`Next::Pull`] it does not: the baseline is older than the stream, of another producer, or of an epoch that
    /// the stream has not announced yet. Then the stream is reopened at the table's position.
    pub fn baseline(&mut self, at: Position) -> Next {
        self.table = Some(at);
        self.lacking = self.latest.filter(|latest| !at.covers(*latest)).map(|latest| Pull::behind(at, latest));
        self.next_step()
    }

    fn receive(&mut self, at: Position, lack: impl FnOnce(Position, Position) -> Pull) -> Next {
        let is_stale = self.latest.or(self.table).is_some_and(|latest| at.epoch < latest.epoch);
        if !is_stale {
            self.latest = self.latest.max(Some(at));
            match self.table {
                Some(table) if table.covers(at) => {}
                // The first reason is the one reported.
                Some(table) => drop(self.lacking.get_or_insert_with(|| lack(table, at))),
                None => drop(self.lacking.get_or_insert(Pull::NoTable)),
            }
        }
        self.next_step()
    }

    fn next_step(&self) -> Next {
        self.lacking.clone().map_or(Next::Known, Next::Pull)
    }
}

impl Pull {
    fn behind(table: Position, latest: Position) -> Pull {
        if table.epoch == latest.epoch { Pull::Gap { table, latest } } else { Pull::OtherEpoch { table, latest } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(epoch: u64, seq: u64) -> Position {
        Position { epoch, seq }
    }

    /// A follower with a table, on a stream that joins it.
    fn following(epoch: u64, seq: u64) -> Follower {
        let mut follower = Follower::new();
        assert_eq!(follower.begins(at(epoch, seq)), Next::Pull(Pull::NoTable));
        assert_eq!(follower.baseline(at(epoch, seq)), Next::Known);
        follower
    }

    #[test]
    fn deltas_in_order_are_applied_each_once() {
        let mut follower = following(7, 3);
        for seq in [4, 5, 6] {
            assert_eq!(follower.delta(at(7, seq)), Next::Apply);
            assert_eq!(follower.position(), Some(at(7, seq)));
            assert_eq!(follower.delta(at(7, seq)), Next::Known);
            assert_eq!(follower.delta(at(7, 1)), Next::Known);
        }
    }

    #[test]
    fn deltas_that_the_baseline_contains_are_known() {
        let mut follower = Follower::new();
        follower.begins(at(7, 3));
        assert_eq!(follower.baseline(at(7, 5)), Next::Known);
        for (seq, next) in [(4, Next::Known), (5, Next::Known), (6, Next::Apply)] {
            assert_eq!(follower.delta(at(7, seq)), next);
        }
    }

    #[test]
    fn gap_blocks_deltas_until_baseline_covers_it() {
        let mut follower = following(7, 3);
        let gap = |latest| Next::Pull(Pull::Gap { table: at(7, 3), latest: at(7, latest) });
        assert_eq!(follower.delta(at(7, 6)), gap(6));
        assert_eq!(follower.delta(at(7, 4)), gap(6), "late, but 5 and 6 will not come again");
        assert_eq!(follower.position(), Some(at(7, 3)));
        assert_eq!(follower.baseline(at(7, 5)), Next::Pull(Pull::Gap { table: at(7, 5), latest: at(7, 6) }));
        assert_eq!(follower.baseline(at(7, 6)), Next::Known);
        assert_eq!(follower.delta(at(7, 7)), Next::Apply);
    }

    #[test]
    fn new_epoch_needs_baseline_and_ignores_old_deltas() {
        let mut follower = following(7, 3);
        let other = Next::Pull(Pull::OtherEpoch { table: at(7, 3), latest: at(8, 1) });
        assert_eq!(follower.delta(at(8, 1)), other);
        assert_eq!(follower.delta(at(7, 4)), other, "of an epoch that has ended");
        assert_eq!(follower.baseline(at(8, 1)), Next::Known);
        assert_eq!(follower.delta(at(7, 5)), Next::Known);
        assert_eq!(follower.delta(at(8, 2)), Next::Apply);
    }

    #[test]
    fn stream_joins_only_at_or_before_table_position() {
        for (begins, next) in [
            (at(7, 3), Next::Known),
            (at(7, 2), Next::Known),
            (at(7, 4), Next::Pull(Pull::Gap { table: at(7, 3), latest: at(7, 4) })),
            (at(6, 9), Next::Pull(Pull::OtherEpoch { table: at(7, 3), latest: at(6, 9) })),
            (at(8, 0), Next::Pull(Pull::OtherEpoch { table: at(7, 3), latest: at(8, 0) })),
        ] {
            assert_eq!(following(7, 3).begins(begins), next);
        }
    }

    #[test]
    fn stream_from_table_position_closes_gap() {
        let mut follower = following(7, 3);
        assert!(matches!(follower.delta(at(7, 6)), Next::Pull(_)));
        assert_eq!(follower.begins(at(7, 3)), Next::Known);
        assert_eq!(follower.delta(at(7, 4)), Next::Apply);
    }

    #[test]
    fn follower_accepts_producer_of_earlier_epoch() {
        let mut follower = following(7, 3);
        assert!(matches!(follower.begins(at(5, 8)), Next::Pull(_)));
        assert_eq!(follower.baseline(at(5, 9)), Next::Known);
        assert_eq!(follower.delta(at(5, 10)), Next::Apply);
    }

    #[test]
    fn baseline_of_other_epoch_does_not_join_stream() {
        for epoch in [6, 8] {
            let mut follower = Follower::new();
            follower.begins(at(7, 3));
            let apart = Pull::OtherEpoch { table: at(epoch, 4), latest: at(7, 3) };
            assert_eq!(follower.baseline(at(epoch, 4)), Next::Pull(apart.clone()));
            assert_eq!(follower.delta(at(epoch, 5)), Next::Pull(apart));
            assert_eq!(follower.position(), Some(at(epoch, 4)));
            assert_eq!(follower.begins(at(epoch, 4)), Next::Known);
        }
    }

    #[test]
    fn pull_is_ignored_if_table_has_its_position() {
        let mut follower = following(7, 3);
        assert_eq!(follower.pull_requested(at(7, 3), "slow"), Next::Known);
        let requested = Next::Pull(Pull::Requested { reason: "slow".into() });
        assert_eq!(follower.pull_requested(at(7, 5), "slow"), requested);
        assert_eq!(follower.delta(at(7, 4)), requested);
        assert_eq!(follower.pull_requested(at(9, 0), "another epoch"), requested);
        assert_eq!(follower.baseline(at(9, 0)), Next::Known);
    }
}
