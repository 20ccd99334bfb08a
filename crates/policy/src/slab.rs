//! A slab: values with small numbers, which are reused after a removal.

use std::ops::{Deref, Index, IndexMut};

#[derive(Debug, Clone)]
pub(crate) struct Slots<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slots<T> {
    fn default() -> Slots<T> {
        Slots { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slots<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.slots[number as usize] = Some(value);
                number
            }
            None => {
                // Grow by an eighth instead of doubling: there are many values, and most are added at the beginning.
                if self.slots.len() == self.slots.capacity() {
                    self.slots.reserve_exact(self.slots.len() / 8 + 8);
                }
                self.slots.push(Some(value));
                // 2^32 values of some hundred bytes exceed the memory of any machine.
                (self.slots.len() - 1) as u32
            }
        }
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.slots.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(value)
    }

    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(number as usize)?.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(&self.slots).filter_map(|(number, slot)| Some((number, slot.as_ref()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// Sorted numbers, of which there is usually one.
#[derive(Debug, Clone)]
pub(crate) enum Numbers {
    One(u32),
    /// Two or more numbers, or none.
    Several(Box<[u32]>),
}

impl Default for Numbers {
    fn default() -> Numbers {
        Numbers::Several(Box::default())
    }
}

/// The numbers must be sorted.
impl From<Vec<u32>> for Numbers {
    fn from(numbers: Vec<u32>) -> Numbers {
        match numbers[..] {
            [number] => Numbers::One(number),
            _ => Numbers::Several(numbers.into()),
        }
    }
}

impl Deref for Numbers {
    type Target = [u32];
    fn deref(&self) -> &[u32] {
        match self {
            Numbers::One(number) => std::slice::from_ref(number),
            Numbers::Several(numbers) => numbers,
        }
    }
}

impl Numbers {
    pub(crate) fn insert(&mut self, number: u32) {
        if let Err(place) = self.binary_search(&number) {
            let mut all = self.to_vec();
            all.insert(place, number);
            *self = all.into();
        }
    }

    pub(crate) fn remove(&mut self, number: u32) {
        if let Ok(place) = self.binary_search(&number) {
            let mut all = self.to_vec();
            all.remove(place);
            *self = all.into();
        }
    }
}

/// # Panics
/// If the number is free.
impl<T> Index<u32> for Slots<T> {
    type Output = T;
    fn index(&self, number: u32) -> &T {
        self.get(number).expect("a number in use")
    }
}

/// # Panics
/// If the number is free.
impl<T> IndexMut<u32> for Slots<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.slots.get_mut(number as usize).and_then(Option::as_mut).expect("a number in use")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_a_set_in_order() {
        let mut numbers = Numbers::default();
        assert!(numbers.is_empty());
        for number in [5, 2, 9, 5, 2] {
            numbers.insert(number);
        }
        assert_eq!(*numbers, [2, 5, 9]);
        for number in [5, 7, 2] {
            numbers.remove(number);
        }
        assert!(matches!(numbers, Numbers::One(9)));
        numbers.remove(9);
        assert!(numbers.is_empty());
    }
}
