//! Debounce of publications: a fixed delay after the first change, so that related changes are published together.

use std::time::{Duration, Instant};

/// Delay from the first change to its publication. The deletion of a pod and the creation of its successor usually both
/// fall within it, and consumers hardly notice it.
const DELAY: Duration = Duration::from_millis(200);

/// Longest wait of a change, however long publications take: consumers are promised changes within about a second.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The next publication begins no sooner than this many times the duration of the last one after its end: at least two
/// thirds of the time are left for events.
const REST_PER_PUBLICATION: u32 = 2;

/// Schedules publications. The caller supplies the clock, and does the publishing.
///
/// Only changes may be reported to it. Later changes do not postpone the publication, so that a steady stream of them
/// cannot starve it.
#[derive(Debug)]
pub struct Debounce {
    delay: Duration,
    wait_max: Duration,
    /// Time of the first unpublished change.
    first_change: Option<Instant>,
    /// End of the rest after the last publication.
    rest_until: Option<Instant>,
}

impl Default for Debounce {
    fn default() -> Debounce {
        Debounce::with_delay(DELAY, WAIT_MAX)
    }
}

impl Debounce {
    /// A delay of 200 ms, and a change waits for at most one second.
    pub fn new() -> Debounce {
        Debounce::default()
    }

    /// With a debounce delay, and a limit to the wait of a change when publications take long.
    pub fn with_delay(delay: Duration, wait_max: Duration) -> Debounce {
        Debounce { delay, wait_max, first_change: None, rest_until: None }
    }

    /// Records a change to publish.
    pub fn change(&mut self, now: Instant) {
        self.first_change.get_or_insert(now);
    }

    /// When to publish; `None` without an unpublished change.
    pub fn due(&self) -> Option<Instant> {
        let first = self.first_change?;
        let (earliest, latest) = (first + self.delay, first + self.wait_max);
        Some(self.rest_until.map_or(earliest, |rest| earliest.max(rest.min(latest))))
    }

    /// True if a publication is due. Later changes belong to the next one.
    pub fn take_due(&mut self, now: Instant) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due {
            self.first_change = None;
        }
        is_due
    }

    /// Records a publication that took from `began` to `ended`.
    pub fn published(&mut self, began: Instant, ended: Instant) {
        self.rest_until = Some(ended + ended.saturating_duration_since(began) * REST_PER_PUBLICATION);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times of publications in milliseconds, for changes at the times in `changes` and publications of this
    /// duration.
    fn publications(changes: impl IntoIterator<Item = u64>, took: u64) -> Vec<u64> {
        let (mut debounce, start) = (Debounce::new(), Instant::now());
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut published = vec![];
        let mut publish = |debounce: &mut Debounce, until: u64| {
            while let Some(due) = debounce.due().filter(|due| *due <= at(until)) {
                assert!(!debounce.take_due(due - Duration::from_millis(1)), "not before it is due");
                assert!(debounce.take_due(due));
                debounce.published(due, due + Duration::from_millis(took));
                published.push(u64::try_from(due.duration_since(start).as_millis()).unwrap());
            }
        };
        let mut last = 0;
        for ms in changes {
            publish(&mut debounce, ms);
            debounce.change(at(ms));
            last = ms;
        }
        publish(&mut debounce, last + 10_000);
        assert_eq!(debounce.due(), None, "everything is published");
        published
    }

    #[test]
    fn change_is_published_after_delay() {
        assert_eq!(publications([], 0), Vec::<u64>::new());
        assert_eq!(publications([7], 0), [207]);
        assert_eq!(publications([0, 5_000], 0), [200, 5_200]);
    }

    #[test]
    fn later_changes_do_not_postpone_the_publication() {
        assert_eq!(publications([0, 50, 199], 0), [200]);
        // 100 changes per second: one at the time of a publication belongs to the next one.
        assert_eq!(publications((0..1_000).step_by(10), 0), [200, 400, 600, 800, 1_000]);
    }

    #[test]
    fn expensive_publications_leave_time_for_events() {
        // Publications of 100 ms, and a pause twice as long: the next one begins 300 ms later.
        assert_eq!(publications((0..1_500).step_by(10), 100), [200, 500, 800, 1_100, 1_400, 1_700]);
        // Short publications do not prolong the delay.
        assert_eq!(publications((0..600).step_by(10), 40), [200, 400, 600]);
    }

    #[test]
    fn change_waits_a_second_at_most() {
        let (mut debounce, start) = (Debounce::new(), Instant::now());
        debounce.published(start, start + Duration::from_secs(60));
        let change = start + Duration::from_secs(60);
        debounce.change(change);
        debounce.change(change + Duration::from_millis(900));
        assert_eq!(debounce.due(), Some(change + WAIT_MAX));
    }
}
