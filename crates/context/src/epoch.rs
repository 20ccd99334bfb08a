//! Epoch numbers of the feeds: each start of a producer has a greater one.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Distinguishes producers that start in the same millisecond. With it an epoch stays below 2^53 until the year 2248,
/// so that readers with floating-point numbers represent it exactly.
const RANDOM_BITS: u32 = 10;

/// Milliseconds since 1970 and a random number: greater at every start, unless the clock is set back.
pub(crate) fn epoch_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let milliseconds = u64::try_from(since.as_millis()).unwrap_or(u64::MAX >> RANDOM_BITS);
    let random = RandomState::new().build_hasher().finish() & ((1 << RANDOM_BITS) - 1);
    milliseconds << RANDOM_BITS | random
}

/// Start of the epoch in seconds since 1970.
pub(crate) fn begun_seconds(epoch: u64) -> u64 {
    (epoch >> RANDOM_BITS) / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_distinct_increasing_and_below_53_bits() {
        let epochs: Vec<u64> = (0..32).map(|_| epoch_now()).collect();
        assert!(epochs.iter().any(|epoch| *epoch != epochs[0]));
        assert!(epochs.iter().all(|epoch| *epoch < 1 << 53));
        std::thread::sleep(Duration::from_millis(2));
        assert!(epoch_now() > epochs[31]);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!(begun_seconds(epochs[0]).abs_diff(now) <= 1);
    }
}
