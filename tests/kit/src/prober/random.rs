//! Reproducible random moments and choices.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

/// The variable with the seed of an earlier run.
const VARIABLE: &str = "TEST_SEED";

/// SplitMix64 (Steele, Lea and Flood, 2014): a few lines, and good enough for moments.
#[derive(Debug, Clone)]
pub struct Chance(u64);

impl Chance {
    /// A printed seed, which the variable `TEST_SEED` can reproduce.
    ///
    /// # Panics
    /// If the variable is not a number.
    pub fn printed(about: &str) -> Chance {
        let seed = match std::env::var(VARIABLE) {
            Ok(text) => text.parse().expect("TEST_SEED is a number"),
            Err(_) => RandomState::new().build_hasher().finish(),
        };
        println!("{about}: {VARIABLE}={seed}");
        Chance(seed)
    }

    /// Another, independent generator.
    pub fn split(&mut self) -> Chance {
        Chance(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A random element; `of` must not be empty.
    pub fn one_of<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    /// True with probability 1/`times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A number below `most`, which must not be 0.
    pub fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    /// A duration below `most`.
    pub fn up_to(&mut self, most: Duration) -> Duration {
        let most = u64::try_from(most.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.below(most.max(1)))
    }
}
