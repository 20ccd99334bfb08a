//! The ruleset, the explanation and the oracle say the same of every flow.

use nft::{Packet, Stop, evaluate};
use policy::{ClusterState, Layout, Traffic, explain, translate};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tests::generate::{probes, world};
use tests::objects::state_of;
use tests::oracle::{Probe, World, judge};

const NODES: [&str; 2] = ["node-a", "node-b"];

/// Pairs of a flow and a node's ruleset that are compared, at least.
const PAIRS: usize = 100_000;

fn layout() -> Layout {
    Layout::for_table("ringfence").unwrap()
}

fn first_packet(probe: &Probe) -> Packet {
    Packet::first(probe.source, probe.destination, probe.protocol, probe.port)
}

/// The mark of a flow that was approved in an earlier generation.
const STALE: u32 = 0x7fff_0000;

fn compare(world: &World, state: &ClusterState, probes: &[Probe]) -> Result<usize, TestCaseError> {
    let mut pairs = 0;
    for node in NODES {
        let ruleset = translate(state, node, &layout()).ruleset;
        prop_assert_eq!(ruleset.validate(), vec![]);
        for probe in probes {
            let expected = judge(world, node, probe);
            let first = first_packet(probe);
            let evaluation = evaluate(&ruleset, &first);
            let shown = || format!("{node}: {probe:?} by {expected:?}, went {:?}", evaluation.path);
            prop_assert_eq!(evaluation.stop == Stop::Accepted, expected.passes(), "{}", shown());
            let reply = evaluate(&ruleset, &first.reply(STALE));
            prop_assert_eq!(reply.stop, evaluation.stop, "a reply with a stale approval: {}", shown());
            if evaluation.mark != 0 {
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
    let strategy = world().prop_flat_map(|w| (probes(&w), Just(w)));
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
    let strategy = world().prop_flat_map(|w| (probes(&w), Just(w)));
    let checked = runner.run(&strategy, |(probes, world)| {
        let state = state_of(&world);
        for probe in probes.iter().filter(|p| p.port.is_some() || p.protocol == 1) {
            let traffic = match (nft::Protocol::from_number(probe.protocol), probe.port) {
                (Some(protocol), Some(port)) => Traffic::Port(protocol, port),
                _ => Traffic::Portless,
            };
            let explanation = explain(&state, probe.source, probe.destination, traffic);
            // A pod that is bound to no node, or to one that is not asked here, is judged by nobody below.
            let unasked = |party: &policy::Party| {
                party.pod.is_some() && party.node.as_deref().is_none_or(|node| !NODES.contains(&node))
            };
            if unasked(&explanation.source) || unasked(&explanation.destination) {
                continue;
            }
            let everywhere = NODES.iter().all(|node| judge(&world, node, probe).passes());
            prop_assert_eq!(explanation.allowed, everywhere, "{:?}\n{}", probe, explanation);
        }
        Ok(())
    });
    if let Err(failure) = checked {
        panic!("{failure}");
    }
}
