//! Whether a policy is only audited.
//!
//! "Nearest wins: the policy's annotation, then its namespace's, then the agent's flag. Any other value, or annotations
//! that cannot be read, enforce."

use serde_json::Value;

use super::World;
use super::json::member;
use super::policy::namespace;

pub(super) fn is_audited(world: &World, policy: &Value) -> bool {
    let of_policy = member(policy, "metadata").and_then(|metadata| member(metadata, "annotations"));
    let named =
        |object: &&k8s_openapi::api::core::v1::Namespace| object.metadata.name.as_deref() == Some(namespace(policy));
    let of_namespace = world.namespaces.iter().find(named).and_then(|n| n.metadata.annotations.as_ref());
    let of_namespace = of_namespace.and_then(|annotations| annotations.get(ANNOTATION));
    match (of_policy, of_namespace) {
        (Some(annotations), _) if !annotations.is_object() => false,
        (Some(annotations), _) if member(annotations, ANNOTATION).is_some() => annotations[ANNOTATION] == "audit",
        (_, Some(word)) => word == "audit",
        (_, None) => world.audits_by_default,
    }
}

const ANNOTATION: &str = "ringfence.io/enforcement";
