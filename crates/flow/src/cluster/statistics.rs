//! Policy statistics: connections, packets and bytes that each policy and rule allowed, denied or would deny.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ClusterRecord;
use super::graph::EdgeTraffic;
use crate::{FlowRecord, PolicyAction, PolicyHit, PolicyTier, SideTrace};

/// Limit of the rules of one response: a cluster of 10,000 policies uses fewer within an hour. Hits of further rules
/// are summed in `other`.
pub const MOST_RULES: usize = 20_000;

/// Statistics of a time range, by policy and by rule.
///
/// Only the trace of a node's own side is counted, because a node does not enforce the policies of the other side. If
/// several policies isolate a pod and deny a packet together, each counts it, so sums over rules may exceed the traffic
/// of the range, which is in `totals`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Statistics {
    /// By policy, direction and stage; a record counts once per policy, whichever of its rules matched.
    pub policies: Vec<PolicyStatistics>,
    /// By rule, direction and stage.
    pub rules: Vec<RuleStatistics>,
    /// Hits of rules above the limit.
    pub other: RuleTraffic,
    /// Whether there are rules that are not listed.
    pub truncated: bool,
    /// All flows of the range, whether a policy decided about them or not.
    pub totals: EdgeTraffic,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyStatistics {
    #[serde(flatten)]
    pub policy: PolicyKey,
    #[serde(flatten)]
    pub traffic: RuleTraffic,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleStatistics {
    #[serde(flatten)]
    pub policy: PolicyKey,
    /// `spec.ingress[0]`; `None` if the policy isolates the pod and no rule matched.
    pub rule: Option<Arc<str>>,
    /// The name of the rule in a ClusterNetworkPolicy. Omitted from JSON if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule_name: Option<Arc<str>>,
    #[serde(flatten)]
    pub traffic: RuleTraffic,
}

/// A policy, and the side of flows that it judged.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyKey {
    pub kind: Arc<str>,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// The tier of a ClusterNetworkPolicy. Omitted from JSON for a NetworkPolicy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<PolicyTier>,
    pub direction: PolicySide,
    pub stage: Stage,
}

/// The side that a policy judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicySide {
    Egress,
    Ingress,
}

/// Whether a policy is enforced or audited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    Enforced,
    /// Audited.
    Pending,
}

/// Traffic that matched a rule or policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleTraffic {
    /// For an audited policy: traffic that it would allow.
    pub allowed: DecidedTraffic,
    pub denied: DecidedTraffic,
    /// Traffic that an audited policy would deny.
    pub would_deny: DecidedTraffic,
    /// Traffic that rules of a ClusterNetworkPolicy passed to the next tier, whatever became of it there.
    #[serde(default)]
    pub passed: DecidedTraffic,
    pub last_seen: Option<Timestamp>,
}

/// Flows of one decision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DecidedTraffic {
    /// Connections that started; 0 for denied flows.
    pub connections: u64,
    /// Known bytes and packets of connections, in both directions.
    pub packets: u64,
    pub bytes: u64,
    /// Packets that were denied, or would be; 0 if the decision was to allow. Of traffic that was passed on, those that
    /// something else denied.
    pub denied_packets: u64,
}

/// Aggregates records into statistics.
#[derive(Debug, Default)]
pub struct StatisticsBuilder {
    policies: BTreeMap<PolicyKey, RuleTraffic>,
    rules: BTreeMap<(PolicyKey, RuleKey), RuleTraffic>,
    other: RuleTraffic,
    is_truncated: bool,
    totals: EdgeTraffic,
}

/// A rule of a policy, and its name.
type RuleKey = (Option<Arc<str>>, Option<Arc<str>>);

/// Decision of a policy about a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Decision {
    Allowed,
    Denied,
    WouldDeny,
    Passed,
}

impl Decision {
    fn of(stage: Stage, action: PolicyAction) -> Decision {
        match (stage, action) {
            (Stage::Enforced | Stage::Pending, PolicyAction::Allow) => Decision::Allowed,
            (Stage::Enforced, PolicyAction::Deny) => Decision::Denied,
            (Stage::Pending, PolicyAction::Deny) => Decision::WouldDeny,
            (Stage::Enforced | Stage::Pending, PolicyAction::Pass) => Decision::Passed,
        }
    }
}

impl StatisticsBuilder {
    pub fn new() -> StatisticsBuilder {
        StatisticsBuilder::default()
    }

    pub fn add(&mut self, joined: &ClusterRecord) {
        self.add_within(joined, MOST_RULES);
    }

    fn add_within(&mut self, joined: &ClusterRecord, most_rules: usize) {
        self.totals.add(joined);
        let record = &joined.record;
        for (direction, side) in [(PolicySide::Egress, &record.key.egress), (PolicySide::Ingress, &record.key.ingress)]
        {
            let SideTrace { verdict: _, enforced_here, enforced, pending, passed_by } = side;
            if !enforced_here {
                continue;
            }
            let enforced: Vec<&PolicyHit> = enforced.iter().chain(passed_by).collect();
            for (stage, hits) in [(Stage::Enforced, enforced), (Stage::Pending, pending.iter().collect())] {
                self.add_hits(record, direction, stage, &hits, most_rules);
            }
        }
    }

    fn add_hits(
        &mut self,
        record: &FlowRecord,
        direction: PolicySide,
        stage: Stage,
        hits: &[&PolicyHit],
        most_rules: usize,
    ) {
        let (mut policies, mut rules) = (BTreeSet::new(), BTreeSet::new());
        for PolicyHit { kind, namespace, name, tier, rule, rule_name, action } in hits {
            let [kind, namespace, name] = [kind, namespace, name].map(Arc::clone);
            let policy = PolicyKey { kind, namespace, name, tier: *tier, direction, stage };
            let decision = Decision::of(stage, *action);
            rules.insert((policy.clone(), (rule.clone(), rule_name.clone()), decision));
            policies.insert((policy, decision));
        }
        for (policy, rule, decision) in rules {
            let key = (policy, rule);
            let is_full = self.rules.len() >= most_rules;
            let traffic = match self.rules.get_mut(&key) {
                Some(traffic) => traffic,
                None if is_full => {
                    self.is_truncated = true;
                    &mut self.other
                }
                None => self.rules.entry(key).or_default(),
            };
            traffic.add(record, decision);
        }
        for (policy, decision) in policies {
            let is_full = self.policies.len() >= most_rules;
            match self.policies.get_mut(&policy) {
                Some(traffic) => traffic.add(record, decision),
                // The rules of the policy are in `other`.
                None if is_full => self.is_truncated = true,
                None => self.policies.entry(policy).or_default().add(record, decision),
            }
        }
    }

    pub fn finish(self) -> Statistics {
        let StatisticsBuilder { policies, rules, other, is_truncated, totals } = self;
        Statistics {
            policies: policies.into_iter().map(|(policy, traffic)| PolicyStatistics { policy, traffic }).collect(),
            rules: rules
                .into_iter()
                .map(|((policy, (rule, rule_name)), traffic)| RuleStatistics { policy, rule, rule_name, traffic })
                .collect(),
            other,
            truncated: is_truncated,
            totals,
        }
    }
}

impl RuleTraffic {
    fn add(&mut self, record: &FlowRecord, decision: Decision) {
        let volumes = [record.sent, record.received].into_iter().flatten();
        let (packets, bytes) = volumes.fold((0u64, 0u64), |(packets, bytes), volume| {
            (packets.saturating_add(volume.packets), bytes.saturating_add(volume.bytes))
        });
        let connections = record.connections.started;
        let traffic = DecidedTraffic { connections, packets, bytes, denied_packets: record.denied_packets };
        match decision {
            // The other side may have denied them.
            Decision::Allowed => self.allowed += DecidedTraffic { denied_packets: 0, ..traffic },
            Decision::Denied => self.denied += traffic,
            Decision::WouldDeny => self.would_deny += traffic,
            Decision::Passed => self.passed += traffic,
        }
        self.last_seen = self.last_seen.max(Some(record.last));
    }
}

impl AddAssign for DecidedTraffic {
    fn add_assign(&mut self, other: DecidedTraffic) {
        let DecidedTraffic { connections, packets, bytes, denied_packets } = other;
        self.connections = self.connections.saturating_add(connections);
        self.packets = self.packets.saturating_add(packets);
        self.bytes = self.bytes.saturating_add(bytes);
        self.denied_packets = self.denied_packets.saturating_add(denied_packets);
    }
}

#[cfg(test)]
mod tests;
