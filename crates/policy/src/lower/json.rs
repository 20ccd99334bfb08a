//! Strict parsing of JSON. Null counts as absent, as in the API server.

use serde_json::{Map, Value};

use super::FieldError;

pub(super) type JsonObject = Map<String, Value>;

/// The field, unless absent or null.
pub(super) fn field<'a>(object: &'a JsonObject, name: &str) -> Option<&'a Value> {
    object.get(name).filter(|v| !v.is_null())
}

pub(super) fn object<'a>(value: &'a Value, path: &str) -> Result<&'a JsonObject, FieldError> {
    value.as_object().ok_or_else(|| FieldError::new(path, format!("expected an object, found {}", sort(value))))
}

pub(super) fn list<'a>(value: &'a Value, path: &str) -> Result<&'a [Value], FieldError> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(FieldError::new(path, format!("expected a list, found {}", sort(value)))),
    }
}

pub(super) fn text<'a>(value: &'a Value, path: &str) -> Result<&'a str, FieldError> {
    value.as_str().ok_or_else(|| FieldError::new(path, format!("expected a string, found {}", sort(value))))
}

pub(super) fn boolean(value: &Value, path: &str) -> Result<bool, FieldError> {
    value.as_bool().ok_or_else(|| FieldError::new(path, format!("expected true or false, found {}", sort(value))))
}

/// A port number, 1 to 65535.
pub(super) fn port(value: &Value, path: &str) -> Result<u16, FieldError> {
    match value.as_u64().map(u16::try_from) {
        Some(Ok(number)) if number > 0 => Ok(number),
        _ => Err(FieldError::new(path, format!("invalid port {value}: expected 1 to 65535"))),
    }
}

/// Refuses fields that are not in the list.
pub(super) fn only(object: &JsonObject, known: &[&str], path: &str) -> Result<(), FieldError> {
    match object.iter().find(|(name, value)| !value.is_null() && !known.contains(&name.as_str())) {
        Some((name, _)) => Err(FieldError::new(join(path, name), "unknown field")),
        None => Ok(()),
    }
}

pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// `labels` of an object's metadata.
pub(super) fn labels<'a>(metadata: &'a Value, path: &str) -> Result<Vec<(&'a str, &'a str)>, FieldError> {
    match metadata.get("labels").filter(|v| !v.is_null()) {
        Some(value) => strings(value, &join(path, "labels")),
        None => Ok(vec![]),
    }
}

/// A map of strings.
pub(super) fn strings<'a>(value: &'a Value, path: &str) -> Result<Vec<(&'a str, &'a str)>, FieldError> {
    let pair = |(key, value): (&'a String, &'a Value)| match value {
        Value::String(text) => Ok((key.as_str(), text.as_str())),
        other => text(other, &join(path, key)).map(|text| (key.as_str(), text)),
    };
    object(value, path)?.iter().map(pair).collect()
}

fn sort(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
