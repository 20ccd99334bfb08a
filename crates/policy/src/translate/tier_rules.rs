//! The rules of a tier of cluster policies for the pods of a program: which of them can match at a port, in order, and
//! what they decide about one address.
//!
//! The rules are split by ports into segments. Within a segment the ports of a flow no longer matter, so the first rule
//! that matches depends on the address of the other end alone, and every address has one decision. A segment is kept as
//! the difference to the base rules, those without ports: its own rules concern few addresses.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use nft::{Family, Protocol};
use serde::Serialize;

use super::names::digest;
use super::{Direction, NamedPorts};
use crate::address_ranges::{bounds, whole};
use crate::{
    ClusterPeer, ClusterPeers, ClusterPolicy, ClusterRule, ClusterState, DomainPattern, Enforcement, Holder, Labels,
    PodScope, PortRange, Ports, RuleAction, Selection, Selector, Tier,
};

/// A cluster policy that selects the pods of a program.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Selecting {
    pub(super) policy: Arc<ClusterPolicy>,
    /// Whether it certainly selects them: the labels of their namespace are known.
    pub(super) certain: bool,
}

impl Selecting {
    /// Whether any rule of the direction can match.
    pub(super) fn decides(&self, direction: Direction) -> bool {
        let matches_something = |rule: &ClusterRule| match (&rule.peers, &rule.ports) {
            (_, Ports::Of(ports)) if ports.is_empty() => false,
            (ClusterPeers::Any, _) => true,
            (ClusterPeers::Of(peers), _) => !peers.is_empty(),
        };
        let is_followed = |rule: &ClusterRule| self.certain || rule.action != RuleAction::Accept;
        self.policy.rules(direction).iter().any(|rule| is_followed(rule) && matches_something(rule))
    }

    /// Whether a pod that is not known yet may be decided about otherwise than an address outside.
    pub(super) fn distinguishes_unknown_pods(&self, direction: Direction) -> bool {
        let selects_pods = |rule: &ClusterRule| match &rule.peers {
            ClusterPeers::Any => false,
            ClusterPeers::Of(peers) => peers.iter().any(|peer| matches!(peer, ClusterPeer::Pods(_))),
        };
        self.policy.rules(direction).iter().any(|rule| rule.action != RuleAction::Accept && selects_pods(rule))
    }

    /// Whether egress rules can decide about addresses that no pod has.
    pub(super) fn reaches_beyond_pods(&self) -> bool {
        self.policy.egress.iter().any(reaches_beyond_pods)
    }
}

fn reaches_beyond_pods(rule: &ClusterRule) -> bool {
    match &rule.peers {
        ClusterPeers::Any => true,
        ClusterPeers::Of(peers) => {
            peers.iter().any(|peer| matches!(peer, ClusterPeer::Nodes(_) | ClusterPeer::Networks(_)))
        }
    }
}

/// Whether an enforced rule may deny what a pod whose object is unknown sends to its node.
pub(super) fn denies_unknown_at_own_node(state: &ClusterState) -> bool {
    let policies = [Tier::Admin, Tier::Baseline].into_iter().flat_map(|tier| state.cluster_policies_of(tier));
    let enforced = policies.filter(|policy| state.cluster_enforcement(policy) == Enforcement::Enforce);
    let mut rules = enforced.flat_map(|policy| &policy.egress);
    rules.any(|rule| rule.action != RuleAction::Accept && reaches_beyond_pods(rule))
}

/// The decision of a tier about a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) enum Decision {
    Deny,
    Accept,
    /// A rule passes the flow to the next tier, or no rule matches.
    Pass,
}

impl Decision {
    pub(super) const ALL: [Decision; 3] = [Decision::Deny, Decision::Accept, Decision::Pass];
}

/// The decision, if Accept and Pass may lead to the same chain.
pub(super) fn normal(decision: Decision, only_denies: bool) -> Decision {
    match decision {
        Decision::Accept if only_denies => Decision::Pass,
        Decision::Accept | Decision::Deny | Decision::Pass => decision,
    }
}

/// A rule in the order of evaluation, without its ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub(super) struct OrderedRule {
    /// The policy and the index of the rule.
    pub(super) origin: Arc<str>,
    pub(super) action: RuleAction,
    peers: TierPeers,
    /// The port that the destination pod resolves, for egress.
    named: Option<(Arc<str>, Word)>,
}

/// A protocol by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Word(Protocol);

impl Serialize for Word {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.word())
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
struct TierPeers {
    any: bool,
    /// Selectors of the namespace and of the pod.
    pods: BTreeSet<(Selector, Selector)>,
    nodes: BTreeSet<Selector>,
    networks: BTreeSet<IpNet>,
    /// Omitted where empty, as nearly always: names of sets contain digests of rules.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    names: BTreeSet<DomainPattern>,
    /// Of these, only names in the cluster's domain count: the other end is this node. Omitted where false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    at_own_node: bool,
}

/// The rules without ports, in order. They are the same for every port, and may be many.
#[derive(Debug)]
pub(super) struct BaseRules {
    rules: Vec<Arc<OrderedRule>>,
    /// Identifies the rules.
    pub(super) digest: String,
}

/// Cheap to clone.
pub(super) type Base = Arc<BaseRules>;

/// The rules with ports that can match in a segment, in order, each with the number of base rules before it. Cheap to
/// clone.
pub(super) type OwnRules = Arc<[(usize, Arc<OrderedRule>)]>;

/// Ports from the first to the last, inclusive, at which the same rules can match.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TierSegment {
    pub(super) first: u16,
    pub(super) last: u16,
    /// Empty if only the base rules can match.
    pub(super) own: OwnRules,
}

/// The rules of a tier in a direction, by ports.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TierRules {
    pub(super) base: Base,
    /// The base rules that are not among the own rules of segments: all or, in [flattened](Self::flattened) rules, none.
    pub(super) base_of_segments: Base,
    /// The segments of a protocol cover every port. Protocols without one only have the base rules.
    pub(super) segments: BTreeMap<Protocol, Vec<TierSegment>>,
}

impl BaseRules {
    fn none() -> Base {
        let rules = vec![];
        Arc::new(BaseRules { digest: digest(&rules), rules })
    }

    pub(super) fn rules(&self) -> &[Arc<OrderedRule>] {
        &self.rules
    }
}

impl PartialEq for BaseRules {
    fn eq(&self, other: &BaseRules) -> bool {
        self.digest == other.digest
    }
}

impl Eq for BaseRules {}

impl PartialOrd for BaseRules {
    fn partial_cmp(&self, other: &BaseRules) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for BaseRules {
    fn cmp(&self, other: &BaseRules) -> Ordering {
        self.digest.cmp(&other.digest)
    }
}

/// The other ends of flows, which determine what peers match.
#[derive(Debug, Clone, Copy)]
pub(super) enum OtherEnds<'a> {
    /// Pods, nodes by the addresses of their status, and addresses outside. Pods may receive at these group addresses.
    ByAddress(&'a [IpNet]),
    /// This node, at whichever address, with these labels; `None` if they are unknown.
    OwnNode(Option<&'a Labels>),
    /// Pods that are not known yet, at any address: rules about pods may match them.
    UnknownPods,
}

impl TierRules {
    /// `named` are the named ports that the pods of the program resolve, for ingress.
    pub(super) fn of(
        direction: Direction,
        policies: &[Selecting],
        named: &NamedPorts,
        ends: OtherEnds<'_>,
    ) -> TierRules {
        let mut placed: Vec<PlacedRule> = Vec::new();
        let mut base: Vec<Arc<OrderedRule>> = Vec::new();
        'policies: for Selecting { policy, certain } in policies {
            for rule in policy.rules(direction) {
                for PortedRule { rule, spans } in place(direction, policy, *certain, rule, named, ends) {
                    match spans {
                        Some(spans) => placed.push(PlacedRule { rule, spans, base_before: base.len() }),
                        None => {
                            base.push(rule.clone());
                            if rule.is_for_every_address() {
                                break 'policies;
                            }
                        }
                    }
                }
            }
        }
        // Final rules that decide as no rule does.
        let followed = placed.last().map_or(0, |placed| placed.base_before);
        while base.len() > followed
            && base.last().is_some_and(|r| r.action == RuleAction::Pass && !r.depends_on_holder())
        {
            base.pop();
        }
        let digest = digest(&base);
        let segments = Protocol::ALL.map(|protocol| (protocol, segments(&placed, protocol)));
        let segments = segments.into_iter().filter(|(_, segments)| segments.iter().any(|s| !s.own.is_empty()));
        let base = Arc::new(BaseRules { rules: base, digest });
        TierRules { base_of_segments: base.clone(), base, segments: segments.collect() }
    }

    /// Whether no flow is decided.
    pub(super) fn is_empty(&self) -> bool {
        self.base.rules.is_empty() && self.segments.is_empty()
    }

    /// The same rules, with those without ports among each segment's own.
    pub(super) fn flattened(&self) -> TierRules {
        let with_base = |own: &OwnRules| {
            let mut all = in_order(&self.base, own);
            let end = all.iter().position(|rule| rule.is_for_every_address());
            all.truncate(end.map_or(all.len(), |end| end + 1));
            all.into_iter().map(|rule| (0, rule.clone())).collect()
        };
        let flattened = |segment: &TierSegment| match segment.own.is_empty() {
            true => segment.clone(),
            false => TierSegment { own: with_base(&segment.own), ..segment.clone() },
        };
        let segments = self.segments.iter();
        TierRules {
            base: self.base.clone(),
            base_of_segments: BaseRules::none(),
            segments: segments.map(|(protocol, of)| (*protocol, of.iter().map(flattened).collect())).collect(),
        }
    }

    /// The segments in which rules with ports can match.
    pub(super) fn own_segments(&self) -> impl Iterator<Item = (Protocol, &TierSegment)> {
        let all = self.segments.iter().flat_map(|(protocol, of)| of.iter().map(|segment| (*protocol, segment)));
        all.filter(|(_, segment)| !segment.own.is_empty())
    }

    fn own_at(&self, protocol: Protocol, port: u16) -> &[(usize, Arc<OrderedRule>)] {
        let segments = self.segments.get(&protocol).map_or(&[][..], |segments| segments);
        let place = segments.partition_point(|segment| segment.last < port);
        segments.get(place).map_or(&[], |segment| &segment.own)
    }

    /// The named ports of egress rules.
    pub(super) fn named(&self) -> BTreeSet<(Arc<str>, Protocol)> {
        let own = self.segments.values().flatten().flat_map(|segment| segment.own.iter());
        own.filter_map(|(_, rule)| rule.named.as_ref()).map(|(name, word)| (name.clone(), word.0)).collect()
    }

    /// The ports that the pod of the address resolves for these named ports, where that changes the decision.
    pub(super) fn decisions_at_named_ports(
        &self,
        named: &BTreeSet<(Arc<str>, Protocol)>,
        end: &End<'_>,
    ) -> BTreeMap<(Protocol, u16), Decision> {
        let resolved = named.iter().filter_map(|(name, protocol)| Some((*protocol, end.resolve(name, *protocol)?)));
        let decided = resolved.filter_map(|(protocol, port)| {
            let own = self.own_at(protocol, port);
            let decision = decide(&self.base, own, end, Some((protocol, port)));
            (decision != decide(&self.base, own, end, None)).then_some(((protocol, port), decision))
        });
        decided.collect()
    }
}

/// A rule with the ports that it applies to; `None` for every port and protocol.
struct PortedRule {
    rule: Arc<OrderedRule>,
    spans: Option<Spans>,
}

type Spans = BTreeMap<Protocol, Vec<(u16, u16)>>;

/// A rule with ports, in its place among the base rules.
struct PlacedRule {
    rule: Arc<OrderedRule>,
    spans: Spans,
    base_before: usize,
}
/// Numbers, and each named port of an egress rule, become separate rules.
fn place(
    direction: Direction,
    policy: &ClusterPolicy,
    certain: bool,
    rule: &ClusterRule,
    resolved: &NamedPorts,
    ends: OtherEnds<'_>,
) -> Vec<PortedRule> {
    let action = match (certain, rule.action) {
        (true, action) => action,
        (false, RuleAction::Accept) => return vec![],
        (false, RuleAction::Deny | RuleAction::Pass) => RuleAction::Deny,
    };
    let peers = TierPeers::of(&rule.peers);
    let unclear = unclear_peers(direction, action, &peers, ends);
    let (action, peers) = match ends {
        OtherEnds::ByAddress(_) => (action, peers),
        OtherEnds::OwnNode(labels) => peers.at_own_node(action, labels),
        OtherEnds::UnknownPods => (action, peers.without_holders()),
    };
    let origin = origin(direction, policy, rule);
    let ordered = |named| {
        let rule = OrderedRule { origin: origin.clone(), action, peers: peers.clone(), named };
        (!peers.is_empty()).then(|| Arc::new(rule))
    };
    let unclear = unclear
        .map(|peers| Arc::new(OrderedRule { origin: origin.clone(), action: RuleAction::Deny, peers, named: None }));
    let Ports::Of(ports) = &rule.ports else {
        let rules = ordered(None).into_iter().chain(unclear);
        return rules.map(|rule| PortedRule { rule, spans: None }).collect();
    };
    let mut spans = Spans::new();
    let mut spans_of_unclear = Spans::new();
    let mut of_named: Vec<PortedRule> = Vec::new();
    for port in ports {
        let protocol = port.protocol;
        let numbers = match (&port.range, direction) {
            (PortRange::All, _) => Some((0, u16::MAX)),
            (PortRange::Numbers(first, last), _) => Some((*first, *last)),
            (PortRange::Named(name), Direction::Ingress) => {
                resolved.get(&(name.clone(), protocol)).map(|number| (*number, *number))
            }
            (PortRange::Named(name), Direction::Egress) => {
                let whole = Spans::from([(protocol, vec![(0, u16::MAX)])]);
                spans_of_unclear.entry(protocol).or_default().push((0, u16::MAX));
                let rule = ordered(Some((name.clone(), Word(protocol))));
                of_named.extend(rule.map(|rule| PortedRule { rule, spans: Some(whole) }));
                None
            }
        };
        if let Some(span) = numbers {
            spans.entry(protocol).or_default().push(span);
            spans_of_unclear.entry(protocol).or_default().push(span);
        }
    }
    let at = |rule: Option<Arc<OrderedRule>>, spans: Spans| {
        let rule = rule.filter(|_| !spans.is_empty());
        rule.map(|rule| PortedRule { rule, spans: Some(spans) })
    };
    at(ordered(None), spans).into_iter().chain(of_named).chain(at(unclear, spans_of_unclear)).collect()
}

/// The addresses of which it is not known whether a rule for Deny or Pass that selects pods matches them.
fn unclear_peers(
    direction: Direction,
    action: RuleAction,
    peers: &TierPeers,
    ends: OtherEnds<'_>,
) -> Option<TierPeers> {
    if action == RuleAction::Accept || peers.pods.is_empty() {
        return None;
    }
    match (ends, direction) {
        // Which pods receive at a group address, and which ports they name, is not known.
        (OtherEnds::ByAddress(groups), Direction::Egress) => {
            Some(TierPeers { networks: groups.iter().copied().collect(), ..TierPeers::default() })
        }
        (OtherEnds::UnknownPods, _) => Some(TierPeers { any: true, ..TierPeers::default() }),
        (OtherEnds::ByAddress(_), Direction::Ingress) | (OtherEnds::OwnNode(_), _) => None,
    }
}

/// `deny-db ingress[0] "no databases"`
fn origin(direction: Direction, policy: &ClusterPolicy, rule: &ClusterRule) -> Arc<str> {
    let place = format!("{} {}[{}]", policy.name, direction.word(), rule.index);
    match &rule.name {
        Some(name) => format!("{place} {name}").into(),
        None => place.into(),
    }
}

/// The segments of a protocol. Neighbours with the same rules are merged.
fn segments(placed: &[PlacedRule], protocol: Protocol) -> Vec<TierSegment> {
    let mut events: BTreeMap<u32, Vec<(usize, isize)>> = [(0, vec![])].into();
    for (number, placed) in placed.iter().enumerate() {
        let spans = placed.spans.get(&protocol).map_or(&[][..], |spans| spans);
        for (first, last) in spans.iter().filter(|(first, last)| first <= last) {
            events.entry((*first).into()).or_default().push((number, 1));
            events.entry(u32::from(*last) + 1).or_default().push((number, -1));
        }
    }
    let end = u32::from(u16::MAX) + 1;
    let next: Vec<u32> = events.keys().skip(1).copied().filter(|start| *start < end).chain([end]).collect();
    let mut open: BTreeMap<usize, isize> = BTreeMap::new();
    let mut found: Vec<TierSegment> = Vec::new();
    for ((start, changes), next) in events.iter().zip(next) {
        for (number, change) in changes {
            *open.entry(*number).or_default() += change;
        }
        open.retain(|_, times| *times > 0);
        let own = reachable(open.keys().map(|number| &placed[*number]));
        // A start is a port, and the next start is at most one past the last port.
        let (first, last) = (*start as u16, (next - 1) as u16);
        match found.last_mut() {
            Some(previous) if previous.own == own => previous.last = last,
            _ => found.push(TierSegment { first, last, own }),
        }
    }
    found
}

/// Drops the rules behind one that matches every address.
fn reachable<'a>(placed: impl Iterator<Item = &'a PlacedRule>) -> OwnRules {
    let mut own = Vec::new();
    for PlacedRule { rule, base_before, spans: _ } in placed {
        own.push((*base_before, rule.clone()));
        if rule.is_for_every_address() {
            break;
        }
    }
    own.into()
}

impl OrderedRule {
    /// Whether it may match an address because of the pod or the nodes that have it.
    pub(super) fn depends_on_holder(&self) -> bool {
        !(self.peers.pods.is_empty() && self.peers.nodes.is_empty() && self.named.is_none())
    }

    pub(super) fn names_port(&self) -> bool {
        self.named.is_some()
    }

    pub(super) fn is_for_every_address(&self) -> bool {
        self.peers.any && self.named.is_none()
    }

    /// The decision where it matches.
    pub(super) fn decision(&self) -> Decision {
        match self.action {
            RuleAction::Accept => Decision::Accept,
            RuleAction::Deny => Decision::Deny,
            RuleAction::Pass => Decision::Pass,
        }
    }

    /// Whether networks, or every address, are among its peers.
    pub(super) fn has_networks(&self) -> bool {
        self.named.is_none() && (self.peers.any || !self.peers.networks.is_empty())
    }

    /// Selectors of the namespace and of the pod, of pods whose labels alone decide whether it matches.
    pub(super) fn selected_pods(&self) -> impl Iterator<Item = &(Selector, Selector)> {
        self.peers.pods.iter().filter(|_| self.named.is_none())
    }

    /// Whether it may deny a pod that is not known yet.
    pub(super) fn may_match_unknown_pods(&self) -> bool {
        self.action != RuleAction::Accept && !self.peers.pods.is_empty()
    }

    pub(super) fn names_nodes(&self) -> bool {
        !self.peers.nodes.is_empty()
    }

    /// Whether domain names are among its peers.
    pub(super) fn has_domain_names(&self) -> bool {
        !self.peers.names.is_empty()
    }

    /// `None` if it does not match.
    fn decide(&self, end: &End<'_>, port: Option<(Protocol, u16)>) -> Option<Decision> {
        match (self.action, self.selection(end, port)) {
            (_, Selection::No) | (RuleAction::Accept, Selection::Unknown) => None,
            (RuleAction::Accept, Selection::Yes) => Some(Decision::Accept),
            (RuleAction::Pass, Selection::Yes) => Some(Decision::Pass),
            (RuleAction::Deny, Selection::Yes | Selection::Unknown) | (RuleAction::Pass, Selection::Unknown) => {
                Some(Decision::Deny)
            }
        }
    }

    fn selection(&self, end: &End<'_>, port: Option<(Protocol, u16)>) -> Selection {
        let at_port = match &self.named {
            None => Selection::Yes,
            Some((name, word)) => end.selection_by_port(name, word.0, port),
        };
        at_port.and(self.peers.selection(end))
    }
}

/// The decision about flows with this end. `port` is the port of the flow, if named ports count; without one, they only
/// count where they are unknown.
pub(super) fn decide(
    base: &BaseRules,
    own: &[(usize, Arc<OrderedRule>)],
    end: &End<'_>,
    port: Option<(Protocol, u16)>,
) -> Decision {
    let of_own = own.iter().find_map(|(base_before, rule)| Some((*base_before, rule.decide(end, port)?)));
    let before = of_own.map_or(base.rules.len(), |(base_before, _)| base_before);
    let of_base = base.rules[..before].iter().find_map(|rule| rule.decide(end, port));
    of_base.or(of_own.map(|(_, decision)| decision)).unwrap_or(Decision::Pass)
}

/// The rules of a segment and the base rules, in the order of evaluation.
fn in_order<'a>(base: &'a BaseRules, own: &'a OwnRules) -> Vec<&'a Arc<OrderedRule>> {
    let mut all: Vec<&Arc<OrderedRule>> = Vec::new();
    let mut taken = 0;
    for (base_before, rule) in own.iter() {
        all.extend(&base.rules[taken..*base_before]);
        all.push(rule);
        taken = *base_before;
    }
    all.extend(&base.rules[taken..]);
    all
}

/// Whether any of the rules with ports may match the end.
pub(super) fn concern(own: &[(usize, Arc<OrderedRule>)], end: &End<'_>) -> bool {
    own.iter().any(|(_, rule)| rule.decide(end, None).is_some())
}

impl TierPeers {
    fn of(peers: &ClusterPeers) -> TierPeers {
        let mut found = TierPeers::default();
        match peers {
            ClusterPeers::Any => found.any = true,
            ClusterPeers::Of(peers) => {
                for peer in peers {
                    match peer {
                        ClusterPeer::Pods(PodScope { namespaces, pods }) => {
                            found.pods.insert((namespaces.clone(), pods.clone()));
                        }
                        ClusterPeer::Nodes(nodes) => {
                            found.nodes.insert(nodes.clone());
                        }
                        ClusterPeer::Networks(networks) => found.networks.extend(networks.iter().map(IpNet::trunc)),
                        ClusterPeer::DomainNames(names) => found.names.extend(names.iter().cloned()),
                    }
                }
            }
        }
        found
    }

    /// The action and the peers for flows to this node, which has addresses that are not in its status.
    fn at_own_node(self, action: RuleAction, labels: Option<&Labels>) -> (RuleAction, TierPeers) {
        let selections = self.nodes.iter().map(|nodes| Selection::of(nodes, labels));
        let any = || TierPeers { any: true, ..TierPeers::default() };
        match (selections.fold(Selection::No, Selection::or), action) {
            (Selection::Yes, action) => (action, any()),
            (Selection::Unknown, RuleAction::Deny | RuleAction::Pass) => (RuleAction::Deny, any()),
            (Selection::Unknown, RuleAction::Accept) | (Selection::No, _) => {
                (action, TierPeers { at_own_node: !self.names.is_empty(), ..self.without_holders() })
            }
        }
    }

    /// Without the peers that match an address because of the pod or the nodes that have it.
    fn without_holders(self) -> TierPeers {
        TierPeers { pods: BTreeSet::new(), nodes: BTreeSet::new(), ..self }
    }

    fn is_empty(&self) -> bool {
        let TierPeers { any, pods, nodes, networks, names, at_own_node: _ } = self;
        !any && pods.is_empty() && nodes.is_empty() && networks.is_empty() && names.is_empty()
    }

    fn selection(&self, end: &End<'_>) -> Selection {
        let counts = |name: &LearnedName<'_>| name.of_cluster || !self.at_own_node;
        let is_named = || {
            let mut names = end.names.iter().filter(|name| counts(name));
            names.any(|LearnedName { name, .. }| self.names.iter().any(|pattern| pattern.matches(name)))
        };
        if self.any || self.networks.iter().any(|network| network.contains(&end.address)) || is_named() {
            return Selection::Yes;
        }
        let pods = self.pods.iter().map(|(namespaces, pods)| end.selection_of_pod(namespaces, pods));
        let nodes = self.nodes.iter().map(|nodes| end.selection_of_nodes(nodes));
        pods.chain(nodes).fold(Selection::No, Selection::or)
    }
}

/// The other end of a flow: an address, and what has it.
#[derive(Debug, Clone)]
pub(super) struct End<'a> {
    pub(super) address: IpAddr,
    holder: Option<Holder<'a>>,
    /// The labels of the holder's namespace.
    namespace: Option<&'a Labels>,
    /// The labels of the nodes that have the address; `None` if they are unknown.
    nodes: Vec<Option<&'a Labels>>,
    /// The learned domain names of the address.
    names: Vec<LearnedName<'a>>,
}

#[derive(Debug, Clone)]
struct LearnedName<'a> {
    name: &'a Arc<str>,
    /// It is in the cluster's domain.
    of_cluster: bool,
}

impl<'a> End<'a> {
    /// An address that no pod and no node has.
    pub(super) fn outside(address: IpAddr) -> End<'static> {
        End { address, holder: None, namespace: None, nodes: vec![], names: vec![] }
    }

    pub(super) fn of(state: &'a ClusterState, address: IpAddr, nodes: &NodesByAddress<'a>) -> End<'a> {
        let holder = state.holder(address);
        let namespace = holder.map(|holder| match holder {
            Holder::Pod(pod) => &pod.name.namespace,
            Holder::Unknown(attachment) => &attachment.pod.namespace,
        });
        End {
            address,
            holder,
            namespace: namespace.and_then(|namespace| state.namespace_labels(namespace)),
            nodes: nodes.get(&address).cloned().unwrap_or_default(),
            names: state
                .learned_names(address)
                .map(|name| LearnedName { name, of_cluster: state.is_of_cluster_domain(name) })
                .collect(),
        }
    }

    /// The end as if no domain name were learned for it.
    pub(super) fn unnamed(&self) -> End<'a> {
        End { names: vec![], ..self.clone() }
    }

    pub(super) fn is_named(&self) -> bool {
        !self.names.is_empty()
    }

    fn selection_of_pod(&self, namespaces: &Selector, pods: &Selector) -> Selection {
        match self.holder {
            None => Selection::No,
            Some(Holder::Pod(pod)) if pod.host_network => Selection::No,
            Some(Holder::Pod(pod)) => {
                let labels = (!pod.unreadable).then_some(&pod.labels);
                Selection::of(namespaces, self.namespace).and(Selection::of(pods, labels))
            }
            Some(Holder::Unknown(_)) => Selection::of(namespaces, self.namespace).and(Selection::Unknown),
        }
    }

    fn selection_of_nodes(&self, selector: &Selector) -> Selection {
        self.nodes.iter().map(|labels| Selection::of(selector, *labels)).fold(Selection::No, Selection::or)
    }

    /// Whether the port is the one that the pod calls by the name.
    fn selection_by_port(&self, name: &str, protocol: Protocol, port: Option<(Protocol, u16)>) -> Selection {
        match self.holder {
            None => Selection::No,
            Some(Holder::Unknown(_)) => Selection::Unknown,
            Some(Holder::Pod(pod)) if pod.unreadable => Selection::Unknown,
            Some(Holder::Pod(pod)) => {
                let resolved = pod.resolve(name, protocol).map(|number| (protocol, number));
                Selection::from(resolved.is_some() && resolved == port)
            }
        }
    }

    fn resolve(&self, name: &str, protocol: Protocol) -> Option<u16> {
        self.holder.and_then(Holder::pod).filter(|pod| !pod.unreadable)?.resolve(name, protocol)
    }
}

/// The labels of the nodes by the addresses of their status.
pub(super) type NodesByAddress<'a> = BTreeMap<IpAddr, Vec<Option<&'a Labels>>>;

pub(super) fn nodes_by_address(state: &ClusterState) -> NodesByAddress<'_> {
    let mut found = NodesByAddress::new();
    for node in state.nodes() {
        let labels = (!node.unlabelled).then_some(&node.labels);
        for address in node.status_addresses.iter() {
            found.entry(address).or_default().push(labels);
        }
    }
    found
}

/// The first and the last address as integers, and what networks decide about them.
pub(super) type AddressRange = (u128, u128, Decision);

/// The decisions of the networks of the base rules. The ranges are sorted and disjoint, and cover the whole family.
pub(super) fn networks_of_base(base: &BaseRules, family: Family) -> Vec<AddressRange> {
    decisions_of_networks(&base.rules.iter().collect::<Vec<_>>(), family)
}

/// The decisions of the networks of all rules of a segment, where those of the base rules alone decide something else.
pub(super) fn networks_of_segment(
    base: &BaseRules,
    own: &OwnRules,
    family: Family,
    only_denies: bool,
) -> Vec<AddressRange> {
    if !own.iter().any(|(_, rule)| rule.has_networks()) {
        return vec![];
    }
    let (mut of_base, mut differing) = (networks_of_base(base, family).into_iter().peekable(), Vec::new());
    for (mut first, last, decision) in decisions_of_networks(&in_order(base, own), family) {
        // Both cover the whole family.
        while let Some((_, end, other)) = of_base.peek().copied() {
            let until = last.min(end);
            if normal(decision, only_denies) != normal(other, only_denies) {
                differing.push((first, until, normal(decision, only_denies)));
            }
            if end <= last {
                of_base.next();
            }
            if until == last {
                break;
            }
            first = until + 1;
        }
    }
    differing
}

/// Ranges of addresses with what the networks of the rules decide about them, sorted and disjoint; they cover the whole
/// family.
fn decisions_of_networks(rules: &[&Arc<OrderedRule>], family: Family) -> Vec<AddressRange> {
    let (_, most) = whole(family);
    // By the first address, and by the last one: an address after the last one of the family does not exist.
    let mut opening: BTreeMap<u128, Vec<usize>> = [(0, vec![])].into();
    let mut closing: BTreeMap<u128, Vec<usize>> = BTreeMap::new();
    for (number, rule) in rules.iter().enumerate().filter(|(_, rule)| rule.named.is_none()) {
        let whole = rule.peers.any.then_some((0, most));
        let networks = rule.peers.networks.iter().filter(|network| Family::of(network.addr()) == family).map(bounds);
        for (first, last) in networks.chain(whole) {
            opening.entry(first).or_default().push(number);
            closing.entry(last).or_default().push(number);
            if last < most {
                opening.entry(last + 1).or_default();
            }
        }
    }
    let mut open: BTreeMap<usize, usize> = BTreeMap::new();
    let mut found: Vec<AddressRange> = Vec::new();
    let starts: Vec<u128> = opening.keys().copied().collect();
    for (place, (first, rules_from)) in opening.iter().enumerate() {
        rules_from.iter().for_each(|number| *open.entry(*number).or_default() += 1);
        let decision = open.first_key_value().map_or(Decision::Pass, |(number, _)| rules[*number].decision());
        let last = starts.get(place + 1).map_or(most, |next| next - 1);
        match found.last_mut() {
            Some((_, end, previous)) if *previous == decision => *end = last,
            _ => found.push((*first, last, decision)),
        }
        for number in closing.get(&last).into_iter().flatten() {
            if let Some(times) = open.get_mut(number) {
                *times -= 1;
            }
        }
        open.retain(|_, times| *times > 0);
    }
    found
}
