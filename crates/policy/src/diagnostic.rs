//! What was found wrong with an object, for the status, the log and `ringfence check`.

use std::fmt;

use serde::Serialize;

use crate::{Kind, ObjectName};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Works as written, and may not be what was meant.
    Warning,
    /// Was not understood: what it would allow is denied, and nothing is audited for its sake.
    Error,
}

/// A finding about one object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Diagnostic {
    pub severity: Severity,
    pub kind: Kind,
    pub object: ObjectName,
    /// The field, as in `spec.ingress[0].ports[1].protocol`; empty for the whole object.
    pub field: String,
    /// What is wrong and what follows from it.
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

/// What was found where, without the severity.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.object)?;
        if !self.field.is_empty() {
            write!(f, " {}", self.field)?;
        }
        write!(f, ": {}", self.message)
    }
}
