//! How many elements sets have room for.
//!
//! The kernel keeps a set that has a size in a table that does not grow (`nft_hash_fast_ops` and `nft_hash_ops` instead of
//! `nft_rhash_ops`): a lookup takes some 10 ns less, and filling it less than half the time. A set of another size is
//! another set, so that sizes are few and far apart.

use std::sync::Arc;

use nft::{Family, Ruleset, Set};

use super::Direction;
use super::layout::{dispatch_map, guard_set};

/// The sizes that sets of a kind have: the least, and how many times as much the next one is.
struct Sizes {
    least: u32,
    step: u32,
}

/// Of the sets that every packet or every flow is looked up in, those of this node's pods. More pods of a node than the
/// least are not to be expected: for another size of a map the table is replaced. Nor is it larger than that, since the
/// kernel walks through the whole of a map whenever it validates rules that lead to it.
const OF_NODE: Sizes = Sizes { least: 1024, step: 16 };

/// Of the sets of peers, which grow with the cluster: one that outgrows its size gives way to a larger one, with the rules
/// that look at it.
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

/// The size of a set of this node's pods that has so many elements.
pub(super) fn room_for(elements: usize) -> u32 {
    OF_NODE.room_for(elements)
}

/// The size of a set of peers that has so many elements.
pub(super) fn room_for_peers(elements: usize) -> u32 {
    OF_PEERS.room_for(elements)
}

/// Gives the sets by which flows find their programs the room that they need.
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
