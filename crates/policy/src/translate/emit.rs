//! Plans become chains, maps and sets: what a program brings into the ruleset.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, Datum, Element, Elements, Family, Field, Key, KeyType, Match, Name, Rule, Set, Verdict,
};

use super::layout::{address_type, end, go_on, peer_field};
use super::peer_sets::{PeerSet, PeersOf};
use super::plan::{Allowed, Plan, Span};
use super::{Direction, names};
use crate::peers::{NamedPeers, PeerUnion, block_ranges, describe, is_whole_family};
use crate::{Enforcement, ObjectName};

/// Up to this many port spans a program is written as rules, which a person reads at a glance and which cost about
/// 60 ns each; beyond it verdict maps keep the cost flat.
const INLINE_SPANS: usize = 4;

/// Policies named in a comment.
const NAMED_POLICIES: usize = 3;

/// What a program brings into the ruleset, whatever the state is.
#[derive(Debug, Default)]
pub(super) struct Fragment {
    /// The program's own chain and maps.
    pub(super) own_chains: BTreeMap<Name, Arc<Chain>>,
    pub(super) own_sets: BTreeMap<Name, Arc<Set>>,
    /// What belongs to what it stands for: whoever asks for the same gets the same.
    pub(super) chains: BTreeMap<Name, Arc<Chain>>,
    pub(super) sets: BTreeMap<Name, SharedSet>,
}

#[derive(Debug)]
pub(super) struct SharedSet {
    /// With its elements, unless they are the state's.
    pub(super) set: Set,
    /// Whose addresses it holds; none of a set of blocks.
    pub(super) peers: Option<PeerSet>,
}

/// Compiles a plan. Order matters: what a verdict map finds is final, so everything that it does not hold comes before
/// it.
pub(super) fn compile(
    direction: Direction,
    enforcement: Enforcement,
    chain: &Name,
    plan: &Plan,
    families: &BTreeSet<Family>,
) -> Fragment {
    let mut emitter = Emitter { families, direction, enforcement, fragment: Fragment::default() };
    let mut rules = emitter.allow(&[], &plan.any_port.peers, &comment(&plan.any_port.by));
    if !plan.any_port.peers.any {
        rules.extend(emitter.named_rules(plan));
        if plan.spans.values().map(Vec::len).sum::<usize>() <= INLINE_SPANS {
            rules.extend(emitter.inline_spans(plan));
        } else {
            rules.extend(emitter.mapped_spans(chain, plan));
        }
        rules.push(end(direction, enforcement));
    }
    let mut fragment = emitter.fragment;
    fragment.own_chains.insert(chain.clone(), Arc::new(Chain { hook: None, rules }));
    fragment
}

struct Emitter<'a> {
    /// Families of this node's pods; nothing is emitted for the other one.
    families: &'a BTreeSet<Family>,
    direction: Direction,
    enforcement: Enforcement,
    fragment: Fragment,
}

impl Emitter<'_> {
    /// Rules that take a flow on if its peer is in the union.
    fn allow(&mut self, when: &[Match], peers: &PeerUnion, comment: &str) -> Vec<Rule> {
        let go_on = go_on(self.direction);
        let rule = |condition: Option<Match>| {
            let matches = when.iter().cloned().chain(condition).collect();
            Rule::new(matches, vec![Action::Verdict(go_on.clone())]).commented(comment)
        };
        if peers.any {
            return vec![rule(None)];
        }
        let mut rules = Vec::new();
        for &family in self.families {
            let field = peer_field(self.direction, family);
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

    fn inline_spans(&mut self, plan: &Plan) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (protocol, spans) in &plan.spans {
            for Span { first, last, allowed } in spans {
                let mut when = vec![Match::Protocol(*protocol)];
                if (*first, *last) != (0, u16::MAX) {
                    when.push(Match::FlowPort(*first, *last));
                }
                rules.extend(self.allow(&when, &allowed.peers, &comment(&allowed.by)));
            }
        }
        rules
    }

    /// One verdict map a protocol: from the port to the chain of the peers that are allowed there.
    fn mapped_spans(&mut self, chain: &Name, plan: &Plan) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (protocol, spans) in &plan.spans {
            let ranges = spans.iter().any(|s| s.first != s.last);
            let mut set = Set { verdicts: true, interval: ranges, ..Set::of(&[KeyType::InetService]) };
            for Span { first, last, allowed } in spans {
                let (first, last) = (Datum::Port(*first), Datum::Port(*last));
                let key = if ranges { Key::Range(first, last) } else { Key::One(first) };
                let verdict = self.peers_verdict(allowed);
                let comment = Some(Comment::new(&comment(&allowed.by)));
                set.elements.insert(key, Element { verdict: Some(verdict), comment });
            }
            let map = names::port_map(chain, *protocol, ranges);
            self.fragment.own_sets.insert(map.clone(), Arc::new(merge_equal_neighbours(set)));
            let lookup = Action::VerdictMap { field: Field::FlowPort, map };
            rules.push(Rule::new(vec![Match::Protocol(*protocol)], vec![lookup]));
        }
        rules
    }

    /// Where a flow goes whose port allows the union: straight on, or to the chain that looks its peer up.
    fn peers_verdict(&mut self, allowed: &Allowed) -> Verdict {
        if allowed.peers.any {
            return go_on(self.direction);
        }
        let chain = names::peers_chain(self.direction, self.enforcement, &allowed.peers);
        if !self.fragment.chains.contains_key(&chain) {
            let about = [describe(&allowed.peers.pods), describe(&allowed.peers.blocks)];
            let about: Vec<String> = about.into_iter().filter(|a| !a.is_empty()).collect();
            let mut rules = self.allow(&[], &allowed.peers, &about.join("; "));
            rules.push(end(self.direction, self.enforcement));
            self.fragment.chains.insert(chain.clone(), Arc::new(Chain { hook: None, rules }));
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
        for &family in self.families {
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
        let of = PeersOf::Addresses(peers.pods.clone());
        let about = describe(&peers.pods);
        self.shared(names::pod_set(family, &peers.pods), &about, &[address_type(family)], |set| SharedSet {
            set,
            peers: Some(PeerSet { family, of }),
        })
    }

    fn block_set(&mut self, family: Family, peers: &PeerUnion, ranges: &[(Datum, Datum)]) -> Name {
        let about = describe(&peers.blocks);
        self.shared(names::block_set(family, &peers.blocks), &about, &[address_type(family)], |set| {
            let elements = ranges.iter().map(|(a, b)| (Key::Range(*a, *b), Element::default())).collect();
            SharedSet { set: Set { interval: true, elements, ..set }, peers: None }
        })
    }

    fn named_set(&mut self, family: Family, peers: &NamedPeers) -> Name {
        let about = peers.iter().map(|((name, protocol), pods)| format!("{name}/{protocol} of {}", describe(pods)));
        let about = about.collect::<Vec<_>>().join("; ");
        let types = [address_type(family), KeyType::InetProto, KeyType::InetService];
        let of = PeersOf::Endpoints(peers.clone());
        self.shared(names::named_set(family, peers), &about, &types, |set| SharedSet {
            set,
            peers: Some(PeerSet { family, of }),
        })
    }

    /// A set belongs to what it stands for.
    fn shared(&mut self, name: Name, about: &str, types: &[KeyType], fill: impl FnOnce(Set) -> SharedSet) -> Name {
        let set = || Set { comment: Some(Comment::new(about)), ..Set::of(types) };
        self.fragment.sets.entry(name.clone()).or_insert_with(|| fill(set()));
        name
    }
}

/// Neighbouring ranges may come from different policies and lead to the same chain; the kernel wants one range then.
fn merge_equal_neighbours(set: Set) -> Set {
    if !set.interval {
        return set;
    }
    let mut merged = Elements::new();
    let mut open: Option<(Datum, Datum, Element)> = None;
    for (key, element) in &set.elements {
        let Key::Range(first, last) = key else { continue };
        let element = element.clone();
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
