//! Decisions of the networks in rules about addresses that no pod and no node has, as sorted ranges.

use std::collections::BTreeMap;
use std::sync::Arc;

use nft::Family;

use super::{BaseRules, OrderedRule, OwnRules, TierDecision, in_order, normal};
use crate::address_ranges::{bounds, whole};

/// The first and the last address as integers, and what networks decide about them.
pub(in crate::translate) type AddressRange = (u128, u128, TierDecision);

/// The decisions of the networks of the base rules. The ranges are sorted and disjoint, and cover the whole family.
pub(in crate::translate) fn networks_of_base(base: &BaseRules, family: Family) -> Vec<AddressRange> {
    decisions_of_networks(&base.rules.iter().collect::<Vec<_>>(), family)
}

/// The decisions of the networks of all rules of a segment, where those of the base rules alone decide something else.
pub(in crate::translate) fn networks_of_segment(
    base: &BaseRules,
    own: &OwnRules,
    family: Family,
    only_denies: bool,
) -> Vec<AddressRange> {
    if !own.iter().any(|(_, rule)| rule.has_networks()) {
        return vec![];
    }
    let (mut of_base, mut differing) = (networks_of_base(base, family).into_iter().peekable(), Vec::new());
    for (mut first, last, decision) in decisions_of_networks(&in_order(base, own), family) {
        // Both cover the whole family.
        while let Some((_, end, other)) = of_base.peek().copied() {
            let until = last.min(end);
            if normal(decision, only_denies) != normal(other, only_denies) {
                differing.push((first, until, normal(decision, only_denies)));
            }
            if end <= last {
                of_base.next();
            }
            if until == last {
                break;
            }
            first = until + 1;
        }
    }
    differing
}

/// Ranges of addresses with what the networks of the rules decide about them, sorted and disjoint; they cover the whole
/// family.
fn decisions_of_networks(rules: &[&Arc<OrderedRule>], family: Family) -> Vec<AddressRange> {
    let (_, most) = whole(family);
    // By the first address, and by the last one: an address after the last one of the family does not exist.
    let mut opening: BTreeMap<u128, Vec<usize>> = [(0, vec![])].into();
    let mut closing: BTreeMap<u128, Vec<usize>> = BTreeMap::new();
    for (number, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.named.is_none()) {
        let whole = rule.peers.any.then_some((0, most));
        let networks = rule.peers.networks.iter().filter(|network| Family::of(network.addr()) == family).map(bounds);
        for (first, last) in networks.chain(whole) {
            opening.entry(first).or_default().push(number);
            closing.entry(last).or_default().push(number);
            if last < most {
                opening.entry(last + 1).or_default();
            }
        }
    }
    let mut open: BTreeMap<usize, usize> = BTreeMap::new();
    let mut found: Vec<AddressRange> = Vec::new();
    let starts: Vec<u128> = opening.keys().copied().collect();
    for (place, (first, rules_from)) in opening.iter().enumerate() {
        rules_from.iter().for_each(|number| *open.entry(*number).or_default() += 1);
        let decision = open.first_key_value().map_or(TierDecision::Pass, |(number, _)| rules[*number].decision());
        let last = starts.get(place + 1).map_or(most, |next| next - 1);
        match found.last_mut() {
            Some((_, end, previous)) if *previous == decision => *end = last,
            _ => found.push((*first, last, decision)),
        }
        for number in closing.get(&last).into_iter().flatten() {
            if let Some(times) = open.get_mut(number) {
                *times -= 1;
            }
        }
        open.retain(|_, times| *times > 0);
    }
    found
}
