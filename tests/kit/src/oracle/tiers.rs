//! The tiers of ClusterNetworkPolicy: which policies select a pod, and which of their rules decides.

use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use super::cluster_rule::{Action, action_on};
use super::json::{NotUnderstood, fields, member};
use super::{Direction, Flow, World, audit, cluster_rule};

/// "ClusterNetworkPolicy can use 2 of these tiers: Admin and Baseline." NetworkPolicy lies between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PolicyTier {
    Admin,
    Baseline,
}

/// The rule that decides a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decisive {
    pub(super) action: Action,
    /// Index into the world's cluster policies.
    pub(super) policy: usize,
    /// Index into the rules of the direction.
    pub(super) rule: usize,
}

/// The first rule of the tier that matches the flow.
///
/// "Policies with lower priority values have higher precedence, and are checked before policies with higher priority
/// values in the same tier." Equal priorities are checked by name. "The relative precedence of ingress rules within a
/// single CNP object will be determined by the order in which the rule is written."
pub(super) fn decisive(flow: &Flow<'_>, tier: PolicyTier, with_audited: bool) -> Option<Decisive> {
    let policies = flow.world.cluster_policies.iter().enumerate();
    let mut policies: Vec<(usize, &Value)> = policies
        .filter(|(_, policy)| tier_of(policy).unwrap_or(PolicyTier::Admin) == tier)
        .filter(|(_, policy)| with_audited || !audit::is_cluster_policy_audited(flow.world, policy))
        .collect();
    policies.sort_by_key(|(_, policy)| (priority(policy).unwrap_or(0), name(policy)));
    policies.into_iter().find_map(|(index, policy)| {
        let (rule, action) = first_match(policy, flow)?;
        Some(Decisive { action, policy: index, rule })
    })
}

/// Whether a policy selects the pod whose side of the flow is evaluated.
enum Selection {
    Selected,
    /// The policy may select the pod.
    Unclear,
}

/// The first rule of the policy that matches the flow, with its action.
///
/// An invalid `spec` or priority, and an invalid subject beside rules, deny everything; so does a direction that is not
/// a list. In a policy with an unknown field or tier, or of another version, no rule is understood.
fn first_match(policy: &Value, flow: &Flow<'_>) -> Option<(usize, Action)> {
    let Some(spec) = member(policy, "spec").filter(|spec| spec.is_object()) else { return Some((0, Action::Deny)) };
    let rules = match member(spec, direction_field(flow.direction)) {
        None => return None,
        Some(Value::Array(rules)) if rules.is_empty() => return None,
        Some(rules) => rules.as_array(),
    };
    let selection = match selects(spec, flow.world, flow.subject) {
        Ok(None) => return None,
        Err(NotUnderstood) => return Some((0, Action::Deny)),
        Ok(Some(selection)) => selection,
    };
    let (Some(rules), Ok(_)) = (rules, priority(policy)) else { return Some((0, Action::Deny)) };
    let understood = is_understood(policy);
    rules.iter().enumerate().find_map(|(index, rule)| {
        let matched = match understood {
            true => cluster_rule::matched(rule, flow),
            false => Err(NotUnderstood),
        };
        // A rule of a policy that possibly does not select this pod must not allow a flow.
        let matched = match (matched, &selection) {
            (Ok(true), Selection::Unclear) => Err(NotUnderstood),
            (matched, Selection::Selected | Selection::Unclear) => matched,
        };
        Some((index, action_on(rule, matched)?))
    })
}

/// Whether everything outside of the rules is valid: the version, each field of the object and of its `spec`, and
/// the tier.
fn is_understood(policy: &Value) -> bool {
    const VERSIONS: [&str; 2] = ["policy.networking.k8s.io/v1alpha2", "policy.networking.k8s.io/v1beta1"];
    let object = fields(policy, ["apiVersion", "kind", "metadata", "spec", "status"]);
    let version = |version: &Value| VERSIONS.iter().any(|known| version == known);
    let spec = |spec: &Value| fields(spec, ["tier", "priority", "subject", "ingress", "egress"]).is_ok();
    matches!(object, Ok([Some(of), _, _, Some(whole), _]) if version(of) && spec(whole)) && tier_of(policy).is_ok()
}

/// "Subject defines the pods to which this ClusterNetworkPolicy applies. Exactly one field must be set. Note that
/// host-networked pods are not included in subject selection": no address is attributed to them.
fn selects(spec: &Value, world: &World, pod: &Pod) -> Result<Option<Selection>, NotUnderstood> {
    let subject = member(spec, "subject").ok_or(NotUnderstood)?;
    let [namespaces, pods] = fields(subject, ["namespaces", "pods"])?;
    Ok(match cluster_rule::selects_pod(world, namespaces, pods, Some(pod))? {
        Some(true) => Some(Selection::Selected),
        Some(false) => None,
        None => Some(Selection::Unclear),
    })
}

fn tier_of(policy: &Value) -> Result<PolicyTier, NotUnderstood> {
    let tier = member(policy, "spec").and_then(|spec| member(spec, "tier")).and_then(Value::as_str);
    match tier {
        Some("Admin") => Ok(PolicyTier::Admin),
        Some("Baseline") => Ok(PolicyTier::Baseline),
        Some(_) | None => Err(NotUnderstood),
    }
}

/// "Priority is a value from 0 to 1000."
fn priority(policy: &Value) -> Result<u64, NotUnderstood> {
    let priority = member(policy, "spec").and_then(|spec| member(spec, "priority")).and_then(Value::as_u64);
    priority.filter(|priority| *priority <= 1000).ok_or(NotUnderstood)
}

fn name(policy: &Value) -> &str {
    policy["metadata"]["name"].as_str().unwrap_or_default()
}

fn direction_field(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => "ingress",
        Direction::Egress => "egress",
    }
}
