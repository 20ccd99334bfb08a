//! Objects that can be watched: their kinds, how the API server and manifests name them, and how they are lowered.

mod enforcement;

use policy::{Interner, SourceObject};
use serde_json::Value;

pub use enforcement::{NODE_ANNOTATIONS, OWNER_REFERENCES, POD_SPEC};

/// Objects that the sources can report.
pub trait Watchable: SourceObject + Send + 'static {
    /// All kinds, in the order in which a folder reports them. Each is displayed as in manifests.
    const KINDS: &'static [Self::Kind];

    /// The kind of Namespace objects, if it is watched: a folder implies namespaces that it does not define.
    const NAMESPACE: Option<Self::Kind>;

    fn resource(kind: Self::Kind) -> Resource;

    /// Lowers an object, whole or [lean](Resource::keep). Every error except a missing name becomes part of the result.
    fn lower(interner: &mut Interner, kind: Self::Kind, object: &Value) -> Result<Self, MissingName>;
}

/// An object without `metadata.name`, which cannot be lowered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingName;

/// A kind as served by the API server, and its role for the consumer.
#[derive(Debug, Clone, Copy)]
pub struct Resource {
    /// The resource name in paths and RBAC rules.
    pub plural: &'static str,
    /// Empty for the core group.
    pub group: &'static str,
    /// The requested API version.
    pub version: &'static str,
    /// Versions of the same meaning, requested in this order while the server does not serve `version`.
    pub alternatives: &'static [&'static str],
    pub need: Need,
    pub manifests: Manifests,
    pub keep: Keep,
    /// Namespace and name of the only requested object; `None` for all objects of the kind. Manifests may contain
    /// others, which lowering distinguishes.
    pub only: Option<(&'static str, &'static str)>,
}

impl Resource {
    pub(crate) fn path(&self) -> String {
        match self.group {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }

    /// The path of its objects, within the namespace of the only one if set.
    pub(crate) fn objects_path(&self) -> String {
        match self.only {
            Some((namespace, _)) => format!("{}/namespaces/{namespace}/{}", self.path(), self.plural),
            None => format!("{}/{}", self.path(), self.plural),
        }
    }

    /// Selects the only object. RBAC allows a request with this selector if a rule grants the object by its name.
    pub(crate) fn field_selector(&self) -> Option<String> {
        self.only.map(|(_, name)| format!("metadata.name={name}"))
    }
}

/// Whether the initial sync requires a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The initial sync is incomplete before its first list.
    Needed,
    /// The initial sync is incomplete before its first list, or the answer that the server does not serve it.
    IfServed,
    /// The initial sync does not require it. Clusters that do not serve it are common.
    Optional,
}

/// Which manifests with the kind's name count as this kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manifests {
    /// Those of its API group; others are resources of other APIs with the same kind.
    OfGroup,
    /// All of them: one with a newer or misspelt version must not be ignored.
    OfAnyVersion,
}

/// The parts of a value that lowering reads. A value of another type than expected is kept whole.
#[derive(Debug, Clone, Copy)]
pub enum Keep {
    Whole,
    /// These fields of an object.
    Only(&'static [(&'static str, Keep)]),
    /// Every field of an object, the listed ones restricted further.
    All(&'static [(&'static str, Keep)]),
    /// Every item of a list, restricted to this.
    Each(&'static Keep),
}
