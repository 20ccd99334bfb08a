//! The ends of audited and pending programs, which report flows that audited policies would deny.
//!
//! An audited program is that of a pod whose only policies are audited NetworkPolicies. It ends in a chain that reports
//! and continues. With tiers, an audited policy may deny what an enforced one allows. So a program that decides first
//! jumps to a *pending program*, which evaluates all tiers as if their audited policies were enforced and leaves its
//! verdict in the connection mark. Only a flow that the deciding program then allows is reported. The two programs are not
//! chained one behind the other: the kernel follows at most 16 nested chains (NFT_JUMP_STACK_SIZE).

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::{Action, Chain, Family, Match, Name, Rule, Ruleset, Verdict};

use super::layout::{Layout, fixed, next_verdict};
use super::reporting::{Judgement, audit_chain, pending_chain};
use super::{Direction, dispatch, hairpin, reporting};
use crate::Enforcement;

/// Adds the end chains of audited programs.
pub(super) fn add(ruleset: &mut Ruleset, layout: &Layout, families: &BTreeSet<Family>) {
    for direction in Direction::BOTH {
        let rules = audit_rules(layout, direction, families);
        ruleset.chains.insert(audit_chain(direction), Arc::new(Chain { hook: None, rules }));
    }
    reporting::add_tables(ruleset, layout, Judgement::WouldDeny, families);
}

/// The purpose of a program's verdicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuditRole {
    /// Flows are allowed and denied.
    Enforced,
    /// All flows are allowed, and reported if audited NetworkPolicies would deny them.
    Audited,
    /// Flows that audited policies would deny are noted, for the program that decides.
    Pending,
}

impl AuditRole {
    pub(super) fn enforcement(self) -> Enforcement {
        match self {
            AuditRole::Enforced => Enforcement::Enforce,
            AuditRole::Audited | AuditRole::Pending => Enforcement::Audit,
        }
    }
}

/// The end of pending programs for flows that the policies allow.
pub(super) const WOULD_ALLOW: &str = "audit/would-allow";
/// The end of pending programs for flows that the policies deny.
pub(super) const WOULD_DENY: &str = "audit/would-deny";

/// Adds the ends of pending programs, and the reports of the flows that they note.
pub(super) fn add_pending(ruleset: &mut Ruleset, layout: &Layout, families: &BTreeSet<Family>) {
    let note = |value| Rule::new(vec![], vec![Action::SetMark { mask: layout.mask(), value }]);
    let mut chain = |name: Name, rules: Vec<Rule>| {
        ruleset.chains.insert(name, Arc::new(Chain { hook: None, rules }));
    };
    chain(fixed(WOULD_ALLOW), vec![note(0)]);
    chain(fixed(WOULD_DENY), vec![note(layout.would_deny_mark())]);
    for direction in Direction::BOTH {
        let mut rules = reporting::flow_rules(layout, Judgement::WouldDeny, direction, families);
        let forget = Action::SetMark { mask: layout.mask(), value: 0 };
        rules.push(Rule::new(vec![], vec![Action::Counter, forget]));
        chain(pending_chain(direction), rules);
    }
    hairpin::add_pending_chains(ruleset, layout, families);
    reporting::add_tables(ruleset, layout, Judgement::WouldDeny, families);
    for name in [dispatch::INGRESS, hairpin::TO_INGRESS] {
        if let Some(ingress) = ruleset.chains.get_mut(&fixed(name)) {
            Arc::make_mut(ingress).rules.insert(0, report_rule(layout, Direction::Egress));
        }
    }
}

/// Reports a flow that the program of the direction allows and its pending program denies.
pub(super) fn report_rule(layout: &Layout, direction: Direction) -> Rule {
    let noted = Match::Mark { mask: layout.mask(), value: layout.would_deny_mark() };
    Rule::new(vec![noted], vec![Action::Verdict(Verdict::Jump(pending_chain(direction)))])
        .commented("audited policies would deny it")
}

/// Would-be denied flows are reported and counted, and continue as if allowed: the other side still judges them.
fn audit_rules(layout: &Layout, direction: Direction, families: &BTreeSet<Family>) -> Vec<Rule> {
    let mut rules = hairpin::rules(direction, families);
    rules.extend(reporting::flow_rules(layout, Judgement::WouldDeny, direction, families));
    rules.push(Rule::new(vec![], vec![Action::Counter, Action::Verdict(next_verdict(direction))]));
    rules
}
