//! Decides whether a policy is audited or enforced.
//!
//! "Nearest wins: the policy's annotation, then its namespace's, then the agent's flag. Any other value, or annotations
//! that cannot be read, enforce."

use serde_json::Value;

use super::World;
use super::json::member;
use super::policy::namespace;

pub(super) fn is_audited(world: &World, policy: &Value) -> bool {
    let named =
        |object: &&k8s_openapi::api::core::v1::Namespace| object.metadata.name.as_deref() == Some(namespace(policy));
    let of_namespace = world.namespaces.iter().find(named).and_then(|n| n.metadata.annotations.as_ref());
    by_annotations(world, policy, of_namespace.and_then(|annotations| annotations.get(ANNOTATION)))
}

/// A ClusterNetworkPolicy has no namespace.
pub(super) fn is_cluster_policy_audited(world: &World, policy: &Value) -> bool {
    by_annotations(world, policy, None)
}

fn by_annotations(world: &World, policy: &Value, of_namespace: Option<&String>) -> bool {
    let of_policy = member(policy, "metadata").and_then(|metadata| member(metadata, "annotations"));
    match (of_policy, of_namespace) {
        (Some(annotations), _) if !annotations.is_object() => false,
        (Some(annotations), _) if member(annotations, ANNOTATION).is_some() => annotations[ANNOTATION] == "audit",
        (_, Some(word)) => word == "audit",
        (_, None) => world.audits_by_default,
    }
}

const ANNOTATION: &str = "ringfence.io/enforcement";
