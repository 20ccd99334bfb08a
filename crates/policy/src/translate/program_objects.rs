//! Emits the chains, maps and sets of a program from its plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nft::{
    Action, Chain, Comment, Datum, Element, Elements, Family, Field, Key, KeyType, Match, Name, Rule, Set, Verdict,
};

use super::audit::AuditRole;
use super::layout::{address_type, allow_verdict, end, peer_field};
use super::plan::{AllowedPeers, Plan};
use super::segments::{PortSegment, segments};
use super::set_contents::{PeerSet, PeersOf};
use super::{Direction, names};
use crate::address_ranges::is_whole_family;
use crate::peers::{NamedPeers, NamedTargets, PeerUnion, PodPeer, block_ranges, describe};
use crate::{Block, ObjectName};

/// Up to this many port spans, a program is written as rules, which are easy to read and cost about 60 ns each. Beyond
/// it, verdict maps keep the cost constant.
const INLINE_SPANS: usize = 4;

/// Beyond this many peers of a program that differ in their negative requirements only, a set holds the pods that meet
/// the positive ones, and small sets hold the pods that none of the peers selects: each of the peers may select nearly
/// every pod, so that a set for each would hold the cluster as many times as there are peers.
pub(crate) const MOST_VARIANTS: usize = 8;

/// Number of policies named in a comment.
const NAMED_POLICIES: usize = 3;

/// The part of the ruleset that one program needs, independent of the state.
#[derive(Debug, Default)]
pub(super) struct Fragment {
    /// The program's own chain and maps.
    pub(super) own_chains: BTreeMap<Name, Arc<Chain>>,
    pub(super) own_sets: BTreeMap<Name, Arc<Set>>,
    /// Shared objects, named after their content, so that programs with the same needs share them.
    pub(super) chains: BTreeMap<Name, Arc<Chain>>,
    pub(super) sets: BTreeMap<Name, SharedSet>,
}

#[derive(Debug)]
pub(super) struct SharedSet {
    /// Includes the elements, unless these depend on the state.
    pub(super) set: Set,
    /// Selects the pods whose addresses are the elements; `None` for a set of blocks.
    pub(super) peers: Option<PeerSet>,
}

/// Compiles a plan. Order matters: a match in a verdict map is final, so every rule for flows outside of the map
/// precedes it.
pub(super) fn compile(
    direction: Direction,
    role: AuditRole,
    chain: &Name,
    plan: &Plan,
    families: &BTreeSet<Family>,
) -> Fragment {
    let segments: BTreeMap<nft::Protocol, Vec<PortSegment>> =
        plan.ranges.iter().map(|(protocol, ranges)| (*protocol, segments(ranges))).collect();
    let mut emitter = Emitter {
        families,
        direction,
        role,
        shared_bases: shared_bases(plan),
        layers: BTreeMap::new(),
        fragment: Fragment::default(),
    };
    let mut rules = emitter.allow(&[], &plan.any_port.peers, &comment(&plan.any_port.by));
    if !plan.any_port.peers.any {
        rules.extend(emitter.named_rules(plan));
        if segments.values().map(Vec::len).sum::<usize>() <= INLINE_SPANS {
            rules.extend(emitter.inline_segments(&segments));
        } else {
            rules.extend(emitter.mapped_segments(chain, &segments));
        }
        rules.push(end(direction, role));
    }
    let mut fragment = emitter.fragment;
    fragment.own_chains.insert(chain.clone(), Arc::new(Chain { hook: None, rules }));
    fragment
}

struct Emitter<'a> {
    /// Families of this node's pods; nothing is emitted for the other one.
    families: &'a BTreeSet<Family>,
    direction: Direction,
    role: AuditRole,
    /// Positive parts of peers that have their own set, without the pods that negative requirements exclude.
    shared_bases: BTreeSet<PodPeer>,
    /// Emitted layers, by the address of the layer's value, which the segments keep alive.
    layers: BTreeMap<usize, EmittedLayer>,
    fragment: Fragment,
}

#[derive(Clone)]
struct EmittedLayer {
    rules: Vec<Rule>,
    /// Digest of everything that the rules depend on.
    digest: String,
    /// The chain that contains only this layer.
    chain: Name,
}

/// The lookups for a union of pods by selector.
struct PodLookups {
    /// The peers whose pods share one set.
    plain: BTreeSet<PodPeer>,
    /// A set of the pods of each base, and one of those that none of the variants selects.
    excluding: BTreeMap<PodPeer, BTreeSet<PodPeer>>,
}

impl Emitter<'_> {
    /// Rules that continue with flows whose peer is in the union.
    fn allow(&mut self, when: &[Match], peers: &PeerUnion, comment: &str) -> Vec<Rule> {
        let go_on = allow_verdict(self.direction, self.role);
        let rule = |conditions: Vec<Match>| {
            let matches = when.iter().cloned().chain(conditions).collect();
            Rule::new(matches, vec![Action::Verdict(go_on.clone())]).commented(comment)
        };
        if peers.any {
            return vec![rule(vec![])];
        }
        let lookups = self.lookups(&peers.pods);
        let mut rules = Vec::new();
        for &family in self.families {
            let field = peer_field(self.direction, family);
            if !lookups.plain.is_empty() {
                let set = self.pod_set(family, &lookups.plain);
                rules.push(rule(vec![Match::InSet { fields: vec![field], set }]));
            }
            for (base, variants) in &lookups.excluding {
                let within = Match::InSet { fields: vec![field], set: self.pod_set(family, &[base.clone()].into()) };
                let excluded = self.excluded_set(family, base, variants);
                let not_excluded = Match::NotInSet { fields: vec![field], set: excluded };
                // A commit may happen between two lookups of a packet. An excluded pod that is being added is missing
                // from the base before it is excluded, and one that is being removed is missing from it afterwards.
                rules.push(rule(vec![within.clone(), not_excluded, within]));
            }
            let ranges = block_ranges(&peers.blocks, family);
            if is_whole_family(&ranges, family) {
                rules.push(rule(vec![Match::Family(family)]));
            } else if !ranges.is_empty() {
                let set = self.block_set(family, peers, &ranges);
                rules.push(rule(vec![Match::InSet { fields: vec![field], set }]));
            }
        }
        rules
    }

    fn lookups(&self, pods: &BTreeSet<PodPeer>) -> PodLookups {
        let mut lookups = PodLookups { plain: BTreeSet::new(), excluding: BTreeMap::new() };
        for peer in pods {
            let base = peer.base();
            match self.shared_bases.contains(&base) {
                true => lookups.excluding.entry(base).or_default().insert(peer.clone()),
                false => lookups.plain.insert(peer.clone()),
            };
        }
        // If the base itself is allowed, its variants are redundant.
        lookups.excluding.retain(|base, variants| {
            let whole = variants.contains(base);
            if whole {
                lookups.plain.insert(base.clone());
            }
            !whole
        });
        lookups
    }

    fn inline_segments(&mut self, segments: &BTreeMap<nft::Protocol, Vec<PortSegment>>) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (protocol, segments) in segments {
            for PortSegment { first, last, layers } in segments {
                let mut when = vec![Match::Protocol(*protocol)];
                if (*first, *last) != (0, u16::MAX) {
                    when.push(Match::FlowPort(*first, *last));
                }
                for allowed in layers {
                    rules.extend(self.allow(&when, &allowed.peers, &comment(&allowed.by)));
                }
            }
        }
        rules
    }

    /// One verdict map per protocol, from the port to the chain for the peers allowed there.
    fn mapped_segments(&mut self, chain: &Name, segments: &BTreeMap<nft::Protocol, Vec<PortSegment>>) -> Vec<Rule> {
        let mut rules = Vec::new();
        for (protocol, segments) in segments {
            let ranges = segments.iter().any(|s| s.first != s.last);
            let mut set = Set { verdicts: true, interval: ranges, ..Set::of(&[KeyType::InetService]) };
            for PortSegment { first, last, layers } in segments {
                let (first, last) = (Datum::Port(*first), Datum::Port(*last));
                let key = if ranges { Key::Range(first, last) } else { Key::One(first) };
                let verdict = self.peers_verdict(layers);
                let comment = Some(Comment::new(&layers_comment(layers)));
                set.elements.insert(key, Element { verdict: Some(verdict), comment });
            }
            let set = merge_equal_neighbours(set);
            let map = match ranges {
                true => names::range_map(chain, *protocol, &set.elements),
                false => names::port_map(chain, *protocol),
            };
            self.fragment.own_sets.insert(map.clone(), Arc::new(set));
            let lookup = Action::VerdictMap { field: Field::FlowPort, map };
            rules.push(Rule::new(vec![Match::Protocol(*protocol)], vec![lookup]));
        }
        rules
    }

    /// The verdict for a port with these layers: continue, or go to the chain that looks up the peer.
    fn peers_verdict(&mut self, layers: &[Arc<AllowedPeers>]) -> Verdict {
        if layers.iter().any(|allowed| allowed.peers.any) {
            return allow_verdict(self.direction, self.role);
        }
        let emitted: Vec<EmittedLayer> = layers.iter().map(|allowed| self.emit_layer(allowed)).collect();
        let chain = match &emitted[..] {
            [layer] => layer.chain.clone(),
            several => {
                let digests: Vec<&str> = several.iter().map(|layer| &*layer.digest).collect();
                names::layered_chain(self.direction, self.role, &digests)
            }
        };
        if !self.fragment.chains.contains_key(&chain) {
            let mut rules: Vec<Rule> = emitted.into_iter().flat_map(|layer| layer.rules).collect();
            rules.push(end(self.direction, self.role));
            self.fragment.chains.insert(chain.clone(), Arc::new(Chain { hook: None, rules }));
        }
        Verdict::Goto(chain)
    }

    /// Segments share layers, so each layer is emitted once.
    fn emit_layer(&mut self, allowed: &Arc<AllowedPeers>) -> EmittedLayer {
        let key = Arc::as_ptr(allowed).addr();
        if let Some(layer) = self.layers.get(&key) {
            return layer.clone();
        }
        let about = [describe(&allowed.peers.pods), describe(&allowed.peers.blocks)];
        let about: Vec<String> = about.into_iter().filter(|a| !a.is_empty()).collect();
        let rules = self.allow(&[], &allowed.peers, &about.join("; "));
        let shared: BTreeSet<PodPeer> =
            allowed.peers.pods.iter().map(PodPeer::base).filter(|base| self.shared_bases.contains(base)).collect();
        let digest = names::digest(&(&allowed.peers.pods, &allowed.peers.blocks, &shared));
        let chain = match shared.is_empty() {
            true => names::peers_chain(self.direction, self.role, &allowed.peers),
            false => names::layered_chain(self.direction, self.role, &[&digest]),
        };
        let layer = EmittedLayer { rules, digest, chain };
        self.layers.insert(key, layer.clone());
        layer
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
                (
                    nft::ConntrackDirection::Original,
                    [Field::Destination(family), Field::L4Proto, Field::DestinationPort],
                ),
                (nft::ConntrackDirection::Reply, [Field::Source(family), Field::L4Proto, Field::SourcePort]),
            ] {
                let matches =
                    vec![Match::Direction(direction), Match::InSet { fields: fields.to_vec(), set: set.clone() }];
                let go_on = Action::Verdict(allow_verdict(Direction::Egress, self.role));
                rules.push(Rule::new(matches, vec![go_on]).commented(&comment(&plan.named_by)));
            }
        }
        rules
    }

    fn pod_set(&mut self, family: Family, pods: &BTreeSet<PodPeer>) -> Name {
        let about = describe(pods);
        self.shared(names::pod_set(family, pods), &about, &[address_type(family)], |set| SharedSet {
            set,
            peers: Some(PeerSet { family, of: PeersOf::Addresses(pods.clone()) }),
        })
    }

    fn excluded_set(&mut self, family: Family, base: &PodPeer, variants: &BTreeSet<PodPeer>) -> Name {
        let about = format!("{base} without {}", describe(variants));
        let of = PeersOf::Excluded { base: base.clone(), variants: variants.clone() };
        self.shared(names::excluded_set(family, base, variants), &about, &[address_type(family)], |set| SharedSet {
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
        let about = peers.iter().map(|((name, protocol), NamedTargets { pods, blocks })| {
            let targets = [describe(pods), describe_pods_within(blocks)];
            let targets: Vec<String> = targets.into_iter().filter(|target| !target.is_empty()).collect();
            format!("{name}/{protocol} of {}", targets.join("; "))
        });
        let about = about.collect::<Vec<_>>().join("; ");
        let types = [address_type(family), KeyType::InetProto, KeyType::InetService];
        let of = PeersOf::Endpoints(peers.clone());
        self.shared(names::named_set(family, peers), &about, &types, |set| SharedSet {
            set,
            peers: Some(PeerSet { family, of }),
        })
    }

    /// Adds a shared set once; its name depends on its content.
    fn shared(&mut self, name: Name, about: &str, types: &[KeyType], fill: impl FnOnce(Set) -> SharedSet) -> Name {
        let set = || Set { comment: Some(Comment::new(about)), ..Set::of(types) };
        self.fragment.sets.entry(name.clone()).or_insert_with(|| fill(set()));
        name
    }
}

/// The positive parts that more than [`MOST_VARIANTS`] peers with negative requirements have in common.
fn shared_bases(plan: &Plan) -> BTreeSet<PodPeer> {
    let ranges = plan.ranges.values().flatten().map(|range| &range.allowed.peers);
    let mut variants: BTreeMap<PodPeer, BTreeSet<&PodPeer>> = BTreeMap::new();
    for peer in ranges.chain([&plan.any_port.peers]).flat_map(|peers| &peers.pods) {
        let base = peer.base();
        if base != *peer {
            variants.entry(base).or_default().insert(peer);
        }
    }
    variants.into_iter().filter(|(_, variants)| variants.len() > MOST_VARIANTS).map(|(base, _)| base).collect()
}

/// `pods in 10.0.0.0/8; pods in 10.1.0.0/16`
fn describe_pods_within(blocks: &BTreeSet<Block>) -> String {
    blocks.iter().map(|block| format!("pods in {block}")).collect::<Vec<_>>().join("; ")
}

/// Merges adjacent ranges that lead to the same chain, as from different policies: the kernel expects one range then.
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

/// Like [`comment`], but does not visit all policies of every layer if there are several.
fn layers_comment(layers: &[Arc<AllowedPeers>]) -> String {
    let [allowed] = layers else {
        let mut first: BTreeSet<ObjectName> = BTreeSet::new();
        for policy in layers.iter().flat_map(|allowed| &allowed.by) {
            if first.len() == NAMED_POLICIES && !first.contains(policy) {
                let named: Vec<String> = first.iter().map(ObjectName::to_string).collect();
                return format!("{} and others", named.join(", "));
            }
            first.insert(policy.clone());
        }
        return comment(&first);
    };
    comment(&allowed.by)
}

#[cfg(test)]
mod tests {
    use nft::{Ruleset, Set};
    use serde_json::json;

    use super::*;
    use crate::translate::layout::narrows;
    use crate::{Change, ClusterState, Kind, Layout, lower, translate};

    /// The rules for a pod with more port ranges than are written as rules.
    fn ruleset(last: u16) -> Ruleset {
        let mut state = ClusterState::new();
        let pod = json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"nodeName": "node-a"},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]},
        });
        let ports = [1, 200, 400, 600, 800].map(|first| json!({"port": first, "endPort": first + last}));
        let policy = json!({
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"podSelector": {}, "ingress": [{"ports": ports}]},
        });
        for (kind, object) in [(Kind::Pod, pod), (Kind::NetworkPolicy, policy)] {
            state.apply(Change::Set(lower(kind, &object).unwrap()));
        }
        translate(&state, "node-a", &Layout::for_table("ringfence").unwrap()).ruleset.in_first_generation()
    }

    fn interval_maps(ruleset: &Ruleset) -> Vec<(&Name, &Set)> {
        let maps = ruleset.sets.iter().map(|(name, set)| (name, &**set));
        maps.filter(|(_, set)| set.interval && set.verdicts).collect()
    }

    #[test]
    fn changed_port_ranges_get_another_map() {
        let [wide, narrow] = [99, 49].map(ruleset);
        let [[(name, map)], [(narrow_name, narrow_map)]] = [&interval_maps(&wide)[..], &interval_maps(&narrow)[..]]
        else {
            panic!("one map each");
        };
        assert_ne!(map.elements, narrow_map.elements);
        assert_ne!(name, narrow_name);
        assert!(narrows(&wide, &narrow));
        assert_eq!(ruleset(99), wide);
    }
}
