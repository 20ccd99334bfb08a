//! Interner of values that many records share: each is stored once and referenced by a number.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use slab::Slab;

/// Reference-counted values. The number of a value is valid while the value is referenced, and is reused afterwards.
#[derive(Debug)]
pub(super) struct Interner<T> {
    numbers: HashMap<Arc<T>, u32>,
    values: Slab<CountedValue<T>>,
}

#[derive(Debug)]
struct CountedValue<T> {
    value: Arc<T>,
    references: usize,
}

impl<T: Hash + Eq> Interner<T> {
    pub(super) fn new() -> Interner<T> {
        Interner { numbers: HashMap::new(), values: Slab::new() }
    }

    /// Adds a reference to a value. Returns its number, and the value if this is its only reference.
    pub(super) fn retain(&mut self, value: Arc<T>) -> (u32, Option<&T>) {
        match self.numbers.entry(value) {
            Entry::Occupied(known) => {
                let number = *known.get();
                self.values[number as usize].references += 1;
                (number, None)
            }
            Entry::Vacant(vacant) => {
                let value = Arc::clone(vacant.key());
                let index = self.values.insert(CountedValue { value, references: 1 });
                // Each value occupies more than 100 bytes.
                let number = u32::try_from(index).expect("fewer than 2^32 values fit into memory");
                vacant.insert(number);
                (number, Some(&self.values[index].value))
            }
        }
    }

    pub(super) fn get(&self, number: u32) -> &Arc<T> {
        &self.values[number as usize].value
    }

    /// Removes a reference. Returns the value if this was its last one.
    pub(super) fn release(&mut self, number: u32) -> Option<Arc<T>> {
        let referenced = &mut self.values[number as usize];
        referenced.references -= 1;
        if referenced.references > 0 {
            return None;
        }
        let CountedValue { value, references: _ } = self.values.remove(number as usize);
        self.numbers.remove(&value);
        Some(value)
    }

    /// Shrinks the capacity after many values were removed.
    pub(super) fn shrink(&mut self) {
        if self.numbers.capacity() > 1024 && self.numbers.len() < self.numbers.capacity() / 4 {
            self.numbers.shrink_to(self.numbers.len() * 2);
            self.values.shrink_to_fit();
        }
    }
}
