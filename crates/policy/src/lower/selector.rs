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
        for (key, value) in strings(labels, &join(path, "matchLabels"))? {
            let operator = Operator::In([interner.text(value)].into_iter().collect());
            requirements.push(Requirement { key: interner.text(key), operator });
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
    let key = interner.text(needed("key")?);
    let mut values = Vec::new();
    let values_path = join(path, "values");
    if let Some(listed) = field(expression, "values") {
        for value in list(listed, &values_path)? {
            values.push(interner.text(text(value, &values_path)?));
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
