//! Packets, bytes and connections by policy or by rule.

use std::collections::{BTreeMap, BTreeSet};

use flow::ClusterRecord;
use wire::Strict;

use crate::convert;
use crate::filter::{PolicyCriteria, RequestError, known, value};
use crate::message::{
    Action, Flow, FlowKey, PolicyHit, PolicyTrace, Reporter, RuleDirection, StatisticType, StatisticsGroupBy,
    StatisticsRequest, StatisticsResult,
};

/// Aggregated sums of one request.
#[derive(Debug)]
pub struct StatisticsQuery {
    kind: StatisticType,
    group_by: StatisticsGroupBy,
    policy: Option<PolicyCriteria>,
    time_series: bool,
    groups: BTreeMap<Group, BTreeMap<i64, Counts>>,
}

/// Key of a sum: a policy, or one of its rules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    namespace: String,
    name: String,
    kind: i32,
    tier: String,
    /// `None` for the whole policy.
    rule: Option<Rule>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rule {
    action: i32,
    index: i64,
    direction: RuleDirection,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    allowed: [i64; 2],
    denied: [i64; 2],
    passed: [i64; 2],
}

impl StatisticsQuery {
    /// # Errors
    /// If the request is invalid.
    pub fn parse(request: &Strict<StatisticsRequest>) -> Result<StatisticsQuery, RequestError> {
        let request = known(request, "the request")?;
        Ok(StatisticsQuery {
            kind: value("type", request.r#type)?,
            group_by: value("group_by", request.group_by)?,
            policy: request.policy_match.as_ref().map(PolicyCriteria::parse).transpose()?,
            time_series: request.time_series,
            groups: BTreeMap::new(),
        })
    }

    pub fn add(&mut self, record: &ClusterRecord) {
        for flow in convert(record) {
            if let Some(key) = &flow.key {
                self.add_flow(key, &flow);
            }
        }
    }

    /// Adds a flow, once for each policy or rule in its trace.
    fn add_flow(&mut self, key: &FlowKey, flow: &Flow) {
        let nothing = PolicyTrace::default();
        let PolicyTrace { enforced_policies, pending_policies } = key.policies.as_ref().unwrap_or(&nothing);
        let direction = match key.reporter() {
            Reporter::Source => RuleDirection::Egress,
            Reporter::Destination => RuleDirection::Ingress,
            Reporter::Unspecified => RuleDirection::Any,
        };
        let counts = match self.kind {
            StatisticType::PacketCount => [flow.packets_in, flow.packets_out],
            StatisticType::ByteCount => [flow.bytes_in, flow.bytes_out],
            // A connection counts in the direction of its reporter.
            StatisticType::LiveConnectionCount => match direction {
                RuleDirection::Egress => [0, flow.num_connections_live],
                RuleDirection::Ingress | RuleDirection::Any => [flow.num_connections_live, 0],
            },
        };
        let mut seen = BTreeSet::new();
        for hit in enforced_policies.iter().chain(pending_policies) {
            if self.policy.as_ref().is_some_and(|wanted| !wanted.admits(hit)) {
                continue;
            }
            let policy = hit.trigger.as_deref().unwrap_or(hit);
            let rule = match self.group_by {
                StatisticsGroupBy::Policy => None,
                StatisticsGroupBy::PolicyRule => Some(Rule { action: hit.action, index: policy.rule_index, direction }),
            };
            let group = Group {
                namespace: policy.namespace.clone(),
                name: policy.name.clone(),
                kind: policy.kind,
                tier: policy.tier.clone(),
                rule,
            };
            if !seen.insert((group.clone(), hit.action)) {
                continue;
            }
            let bucket = if self.time_series { flow.start_time } else { 0 };
            let sums = self.groups.entry(group).or_default().entry(bucket).or_default();
            let sum = match hit.action() {
                Action::Allow => &mut sums.allowed,
                Action::Deny => &mut sums.denied,
                Action::Pass | Action::Unspecified => &mut sums.passed,
            };
            for (sum, count) in sum.iter_mut().zip(counts) {
                *sum = sum.saturating_add(count);
            }
        }
    }

    /// Results ordered by namespace, name and rule.
    pub fn into_results(self) -> Vec<StatisticsResult> {
        let StatisticsQuery { kind, group_by, policy: _, time_series, groups } = self;
        let results = groups.into_iter().map(|(group, buckets)| {
            let Group { namespace, name, kind: policy_kind, tier, rule } = group;
            let values = |pick: fn(&Counts) -> i64| buckets.values().map(pick).collect();
            StatisticsResult {
                policy: Some(PolicyHit {
                    kind: policy_kind,
                    namespace,
                    name,
                    tier,
                    action: rule.map_or(0, |rule| rule.action),
                    policy_index: 0,
                    rule_index: rule.map_or(0, |rule| rule.index),
                    trigger: None,
                }),
                direction: rule.map_or(RuleDirection::Any, |rule| rule.direction).into(),
                group_by: group_by.into(),
                r#type: kind.into(),
                allowed_in: values(|counts| counts.allowed[0]),
                allowed_out: values(|counts| counts.allowed[1]),
                denied_in: values(|counts| counts.denied[0]),
                denied_out: values(|counts| counts.denied[1]),
                passed_in: values(|counts| counts.passed[0]),
                passed_out: values(|counts| counts.passed[1]),
                x: if time_series { buckets.keys().copied().collect() } else { Vec::new() },
            }
        });
        results.collect()
    }
}
