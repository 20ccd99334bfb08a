//! The end chains of audited programs, which report flows that the programs do not allow, and continue.

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::{Action, Chain, Family, Rule, Ruleset};

use super::layout::{Layout, go_on};
use super::reporting::{Judgement, audit_chain};
use super::{Direction, hairpin, reporting};

/// Adds the end chains of audited programs.
pub(super) fn add(ruleset: &mut Ruleset, layout: &Layout, families: &BTreeSet<Family>) {
    for direction in Direction::BOTH {
        let rules = audit_rules(layout, direction, families);
        ruleset.chains.insert(audit_chain(direction), Arc::new(Chain { hook: None, rules }));
    }
    reporting::add_tables(ruleset, layout, Judgement::WouldDeny, families);
}

/// Would-be denied flows are reported and counted, and continue as if allowed: the other side still judges them.
fn audit_rules(layout: &Layout, direction: Direction, families: &BTreeSet<Family>) -> Vec<Rule> {
    let mut rules = hairpin::rules(families);
    rules.extend(reporting::flow_rules(layout, Judgement::WouldDeny, direction, families));
    rules.push(Rule::new(vec![], vec![Action::Counter, Action::Verdict(go_on(direction))]));
    rules
}
