//! B-trees without room between their entries.

use std::collections::BTreeMap;

/// What comes in order, as lists do, leaves every node of a B-tree half empty; what a tree is made of at once fills them.
pub(crate) fn pack<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = std::mem::take(map).into_iter().collect();
}
