//! Labels of an object: texts by key, sorted by key.
//!
//! Pods of one workload have the same labels, and there are many pods: equal label sets may share one allocation.

use std::sync::Arc;

/// Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels {
    /// Sorted by key, without duplicates.
    pairs: Arc<[(Arc<str>, Arc<str>)]>,
}

impl Labels {
    /// No labels; does not allocate.
    pub fn new() -> Labels {
        Labels::default()
    }

    /// The value of the label.
    pub fn get(&self, key: &str) -> Option<&Arc<str>> {
        let at = self.pairs.binary_search_by(|(k, _)| (**k).cmp(key)).ok()?;
        Some(&self.pairs[at].1)
    }

    /// Whether the label exists, with any value.
    pub fn contains_key(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// Sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.pairs.iter().map(|(key, value)| (key, value))
    }

    /// Sorted.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        self.pairs.iter().map(|(key, _)| key)
    }

    /// Sorted by key.
    pub fn values(&self) -> impl Iterator<Item = &Arc<str>> {
        self.pairs.iter().map(|(_, value)| value)
    }

    /// Number of labels.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether the object has no labels.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// `pairs` must be sorted by key, without duplicates.
    pub(crate) fn of_pairs(pairs: Arc<[(Arc<str>, Arc<str>)]>) -> Labels {
        debug_assert!(pairs.is_sorted_by(|(a, _), (b, _)| a < b));
        Labels { pairs }
    }
}

/// The last value of a duplicate key wins.
impl FromIterator<(Arc<str>, Arc<str>)> for Labels {
    fn from_iter<I: IntoIterator<Item = (Arc<str>, Arc<str>)>>(pairs: I) -> Labels {
        let sorted = in_order(pairs.into_iter().collect());
        // All empty label sets share one allocation, which a conversion would not use.
        if sorted.is_empty() { Labels::default() } else { Labels { pairs: sorted.into() } }
    }
}

/// Sorts by key; the last value of a duplicate key wins.
pub(crate) fn in_order(mut pairs: Vec<(Arc<str>, Arc<str>)>) -> Vec<(Arc<str>, Arc<str>)> {
    // The sort is stable, so after reversing, the last value of a key is first and is kept.
    pairs.reverse();
    pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
    pairs.dedup_by(|(a, _), (b, _)| a == b);
    pairs
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn pairs(texts: &[(&str, &str)]) -> Vec<(Arc<str>, Arc<str>)> {
        texts.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn labels_behave_like_map_of_same_pairs() {
        for texts in
            [&[][..], &[("b", "1"), ("a", "2")], &[("a", "1"), ("b", "2"), ("a", "3"), ("aa", "4"), ("a", "5")]]
        {
            let labels: Labels = pairs(texts).into_iter().collect();
            let map: BTreeMap<Arc<str>, Arc<str>> = pairs(texts).into_iter().collect();
            assert!(labels.iter().eq(&map), "{labels:?}");
            assert!(labels.keys().eq(map.keys()) && labels.values().eq(map.values()));
            assert_eq!((labels.len(), labels.is_empty()), (map.len(), map.is_empty()));
            for key in ["a", "aa", "b", "c", ""] {
                assert_eq!(labels.get(key), map.get(key));
                assert_eq!(labels.contains_key(key), map.contains_key(key));
            }
        }
    }

    #[test]
    fn empty_labels_share_one_allocation() {
        let none: Labels = pairs(&[]).into_iter().collect();
        assert!(Arc::ptr_eq(&none.pairs, &Labels::new().pairs));
    }
}
