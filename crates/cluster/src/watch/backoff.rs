//! Exponential backoff with jitter.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Delays that double from the first to the last, each shortened at random by up to half, so that a thousand agents
/// that lost one API server do not reconnect at once.
#[derive(Debug)]
pub(super) struct Backoff {
    first: Duration,
    last: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(first: Duration, last: Duration) -> Backoff {
        Backoff { first, last, next: first }
    }

    pub(super) fn wait(&mut self) -> Duration {
        let full = self.next;
        self.next = (full * 2).min(self.last);
        full.mul_f64(1.0 - fraction() / 2.0)
    }

    /// Jumps to the maximum delay.
    pub(super) fn wait_long(&mut self) -> Duration {
        self.next = self.last;
        self.wait()
    }

    pub(super) fn reset(&mut self) {
        self.next = self.first;
    }
}

/// A random number from 0 to 1 that differs per process and per call: std seeds its hashers randomly.
fn fraction() -> f64 {
    (RandomState::new().hash_one(()) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_doubles_up_to_limit_and_resets() {
        let second = Duration::from_secs(1);
        let mut backoff = Backoff::new(second, second * 4);
        for full in [1, 2, 4, 4, 4] {
            let wait = backoff.wait();
            assert!(wait <= second * full && wait * 2 >= second * full, "{wait:?} of {full} s");
        }
        backoff.reset();
        assert!(backoff.wait() <= second);
    }

    #[test]
    fn waits_differ() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1));
        let waits: std::collections::BTreeSet<Duration> = (0..16).map(|_| backoff.wait()).collect();
        assert!(waits.len() > 8);
    }
}
