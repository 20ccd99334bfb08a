//! Plans become chains, maps and sets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, Datum, Element, Family, Field, Key, KeyType, Match, Name, Rule, Ruleset, Set, Verdict,
};

use super::layout::{Layout, address_type, dispatch_map, end, go_on, guard_set, peer_field, self_set, skeleton};
use super::plan::{Allowed, Plan, Span};
use super::{Direction, address_key, audit, dispatch_element, names};
use crate::peers::{NamedPeers, PeerUnion, block_ranges, describe, is_whole_family, named_endpoints, pod_addresses};
use crate::{ClusterState, Enforcement, ObjectName};

/// Up to this many port spans a program is written as rules, which a person reads at a glance and which cost about
/// 60 ns each; beyond it verdict maps keep the cost flat.
const INLINE_SPANS: usize = 4;

/// Policies named in a comment.
const NAMED_POLICIES: usize = 3;

pub(super) struct Emitter<'a> {
    state: &'a ClusterState,
    /// Families of this node's pods; nothing is emitted for the other one.
    families: BTreeSet<Family>,
    layout: &'a Layout,
    ruleset: Ruleset,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(state: &'a ClusterState, families: BTreeSet<Family>, layout: &'a Layout) -> Emitter<'a> {
        let ruleset = skeleton(layout, &families);
        Emitter { state, families, layout, ruleset }
    }

    pub(super) fn finish(self) -> Ruleset {
        self.ruleset
    }

    /// Sends the flows of one direction of a pod's addresses to a chain.
    pub(super) fn dispatch(
        &mut self,
        direction: Direction,
        enforcement: Enforcement,
        chain: &Name,
        about: &str,
        addresses: &[IpAddr],
    ) {
        for &address in addresses {
            let family = Family::of(address);
            let mut add = |set: Name, key: Key, element: Element| {
                if let Some(set) = self.ruleset.sets.get_mut(&set) {
                    Arc::make_mut(set).elements.insert(key, element);
                }
            };
            add(dispatch_map(direction, family), address_key(address), dispatch_element(chain, about));
            if enforcement == Enforcement::Enforce {
                add(guard_set(direction, family), address_key(address), Element::default());
            }
            let itself = Key::Two(Datum::from(address), Datum::from(address));
            let pairs = match enforcement {
                Enforcement::Enforce => self_set(family),
                Enforcement::Audit => audit::self_set(family),
            };
            add(pairs, itself, Element::default());
        }
    }

    /// Compiles a plan into the chain. Order matters: what a verdict map finds is final, so everything that it does
    /// not hold comes before it.
    pub(super) fn program(&mut self, direction: Direction, enforcement: Enforcement, chain: &Name, plan: &Plan) {
        match enforcement {
            Enforcement::Enforce => {}
            Enforcement::Audit => audit::add(&mut self.ruleset, self.layout, &self.families),
        }
        let mut rules = self.allow(direction, &[], &plan.any_port.peers, &comment(&plan.any_port.by));
        if !plan.any_port.peers.any {
            rules.extend(self.named_rules(plan));
            if plan.spans.values().map(Vec::len).sum::<usize>() <= INLINE_SPANS {
                rules.extend(self.inline_spans(direction, plan));
            } else {
                rules.extend(self.mapped_spans(direction, enforcement, chain, plan));
            }
            rules.push(end(direction, enforcement));
        }
        self.add_chain(chain.clone(), rules);
    }

    /// Rules that take a flow on if its peer is in the union.
    fn allow(&mut self, direction: Direction, when: &[Match], peers: &PeerUnion, comment: &str) -> Vec<Rule> {
        let rule = |condition: Option<Match>| {
            let matches = when.iter().cloned().chain(condition).collect();
            Rule::new(matches, vec![Action::Verdict(go_on(direction))]).commented(comment)
        };
        if peers.any {
            return vec![rule(None)];
        }
        let mut rules = Vec::new();
        for family in self.families.clone() {
            let field = peer_field(direction, family);
            if !peers.pods.is_empty() {
                let set = self.pod_set(family, peers);
                rules.push(rule(Some(Match::InSet { fields: vec![field], set })));
            }
            let ranges = block_ranges(&peers.blocks, family);
            if is_whole_family(&ranges, family) {
                rules.push(rule(Some(Match::Family(family))));
            } else if !ranges.is_empty() {
                let set = self.block_set(family, peers, &ranges);
                rules.push(rule(Some(Match::InSet { fields: vec![field], set })));
            }
        }
        rules
    }

    fn inline_spans(&mut self, direction: Direction, plan: &Plan) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (protocol, spans) in &plan.spans {
            for Span { first, last, allowed } in spans {
                let mut when = vec![Match::Protocol(*protocol)];
                if (*first, *last) != (0, u16::MAX) {
                    when.push(Match::FlowPort(*first, *last));
                }
                rules.extend(self.allow(direction, &when, &allowed.peers, &comment(&allowed.by)));
            }
        }
        rules
    }

    /// One verdict map a protocol: from the port to the chain of the peers that are allowed there.
    fn mapped_spans(&mut self, direction: Direction, enforcement: Enforcement, chain: &Name, plan: &Plan) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (protocol, spans) in &plan.spans {
            let ranges = spans.iter().any(|s| s.first != s.last);
            let mut set = Set { verdicts: true, interval: ranges, ..Set::of(&[KeyType::InetService]) };
            for Span { first, last, allowed } in spans {
                let (first, last) = (Datum::Port(*first), Datum::Port(*last));
                let key = if ranges { Key::Range(first, last) } else { Key::One(first) };
                let verdict = self.peers_verdict(direction, enforcement, allowed);
                let comment = Some(Comment::new(&comment(&allowed.by)));
                set.elements.insert(key, Element { verdict: Some(verdict), comment });
            }
            let map = names::port_map(chain, *protocol, ranges);
            self.ruleset.sets.insert(map.clone(), Arc::new(merge_equal_neighbours(set)));
            let lookup = Action::VerdictMap { field: Field::FlowPort, map };
            rules.push(Rule::new(vec![Match::Protocol(*protocol)], vec![lookup]));
        }
        rules
    }

    /// Where a flow goes whose port allows the union: straight on, or to the chain that looks its peer up.
    fn peers_verdict(&mut self, direction: Direction, enforcement: Enforcement, allowed: &Allowed) -> Verdict {
        if allowed.peers.any {
            return go_on(direction);
        }
        let chain = names::peers_chain(direction, enforcement, &allowed.peers);
        if !self.ruleset.chains.contains_key(&chain) {
            let about = [describe(&allowed.peers.pods), describe(&allowed.peers.blocks)];
            let about: Vec<String> = about.into_iter().filter(|a| !a.is_empty()).collect();
            let mut rules = self.allow(direction, &[], &allowed.peers, &about.join("; "));
            rules.push(end(direction, enforcement));
            self.add_chain(chain.clone(), rules);
        }
        Verdict::Goto(chain)
    }

    /// Named ports of egress rules. The set holds addresses with ports, and the flow's destination is the source of
    /// its replies.
    fn named_rules(&mut self, plan: &Plan) -> Vec<Rule> {
        let mut rules = Vec::new();
        if plan.named.is_empty() {
            return rules;
        }
        for family in self.families.clone() {
            let set = self.named_set(family, &plan.named);
            for (direction, fields) in [
                (nft::Direction::Original, [Field::Destination(family), Field::L4Proto, Field::DestinationPort]),
                (nft::Direction::Reply, [Field::Source(family), Field::L4Proto, Field::SourcePort]),
            ] {
                let matches =
                    vec![Match::Direction(direction), Match::InSet { fields: fields.to_vec(), set: set.clone() }];
                let go_on = Action::Verdict(go_on(Direction::Egress));
                rules.push(Rule::new(matches, vec![go_on]).commented(&comment(&plan.named_by)));
            }
        }
        rules
    }

    fn pod_set(&mut self, family: Family, peers: &PeerUnion) -> Name {
        let state = self.state;
        let comment = describe(&peers.pods);
        self.set_once(names::pod_set(family, &peers.pods), &comment, &[address_type(family)], |set| {
            let addresses = pod_addresses(&peers.pods, family, state);
            set.elements = addresses.into_iter().map(|a| (address_key(a), Element::default())).collect();
        })
    }

    fn block_set(&mut self, family: Family, peers: &PeerUnion, ranges: &[(Datum, Datum)]) -> Name {
        let comment = describe(&peers.blocks);
        self.set_once(names::block_set(family, &peers.blocks), &comment, &[address_type(family)], |set| {
            set.interval = true;
            set.elements = ranges.iter().map(|(a, b)| (Key::Range(*a, *b), Element::default())).collect();
        })
    }

    fn named_set(&mut self, family: Family, peers: &NamedPeers) -> Name {
        let state = self.state;
        let about = peers.iter().map(|((name, protocol), pods)| format!("{name}/{protocol} of {}", describe(pods)));
        let comment = about.collect::<Vec<_>>().join("; ");
        let types = [address_type(family), KeyType::InetProto, KeyType::InetService];
        self.set_once(names::named_set(family, peers), &comment, &types, |set| {
            for ((name, protocol), pods) in peers {
                for (address, number) in named_endpoints(pods, name, *protocol, family, state) {
                    let key = Key::Three(Datum::from(address), Datum::Protocol(*protocol), Datum::Port(number));
                    set.elements.insert(key, Element::default());
                }
            }
        })
    }

    /// A set belongs to what it stands for: whoever asks for the same gets the same.
    fn set_once(&mut self, name: Name, comment: &str, types: &[KeyType], fill: impl FnOnce(&mut Set)) -> Name {
        if !self.ruleset.sets.contains_key(&name) {
            let mut set = Set { comment: Some(Comment::new(comment)), ..Set::of(types) };
            fill(&mut set);
            self.ruleset.sets.insert(name.clone(), Arc::new(set));
        }
        name
    }

    fn add_chain(&mut self, name: Name, rules: Vec<Rule>) {
        self.ruleset.chains.insert(name, Arc::new(Chain { hook: None, rules }));
    }
}

/// Neighbouring ranges may come from different policies and lead to the same chain; the kernel wants one range then.
fn merge_equal_neighbours(set: Set) -> Set {
    if !set.interval {
        return set;
    }
    let mut merged: BTreeMap<Key, Element> = BTreeMap::new();
    let mut open: Option<(Datum, Datum, Element)> = None;
    for (key, element) in set.elements {
        let Key::Range(first, last) = key else { continue };
        open = match open.take() {
            Some((start, end, previous)) if end.successor() == Some(first) && previous.verdict == element.verdict => {
                let both = [previous.comment, element.comment].into_iter().flatten().map(|c| c.as_str().to_owned());
                let comment = both.collect::<BTreeSet<String>>().into_iter().collect::<Vec<_>>().join(", ");
                Some((start, last, Element { verdict: element.verdict, comment: Some(Comment::new(&comment)) }))
            }
            Some((start, end, previous)) => {
                merged.insert(Key::Range(start, end), previous);
                Some((first, last, element))
            }
            None => Some((first, last, element)),
        };
    }
    if let Some((start, end, element)) = open {
        merged.insert(Key::Range(start, end), element);
    }
    Set { elements: merged, ..set }
}

/// `shop/allow-web, shop/allow-metrics and 3 more`
fn comment(policies: &BTreeSet<ObjectName>) -> String {
    let named: Vec<String> = policies.iter().take(NAMED_POLICIES).map(ObjectName::to_string).collect();
    match policies.len().saturating_sub(NAMED_POLICIES) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_names_its_own_chains() {
        // Every fixed name is asked for once, so that a reserved word among them cannot go unnoticed.
        let layout = Layout::for_table("ringfence").unwrap();
        let mut ruleset = skeleton(&layout, &Family::BOTH.into());
        crate::stamp(&mut ruleset, &layout);
        assert_eq!(ruleset.validate(), vec![]);
    }
}
