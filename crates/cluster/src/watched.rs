//! What is watched: the kinds of a consumer's objects, what the API server and manifests call them, and how one is read.

mod enforcement;

use policy::{Interner, Tracked};
use serde_json::Value;

pub use enforcement::{NODE_ANNOTATIONS, OWNER_REFERENCES, POD_SPEC};

/// Objects that the sources can report.
pub trait Watched: Tracked + Send + 'static {
    /// All of them, in the order in which a folder reports them. Each is displayed as manifests spell it.
    const KINDS: &'static [Self::Kind];

    /// The kind of Namespace objects, if they are among them: a folder implies those that nothing in it defines.
    const NAMESPACE: Option<Self::Kind>;

    fn resource(kind: Self::Kind) -> Resource;

    /// Lowers an object, whole or [lean](Resource::keep). Whatever is wrong with it but a missing name becomes part of
    /// the result.
    fn lower(interner: &mut Interner, kind: Self::Kind, object: &Value) -> Result<Self, Nameless>;
}

/// An object without `metadata.name`, of which nothing can be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nameless;

/// A kind as the API server serves it, and what it is to us.
#[derive(Debug, Clone, Copy)]
pub struct Resource {
    /// The word of its path and of RBAC rules.
    pub plural: &'static str,
    /// Empty for the core group.
    pub group: &'static str,
    /// The version that is asked for.
    pub version: &'static str,
    pub need: Need,
    pub manifests: Manifests,
    pub keep: Keep,
    /// Namespace and name of the only object that is asked for; `None` for all objects of the kind. Manifests may hold
    /// others, which lowering tells apart.
    pub only: Option<(&'static str, &'static str)>,
}

impl Resource {
    pub(crate) fn path(&self) -> String {
        match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }

    /// The path of its objects, or of those of the namespace of the only one.
    pub(crate) fn objects_path(&self) -> String {
        match self.only {
            Some((namespace, _)) => format!("{}/namespaces/{namespace}/{}", self.path(), self.plural),
            None => format!("{}/{}", self.path(), self.plural),
        }
    }

    /// Selects the only object. RBAC lets a request with this selector pass where a rule grants the object by its name.
    pub(crate) fn field_selector(&self) -> Option<String> {
        self.only.map(|(_, name)| format!("metadata.name={name}"))
    }
}

/// Whether anything can be said without a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// No picture is complete before its first list.
    Needed,
    /// The picture is complete without it. Clusters that do not serve it at all are ordinary.
    Optional,
}

/// Which manifests of the kind's name are of the kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manifests {
    /// Those of its API group; others are another API's resource that happens to have the name.
    OfGroup,
    /// All: one that is too new, or misspelt, must not be taken for none.
    OfAnyVersion,
}

/// What of a value lowering looks at. One that is not of the type spoken of is kept whole.
#[derive(Debug, Clone, Copy)]
pub enum Keep {
    Whole,
    /// Of an object these fields.
    Only(&'static [(&'static str, Keep)]),
    /// Of an object every field; of these what they say.
    All(&'static [(&'static str, Keep)]),
    /// Of a list every item, and of each this.
    Each(&'static Keep),
}
