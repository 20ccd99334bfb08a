//! Shared values as keys of maps, compared by where they are rather than by what they contain.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A map with such keys keeps the values alive, so that no other value gets the same address meanwhile.
#[derive(Debug)]
pub(crate) struct ByAddress<T>(pub(crate) Arc<T>);

impl<T> Clone for ByAddress<T> {
    fn clone(&self) -> ByAddress<T> {
        ByAddress(Arc::clone(&self.0))
    }
}

impl<T> PartialEq for ByAddress<T> {
    fn eq(&self, other: &ByAddress<T>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl<T> Eq for ByAddress<T> {}

impl<T> Hash for ByAddress<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}
