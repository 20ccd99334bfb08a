//! Chooses the sizes of sets.
//!
//! The kernel stores a set with a fixed size in a table that does not grow (`nft_hash_fast_ops` and `nft_hash_ops`
//! instead of `nft_rhash_ops`): a lookup takes some 10 ns less, and filling less than half the time. Changing the size
//! replaces the set, so the sizes are few and far apart.

use std::sync::Arc;

use nft::{Family, Ruleset, Set};

use super::Direction;
use super::layout::{dispatch_map, guard_set};

/// The possible sizes of a kind of set: the minimum, and the factor to the next one.
struct Sizes {
    least: u32,
    step: u32,
}

/// For sets of this node's pods, which are looked up for every packet or flow. A node is not expected to have more pods
/// than the minimum: another size of a map replaces the table. A larger minimum would be slower, since the kernel walks
/// the whole map whenever it validates rules that lead to it.
const OF_NODE: Sizes = Sizes { least: 1024, step: 16 };

/// For sets of peers, which grow with the cluster: a set that outgrows its size is replaced, with the rules that look
/// it up.
const OF_PEERS: Sizes = Sizes { least: 64, step: 4 };

impl Sizes {
    fn room_for(&self, elements: usize) -> u32 {
        let mut room = self.least;
        while elements > room as usize && room < u32::MAX {
            room = room.saturating_mul(self.step);
        }
        room
    }
}

/// The size for this number of elements in a set of this node's pods.
pub(super) fn room_for(elements: usize) -> u32 {
    OF_NODE.room_for(elements)
}

/// The size for this number of elements in a set of peers.
pub(super) fn room_for_peers(elements: usize) -> u32 {
    OF_PEERS.room_for(elements)
}

/// Sets the sizes of the sets that dispatch flows to programs.
pub(super) fn make_room(ruleset: &mut Ruleset) {
    for direction in Direction::BOTH {
        for family in Family::BOTH {
            for name in [dispatch_map(direction, family), guard_set(direction, family)] {
                let Some(set) = ruleset.sets.get(&name) else { continue };
                let size = Some(room_for(set.elements.len()));
                if set.size != size {
                    let sized = Set { size, ..Set::clone(set) };
                    ruleset.sets.insert(name, Arc::new(sized));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_room_grows_in_coarse_steps() {
        let sizes = [0, 1, 1024, 1025, 16384, 16385, usize::MAX].map(room_for);
        assert_eq!(sizes, [1024, 1024, 1024, 16384, 16384, 262_144, u32::MAX]);
        let sizes = [0, 64, 65, 256, 257, 4096, 100_000, usize::MAX].map(room_for_peers);
        assert_eq!(sizes, [64, 64, 256, 256, 1024, 4096, 262_144, u32::MAX]);
    }
}
