//! The parts that both kinds of policy documents have in common.

use serde_json::Value;

use super::FieldError;
use super::json::{JsonObject, object, only};
use crate::{Diagnostic, Kind, ObjectName};

/// The problems of one object.
pub(super) struct ObjectProblems {
    kind: Kind,
    pub(super) name: ObjectName,
    pub(super) found: Vec<Diagnostic>,
}

impl ObjectProblems {
    pub(super) fn new(kind: Kind, name: ObjectName) -> ObjectProblems {
        ObjectProblems { kind, name, found: Vec::new() }
    }

    /// The value; `None` if it is invalid. The error is recorded with this consequence.
    pub(super) fn ok_or_record<T>(&mut self, result: Result<T, FieldError>, consequence: &str) -> Option<T> {
        result.map_err(|e| self.found.push(e.diagnose(self.kind, &self.name, consequence))).ok()
    }
}

pub(super) fn spec(value: &Value) -> Result<&JsonObject, FieldError> {
    match value.get("spec").filter(|s| !s.is_null()) {
        None => Err(FieldError::new("spec", "missing")),
        Some(spec) => object(spec, "spec"),
    }
}

/// Everything besides the rules must be valid in one of these versions of the API.
pub(super) fn envelope(value: &Value, spec: &JsonObject, versions: &[&str], fields: &[&str]) -> Result<(), FieldError> {
    match value.get("apiVersion").and_then(Value::as_str) {
        Some(version) if versions.contains(&version) => {}
        Some(other) => {
            let expected = versions.join(" or ");
            return Err(FieldError::new(
                "apiVersion",
                format!("unsupported apiVersion '{other}': expected {expected}"),
            ));
        }
        None => return Err(FieldError::new("apiVersion", "missing")),
    }
    only(object(value, "")?, &["apiVersion", "kind", "metadata", "spec", "status"], "")?;
    only(spec, fields, "spec")
}

/// A list of rules.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Side {
    Ingress,
    Egress,
}

impl Side {
    pub(super) fn field(self) -> &'static str {
        match self {
            Side::Ingress => "ingress",
            Side::Egress => "egress",
        }
    }

    pub(super) fn peers_field(self) -> &'static str {
        match self {
            Side::Ingress => "from",
            Side::Egress => "to",
        }
    }
}
