//! Rate limit for restoring an entry that another program keeps removing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of restores within [`WINDOW`] that are not delayed: a starting network agent writes its configuration a few
/// times.
pub(super) const FREE: usize = 20;
pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// Times of recent restores, and the number of all restores.
#[derive(Debug, Default)]
pub(super) struct RateLimit {
    recent: VecDeque<Instant>,
    pub(super) total: u64,
}

impl RateLimit {
    pub(super) fn count(&mut self, now: Instant) {
        self.total += 1;
        self.recent.push_back(now);
    }

    /// Delay before the next restore.
    pub(super) fn wait(&mut self, now: Instant) -> Duration {
        while self.recent.front().is_some_and(|oldest| now.duration_since(*oldest) >= WINDOW) {
            self.recent.pop_front();
        }
        match self.recent.front() {
            Some(oldest) if self.recent.len() >= FREE => WINDOW - now.duration_since(*oldest),
            _ => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restores_beyond_free_ones_are_delayed() {
        let mut rate_limit = RateLimit::default();
        let start = Instant::now();
        let mut now = start;
        for _ in 0..FREE {
            assert_eq!(rate_limit.wait(now), Duration::ZERO);
            rate_limit.count(now);
            now += Duration::from_millis(100);
        }
        assert_eq!(rate_limit.wait(now), WINDOW - Duration::from_secs(2));
        assert_eq!(rate_limit.wait(start + WINDOW), Duration::ZERO);
        for _ in 0..1000 {
            now += rate_limit.wait(now);
            rate_limit.count(now);
        }
        assert!(now - start >= WINDOW * (1000 / FREE as u32));
        assert_eq!(rate_limit.total, 1020);
        assert_eq!(rate_limit.wait(now + WINDOW), Duration::ZERO);
    }
}
