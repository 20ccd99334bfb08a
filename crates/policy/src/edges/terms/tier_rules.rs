//! Rules of ClusterNetworkPolicies as they apply to a class of pods in one direction, in the order of evaluation.

use std::sync::Arc;

use ipnet::IpNet;
use nft::Protocol;

use super::other_end::{OtherEnd, PeerTerm};
use crate::edges::declared_lines::TierRuleName;
use crate::edges::ports::{FlowPorts, PortSpan};
use crate::{
    Block, ClusterPeer, ClusterPeers, ClusterPolicy, ClusterRule, Direction, DomainPattern, NamedPort, Pod, PortRange,
    Ports, RuleAction, Selection, Selector,
};

/// A rule, with its peers as numbers of the peer index.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::edges) struct TierRule {
    pub(super) name: Arc<TierRuleName>,
    /// The policy may not select the class, so the rule can only deny.
    unclear: bool,
    peers: TierPeers,
    ports: TierPorts,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct TierPeers {
    /// Every address.
    any: bool,
    /// All pods of all namespaces, without an index of them.
    ordinary: bool,
    /// Peers that select their classes for certain.
    certain: Vec<u32>,
    /// Peers that may select their classes.
    possible: Vec<u32>,
    networks: Vec<IpNet>,
    nodes: Vec<Selector>,
    names: Vec<DomainPattern>,
}

#[derive(Debug, Clone, PartialEq)]
struct TierPorts {
    numbers: FlowPorts,
    /// Named ports that the pod at the other end resolves.
    named: Vec<(Arc<str>, Protocol)>,
}

/// The traffic with another end that a rule matches.
pub(super) struct MatchedTraffic {
    pub(super) certain: FlowPorts,
    /// Traffic that the rule may match, which it denies.
    pub(super) possible: FlowPorts,
}

impl TierRule {
    /// The rules of a policy that selects the pod with this certainty.
    pub(super) fn of_policy(
        policy: &ClusterPolicy,
        selection: Selection,
        direction: Direction,
        pod: &Pod,
        number: &mut impl FnMut(PeerTerm) -> u32,
    ) -> Vec<TierRule> {
        let unclear = selection != Selection::Yes;
        let may_matter = |rule: &&ClusterRule| !unclear || rule.action != RuleAction::Accept;
        let compile = |rule: &ClusterRule| TierRule {
            name: Arc::new(TierRuleName {
                tier: policy.tier,
                policy: policy.name.name.clone(),
                direction,
                index: rule.index,
                name: rule.name.clone(),
                action: rule.action,
            }),
            unclear,
            ports: TierPorts::of(&rule.ports, direction, pod),
            peers: TierPeers::of(rule, direction, number),
        };
        policy.rules(direction).iter().filter(may_matter).map(compile).collect()
    }

    pub(super) fn action(&self) -> RuleAction {
        self.name.action
    }

    /// Whether a port is named, which the pod at the destination resolves.
    pub(in crate::edges) fn resolves_names(rule: &ClusterRule) -> bool {
        match &rule.ports {
            Ports::Any => false,
            Ports::Of(ports) => ports.iter().any(|port| matches!(port.range, PortRange::Named(_))),
        }
    }

    /// The indexed peers.
    pub(super) fn mentioned(&self) -> impl Iterator<Item = u32> {
        self.peers.certain.iter().chain(&self.peers.possible).copied()
    }

    /// Whether it depends on addresses of no pod.
    pub(super) fn names_addresses(&self) -> bool {
        let TierPeers { any, networks, nodes, ordinary: _, certain: _, possible: _, names: _ } = &self.peers;
        *any || !networks.is_empty() || !nodes.is_empty()
    }

    pub(in crate::edges) fn networks(&self) -> &[IpNet] {
        &self.peers.networks
    }

    pub(in crate::edges) fn nodes(&self) -> &[Selector] {
        &self.peers.nodes
    }

    pub(super) fn names(&self) -> &[DomainPattern] {
        &self.peers.names
    }

    /// The ports at addresses of its domain names.
    pub(super) fn ports_of_names(&self, outside: OtherEnd<'_>) -> FlowPorts {
        self.ports.certain(outside)
    }

    /// The traffic with the other end that the rule matches.
    pub(super) fn matched(&self, other: OtherEnd<'_>) -> MatchedTraffic {
        let nothing = FlowPorts::none;
        let (certain, possible) = match self.peers.select(other) {
            Selection::No => return MatchedTraffic { certain: nothing(), possible: nothing() },
            Selection::Unknown => (nothing(), self.ports.certain(other).union(&self.ports.possible(other))),
            Selection::Yes => (self.ports.certain(other), self.ports.possible(other)),
        };
        match (self.unclear, self.action()) {
            (_, RuleAction::Accept) => MatchedTraffic { certain, possible: nothing() },
            (true, RuleAction::Deny | RuleAction::Pass) => {
                MatchedTraffic { certain: nothing(), possible: certain.union(&possible) }
            }
            (false, RuleAction::Deny | RuleAction::Pass) => MatchedTraffic { certain, possible },
        }
    }
}

impl TierPeers {
    fn of(rule: &ClusterRule, direction: Direction, number: &mut impl FnMut(PeerTerm) -> u32) -> TierPeers {
        let mut compiled = TierPeers::default();
        let listed = match &rule.peers {
            ClusterPeers::Any => return TierPeers { any: true, ..compiled },
            ClusterPeers::Of(listed) => listed,
        };
        let is_certain_only = rule.action == RuleAction::Accept;
        let resolves_names = direction == Direction::Egress && TierRule::resolves_names(rule);
        for peer in listed {
            match peer {
                ClusterPeer::Pods(scope) => {
                    let is_everything = scope.namespaces.selects_everything() && scope.pods.selects_everything();
                    if is_everything && !resolves_names {
                        compiled.ordinary = true;
                        continue;
                    }
                    compiled.certain.push(number(PeerTerm::Scope(scope.clone())));
                    if !is_certain_only {
                        compiled.possible.push(number(PeerTerm::PossibleScope(scope.clone())));
                    }
                }
                ClusterPeer::Nodes(selector) => {
                    compiled.nodes.push(selector.clone());
                    compiled.certain.push(number(PeerTerm::Nodes(selector.clone())));
                    if !is_certain_only {
                        compiled.possible.push(number(PeerTerm::PossibleNodes));
                    }
                }
                ClusterPeer::Networks(networks) => {
                    for network in networks {
                        compiled.networks.push(*network);
                        compiled.certain.push(number(PeerTerm::Block(Block { cidr: *network, except: vec![] })));
                    }
                }
                ClusterPeer::DomainNames(names) => compiled.names.extend(names.iter().cloned()),
            }
        }
        for numbers in [&mut compiled.certain, &mut compiled.possible] {
            numbers.sort_unstable();
            numbers.dedup();
        }
        compiled
    }

    fn select(&self, other: OtherEnd<'_>) -> Selection {
        if self.any {
            return Selection::Yes;
        }
        let of_everyone = |is_ordinary: bool| match (self.ordinary, is_ordinary) {
            (false, _) => Selection::No,
            (true, true) => Selection::Yes,
            (true, false) => Selection::Unknown,
        };
        match other {
            OtherEnd::Unnamed { ordinary } => of_everyone(ordinary),
            OtherEnd::Pods(pods) => {
                let matches = |peers: &[u32]| peers.iter().any(|peer| pods.is_matched_by(*peer));
                if matches(&self.certain) {
                    return Selection::Yes;
                }
                of_everyone(pods.ordinary).or(if matches(&self.possible) { Selection::Unknown } else { Selection::No })
            }
            OtherEnd::Outside { addresses, nodes } => {
                if self.networks.iter().any(|network| network.contains(addresses)) {
                    return Selection::Yes;
                }
                let of_nodes = self.nodes.iter().map(|selector| nodes.selection(selector, addresses));
                of_nodes.fold(Selection::No, Selection::or)
            }
        }
    }
}

impl TierPorts {
    /// The pod resolves named ports of ingress rules.
    fn of(ports: &Ports, direction: Direction, pod: &Pod) -> TierPorts {
        let ports = match ports {
            Ports::Any => return TierPorts { numbers: FlowPorts::everything(), named: vec![] },
            Ports::Of(ports) => ports,
        };
        let (mut spans, mut named) = (Vec::new(), Vec::new());
        for port in ports {
            let protocol = port.protocol;
            match (&port.range, direction) {
                (PortRange::All, _) => spans.push(PortSpan::all(protocol)),
                (PortRange::Numbers(first, last), _) => {
                    spans.push(PortSpan { protocol, first: *first, last: *last });
                }
                (PortRange::Named(name), Direction::Ingress) => spans.extend(resolved(&pod.ports, name, protocol)),
                (PortRange::Named(name), Direction::Egress) => named.push((name.clone(), protocol)),
            }
        }
        TierPorts { numbers: FlowPorts::of(spans), named }
    }

    fn certain(&self, other: OtherEnd<'_>) -> FlowPorts {
        match other {
            OtherEnd::Pods(pods) if !pods.unreadable && !self.named.is_empty() => {
                let numbers = self.named.iter().filter_map(|(name, p)| resolved(pods.ports, name, *p));
                self.numbers.union(&FlowPorts::of(numbers))
            }
            OtherEnd::Pods(_) | OtherEnd::Unnamed { .. } | OtherEnd::Outside { .. } => self.numbers.clone(),
        }
    }

    /// The ports of an unreadable pod are unknown.
    fn possible(&self, other: OtherEnd<'_>) -> FlowPorts {
        match other {
            OtherEnd::Pods(pods) if pods.unreadable => {
                FlowPorts::of(self.named.iter().map(|(_, protocol)| PortSpan::all(*protocol))).difference(&self.numbers)
            }
            OtherEnd::Pods(_) | OtherEnd::Unnamed { .. } | OtherEnd::Outside { .. } => FlowPorts::none(),
        }
    }
}

fn resolved(ports: &[NamedPort], name: &str, protocol: Protocol) -> Option<PortSpan> {
    let number = NamedPort::find(ports, name, protocol)?;
    Some(PortSpan { protocol, first: number, last: number })
}
