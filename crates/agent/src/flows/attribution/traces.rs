//! Policy traces of flow records, converted from explanations of each side.

use flow::{PolicyAction, PolicyHit, PolicyTier, SideTrace, TraceVerdict};
use policy::{ClusterRuleName, ExplainedSide, RuleAction, RuleName, SideVerdict, Tier};

use crate::flows::feed::DenyingPolicies;

/// Maximum number of policies in one side of a trace. Many may select a pod.
const MOST_HITS: usize = 16;

pub(super) fn of_side(ExplainedSide { verdict, passed_by }: ExplainedSide, enforced_here: bool) -> SideTrace {
    let passed_by = passed_by.iter().map(deciding).collect::<Vec<PolicyHit>>();
    let plain = |verdict| SideTrace { verdict, enforced_here, enforced: vec![], pending: vec![], passed_by };
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

/// Trace of packets that these policies denied.
pub(super) fn denied_by(by: &DenyingPolicies, enforced_here: bool) -> SideTrace {
    let DenyingPolicies { isolating: policies, rule, passed_by } = by;
    SideTrace {
        verdict: TraceVerdict::Denied,
        enforced_here,
        enforced: rule.as_ref().map_or_else(|| isolating(policies), |rule| vec![deciding(rule)]),
        pending: vec![],
        passed_by: passed_by.iter().map(deciding).collect(),
    }
}

/// Trace of traffic between a pod of this node and the node itself.
pub(super) fn own_node() -> SideTrace {
    SideTrace {
        verdict: TraceVerdict::OwnNode,
        enforced_here: true,
        enforced: vec![],
        pending: vec![],
        passed_by: vec![],
    }
}

/// Trace of a connection whose deciding rules are no longer known.
pub(super) fn unknown(enforced_here: bool) -> SideTrace {
    SideTrace { verdict: TraceVerdict::Unknown, enforced_here, enforced: vec![], pending: vec![], passed_by: vec![] }
}

fn allowing(rule: &RuleName) -> PolicyHit {
    PolicyHit { rule: Some(rule.field.as_str().into()), action: PolicyAction::Allow, ..of_policy(&rule.policy) }
}

fn deciding(rule: &ClusterRuleName) -> PolicyHit {
    PolicyHit {
        kind: "ClusterNetworkPolicy".into(),
        namespace: "".into(),
        name: rule.policy.as_str().into(),
        tier: Some(match rule.tier {
            Tier::Admin => PolicyTier::Admin,
            Tier::Baseline => PolicyTier::Baseline,
        }),
        rule: Some(rule.field.as_str().into()),
        rule_name: rule.name.as_deref().map(Into::into),
        action: match rule.action {
            RuleAction::Accept => PolicyAction::Allow,
            RuleAction::Deny => PolicyAction::Deny,
            RuleAction::Pass => PolicyAction::Pass,
        },
    }
}

fn isolating(policies: &[String]) -> Vec<PolicyHit> {
    policies.iter().take(MOST_HITS).map(|policy| of_policy(policy)).collect()
}

fn of_policy(policy: &str) -> PolicyHit {
    let (namespace, name) = policy.split_once('/').unwrap_or(("", policy));
    PolicyHit::isolation(namespace, name)
}
