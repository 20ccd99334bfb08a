//! Generated clusters, and packets that distinguish their policies.
//!
//! Everything is drawn from small pools, so that labels, port names, addresses and blocks collide. Some values are
//! unsupported on purpose. Only cases with a defined meaning (see the oracle's comments) are drawn.

mod annotations;
mod cluster_policies;
mod flows;
mod objects;
mod policies;
mod remote;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use kit::oracle::{Probe, World};

/// The nodes that pods are bound to.
pub const NODES: [&str; 2] = ["node-a", "node-b"];

/// The names of namespaces; a world has the first one to four of these.
const NAMESPACES: [&str; 4] = ["red", "green", "blue", "kube-system"];

/// Clusters of one to four namespaces, 3 to 14 pods on [`NODES`] and up to 8 policies, some of them audited.
///
/// Pods of `node-a` have addresses in 10.1.0.0/24 and fd00:1::/64, those of `node-b` in 10.2.0.0/24 and fd00:2::/64
/// (except for a few that moved).
pub fn world() -> BoxedStrategy<World> {
    (1..=NAMESPACES.len())
        .prop_flat_map(|count| {
            let names = &NAMESPACES[..count];
            (
                objects::namespaces(names),
                prop::collection::vec(objects::pod(names), 3..=14),
                prop::collection::vec(policies::policy(names), 0..=8),
                prop::bool::weighted(0.1),
            )
        })
        .prop_map(|(namespaces, pods, policies, audits_by_default)| World {
            namespaces,
            pods: pods.into_iter().enumerate().map(|(index, draft)| draft.finish(index)).collect(),
            policies: policies::named(policies),
            cluster_policies: vec![],
            nodes: vec![],
            audits_by_default,
            remote: None,
            learned: vec![],
        })
        .boxed()
}

/// A [`world`] with Node objects and, in nine of ten cases, remote sets. Its policies often select remote sets, some of
/// whose addresses belong to pods of this cluster.
pub fn connected_world() -> BoxedStrategy<World> {
    connected(prop_oneof![1 => policies::peer(), 4 => remote::peer()].boxed())
}

/// As [`connected_world`], but no policy requires the label of a cluster, though policies may mention it.
pub fn world_of_no_cluster() -> BoxedStrategy<World> {
    connected(prop_oneof![1 => policies::peer(), 4 => remote::peer_of_no_cluster()].boxed())
}

fn connected(peer: BoxedStrategy<serde_json::Value>) -> BoxedStrategy<World> {
    // With other policies a peer rarely changes a verdict: they select few pods, allow more, or are audited.
    let policy = prop_oneof![
        1 => policies::policy_with(&NAMESPACES[..2], &peer),
        2 => policies::one_peer(&NAMESPACES[..2], &peer),
    ];
    let policies = prop::collection::vec(policy, 1..=6);
    (world(), policies, prop::option::weighted(0.9, remote::remote()), remote::claims(), objects::nodes())
        .prop_map(|(mut world, policies, remote, claims, nodes)| {
            world.nodes = nodes;
            world.policies = policies::named(policies);
            world.remote = remote;
            remote::claim(&mut world.namespaces, &mut world.pods, &claims);
            world
        })
        .boxed()
}

/// A [`world`] with Node objects and 1 to 10 cluster policies. It has fewer NetworkPolicies, so that the Baseline tier
/// decides some flows.
pub fn tiered_world() -> BoxedStrategy<World> {
    let policies = prop::collection::vec(policies::policy(&NAMESPACES[..2]), 0..=3);
    let learned = cluster_policies::learned();
    (world(), policies, cluster_policies::cluster_policies(), objects::nodes(), learned)
        .prop_map(|(world, policies, cluster_policies, nodes, learned)| World {
            policies: policies::named(policies),
            cluster_policies,
            nodes,
            learned,
            ..world
        })
        .boxed()
}

/// Flows between the addresses and to the ports at which the verdicts of this world can change.
pub fn probes(world: &World) -> BoxedStrategy<Vec<Probe>> {
    prop::collection::vec(flows::probe(world), 1..=64).boxed()
}

/// The first `count` worlds of a fixed seed.
pub fn draw_worlds(count: usize) -> Vec<World> {
    draw(&world(), count)
}

/// The first `count` worlds with cluster policies of a fixed seed.
pub fn draw_tiered_worlds(count: usize) -> Vec<World> {
    draw(&tiered_world(), count)
}

/// The first `count` probes of a fixed seed.
pub fn draw_probes(world: &World, count: usize) -> Vec<Probe> {
    draw(&flows::probe(world), count)
}

fn draw<S: Strategy>(strategy: &S, count: usize) -> Vec<S::Value> {
    let mut runner = TestRunner::deterministic();
    let mut next = || strategy.new_tree(&mut runner).expect("no strategy here rejects").current();
    (0..count).map(|_| next()).collect()
}

/// A member of a JSON object that may be absent, or null, which is equivalent.
fn optional(
    present: f64,
    value: impl Strategy<Value = serde_json::Value> + 'static,
) -> BoxedStrategy<Option<serde_json::Value>> {
    let absent = prop_oneof![9 => Just(None), 1 => Just(Some(serde_json::Value::Null))];
    (prop::bool::weighted(present), value, absent)
        .prop_map(|(present, value, absent)| if present { Some(value) } else { absent })
        .boxed()
}

/// An object of the present members.
fn object<const N: usize>(members: [(&str, Option<serde_json::Value>); N]) -> serde_json::Value {
    members.into_iter().filter_map(|(name, member)| Some((name.to_owned(), member?))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use kit::lab::LabSpec;
    use kit::oracle::{Decider, PolicyTier, Side, decide, judge};

    #[test]
    fn worlds_and_probes_are_reproducible() {
        let yaml = |worlds: Vec<World>| worlds.iter().map(World::to_yaml).collect::<String>();
        assert_eq!(yaml(draw_worlds(20)), yaml(draw_worlds(20)));
        for world in draw_worlds(20) {
            assert_eq!(draw_probes(&world, 20), draw_probes(&world, 20));
        }
    }

    #[test]
    fn every_verdict_is_common() {
        const WORLDS: usize = 200;
        const PROBES: usize = 100;
        const COMMON: usize = WORLDS * PROBES / 100;
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for world in draw_worlds(WORLDS) {
            for probe in draw_probes(&world, PROBES) {
                let judgement = judge(&world, NODES[0], &probe);
                *counts.entry(format!("egress {:?}", judgement.egress)).or_default() += 1;
                *counts.entry(format!("ingress {:?}", judgement.ingress)).or_default() += 1;
            }
        }
        println!("{counts:#?}");
        assert_eq!(counts.len(), 12, "{counts:?}");
        assert!(counts.values().all(|count| *count >= COMMON), "{counts:?}");
    }

    /// The decider of a side, with its verdict.
    fn reason(by: Decider, side: Side) -> String {
        match by {
            Decider::Default => format!("default {side:?}"),
            Decider::NetworkPolicy => format!("NetworkPolicy {side:?}"),
            Decider::ClusterRule { tier, .. } => format!("{tier:?} {side:?}"),
        }
    }

    #[test]
    fn each_tier_decides_many_flows() {
        const WORLDS: usize = 400;
        const PROBES: usize = 50;
        let (mut counts, mut sides): (BTreeMap<String, usize>, usize) = (BTreeMap::new(), 0);
        for world in draw_tiered_worlds(WORLDS) {
            for probe in draw_probes(&world, PROBES) {
                for decision in decide(&world, NODES[0], &probe).iter().filter(|d| d.side != Side::NotLocal) {
                    *counts.entry(reason(decision.by, decision.side)).or_default() += 1;
                    sides += 1;
                }
            }
        }
        println!("{sides} sides: {counts:#?}");
        let share = |reason: &str| 1000 * counts.get(reason).copied().unwrap_or(0) / sides;
        for (reason, least) in [
            ("Admin Allowed", 100),
            ("Admin Denied", 100),
            ("NetworkPolicy Allowed", 10),
            ("NetworkPolicy Denied", 30),
            ("Baseline Allowed", 20),
            ("Baseline Denied", 30),
            ("default NotIsolated", 100),
            ("Admin WouldDeny", 10),
            ("Baseline WouldDeny", 5),
        ] {
            assert!(share(reason) >= least, "{reason}: {} per mille of {counts:#?}", share(reason));
        }
    }

    /// The world with every rule of one action changed to another action.
    fn with_action(world: &World, action: &str, other: &str) -> World {
        let mut world = world.clone();
        let of_spec = |policy: &mut serde_json::Value| {
            for direction in ["ingress", "egress"] {
                let rules = policy.pointer_mut(&format!("/spec/{direction}")).and_then(|rules| rules.as_array_mut());
                for rule in rules.into_iter().flatten().filter(|rule| rule["action"] == action) {
                    rule["action"] = other.into();
                }
            }
        };
        world.cluster_policies.iter_mut().for_each(of_spec);
        world
    }

    #[test]
    fn every_feature_of_cluster_policies_matters() {
        let tiers_alone = |world: &World, tier: PolicyTier| {
            let mut world = world.clone();
            world.cluster_policies.retain(|policy| policy["spec"]["tier"] == format!("{tier:?}"));
            world
        };
        type Edit<'a> = &'a dyn Fn(&World) -> World;
        let changes: [(&str, usize, Edit); 10] = [
            ("Pass is Accept", 100, &|world| with_action(world, "Pass", "Accept")),
            ("Accept is Pass", 100, &|world| with_action(world, "Accept", "Pass")),
            ("only Admin", 200, &|world| tiers_alone(world, PolicyTier::Admin)),
            ("only Baseline", 200, &|world| tiers_alone(world, PolicyTier::Baseline)),
            ("one priority", 50, &|world| edited(world, |policy| set_priority(policy, 7))),
            ("other names", 15, &|world| {
                let mut number = 1000;
                edited(world, |policy| {
                    number -= 1;
                    policy["metadata"]["name"] = format!("{number}").into();
                })
            }),
            ("no protocols", 100, &|world| edited(world, |policy| remove(policy, &["protocols"]))),
            ("no nodes", 8, &|world| World { nodes: vec![], ..world.clone() }),
            ("no named ports", 15, &|world| edited(world, |policy| remove(policy, &["destinationNamedPort"]))),
            ("enforced", 100, &|world| edited(world, |policy| remove(policy, &["annotations"]))),
        ];
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for world in draw_tiered_worlds(120) {
            let probes = draw_probes(&world, 40);
            for (name, _, change) in &changes {
                let changed = change(&world);
                let differs = |probe: &&Probe| judge(&world, NODES[0], probe) != judge(&changed, NODES[0], probe);
                *counts.entry(name).or_default() += probes.iter().filter(differs).count();
            }
        }
        println!("{counts:#?}");
        for (name, least, _) in changes {
            assert!(counts[name] >= least, "{name}: {counts:#?}");
        }
    }

    fn set_priority(policy: &mut serde_json::Value, priority: u16) {
        if let Some(spec) = policy["spec"].as_object_mut() {
            spec.insert("priority".into(), priority.into());
        }
    }

    fn edited(world: &World, edit: impl FnMut(&mut serde_json::Value)) -> World {
        let mut world = world.clone();
        world.cluster_policies.iter_mut().for_each(edit);
        world
    }

    /// Removes the members of these names, at any depth.
    fn remove(value: &mut serde_json::Value, names: &[&str]) {
        match value {
            serde_json::Value::Object(members) => {
                members.retain(|name, _| !names.contains(&name.as_str()));
                members.values_mut().for_each(|member| remove(member, names));
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(|item| remove(item, names)),
            _ => {}
        }
    }

    #[test]
    fn remote_sets_change_many_verdicts() {
        let mut changed: BTreeMap<(bool, bool), usize> = BTreeMap::new();
        for world in draw(&connected_world(), 300) {
            let alone = World { remote: None, ..world.clone() };
            for probe in draw_probes(&world, 60) {
                let verdicts = [&world, &alone].map(|world| judge(world, NODES[0], &probe).passes());
                *changed.entry(verdicts.into()).or_default() += 1;
            }
        }
        let count = |with: bool, without: bool| changed.get(&(with, without)).copied().unwrap_or(0);
        assert!(count(true, false) > 60, "{changed:?}");
        assert!(count(false, false) > 1_000 && count(false, true) == 0, "{changed:?}");
    }

    #[test]
    fn every_world_can_stand_in_a_lab() {
        for world in draw_worlds(50) {
            let probes = draw_probes(&world, 50);
            let addresses = probes.iter().flat_map(|probe| [probe.source, probe.destination]);
            let spec = LabSpec::of_world(&world, &NODES, addresses.clone());
            let pods = spec.nodes.iter().flat_map(|node| &node.pods).flat_map(|pod| pod.addresses.clone());
            let places: Vec<_> = pods.chain(spec.outside.clone()).collect();
            assert!(addresses.into_iter().all(|address| places.contains(&address)));
        }
    }
}
