//! Comments of rules and sets: the rules of cluster policies that lead to a decision.

use std::sync::Arc;

use crate::translate::tier_rules::{OrderedRule, OwnRules, TierDecision, normal};
use crate::translate::tier_sets::DecidedBy;

/// Number of rules named in a comment.
const NAMED_RULES: usize = 3;

/// `deny-db ingress[0], allow-dns ingress[1] and 3 more`
pub(super) fn comment<'a>(rules: impl IntoIterator<Item = &'a Arc<OrderedRule>>) -> String {
    let mut named: Vec<&str> = Vec::new();
    let mut more = 0;
    for rule in rules {
        match named.len() < NAMED_RULES {
            _ if named.contains(&&*rule.origin) => {}
            true => named.push(&rule.origin),
            false => more += 1,
        }
    }
    match more {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

pub(super) fn comment_own(own: &OwnRules) -> String {
    comment(own.iter().map(|(_, rule)| rule))
}

/// Names the rules that lead to the decision; those of a segment if there are any.
pub(super) fn comment_leading(of: &DecidedBy, decision: TierDecision, only_denies: bool) -> String {
    let (own, base) = match of {
        DecidedBy::Base(base) => (&[][..], base),
        DecidedBy::Own(own, base) | DecidedBy::Learned(own, base) => (&own[..], base),
        DecidedBy::NamedPorts(_, tier) => (&[][..], &tier.base),
    };
    let certainly = |rule: &&Arc<OrderedRule>| normal(rule.decision(), only_denies) == decision;
    let perhaps = |rule: &&Arc<OrderedRule>| rule.may_lead_to(decision, only_denies);
    let own = || own.iter().map(|(_, rule)| rule);
    let attempts = [
        comment(own().filter(certainly)),
        comment(base.rules().iter().filter(certainly)),
        comment(own().filter(perhaps)),
        comment(base.rules().iter().filter(perhaps)),
    ];
    attempts.into_iter().find(|named| !named.is_empty()).unwrap_or_default()
}
