//! The range of identity numbers, and the order in which an identity tries them.

use sha2::{Digest, Sha256};

use crate::Sid;

/// A range of numbers above the reserved ones, with at least one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    size: u32,
}

/// The smallest number that is not reserved.
const FIRST: u32 = 256;

/// Attempts of an identity before it uses the next free number. With half of all numbers used, one identity in 2^64
/// needs more.
const ATTEMPTS: u32 = 64;

impl Space {
    /// Numbers of 24 bits.
    pub const STANDARD: Space = Space { size: (1 << 24) - FIRST };

    /// A space with few numbers, for tests in which homes collide. The size is at least 1.
    pub fn small(size: u32) -> Space {
        Space { size: size.clamp(1, Space::STANDARD.size) }
    }

    /// The number of the identity unless a smaller identity has the same home.
    pub fn home(self, sid: Sid) -> u32 {
        self.number(sid.0)
    }

    /// The `k`-th number, from 1, that the identity tries if another identity has its home.
    pub fn attempt(self, sid: Sid, k: u32) -> u32 {
        let hash = Sha256::new_with_prefix(sid.0.to_be_bytes()).chain_update(k.to_be_bytes()).finalize();
        let [a, b, c, d, e, f, g, h, ..] = hash.0;
        self.number(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// The numbers that the identity tries after its home, in order. They include every other number.
    pub fn attempts(self, sid: Sid) -> impl Iterator<Item = u32> {
        let home = u64::from(self.home(sid) - FIRST);
        let onward = (1..u64::from(self.size)).map(move |step| self.number(home + step));
        (1..=ATTEMPTS).map(move |k| self.attempt(sid, k)).chain(onward)
    }

    fn number(self, hash: u64) -> u32 {
        // The remainder is smaller than a number of 32 bits.
        FIRST + (hash % u64::from(self.size)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn home_is_the_remainder_above_reserved_numbers() {
        let size = (1 << 24) - 256;
        for (sid, home) in [(0, 256), (1, 257), (size - 1, 0xff_ffff), (size, 256), (u64::MAX, 256 + u64::MAX % size)] {
            assert_eq!(u64::from(Space::STANDARD.home(Sid(sid))), home);
        }
    }

    #[test]
    fn attempts_reach_every_number_but_the_home() {
        let space = Space::small(200);
        let mut tried: Vec<u32> = space.attempts(Sid(7)).chain([space.home(Sid(7))]).collect();
        tried.sort();
        tried.dedup();
        assert_eq!(tried, (256..456).collect::<Vec<_>>());
    }
}
