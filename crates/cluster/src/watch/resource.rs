//! What the API server calls the kinds.

use policy::Kind;

/// A kind as the API server serves it: a path, and the words of its RBAC rules.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    pub(super) plural: &'static str,
    /// Empty for the core group.
    pub(super) group: &'static str,
    pub(super) path: &'static str,
}

impl Resource {
    pub(super) fn of(kind: Kind) -> Resource {
        let (plural, group, path) = match kind {
            Kind::Namespace => ("namespaces", "", "/api/v1"),
            Kind::Pod => ("pods", "", "/api/v1"),
            Kind::NetworkPolicy => ("networkpolicies", "networking.k8s.io", "/apis/networking.k8s.io/v1"),
        };
        Resource { kind, plural, group, path }
    }
}
