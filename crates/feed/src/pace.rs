//! When changes are published: a fixed pause after the first of them, so that changes that belong together go out together.

use std::time::{Duration, Instant};

/// From the first change to its publication. A pod's deletion and its successor usually both come within it, and consumers
/// hardly notice the delay.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a change waits at most, however long publications take: consumers are promised changes within a second or so.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// After a publication, the next one begins no sooner than this many times its duration: at least two thirds of the time
/// are left for events.
const REST_PER_PUBLICATION: u32 = 2;

/// Decides when to publish, without a clock of its own and without knowledge of what is published.
///
/// Only changes may be reported to it. Later changes do not postpone the publication, so that a steady stream of them delays
/// none.
#[derive(Debug)]
pub struct Pace {
    pause: Duration,
    wait_max: Duration,
    /// The first change that is not published.
    first_change: Option<Instant>,
    /// End of the rest after the last publication.
    rest_until: Option<Instant>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::of(PAUSE, WAIT_MAX)
    }
}

impl Pace {
    pub fn new() -> Pace {
        Pace::default()
    }

    /// With a pause of its own, and a limit to how long a change waits where publications take long.
    pub fn of(pause: Duration, wait_max: Duration) -> Pace {
        Pace { pause, wait_max, first_change: None, rest_until: None }
    }

    /// Something has changed that is to be published.
    pub fn change(&mut self, now: Instant) {
        self.first_change.get_or_insert(now);
    }

    /// When to publish; `None` while there is no change.
    pub fn due(&self) -> Option<Instant> {
        let first = self.first_change?;
        let (earliest, latest) = (first + self.pause, first + self.wait_max);
        Some(self.rest_until.map_or(earliest, |rest| earliest.max(rest.min(latest))))
    }

    /// True if it is time to publish. Later changes belong to the next publication.
    pub fn take(&mut self, now: Instant) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due {
            self.first_change = None;
        }
        is_due
    }

    /// A publication took from `began` to `ended`.
    pub fn published(&mut self, began: Instant, ended: Instant) {
        self.rest_until = Some(ended + ended.saturating_duration_since(began) * REST_PER_PUBLICATION);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The milliseconds at which it publishes, if there are changes at those of `changes`, and publishing takes that long.
    fn publications(changes: impl IntoIterator<Item = u64>, took: u64) -> Vec<u64> {
        let (mut pace, start) = (Pace::new(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut published = vec![];
        let mut publish = |pace: &mut Pace, until: u64| {
            while let Some(due) = pace.due().filter(|due| *due <= at(until)) {
                assert!(!pace.take(due - Duration::from_millis(1)), "not before it is due");
                assert!(pace.take(due));
                pace.published(due, due + Duration::from_millis(took));
                published.push(u64::try_from(due.duration_since(start).as_millis()).unwrap());
            }
        };
        let mut last = 0;
        for ms in changes {
            publish(&mut pace, ms);
            pace.change(at(ms));
            last = ms;
        }
        publish(&mut pace, last + 10_000);
        assert_eq!(pace.due(), None, "everything is published");
        published
    }

    #[test]
    fn change_is_published_after_the_pause() {
        assert_eq!(publications([], 0), Vec::<u64>::new());
        assert_eq!(publications([7], 0), [207]);
        assert_eq!(publications([0, 5_000], 0), [200, 5_200]);
    }

    #[test]
    fn later_changes_do_not_postpone_the_publication() {
        assert_eq!(publications([0, 50, 199], 0), [200]);
        // 100 changes per second: the one at the moment of a publication belongs to the next one.
        assert_eq!(publications((0..1_000).step_by(10), 0), [200, 400, 600, 800, 1_000]);
    }

    #[test]
    fn expensive_publications_leave_time_for_events() {
        // 100 ms and twice as long: the next one begins 300 ms later.
        assert_eq!(publications((0..1_500).step_by(10), 100), [200, 500, 800, 1_100, 1_400, 1_700]);
        // Cheap ones do not prolong the pause.
        assert_eq!(publications((0..600).step_by(10), 40), [200, 400, 600]);
    }

    #[test]
    fn change_waits_a_second_at_most() {
        let (mut pace, start) = (Pace::new(), Instant::now());
        pace.published(start, start + Duration::from_secs(60));
        let change = start + Duration::from_secs(60);
        pace.change(change);
        pace.change(change + Duration::from_millis(900));
        assert_eq!(pace.due(), Some(change + WAIT_MAX));
    }
}
