//! Exponential backoff, with or without jitter.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Doublings after which even a delay of a millisecond is longer than any limit.
const MOST_DOUBLINGS: u32 = 31;

/// Delays that double from `first` to `longest`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Without failures so far. `first` is at most `longest`.
    pub fn new(first: Duration, longest: Duration) -> Backoff {
        Backoff { first, longest, failures: 0 }
    }

    /// Resets the backoff after a success.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// Consecutive failures.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Records a failure. Returns the delay before the next try, drawn from the upper three quarters of the backoff
    /// (jitter): thousands of clients of one restarted server must not reconnect at the same moment.
    pub fn wait(&mut self) -> Duration {
        // Hash maps are seeded randomly, which is random enough for jitter.
        self.wait_drawn(RandomState::new().build_hasher().finish())
    }

    /// Records a failure after which a soon retry is futile. Returns the longest delay, with jitter.
    pub fn wait_longest(&mut self) -> Duration {
        self.failures = self.failures.max(MOST_DOUBLINGS);
        self.wait()
    }

    /// Records a failure. Returns the delay without jitter, for retries that concern this node alone.
    pub fn wait_exactly(&mut self) -> Duration {
        let doublings = self.failures.min(MOST_DOUBLINGS);
        self.failures = self.failures.saturating_add(1);
        self.first.saturating_mul(1 << doublings).min(self.longest)
    }

    fn wait_drawn(&mut self, random: u64) -> Duration {
        let longest = self.wait_exactly();
        longest / 4 + (longest * 3 / 4).mul_f64(random as f64 / u64::MAX as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn backoff_doubles_up_to_limit_and_resets() {
        let mut backoff = Backoff::new(seconds(1), seconds(30));
        let waits: Vec<u64> = (0..7).map(|_| backoff.wait_exactly().as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        for _ in 0..100 {
            assert!(backoff.wait() <= seconds(30));
        }
        backoff.reset();
        assert_eq!(backoff.wait_exactly(), seconds(1));
    }

    #[test]
    fn waits_are_spread_and_never_zero() {
        let mut backoff = Backoff::new(seconds(4), seconds(4));
        assert_eq!(backoff.wait_drawn(0), seconds(1));
        assert_eq!(backoff.wait_drawn(u64::MAX), seconds(4));
        assert_ne!(backoff.wait(), backoff.wait());
    }

    #[test]
    fn futile_retry_waits_longest() {
        let mut backoff = Backoff::new(seconds(1), seconds(64));
        assert!(backoff.wait_longest() >= seconds(16));
        assert_eq!(backoff.wait_exactly(), seconds(64));
        backoff.reset();
        assert_eq!(backoff.wait_exactly(), seconds(1));
    }
}
