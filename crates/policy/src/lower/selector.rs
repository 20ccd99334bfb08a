//! Lowers `LabelSelector` to [`Selector`].

use serde_json::Value;

use super::FieldError;
use super::json::{field, join, list, object, only, strings, text};
use crate::{Interner, Operator, Requirement, Selector};

pub(super) fn lower(value: &Value, path: &str, interner: &mut Interner) -> Result<Selector, FieldError> {
    let selector = object(value, path)?;
    only(selector, &["matchLabels", "matchExpressions"], path)?;
    let mut requirements = Vec::new();
    if let Some(labels) = field(selector, "matchLabels") {
        let path = join(path, "matchLabels");
        for (key, value) in strings(labels, &path)? {
            let path = join(&path, key);
            let operator = Operator::In([interner.text(label_value(value, &path)?)].into_iter().collect());
            requirements.push(Requirement { key: interner.text(label_key(key, &path)?), operator });
        }
    }
    if let Some(expressions) = field(selector, "matchExpressions") {
        let path = join(path, "matchExpressions");
        for (i, expression) in list(expressions, &path)?.iter().enumerate() {
            requirements.push(lower_expression(expression, &format!("{path}[{i}]"), interner)?);
        }
    }
    Ok(interner.selector(requirements))
}

fn lower_expression(value: &Value, path: &str, interner: &mut Interner) -> Result<Requirement, FieldError> {
    let expression = object(value, path)?;
    only(expression, &["key", "operator", "values"], path)?;
    let needed = |name: &str| match field(expression, name) {
        Some(value) => text(value, &join(path, name)),
        None => Err(FieldError::new(join(path, name), "missing")),
    };
    let key = interner.text(label_key(needed("key")?, &join(path, "key"))?);
    let mut values = Vec::new();
    let values_path = join(path, "values");
    if let Some(listed) = field(expression, "values") {
        for value in list(listed, &values_path)? {
            values.push(interner.text(label_value(text(value, &values_path)?, &values_path)?));
        }
    }
    let operator = match (needed("operator")?, values.is_empty()) {
        ("In", false) => Operator::In(values.into_iter().collect()),
        ("NotIn", false) => Operator::NotIn(values.into_iter().collect()),
        ("Exists", true) => Operator::Exists,
        ("DoesNotExist", true) => Operator::DoesNotExist,
        ("In" | "NotIn", true) => return Err(FieldError::new(values_path, "this operator needs values")),
        ("Exists" | "DoesNotExist", false) => {
            return Err(FieldError::new(values_path, "this operator takes no values"));
        }
        (other, _) => return Err(FieldError::new(join(path, "operator"), format!("unknown operator '{other}'"))),
    };
    Ok(Requirement { key, operator })
}

/// Bound on the name of a label key, and on a label value (`validation.IsQualifiedName`, `validation.IsValidLabelValue`
/// of apimachinery).
const NAME_BYTES: usize = 63;

/// Bound on the prefix of a label key, which is a DNS subdomain (RFC 1123).
const PREFIX_BYTES: usize = 253;

/// No object has a label with an invalid key, so a selector with one would match everything by `NotIn` and
/// `DoesNotExist`. The API server refuses such selectors; manifests in a folder are not validated by one.
fn label_key<'a>(key: &'a str, path: &str) -> Result<&'a str, FieldError> {
    let is_valid = match key.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name(name),
        None => is_name(key),
    };
    if is_valid { Ok(key) } else { Err(FieldError::new(path, format!("invalid label key '{key}'"))) }
}

fn label_value<'a>(value: &'a str, path: &str) -> Result<&'a str, FieldError> {
    if value.is_empty() || is_name(value) {
        Ok(value)
    } else {
        Err(FieldError::new(path, format!("invalid label value '{value}'")))
    }
}

fn is_name(text: &str) -> bool {
    let is_inside = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_bounded = text.len() <= NAME_BYTES && text.bytes().all(is_inside);
    is_bounded && begins_and_ends(text, |byte| byte.is_ascii_alphanumeric())
}

fn is_subdomain(text: &str) -> bool {
    let is_end = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_label = |label: &str| begins_and_ends(label, is_end) && label.bytes().all(|b| is_end(b) || b == b'-');
    text.len() <= PREFIX_BYTES && text.split('.').all(is_label)
}

fn begins_and_ends(text: &str, with: impl Fn(u8) -> bool) -> bool {
    let ends = text.bytes().next().zip(text.bytes().next_back());
    ends.is_some_and(|(first, last)| with(first) && with(last))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn problem(selector: &Value) -> Option<String> {
        lower(selector, "podSelector", &mut Interner::new()).err().map(|error| error.reason)
    }

    #[test]
    fn invalid_label_key_makes_selector_unreadable() {
        let long = "k".repeat(64);
        for key in ["", " ", "/", "a/", "/a", "a b", "-a", "a-", "Prefix/a", "a..b/c", "a/b/c", "ä", &long] {
            let requirements = ["DoesNotExist", "Exists"].map(|operator| json!({"key": key, "operator": operator}));
            for requirement in requirements {
                let problem = problem(&json!({"matchExpressions": [requirement]})).unwrap_or_else(|| panic!("{key}"));
                assert!(problem.contains("invalid label key"), "{problem}");
            }
            assert!(problem(&json!({"matchLabels": {key: "a"}})).is_some(), "{key}");
        }
        for key in ["a", "A_b.c-D", "app.kubernetes.io/name", &"k".repeat(63), "1.2/3"] {
            assert_eq!(problem(&json!({"matchLabels": {key: "a"}})), None, "{key}");
        }
    }

    #[test]
    fn invalid_label_value_makes_selector_unreadable() {
        for value in [" ", "a b", "-a", "a/b", "ä", &"v".repeat(64)] {
            for operator in ["In", "NotIn"] {
                let requirement = json!({"key": "app", "operator": operator, "values": ["web", value]});
                let problem = problem(&json!({"matchExpressions": [requirement]})).unwrap_or_else(|| panic!("{value}"));
                assert!(problem.contains("invalid label value"), "{problem}");
            }
            assert!(problem(&json!({"matchLabels": {"app": value}})).is_some(), "{value}");
        }
        assert_eq!(problem(&json!({"matchLabels": {"a": "", "b": "A_b.c-1"}})), None);
    }
}
