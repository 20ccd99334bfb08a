//! Tolerant JSON reader that reports invalid fields and continues. For objects that only name or classify: those of
//! enforcement are read by `policy`.

use std::fmt;
use std::net::IpAddr;

use policy::ObjectName;
use serde_json::Value;

use crate::Problem;

/// Reads one object. Null counts as absent, as it does for the API server.
pub struct ObjectReader<'a, K> {
    kind: K,
    name: &'a ObjectName,
    /// The consequence of an invalid field for the object.
    consequence: &'static str,
    problems: Vec<Problem>,
}

/// The value of a missing field.
static ABSENT: Value = Value::Null;

impl<'a, K: fmt::Display> ObjectReader<'a, K> {
    pub fn new(kind: K, name: &'a ObjectName, consequence: &'static str) -> ObjectReader<'a, K> {
        ObjectReader { kind, name, consequence, problems: Vec::new() }
    }

    /// The problems with invalid fields.
    pub fn problems(self) -> Box<[Problem]> {
        self.problems.into()
    }

    /// Adds a problem of the field at `path`.
    pub fn not_understood(&mut self, path: &str, reason: &str) {
        let origin = format!("{} {} {path}", self.kind, self.name);
        self.problems.push(Problem { origin, message: format!("{reason}; {}", self.consequence) });
    }

    /// The value if it is an object, otherwise null, which has no fields.
    pub fn object<'v>(&mut self, value: &'v Value, path: &str) -> &'v Value {
        match value {
            Value::Object(_) | Value::Null => value,
            other => {
                self.expected("an object", other, path);
                &ABSENT
            }
        }
    }

    /// The items of a list; empty if it is missing.
    pub fn items<'v>(&mut self, value: &'v Value, path: &str) -> &'v [Value] {
        match value {
            Value::Array(items) => items,
            Value::Null => &[],
            other => {
                self.expected("a list", other, path);
                &[]
            }
        }
    }

    /// The items, which must be objects, with their indexes in the list.
    pub fn objects<'v>(&mut self, value: &'v Value, path: &str) -> Vec<(usize, &'v Value)> {
        let items = self.items(value, path);
        let mut objects = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            match item {
                Value::Object(_) => objects.push((index, item)),
                other => self.expected("an object", other, &format!("{path}[{index}]")),
            }
        }
        objects
    }

    /// `None` if the field is missing.
    pub fn text<'v>(&mut self, value: &'v Value, path: &str) -> Option<&'v str> {
        match value {
            Value::String(text) => Some(text),
            Value::Null => None,
            other => {
                self.expected("a string", other, path);
                None
            }
        }
    }

    /// As [`ObjectReader::text`], for a required field.
    pub fn needed_text<'v>(&mut self, value: &'v Value, path: &str) -> Option<&'v str> {
        match value {
            Value::Null => self.not_understood(path, "missing"),
            Value::String(text) if text.is_empty() => self.not_understood(path, "empty"),
            Value::String(text) => return Some(text),
            other => self.expected("a string", other, path),
        }
        None
    }

    /// The IP addresses in a list of strings.
    pub fn addresses(&mut self, value: &Value, path: &str) -> Vec<IpAddr> {
        let items = self.items(value, path);
        let mut addresses = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            addresses.extend(self.address(item, &format!("{path}[{index}]")));
        }
        addresses
    }

    /// An IPv4-mapped IPv6 address is returned as IPv4.
    pub fn address(&mut self, value: &Value, path: &str) -> Option<IpAddr> {
        let text = self.needed_text(value, path)?;
        match text.parse::<IpAddr>() {
            Ok(address) => Some(address.to_canonical()),
            Err(_) => {
                self.not_understood(path, &format!("invalid IP address '{}'", text.escape_debug()));
                None
            }
        }
    }

    /// Adds a problem: the field has another JSON type.
    pub fn expected(&mut self, what: &str, found: &Value, path: &str) {
        let found = match found {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "an object",
        };
        self.not_understood(path, &format!("expected {what}, found {found}"));
    }
}
