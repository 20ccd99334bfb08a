//! `LabelSelector` becomes [`Selector`].

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;

use super::Misread;
use super::json::{field, join, list, object, only, strings, text};
use crate::{Operator, Requirement, Selector};

pub(super) fn lower(value: &Value, path: &str) -> Result<Selector, Misread> {
    let selector = object(value, path)?;
    only(selector, &["matchLabels", "matchExpressions"], path)?;
    let mut requirements = Vec::new();
    if let Some(labels) = field(selector, "matchLabels") {
        for (key, value) in strings(labels, &join(path, "matchLabels"))? {
            requirements.push(Requirement { key, operator: Operator::In([value].into()) });
        }
    }
    if let Some(expressions) = field(selector, "matchExpressions") {
        let path = join(path, "matchExpressions");
        for (i, expression) in list(expressions, &path)?.iter().enumerate() {
            requirements.push(lower_expression(expression, &format!("{path}[{i}]"))?);
        }
    }
    Ok(Selector::of(requirements))
}

fn lower_expression(value: &Value, path: &str) -> Result<Requirement, Misread> {
    let expression = object(value, path)?;
    only(expression, &["key", "operator", "values"], path)?;
    let needed = |name: &str| match field(expression, name) {
        Some(value) => text(value, &join(path, name)),
        None => Err(Misread::new(join(path, name), "missing")),
    };
    let key: Arc<str> = needed("key")?.into();
    let mut values: BTreeSet<Arc<str>> = BTreeSet::new();
    let values_path = join(path, "values");
    if let Some(listed) = field(expression, "values") {
        for value in list(listed, &values_path)? {
            values.insert(text(value, &values_path)?.into());
        }
    }
    let operator = match (needed("operator")?, values.is_empty()) {
        ("In", false) => Operator::In(values),
        ("NotIn", false) => Operator::NotIn(values),
        ("Exists", true) => Operator::Exists,
        ("DoesNotExist", true) => Operator::DoesNotExist,
        ("In" | "NotIn", true) => return Err(Misread::new(values_path, "this operator needs values")),
        ("Exists" | "DoesNotExist", false) => return Err(Misread::new(values_path, "this operator takes no values")),
        (other, _) => return Err(Misread::new(join(path, "operator"), format!("unknown operator '{other}'"))),
    };
    Ok(Requirement { key, operator })
}
