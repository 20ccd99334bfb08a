//! Denies addresses of this node's pods that no known pod has, if configured: a pod may run before its object or
//! attachment is known.

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::{Comment, Datum, Element, Family, Field, Key, Match, Name, Rule, Ruleset, Set};

use super::layout;
use super::layout::{Layout, address_type, fixed};
use super::reporting::{Cause, add_deny_chain, denied_for};
use super::roles::SetRole;
use crate::Block;
use crate::peers::block_ranges;

fn cidrs(family: Family) -> Name {
    SetRole::DeniedRanges(family).name()
}

/// The addresses of this node's known pods.
pub(super) fn known(family: Family) -> Name {
    SetRole::KnownPods(family).name()
}

/// The families in which unknown addresses are denied.
pub(super) fn families(layout: &Layout) -> impl Iterator<Item = Family> {
    layout.denied_cidrs().iter().map(|cidr| Family::of(cidr.addr()))
}

/// Adds the sets that the rules look up: the pod ranges of this node, and the known pods.
pub(super) fn add(ruleset: &mut Ruleset, layout: &Layout) {
    for family in families(layout).collect::<BTreeSet<Family>>() {
        let of = |comment: &str| Set { comment: Some(Comment::new(comment)), ..Set::of(&[address_type(family)]) };
        let blocks: BTreeSet<Block> =
            layout.denied_cidrs().iter().map(|cidr| Block { cidr: cidr.trunc(), except: vec![] }).collect();
        let mut ranges = Set { interval: true, ..of("where this node's pods have their addresses") };
        let elements = block_ranges(&blocks, family);
        ranges.elements = elements
            .into_iter()
            .map(|(first, last): (Datum, Datum)| (Key::Range(first, last), Element::default()))
            .collect();
        ruleset.sets.insert(cidrs(family), Arc::new(ranges));
        ruleset.sets.insert(known(family), Arc::new(of("pods of this node")));
        add_deny_chain(ruleset, layout, Cause::UnknownAddress);
    }
    let strays = stray_rules(ruleset);
    if let Some(chain) = ruleset.chains.get_mut(&fixed(layout::STRAY_OF_ISOLATED)) {
        Arc::make_mut(chain).rules.extend(strays);
    }
}

fn matches(ruleset: &Ruleset, fields: impl Fn(Family) -> [Field; 2]) -> Vec<Vec<Match>> {
    let present = Family::BOTH.into_iter().filter(|family| ruleset.sets.contains_key(&cidrs(*family)));
    let of = |family: Family| {
        fields(family).map(|field| {
            let fields = vec![field];
            vec![
                Match::InSet { fields: fields.clone(), set: cidrs(family) },
                Match::NotInSet { fields, set: known(family) },
            ]
        })
    };
    present.flat_map(of).collect()
}

/// Rules for flows, before any dispatch to programs.
pub(super) fn rules(ruleset: &Ruleset) -> Vec<Rule> {
    let ends = |family| [Field::FlowSource(family), Field::FlowDestination(family)];
    let deny =
        |matches| Rule::new(matches, denied_for(Cause::UnknownAddress)).commented("no known pod has this address");
    matches(ruleset, ends).into_iter().map(deny).collect()
}

/// Rules for packets without a flow.
fn stray_rules(ruleset: &Ruleset) -> Vec<Rule> {
    let ends = |family| [Field::Source(family), Field::Destination(family)];
    matches(ruleset, ends).into_iter().map(|matches| Rule::new(matches, denied_for(Cause::UnknownAddress))).collect()
}
