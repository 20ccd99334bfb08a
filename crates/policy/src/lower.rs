//! Lowers objects from JSON to the model.
//!
//! Lowering never skips and never widens (docs/semantics.md, "When something cannot be understood"): an invalid part of
//! a policy allows nothing, and is reported. Unknown fields count as invalid in policies, since a newer field may
//! narrow the fields beside it; pods, namespaces and nodes have many fields that do not matter here.

mod cluster_policy;
mod document;
mod enforcement;
mod json;
mod node;
mod owner;
mod pod;
mod policy;
mod selector;

use std::sync::Arc;

use serde_json::Value;

pub use owner::{LONGEST_OWNER_BYTES, OwnerReading, OwnerReference, read_owner};

use crate::sanitize::plain;
use crate::{Diagnostic, Enforcement, Interner, Kind, Labels, Namespace, Object, ObjectName, Severity};

/// The object has no `metadata.name`, so it cannot be identified.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a {0} without metadata.name")]
pub struct Nameless(pub Kind);

/// Lowers one object. Any other problem becomes part of the result: denial, and a [`Diagnostic`].
///
/// A namespaced object without `metadata.namespace` is assumed to be in `default`.
pub fn lower(kind: Kind, object: &Value) -> Result<Object, Nameless> {
    lower_with(&mut Interner::new(), kind, object)
}

/// Like [`lower()`], for one of many objects: it shares memory with objects lowered before it.
pub fn lower_with(interner: &mut Interner, kind: Kind, object: &Value) -> Result<Object, Nameless> {
    let metadata = &object["metadata"];
    let name = match kind {
        // Many other objects contain the name of a namespace or node, too.
        Kind::Namespace | Kind::Node | Kind::ClusterNetworkPolicy => {
            name_of(metadata).map(|name| ObjectName { namespace: interner.text(""), name: interner.text(name) })
        }
        Kind::Pod | Kind::NetworkPolicy => lower_name(interner, metadata),
    };
    let name = name.ok_or(Nameless(kind))?;
    Ok(match kind {
        Kind::Namespace => Object::Namespace(Arc::new(lower_namespace(name, metadata, interner))),
        Kind::Pod => Object::Pod(Arc::new(pod::lower(name, object, interner))),
        Kind::NetworkPolicy => Object::Policy(Arc::new(policy::lower(name, object, interner))),
        Kind::Node => Object::Node(Arc::new(node::lower(name, object, interner))),
        Kind::ClusterNetworkPolicy => Object::ClusterPolicy(Arc::new(cluster_policy::lower(name, object, interner))),
    })
}

/// The name of an object of a namespaced kind, from its metadata; `None` if there is none. The namespace is `default`
/// if it is missing.
pub fn lower_name(interner: &mut Interner, metadata: &Value) -> Option<ObjectName> {
    let name = name_of(metadata)?.into();
    let namespace = match &metadata["namespace"] {
        Value::Null => interner.text(DEFAULT_NAMESPACE),
        Value::String(name) if name.is_empty() => interner.text(DEFAULT_NAMESPACE),
        Value::String(name) => interner.text(name),
        // YAML parses `namespace: 123` as a number; its author means the text.
        other => interner.text(&other.to_string()),
    };
    Some(ObjectName { namespace, name })
}

fn name_of(metadata: &Value) -> Option<&str> {
    metadata["name"].as_str().filter(|name| !name.is_empty())
}

/// The namespace that kubectl assumes if none is named.
const DEFAULT_NAMESPACE: &str = "default";

/// The label that the API server sets on every namespace.
pub(crate) const NAME_LABEL: &str = "kubernetes.io/metadata.name";

fn lower_namespace(name: ObjectName, metadata: &Value, interner: &mut Interner) -> Namespace {
    let mut problems = Vec::new();
    let mut take = |error: FieldError, consequence| problems.push(error.diagnose(Kind::Namespace, &name, consequence));
    let labels = json::labels(metadata, "metadata");
    let unreadable = labels.is_err();
    let labels = match labels {
        // The last value of a duplicate key wins.
        Ok(labels) => interner.labels(labels.into_iter().chain([(NAME_LABEL, &*name.name)])),
        Err(e) => {
            take(e, "no namespaceSelector matches the namespace");
            Labels::new()
        }
    };
    let enforcement = enforcement::lower(metadata).unwrap_or_else(|e| {
        take(e, "policies of the namespace without an annotation of their own are enforced");
        Some(Enforcement::Enforce)
    });
    let uid = metadata["uid"].as_str().unwrap_or("").into();
    Namespace { name, uid, labels, unreadable, enforcement, problems }
}

/// An invalid field of an object.
#[derive(Debug)]
struct FieldError {
    field: String,
    reason: String,
}

impl FieldError {
    fn new(field: impl Into<String>, reason: impl Into<String>) -> FieldError {
        FieldError { field: plain(&field.into()), reason: plain(&reason.into()) }
    }

    fn diagnose(self, kind: Kind, object: &ObjectName, consequence: &str) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            kind,
            object: object.clone(),
            field: self.field,
            message: format!("{}; {consequence}", self.reason),
        }
    }
}
