//! Named sets and verdict maps.

use crate::{Comment, Datum, Elements, Key, KeyType, Verdict};

/// The properties of an element apart from its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Element {
    /// The verdict of a map's element; `None` in a set.
    pub verdict: Option<Verdict>,
    /// Shown by `nft list`; a change of the comment replaces the element.
    pub comment: Option<Comment>,
}

/// A named set, or a verdict map when `verdicts` is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Types of the concatenated fields of the key: one to three, in a dynamic set up to four.
    pub types: Vec<KeyType>,
    /// Elements carry verdicts: it is a `map … : verdict`.
    pub verdicts: bool,
    /// Keys are ranges of a single field (`flags interval`), disjoint and not adjacent with equal verdicts.
    pub interval: bool,
    /// Rules add elements to it ([`crate::Action::Record`]) and they expire, so that the value itself has none.
    pub dynamic: Option<Dynamic>,
    /// Maximum number of elements: with a size the kernel chooses a table that is never resized, which is faster. A
    /// dynamic set must have one; further elements are not recorded.
    pub size: Option<u32>,
    /// A change of the comment replaces the whole table, as the kernel cannot change it.
    pub comment: Option<Comment>,
    /// In an interval set only ranges, else only exact keys; always empty in a dynamic set.
    pub elements: Elements,
}

/// Properties of a dynamic set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dynamic {
    /// Time after which an element expires that no packet has renewed.
    pub timeout_seconds: u32,
}

impl Set {
    /// An empty set of exact keys.
    pub fn of(types: &[KeyType]) -> Set {
        Set {
            types: types.to_vec(),
            verdicts: false,
            interval: false,
            dynamic: None,
            size: None,
            comment: None,
            elements: Elements::new(),
        }
    }

    /// The element that matches a packet's fields: an equal key, or the range that contains the field.
    pub fn find(&self, fields: &[Datum]) -> Option<&Element> {
        if !self.interval {
            return self.elements.get(&Key::exact(fields)?);
        }
        let &[datum] = fields else { return None };
        let (key, element) = self.elements.last_up_to(&Key::Range(datum, datum.largest_alike()))?;
        match key {
            Key::Range(first, last) if first <= datum && datum <= last => Some(element),
            _ => None,
        }
    }

    /// Whether the other set could hold this one's elements: the same key, flags, size and comment.
    pub(crate) fn same_header(&self, other: &Set) -> bool {
        self.size == other.size && self.same_but_size(other)
    }

    /// Whether the other set, of another size, can replace this one within the table, together with the rules that
    /// refer to it. A verdict map cannot, nor can a dynamic set.
    pub(crate) fn is_resized_in(&self, other: &Set) -> bool {
        self.size != other.size && self.same_but_size(other) && !self.verdicts && self.dynamic.is_none()
    }

    fn same_but_size(&self, other: &Set) -> bool {
        self.types == other.types
            && self.verdicts == other.verdicts
            && self.interval == other.interval
            && self.dynamic == other.dynamic
            && self.comment == other.comment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_set_finds_range_containing_port() {
        let mut set = Set { interval: true, ..Set::of(&[KeyType::InetService]) };
        for (first, last) in [(10, 20), (30, 30)] {
            set.elements.insert(Key::Range(Datum::Port(first), Datum::Port(last)), Element::default());
        }
        let hit = |p| set.find(&[Datum::Port(p)]).is_some();
        assert_eq!([9, 10, 15, 20, 21, 30, 31].map(hit), [false, true, true, true, false, true, false]);
    }
}
