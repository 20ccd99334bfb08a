//! Declared edges match the oracle, workload by workload, and incremental edges equal those of a fresh start.

mod expected;
// Observed edges with pods of other clusters.
mod observed;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use context::edges::{Allowlist, Form, parse, text_of};
use expect_test::expect_file;
use kit::oracle::{Probe, World};
use policy::remote::RemoteSet;
use policy::{ClusterState, DeclaredLine, EdgeChanges, EdgeEnd, Edges, ObjectName, Pod, StateDelta, Traffic};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tests::generate::{connected_world, probes, tiered_world, world};
use tests::objects::{default_enforcement, state_of};

use crate::golden;
use crate::sequence::{changes, story};
use expected::{ExpectedEdges, PairedFamilies, Traffics};

/// Pods of one namespace with the same remainder form one workload, so pods of a workload may differ.
fn workload_of(modulus: usize) -> impl Fn(&str) -> String {
    move |pod: &str| {
        let number: usize = pod.rsplit('-').next().and_then(|n| n.parse().ok()).expect("pods have numbers");
        format!("w{}", number % modulus)
    }
}

fn followed(
    edges: &mut Edges,
    state: &ClusterState,
    changed: &StateDelta,
    modulus: usize,
    renamed: bool,
) -> EdgeChanges {
    let name = workload_of(modulus);
    let renamed: BTreeSet<ObjectName> = state.pods().filter(|_| renamed).map(|pod| pod.name.clone()).collect();
    edges.update(state, changed, &|pod| Arc::from(name(&pod.name.name)), &renamed)
}

fn fresh(state: &ClusterState, modulus: usize, limit: usize) -> Edges {
    let mut edges = Edges::with_limit(limit);
    let adds = followed(&mut edges, state, &StateDelta::default(), modulus, false);
    assert_eq!(adds, EdgeChanges { adds: edges.lines(), removes: vec![] });
    edges
}

/// The lines about flows from one workload to another.
fn speaking<'a>(
    lines: &'a [DeclaredLine],
    from: &'a ObjectName,
    to: &'a ObjectName,
) -> impl Iterator<Item = &'a DeclaredLine> {
    let is = |end: &EdgeEnd, workload: &ObjectName| match end {
        EdgeEnd::Any => true,
        EdgeEnd::Workload(name) => name == workload,
        EdgeEnd::Remote(_) => false,
    };
    let is_between = move |(source, destination)| is(source, from) && is(destination, to);
    lines.iter().filter(move |line| ends_of(line).is_some_and(is_between))
}

/// Source and destination of an edge between workloads and remote sets; `None` for other lines.
fn ends_of(line: &DeclaredLine) -> Option<(&EdgeEnd, &EdgeEnd)> {
    match line {
        DeclaredLine::Edge { source, destination, .. } => Some((source, destination)),
        DeclaredLine::IngressGoverned(_)
        | DeclaredLine::EgressGoverned(_)
        | DeclaredLine::Rule { .. }
        | DeclaredLine::Governs { .. }
        | DeclaredLine::ClusterGoverns { .. }
        | DeclaredLine::FromBlock { .. }
        | DeclaredLine::ToBlock { .. }
        | DeclaredLine::ToName { .. } => None,
    }
}

/// Whether the line is about flows between the workload, as source or destination, and pods of a remote set.
fn speaks_of_remote(
    line: &DeclaredLine,
    workload: &ObjectName,
    egress: bool,
    is_meant: impl Fn(&RemoteSet) -> bool,
) -> bool {
    let Some((source, destination)) = ends_of(line) else { return false };
    let (own, other) = if egress { (source, destination) } else { (destination, source) };
    matches!((own, other), (EdgeEnd::Workload(name), EdgeEnd::Remote(set)) if name == workload && is_meant(set))
}

/// Whether the lines declare the traffic for no pair of pods, for some, or for all.
fn said<'a>(lines: impl Iterator<Item = &'a DeclaredLine>, traffic: Traffic) -> PairedFamilies {
    let of_line = |line: &DeclaredLine| match line {
        DeclaredLine::Edge { ports, partial, .. }
        | DeclaredLine::FromBlock { ports, partial, .. }
        | DeclaredLine::ToBlock { ports, partial, .. } => ports.holds(traffic).then_some(*partial),
        DeclaredLine::IngressGoverned(_)
        | DeclaredLine::EgressGoverned(_)
        | DeclaredLine::Rule { .. }
        | DeclaredLine::Governs { .. }
        | DeclaredLine::ClusterGoverns { .. }
        | DeclaredLine::ToName { .. } => None,
    };
    match lines.filter_map(of_line).min() {
        None => PairedFamilies::None,
        Some(true) => PairedFamilies::Some,
        Some(false) => PairedFamilies::All,
    }
}

fn is_for_everyone(line: &DeclaredLine) -> bool {
    ends_of(line).is_some_and(|(source, destination)| *source == EdgeEnd::Any || *destination == EdgeEnd::Any)
}

/// Numbers of comparisons, and of lines with a remote set.
#[derive(Debug, Default)]
struct Compared {
    pairs: Cell<usize>,
    remote: Cell<usize>,
}

fn agree(world: &World, probes: &[Probe], modulus: usize, compared: &Compared) -> Result<(), TestCaseError> {
    let lines = fresh(&state_of(world), modulus, usize::MAX).lines();
    let expected = ExpectedEdges::of(world, Traffics::of(probes), &workload_of(modulus));
    let shown = || lines.iter().map(|line| format!("{line:?}")).collect::<Vec<_>>().join("\n");
    let governed: [BTreeSet<ObjectName>; 2] = [
        lines
            .iter()
            .filter_map(|l| if let DeclaredLine::EgressGoverned(w) = l { Some(w.clone()) } else { None })
            .collect(),
        lines
            .iter()
            .filter_map(|l| if let DeclaredLine::IngressGoverned(w) = l { Some(w.clone()) } else { None })
            .collect(),
    ];
    for (governed, expected) in governed.iter().zip([&expected.egress_governed, &expected.ingress_governed]) {
        // A cluster policy governs the pods for which it has rules, whether or not one matches some flow.
        let missing: Vec<&ObjectName> = expected.difference(governed).collect();
        prop_assert!(missing.is_empty(), "{:?}\n{}", missing, shown());
        prop_assert!(!world.cluster_policies.is_empty() || governed == expected, "{}", shown());
    }
    // A wildcard line that covers only some pairs must have a denied pair.
    let mut justified: BTreeMap<(&DeclaredLine, Traffic), bool> = BTreeMap::new();
    for ((from, to), flows) in &expected.pairs {
        for (traffic, over) in flows {
            compared.pairs.set(compared.pairs.get() + 1);
            let declared = said(speaking(&lines, from, to), *traffic);
            let about = || format!("{from} > {to} {traffic:?} is allowed for {over:?}\n{}", shown());
            if !governed[0].contains(from) && !governed[1].contains(to) {
                prop_assert_eq!(*over, PairedFamilies::All, "no policy governs {}", about());
                continue;
            }
            prop_assert_eq!(
                declared == PairedFamilies::None,
                *over == PairedFamilies::None,
                "{:?}: {}",
                declared,
                about()
            );
            let of_both = || speaking(&lines, from, to).filter(|line| !is_for_everyone(line));
            prop_assert!(declared != PairedFamilies::All || *over == PairedFamilies::All, "{}", about());
            if declared == PairedFamilies::Some && said(of_both(), *traffic) == PairedFamilies::Some {
                prop_assert_eq!(*over, PairedFamilies::Some, "{}", about());
            }
            for line in speaking(&lines, from, to).filter(|line| is_for_everyone(line)) {
                // The remainder of everything besides some ports is declared as everything.
                if declared == PairedFamilies::Some && said([line].into_iter(), *traffic) == PairedFamilies::Some {
                    *justified.entry((line, *traffic)).or_default() |= *over == PairedFamilies::Some;
                }
            }
        }
    }
    for ((line, traffic), is) in justified {
        prop_assert!(is, "{line:?} is for all pairs of {traffic:?}\n{}", shown());
    }
    for ((workload, egress, address), flows) in &expected.outside {
        let about = |line: &&DeclaredLine| match line {
            DeclaredLine::FromBlock { block, destination, .. } => {
                !egress && destination == workload && expected::holds(block, *address)
            }
            DeclaredLine::ToBlock { block, source, .. } => {
                *egress && source == workload && expected::holds(block, *address)
            }
            DeclaredLine::Edge { .. }
            | DeclaredLine::IngressGoverned(_)
            | DeclaredLine::EgressGoverned(_)
            | DeclaredLine::Rule { .. }
            | DeclaredLine::Governs { .. }
            | DeclaredLine::ClusterGoverns { .. }
            | DeclaredLine::ToName { .. } => false,
        };
        let has_address = |set: &RemoteSet| {
            let sets =
                world.remote.iter().flat_map(|remote| &remote.sets).filter(|set| set.addresses.contains(address));
            let names = sets.map(|set| RemoteSet::new(&set.cluster, &set.namespace, &set.name));
            names.collect::<Vec<_>>().contains(set)
        };
        for (traffic, over) in flows {
            let by_address = said(lines.iter().filter(about), *traffic);
            let of_sets = lines.iter().filter(|line| speaks_of_remote(line, workload, *egress, has_address));
            let by_set = said(of_sets, *traffic);
            let shown = || format!("{workload} {egress} {address} {traffic:?} {over:?}\n{}", shown());
            let is_declared = by_address != PairedFamilies::None || by_set != PairedFamilies::None;
            prop_assert!(is_declared || *over == PairedFamilies::None, "{}", shown());
            prop_assert!(by_address == PairedFamilies::None || *over != PairedFamilies::None, "{}", shown());
            prop_assert!(by_address != PairedFamilies::All || *over == PairedFamilies::All, "{}", shown());
            prop_assert!(by_set != PairedFamilies::All || *over == PairedFamilies::All, "{}", shown());
        }
    }
    for ((workload, egress, set), flows) in &expected.remote {
        for (traffic, over) in flows {
            let of_set = lines.iter().filter(|line| speaks_of_remote(line, workload, *egress, |named| named == set));
            let declared = said(of_set, *traffic);
            compared.remote.set(compared.remote.get() + usize::from(declared != PairedFamilies::None));
            let shown = || format!("{workload} {egress} {set} {traffic:?} {over:?}\n{}", shown());
            prop_assert!(declared == PairedFamilies::None || *over != PairedFamilies::None, "{}", shown());
            prop_assert!(declared != PairedFamilies::All || *over == PairedFamilies::All, "{}", shown());
        }
    }
    Ok(())
}

/// Compares declared lines with the oracle in this many worlds.
fn compare(worlds: BoxedStrategy<World>, cases: u32) -> Compared {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let moduli = prop::sample::select(vec![2_usize, 4, 100]);
    let strategy = (worlds.prop_flat_map(|w| (probes(&w), Just(w))), moduli);
    let compared = Compared::default();
    let checked = runner.run(&strategy, |((probes, world), modulus)| agree(&world, &probes, modulus, &compared));
    if let Err(failure) = checked {
        panic!("{failure}");
    }
    compared
}

#[test]
fn declared_edges_equal_flows_allowed_by_oracle() {
    let compared = compare(world(), 300);
    assert!(compared.pairs.get() > 50_000, "{compared:?}");
}

#[test]
fn remote_flow_is_declared_if_oracle_allows_it() {
    let compared = compare(connected_world(), 150);
    assert!(compared.pairs.get() > 20_000 && compared.remote.get() > 250, "{compared:?}");
}

/// Worlds with tiers in which no domain name has an address: addresses of names are known to the agents of the nodes,
/// not to the provider that declares edges.
fn without_learned_names() -> BoxedStrategy<World> {
    tiered_world().prop_map(|world| World { learned: vec![], ..world }).boxed()
}

#[test]
fn tiered_edges_equal_flows_allowed_by_oracle() {
    let compared = compare(without_learned_names(), 100);
    assert!(compared.pairs.get() > 15_000, "{compared:?}");
}

/// Nodes without pod ranges: edges with a remote set are also declared for its addresses in such a range, which rules
/// about pods deny (docs/known-issues.md).
fn without_pod_ranges(mut world: World) -> World {
    for spec in world.nodes.iter_mut().filter_map(|node| node.spec.as_mut()) {
        spec.pod_cidrs = None;
    }
    world
}

#[test]
fn tiered_remote_edges_equal_flows_allowed_by_oracle() {
    let worlds = (connected_world(), without_learned_names()).prop_map(|(connected, tiered)| {
        without_pod_ranges(World { cluster_policies: tiered.cluster_policies, ..connected })
    });
    let compared = compare(worlds.boxed(), 60);
    assert!(compared.pairs.get() > 5_000 && compared.remote.get() > 20, "{compared:?}");
}

#[test]
fn incremental_edges_equal_those_of_fresh_start() {
    let limits = prop::sample::select(vec![usize::MAX, usize::MAX, 12, 30]);
    let moduli = prop::collection::vec(prop::sample::select(vec![0_usize, 0, 0, 2, 4, 100]), 1..8);
    let drawn = (story(), moduli, 1..4_usize, limits);
    let (edges_seen, remote_seen, withheld_seen) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let enough = || edges_seen.get() > 10_000 && remote_seen.get() > 1_000 && withheld_seen.get() > 20;
    let is_remote = |line: &&DeclaredLine| match line {
        DeclaredLine::Edge { source, destination, .. } => {
            [source, destination].into_iter().any(|end| matches!(end, EdgeEnd::Remote(_)))
        }
        DeclaredLine::IngressGoverned(_)
        | DeclaredLine::EgressGoverned(_)
        | DeclaredLine::Rule { .. }
        | DeclaredLine::Governs { .. }
        | DeclaredLine::ClusterGoverns { .. }
        | DeclaredLine::FromBlock { .. }
        | DeclaredLine::ToBlock { .. }
        | DeclaredLine::ToName { .. } => false,
    };
    // How often the edge limit is exceeded is random: the test repeats until it was exceeded often enough.
    for _ in 0..10 {
        let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
        let checked = runner.run(&drawn, |((worlds, steps, order), moduli, together, limit)| {
            let mut state = ClusterState::new();
            state.set_default_enforcement(default_enforcement(&worlds[2]));
            let mut edges = Edges::with_limit(limit);
            let (mut changed, mut modulus) = (StateDelta::default(), 4);
            let mut known: BTreeSet<DeclaredLine> = BTreeSet::new();
            let moduli = moduli.iter().cycle();
            for ((number, change), next) in changes(&worlds, &steps, &order).into_iter().enumerate().zip(moduli) {
                changed.join(change.apply(&mut state));
                if number % together != 0 {
                    continue;
                }
                // If drawn, the pods belong to other workloads after this step.
                let renamed = *next != 0;
                modulus = if renamed { *next } else { modulus };
                let EdgeChanges { adds, removes } =
                    followed(&mut edges, &state, &std::mem::take(&mut changed), modulus, renamed);
                for line in removes {
                    prop_assert!(known.remove(&line), "{line:?} was not there");
                }
                for line in adds {
                    prop_assert!(known.insert(line.clone()), "{line:?} was there");
                }
                let anew = fresh(&state, modulus, limit);
                prop_assert_eq!(edges.is_withheld(), anew.is_withheld());
                prop_assert_eq!(edges.lines(), anew.lines());
                prop_assert_eq!(known.iter().cloned().collect::<Vec<_>>(), edges.lines());
                edges_seen.set(edges_seen.get() + known.len());
                remote_seen.set(remote_seen.get() + known.iter().filter(is_remote).count());
                withheld_seen.set(withheld_seen.get() + usize::from(edges.is_withheld()));
            }
            Ok(())
        });
        if let Err(failure) = checked {
            panic!("{failure}");
        }
        if enough() {
            break;
        }
    }
    assert!(enough(), "{edges_seen:?} {remote_seen:?} {withheld_seen:?}");
}

#[test]
fn golden_cases_have_expected_edges_in_both_forms() {
    for case in golden::cases() {
        let mut edges = Edges::new();
        let app = |pod: &Pod| pod.labels.get("app").unwrap_or(&pod.name.name).clone();
        let changes = edges.update(&golden::state_of(&case), &StateDelta::default(), &app, &BTreeSet::new());
        let text = |form| {
            let mut list = Allowlist::new(form);
            list.apply(&changes);
            let text = text_of(&edges.snapshot(), form);
            let (read, statements) = parse(&text).unwrap();
            assert_eq!((read, statements.len()), (form, list.len()));
            text
        };
        let both = [Form::Extended, Form::Compatible].map(text).concat();
        expect_file![case.join("edges.txt")].assert_eq(&both);
    }
}
