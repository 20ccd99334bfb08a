//! Where audited programs end: what they do not allow is told of and goes on.

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::{Action, Chain, Comment, Family, Name, Rule, Ruleset, Set};

use super::layout::{Layout, address_type, fixed, go_on, to_itself};
use super::reporting::{Judgement, audit_chain};
use super::{Direction, reporting};

/// The addresses of pods with an audited program, each paired with itself. The set of isolated pods does not hold them
/// for that.
pub(super) fn self_set(family: Family) -> Name {
    fixed(match family {
        Family::V4 => "audited-self4",
        Family::V6 => "audited-self6",
    })
}

/// Adds where audited programs end.
pub(super) fn add(ruleset: &mut Ruleset, layout: &Layout, families: &BTreeSet<Family>) {
    for &family in families {
        let address = address_type(family);
        let comment = Some(Comment::new("pods of this node whose policies are audited, each with itself"));
        let set = Set { comment, ..Set::of(&[address, address]) };
        ruleset.sets.insert(self_set(family), Arc::new(set));
    }
    for direction in Direction::BOTH {
        let rules = audit_rules(layout, direction, families);
        ruleset.chains.insert(audit_chain(direction), Arc::new(Chain { hook: None, rules }));
    }
    reporting::add_tables(ruleset, layout, Judgement::WouldDeny, families);
}

/// What would be denied is told of and counted, and goes on as if it were allowed: the other side still judges it.
fn audit_rules(layout: &Layout, direction: Direction, families: &BTreeSet<Family>) -> Vec<Rule> {
    let mut rules = to_itself(families, self_set);
    rules.extend(reporting::flow_rules(layout, Judgement::WouldDeny, direction, families));
    rules.push(Rule::new(vec![], vec![Action::Counter, Action::Verdict(go_on(direction))]));
    rules
}
