//! The programs of cluster policies: lookups of the Admin tier, then the program of the pod's NetworkPolicies or the
//! lookups of the Baseline tier.
//!
//! The first rule that matches is determined in advance for every address, so the number of rules of a tier does not
//! matter to a packet: it looks up the port, and its other end in one set for each decision, first by the rules with that
//! port, then by those without ports. The sets are plain ones because the kernel follows each verdict of a map, down to the last chain, whenever it validates rules.
//!
//! Unlike the programs of NetworkPolicies, these both allow and deny, so every path ends in an explicit verdict. A
//! packet that finds none was processed during a commit and is denied, as in every program (see [`super::dispatch`]).

mod comments;
mod program_input;
mod sets;

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, Datum, Element, Family, Field, Key, KeyType, Match, Name, Protocol, Rule, Set, Verdict,
};

use super::audit::{self, AuditRole};
use super::layout::{address_type, denying_chain, fixed, next_chain, peer_field};
use super::program_objects::{Fragment, SharedSet};
use super::reporting::{Cause, denied_for};
use super::roles::DecidedKind;
use super::set_contents::{PeerSet, PeersOf};
use super::tier_rules::{
    AddressRange, Base, OrderedRule, OwnRules, TierDecision, TierRules, TierSegment, networks_of_base,
    networks_of_segment, normal,
};
use super::tier_sets::{DecidedBy, DecisionSet};
use super::{Direction, names, own_node};
use crate::address_ranges::{complement, datum, is_whole_family};
use comments::{comment, comment_leading, comment_own};
use program_input::{JobRules, Purpose};
use sets::{identity, joined};

pub(super) use program_input::{ProgramHook, TierJob};

/// Up to this many port spans of a tier are written as rules, which are easy to read.
const INLINE_SPANS: usize = 4;

/// Compiles the program.
pub(super) fn compile(chain: &Name, job: &TierJob, families: &BTreeSet<Family>) -> Fragment {
    let direction = job.direction;
    let (role, deny) = (job.role(), denying_chain(direction, job.role()));
    let mut emitter = TierEmitter { families, direction, role, deny, fragment: Fragment::default() };
    let baseline = job.rules(&job.baseline);
    let go_on = match (job.place, role) {
        (_, AuditRole::Pending) => fixed(audit::WOULD_ALLOW),
        (ProgramHook::Forward, AuditRole::Enforced | AuditRole::Audited) => next_chain(direction),
        (ProgramHook::OwnNode, AuditRole::Enforced | AuditRole::Audited) => {
            let (name, chain) = own_node::allowed();
            emitter.fragment.chains.insert(name.clone(), Arc::new(chain));
            name
        }
    };
    let after_admin = match &job.policies {
        Some((_, policies)) => policies.clone(),
        None if baseline.is_empty() => go_on.clone(),
        None => {
            let chain = names::baseline(chain);
            let targets = Targets { accept: go_on.clone(), pass: go_on.clone() };
            let rules = emitter.judged(&chain, baseline, &targets);
            emitter.fragment.own_chains.insert(chain.clone(), Arc::new(Chain { hook: None, rules }));
            chain
        }
    };
    let targets = Targets { accept: go_on, pass: after_admin };
    let mut rules = emitter.judged(chain, job.rules(&job.admin), &targets);
    if let Purpose::Decides(Some(pending)) = &job.purpose {
        let jump = Rule::new(vec![], vec![Action::Verdict(Verdict::Jump(pending.clone()))]);
        rules.insert(0, jump.commented("as if audited policies were enforced"));
    }
    emitter.fragment.own_chains.insert(chain.clone(), Arc::new(Chain { hook: None, rules }));
    emitter.fragment
}

/// Where the decisions of a tier lead; denied flows always go to the chain that denies, or notes them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Targets {
    accept: Name,
    pass: Name,
}

impl Targets {
    fn only_denies(&self) -> bool {
        self.accept == self.pass
    }
}

/// Whether a chain looks up learned addresses of domain names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NameLookup {
    LookedUp,
    /// The chains that lead to it have looked them up.
    Ignored,
}

/// The rules with ports where there are none.
fn no_rules() -> OwnRules {
    Arc::from([])
}

struct TierEmitter<'a> {
    /// Families of this node's pods; nothing is emitted for the other one.
    families: &'a BTreeSet<Family>,
    direction: Direction,
    role: AuditRole,
    /// Where denied flows go.
    deny: Name,
    fragment: Fragment,
}

impl TierEmitter<'_> {
    /// The rules of a tier; `chain` is the chain that they are for. An address in the pod range of a node is that of a pod
    /// which is not known yet, unless a known pod or a node has it.
    fn judged(&mut self, chain: &Name, tier: JobRules, targets: &Targets) -> Vec<Rule> {
        let JobRules { known, unknown } = tier;
        let mut rules = Vec::new();
        if let Some(unknown) = unknown {
            let target = self.unknown_chain(chain, &unknown, targets);
            for &family in self.families {
                rules.push(self.unknown_rule(family, &target));
            }
        }
        rules.extend(self.tier(chain, known, targets));
        rules
    }

    /// Leads pods that are not known yet to the chain. Linux publishes ranges some time after the rules that look them up,
    /// until when this one matches.
    fn unknown_rule(&mut self, family: Family, target: &Name) -> Rule {
        let sets = [PeersOf::Known, PeersOf::Outside].map(|of| self.state_set(family, of));
        let matches = sets.map(|set| Match::NotInSet { fields: vec![peer_field(self.direction, family)], set });
        let rule = Rule::new(matches.into(), vec![Action::Verdict(Verdict::Goto(target.clone()))]);
        rule.commented("pods that are not known yet")
    }

    /// A pod whose address leaves the known ones and the denied ones in a commit between two lookups of its packet is in
    /// neither: it is looked up again before a rule without its address accepts it.
    fn unknown_since_commit(&mut self, family: Family) -> Rule {
        let deny = self.deny.clone();
        self.unknown_rule(family, &deny)
    }

    /// The chain that decides about pods which are not known yet. A segment's chain leads to no other chain of the tier,
    /// since the kernel follows at most 16 verdicts in a row.
    fn unknown_chain(&mut self, chain: &Name, tier: &TierRules, targets: &Targets) -> Name {
        let denies_all = |rule: &Arc<OrderedRule>| rule.is_for_every_address() && rule.decision() == TierDecision::Deny;
        match (tier.own_segments().next().is_some(), tier.base.rules().first()) {
            (false, Some(first)) if denies_all(first) => self.deny.clone(),
            (false, _) => self.base_chain(&tier.base, targets, NameLookup::LookedUp),
            (true, _) => {
                let name = names::of_unknown(chain);
                let rules = self.tier(&name, tier.flattened(), targets);
                self.fragment.own_chains.insert(name.clone(), Arc::new(Chain { hook: None, rules }));
                name
            }
        }
    }

    /// The rules of a tier; `chain` is the chain that they are for.
    fn tier(&mut self, chain: &Name, tier: TierRules, targets: &Targets) -> Vec<Rule> {
        let tier = Arc::new(tier);
        let mut rules = self.named_rules(&tier, targets);
        let spans = tier.own_segments().count();
        if spans == 0 {
            rules.extend(self.learned_rules(&no_rules(), &tier.base, targets));
            rules.extend(self.base_rules(&tier.base, targets));
            return rules;
        }
        let base = self.base_chain(&tier.base, targets, NameLookup::LookedUp);
        let to_base = |matches| Rule::new(matches, vec![Action::Verdict(Verdict::Goto(base.clone()))]);
        if spans <= INLINE_SPANS {
            for (protocol, segment) in tier.own_segments() {
                let mut matches = vec![Match::Protocol(protocol)];
                if (segment.first, segment.last) != (0, u16::MAX) {
                    matches.push(Match::FlowPort(segment.first, segment.last));
                }
                let chain = self.segment_chain(&segment.own, &tier, targets);
                let rule = Rule::new(matches, vec![Action::Verdict(Verdict::Goto(chain))]);
                rules.push(rule.commented(&comment_own(&segment.own)));
            }
            rules.push(to_base(vec![]));
            return rules;
        }
        let mut others = Vec::new();
        for (protocol, segments) in &tier.segments {
            let map = self.port_map(chain, *protocol, segments, &tier, targets);
            let lookup = Action::VerdictMap { field: Field::FlowPort, map };
            rules.push(Rule::new(vec![Match::Protocol(*protocol)], vec![lookup]));
            others.push(Match::NotProtocol(*protocol));
        }
        rules.push(to_base(others));
        rules
    }

    /// The map of a protocol's ports, which covers all of them: a packet that does not find its port has no verdict.
    fn port_map(
        &mut self,
        chain: &Name,
        protocol: Protocol,
        segments: &[TierSegment],
        tier: &TierRules,
        targets: &Targets,
    ) -> Name {
        let mut map = Set { verdicts: true, interval: true, ..Set::of(&[KeyType::InetService]) };
        for TierSegment { first, last, own } in segments {
            let verdict = Some(Verdict::Goto(self.segment_chain(own, tier, targets)));
            let comment = (!own.is_empty()).then(|| Comment::new(&comment_own(own)));
            map.elements.insert(Key::Range(Datum::Port(*first), Datum::Port(*last)), Element { verdict, comment });
        }
        let name = names::range_map(chain, protocol, &map.elements);
        self.fragment.own_sets.insert(name.clone(), Arc::new(map));
        name
    }

    /// The chain that decides by the base rules.
    fn base_chain(&mut self, base: &Base, targets: &Targets, learned: NameLookup) -> Name {
        if base.rules().is_empty() {
            return targets.pass.clone();
        }
        let looks_up = learned == NameLookup::LookedUp && base.rules().iter().any(|rule| rule.has_domain_names());
        let identity = (&base.digest, targets.accept.as_str(), targets.pass.as_str());
        let hint = comment(base.rules());
        let name = match looks_up {
            true => names::tier_judge(self.direction, self.role, &hint, &(identity, DecidedKind::Learned.suffix())),
            false => names::tier_judge(self.direction, self.role, &hint, &identity),
        };
        if !self.fragment.chains.contains_key(&name) {
            let mut rules = if looks_up { self.learned_rules(&no_rules(), base, targets) } else { vec![] };
            rules.extend(self.base_rules(base, targets));
            self.fragment.chains.insert(name.clone(), Arc::new(Chain { hook: None, rules }));
        }
        name
    }

    /// The chain that decides by a segment's own rules, and then by the base rules.
    fn segment_chain(&mut self, own: &OwnRules, tier: &TierRules, targets: &Targets) -> Name {
        if own.is_empty() {
            return self.base_chain(&tier.base, targets, NameLookup::LookedUp);
        }
        let base = &tier.base_of_segments;
        // The segment's own lookup includes the names of the base rules, which its other rules may precede.
        let to_base = self.base_chain(base, targets, NameLookup::Ignored);
        let identity = (own, &base.digest, targets.accept.as_str(), targets.pass.as_str());
        let name = names::tier_judge(self.direction, self.role, &comment_own(own), &identity);
        if !self.fragment.chains.contains_key(&name) {
            let mut rules = self.learned_rules(own, base, targets);
            rules.extend(self.segment_rules(own, base, to_base, targets));
            self.fragment.chains.insert(name.clone(), Arc::new(Chain { hook: None, rules }));
        }
        name
    }

    /// An address is in at most one set of pods and nodes, and only the networks of the rules count for all others. A
    /// commit may happen between two lookups of a packet: an address that moves from the set for Pass to the one for
    /// Deny is then in neither, so it is looked up again before networks accept it.
    fn base_rules(&mut self, base: &Base, targets: &Targets) -> Vec<Rule> {
        let only_denies = targets.only_denies();
        let for_every_address = base.rules().iter().find(|rule| rule.is_for_every_address());
        let outside = normal(for_every_address.map_or(TierDecision::Pass, |rule| rule.decision()), only_denies);
        let mut found = Vec::new();
        let ranges = |family| -> Vec<AddressRange> {
            let ranges = networks_of_base(base, family).into_iter();
            ranges.map(|(first, last, decision)| (first, last, normal(decision, only_denies))).collect()
        };
        let differs = |family: &Family| ranges(*family).iter().any(|(_, _, decision)| *decision != outside);
        let has_networks = self.families.iter().any(differs);
        for &family in self.families {
            let networks = ranges(family);
            let is_possible = |decision| {
                let leads_there =
                    |rule: &Arc<OrderedRule>| rule.depends_on_holder() && rule.may_lead_to(decision, only_denies);
                base.rules().iter().any(leads_there) && networks.iter().any(|(_, _, other)| *other != decision)
            };
            let of = DecidedBy::Base(base.clone());
            let decided = self.decided_rules(family, &of, only_denies, is_possible, targets);
            let denied = decided.denied.clone();
            found.extend(decided.rules);
            if base.rules().iter().any(|rule| rule.may_match_unknown_pods()) {
                found.push(self.unknown_since_commit(family));
            }
            if has_networks {
                found.extend(self.network_rules(family, &of, &networks, denied, targets));
            }
        }
        if has_networks {
            found.push(unpublished());
            return found;
        }
        let last = self.goes_to(outside, vec![], targets);
        found.push(match for_every_address {
            Some(rule) => last.commented(&rule.origin),
            None => last.commented("no other rule matches"),
        });
        found
    }

    /// Only addresses and networks about which the own rules decide before the base rules.
    fn segment_rules(&mut self, own: &OwnRules, base: &Base, to_base: Name, targets: &Targets) -> Vec<Rule> {
        let only_denies = targets.only_denies();
        let has_networks = own.iter().any(|(_, rule)| rule.has_networks());
        let holders_matter = own.iter().map(|(_, rule)| rule).chain(base.rules()).any(|rule| rule.depends_on_holder());
        let mut found = Vec::new();
        let differing = |family| networks_of_segment(base, own, family, only_denies);
        let differs = self.families.iter().any(|family| !differing(*family).is_empty());
        for &family in self.families {
            let is_possible = |decision| {
                let of_own = own.iter().any(|(_, rule)| rule.may_lead_to(decision, only_denies));
                let of_base = || {
                    let leads_there =
                        |rule: &&Arc<OrderedRule>| rule.depends_on_holder() && rule.may_lead_to(decision, only_denies);
                    has_networks && base.rules().iter().any(|rule| leads_there(&rule))
                };
                holders_matter && (of_own || of_base())
            };
            let of = DecidedBy::Own(own.clone(), base.clone());
            let decided = self.decided_rules(family, &of, only_denies, is_possible, targets);
            let denied = decided.denied.clone();
            found.extend(decided.rules);
            if own.iter().any(|(_, rule)| rule.may_match_unknown_pods()) {
                found.push(self.unknown_since_commit(family));
            }
            let networks = differing(family);
            found.extend(self.network_rules(family, &of, &networks, denied, targets));
            if differs {
                found.extend(self.rest_rule(family, &of, &networks, only_denies, &to_base));
            }
        }
        found.push(match differs {
            true => unpublished(),
            false => Rule::new(vec![], vec![Action::Verdict(Verdict::Goto(to_base))]),
        });
        found
    }

    /// Leads the addresses that are in none of the ranges, which are sorted, to the base rules.
    fn rest_rule(
        &mut self,
        family: Family,
        of: &DecidedBy,
        ranges: &[AddressRange],
        only_denies: bool,
        to_base: &Name,
    ) -> Option<Rule> {
        let rest = complement(ranges.iter().map(|(first, last, _)| (*first, *last)), family);
        let rest: Vec<_> = rest.into_iter().map(|(first, last)| (datum(first, family), datum(last, family))).collect();
        if rest.is_empty() {
            return None;
        }
        let matches = match is_whole_family(&rest, family) {
            true => Match::Family(family),
            false => {
                let name = names::decided_set(
                    family,
                    DecidedKind::Rest,
                    TierDecision::Pass,
                    only_denies,
                    "rest",
                    &identity(of),
                );
                let set = self.intervals(name, family, "addresses that only rules without ports decide", &rest);
                Match::InSet { fields: vec![peer_field(self.direction, family)], set }
            }
        };
        Some(Rule::new(vec![matches], vec![Action::Verdict(Verdict::Goto(to_base.clone()))]))
    }

    /// The lookups of the addresses that domain names make the rules accept. They come first: which rule matches such an
    /// address first is found in advance, so that none of the sets holds one that an earlier rule denies.
    fn learned_rules(&mut self, own: &OwnRules, base: &Base, targets: &Targets) -> Vec<Rule> {
        let of = DecidedBy::Learned(own.clone(), base.clone());
        let about =
            comment(own.iter().map(|(_, rule)| rule).chain(base.rules()).filter(|rule| rule.has_domain_names()));
        if about.is_empty() {
            return vec![];
        }
        let only_denies = targets.only_denies();
        let decision = normal(TierDecision::Accept, only_denies);
        let mut rules = Vec::new();
        for &family in self.families {
            let name = names::decided_set(family, DecidedKind::Learned, decision, only_denies, &about, &identity(&of));
            let of = PeersOf::Decided(DecisionSet { of: of.clone(), decision, only_denies });
            let fill = |set| SharedSet { set, peers: Some(PeerSet { family, of }) };
            let set = self.shared(name, &format!("learned for {about}"), &[address_type(family)], fill);
            let matches = vec![Match::InSet { fields: vec![peer_field(self.direction, family)], set }];
            rules.push(self.goes_to(TierDecision::Accept, matches, targets).commented(&about));
        }
        rules
    }

    /// The lookups of the addresses that pods or nodes have.
    fn decided_rules(
        &mut self,
        family: Family,
        of: &DecidedBy,
        only_denies: bool,
        is_possible: impl Fn(TierDecision) -> bool,
        targets: &Targets,
    ) -> DecidedRules {
        let mut found = DecidedRules { rules: vec![], denied: None };
        for decision in TierDecision::ALL.into_iter().filter(|decision| is_possible(*decision)) {
            let set = self.decided_set(family, of, decision, only_denies);
            if decision == TierDecision::Deny {
                found.denied = Some(set.clone());
            }
            let matches = vec![Match::InSet { fields: vec![peer_field(self.direction, family)], set }];
            let rule = self.goes_to(decision, matches, targets);
            found.rules.push(rule.commented(&comment_leading(of, decision, only_denies)));
        }
        found
    }

    /// The lookups of networks.
    fn network_rules(
        &mut self,
        family: Family,
        of: &DecidedBy,
        networks: &[AddressRange],
        denied: Option<Name>,
        targets: &Targets,
    ) -> Vec<Rule> {
        let field = peer_field(self.direction, family);
        let mut found = Vec::new();
        for decision in TierDecision::ALL {
            let ranges: Vec<(Datum, Datum)> = joined(networks, decision)
                .into_iter()
                .map(|(first, last)| (datum(first, family), datum(last, family)))
                .collect();
            if ranges.is_empty() {
                continue;
            }
            let mut matches = match is_whole_family(&ranges, family) {
                true => vec![Match::Family(family)],
                false => {
                    let set = self.network_set(family, of, decision, targets.only_denies(), &ranges);
                    vec![Match::InSet { fields: vec![field], set }]
                }
            };
            if let (TierDecision::Accept, Some(denied)) = (decision, &denied) {
                matches.push(Match::NotInSet { fields: vec![field], set: denied.clone() });
            }
            let rule = self.goes_to(decision, matches, targets);
            found.push(rule.commented(&comment_leading(of, decision, targets.only_denies())));
        }
        found
    }

    fn goes_to(&self, decision: TierDecision, matches: Vec<Match>, targets: &Targets) -> Rule {
        let target = match decision {
            TierDecision::Deny => self.deny.clone(),
            TierDecision::Accept => targets.accept.clone(),
            TierDecision::Pass => targets.pass.clone(),
        };
        Rule::new(matches, vec![Action::Verdict(Verdict::Goto(target))])
    }

    /// Named ports of egress rules: the destinations whose pods resolve them to a port for which they change the
    /// decision. The address of a flow's destination is the source of its replies.
    fn named_rules(&mut self, tier: &Arc<TierRules>, targets: &Targets) -> Vec<Rule> {
        let mut rules = Vec::new();
        if tier.named().is_empty() {
            return rules;
        }
        let own = tier.segments.values().flatten().flat_map(|segment| segment.own.iter().map(|(_, rule)| rule));
        let about = comment(own.filter(|rule| rule.names_port()));
        for &family in self.families {
            let to = [Field::Destination(family), Field::L4Proto, Field::DestinationPort];
            let from = [Field::Source(family), Field::L4Proto, Field::SourcePort];
            for (direction, fields) in [(nft::ConntrackDirection::Original, to), (nft::ConntrackDirection::Reply, from)]
            {
                // An entry that moves from Pass to Deny during a commit is looked up again.
                for decision in [TierDecision::Deny, TierDecision::Accept, TierDecision::Pass, TierDecision::Deny] {
                    if decision == TierDecision::Accept && targets.only_denies() {
                        continue;
                    }
                    let set = self.named_set(family, tier, decision, targets.only_denies());
                    let lookup = Match::InSet { fields: fields.to_vec(), set };
                    let rule = self.goes_to(decision, vec![Match::Direction(direction), lookup], targets);
                    rules.push(rule.commented(&about));
                }
            }
        }
        rules
    }
}

/// Linux publishes intervals some time after the rules that look them up (`nft_rbtree_commit`), so a new set may seem to
/// hold no address. As for a miss in a set of networks that a rule denies, that must not mean that the flow is allowed:
/// every address is in one of the sets.
fn unpublished() -> Rule {
    Rule::new(vec![], denied_for(Cause::Commit)).commented("networks that are not published yet")
}

/// The rules of one family, and the set of denied addresses among their lookups.
struct DecidedRules {
    rules: Vec<Rule>,
    denied: Option<Name>,
}

#[cfg(test)]
mod tests;
