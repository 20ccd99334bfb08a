//! Flows that audited policies would have denied since the agent started.
//!
//! Each audited policy has a count, which is smaller than the policy itself. Flows are bounded: some 16,000 of half a
//! kilobyte make 8 MB. Policies share the entry of a pair of endpoints.

mod pair;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use policy::{ClusterState, Enforcement, FlowSeen, Judgement, ObjectName, Traffic};

use super::coverage::written;
use super::naming::carried_traffic;
use super::packet_group::{DropEvent, PacketContent};
use crate::api::audit::{AuditedFlow, AuditedPolicy};
use crate::api::drops::NamedDrop;
use pair::{EndPair, Ports};

/// Bound on the flows of one policy: what a person can read and a suggestion can hold. Beyond it the least recently
/// seen flow is evicted.
const FLOWS: usize = 1000;

/// Bound on the flows of all policies. Beyond it the policy with the most flows evicts one.
const FLOWS_OF_ALL: usize = 16_384;

/// Flows of each policy in a report.
const SHOWN: usize = 10;

#[derive(Debug, Default)]
pub(crate) struct AuditLedger {
    policies: BTreeMap<ObjectName, PolicyFlows>,
}

#[derive(Debug)]
struct PolicyFlows {
    packets: u64,
    between: BTreeMap<Arc<EndPair>, Ports>,
    /// Number of known flows.
    flows: usize,
    /// When the most recently seen evicted flow was last seen.
    forgotten: Option<Timestamp>,
    first: Timestamp,
    last: Timestamp,
}

/// Input for policy suggestions.
#[derive(Debug, Default)]
pub(crate) struct SuggestionInput {
    pub(crate) flows: Vec<FlowSeen>,
    /// One flow for each pair of endpoints with many ports.
    pub(crate) many_ports: Vec<FlowSeen>,
}

impl AuditLedger {
    /// Records a drop event and its names.
    pub(crate) fn record_drop(&mut self, event: &DropEvent, denial: &NamedDrop) {
        let at = event.at;
        let (Judgement::WouldDeny, Some(direction)) = (denial.verdict, denial.direction) else { return };
        let PacketContent::Flow(flow) = &event.group.carried else { return };
        let (source, destination) = (denial.source.clone(), denial.destination.clone());
        let mut pair = Arc::new(EndPair { direction, source, destination });
        let port = (carried_traffic(flow), denial.traffic.clone());
        let of_cluster = denial.rule.iter().map(|rule| ObjectName::new("", &rule.policy));
        let of_namespaces = denial.policies.iter().filter(|_| denial.rule.is_none());
        let policies = of_namespaces.filter_map(|name| name.parse::<ObjectName>().ok()).chain(of_cluster);
        for policy in policies {
            let entry = self.policies.entry(policy).or_insert_with(|| PolicyFlows::new(at));
            if let Some((known, _)) = entry.between.get_key_value(&pair) {
                pair = known.clone();
            }
            entry.add(&pair, port.clone(), denial.count, at);
        }
        self.make_room();
    }

    fn make_room(&mut self) {
        while self.policies.values().map(|entry| entry.flows).sum::<usize>() > FLOWS_OF_ALL {
            match self.policies.values_mut().max_by_key(|entry| entry.flows) {
                Some(largest) => largest.evict_one(),
                None => return,
            }
        }
    }

    /// Removes policies that are no longer audited.
    pub(crate) fn keep_audited(&mut self, state: &ClusterState) {
        self.policies.retain(|name, _| match &*name.namespace {
            "" => state.cluster_policy(&name.name).is_some_and(|p| state.cluster_enforcement(p) == Enforcement::Audit),
            _ => state.policy(name).is_some_and(|p| state.enforcement(p) == Enforcement::Audit),
        });
    }

    /// Report of every audited policy, or of those in a namespace.
    pub(crate) fn report(&self, state: &ClusterState, namespace: Option<&str>) -> Vec<AuditedPolicy> {
        let audited = state.policies().filter(|policy| state.enforcement(policy) == Enforcement::Audit);
        let audited = audited.filter(|policy| namespace.is_none_or(|wanted| wanted == &*policy.name.namespace));
        let of_cluster = state.cluster_policies().filter(|_| namespace.is_none());
        let of_cluster = of_cluster.filter(|policy| state.cluster_enforcement(policy) == Enforcement::Audit);
        let of_policy = |name: &ObjectName| match self.policies.get(name) {
            Some(entry) => entry.report(state, name),
            None => nothing_of(name),
        };
        let of_cluster = of_cluster.map(|policy| &policy.name);
        audited.map(|policy| &policy.name).chain(of_cluster).map(of_policy).collect()
    }

    /// Every distinct flow that the current policies would still deny.
    pub(crate) fn remaining(&self, state: &ClusterState) -> SuggestionInput {
        let mut pairs: BTreeMap<&EndPair, Vec<&Ports>> = BTreeMap::new();
        for (pair, ports) in self.policies.values().flat_map(|entry| &entry.between) {
            pairs.entry(pair).or_default().push(ports);
        }
        let mut remaining = SuggestionInput::default();
        for (pair, of_policies) in pairs {
            let traffics = of_policies.iter().flat_map(|ports| ports.each.keys().map(|(traffic, _)| *traffic));
            let distinct: BTreeSet<Traffic> = traffics.collect();
            let seen = distinct.into_iter().filter_map(|traffic| pair.seen(traffic));
            let mut seen = seen.filter(|flow| flow.is_denied_still(state));
            match of_policies.iter().any(|ports| ports.many) {
                true => remaining.many_ports.extend(seen.next()),
                false => remaining.flows.extend(seen),
            }
        }
        remaining
    }

    /// Policies of the namespace with evicted flows, and when the latest of those was last seen.
    pub(crate) fn incomplete<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = (&'a ObjectName, Timestamp)> {
        let forgetful = self.policies.iter().filter_map(|(name, entry)| Some((name, entry.forgotten?)));
        forgetful.filter(move |(name, _)| *name.namespace == *namespace)
    }
}

impl PolicyFlows {
    fn new(at: Timestamp) -> PolicyFlows {
        PolicyFlows { packets: 0, between: BTreeMap::new(), flows: 0, forgotten: None, first: at, last: at }
    }

    fn add(&mut self, pair: &Arc<EndPair>, port: (Traffic, String), packets: u64, at: Timestamp) {
        self.packets += packets;
        self.last = at;
        let ports = self.between.entry(pair.clone()).or_default();
        let before = ports.each.len();
        ports.add(port, packets, at);
        self.flows += ports.each.len() - before;
        if self.flows > FLOWS {
            self.evict_one();
        }
    }

    /// Evicts the least recently seen flow.
    fn evict_one(&mut self) {
        let oldest = self.between.iter().filter_map(|(pair, ports)| Some((ports.oldest()?, pair.clone())));
        let Some((port, pair)) = oldest.min_by_key(|((_, last), _)| *last).map(|((port, last), pair)| {
            self.forgotten = self.forgotten.max(Some(last));
            (port, pair)
        }) else {
            return;
        };
        if let Some(ports) = self.between.get_mut(&pair) {
            ports.each.remove(&port);
            self.flows -= 1;
            if ports.each.is_empty() {
                self.between.remove(&pair);
            }
        }
    }

    fn report(&self, state: &ClusterState, policy: &ObjectName) -> AuditedPolicy {
        let mut remaining: Vec<AuditedFlow> =
            self.between.iter().flat_map(|(pair, ports)| ports.remaining(state, pair)).collect();
        remaining.sort_by_key(|flow| std::cmp::Reverse(flow.count));
        let number = |flows: usize| u64::try_from(flows).unwrap_or(u64::MAX);
        AuditedPolicy {
            policy: policy.to_string(),
            would_deny: self.packets,
            flows: number(self.flows),
            more_flows: self.forgotten.is_some() || self.between.values().any(|ports| ports.many),
            first: Some(written(self.first)),
            last: Some(written(self.last)),
            remaining: number(remaining.len()),
            top: remaining.into_iter().take(SHOWN).collect(),
        }
    }
}

fn nothing_of(policy: &ObjectName) -> AuditedPolicy {
    AuditedPolicy {
        policy: policy.to_string(),
        would_deny: 0,
        flows: 0,
        more_flows: false,
        first: None,
        last: None,
        remaining: 0,
        top: vec![],
    }
}

#[cfg(test)]
mod tests {
    use crate::reports::FirstPacket;
    use policy::{Change, Direction, Kind, lower};
    use serde_json::json;

    use super::super::ends::{AddressContext, Ends};
    use super::super::naming::name;
    use super::super::packet_group::PacketGroup;
    use super::super::packet_group::tests::denied;
    use super::*;

    const DB: &str = "10.1.0.2";

    fn add(state: &mut ClusterState, kind: Kind, object: &serde_json::Value) {
        state.apply(Change::Set(lower(kind, object).unwrap()));
    }

    fn set_policy(state: &mut ClusterState, name: &str, enforcement: &str) {
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": name, "annotations": {"ringfence.io/enforcement": enforcement}},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}
        });
        add(state, Kind::NetworkPolicy, &object);
    }

    /// A pod that the audited policies `db` and `all` select.
    fn state() -> ClusterState {
        let mut state = ClusterState::new();
        let pod = json!({
            "metadata": {"namespace": "shop", "name": "db"}, "spec": {"nodeName": "node-a"},
            "status": {"phase": "Running", "podIP": DB}
        });
        add(&mut state, Kind::Pod, &pod);
        ["db", "all"].into_iter().for_each(|name| set_policy(&mut state, name, "audit"));
        state
    }

    fn time(second: u8) -> Timestamp {
        format!("2026-05-04T03:02:{second:02}Z").parse().unwrap()
    }

    fn observe(ledger: &mut AuditLedger, state: &ClusterState, source: &str, count: u64, second: u8) {
        observe_port(ledger, state, source, 5432, count, second);
    }

    fn observe_port(ledger: &mut AuditLedger, state: &ClusterState, source: &str, port: u16, count: u64, second: u8) {
        let place = AddressContext { node: "node-a".into(), ..AddressContext::default() };
        let group = PacketGroup { judgement: Judgement::WouldDeny, ..denied(Direction::Ingress, source, DB, port) };
        let event = DropEvent { at: time(second), group, first: FirstPacket::default(), count };
        let denial = name(&Ends { state, place: &place, scheme: None }, &event);
        ledger.record_drop(&event, &denial);
    }

    #[test]
    fn audited_policies_are_listed_with_would_be_denials() {
        let (state, mut ledger) = (state(), AuditLedger::default());
        observe(&mut ledger, &state, "192.0.2.1", 1, 1);
        observe(&mut ledger, &state, "192.0.2.2", 5, 2);
        observe(&mut ledger, &state, "192.0.2.1", 1, 3);
        let report = ledger.report(&state, None);
        let names: Vec<&str> = report.iter().map(|policy| &*policy.policy).collect();
        assert_eq!(names, ["shop/all", "shop/db"]);
        for policy in &report {
            assert_eq!((policy.would_deny, policy.flows, policy.more_flows), (7, 2, false));
            assert_eq!(policy.first.as_deref(), Some("2026-05-04T03:02:01.000Z"));
            assert_eq!(policy.last.as_deref(), Some("2026-05-04T03:02:03.000Z"));
            let top: Vec<(String, u64)> = policy.top.iter().map(|f| (f.source.to_string(), f.count)).collect();
            assert_eq!(top, [("world (192.0.2.2)".to_owned(), 5), ("world (192.0.2.1)".to_owned(), 2)]);
        }
        assert_eq!(ledger.remaining(&state).flows.len(), 2);
        assert_eq!(ledger.report(&state, Some("ops")), []);
    }

    #[test]
    fn audited_cluster_policy_is_listed_with_flows() {
        let mut state = state();
        add(&mut state, Kind::Namespace, &json!({"metadata": {"name": "shop"}}));
        let web = json!({
            "metadata": {"namespace": "shop", "name": "web"}, "spec": {"nodeName": "node-a"},
            "status": {"phase": "Running", "podIP": "10.1.0.1"}
        });
        add(&mut state, Kind::Pod, &web);
        let object = |enforcement: &str| {
            json!({
                "apiVersion": "policy.networking.k8s.io/v1alpha2",
                "metadata": {"name": "tenants", "annotations": {"ringfence.io/enforcement": enforcement}},
                "spec": {
                    "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
                    "ingress": [{"name": "closed", "action": "Deny", "from": [{"namespaces": {}}]}],
                },
            })
        };
        add(&mut state, Kind::ClusterNetworkPolicy, &object("audit"));
        let mut ledger = AuditLedger::default();
        observe(&mut ledger, &state, "10.1.0.1", 3, 1);
        let listed = |state: &ClusterState| {
            let report = ledger.report(state, None);
            let of_cluster = report.into_iter().find(|policy| policy.policy == "tenants");
            of_cluster.map(|policy| (policy.would_deny, policy.remaining))
        };
        assert_eq!(listed(&state), Some((3, 1)));
        assert_eq!(ledger.remaining(&state).flows.len(), 0, "no NetworkPolicy could allow it");
        add(&mut state, Kind::ClusterNetworkPolicy, &object("enforce"));
        assert_eq!(listed(&state), None);
    }

    #[test]
    fn policy_counts_restart_after_enforcement() {
        let (mut state, mut ledger) = (state(), AuditLedger::default());
        observe(&mut ledger, &state, "192.0.2.1", 1, 1);
        set_policy(&mut state, "db", "enforce");
        ledger.keep_audited(&state);
        let listed = |ledger: &AuditLedger, state: &ClusterState| {
            let report = ledger.report(state, None);
            report.into_iter().map(|policy| (policy.policy, policy.would_deny)).collect::<Vec<_>>()
        };
        assert_eq!(listed(&ledger, &state), [("shop/all".to_owned(), 1)]);
        set_policy(&mut state, "db", "audit");
        assert_eq!(listed(&ledger, &state), [("shop/all".to_owned(), 1), ("shop/db".to_owned(), 0)]);
    }

    #[test]
    fn policy_flows_are_bounded_by_evicting_least_recent() {
        let (state, mut ledger) = (state(), AuditLedger::default());
        observe(&mut ledger, &state, "198.51.100.1", 1, 1);
        for n in 0..FLOWS {
            observe(&mut ledger, &state, &format!("192.0.{}.{}", n / 250, n % 250), 1, 2);
        }
        observe(&mut ledger, &state, "198.51.100.2", 50, 3);
        let report = ledger.report(&state, None);
        let all = &report[0];
        let flows = u64::try_from(FLOWS).unwrap();
        assert_eq!((all.would_deny, all.flows, all.more_flows, all.top.len()), (flows + 51, flows, true, SHOWN));
        assert_eq!(all.top[0].source.to_string(), "world (198.51.100.2)");
        assert_eq!(ledger.incomplete("shop").map(|(_, until)| until).collect::<Vec<_>>(), [time(2), time(2)]);
        let known = ledger.remaining(&state).flows;
        assert!(known.iter().all(|flow| flow.peer.address.to_string() != "198.51.100.1"));
    }

    #[test]
    fn total_flows_are_bounded_and_policy_counts_exact() {
        let (mut state, mut ledger) = (state(), AuditLedger::default());
        let policies = FLOWS_OF_ALL / FLOWS + 3;
        (0..policies).for_each(|n| set_policy(&mut state, &format!("more-{n}"), "audit"));
        for n in 0..FLOWS {
            observe(&mut ledger, &state, &format!("192.0.{}.{}", n / 250, n % 250), 1, 2);
        }
        assert_eq!(ledger.policies.values().map(|entry| entry.flows).sum::<usize>(), FLOWS_OF_ALL);
        let report = ledger.report(&state, None);
        assert_eq!(report.len(), policies + 2);
        assert!(report.iter().all(|policy| policy.would_deny == u64::try_from(FLOWS).unwrap()));
    }

    #[test]
    fn port_scan_is_one_entry_without_rules() {
        let (state, mut ledger) = (state(), AuditLedger::default());
        observe(&mut ledger, &state, "192.0.2.2", 1, 1);
        for port in 1..=500 {
            observe_port(&mut ledger, &state, "192.0.2.1", port, 1, 2);
        }
        let report = ledger.report(&state, None);
        let top: Vec<(String, &str, u64)> =
            report[0].top.iter().map(|f| (f.source.to_string(), &*f.traffic, f.count)).collect();
        assert_eq!(
            top,
            [("world (192.0.2.1)".to_owned(), "many ports", 500), ("world (192.0.2.2)".to_owned(), "5432/tcp", 1)]
        );
        assert_eq!((report[0].remaining, report[0].more_flows), (2, true));
        let remaining = ledger.remaining(&state);
        assert_eq!((remaining.flows.len(), remaining.many_ports.len()), (1, 1));
    }

    #[test]
    fn flow_allowed_by_newer_policy_does_not_remain() {
        let (mut state, mut ledger) = (state(), AuditLedger::default());
        observe(&mut ledger, &state, "192.0.2.1", 1, 1);
        observe(&mut ledger, &state, "192.0.2.2", 1, 2);
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "next", "annotations": {"ringfence.io/enforcement": "audit"}},
            "spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "192.0.2.1/32"}}]}]}
        });
        add(&mut state, Kind::NetworkPolicy, &object);
        let report = ledger.report(&state, None);
        assert_eq!((report[0].would_deny, report[0].flows, report[0].remaining), (2, 2, 1));
        assert_eq!(report[0].top[0].last, "2026-05-04T03:02:02.000Z");
        assert_eq!(ledger.remaining(&state).flows.len(), 1);
    }
}
