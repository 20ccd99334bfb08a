//! Schedule of conntrack listings and of window closes.

use std::time::{Duration, Instant};

use flow::WINDOW_SECONDS;
use jiff::{SignedDuration, Timestamp};

/// Delay of a window's listing after the end of the window.
const LISTED_AFTER_END: SignedDuration = SignedDuration::from_millis(100);

/// Delay of a window's close after its end: after its listing, and after its last events.
const CLOSED_AFTER_END: SignedDuration = SignedDuration::from_millis(500);

/// Minimum pause between listings other than those of windows; also at least [`PAUSE_FACTOR`] times the duration of the
/// last one: commits and readers may request any number of them.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const PAUSE_FACTOR: u32 = 10;

#[derive(Debug)]
pub(super) struct CaptureSchedule {
    next_listing: Timestamp,
    next_close: Timestamp,
    not_listed_before: Instant,
}

impl CaptureSchedule {
    pub(super) fn beginning_at(now: Timestamp) -> CaptureSchedule {
        CaptureSchedule {
            next_listing: end_of_window(now) + LISTED_AFTER_END,
            next_close: end_of_window(now) + CLOSED_AFTER_END,
            not_listed_before: Instant::now(),
        }
    }

    /// Whether the listing for a window is due. If it is, the next one is scheduled.
    pub(super) fn is_listing_due(&mut self, now: Timestamp) -> bool {
        is_due(&mut self.next_listing, now, LISTED_AFTER_END)
    }

    /// Whether the listing for the last ended window was made.
    pub(super) fn is_listed(&self, now: Timestamp) -> bool {
        now < self.next_listing
    }

    /// Whether the close of windows is due. If it is, the next one is scheduled.
    pub(super) fn is_close_due(&mut self, now: Timestamp) -> bool {
        is_due(&mut self.next_close, now, CLOSED_AFTER_END)
    }

    /// Whether a listing other than those of windows may be made now.
    pub(super) fn allows_listing(&self) -> bool {
        Instant::now() >= self.not_listed_before
    }

    /// Records the duration of a listing.
    pub(super) fn listed(&mut self, took: Duration) {
        self.not_listed_before = Instant::now() + (took * PAUSE_FACTOR).max(SHORTEST_PAUSE);
    }
}

/// Whether the time is due. If it is, advances it to that of the next window.
fn is_due(next: &mut Timestamp, now: Timestamp, after_end: SignedDuration) -> bool {
    let following = end_of_window(now) + after_end;
    // After a clock was set back, the scheduled time would be too far away.
    let is_due = now >= *next || *next > following;
    if is_due {
        *next = following;
    }
    is_due
}

pub(super) fn begin_of_window(now: Timestamp) -> Timestamp {
    let begin = now.as_second().div_euclid(WINDOW_SECONDS) * WINDOW_SECONDS;
    Timestamp::from_second(begin).unwrap_or(Timestamp::MIN)
}

fn end_of_window(now: Timestamp) -> Timestamp {
    begin_of_window(now).checked_add(SignedDuration::from_secs(WINDOW_SECONDS)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    #[test]
    fn windows_are_listed_and_then_closed() {
        let mut schedule = CaptureSchedule::beginning_at(at(14_999));
        assert!(!schedule.is_listing_due(at(15_099)) && schedule.is_listing_due(at(15_100)));
        assert!(!schedule.is_listing_due(at(15_101)) && !schedule.is_close_due(at(15_499)));
        assert!(schedule.is_close_due(at(15_500)) && !schedule.is_close_due(at(30_499)));
        assert!(schedule.is_listed(at(30_099)) && !schedule.is_listed(at(30_100)));
        assert!(schedule.is_listing_due(at(30_100)) && schedule.is_listed(at(30_100)));
    }

    #[test]
    fn schedule_follows_a_clock_set_back() {
        let mut schedule = CaptureSchedule::beginning_at(at(1_000_000));
        assert!(schedule.is_listing_due(at(500_000)) && !schedule.is_listing_due(at(500_000)));
        assert!(schedule.is_listing_due(at(510_100)));
    }

    #[test]
    fn listings_leave_nine_tenths_of_the_time() {
        let mut schedule = CaptureSchedule::beginning_at(at(0));
        assert!(schedule.allows_listing());
        schedule.listed(Duration::from_secs(60));
        assert!(!schedule.allows_listing());
        assert!(schedule.not_listed_before > Instant::now() + Duration::from_secs(599));
    }
}
