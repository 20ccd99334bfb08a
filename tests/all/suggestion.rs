//! Suggested policies allow the observed flows, and no others between workloads.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use kit::oracle::{Probe, World};
use policy::{
    Change, ClusterState, Direction, EndSeen, Enforcement, FlowSeen, Kind, Object, Policy, SideVerdict, SuggestedPods,
    Suggestion, Traffic, WhoSeen, Workloads, explain, lower, suggest,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tests::generate::{draw_probes, draw_worlds, probes, world};
use tests::objects::state_of;

/// The owner of an address, as far as a policy can select it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum OwnerLabels {
    /// The namespace and the labels of a labelled pod.
    Workload(String, Vec<(String, String)>),
    Address(IpAddr),
    /// No selector matches exactly this owner.
    Unnameable,
}

fn who(state: &ClusterState, address: IpAddr) -> OwnerLabels {
    match state.owner(address) {
        None => OwnerLabels::Address(address),
        Some(pod) if pod.labels.is_empty() => OwnerLabels::Unnameable,
        Some(pod) => {
            let labels = pod.labels.iter().map(|(key, value)| (key.to_string(), value.to_string()));
            OwnerLabels::Workload(pod.name.namespace.to_string(), labels.collect())
        }
    }
}

fn traffic(probe: &Probe) -> Traffic {
    match (nft::Protocol::from_number(probe.protocol), probe.port) {
        (Some(protocol), Some(port)) => Traffic::Port(protocol, port),
        _ => Traffic::Portless,
    }
}

/// The address of the judged side, and that of its peer.
fn ends(probe: &Probe, direction: Direction) -> (IpAddr, IpAddr) {
    match direction {
        Direction::Egress => (probe.source, probe.destination),
        Direction::Ingress => (probe.destination, probe.source),
    }
}

/// The unit that a policy can allow: a workload, a direction, a peer and a port.
type SuggestOutput = (OwnerLabels, Direction, OwnerLabels, Traffic);

/// `None` if no policy can express the flow.
fn said(state: &ClusterState, probe: &Probe, direction: Direction) -> Option<SuggestOutput> {
    let (own, other) = ends(probe, direction);
    let (local, peer) = (who(state, own), who(state, other));
    let OwnerLabels::Workload(namespace, _) = &local else { return None };
    let is_known = match &peer {
        OwnerLabels::Workload(other, _) => other == namespace || state.namespace_labels(other).is_some(),
        OwnerLabels::Address(_) => true,
        OwnerLabels::Unnameable => false,
    };
    (is_known && traffic(probe) != Traffic::Portless).then(|| (local, direction, peer, traffic(probe)))
}

fn seen(state: &ClusterState, probe: &Probe, direction: Direction) -> FlowSeen {
    let (own, other) = ends(probe, direction);
    let who = |address| state.owner(address).map_or(WhoSeen::NoPod, |pod| WhoSeen::Pod(pod.name.clone()));
    let end = |address: IpAddr| EndSeen { address, who: who(address) };
    FlowSeen { direction, local: end(own), peer: end(other), traffic: traffic(probe) }
}

fn of_every_namespace(state: &ClusterState, flows: &[FlowSeen]) -> Vec<Suggestion> {
    let namespaces: BTreeSet<Arc<str>> = state.pods().map(|pod| pod.name.namespace.clone()).collect();
    let workloads = Workloads::of(state);
    namespaces.into_iter().map(|namespace| suggest(&workloads, &SuggestedPods::Namespace(namespace), flows)).collect()
}

/// The cluster with the suggested policies instead of its policies.
fn with_only(world: &World, suggestions: &[Suggestion], enforcement: Option<Enforcement>) -> ClusterState {
    let mut state = state_of(world);
    let documents = suggestions.iter().flat_map(|suggestion| &suggestion.policies);
    let lowered = documents.map(|document| match lower(Kind::NetworkPolicy, document).expect("a name") {
        Object::Policy(policy) => {
            assert_eq!(policy.problems, vec![], "{document}");
            let policy = Arc::unwrap_or_clone(policy);
            Object::Policy(Arc::new(Policy { enforcement: enforcement.or(policy.enforcement), ..policy }))
        }
        other => unreachable!("{other:?} is no policy"),
    });
    state.apply(Change::Replace(Kind::NetworkPolicy, lowered.collect()));
    state
}

fn verdict(state: &ClusterState, probe: &Probe, direction: Direction) -> SideVerdict {
    let explanation = explain(state, probe.source, probe.destination, traffic(probe));
    match direction {
        Direction::Egress => explanation.egress,
        Direction::Ingress => explanation.ingress,
    }
}

/// The observed flows, and every combination of their ends and ports.
fn mixed(probes: &[Probe]) -> Vec<Probe> {
    const MIXED: usize = 12;
    let few = &probes[..probes.len().min(MIXED)];
    let mut all = probes.to_vec();
    for from in few {
        for to in few.iter().filter(|to| to.destination.is_ipv4() == from.source.is_ipv4()) {
            for what in few {
                let Probe { protocol, port, .. } = *what;
                all.push(Probe { source: from.source, destination: to.destination, protocol, port });
            }
        }
    }
    all.retain(|probe| probe.source != probe.destination);
    all
}

#[test]
fn suggested_policies_allow_exactly_the_observed_flows() {
    let mut runner = TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    let strategy = world().prop_flat_map(|w| (probes(&w), Just(w)));
    let (allowed, denied) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let checked = runner.run(&strategy, |(probes, world)| {
        let state = state_of(&world);
        let sides = |probe: &Probe| Direction::BOTH.map(|direction| (*probe, direction));
        let observed: Vec<(Probe, Direction)> = probes.iter().step_by(2).flat_map(sides).collect();
        let flows: Vec<FlowSeen> = observed.iter().map(|(probe, d)| seen(&state, probe, *d)).collect();
        let suggestions = of_every_namespace(&state, &flows);
        let mut reversed = flows.clone();
        reversed.reverse();
        prop_assert_eq!(&suggestions, &of_every_namespace(&state, &reversed), "the order of flows does not matter");

        let expected: BTreeSet<SuggestOutput> = observed
            .iter()
            .filter(|(probe, _)| probe.source != probe.destination)
            .filter_map(|(probe, d)| said(&state, probe, *d))
            .collect();
        let isolated: BTreeSet<(&OwnerLabels, Direction)> = expected.iter().map(|(who, d, ..)| (who, *d)).collect();
        let enforced = with_only(&world, &suggestions, Some(Enforcement::Enforce));
        let tried = with_only(&world, &suggestions, None);
        for probe in mixed(&probes) {
            for direction in Direction::BOTH {
                let own = who(&state, ends(&probe, direction).0);
                let verdict = verdict(&enforced, &probe, direction);
                if verdict == SideVerdict::OwnNode {
                    continue;
                }
                let agrees = match (said(&state, &probe, direction), isolated.contains(&(&own, direction))) {
                    (_, false) => matches!(verdict, SideVerdict::NotIsolated | SideVerdict::NotAPod),
                    (Some(said), true) if expected.contains(&said) => {
                        allowed.set(allowed.get() + 1);
                        matches!(verdict, SideVerdict::Allowed { .. })
                    }
                    (_, true) => {
                        denied.set(denied.get() + 1);
                        matches!(verdict, SideVerdict::Denied { .. })
                    }
                };
                let shown = || suggestions.iter().map(|s| format!("{:#?}\n", s.policies)).collect::<String>();
                prop_assert!(agrees, "{:?} {:?}: {}\n{}\n{:?}", probe, direction, verdict, shown(), world);
            }
            let harmless = explain(&tried, probe.source, probe.destination, traffic(&probe)).allowed;
            prop_assert!(harmless, "applied as they are, suggestions deny nothing: {:?}", probe);
        }
        Ok(())
    });
    if let Err(failure) = checked {
        panic!("{failure}");
    }
    println!("{} allowed, {} denied", allowed.get(), denied.get());
    assert!(allowed.get() > 1000 && denied.get() > 1000, "too few flows with one of the verdicts");
}

#[test]
fn suggested_policies_round_trip_through_files() {
    let mut read = 0;
    for world in draw_worlds(40) {
        let state = state_of(&world);
        let sides = |probe: Probe| Direction::BOTH.map(|direction| seen(&state, &probe, direction));
        let flows: Vec<FlowSeen> = draw_probes(&world, 40).into_iter().flat_map(sides).collect();
        let suggestions = of_every_namespace(&state, &flows);
        let policies: Vec<serde_json::Value> = suggestions.iter().flat_map(|s| s.policies.clone()).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let text = World { policies: policies.clone(), ..World::default() }.to_yaml();
        std::fs::write(folder.path().join("suggested.yaml"), text).expect("a file");
        let from_file = cluster::read_folder(folder.path()).expect("the folder");
        assert_eq!(from_file.problems, vec![]);
        let mut found = ClusterState::new();
        for change in from_file.changes() {
            found.apply(change);
        }
        for policy in &policies {
            let Ok(Object::Policy(policy)) = lower(Kind::NetworkPolicy, policy) else { unreachable!("it is one") };
            assert_eq!(found.policy(&policy.name), Some(&policy));
            read += 1;
        }
        assert_eq!(found.policy_count(), policies.len());
    }
    assert!(read > 100, "{read}");
}
