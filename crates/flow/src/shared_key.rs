//! Shared values as map keys, compared by address instead of content.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// The map keeps the value alive, so that its address is not reused.
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
