//! What-if reports exactly the changes of the oracle's verdicts, and suggestions allow what was seen and no more.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use flow::{EndSample, Endpoint, EndpointKind, FlowVerdict, Network};
use insight::{
    Effect, NamespaceChoice, ObservedEdge, PolicyChanges, SuggestionScope, Suggestions, WorkloadIndex, flows_of,
    suggest, units, what_if,
};
use ipnet::IpNet;
use jiff::Timestamp;
use kit::oracle::{Probe, World, judge, node_of, owner, stays_on_node};
use policy::{
    Change, ClusterState, Direction, Holder, Interner, Kind, Object, ObjectName, Protocol, SideVerdict, Traffic,
    explain_side, lower,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;
use tests::generate::{NODES, probes, world};
use tests::objects::state_of;

/// Minimum number of flows that are compared with the oracle, over all worlds.
const FLOWS: usize = 3_000;

fn end(state: &ClusterState, address: IpAddr) -> Option<(Endpoint, EndSample)> {
    let mut sample = EndSample { addresses: [address].into(), ..EndSample::default() };
    let plain = |kind| Endpoint { kind, namespace: None, name: None, service: None, cluster: None, network: None };
    match state.holder(address) {
        None => match state.nodes_with(address).next() {
            Some(node) => {
                sample.nodes.insert(node.clone());
                Some((Endpoint { name: Some(node.clone()), ..plain(EndpointKind::Node) }, sample))
            }
            None => Some((Endpoint { network: Some(Network::Public), ..plain(EndpointKind::World) }, sample)),
        },
        Some(Holder::Unknown(_)) => None,
        Some(Holder::Pod(pod)) if pod.finished || pod.host_network => None,
        Some(Holder::Pod(pod)) => {
            let name: Arc<str> = pod.name.to_string().into();
            sample.pods.insert(name);
            sample.nodes.extend(pod.node.clone());
            let workload = identity::Workload::of(pod, &mut Interner::new()).name;
            let namespace = pod.name.namespace.clone();
            Some((Endpoint { namespace: Some(namespace), name: Some(workload), ..plain(EndpointKind::Pod) }, sample))
        }
    }
}

/// The edge of one flow. `None` if no end is a pod, or both are the same.
fn edge(state: &ClusterState, probe: &Probe, verdict: FlowVerdict) -> Option<ObservedEdge> {
    let [(source, sources), (destination, destinations)] = [end(state, probe.source)?, end(state, probe.destination)?];
    if source.kind != EndpointKind::Pod && destination.kind != EndpointKind::Pod || probe.source == probe.destination {
        return None;
    }
    let now = Timestamp::from_second(1_777_896_000).unwrap();
    Some(ObservedEdge {
        source,
        destination,
        protocol: probe.protocol,
        port: probe.port,
        services: BTreeSet::new(),
        verdicts: [verdict].into(),
        connections: 1,
        denied_packets: 0,
        sources,
        destinations,
        first: now,
        last: now,
    })
}

/// Flows between a pod and its own node are judged by no policy.
fn passes(world: &World, probe: &Probe) -> bool {
    stays_on_node(world, probe) || NODES.iter().all(|node| judge(world, node, probe).passes())
}

/// Nodes judge only flows of pods that are bound to them.
fn is_bound(world: &World, probe: &Probe) -> bool {
    let is_bound = |address| owner(world, address).is_none_or(|pod| node_of(pod).is_some_and(|n| NODES.contains(&n)));
    is_bound(probe.source) && is_bound(probe.destination)
}

/// A world, its flows, and the policies of another one.
fn case() -> impl Strategy<Value = (World, Vec<Probe>, Vec<Value>)> {
    (world(), world()).prop_flat_map(|(world, other)| {
        let both = World { policies: [world.policies.clone(), other.policies.clone()].concat(), ..world.clone() };
        (Just(world), probes(&both), Just(other.policies))
    })
}

fn named(policy: &Value) -> (Value, Value) {
    (policy["metadata"]["namespace"].clone(), policy["metadata"]["name"].clone())
}

#[test]
fn what_if_reports_each_change_of_oracle() {
    let mut counts: BTreeMap<Option<Effect>, usize> = BTreeMap::new();
    let mut judged = 0;
    let mut runner = TestRunner::new_with_rng(
        Config { cases: 250, failure_persistence: None, ..Config::default() },
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let found = std::cell::RefCell::new((&mut counts, &mut judged));
    runner
        .run(&case(), |(world, probes, given)| {
            let state = state_of(&world);
            let Some(set) = given.first() else { return Ok(()) };
            let deleted = world.policies.iter().find(|policy| named(policy) != named(set));
            let after = World {
                policies: world
                    .policies
                    .iter()
                    .filter(|policy| named(policy) != named(set) && Some(*policy) != deleted)
                    .chain([set])
                    .cloned()
                    .collect(),
                ..world.clone()
            };
            let object = lower(Kind::NetworkPolicy, set).unwrap();
            let name = |policy: &Value| format!("NetworkPolicy/{}", lower(Kind::NetworkPolicy, policy).unwrap().name());
            let changes =
                PolicyChanges::new([object], deleted.iter().map(|policy| name(policy).parse().unwrap())).unwrap();
            let directory = WorkloadIndex::of(&state);
            for probe in probes.iter().filter(|probe| is_bound(&world, probe)) {
                let Some(edge) = edge(&state, probe, FlowVerdict::Allowed) else { continue };
                let report = what_if(&state, &changes, std::slice::from_ref(&edge));
                let flows = flows_of(&directory, &edge).unwrap();
                let probes = flows.pairs.iter().map(|(source, destination)| Probe {
                    source: *source,
                    destination: *destination,
                    ..*probe
                });
                let verdicts: Vec<(bool, bool)> =
                    probes.map(|probe| (passes(&world, &probe), passes(&after, &probe))).collect();
                let expected = |verdict: (bool, bool)| verdicts.iter().filter(|v| **v == verdict).count() as u64;
                let reported =
                    |effect: Effect| report.changed.iter().filter(|c| c.effect == effect).map(|c| c.flows).sum::<u64>();
                let context = || format!("{probe}: {verdicts:?}, {report:#?}");
                prop_assert_eq!(reported(Effect::NewlyDenied), expected((true, false)), "{}", context());
                prop_assert_eq!(reported(Effect::NewlyAllowed), expected((false, true)), "{}", context());
                let mut found = found.borrow_mut();
                *found.1 += flows.pairs.len();
                let effects = report.changed.iter().map(|changed| Some(changed.effect));
                for effect in effects.chain(report.changed.is_empty().then_some(None)) {
                    *found.0.entry(effect).or_default() += 1;
                }
            }
            Ok(())
        })
        .unwrap();
    println!("{judged} flows: {counts:?}");
    assert!(judged >= FLOWS, "{judged}");
    assert_eq!(counts.len(), 6, "each effect occurs, and none: {counts:?}");
}

fn everything() -> SuggestionScope {
    SuggestionScope {
        namespaces: NamespaceChoice::AllBut(BTreeSet::new()),
        directions: Direction::BOTH.into(),
        audit: false,
    }
}

/// The state with these policies only.
fn with_policies(state: &ClusterState, policies: &[Value]) -> ClusterState {
    let mut state = state.clone();
    let lowered: Vec<Object> = policies.iter().map(|value| lower(Kind::NetworkPolicy, value).unwrap()).collect();
    state.set_default_enforcement(policy::Enforcement::Enforce);
    state.apply(Change::Replace(Kind::NetworkPolicy, lowered));
    state
}

fn suggested_values(suggestions: &Suggestions) -> Vec<Value> {
    suggestions.policies.iter().map(|suggested| suggested.policy.clone()).collect()
}

fn has_rule(suggestions: &Suggestions, edge: &ObservedEdge) -> bool {
    let is_edge = |without: &insight::EdgeName| {
        (&without.source, &without.destination, without.protocol, without.port)
            == (&edge.source, &edge.destination, edge.protocol, edge.port)
    };
    !suggestions.without_rule.iter().any(|without| is_edge(&without.edge))
}

fn traffic(probe: &Probe) -> Traffic {
    match (Protocol::from_number(probe.protocol), probe.port) {
        (Some(protocol), Some(port)) => Traffic::Port(protocol, port),
        _ => Traffic::Portless,
    }
}

/// The worlds without audited namespaces, in which suggestions would be audited too, and flows that pass in them.
fn seen_case() -> impl Strategy<Value = (World, Vec<Probe>, Vec<Probe>)> {
    world().prop_flat_map(|mut world| {
        world.audits_by_default = false;
        world.namespaces.iter_mut().for_each(|namespace| namespace.metadata.annotations = None);
        (Just(world.clone()), probes(&world), probes(&world))
    })
}

fn runner() -> TestRunner {
    let rng = proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(Config { cases: 250, failure_persistence: None, ..Config::default() }, rng)
}

/// Flows that pass, with their edges, merged by key.
fn observed(world: &World, state: &ClusterState, probes: &[Probe]) -> (Vec<Probe>, Vec<ObservedEdge>) {
    let mut edges = insight::ObservedEdges::default();
    let mut passing = Vec::new();
    for probe in probes.iter().filter(|probe| is_bound(world, probe) && passes(world, probe)) {
        if let Some(edge) = edge(state, probe, FlowVerdict::Allowed) {
            edges.merge(edge);
            passing.push(*probe);
        }
    }
    (passing, edges.into_vec())
}

#[test]
fn suggestion_denies_no_observed_flow() {
    let replayed = std::cell::Cell::new(0);
    runner()
        .run(&seen_case(), |(world, probes, _)| {
            let state = state_of(&world);
            let (passing, edges) = observed(&world, &state, &probes);
            let suggestions = suggest(&state, &everything(), &edges);
            let policies = suggested_values(&suggestions);
            for suggested in &suggestions.policies {
                let Object::Policy(policy) = lower(Kind::NetworkPolicy, &suggested.policy).unwrap() else { panic!() };
                prop_assert!(policy.problems.is_empty(), "{:?}\n{}", policy.problems, suggested.yaml);
            }
            let enforced = World { policies, ..world.clone() };
            for probe in &passing {
                let edge = edge(&state, probe, FlowVerdict::Allowed).unwrap();
                if has_rule(&suggestions, &edge) {
                    prop_assert!(passes(&enforced, probe), "{} {:#?}", probe, suggestions);
                    replayed.set(replayed.get() + 1);
                }
            }
            Ok(())
        })
        .unwrap();
    println!("{} flows", replayed.get());
    assert!(replayed.get() >= FLOWS / 3, "{}", replayed.get());
}

#[test]
fn each_suggested_rule_is_needed() {
    let rules = std::cell::Cell::new(0);
    runner()
        .run(&seen_case(), |(world, probes, _)| {
            let state = state_of(&world);
            let (passing, edges) = observed(&world, &state, &probes);
            let suggestions = suggest(&state, &everything(), &edges);
            let policies = suggested_values(&suggestions);
            for (at, policy) in policies.iter().enumerate() {
                for direction in Direction::BOTH {
                    let count = policy["spec"][direction.word()].as_array().map_or(0, Vec::len);
                    for rule in 0..count {
                        let mut fewer = policies.clone();
                        fewer[at]["spec"][direction.word()].as_array_mut().unwrap().remove(rule);
                        let without = with_policies(&state, &fewer);
                        let is_denied = |probe: &Probe| {
                            let (source, destination) = (probe.source, probe.destination);
                            !explain_side(&without, source, destination, traffic(probe), direction).verdict.allows()
                        };
                        let granted = passing.iter().filter(|probe| {
                            has_rule(&suggestions, &edge(&state, probe, FlowVerdict::Allowed).unwrap())
                        });
                        prop_assert!(
                            granted.clone().any(is_denied) || passing.iter().any(is_denied),
                            "rule {} of {:#}",
                            rule,
                            policy
                        );
                        rules.set(rules.get() + 1);
                    }
                }
            }
            Ok(())
        })
        .unwrap();
    println!("{} rules", rules.get());
    assert!(rules.get() >= 500, "{}", rules.get());
}

/// The unit of a pod, or the address of another end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SeenEnd {
    Unit(Arc<str>, String),
    Address(IpAddr),
}

type UnitNames = BTreeMap<Arc<str>, BTreeMap<Arc<str>, Option<String>>>;

fn seen_end(state: &ClusterState, names: &UnitNames, address: IpAddr) -> Option<SeenEnd> {
    let (endpoint, _) = end(state, address)?;
    match (endpoint.kind, endpoint.namespace, endpoint.name) {
        (EndpointKind::Pod, Some(namespace), Some(name)) => {
            let unit = names.get(&namespace)?.get(&name)?.clone()?;
            Some(SeenEnd::Unit(namespace, unit))
        }
        _ => Some(SeenEnd::Address(address)),
    }
}

/// Flows that differ from a seen one in an end.
fn neighbours<'a>(seen: &'a [Probe], others: &'a [Probe]) -> impl Iterator<Item = Probe> + 'a {
    seen.iter().take(6).flat_map(move |seen| {
        others.iter().flat_map(|other| {
            [Probe { source: other.source, ..*seen }, Probe { destination: other.destination, ..*seen }, *other]
        })
    })
}

#[test]
fn suggestion_allows_nothing_beyond_stated_widening() {
    let compared = std::cell::Cell::new((0, 0));
    runner()
        .run(&seen_case(), |(world, probes, others)| {
            let state = state_of(&world);
            let (passing, edges) = observed(&world, &state, &probes);
            let suggestions = suggest(&state, &everything(), &edges);
            let enforced = with_policies(&state, &suggested_values(&suggestions));
            let namespaces: BTreeSet<Arc<str>> = state.pods().map(|pod| pod.name.namespace.clone()).collect();
            let names: UnitNames = namespaces.into_iter().map(|name| (name.clone(), units(&state, &name))).collect();
            let end = |address| seen_end(&state, &names, address);
            let key = |probe: &Probe| Some((end(probe.source)?, end(probe.destination)?, traffic(probe)));
            let seen: BTreeSet<_> = passing.iter().filter_map(key).collect();
            for probe in neighbours(&passing, &others) {
                if probe.source == probe.destination || probe.source.is_ipv4() != probe.destination.is_ipv4() {
                    continue;
                }
                let Some((source, destination, traffic)) = key(&probe) else { continue };
                for direction in Direction::BOTH {
                    let verdict = explain_side(&enforced, probe.source, probe.destination, traffic, direction).verdict;
                    let SideVerdict::Allowed { .. } = verdict else { continue };
                    let is_dns = direction == Direction::Egress
                        && matches!(traffic, Traffic::Port(Protocol::Udp | Protocol::Tcp, 53));
                    let is_seen = seen.contains(&(source.clone(), destination.clone(), traffic));
                    let address = match direction {
                        Direction::Egress => probe.destination,
                        Direction::Ingress => probe.source,
                    };
                    let is_stated = suggestions.policies.iter().flat_map(|policy| &policy.comments).any(|comment| {
                        comment.split(' ').filter_map(|word| word.parse().ok()).any(|net: IpNet| net.contains(&address))
                    });
                    prop_assert!(is_seen || is_dns || is_stated, "{} {:?} {:#?}", probe, direction, suggestions);
                    let (seen, all) = compared.get();
                    compared.set((seen + usize::from(is_seen), all + 1));
                }
            }
            Ok(())
        })
        .unwrap();
    println!("{:?}", compared.get());
    assert!(compared.get().1 >= 200, "{:?}", compared.get());
}

#[test]
fn workload_without_pods_is_reported_not_guessed() {
    let state = ClusterState::new();
    let endpoint = |name: &str| Endpoint {
        kind: EndpointKind::Pod,
        namespace: Some("shop".into()),
        name: Some(name.into()),
        service: None,
        cluster: None,
        network: None,
    };
    let now = Timestamp::from_second(1_777_896_000).unwrap();
    let edge = ObservedEdge {
        source: endpoint("web"),
        destination: endpoint("api"),
        protocol: 6,
        port: Some(80),
        services: BTreeSet::new(),
        verdicts: [FlowVerdict::Allowed].into(),
        connections: 1,
        denied_packets: 0,
        sources: EndSample::default(),
        destinations: EndSample::default(),
        first: now,
        last: now,
    };
    let delete = "networkpolicy/shop/api".parse().unwrap();
    let report = what_if(&state, &PolicyChanges::new([], [delete]).unwrap(), std::slice::from_ref(&edge));
    assert_eq!((report.unchanged, report.not_evaluated.len()), (0, 1));
    assert_eq!(report.policies[0].policy, format!("NetworkPolicy {}", ObjectName::new("shop", "api")));
    let suggestions = suggest(&state, &everything(), &[edge]);
    assert_eq!((suggestions.policies.len(), suggestions.without_rule.len()), (0, 2));
}
