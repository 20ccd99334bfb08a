//! Changes of the objects.

use policy::ObjectName;

use crate::object::{Kind, Object};

/// A change of one kind's objects, as a watch or a folder reports it.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The object is new or differs from what was known under its name.
    Set(Object),
    Remove(Kind, ObjectName),
    /// These are all the objects of the kind there are.
    Replace(Kind, Vec<Object>),
}
