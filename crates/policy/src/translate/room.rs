//! How many elements the sets have room for that every packet or every flow is looked up in: those of this node's pods.
//!
//! The kernel keeps a set that has a size in a table that does not grow, where a lookup takes some 10 ns less
//! (`nft_hash_fast_ops` and `nft_hash_ops` instead of `nft_rhash_ops`).

use std::sync::Arc;

use nft::{Family, Ruleset, Set};

use super::Direction;
use super::layout::{dispatch_map, guard_set};

/// More pods of a node than this are not to be expected.
const LEAST: u32 = 4096;
const STEP: u32 = 16;

/// The size of a set that has so many elements. There are few sizes, far apart: a set of another size is another set,
/// for which the table is replaced.
pub(super) fn room_for(elements: usize) -> u32 {
    let mut room = LEAST;
    while elements > room as usize && room < u32::MAX {
        room = room.saturating_mul(STEP);
    }
    room
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
    fn there_is_room_for_what_is_there_and_the_next_size_is_far() {
        let sizes = [0, 1, 4096, 4097, 65536, 65537, usize::MAX].map(room_for);
        assert_eq!(sizes, [4096, 4096, 4096, 65536, 65536, 1_048_576, u32::MAX]);
    }
}
