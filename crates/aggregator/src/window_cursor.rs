//! Position of a reader that gets each settled window once, also if the clock of the aggregator is set ahead and back.

use flow::WINDOW_SECONDS;
use jiff::{SignedDuration, Timestamp};

/// Position among the settled windows. While the clock is ahead, windows settle as soon as they have records. After it was
/// set back, the watermark passes the same times again: windows that were read then are not read again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WindowCursor {
    /// The last watermark.
    settled: Timestamp,
    /// Windows that begin earlier were read, or are from before the cursor.
    unread_from: Timestamp,
}

impl WindowCursor {
    /// A cursor behind the settled windows. `newest` is the newest window with records.
    pub(crate) fn new(settled: Timestamp, newest: Option<Timestamp>) -> WindowCursor {
        WindowCursor { settled, unread_from: newest.map_or(Timestamp::MIN, end).min(settled) }
    }

    /// The watermark up to which windows were read.
    pub(crate) fn settled(&self) -> Timestamp {
        self.settled
    }

    /// Moves the cursor to the watermark. Returns those of the windows, oldest first, that settled since and were never read.
    pub(crate) fn advance(
        &mut self,
        settled: Timestamp,
        windows: impl IntoIterator<Item = Timestamp>,
    ) -> Vec<Timestamp> {
        let was_set_back = settled < self.settled;
        let from = if was_set_back { self.unread_from } else { self.unread_from.max(self.settled) };
        let due: Vec<Timestamp> = windows.into_iter().filter(|window| (from..settled).contains(window)).collect();
        self.settled = settled;
        self.unread_from = due.last().map_or(self.unread_from, |last| self.unread_from.max(end(*last)));
        due
    }
}

/// End of a window.
fn end(window: Timestamp) -> Timestamp {
    window.checked_add(SignedDuration::from_secs(WINDOW_SECONDS)).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::window;

    fn windows(numbers: &[i64]) -> Vec<Timestamp> {
        numbers.iter().map(|number| window(*number)).collect()
    }

    #[test]
    fn window_is_read_once_when_it_settles() {
        let mut cursor = WindowCursor::new(window(2), Some(window(3)));
        assert_eq!(cursor.advance(window(3), windows(&[0, 2, 3])), windows(&[2]));
        // The records of window 1 are late.
        assert_eq!(cursor.advance(window(5), windows(&[0, 1, 2, 3, 4])), windows(&[3, 4]));
        assert_eq!(cursor.advance(window(5), windows(&[4])), []);
    }

    #[test]
    fn clock_set_back_repeats_no_window() {
        let mut cursor = WindowCursor::new(window(2), Some(window(3)));
        assert_eq!(cursor.advance(window(5_000), windows(&[0, 2, 3])), windows(&[2, 3]));
        assert_eq!(cursor.advance(window(5_001), windows(&[2, 3, 4])), [], "late");
        assert_eq!(cursor.advance(window(2), windows(&[2, 3, 4])), []);
        assert_eq!(cursor.advance(window(4), windows(&[2, 3, 4])), []);
        assert_eq!(cursor.advance(window(5), windows(&[2, 3, 4, 5])), windows(&[4]));
    }

    #[test]
    fn windows_of_a_clock_ahead_are_read_afterwards() {
        let mut cursor = WindowCursor::new(window(2), Some(window(1)));
        assert_eq!(cursor.advance(window(5_000), windows(&[1, 2])), windows(&[2]));
        assert_eq!(cursor.advance(window(6), windows(&[1, 2, 3, 4, 5, 6])), windows(&[3, 4, 5]));
        let mut begun_ahead = WindowCursor::new(window(5_000), Some(window(2)));
        assert_eq!(begun_ahead.advance(window(6), windows(&[1, 2, 3])), windows(&[3]));
    }
}
