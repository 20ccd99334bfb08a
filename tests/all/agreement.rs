//! The ruleset, the explanation and the oracle agree on every flow.

mod tiers;

use kit::oracle::{Decider, Decision, Judgement, Probe, Side, World, decide, judge, stays_on_node};
use nft::{Packet, Stop, evaluate};
use policy::{ClusterState, Direction, Explanation, Layout, SideVerdict, Traffic, explain, translate};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tests::generate::{connected_world, probes, tiered_world, world, world_of_no_cluster};
use tests::objects::state_of;

const NODES: [&str; 2] = ["node-a", "node-b"];

/// Minimum number of compared pairs of a flow and a node's ruleset.
const PAIRS: usize = 100_000;

/// A quarter of the worlds have policies that select pods of other clusters, and half have cluster policies.
fn any_world() -> impl Strategy<Value = World> {
    prop_oneof![1 => world(), 1 => connected_world(), 2 => tiered_world()]
}

/// The side of the source, where a rule of a cluster policy decides it. At the pod's own node nothing else does.
fn by_rule(world: &World, probe: &Probe) -> Option<Side> {
    let Decision { side, by } = egress_decision(world, probe)?;
    match by {
        Decider::ClusterRule { .. } => Some(side),
        Decider::Default | Decider::NetworkPolicy => None,
    }
}

fn egress_decision(world: &World, probe: &Probe) -> Option<Decision> {
    let mut decisions = NODES.iter().map(|node| decide(world, node, probe)[0]);
    decisions.find(|decision| decision.side != Side::NotLocal)
}

/// Whether NetworkPolicies are audited only, so that the Baseline tier may have accepted the flow.
fn only_audited(world: &World, probe: &Probe) -> bool {
    egress_decision(world, probe).is_some_and(|Decision { side, by }| {
        matches!(by, Decider::NetworkPolicy) && matches!(side, Side::WouldAllow | Side::WouldDeny)
    })
}

fn agrees_at_own_node(verdict: &SideVerdict, by_rule: Option<Side>, only_audited: bool) -> bool {
    match verdict {
        SideVerdict::DeniedByRule { .. } => by_rule == Some(Side::Denied),
        SideVerdict::Accepted { .. } => by_rule == Some(Side::Allowed) || only_audited,
        SideVerdict::OwnNode | SideVerdict::WouldAccept { .. } | SideVerdict::WouldDenyByRule { .. } => {
            by_rule != Some(Side::Denied)
        }
        SideVerdict::NotAPod
        | SideVerdict::NotIsolated
        | SideVerdict::Itself
        | SideVerdict::Allowed { .. }
        | SideVerdict::Denied { .. }
        | SideVerdict::WouldAllow { .. }
        | SideVerdict::WouldDeny { .. }
        | SideVerdict::Unreadable { .. } => false,
    }
}

fn layout() -> Layout {
    Layout::for_table("ringfence").unwrap()
}

fn first_packet(probe: &Probe) -> Packet {
    Packet::first(probe.source, probe.destination, probe.protocol, probe.port)
}

/// The mark of a flow that was approved in an earlier generation.
const STALE: u32 = 0x7fff_0000;

fn side(explanation: &Explanation, direction: Direction) -> &SideVerdict {
    match direction {
        Direction::Egress => &explanation.egress,
        Direction::Ingress => &explanation.ingress,
    }
}

fn oracle_side(judgement: &Judgement, direction: Direction) -> Side {
    match direction {
        Direction::Egress => judgement.egress,
        Direction::Ingress => judgement.ingress,
    }
}

/// The sides of a flow that an audited policy would deny, as far as the flow gets.
fn would_be_denied(judgement: &Judgement) -> Vec<Direction> {
    let reached = |direction: &Direction| match direction {
        Direction::Egress => true,
        Direction::Ingress => judgement.egress != Side::Denied,
    };
    let would = |direction: &Direction| oracle_side(judgement, *direction) == Side::WouldDeny;
    Direction::BOTH.into_iter().filter(|d| would(d) && reached(d)).collect()
}

/// The sides that the rules report, by the chains that a packet went through. None may be reported twice.
fn reported(path: &[nft::Name], is_itself: bool) -> Vec<Direction> {
    let of = |direction: Direction| {
        // A pod's flow to itself leaves the end chain of an audited program before the report.
        let prefixes = if is_itself { &["audit/pending-"][..] } else { &["audit/", "audit/pending-"] };
        let reports: Vec<String> = prefixes.iter().map(|prefix| format!("{prefix}{}", direction.as_str())).collect();
        path.iter().filter(move |chain| reports.iter().any(|report| chain.as_str() == report)).map(move |_| direction)
    };
    Direction::BOTH.into_iter().flat_map(of).collect()
}

fn compare(world: &World, state: &ClusterState, probes: &[Probe]) -> Result<usize, TestCaseError> {
    let mut pairs = 0;
    for node in NODES {
        // Only one node logs denied packets.
        let layout = layout().logging_to((node == NODES[0]).then_some(9470));
        let ruleset = translate(state, node, &layout).ruleset.in_first_generation();
        prop_assert_eq!(ruleset.validate(), vec![]);
        for probe in probes {
            let expected = judge(world, node, probe);
            let first = first_packet(probe);
            let evaluation = evaluate(&ruleset, &first);
            let would_be_denied = would_be_denied(&expected);
            let shown = || format!("{node}: {probe:?} by {expected:?}, went {:?}", evaluation.path);
            prop_assert_eq!(evaluation.stop == Stop::Accepted, expected.passes(), "{}", shown());
            let reply = evaluate(&ruleset, &first.reply(STALE));
            prop_assert_eq!(reported(&evaluation.path, expected.itself), would_be_denied.clone(), "{}", shown());
            prop_assert_eq!(reported(&reply.path, expected.itself), would_be_denied, "a reply: {}", shown());
            prop_assert_eq!(reply.stop, evaluation.stop, "a reply with a stale approval: {}", shown());
            let is_approved = layout.generation_at(evaluation.mark).is_some();
            prop_assert!(!is_approved || evaluation.stop == Stop::Accepted, "approved: {}", shown());
            if is_approved {
                let approved = evaluate(&ruleset, &first.reply(evaluation.mark));
                prop_assert_eq!(approved.stop, Stop::Accepted, "a reply of an approved flow: {}", shown());
            }
            pairs += 1;
        }
    }
    Ok(pairs)
}

#[test]
fn ruleset_and_oracle_agree_on_every_flow() {
    let mut runner = TestRunner::new(Config {
        cases: u32::MAX,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..Config::default()
    });
    let strategy = any_world().prop_flat_map(|w| (probes(&w), Just(w)));
    let mut pairs = 0;
    while pairs < PAIRS {
        let counted = std::cell::Cell::new(0);
        let drawn = strategy.new_tree(&mut runner).unwrap();
        let check = |(probes, world): (Vec<Probe>, World)| {
            counted.set(compare(&world, &state_of(&world), &probes)?);
            Ok(())
        };
        if let Err(failure) = runner.run_one(drawn, check) {
            panic!("{failure}");
        }
        pairs += counted.get();
    }
}

#[test]
fn explanation_and_oracle_agree_on_every_flow() {
    let mut runner = TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() });
    let strategy = any_world().prop_flat_map(|w| (probes(&w), Just(w)));
    let checked = runner.run(&strategy, |(probes, world)| {
        let state = state_of(&world);
        for probe in probes.iter().filter(|p| p.port.is_some() || p.protocol == 1) {
            let traffic = match (nft::Protocol::from_number(probe.protocol), probe.port) {
                (Some(protocol), Some(port)) => Traffic::Port(protocol, port),
                _ => Traffic::Portless,
            };
            let explanation = explain(&state, probe.source, probe.destination, traffic);
            // A pod that is bound to no node, or to a node outside `NODES`, is judged by none of the rulesets below.
            let unasked = |party: &policy::FlowEnd| {
                party.pod.is_some() && party.node.as_deref().is_none_or(|node| !NODES.contains(&node))
            };
            if unasked(&explanation.source) || unasked(&explanation.destination) {
                continue;
            }
            let stays = stays_on_node(&world, probe);
            let everywhere = NODES.iter().all(|node| judge(&world, node, probe).passes());
            let by_rule = stays.then(|| by_rule(&world, probe)).flatten();
            let passes = if stays { by_rule != Some(Side::Denied) } else { everywhere };
            prop_assert_eq!(explanation.allowed, passes, "{:?}\n{}", probe, explanation);
            for direction in Direction::BOTH {
                let verdict = side(&explanation, direction);
                let judged: Vec<Judgement> = NODES.iter().map(|node| judge(&world, node, probe)).collect();
                let local = judged.iter().map(|j| oracle_side(j, direction)).find(|side| *side != Side::NotLocal);
                let agrees = match verdict {
                    SideVerdict::NotAPod => local.is_none(),
                    SideVerdict::NotIsolated => local == Some(Side::NotIsolated),
                    verdict if stays && local.is_some() => {
                        agrees_at_own_node(verdict, by_rule, only_audited(&world, probe))
                    }
                    SideVerdict::OwnNode => false,
                    SideVerdict::Itself => judged[0].itself && matches!(local, Some(Side::Allowed | Side::WouldAllow)),
                    SideVerdict::Allowed { .. } => local == Some(Side::Allowed),
                    SideVerdict::Denied { .. } => local == Some(Side::Denied),
                    SideVerdict::WouldAllow { .. } => local == Some(Side::WouldAllow),
                    SideVerdict::WouldDeny { .. } => local == Some(Side::WouldDeny),
                    SideVerdict::Accepted { .. } => local == Some(Side::Allowed),
                    SideVerdict::DeniedByRule { .. } => local == Some(Side::Denied),
                    SideVerdict::WouldAccept { .. } => local == Some(Side::WouldAllow),
                    SideVerdict::WouldDenyByRule { .. } => local == Some(Side::WouldDeny),
                    SideVerdict::Unreadable { .. } => false,
                };
                prop_assert!(agrees, "{:?}: {} of {:?}\n{}", probe, direction.as_str(), judged, explanation);
            }
        }
        Ok(())
    });
    if let Err(failure) = checked {
        panic!("{failure}");
    }
}

#[test]
fn selectors_without_cluster_label_match_no_remote_pod() {
    let mut runner = TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() });
    let strategy = world_of_no_cluster().prop_flat_map(|w| (probes(&w), Just(w)));
    let checked = runner.run(&strategy, |(probes, world)| {
        let alone = World { remote: None, ..world.clone() };
        let states = [&world, &alone].map(state_of);
        for node in NODES {
            let [connected, alone] =
                states.each_ref().map(|state| translate(state, node, &layout()).ruleset.in_first_generation());
            prop_assert_eq!(connected.to_string(), alone.to_string());
        }
        for probe in probes {
            let traffic = match (nft::Protocol::from_number(probe.protocol), probe.port) {
                (Some(protocol), Some(port)) => Traffic::Port(protocol, port),
                _ => Traffic::Portless,
            };
            let [connected, alone_too] =
                states.each_ref().map(|state| explain(state, probe.source, probe.destination, traffic));
            for direction in Direction::BOTH {
                let allows = [&connected, &alone_too].map(|explanation| side(explanation, direction).allows());
                prop_assert_eq!(allows[0], allows[1], "{:?}\n{}", probe, connected);
            }
            for node in NODES {
                prop_assert_eq!(judge(&world, node, &probe), judge(&alone, node, &probe));
            }
        }
        Ok(())
    });
    if let Err(failure) = checked {
        panic!("{failure}");
    }
}
