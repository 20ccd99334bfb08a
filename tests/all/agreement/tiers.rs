//! The evaluator and the oracle name the same decider of every flow: the tier, the policy and the rule.

use std::collections::BTreeMap;

use policy::ClusterRuleName;

use super::*;

/// A verdict in the oracle's words; `None` where no policy applies.
fn verdict(side: &SideVerdict) -> Option<(Side, Option<&ClusterRuleName>)> {
    match side {
        SideVerdict::OwnNode | SideVerdict::Itself => None,
        SideVerdict::NotAPod => Some((Side::NotLocal, None)),
        SideVerdict::NotIsolated => Some((Side::NotIsolated, None)),
        SideVerdict::Allowed { .. } => Some((Side::Allowed, None)),
        SideVerdict::Denied { .. } | SideVerdict::Unreadable { .. } => Some((Side::Denied, None)),
        SideVerdict::WouldAllow { .. } => Some((Side::WouldAllow, None)),
        SideVerdict::WouldDeny { .. } => Some((Side::WouldDeny, None)),
        SideVerdict::Accepted { rule } => Some((Side::Allowed, Some(rule))),
        SideVerdict::DeniedByRule { rule } => Some((Side::Denied, Some(rule))),
        SideVerdict::WouldAccept { rule } => Some((Side::WouldAllow, Some(rule))),
        SideVerdict::WouldDenyByRule { rule } => Some((Side::WouldDeny, Some(rule))),
    }
}

/// `Admin policy spec.egress[0]`, as the oracle and as the evaluator name a rule.
fn oracle_rule(world: &World, direction: Direction, by: Decider) -> Option<String> {
    match by {
        Decider::Default | Decider::NetworkPolicy => None,
        Decider::ClusterRule { tier, policy, rule } => {
            let name = world.cluster_policies[policy]["metadata"]["name"].as_str().unwrap_or_default();
            Some(format!("{tier:?} {name} spec.{}[{rule}]", direction.as_str()))
        }
    }
}

fn evaluator_rule(rule: &ClusterRuleName) -> String {
    format!("{} {} {}", rule.tier, rule.policy, rule.field)
}

/// The decision of the only node that has one.
fn local(decisions: [[Decision; 2]; 2], direction: Direction) -> Decision {
    let side = |[egress, ingress]: [Decision; 2]| match direction {
        Direction::Egress => egress,
        Direction::Ingress => ingress,
    };
    let [first, second] = decisions.map(side);
    if first.side == Side::NotLocal { second } else { first }
}

#[test]
fn evaluator_and_oracle_name_the_same_decider() {
    let config = Config { cases: u32::MAX, max_shrink_iters: 200, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let strategy = tiered_world().prop_flat_map(|w| (probes(&w), Just(w)));
    let (mut pairs, mut deciders) = (0, BTreeMap::<String, usize>::new());
    while pairs < PAIRS {
        let drawn = strategy.new_tree(&mut runner).unwrap();
        let counted = std::cell::Cell::new(0);
        let seen = std::cell::RefCell::new(Vec::new());
        let check = |(probes, world): (Vec<Probe>, World)| {
            let state = state_of(&world);
            // Between a pod and its own node, NetworkPolicies do not apply.
            for probe in probes.iter().filter(|probe| !stays_on_node(&world, probe)) {
                let traffic = match (nft::Protocol::from_number(probe.protocol), probe.port) {
                    (Some(protocol), Some(port)) => Traffic::Port(protocol, port),
                    _ => Traffic::Portless,
                };
                let explanation = explain(&state, probe.source, probe.destination, traffic);
                let decisions = NODES.map(|node| decide(&world, node, probe));
                for direction in Direction::BOTH {
                    let Some((side, rule)) = verdict(super::side(&explanation, direction)) else { continue };
                    let decision = local(decisions, direction);
                    // A pod that is bound to no node is judged by none.
                    if decision.side == Side::NotLocal {
                        continue;
                    }
                    let expected = (decision.side, oracle_rule(&world, direction, decision.by));
                    prop_assert_eq!((side, rule.map(evaluator_rule)), expected, "{:?}\n{}", probe, explanation);
                    seen.borrow_mut().push(match decision.by {
                        Decider::ClusterRule { tier, .. } => format!("{tier:?} {side:?}"),
                        Decider::Default | Decider::NetworkPolicy => format!("{:?} {side:?}", decision.by),
                    });
                }
            }
            counted.set(probes.len());
            Ok(())
        };
        if let Err(failure) = runner.run_one(drawn, check) {
            panic!("{failure}");
        }
        pairs += counted.get();
        seen.take().into_iter().for_each(|decider| *deciders.entry(decider).or_default() += 1);
    }
    println!("{pairs} pairs: {deciders:#?}");
    for decider in ["Admin Allowed", "Admin Denied", "NetworkPolicy Denied", "Baseline Allowed", "Baseline Denied"] {
        assert!(deciders[decider] > PAIRS / 200, "{decider}: {deciders:#?}");
    }
}
