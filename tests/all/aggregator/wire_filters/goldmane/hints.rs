//! `Flows/FilterHints` compared with the values of all flows that a filter matches.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tests::goldmane_client::GoldmaneClient;

use super::super::SETS;
use super::super::criteria::Criteria;
use super::super::traffic::Random;
use super::{GoldmaneKey, NamedPolicy};

/// `FilterType`: destination, source, destination namespace, source namespace, tier, name, kind and namespace of policies.
const TYPES: std::ops::RangeInclusive<i64> = 1..=8;

/// Policies that a user can filter by: of the end of a tier it is the one that isolates the pod.
fn policies(key: &GoldmaneKey) -> impl Iterator<Item = &NamedPolicy> {
    key.enforced.iter().chain(&key.pending).map(|hit| hit.trigger.as_ref().unwrap_or(&hit.policy))
}

/// `PolicyKind`
fn kind_name(kind: i64) -> &'static str {
    match kind {
        4 => "StagedGlobalNetworkPolicy",
        5 => "StagedKubernetesNetworkPolicy",
        6 => "NetworkPolicy",
        9 => "Profile",
        10 => "EndOfTier",
        11 => "ClusterNetworkPolicy",
        other => panic!("no flow has kind {other}"),
    }
}

fn values(kind: i64, key: &GoldmaneKey) -> Vec<String> {
    match kind {
        1 => vec![key.destination.0.clone()],
        2 => vec![key.source.0.clone()],
        3 => vec![key.destination.1.clone()],
        4 => vec![key.source.1.clone()],
        5 => policies(key).map(|policy| policy.tier.clone()).collect(),
        6 => policies(key).map(|policy| policy.name.clone()).collect(),
        7 => policies(key).map(|policy| kind_name(policy.kind).to_owned()).collect(),
        8 => policies(key).map(|policy| policy.namespace.clone()).collect(),
        other => panic!("no type {other}"),
    }
}

pub(super) fn compare(
    client: &GoldmaneClient,
    keys: &[GoldmaneKey],
    criteria: &Criteria<'_, GoldmaneKey>,
    random: &mut Random,
) {
    let always = (0, Timestamp::now().as_second() + 60);
    let mut lengths = BTreeSet::new();
    for set in 0..SETS {
        let drawn = criteria.draw(random, 3, &[9]);
        let kind = TYPES.start() + (set % 8) as i64;
        let seen = client.hints(kind, &drawn.filter, always).unwrap();
        let matched = keys.iter().zip(&drawn.matches).filter(|(_, is_match)| **is_match);
        let expected: BTreeSet<String> = matched.flat_map(|(key, _)| values(kind, key)).collect();
        assert_eq!(seen, expected.into_iter().collect::<Vec<_>>(), "set {set}, type {kind}: {:?}", drawn.filter);
        lengths.insert((kind, seen.len()));
    }
    for kind in TYPES {
        assert!(lengths.iter().filter(|(of, _)| *of == kind).count() > 1, "type {kind} has always as many values");
    }
}
