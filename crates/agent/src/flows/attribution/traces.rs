//! Policy traces of flow records, converted from explanations of each side.

use std::sync::Arc;

use flow::{PolicyAction, PolicyHit, SideTrace, TraceVerdict};
use policy::{ClusterRuleName, RuleAction, RuleName, SideVerdict};

/// Maximum number of policies in one side of a trace. Many may select a pod.
const MOST_HITS: usize = 16;

pub(super) fn of_verdict(verdict: SideVerdict, enforced_here: bool) -> SideTrace {
    let plain = |verdict| SideTrace { verdict, enforced_here, enforced: vec![], pending: vec![] };
    match verdict {
        SideVerdict::NotAPod => plain(TraceVerdict::NotAPod),
        SideVerdict::NotIsolated => plain(TraceVerdict::NotIsolated),
        SideVerdict::Itself => plain(TraceVerdict::Itself),
        SideVerdict::OwnNode => plain(TraceVerdict::OwnNode),
        SideVerdict::Unreadable { .. } => plain(TraceVerdict::Unreadable),
        SideVerdict::Allowed { isolated_by: _, rule } => {
            SideTrace { enforced: vec![allowing(&rule)], ..plain(TraceVerdict::Allowed) }
        }
        SideVerdict::Denied { isolated_by, closest: _, would_allow } => SideTrace {
            enforced: isolating(&isolated_by),
            pending: would_allow.iter().take(MOST_HITS).map(allowing).collect(),
            ..plain(TraceVerdict::Denied)
        },
        SideVerdict::Accepted { rule } => SideTrace { enforced: vec![deciding(&rule)], ..plain(TraceVerdict::Allowed) },
        SideVerdict::DeniedByRule { rule } => {
            SideTrace { enforced: vec![deciding(&rule)], ..plain(TraceVerdict::Denied) }
        }
        SideVerdict::WouldAccept { rule } => {
            SideTrace { pending: vec![deciding(&rule)], ..plain(TraceVerdict::WouldAllow) }
        }
        SideVerdict::WouldDenyByRule { rule } => {
            SideTrace { pending: vec![deciding(&rule)], ..plain(TraceVerdict::WouldDeny) }
        }
        SideVerdict::WouldAllow { audited_by: _, rule } => {
            SideTrace { pending: vec![allowing(&rule)], ..plain(TraceVerdict::WouldAllow) }
        }
        SideVerdict::WouldDeny { audited_by, closest: _ } => {
            SideTrace { pending: isolating(&audited_by), ..plain(TraceVerdict::WouldDeny) }
        }
    }
}

/// Trace of packets that these policies (`namespace/name`) denied.
pub(super) fn denied_by(policies: &[String], enforced_here: bool) -> SideTrace {
    SideTrace { verdict: TraceVerdict::Denied, enforced_here, enforced: isolating(policies), pending: vec![] }
}

/// Trace of traffic between a pod of this node and the node itself.
pub(super) fn own_node() -> SideTrace {
    SideTrace { verdict: TraceVerdict::OwnNode, enforced_here: true, enforced: vec![], pending: vec![] }
}

/// Trace of a connection whose deciding rules are no longer known.
pub(super) fn unknown(enforced_here: bool) -> SideTrace {
    SideTrace { verdict: TraceVerdict::Unknown, enforced_here, enforced: vec![], pending: vec![] }
}

fn allowing(rule: &RuleName) -> PolicyHit {
    PolicyHit { rule: Some(rule.field.as_str().into()), action: PolicyAction::Allow, ..of_policy(&rule.policy) }
}

fn deciding(rule: &ClusterRuleName) -> PolicyHit {
    PolicyHit {
        kind: "ClusterNetworkPolicy".into(),
        namespace: "".into(),
        name: rule.policy.as_str().into(),
        rule: Some(rule.field.as_str().into()),
        action: match rule.action {
            RuleAction::Accept => PolicyAction::Allow,
            RuleAction::Deny | RuleAction::Pass => PolicyAction::Deny,
        },
    }
}

fn isolating(policies: &[String]) -> Vec<PolicyHit> {
    policies.iter().take(MOST_HITS).map(|policy| of_policy(policy)).collect()
}

fn of_policy(policy: &str) -> PolicyHit {
    let (namespace, name) = policy.split_once('/').unwrap_or(("", policy));
    let kind = Arc::from("NetworkPolicy");
    PolicyHit { kind, namespace: namespace.into(), name: name.into(), rule: None, action: PolicyAction::Deny }
}
