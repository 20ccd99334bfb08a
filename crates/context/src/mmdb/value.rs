//! Values of records.

use std::borrow::Cow;

/// A value of the format, limited to the types that records use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'t> {
    Text(Cow<'t, str>),
    Bool(bool),
    Uint32(u32),
    Array(Vec<Value<'t>>),
    /// In encoding order.
    Map(Vec<(&'t str, Value<'t>)>),
}

impl<'t> Value<'t> {
    pub fn text(text: impl Into<Cow<'t, str>>) -> Value<'t> {
        Value::Text(text.into())
    }
}
