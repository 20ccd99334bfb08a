//! Interning of data that many objects share: texts, label sets, lists of named ports, selectors.
//!
//! Interning only saves memory: the result always equals the input.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use crate::{Labels, NamedPort, Owner, Requirement, Selector, labels};

/// Pools of shared values. Whenever a pool has grown by a quarter since its last sweep, it drops the values that have
/// no other owner.
#[derive(Debug, Clone, Default)]
pub struct Interner {
    texts: Pool<str>,
    labels: Pool<[(Arc<str>, Arc<str>)]>,
    ports: Pool<[NamedPort]>,
    owners: Pool<Owner>,
    selectors: Pool<[Requirement]>,
}

/// Minimum number of new entries before a sweep.
const LEAST_LOOKED_AT: usize = 256;

#[derive(Debug)]
struct Pool<T: ?Sized> {
    held: HashSet<Arc<T>>,
    /// Number of entries in use after the last sweep.
    in_use: usize,
}

impl Interner {
    /// Empty pools.
    pub fn new() -> Interner {
        Interner::default()
    }

    /// The text, shared with earlier ones that are equal.
    pub fn text(&mut self, text: &str) -> Arc<str> {
        if text.is_empty() { Arc::default() } else { self.texts.share(text) }
    }

    /// The last value of a duplicate key wins.
    pub fn labels<'a>(&mut self, pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Labels {
        let pairs = pairs.into_iter().map(|(key, value)| (self.text(key), self.text(value)));
        let pairs = labels::in_order(pairs.collect());
        self.of_pairs(&pairs)
    }

    /// The labels whose keys are wanted, sharing their texts.
    pub fn part_of(&mut self, labels: &Labels, is_wanted: impl Fn(&str) -> bool) -> Labels {
        let wanted = labels.iter().filter(|(key, _)| is_wanted(key));
        let pairs: Vec<_> = wanted.map(|(key, value)| (key.clone(), value.clone())).collect();
        self.of_pairs(&pairs)
    }

    /// `pairs` is sorted by key.
    fn of_pairs(&mut self, pairs: &[(Arc<str>, Arc<str>)]) -> Labels {
        if pairs.is_empty() { Labels::default() } else { Labels::of_pairs(self.labels.share(pairs)) }
    }

    pub(crate) fn ports(&mut self, ports: &[NamedPort]) -> Arc<[NamedPort]> {
        if ports.is_empty() { Arc::default() } else { self.ports.share(ports) }
    }

    /// Replicas share their owner.
    pub(crate) fn owner(&mut self, kind: &str, name: &str) -> Arc<Owner> {
        let owner = Owner { kind: self.text(kind), name: self.text(name) };
        self.owners.share_as(&owner, |owner| Arc::new(owner.clone()))
    }

    pub(crate) fn selector(&mut self, requirements: Vec<Requirement>) -> Selector {
        let selector = Selector::of(requirements);
        if selector.selects_everything() { selector } else { selector.shared(|held| self.selectors.share(held)) }
    }
}

impl<T: ?Sized + Hash + Eq> Pool<T> {
    fn share(&mut self, value: &T) -> Arc<T>
    where
        for<'a> Arc<T>: From<&'a T>,
    {
        self.share_as(value, |value| value.into())
    }

    fn share_as(&mut self, value: &T, allocate: impl FnOnce(&T) -> Arc<T>) -> Arc<T> {
        if let Some(held) = self.held.get(value) {
            return held.clone();
        }
        if self.held.len() >= self.in_use + (self.in_use / 4).max(LEAST_LOOKED_AT) {
            self.held.retain(|held| Arc::strong_count(held) > 1);
            self.in_use = self.held.len();
            self.held.shrink_to(self.in_use + self.in_use / 4);
        }
        let new = allocate(value);
        self.held.insert(new.clone());
        new
    }
}

impl<T: ?Sized> Clone for Pool<T> {
    fn clone(&self) -> Pool<T> {
        Pool { held: self.held.clone(), in_use: self.in_use }
    }
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Pool<T> {
        Pool { held: HashSet::new(), in_use: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_one_allocation() {
        let mut interner = Interner::new();
        assert!(Arc::ptr_eq(&interner.text("web"), &interner.text("web")));
        let a = interner.labels([("app", "web"), ("tier", "front")]);
        let b = interner.labels([("tier", "front"), ("app", "web")]);
        // The pairs are shared, not merely equal.
        assert!(a.keys().zip(b.keys()).all(|(a, b)| std::ptr::eq(a, b)) && a.len() == 2);
        assert_eq!(interner.labels([("app", "api"), ("app", "web"), ("tier", "front")]), a);
        let owner = interner.owner("ReplicaSet", "web");
        assert!(Arc::ptr_eq(&owner, &interner.owner("ReplicaSet", "web")));
        assert_ne!(owner, interner.owner("StatefulSet", "web"));
    }

    #[test]
    fn interner_evicts_unreferenced_texts() {
        let mut interner = Interner::new();
        let kept: Vec<Arc<str>> = (0..1000).map(|n| interner.text(&format!("kept-{n}"))).collect();
        let mut most = 0;
        for n in 0..100_000 {
            interner.text(&format!("passing-{n}"));
            most = most.max(interner.texts.held.len());
        }
        assert!(most <= 2 * kept.len() + 1, "{most}");
        for (n, text) in kept.iter().enumerate() {
            assert!(Arc::ptr_eq(text, &interner.text(&format!("kept-{n}"))));
        }
    }

    #[test]
    fn interner_evicts_texts_of_dropped_labels() {
        let mut interner = Interner::new();
        for n in 0..100_000 {
            interner.labels([("pod", format!("web-{n}").as_str())]);
        }
        let held = (interner.labels.held.len(), interner.texts.held.len());
        assert!(held.0 <= 2 * LEAST_LOOKED_AT && held.1 <= 8 * LEAST_LOOKED_AT, "{held:?}");
    }
}
