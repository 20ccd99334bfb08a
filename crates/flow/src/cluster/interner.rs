//! Values that many records share, kept once.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

/// Equal values are one, as long as a record has it.
#[derive(Debug)]
pub(super) struct Interner<T> {
    /// How many records have the value.
    uses: HashMap<Arc<T>, usize>,
}

impl<T: Hash + Eq> Interner<T> {
    pub(super) fn new() -> Interner<T> {
        Interner { uses: HashMap::new() }
    }

    /// The shared value, and whether no record had it before.
    pub(super) fn retain(&mut self, value: Arc<T>) -> (Arc<T>, bool) {
        if let Some((known, _)) = self.uses.get_key_value(&value) {
            let known = Arc::clone(known);
            if let Some(uses) = self.uses.get_mut(&known) {
                *uses += 1;
            }
            return (known, false);
        }
        self.uses.insert(Arc::clone(&value), 1);
        (value, true)
    }

    /// Whether no record has the value any more.
    pub(super) fn release(&mut self, value: &Arc<T>) -> bool {
        let Some(uses) = self.uses.get_mut(value) else {
            return false;
        };
        *uses -= 1;
        let is_last = *uses == 0;
        if is_last {
            self.uses.remove(value);
        }
        is_last
    }

    /// Returns memory after many values have left.
    pub(super) fn shrink(&mut self) {
        if self.uses.capacity() > 1024 && self.uses.len() < self.uses.capacity() / 4 {
            self.uses.shrink_to(self.uses.len() * 2);
        }
    }
}
