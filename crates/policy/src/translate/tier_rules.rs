//! The rules of a tier of cluster policies for the pods of a program: which of them can match at a port, in order, and
//! what they decide about one address.
//!
//! The rules are split by ports into segments. Within a segment the ports of a flow no longer matter, so the first rule
//! that matches depends on the address of the other end alone, and every address has one decision. A segment is kept as
//! the difference to the base rules, those without ports: its own rules concern few addresses.

mod networks;
mod other_end;
mod placement;

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ipnet::IpNet;
use nft::Protocol;
use serde::Serialize;

use super::names::digest;
use super::{Direction, NamedPorts};
use crate::{
    ClusterPeer, ClusterPeers, ClusterPolicy, ClusterRule, ClusterState, DomainPattern, Enforcement, Labels, PodScope,
    Ports, RuleAction, Selection, Selector, Tier,
};
use other_end::LearnedName;
use placement::{PlacedRule, PortedRule, place, segments};

pub(super) use networks::{AddressRange, networks_of_base, networks_of_segment};
pub(super) use other_end::{NodesByAddress, PeerEnd, nodes_by_address};

/// A cluster policy that selects the pods of a program.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SelectingTierPolicy {
    pub(super) policy: Arc<ClusterPolicy>,
    /// Whether it certainly selects them: the labels of their namespace are known.
    pub(super) certain: bool,
}

impl SelectingTierPolicy {
    /// Whether any rule of the direction can match.
    pub(super) fn decides(&self, direction: Direction) -> bool {
        let matches_something = |rule: &ClusterRule| match (&rule.peers, &rule.ports) {
            (_, Ports::Of(ports)) if ports.is_empty() => false,
            (ClusterPeers::Any, _) => true,
            (ClusterPeers::Of(peers), _) => !peers.is_empty(),
        };
        let may_match = |rule: &ClusterRule| self.certain || rule.action != RuleAction::Accept;
        self.policy.rules(direction).iter().any(|rule| may_match(rule) && matches_something(rule))
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
pub(super) enum TierDecision {
    Deny,
    Accept,
    /// A rule passes the flow to the next tier, or no rule matches.
    Pass,
}

impl TierDecision {
    pub(super) const ALL: [TierDecision; 3] = [TierDecision::Deny, TierDecision::Accept, TierDecision::Pass];
}

/// The decision, if Accept and Pass may lead to the same chain.
pub(super) fn normal(decision: TierDecision, only_denies: bool) -> TierDecision {
    match decision {
        TierDecision::Accept if only_denies => TierDecision::Pass,
        TierDecision::Accept | TierDecision::Deny | TierDecision::Pass => decision,
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
        serializer.serialize_str(self.0.as_str())
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
        policies: &[SelectingTierPolicy],
        named: &NamedPorts,
        ends: OtherEnds<'_>,
    ) -> TierRules {
        let mut placed: Vec<PlacedRule> = Vec::new();
        let mut base: Vec<Arc<OrderedRule>> = Vec::new();
        'policies: for SelectingTierPolicy { policy, certain } in policies {
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
        end: &PeerEnd<'_>,
    ) -> BTreeMap<(Protocol, u16), TierDecision> {
        let resolved = named.iter().filter_map(|(name, protocol)| Some((*protocol, end.resolve(name, *protocol)?)));
        let decided = resolved.filter_map(|(protocol, port)| {
            let own = self.own_at(protocol, port);
            let decision = decide(&self.base, own, end, Some((protocol, port)));
            (decision != decide(&self.base, own, end, None)).then_some(((protocol, port), decision))
        });
        decided.collect()
    }
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

    /// Whether it can lead to the decision.
    pub(super) fn may_lead_to(&self, decision: TierDecision, only_denies: bool) -> bool {
        match (decision, self.action) {
            // A rule for Pass denies where it is not known whether it matches.
            (TierDecision::Deny, RuleAction::Deny) | (TierDecision::Pass, RuleAction::Pass) => true,
            (TierDecision::Deny, RuleAction::Pass) => self.depends_on_holder(),
            (TierDecision::Accept, RuleAction::Accept) => !only_denies,
            (TierDecision::Pass, RuleAction::Accept) => only_denies,
            (TierDecision::Deny, RuleAction::Accept)
            | (TierDecision::Accept, RuleAction::Deny | RuleAction::Pass)
            | (TierDecision::Pass, RuleAction::Deny) => false,
        }
    }

    /// The decision where it matches.
    pub(super) fn decision(&self) -> TierDecision {
        match self.action {
            RuleAction::Accept => TierDecision::Accept,
            RuleAction::Deny => TierDecision::Deny,
            RuleAction::Pass => TierDecision::Pass,
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
    fn decide(&self, end: &PeerEnd<'_>, port: Option<(Protocol, u16)>) -> Option<TierDecision> {
        match (self.action, self.selection(end, port)) {
            (_, Selection::No) | (RuleAction::Accept, Selection::Unknown) => None,
            (RuleAction::Accept, Selection::Yes) => Some(TierDecision::Accept),
            (RuleAction::Pass, Selection::Yes) => Some(TierDecision::Pass),
            (RuleAction::Deny, Selection::Yes | Selection::Unknown) | (RuleAction::Pass, Selection::Unknown) => {
                Some(TierDecision::Deny)
            }
        }
    }

    fn selection(&self, end: &PeerEnd<'_>, port: Option<(Protocol, u16)>) -> Selection {
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
    end: &PeerEnd<'_>,
    port: Option<(Protocol, u16)>,
) -> TierDecision {
    let of_own = own.iter().find_map(|(base_before, rule)| Some((*base_before, rule.decide(end, port)?)));
    let before = of_own.map_or(base.rules.len(), |(base_before, _)| base_before);
    let of_base = base.rules[..before].iter().find_map(|rule| rule.decide(end, port));
    of_base.or(of_own.map(|(_, decision)| decision)).unwrap_or(TierDecision::Pass)
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
pub(super) fn concern(own: &[(usize, Arc<OrderedRule>)], end: &PeerEnd<'_>) -> bool {
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

    fn selection(&self, end: &PeerEnd<'_>) -> Selection {
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
