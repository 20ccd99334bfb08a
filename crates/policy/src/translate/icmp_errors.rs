//! ICMP errors: a pod of this node may only send errors about its own flows.
//!
//! Conntrack relates an error to the flow that it quotes, whoever sends it, with state `related`, so the error has the
//! flow's approval. Routers send errors from their own addresses, so only this node's pods must be an end of the flow;
//! pods of other nodes are checked there.
//!
//! Packets from a known interface are checked at it ([`super::edge`]), at no cost for others. The rules here are for
//! pods with an unknown interface, and are only present while there are any.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use nft::{Action, Element, Elements, Family, Field, Match, Name, Rule, Ruleset, State, Verdict};

use super::frame::pair_key;
use super::layout::fixed;
use super::reporting::{Cause, denied_for};
use super::roles::SetRole;

pub(super) const RELATED: &str = "related";

/// The addresses of this node's pods whose interfaces are unknown, each paired with itself: nft cannot compare two
/// fields of a packet, but a lookup of both in a set of such pairs succeeds if they are equal.
pub(super) fn unchecked_pods(family: Family) -> Name {
    SetRole::UncheckedPods(family).name()
}

/// Fills the sets of pods whose errors are checked here.
pub(super) fn place_unchecked_pods(ruleset: &mut Ruleset, unchecked: &BTreeSet<IpAddr>) {
    for family in Family::BOTH {
        let Some(set) = ruleset.sets.get_mut(&unchecked_pods(family)) else { continue };
        let of_family = unchecked.iter().filter(|address| Family::of(**address) == family);
        let elements: Elements = of_family.map(|address| (pair_key(*address), Element::default())).collect();
        if set.elements != elements {
            Arc::make_mut(set).elements = elements;
        }
    }
}

/// The rule before the approval; `None` while every pod is checked at its interface.
pub(super) fn before_approval(ruleset: &Ruleset) -> Option<Rule> {
    let holds_any = |family| ruleset.sets.get(&unchecked_pods(family)).is_some_and(|set| !set.elements.is_empty());
    let check = Verdict::Jump(fixed(RELATED));
    let rule = || Rule::new(vec![Match::State(vec![State::Related])], vec![Action::Verdict(check)]);
    Family::BOTH.into_iter().any(holds_any).then(rule)
}

/// The chain [`RELATED`]. Packets that it does not deny continue to the approval.
pub(super) fn rules(families: &BTreeSet<Family>) -> Vec<Rule> {
    let deny = |&family: &Family| {
        let source = Field::Source(family);
        let from_own_pod = Match::InSet { fields: vec![source, source], set: unchecked_pods(family) };
        let is_no = |end| Match::NotInSet { fields: vec![end, source], set: unchecked_pods(family) };
        let no_end = [Field::FlowSource(family), Field::FlowDestination(family)].map(is_no);
        let matches = std::iter::once(from_own_pod).chain(no_end).collect();
        Rule::new(matches, denied_for(Cause::ForeignError)).commented("a pod reports errors of its own flows only")
    };
    families.iter().map(deny).collect()
}
