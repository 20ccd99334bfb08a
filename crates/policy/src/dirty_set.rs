//! Keys whose derived values are stale: a change marks them, and the next reconcile takes all of them.

use std::borrow::Borrow;
use std::collections::{BTreeSet, btree_set};

/// Keys whose derived values are stale, in order and each once, however often a change marks it.
///
/// ```
/// let mut dirty = policy::DirtySet::default();
/// dirty.mark("web");
/// dirty.extend(["db", "web"]);
/// assert_eq!(dirty.take().into_iter().collect::<Vec<_>>(), ["db", "web"]);
/// assert!(dirty.is_empty());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirtySet<K> {
    keys: BTreeSet<K>,
}

impl<K> Default for DirtySet<K> {
    fn default() -> DirtySet<K> {
        DirtySet { keys: BTreeSet::new() }
    }
}

impl<K: Ord> DirtySet<K> {
    /// Marks the value of the key as stale.
    pub fn mark(&mut self, key: K) {
        self.keys.insert(key);
    }

    /// True if nothing is stale.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// True if the value of the key is stale.
    pub fn contains<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.keys.contains(key)
    }

    /// The stale keys, sorted.
    pub fn iter(&self) -> btree_set::Iter<'_, K> {
        self.keys.iter()
    }

    /// Marks every value as current, without recomputing it.
    pub fn clear(&mut self) {
        self.keys.clear();
    }

    /// Removes and returns the stale keys, whose values the caller recomputes.
    #[must_use = "the values of these keys are stale"]
    pub fn take(&mut self) -> DirtySet<K> {
        std::mem::take(self)
    }
}

impl<K: Ord> Extend<K> for DirtySet<K> {
    fn extend<I: IntoIterator<Item = K>>(&mut self, keys: I) {
        self.keys.extend(keys);
    }
}

impl<K: Ord> FromIterator<K> for DirtySet<K> {
    fn from_iter<I: IntoIterator<Item = K>>(keys: I) -> DirtySet<K> {
        DirtySet { keys: keys.into_iter().collect() }
    }
}

impl<K> IntoIterator for DirtySet<K> {
    type Item = K;
    type IntoIter = btree_set::IntoIter<K>;

    fn into_iter(self) -> Self::IntoIter {
        self.keys.into_iter()
    }
}

impl<'a, K> IntoIterator for &'a DirtySet<K> {
    type Item = &'a K;
    type IntoIter = btree_set::Iter<'a, K>;

    fn into_iter(self) -> Self::IntoIter {
        self.keys.iter()
    }
}
