//! Rebuilds B-trees with full nodes: insertion in order, as during the initial sync, leaves every node half empty.

use std::collections::BTreeMap;

use imbl::OrdMap;

/// Rebuilds a B-tree. Inserting in order, as from lists, leaves every node half empty; a bulk build fills the nodes.
pub(crate) fn pack<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}

/// Packs a persistent map. A full node is split in half, so inserting in order leaves half-full nodes; inserting every
/// other entry first, and then those between, fills them.
pub fn pack_shared<K: Ord + Clone, V: Clone>(map: &mut OrdMap<K, V>) {
    let entries = std::mem::take(map).into_iter().enumerate();
    let (every_other, between): (Vec<_>, Vec<_>) = entries.partition(|(place, _)| place % 2 == 0);
    map.extend(every_other.into_iter().chain(between).map(|(_, entry)| entry));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_changes_no_entry() {
        for count in [0_u32, 1, 2, 15, 16, 17, 1_000] {
            let entries: Vec<(u32, u32)> = (0..count).map(|n| (n * 3, n)).collect();
            let (mut shared, mut own) = (
                entries.iter().copied().collect::<OrdMap<_, _>>(),
                entries.iter().copied().collect::<BTreeMap<_, _>>(),
            );
            pack_shared(&mut shared);
            pack(&mut own);
            assert!(shared.into_iter().eq(entries.iter().copied()));
            assert!(own.into_iter().eq(entries));
        }
    }
}
