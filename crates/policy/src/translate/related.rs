//! ICMP errors: one that a pod of this node sends is about a flow of its own.
//!
//! Conntrack attaches an error to the flow that it quotes, whoever sends it, and its state is `related`: it carries the
//! flow's approval. Routers send errors from addresses of their own, so only the pods of this node are held to the ends
//! of the flow; those of other nodes are held to it there.

use std::collections::BTreeSet;

use nft::{Action, Family, Field, Match, Name, Rule, State, Verdict};

use super::layout::fixed;
use super::reporting::{Cause, denied_for};

pub(super) const RELATED: &str = "related";
const OWN_PODS4: &str = "own-pods4";
const OWN_PODS6: &str = "own-pods6";

/// The addresses of this node's pods, each paired with itself: nft cannot compare two fields of a packet, but it finds
/// them in a set of pairs when they are equal.
pub(super) fn own_pods(family: Family) -> Name {
    fixed(match family {
        Family::V4 => OWN_PODS4,
        Family::V6 => OWN_PODS6,
    })
}

/// Whether the set is one of [`own_pods`]. What it decides holds for approved flows too, so that no flow has to be judged
/// again when it changes.
pub(super) fn is_of_own_pods(set: &Name) -> bool {
    [OWN_PODS4, OWN_PODS6].contains(&set.as_str())
}

/// The rule in front of the approval.
pub(super) fn before_approval() -> Rule {
    let check = Verdict::Jump(fixed(RELATED));
    Rule::new(vec![Match::State(vec![State::Related])], vec![Action::Verdict(check)])
}

/// The chain [`RELATED`]. Packets that it does not deny go on to the approval.
pub(super) fn rules(families: &BTreeSet<Family>) -> Vec<Rule> {
    let deny = |&family: &Family| {
        let source = Field::Source(family);
        let from_own_pod = Match::InSet { fields: vec![source, source], set: own_pods(family) };
        let is_no = |end| Match::NotInSet { fields: vec![end, source], set: own_pods(family) };
        let no_end = [Field::FlowSource(family), Field::FlowDestination(family)].map(is_no);
        let matches = std::iter::once(from_own_pod).chain(no_end).collect();
        Rule::new(matches, denied_for(Cause::ForeignError)).commented("a pod reports errors of its own flows only")
    };
    families.iter().map(deny).collect()
}
