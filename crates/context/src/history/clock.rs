//! Conversion between wall-clock times and monotonic moments.

use std::str::FromStr;
use std::time::{Duration, Instant};

use jiff::{RoundMode, Timestamp, TimestampRound, Unit};

/// Both clocks at the same moment. The current offset is used: after a step of the wall clock, past moments have the
/// times that the corrected clock would have shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    pub(crate) instant: Instant,
    pub(crate) wall: Timestamp,
}

impl Clock {
    pub(crate) fn now() -> Clock {
        Clock { instant: Instant::now(), wall: Timestamp::now() }
    }

    /// `None` if the monotonic clock cannot express the time.
    pub(crate) fn instant_of(self, time: Timestamp) -> Option<Instant> {
        let since = self.wall.duration_since(time);
        match since.is_negative() {
            true => self.instant.checked_add(since.unsigned_abs()),
            false => self.instant.checked_sub(since.unsigned_abs()),
        }
    }

    /// In milliseconds, rounded up, so that a query with the printed time finds a record that begins at the moment.
    pub(crate) fn time_of(self, moment: Instant) -> Timestamp {
        let time = match moment.checked_duration_since(self.instant) {
            Some(ahead) => self.wall.checked_add(ahead),
            None => self.wall.checked_sub(self.instant.duration_since(moment)),
        };
        let round = TimestampRound::new().smallest(Unit::Millisecond).mode(RoundMode::Ceil);
        time.and_then(|time| time.round(round)).unwrap_or(self.wall)
    }
}

/// A past time in a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PastTime {
    Ago(Duration),
    At(Timestamp),
}

impl PastTime {
    /// `None` if the monotonic clock cannot express the time.
    pub(crate) fn instant(self, clock: Clock) -> Option<Instant> {
        match self {
            PastTime::Ago(duration) => clock.instant.checked_sub(duration),
            PastTime::At(time) => clock.instant_of(time),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid time '{0}': expected RFC 3339, as in 2026-11-22T10:00:00Z, or a duration ago, as in 10m")]
pub(crate) struct PastTimeError(String);

/// An error quotes no more of the text.
const ERROR_CHARACTERS: usize = 64;

impl FromStr for PastTime {
    type Err = PastTimeError;

    fn from_str(text: &str) -> Result<PastTime, PastTimeError> {
        if let Ok(duration) = console::duration(text) {
            return Ok(PastTime::Ago(duration));
        }
        text.parse().map(PastTime::At).map_err(|_| PastTimeError(text.chars().take(ERROR_CHARACTERS).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> Clock {
        Clock { instant: Instant::now() + Duration::from_secs(7200), wall: "2026-11-22T10:00:00Z".parse().unwrap() }
    }

    #[test]
    fn past_times_are_times_or_durations_ago() {
        let clock = clock();
        let ten_minutes = clock.instant - Duration::from_secs(600);
        for text in ["10m", "600s", "2026-11-22T09:50:00Z", "2026-11-22T11:50:00+02:00"] {
            assert_eq!(text.parse::<PastTime>().unwrap().instant(clock), Some(ten_minutes), "{text}");
        }
        let ahead: PastTime = "2026-11-22T10:00:01Z".parse().unwrap();
        assert_eq!(ahead.instant(clock), Some(clock.instant + Duration::from_secs(1)));
        for text in ["", "now", "-10m", "10", "2026-11-22", "2026-11-22T09:50:00", "09:50"] {
            assert!(text.parse::<PastTime>().is_err(), "{text}");
        }
    }

    #[test]
    fn printed_time_is_not_before_its_moment() {
        let clock = clock();
        for nanoseconds in [0, 1, 999_999, 1_000_000, 1_500_000_001] {
            let moment = clock.instant - Duration::from_nanos(nanoseconds);
            let again = clock.instant_of(clock.time_of(moment)).unwrap();
            assert!(moment <= again && again < moment + Duration::from_millis(1), "{nanoseconds}");
        }
    }
}
