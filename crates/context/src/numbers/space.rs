//! The numbers that there are, and in which order an identity would have them.

use sha2::{Digest, Sha256};

use crate::sid::Sid;

/// A range of numbers, not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    size: u32,
}

/// Those below have meanings of their own ([`crate::record`]).
const FIRST: u32 = 256;

/// Numbers that an identity tries before it takes the next one that is free: with half of all numbers taken, a million
/// identities in a million need no more.
const ATTEMPTS: u32 = 64;

impl Space {
    /// Numbers of 24 bits.
    pub const STANDARD: Space = Space { size: (1 << 24) - FIRST };

    /// A space of so few numbers that identities meet in it. None is none: there is one at least.
    pub fn small(size: u32) -> Space {
        Space { size: size.clamp(1, Space::STANDARD.size) }
    }

    /// The number that the identity has if no smaller one has the same home.
    pub fn home(self, sid: Sid) -> u32 {
        self.number(sid.0)
    }

    /// The number that it tries after `k - 1` others beside its home.
    pub fn attempt(self, sid: Sid, k: u32) -> u32 {
        let hash = Sha256::new_with_prefix(sid.0.to_be_bytes()).chain_update(k.to_be_bytes()).finalize();
        let [a, b, c, d, e, f, g, h, ..] = hash.0;
        self.number(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// The numbers that it tries, in this order: in the end all there are.
    pub(super) fn attempts(self, sid: Sid) -> impl Iterator<Item = u32> {
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
    fn homes_are_what_the_remainder_says() {
        let size = (1 << 24) - 256;
        for (sid, home) in [(0, 256), (1, 257), (size - 1, 0xff_ffff), (size, 256), (u64::MAX, 256 + u64::MAX % size)] {
            assert_eq!(u64::from(Space::STANDARD.home(Sid(sid))), home);
        }
    }

    #[test]
    fn every_number_but_the_home_is_tried_in_the_end() {
        let space = Space::small(200);
        let mut tried: Vec<u32> = space.attempts(Sid(7)).chain([space.home(Sid(7))]).collect();
        tried.sort();
        tried.dedup();
        assert_eq!(tried, (256..456).collect::<Vec<_>>());
    }
}
