//! Positions in a publication.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The position of a delta, or of the table after it: text `epoch:seq`, JSON fields `epoch` and `seq`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Position {
    /// Start of the producer in milliseconds since 1970.
    pub epoch: u64,
    /// Sequence number of the delta, from 1 in each epoch. A table at 0 contains no delta.
    pub seq: u64,
}

impl Position {
    /// The position before the first delta of an epoch.
    pub fn start_of(epoch: u64) -> Position {
        Position { epoch, seq: 0 }
    }

    /// The position of the delta after this one, in the same epoch.
    pub fn next(self) -> Position {
        Position { seq: self.seq + 1, ..self }
    }

    /// Whether a table at this position contains every delta up to `other`.
    pub fn covers(self, other: Position) -> bool {
        self.epoch == other.epoch && self.seq >= other.seq
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.seq)
    }
}

/// The text is not two decimal `u64` with a colon between. Contains at most 64 characters of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid position {0:?}: expected EPOCH:SEQ")]
pub struct PositionError(String);

impl FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Position, PositionError> {
        let number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten();
        let numbers = text.split_once(':').and_then(|(epoch, seq)| Some((number(epoch)?, number(seq)?)));
        match numbers {
            Some((epoch, seq)) => Ok(Position { epoch, seq }),
            // Truncated, since the length of the input is not bounded.
            None => Err(PositionError(text.chars().take(64).collect())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_round_trips_through_text() {
        for position in [Position { epoch: 1_700_000_000_123, seq: 42 }, Position { epoch: u64::MAX, seq: 0 }] {
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        let json = serde_json::to_string(&Position { epoch: 7, seq: 3 }).unwrap();
        assert_eq!(json, r#"{"epoch":7,"seq":3}"#);
    }

    #[test]
    fn invalid_position_is_refused() {
        for text in ["", ":", "1", "1:", ":1", "1:2:3", "+1:2", "1:-2", " 1:2", "1:2 ", "18446744073709551616:1", "a:b"]
        {
            assert!(text.parse::<Position>().is_err(), "{text}");
        }
    }

    #[test]
    fn position_covers_earlier_ones_of_same_epoch() {
        let at = |epoch, seq| Position { epoch, seq };
        assert!(at(1, 2).covers(at(1, 2)) && at(1, 2).covers(at(1, 1)));
        assert!(!at(1, 2).covers(at(1, 3)) && !at(2, 2).covers(at(1, 1)));
    }
}
