//! What a record can be made of.

use std::borrow::Cow;

/// A value of the format, as far as records need them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'t> {
    Text(Cow<'t, str>),
    Bool(bool),
    Uint32(u32),
    Array(Vec<Value<'t>>),
    /// In the order in which it is written.
    Map(Vec<(&'t str, Value<'t>)>),
}

impl<'t> Value<'t> {
    pub fn text(text: impl Into<Cow<'t, str>>) -> Value<'t> {
        Value::Text(text.into())
    }
}
