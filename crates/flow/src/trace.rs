//! Policy traces: the decision of each side of a flow, and the policies behind it.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Verdict of both sides on a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FlowVerdict {
    Allowed,
    /// The flow was allowed, and would be denied if audited policies were enforced.
    WouldDeny,
    Denied,
}

impl FlowVerdict {
    /// The word of the JSON form.
    pub fn as_str(self) -> &'static str {
        match self {
            FlowVerdict::Allowed => "allowed",
            FlowVerdict::WouldDeny => "would-deny",
            FlowVerdict::Denied => "denied",
        }
    }
}

impl fmt::Display for FlowVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The decision of one side: the egress of the source, or the ingress of the destination.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SideTrace {
    pub verdict: TraceVerdict,
    /// Whether the pod of this side runs on the reporting node, whose rules judged it. If false, the trace of the other
    /// side's node is authoritative.
    pub enforced_here: bool,
    /// Enforced policies that decided: the one with the allowing rule, or all that isolate the pod.
    pub enforced: Vec<PolicyHit>,
    /// Audited policies that would have decided.
    pub pending: Vec<PolicyHit>,
    /// Rules of enforced ClusterNetworkPolicies that passed the flow to the next tier, in the order of the tiers. Apart
    /// from `enforced`, since readers of earlier releases refuse an unknown action. Omitted from JSON if empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub passed_by: Vec<PolicyHit>,
}

/// Words of `ringfence explain`, and `unknown`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceVerdict {
    NotAPod,
    NotIsolated,
    Itself,
    OwnNode,
    Allowed,
    Denied,
    WouldAllow,
    WouldDeny,
    Unreadable,
    /// The policies that judged the connection are no longer known.
    Unknown,
}

/// One policy in a trace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyHit {
    /// `NetworkPolicy` or `ClusterNetworkPolicy`
    pub kind: Arc<str>,
    /// Empty for a ClusterNetworkPolicy.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// Tier of a ClusterNetworkPolicy. `None` for a NetworkPolicy, and where an earlier release reports. Omitted from JSON
    /// if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<PolicyTier>,
    /// `spec.ingress[0]`; `None` if the policy isolates the pod and none of its rules matches.
    pub rule: Option<Arc<str>>,
    /// The name that the author of a ClusterNetworkPolicy gave the rule. Omitted from JSON if `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule_name: Option<Arc<str>>,
    pub action: PolicyAction,
}

impl PolicyHit {
    /// A NetworkPolicy that isolates a pod, and none of whose rules matches.
    pub fn isolation(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> PolicyHit {
        PolicyHit {
            kind: "NetworkPolicy".into(),
            namespace: namespace.into(),
            name: name.into(),
            tier: None,
            rule: None,
            rule_name: None,
            action: PolicyAction::Deny,
        }
    }

    /// `namespace/name`, or `name` of a ClusterNetworkPolicy: as the filter `policy` accepts it.
    pub fn policy(&self) -> String {
        match &*self.namespace {
            "" => self.name.to_string(),
            namespace => format!("{namespace}/{}", self.name),
        }
    }
}

/// Tiers of ClusterNetworkPolicy: before NetworkPolicies, and after them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyTier {
    Admin,
    Baseline,
}

impl PolicyTier {
    /// The word of the JSON form.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyTier::Admin => "admin",
            PolicyTier::Baseline => "baseline",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyAction {
    Allow,
    /// The policy isolates the pod, and none of its rules matches; or a rule of a ClusterNetworkPolicy denies.
    Deny,
    /// A rule of a ClusterNetworkPolicy passes the flow to the next tier.
    Pass,
}
