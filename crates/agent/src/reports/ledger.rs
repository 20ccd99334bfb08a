//! What audited policies would have denied since the agent started.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use policy::{ClusterState, Direction, EndSeen, Enforcement, FlowSeen, Judgement, ObjectName};

use super::naming::carried_traffic;
use super::seen::{Carried, Observation};
use crate::api::audit::{AuditReport, AuditedFlow, AuditedPolicy};
use crate::api::denial::{Denial, End};

/// Flows that are told apart of one policy: what a person reads, and what a suggestion can hold.
const FLOWS: usize = 1000;

/// Policies with flows. A node has so many only where every pod has its own; further ones are not counted.
const POLICIES: usize = 1000;

/// Flows that a report shows of each policy.
const SHOWN: usize = 10;

#[derive(Debug)]
pub(crate) struct Ledger {
    since: Timestamp,
    policies: BTreeMap<ObjectName, Entry>,
}

#[derive(Debug)]
struct Entry {
    packets: u64,
    flows: BTreeMap<Flow, Counted>,
    /// There were more flows than can be told apart.
    more: bool,
    first: Timestamp,
    last: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Flow {
    direction: Direction,
    source: End,
    destination: End,
    traffic: String,
}

#[derive(Debug)]
struct Counted {
    packets: u64,
    /// As suggestions take it: the policy's pod and its peer.
    seen: FlowSeen,
}

impl Ledger {
    pub(crate) fn new(since: Timestamp) -> Ledger {
        Ledger { since, policies: BTreeMap::new() }
    }

    /// Takes in what was named.
    pub(crate) fn note(&mut self, observation: &Observation, denial: &Denial, now: Timestamp) {
        let (Judgement::WouldDeny, Some(direction)) = (denial.verdict, denial.direction) else { return };
        let Some(seen) = flow_seen(observation, denial, direction) else { return };
        let flow = Flow {
            direction,
            source: denial.source.clone(),
            destination: denial.destination.clone(),
            traffic: denial.traffic.clone(),
        };
        for policy in denial.policies.iter().filter_map(|name| name.parse::<ObjectName>().ok()) {
            if self.policies.len() >= POLICIES && !self.policies.contains_key(&policy) {
                continue;
            }
            let new = || Entry { packets: 0, flows: BTreeMap::new(), more: false, first: now, last: now };
            self.policies.entry(policy).or_insert_with(new).add(flow.clone(), seen.clone(), denial.count, now);
        }
    }

    /// Forgets policies that are not audited any more.
    pub(crate) fn keep_audited(&mut self, state: &ClusterState) {
        self.policies.retain(|name, _| state.policy(name).is_some_and(|p| state.enforcement(p) == Enforcement::Audit));
    }

    /// Of every audited policy, or those of a namespace.
    pub(crate) fn report(&self, state: &ClusterState, node: &str, namespace: Option<&str>) -> AuditReport {
        let audited = state.policies().filter(|policy| state.enforcement(policy) == Enforcement::Audit);
        let audited = audited.filter(|policy| namespace.is_none_or(|wanted| wanted == &*policy.name.namespace));
        let policies = audited.map(|policy| match self.policies.get(&policy.name) {
            Some(entry) => entry.report(&policy.name),
            None => nothing_of(&policy.name),
        });
        AuditReport { node: node.to_owned(), since: format!("{:.3}", self.since), policies: policies.collect() }
    }

    /// Every flow that would have been denied, each once.
    pub(crate) fn flows(&self) -> BTreeSet<&FlowSeen> {
        self.policies.values().flat_map(|entry| entry.flows.values().map(|counted| &counted.seen)).collect()
    }

    /// Policies of the namespace of which more was seen than is known.
    pub(crate) fn incomplete<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = &'a ObjectName> {
        let more = self.policies.iter().filter(|(_, entry)| entry.more);
        more.map(|(name, _)| name).filter(move |name| *name.namespace == *namespace)
    }
}

impl Entry {
    fn add(&mut self, flow: Flow, seen: FlowSeen, packets: u64, now: Timestamp) {
        self.packets += packets;
        self.last = now;
        let full = self.flows.len() >= FLOWS;
        match self.flows.get_mut(&flow) {
            Some(counted) => counted.packets += packets,
            None if full => self.more = true,
            None => {
                self.flows.insert(flow, Counted { packets, seen });
            }
        }
    }

    fn report(&self, policy: &ObjectName) -> AuditedPolicy {
        let mut top: Vec<(&Flow, &Counted)> = self.flows.iter().collect();
        top.sort_by_key(|(_, counted)| std::cmp::Reverse(counted.packets));
        let shown = |(flow, counted): (&Flow, &Counted)| AuditedFlow {
            direction: flow.direction,
            source: flow.source.clone(),
            destination: flow.destination.clone(),
            traffic: flow.traffic.clone(),
            count: counted.packets,
        };
        AuditedPolicy {
            policy: policy.to_string(),
            would_deny: self.packets,
            flows: u64::try_from(self.flows.len()).unwrap_or(u64::MAX),
            more_flows: self.more,
            first: Some(format!("{:.3}", self.first)),
            last: Some(format!("{:.3}", self.last)),
            top: top.into_iter().take(SHOWN).map(shown).collect(),
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
        top: vec![],
    }
}

/// The flow as suggestions take it, with the names that its ends had.
fn flow_seen(observation: &Observation, denial: &Denial, direction: Direction) -> Option<FlowSeen> {
    let Carried::Flow(flow) = &observation.seen.carried else { return None };
    let end = |address, end: &End| EndSeen { address, pod: end.pod.as_deref().and_then(|pod| pod.parse().ok()) };
    let (source, destination) = (end(flow.source, &denial.source), end(flow.destination, &denial.destination));
    let (local, peer) = match direction {
        Direction::Egress => (source, destination),
        Direction::Ingress => (destination, source),
    };
    Some(FlowSeen { direction, local, peer, traffic: carried_traffic(flow) })
}

#[cfg(test)]
mod tests {
    use policy::{Change, Kind, lower};
    use serde_json::json;

    use super::super::ends::{Ends, Place};
    use super::super::naming::name;
    use super::super::seen::Seen;
    use super::super::seen::tests::denied;
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

    /// A pod whose policies `db` and `all` are audited.
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

    fn observe(ledger: &mut Ledger, state: &ClusterState, source: &str, count: u64, second: u8) {
        let place = Place { node: "node-a".into(), ..Place::default() };
        let seen = Seen { judgement: Judgement::WouldDeny, ..denied(Direction::Ingress, source, DB, 5432) };
        let observation = Observation { seen, icmp: None, count, first: true };
        let denial = name(&Ends { state, place: &place }, &observation, time(second));
        ledger.note(&observation, &denial, time(second));
    }

    #[test]
    fn every_audited_policy_is_listed_with_what_it_would_have_denied() {
        let (state, mut ledger) = (state(), Ledger::new(time(0)));
        observe(&mut ledger, &state, "192.0.2.1", 1, 1);
        observe(&mut ledger, &state, "192.0.2.2", 5, 2);
        observe(&mut ledger, &state, "192.0.2.1", 1, 3);
        let report = ledger.report(&state, "node-a", None);
        let names: Vec<&str> = report.policies.iter().map(|policy| &*policy.policy).collect();
        assert_eq!(names, ["shop/all", "shop/db"]);
        for policy in &report.policies {
            assert_eq!((policy.would_deny, policy.flows, policy.more_flows), (7, 2, false));
            assert_eq!(policy.first.as_deref(), Some("2026-05-04T03:02:01.000Z"));
            assert_eq!(policy.last.as_deref(), Some("2026-05-04T03:02:03.000Z"));
            let top: Vec<(String, u64)> = policy.top.iter().map(|f| (f.source.to_string(), f.count)).collect();
            assert_eq!(top, [("world (192.0.2.2)".to_owned(), 5), ("world (192.0.2.1)".to_owned(), 2)]);
        }
        assert_eq!(ledger.flows().len(), 2);
        assert_eq!(ledger.report(&state, "node-a", Some("ops")).policies, []);
    }

    #[test]
    fn a_policy_that_is_enforced_is_forgotten_and_begins_again_at_nothing() {
        let (mut state, mut ledger) = (state(), Ledger::new(time(0)));
        observe(&mut ledger, &state, "192.0.2.1", 1, 1);
        set_policy(&mut state, "db", "enforce");
        ledger.keep_audited(&state);
        let listed = |ledger: &Ledger, state: &ClusterState| {
            let report = ledger.report(state, "node-a", None);
            report.policies.into_iter().map(|policy| (policy.policy, policy.would_deny)).collect::<Vec<_>>()
        };
        assert_eq!(listed(&ledger, &state), [("shop/all".to_owned(), 1)]);
        set_policy(&mut state, "db", "audit");
        assert_eq!(listed(&ledger, &state), [("shop/all".to_owned(), 1), ("shop/db".to_owned(), 0)]);
    }

    #[test]
    fn flows_of_a_policy_have_a_bound_and_what_is_beyond_is_said() {
        let (state, mut ledger) = (state(), Ledger::new(time(0)));
        for n in 0..=FLOWS {
            observe(&mut ledger, &state, &format!("192.0.{}.{}", n / 250, n % 250), 1, 1);
        }
        let report = ledger.report(&state, "node-a", None);
        let all = &report.policies[0];
        let flows = u64::try_from(FLOWS).unwrap();
        assert_eq!((all.would_deny, all.flows, all.more_flows, all.top.len()), (flows + 1, flows, true, SHOWN));
        assert_eq!(ledger.incomplete("shop").count(), 2);
    }
}
