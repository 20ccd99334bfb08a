//! When what has changed is published: a lone change soon, a storm of them together.

use std::time::{Duration, Instant};

/// How long it has to be quiet after an event. What belongs together, such as a pod that goes and its successor, comes
/// within it; a consumer hardly notices it.
const QUIET: Duration = Duration::from_millis(200);
/// How long an event waits at most, however many follow: consumers are promised changes within a second or so.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Decides when to publish; holds nothing of what. Has no clock of its own.
#[derive(Debug)]
pub struct Pace {
    quiet: Duration,
    wait_max: Duration,
    armed: Option<Armed>,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::of(QUIET, WAIT_MAX)
    }
}

#[derive(Debug, Clone, Copy)]
struct Armed {
    first: Instant,
    last: Instant,
}

impl Pace {
    pub fn new() -> Pace {
        Pace::default()
    }

    /// One of its own: how long it has to be quiet after an event, and how long one waits at most.
    pub fn of(quiet: Duration, wait_max: Duration) -> Pace {
        Pace { quiet, wait_max, armed: None }
    }

    /// Something has changed.
    pub fn event(&mut self, now: Instant) {
        let first = self.armed.map_or(now, |armed| armed.first);
        self.armed = Some(Armed { first, last: now });
    }

    /// When to publish. Nothing while nothing has changed.
    pub fn due(&self) -> Option<Instant> {
        self.armed.map(|armed| (armed.last + self.quiet).min(armed.first + self.wait_max))
    }

    /// True if it is time to publish; whatever comes later is for the next time.
    pub fn take(&mut self, now: Instant) -> bool {
        let is_due = self.due().is_some_and(|due| due <= now);
        if is_due {
            self.armed = None;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_event_waits_200_ms() {
        let (mut pace, start) = (Pace::new(), Instant::now());
        assert_eq!(pace.due(), None);
        assert!(!pace.take(start));
        pace.event(start);
        assert!(!pace.take(start + Duration::from_millis(199)));
        assert!(pace.take(start + Duration::from_millis(200)));
        assert_eq!(pace.due(), None, "it was published");
    }

    #[test]
    fn a_storm_is_published_after_a_second_and_at_last_once_it_is_quiet() {
        let (mut pace, start) = (Pace::new(), Instant::now());
        let mut published = vec![];
        for ms in 0..2_500 {
            let now = start + Duration::from_millis(ms);
            if pace.take(now) {
                published.push(ms);
            }
            if ms < 1_500 && ms % 10 == 0 {
                pace.event(now);
            }
        }
        assert_eq!(published, [1_000, 1_690]);
    }

    #[test]
    fn an_event_that_comes_late_to_a_burst_does_not_wait_longer_than_the_burst() {
        let (mut pace, start) = (Pace::new(), Instant::now());
        for ms in [0, 150, 300, 450, 600, 750, 900] {
            pace.event(start + Duration::from_millis(ms));
        }
        assert_eq!(pace.due(), Some(start + WAIT_MAX));
    }
}
