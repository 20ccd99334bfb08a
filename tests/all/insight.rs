//! What-if reports exactly the changes of the oracle's verdicts, and suggestions allow what was seen and no more.

use std::cell::{Cell, RefCell};
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
use kit::oracle::{Probe, Side, World, judge, node_of, owner, stays_on_node};
use policy::remote::RemoteSet;
use policy::{
    Change, ClusterState, Direction, Holder, Interner, Kind, Object, ObjectName, Protocol, SideVerdict, Traffic,
    explain_side, lower,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::Value;
use tests::generate::{NODES, connected_world, probes, tiered_world, world};
use tests::objects::state_of;

/// Minimum number of flows that are compared with the oracle, over all worlds.
const FLOWS: usize = 3_000;

fn end(state: &ClusterState, address: IpAddr) -> Option<(Endpoint, EndSample)> {
    let mut sample = EndSample { addresses: [address].into(), ..EndSample::default() };
    let plain = |kind| Endpoint { kind, namespace: None, name: None, service: None, cluster: None, network: None };
    match state.holder(address) {
        None => match (state.nodes_with(address).next(), state.remote_sets_with(address).next()) {
            (Some(node), _) => {
                sample.nodes.insert(node.clone());
                Some((Endpoint { name: Some(node.clone()), ..plain(EndpointKind::Node) }, sample))
            }
            (None, Some(RemoteSet { cluster, namespace, name })) => {
                let (namespace, name) = (Some(namespace.clone()), Some(name.clone()));
                let cluster = Some(cluster.clone());
                Some((Endpoint { namespace, name, cluster, ..plain(EndpointKind::RemoteCluster) }, sample))
            }
            (None, None) => Some((Endpoint { network: Some(Network::Public), ..plain(EndpointKind::World) }, sample)),
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

/// A world, its flows, and another one of the same kind.
fn case(worlds: BoxedStrategy<World>) -> impl Strategy<Value = (World, Vec<Probe>, World)> {
    (worlds.clone(), worlds).prop_flat_map(|(world, other)| {
        let both = World {
            policies: [world.policies.clone(), other.policies.clone()].concat(),
            cluster_policies: [world.cluster_policies.clone(), other.cluster_policies.clone()].concat(),
            ..world.clone()
        };
        (Just(world), probes(&both), Just(other))
    })
}

/// Worlds with remote sets and without.
fn any_world() -> BoxedStrategy<World> {
    prop_oneof![world(), connected_world()].boxed()
}

fn named(policy: &Value) -> (Value, Value) {
    (policy["metadata"]["namespace"].clone(), policy["metadata"]["name"].clone())
}

/// The policies with one set and another deleted.
fn changed(policies: &[Value], set: &Value, deleted: Option<&Value>) -> Vec<Value> {
    let kept = policies.iter().filter(|policy| named(policy) != named(set) && Some(*policy) != deleted);
    kept.chain([set]).cloned().collect()
}

/// A policy of a world to delete, other than the one that is set.
fn to_delete<'a>(policies: &'a [Value], set: &Value) -> Option<&'a Value> {
    policies.iter().find(|policy| named(policy) != named(set))
}

fn changes(kind: Kind, set: &Value, deleted: Option<&Value>) -> PolicyChanges {
    // A ClusterNetworkPolicy has no namespace.
    let name =
        |policy: &Value| format!("{kind}/{}", lower(kind, policy).unwrap().name().to_string().trim_start_matches('/'));
    PolicyChanges::new([lower(kind, set).unwrap()], deleted.map(|policy| name(policy).parse().unwrap())).unwrap()
}

/// Whether the flow passes, and whether audited policies would deny it.
fn outcome(world: &World, probe: &Probe) -> (bool, bool) {
    let passes = passes(world, probe);
    let judged = NODES.map(|node| judge(world, node, probe));
    let would_deny = judged.iter().any(|judged| [judged.egress, judged.ingress].contains(&Side::WouldDeny));
    (passes, passes && would_deny && !stays_on_node(world, probe))
}

/// The effect of a change; `None` if the verdict stays, whichever rule decides.
fn effect(before: (bool, bool), after: (bool, bool)) -> Option<Effect> {
    match (before, after) {
        ((true, _), (false, _)) => Some(Effect::NewlyDenied),
        ((false, _), (true, _)) => Some(Effect::NewlyAllowed),
        ((_, false), (_, true)) => Some(Effect::NewlyWouldDeny),
        ((_, true), (_, false)) => Some(Effect::NoLongerWouldDeny),
        _ => None,
    }
}

/// Numbers of flows, and of edges by effect.
#[derive(Default)]
struct Compared {
    flows: usize,
    remote_flows: usize,
    effects: BTreeMap<Option<Effect>, usize>,
}

/// Compares the numbers of flows of each effect with those of the oracle, for each probe.
fn compare(
    [before, after]: [&World; 2],
    changes: &PolicyChanges,
    probes: &[Probe],
    compared: &RefCell<Compared>,
) -> Result<(), TestCaseError> {
    let state = state_of(before);
    let directory = WorkloadIndex::of(&state);
    for probe in probes.iter().filter(|probe| is_bound(before, probe)) {
        let Some(edge) = edge(&state, probe, FlowVerdict::Allowed) else { continue };
        let report = what_if(&state, changes, std::slice::from_ref(&edge));
        let flows = flows_of(&directory, &edge).unwrap();
        let flow =
            |(source, destination): &(IpAddr, IpAddr)| Probe { source: *source, destination: *destination, ..*probe };
        let expected: Vec<Option<Effect>> =
            flows.pairs.iter().map(flow).map(|flow| effect(outcome(before, &flow), outcome(after, &flow))).collect();
        for effect in Effect::ALL.into_iter().filter(|effect| *effect != Effect::OtherRule) {
            let reported = report.changed.iter().filter(|c| c.effect == effect).map(|c| c.flows).sum::<u64>();
            let number = expected.iter().filter(|expected| **expected == Some(effect)).count() as u64;
            prop_assert_eq!(reported, number, "{:?} of {}: {:?}, {:#?}", effect, probe, &expected, &report);
        }
        let mut compared = compared.borrow_mut();
        compared.flows += flows.pairs.len();
        if [&edge.source, &edge.destination].iter().any(|end| end.kind == EndpointKind::RemoteCluster) {
            compared.remote_flows += flows.pairs.len();
        }
        let effects = report.changed.iter().map(|changed| Some(changed.effect));
        for effect in effects.chain(report.changed.is_empty().then_some(None)) {
            *compared.effects.entry(effect).or_default() += 1;
        }
    }
    Ok(())
}

#[test]
fn what_if_reports_each_change_of_oracle() {
    let compared = RefCell::new(Compared::default());
    runner()
        .run(&case(any_world()), |(world, probes, other)| {
            let Some(set) = other.policies.first() else { return Ok(()) };
            let deleted = to_delete(&world.policies, set);
            let after = World { policies: changed(&world.policies, set, deleted), ..world.clone() };
            compare([&world, &after], &changes(Kind::NetworkPolicy, set, deleted), &probes, &compared)
        })
        .unwrap();
    let Compared { flows, remote_flows, effects } = compared.into_inner();
    println!("{flows} flows, {remote_flows} with pods of other clusters: {effects:?}");
    assert!(flows >= FLOWS && remote_flows >= FLOWS / 30, "{flows}, {remote_flows}");
    assert_eq!(effects.len(), 6, "each effect occurs, and none: {effects:?}");
}

#[test]
fn what_if_reports_changes_of_cluster_policies() {
    let compared = RefCell::new(Compared::default());
    runner()
        .run(&case(tiered_world()), |(world, probes, other)| {
            let Some(set) = other.cluster_policies.first() else { return Ok(()) };
            let deleted = to_delete(&world.cluster_policies, set);
            let cluster_policies = changed(&world.cluster_policies, set, deleted);
            let after = World { cluster_policies, ..world.clone() };
            // Rules decide about what a pod sends to its own node, and no node of the oracle sees these packets.
            let probes: Vec<Probe> = probes.into_iter().filter(|probe| !stays_on_node(&world, probe)).collect();
            compare([&world, &after], &changes(Kind::ClusterNetworkPolicy, set, deleted), &probes, &compared)
        })
        .unwrap();
    let Compared { flows, remote_flows: _, effects } = compared.into_inner();
    println!("{flows} flows: {effects:?}");
    assert!(flows >= FLOWS, "{flows}");
    assert_eq!(effects.len(), 6, "each effect occurs, and none: {effects:?}");
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
fn seen_case(worlds: BoxedStrategy<World>) -> impl Strategy<Value = (World, Vec<Probe>, Vec<Probe>)> {
    worlds.prop_flat_map(|mut world| {
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
    let replayed = Cell::new((0, 0, 0));
    runner()
        .run(&seen_case(any_world()), |(world, probes, _)| {
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
                let (mut with_rule, mut with_remote, mut without) = replayed.get();
                if has_rule(&suggestions, &edge) {
                    prop_assert!(passes(&enforced, probe), "{} {:#?}", probe, suggestions);
                    let ends = [&edge.source, &edge.destination];
                    with_remote += usize::from(ends.iter().any(|end| end.kind == EndpointKind::RemoteCluster));
                    with_rule += 1;
                } else if traffic(probe) != Traffic::Portless {
                    without += 1;
                }
                replayed.set((with_rule, with_remote, without));
            }
            Ok(())
        })
        .unwrap();
    let (with_rule, with_remote, without) = replayed.get();
    println!(
        "{with_rule} flows, {with_remote} with pods of other clusters, and {without} with ports and without a rule"
    );
    assert!(with_rule >= FLOWS / 3 && with_remote >= FLOWS / 100, "{with_rule}, {with_remote}");
    // The generated pods without labels that distinguish them get no rule.
    assert!(without <= with_rule, "{without} of {with_rule}");
}

#[test]
fn each_suggested_rule_is_needed() {
    let rules = Cell::new(0);
    runner()
        .run(&seen_case(world()), |(world, probes, _)| {
            let state = state_of(&world);
            let (passing, edges) = observed(&world, &state, &probes);
            let suggestions = suggest(&state, &everything(), &edges);
            let policies = suggested_values(&suggestions);
            for (at, policy) in policies.iter().enumerate() {
                for direction in Direction::BOTH {
                    let count = policy["spec"][direction.as_str()].as_array().map_or(0, Vec::len);
                    for rule in 0..count {
                        let mut fewer = policies.clone();
                        fewer[at]["spec"][direction.as_str()].as_array_mut().unwrap().remove(rule);
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
    let compared = Cell::new((0, 0));
    runner()
        .run(&seen_case(world()), |(world, probes, others)| {
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
