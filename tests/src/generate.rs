//! Generated clusters and the packets that tell their policies apart.
//!
//! Everything is drawn from small pools, so that things collide: labels, port names, addresses, overlapping blocks.
//! Some of what is drawn cannot be understood, on purpose. Only cases whose meaning is decided (the oracle's words
//! say how) are drawn.

mod flows;
mod objects;
mod policies;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::oracle::{Probe, World};

/// The nodes that pods are bound to.
pub const NODES: [&str; 2] = ["node-a", "node-b"];

/// The names of namespaces; a world has the first one to four of them.
const NAMESPACES: [&str; 4] = ["red", "green", "blue", "kube-system"];

/// Clusters of one to four namespaces, 3 to 14 pods on [`NODES`] and up to 8 policies.
///
/// Pods of `node-a` have addresses in 10.1.0.0/24 and fd00:1::/64, those of `node-b` in 10.2.0.0/24 and fd00:2::/64
/// (but for a few that moved).
pub fn world() -> impl Strategy<Value = World> {
    (1..=NAMESPACES.len())
        .prop_flat_map(|count| {
            let names = &NAMESPACES[..count];
            (
                objects::namespaces(names),
                prop::collection::vec(objects::pod(names), 3..=14),
                prop::collection::vec(policies::policy(names), 0..=8),
            )
        })
        .prop_map(|(namespaces, pods, policies)| World {
            namespaces,
            pods: pods.into_iter().enumerate().map(|(index, draft)| draft.finish(index)).collect(),
            policies: policies::named(policies),
        })
}

/// Flows between the addresses and to the ports at which the verdicts of this world may change.
pub fn probes(world: &World) -> impl Strategy<Value = Vec<Probe>> + use<> {
    prop::collection::vec(flows::probe(world), 1..=64)
}

/// The first `count` worlds of a fixed seed.
pub fn draw_worlds(count: usize) -> Vec<World> {
    draw(&world(), count)
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

/// A member of a JSON object that may be absent, or null, which is the same.
fn optional(
    present: f64,
    value: impl Strategy<Value = serde_json::Value>,
) -> impl Strategy<Value = Option<serde_json::Value>> {
    let absent = prop_oneof![9 => Just(None), 1 => Just(Some(serde_json::Value::Null))];
    (prop::bool::weighted(present), value, absent)
        .prop_map(|(present, value, absent)| if present { Some(value) } else { absent })
}

/// An object of the members that are there.
fn object<const N: usize>(members: [(&str, Option<serde_json::Value>); N]) -> serde_json::Value {
    members.into_iter().filter_map(|(name, member)| Some((name.to_owned(), member?))).collect()
}
