//! Exponential backoff with jitter.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// Delays that double from `first` to `longest`. Each is drawn from its upper three quarters (jitter), so that the
/// thousands of followers of a restarted producer do not reconnect at the same moment.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    failures: u32,
}

impl Backoff {
    /// Without failures so far.
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

    /// Records a failure. Returns the delay before the next try.
    pub fn wait(&mut self) -> Duration {
        // Hash maps are seeded randomly, which is random enough for jitter.
        self.wait_drawn(RandomState::new().build_hasher().finish())
    }

    fn wait_drawn(&mut self, random: u64) -> Duration {
        let doublings = self.failures.min(31);
        self.failures = self.failures.saturating_add(1);
        let longest = self.first.saturating_mul(1 << doublings).min(self.longest);
        longest / 4 + (longest * 3 / 4).mul_f64(random as f64 / u64::MAX as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_limit_and_resets() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
        let waits: Vec<u64> = (0..7).map(|_| backoff.wait_drawn(u64::MAX).as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 30, 30]);
        for _ in 0..100 {
            assert!(backoff.wait() <= Duration::from_secs(30));
        }
        backoff.reset();
        assert_eq!(backoff.wait_drawn(u64::MAX), Duration::from_secs(1));
    }

    #[test]
    fn waits_are_spread_and_never_nothing() {
        let mut backoff = Backoff::new(Duration::from_secs(4), Duration::from_secs(4));
        assert_eq!(backoff.wait_drawn(0), Duration::from_secs(1));
        assert_eq!(backoff.wait_drawn(u64::MAX), Duration::from_secs(4));
        assert_ne!(backoff.wait(), backoff.wait());
    }
}
