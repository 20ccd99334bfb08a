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
            let value = string(value)?;
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
    let key = string(key.ok_or(NotUnderstood)?)?;
    let operator = string(operator.ok_or(NotUnderstood)?)?;
    let values: Vec<&str> = list(values)?.iter().map(string).collect::<Result<_, _>>()?;

    let actual = labels.get(key).map(String::as_str);
    match (operator, values.is_empty()) {
        ("In", false) => Ok(actual.is_some_and(|actual| values.contains(&actual))),
        ("NotIn", false) => Ok(!actual.is_some_and(|actual| values.contains(&actual))),
        ("Exists", true) => Ok(actual.is_some()),
        ("DoesNotExist", true) => Ok(actual.is_none()),
        _ => Err(NotUnderstood),
    }
}
