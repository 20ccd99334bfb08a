//! One NetworkPolicy: which pods it selects, in which directions it isolates them, and whether it allows a flow.
//!
//! The three are separate because an invalid or unsupported policy still isolates: it only stops allowing.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::address::namespace_of;
use super::json::{NotUnderstood, fields, list, member};
use super::{Direction, Flow, rule, selector};

/// "podSelector selects the pods to which this NetworkPolicy object applies. If it is not specified, it selects all
/// pods in the policy's namespace." An invalid podSelector or `spec` also selects all of them.
pub(super) fn selects(policy: &Value, pod: &Pod) -> bool {
    if namespace(policy) != namespace_of(pod) {
        return false;
    }
    match member(policy, "spec").and_then(|spec| member(spec, "podSelector")) {
        None => true,
        Some(wanted) => {
            let labels = pod.metadata.labels.clone().unwrap_or_default();
            selector::matches(wanted, &labels).unwrap_or(true)
        }
    }
}

/// "If policyTypes is not specified, it will default based on the existence of ingress or egress rules; policies
/// that contain an egress section are assumed to affect egress, and all policies (whether or not they contain an
/// ingress section) are assumed to affect ingress."
///
/// A `spec` that is missing or not an object, an unknown entry of `policyTypes` and a `policyTypes` that is not a list
/// isolate in both directions. Without `policyTypes`, an `egress` that is not a list counts as one with an entry.
pub(super) fn isolates(policy: &Value, direction: Direction) -> bool {
    let Some(spec) = member(policy, "spec").filter(|spec| spec.is_object()) else {
        return true;
    };
    match list(member(spec, "policyTypes")) {
        Err(NotUnderstood) => true,
        Ok([]) => match direction {
            Direction::Ingress => true,
            Direction::Egress => !matches!(list(member(spec, "egress")), Ok([])),
        },
        Ok(types) => types.contains(&name(direction).into()) || types.iter().any(|entry| !is_known_type(entry)),
    }
}

/// Whether a rule of the policy allows the flow. A policy with an invalid part outside of its rules (its version, a
/// field of the object or of its `spec`, its `podSelector`) allows nothing at all, and a direction that is not a list
/// of rules allows nothing.
pub(super) fn allows(policy: &Value, flow: &Flow<'_>) -> bool {
    rules(policy, flow.direction)
        .is_ok_and(|rules| rules.iter().any(|rule| rule::allows(rule, namespace(policy), flow) == Ok(true)))
}

/// The rules of a direction; empty if `policyTypes` does not list it.
fn rules(policy: &Value, direction: Direction) -> Result<&[Value], NotUnderstood> {
    let [version, _kind, _metadata, spec, _status] =
        fields(policy, ["apiVersion", "kind", "metadata", "spec", "status"])?;
    if version.is_none_or(|version| version != "networking.k8s.io/v1") {
        return Err(NotUnderstood);
    }
    let [pod_selector, policy_types, ingress, egress] =
        fields(spec.ok_or(NotUnderstood)?, ["podSelector", "policyTypes", "ingress", "egress"])?;
    if let Some(wanted) = pod_selector {
        selector::matches(wanted, &selector::Labels::new())?;
    }
    let types = list(policy_types)?;
    if !types.is_empty() && !types.contains(&name(direction).into()) {
        return Ok(&[]);
    }
    list(match direction {
        Direction::Ingress => ingress,
        Direction::Egress => egress,
    })
}

/// The namespace of a policy; `default` if it names none, as kubectl has it.
pub(super) fn namespace(policy: &Value) -> &str {
    member(policy, "metadata").and_then(|m| member(m, "namespace")).and_then(Value::as_str).unwrap_or("default")
}

fn name(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "Ingress",
        Direction::Egress => "Egress",
    }
}

fn is_known_type(entry: &Value) -> bool {
    entry == "Ingress" || entry == "Egress"
}
