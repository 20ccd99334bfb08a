//! Lowers ClusterNetworkPolicy of `policy.networking.k8s.io`.

use serde_json::Value;

use super::{Misread, enforcement};
use crate::{
    ClusterPeers, ClusterPolicy, ClusterRule, Enforcement, Kind, ObjectName, PodScope, Ports, RuleAction, Tier,
};

const DENIES_ALL: &str = "the policy selects every pod and denies everything";

pub(super) fn lower(name: ObjectName, value: &Value) -> ClusterPolicy {
    let mut problems = Vec::new();
    let enforcement = enforcement::lower(&value["metadata"]).unwrap_or_else(|e| {
        problems.push(e.diagnose(Kind::ClusterNetworkPolicy, &name, "the policy is enforced"));
        Some(Enforcement::Enforce)
    });
    let unsupported = Misread::new("spec", "ClusterNetworkPolicy is not supported");
    problems.push(unsupported.diagnose(Kind::ClusterNetworkPolicy, &name, DENIES_ALL));
    let (ingress, egress) = (vec![deny_everything()], vec![deny_everything()]);
    ClusterPolicy {
        name,
        tier: Tier::Admin,
        priority: 0,
        subject: PodScope::everything(),
        ingress,
        egress,
        enforcement,
        problems,
    }
}

fn deny_everything() -> ClusterRule {
    ClusterRule { index: 0, name: None, action: RuleAction::Deny, peers: ClusterPeers::Any, ports: Ports::Any }
}
