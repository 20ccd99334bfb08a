//! Objects as JSON become the model.
//!
//! Lowering never skips and never widens (docs/semantics.md, "When something cannot be understood"): a part of a
//! policy that is not understood allows nothing, and is reported. Unknown fields count as not understood in
//! policies, since a newer field may narrow what stands beside it; pods, namespaces and nodes have many fields that are
//! none of our business.

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

use crate::plain::plain;
use crate::{Diagnostic, Enforcement, Interner, Kind, Labels, Namespace, Object, ObjectName, Severity};

/// The object has no `metadata.name`, so nothing can be said of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a {0} without metadata.name")]
pub struct Nameless(pub Kind);

/// Lowers one object. Whatever else is wrong with it becomes part of the result: denial, and a [`Diagnostic`].
///
/// A namespaced object without `metadata.namespace` is taken to be in `default`.
pub fn lower(kind: Kind, object: &Value) -> Result<Object, Nameless> {
    lower_with(&mut Interner::new(), kind, object)
}

/// The same, for one of many objects: it shares what others before it said, too.
pub fn lower_with(interner: &mut Interner, kind: Kind, object: &Value) -> Result<Object, Nameless> {
    let metadata = &object["metadata"];
    let name = match kind {
        // The name of either is in many other objects, too.
        Kind::Namespace | Kind::Node => {
            name_of(metadata).map(|name| ObjectName { namespace: interner.text(""), name: interner.text(name) })
        }
        Kind::Pod | Kind::NetworkPolicy => lower_name(interner, metadata),
    };
    let name = name.ok_or(Nameless(kind))?;
    Ok(match kind {
        Kind::Namespace => Object::Namespace(Arc::new(lower_namespace(name, metadata, interner))),
        Kind::Pod => Object::Pod(Arc::new(pod::lower(name, object, interner))),
        Kind::NetworkPolicy => Object::Policy(Arc::new(policy::lower(name, object, interner))),
        Kind::Node => Object::Node(Arc::new(node::lower(name, object))),
    })
}

/// The name of an object of a namespaced kind, from its metadata; none if it has none. One that says no namespace is taken
/// to be in `default`.
pub fn lower_name(interner: &mut Interner, metadata: &Value) -> Option<ObjectName> {
    let name = name_of(metadata)?.into();
    let namespace = match &metadata["namespace"] {
        Value::Null => interner.text(DEFAULT_NAMESPACE),
        Value::String(name) if name.is_empty() => interner.text(DEFAULT_NAMESPACE),
        Value::String(name) => interner.text(name),
        // YAML makes a number of `namespace: 123`; that is still where its author wants it.
        other => interner.text(&other.to_string()),
    };
    Some(ObjectName { namespace, name })
}

fn name_of(metadata: &Value) -> Option<&str> {
    metadata["name"].as_str().filter(|name| !name.is_empty())
}

/// Where kubectl puts what names no namespace.
const DEFAULT_NAMESPACE: &str = "default";

/// The label that the API server keeps on every namespace.
pub(crate) const NAME_LABEL: &str = "kubernetes.io/metadata.name";

fn lower_namespace(name: ObjectName, metadata: &Value, interner: &mut Interner) -> Namespace {
    let mut problems = Vec::new();
    let mut take = |misread: Misread, consequence| problems.push(misread.diagnose(Kind::Namespace, &name, consequence));
    let labels = json::labels(metadata, "metadata");
    let unreadable = labels.is_err();
    let labels = match labels {
        // The last of a key counts.
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

/// A part of an object that was not understood.
#[derive(Debug)]
struct Misread {
    field: String,
    reason: String,
}

impl Misread {
    fn new(field: impl Into<String>, reason: impl Into<String>) -> Misread {
        Misread { field: plain(&field.into()), reason: plain(&reason.into()) }
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
