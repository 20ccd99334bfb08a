//! The place of each rule of a cluster policy: its ports, and the segments of ports with the same rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use nft::Protocol;

use super::{OrderedRule, OtherEnds, OwnRules, TierPeers, TierSegment, Word};
use crate::translate::{Direction, NamedPorts};
use crate::{ClusterPolicy, ClusterRule, PortRange, Ports, RuleAction};

/// A rule with the ports that it applies to; `None` for every port and protocol.
pub(super) struct PortedRule {
    pub(super) rule: Arc<OrderedRule>,
    pub(super) spans: Option<Spans>,
}

pub(super) type Spans = BTreeMap<Protocol, Vec<(u16, u16)>>;

/// A rule with ports, in its place among the base rules.
pub(super) struct PlacedRule {
    pub(super) rule: Arc<OrderedRule>,
    pub(super) spans: Spans,
    pub(super) base_before: usize,
}

/// Numbers, and each named port of an egress rule, become separate rules.
pub(super) fn place(
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
    let place = format!("{} {}[{}]", policy.name, direction.as_str(), rule.index);
    match &rule.name {
        Some(name) => format!("{place} {name}").into(),
        None => place.into(),
    }
}

/// The segments of a protocol. Neighbours with the same rules are merged.
pub(super) fn segments(placed: &[PlacedRule], protocol: Protocol) -> Vec<TierSegment> {
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
