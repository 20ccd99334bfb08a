//! The elements of a set, sorted by key, as a persistent value with structural sharing.
//!
//! A copy is free, changing one element costs a path in a tree, and comparing two copies skips their shared parts. So
//! changing a set of a hundred thousand addresses costs only the delta. Sets of plain addresses, the ones that grow
//! with the cluster, store the addresses alone.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Bound;

use imbl::{OrdMap, OrdSet, ordmap, ordset};

use crate::{Datum, Element, Key};

/// The verdict and comment of every element of a set of plain addresses.
static PLAIN: Element = Element { verdict: None, comment: None };

/// Elements by their keys.
#[derive(Clone)]
pub struct Elements(ElementStorage);

#[derive(Clone)]
enum ElementStorage {
    V4(OrdSet<Ipv4Addr>),
    V6(OrdSet<Ipv6Addr>),
    Any(OrdMap<Key, Element>),
}

/// A difference between two values in one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ElementChange<'a> {
    /// The key exists only in the other value.
    Added(Key, &'a Element),
    /// The key exists only in the first value.
    Removed(Key, &'a Element),
    /// The key exists in both with another verdict or comment.
    Replaced {
        /// For a range, both ends are unchanged: a moved end is a removal and an addition.
        key: Key,
        /// Verdict and comment in the first value.
        old: &'a Element,
        /// Verdict and comment in the other value.
        new: &'a Element,
    },
}

impl Elements {
    /// No elements. The first insertion chooses the representation.
    pub fn new() -> Elements {
        Elements(ElementStorage::Any(OrdMap::new()))
    }

    /// Number of keys: a range counts once.
    pub fn len(&self) -> usize {
        match &self.0 {
            ElementStorage::V4(addresses) => addresses.len(),
            ElementStorage::V6(addresses) => addresses.len(),
            ElementStorage::Any(elements) => elements.len(),
        }
    }

    /// Whether there is no key at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element of exactly this key. [`Set::find`](crate::Set::find) finds the range that contains a value.
    pub fn get(&self, key: &Key) -> Option<&Element> {
        match (&self.0, key) {
            (ElementStorage::V4(addresses), Key::One(Datum::V4(address))) => {
                addresses.contains(address).then_some(&PLAIN)
            }
            (ElementStorage::V6(addresses), Key::One(Datum::V6(address))) => {
                addresses.contains(address).then_some(&PLAIN)
            }
            (ElementStorage::V4(_) | ElementStorage::V6(_), _) => None,
            (ElementStorage::Any(elements), key) => elements.get(key),
        }
    }

    /// Whether there is an element of exactly this key.
    pub fn contains(&self, key: &Key) -> bool {
        self.get(key).is_some()
    }

    /// The element with the greatest key up to this one. Linear for plain addresses, which are never queried this way.
    pub fn last_up_to(&self, key: &Key) -> Option<(Key, &Element)> {
        match &self.0 {
            ElementStorage::V4(_) | ElementStorage::V6(_) => self.iter().take_while(|(k, _)| k <= key).last(),
            ElementStorage::Any(elements) => elements.get_prev(key).map(|(key, element)| (*key, element)),
        }
    }

    /// The elements whose keys are this one or greater. Linear for plain addresses, which are never queried this way.
    pub fn starting_at(&self, key: Key) -> impl Iterator<Item = (Key, &Element)> {
        let (plain, any) = match &self.0 {
            ElementStorage::V4(_) | ElementStorage::V6(_) => {
                (Some(self.iter().skip_while(move |(k, _)| *k < key)), None)
            }
            ElementStorage::Any(elements) => (None, Some(elements.range(key..).map(|(key, element)| (*key, element)))),
        };
        plain.into_iter().flatten().chain(any.into_iter().flatten())
    }

    /// The elements with the next smaller and the next greater key. Linear for plain addresses, which are never queried
    /// this way.
    pub(crate) fn neighbours(&self, key: &Key) -> [Option<(Key, &Element)>; 2] {
        match &self.0 {
            ElementStorage::V4(_) | ElementStorage::V6(_) => {
                [self.iter().take_while(|(other, _)| other < key).last(), self.iter().find(|(other, _)| other > key)]
            }
            ElementStorage::Any(elements) => {
                let after = (Bound::Excluded(*key), Bound::Unbounded);
                [elements.range(..*key).next_back(), elements.range(after).next()]
                    .map(|found| found.map(|(key, element)| (*key, element)))
            }
        }
    }

    /// Inserts the element, or replaces the one with the same key.
    pub fn insert(&mut self, key: Key, element: Element) {
        let plain = element == PLAIN;
        match (&mut self.0, key) {
            (ElementStorage::V4(addresses), Key::One(Datum::V4(address))) if plain => {
                addresses.insert(address);
            }
            (ElementStorage::V6(addresses), Key::One(Datum::V6(address))) if plain => {
                addresses.insert(address);
            }
            (ElementStorage::Any(elements), Key::One(Datum::V4(address))) if plain && elements.is_empty() => {
                self.0 = ElementStorage::V4(OrdSet::unit(address));
            }
            (ElementStorage::Any(elements), Key::One(Datum::V6(address))) if plain && elements.is_empty() => {
                self.0 = ElementStorage::V6(OrdSet::unit(address));
            }
            (ElementStorage::Any(elements), key) => {
                elements.insert(key, element);
            }
            (ElementStorage::V4(_) | ElementStorage::V6(_), key) => {
                let mut elements: OrdMap<Key, Element> = self.iter().map(|(key, e)| (key, e.clone())).collect();
                elements.insert(key, element);
                self.0 = ElementStorage::Any(elements);
            }
        }
    }

    /// Returns whether the element existed.
    pub fn remove(&mut self, key: &Key) -> bool {
        match (&mut self.0, key) {
            (ElementStorage::V4(addresses), Key::One(Datum::V4(address))) => addresses.remove(address).is_some(),
            (ElementStorage::V6(addresses), Key::One(Datum::V6(address))) => addresses.remove(address).is_some(),
            (ElementStorage::V4(_) | ElementStorage::V6(_), _) => false,
            (ElementStorage::Any(elements), key) => elements.remove(key).is_some(),
        }
    }

    /// All elements in the order of their keys.
    pub fn iter(&self) -> Iter<'_> {
        Iter(match &self.0 {
            ElementStorage::V4(addresses) => Addresses::V4(addresses.iter()),
            ElementStorage::V6(addresses) => Addresses::V6(addresses.iter()),
            ElementStorage::Any(elements) => Addresses::Any(elements.iter()),
        })
    }

    /// The keys in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = Key> {
        self.iter().map(|(key, _)| key)
    }

    /// Verdicts and comments in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &Element> {
        self.iter().map(|(_, element)| element)
    }

    /// The changes from this value to the other one. Costs only the delta if one was made from a copy of the other.
    pub fn changes_to<'a>(&'a self, other: &'a Elements) -> Vec<ElementChange<'a>> {
        let v4 = |address: &Ipv4Addr| Key::One(Datum::V4(*address));
        let v6 = |address: &Ipv6Addr| Key::One(Datum::V6(*address));
        match (&self.0, &other.0) {
            (ElementStorage::V4(old), ElementStorage::V4(new)) => {
                old.diff(new).map(|item| of_address(&item, v4)).collect()
            }
            (ElementStorage::V6(old), ElementStorage::V6(new)) => {
                old.diff(new).map(|item| of_address(&item, v6)).collect()
            }
            (ElementStorage::Any(old), ElementStorage::Any(new)) => old.diff(new).map(of_entry).collect(),
            (ElementStorage::V4(_) | ElementStorage::V6(_) | ElementStorage::Any(_), _) => self.compared_with(other),
        }
    }

    /// Comparison of values with different representations, which share nothing.
    fn compared_with<'a>(&'a self, other: &'a Elements) -> Vec<ElementChange<'a>> {
        let gone = self.iter().filter(|(key, _)| !other.contains(key));
        let come = other.iter().filter_map(|(key, new)| match self.get(&key) {
            None => Some(ElementChange::Added(key, new)),
            Some(old) if old != new => Some(ElementChange::Replaced { key, old, new }),
            Some(_) => None,
        });
        gone.map(|(key, element)| ElementChange::Removed(key, element)).chain(come).collect()
    }
}

fn of_address<'a, A>(item: &ordset::DiffItem<'_, '_, A>, key: impl Fn(&A) -> Key) -> ElementChange<'a> {
    match item {
        ordset::DiffItem::Add(address) => ElementChange::Added(key(address), &PLAIN),
        ordset::DiffItem::Remove(address) => ElementChange::Removed(key(address), &PLAIN),
    }
}

fn of_entry<'a>(item: ordmap::DiffItem<'a, 'a, Key, Element>) -> ElementChange<'a> {
    match item {
        ordmap::DiffItem::Add(key, element) => ElementChange::Added(*key, element),
        ordmap::DiffItem::Remove(key, element) => ElementChange::Removed(*key, element),
        ordmap::DiffItem::Update { old: (key, old), new: (_, new) } => ElementChange::Replaced { key: *key, old, new },
    }
}

/// Elements in the order of their keys.
pub struct Iter<'a>(Addresses<'a>);

enum Addresses<'a> {
    V4(ordset::Iter<'a, Ipv4Addr, imbl::shared_ptr::DefaultSharedPtr>),
    V6(ordset::Iter<'a, Ipv6Addr, imbl::shared_ptr::DefaultSharedPtr>),
    Any(ordmap::Iter<'a, Key, Element, imbl::shared_ptr::DefaultSharedPtr>),
}

impl<'a> Iterator for Iter<'a> {
    type Item = (Key, &'a Element);

    fn next(&mut self) -> Option<(Key, &'a Element)> {
        match &mut self.0 {
            Addresses::V4(addresses) => addresses.next().map(|address| (Key::One(Datum::V4(*address)), &PLAIN)),
            Addresses::V6(addresses) => addresses.next().map(|address| (Key::One(Datum::V6(*address)), &PLAIN)),
            Addresses::Any(elements) => elements.next().map(|(key, element)| (*key, element)),
        }
    }
}

impl<'a> IntoIterator for &'a Elements {
    type Item = (Key, &'a Element);
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl Extend<(Key, Element)> for Elements {
    fn extend<I: IntoIterator<Item = (Key, Element)>>(&mut self, elements: I) {
        elements.into_iter().for_each(|(key, element)| self.insert(key, element));
    }
}

impl FromIterator<(Key, Element)> for Elements {
    fn from_iter<I: IntoIterator<Item = (Key, Element)>>(elements: I) -> Elements {
        let mut all = Elements::new();
        all.extend(elements);
        all
    }
}

impl Default for Elements {
    fn default() -> Elements {
        Elements::new()
    }
}

impl PartialEq for Elements {
    fn eq(&self, other: &Elements) -> bool {
        match (&self.0, &other.0) {
            (ElementStorage::V4(a), ElementStorage::V4(b)) => a == b,
            (ElementStorage::V6(a), ElementStorage::V6(b)) => a == b,
            (ElementStorage::Any(a), ElementStorage::Any(b)) => a == b,
            (ElementStorage::V4(_) | ElementStorage::V6(_) | ElementStorage::Any(_), _) => {
                self.len() == other.len() && self.iter().eq(other.iter())
            }
        }
    }
}

impl Eq for Elements {}

impl fmt::Debug for Elements {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Comment;

    fn v4(n: u32) -> Key {
        Key::One(Datum::V4(n.into()))
    }

    fn addresses(numbers: impl IntoIterator<Item = u32>) -> Elements {
        numbers.into_iter().map(|n| (v4(n), Element::default())).collect()
    }

    fn commented() -> Element {
        Element { comment: Some(Comment::new("x")), ..Element::default() }
    }

    #[test]
    fn elements_iterate_in_key_order_in_either_representation() {
        let plain = addresses([3, 1, 2]);
        let mut mixed = plain.clone();
        mixed.insert(v4(2), commented());
        for elements in [&plain, &mixed] {
            assert_eq!(elements.keys().collect::<Vec<_>>(), [v4(1), v4(2), v4(3)]);
            assert_eq!(elements.starting_at(v4(2)).map(|(key, _)| key).collect::<Vec<_>>(), [v4(2), v4(3)]);
            assert_eq!(elements.last_up_to(&v4(9)).map(|(key, _)| key), Some(v4(3)));
            assert_eq!(elements.last_up_to(&v4(0)), None);
        }
        assert_eq!(mixed.get(&v4(2)), Some(&commented()));
    }

    #[test]
    fn elements_are_equal_across_representations() {
        let plain = addresses([1, 2]);
        let mut once_commented = plain.clone();
        once_commented.insert(v4(2), commented());
        assert_ne!(plain, once_commented);
        once_commented.insert(v4(2), Element::default());
        assert_eq!(plain, once_commented);
        assert_eq!(plain.changes_to(&once_commented), []);
    }

    #[test]
    fn changes_lead_from_one_value_to_the_other() {
        let mut other = addresses(0..1000);
        let first = other.clone();
        other.remove(&v4(17));
        other.insert(v4(5000), Element::default());
        let expected = [ElementChange::Removed(v4(17), &PLAIN), ElementChange::Added(v4(5000), &PLAIN)];
        assert_eq!(first.changes_to(&other), expected);
        other.insert(v4(3), commented());
        assert_eq!(first.changes_to(&other).len(), 3);
        let element = commented();
        assert!(first.changes_to(&other).contains(&ElementChange::Replaced { key: v4(3), old: &PLAIN, new: &element }));
    }
}
