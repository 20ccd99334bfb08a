//! Diagnostics: problems found in an object, for the status, the log and `ringfence check`.

use std::fmt;

use serde::Serialize;

use crate::{Kind, ObjectName};

/// Whether the part of the object is lowered as written, or to denial. Sorts warnings first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Works as written, but may not be intended.
    Warning,
    /// Invalid: what it would allow is denied. It never switches a policy to audit.
    Error,
}

/// A finding about one object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Diagnostic {
    /// Whether the finding changes what is allowed.
    pub severity: Severity,
    /// Kind of the object.
    pub kind: Kind,
    /// Name of the object.
    pub object: ObjectName,
    /// The field, such as `spec.ingress[0].ports[1].protocol`; empty for the whole object.
    pub field: String,
    /// The problem and its consequence.
    pub message: String,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// Omits the severity.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.object)?;
        if !self.field.is_empty() {
            write!(f, " {}", self.field)?;
        }
        write!(f, ": {}", self.message)
    }
}
