//! Label selectors.

use std::collections::BTreeMap;

use serde_json::Value;

use super::json::{NotUnderstood, fields, list, string};

pub(super) type Labels = BTreeMap<String, String>;

/// Whether the selector matches an object with these labels. "The result of matchLabels and matchExpressions are
/// ANDed. An empty label selector matches all objects."
///
/// The whole selector is parsed even if a part of it does not match: its validity must not depend on the labels. A
/// label without a value is invalid: the API has none.
pub(super) fn matches(selector: &Value, labels: &Labels) -> Result<bool, NotUnderstood> {
    let [match_labels, match_expressions] = fields(selector, ["matchLabels", "matchExpressions"])?;
    let mut matched = true;
    if let Some(match_labels) = match_labels {
        let wanted = match_labels.as_object().ok_or(NotUnderstood)?;
        for (key, value) in wanted {
            let value = valid_value(string(value)?)?;
            let key = valid_key(key)?;
            matched &= labels.get(key).is_some_and(|actual| actual == value);
        }
    }
    for expression in list(match_expressions)? {
        matched &= expression_matches(expression, labels)?;
    }
    Ok(matched)
}

/// "operator represents a key's relationship to a set of values. If the operator is In or NotIn, the values array
/// must be non-empty. If the operator is Exists or DoesNotExist, the values array must be empty." NotIn and
/// DoesNotExist match objects without the key.
fn expression_matches(expression: &Value, labels: &Labels) -> Result<bool, NotUnderstood> {
    let [key, operator, values] = fields(expression, ["key", "operator", "values"])?;
    let key = valid_key(string(key.ok_or(NotUnderstood)?)?)?;
    let operator = string(operator.ok_or(NotUnderstood)?)?;
    let values: Vec<&str> =
        list(values)?.iter().map(|value| valid_value(string(value)?)).collect::<Result<_, NotUnderstood>>()?;

    let actual = labels.get(key).map(String::as_str);
    match (operator, values.is_empty()) {
        ("In", false) => Ok(actual.is_some_and(|actual| values.contains(&actual))),
        ("NotIn", false) => Ok(!actual.is_some_and(|actual| values.contains(&actual))),
        ("Exists", true) => Ok(actual.is_some()),
        ("DoesNotExist", true) => Ok(actual.is_none()),
        _ => Err(NotUnderstood),
    }
}

/// "Valid label keys have two segments: an optional prefix and name, separated by a slash (/). The name segment is
/// required and must be 63 characters or less, beginning and ending with an alphanumeric character ([a-z0-9A-Z]) with
/// dashes (-), underscores (_), dots (.), and alphanumerics between. The prefix is optional. If specified, the prefix must
/// be a DNS subdomain: a series of DNS labels separated by dots (.), not longer than 253 characters in total."
fn valid_key(key: &str) -> Result<&str, NotUnderstood> {
    let segments: Vec<&str> = key.split('/').collect();
    let is_valid = match segments[..] {
        [name] => is_name(name),
        [prefix, name] => is_subdomain(prefix) && is_name(name),
        _ => false,
    };
    is_valid.then_some(key).ok_or(NotUnderstood)
}

/// "Valid label values must be 63 characters or less (can be empty), unless empty, must begin and end with an
/// alphanumeric character, could contain dashes (-), underscores (_), dots (.), and alphanumerics between."
fn valid_value(value: &str) -> Result<&str, NotUnderstood> {
    (value.is_empty() || is_name(value)).then_some(value).ok_or(NotUnderstood)
}

fn is_name(text: &str) -> bool {
    let outer = |c: char| c.is_ascii_alphanumeric();
    text.chars().count() <= 63
        && text.starts_with(outer)
        && text.ends_with(outer)
        && text.chars().all(|c| outer(c) || "-_.".contains(c))
}

fn is_subdomain(text: &str) -> bool {
    let outer = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_label =
        |label: &str| label.starts_with(outer) && label.ends_with(outer) && label.chars().all(|c| outer(c) || c == '-');
    text.len() <= 253 && text.split('.').all(is_label)
}
