//! ClusterNetworkPolicy: policies of the whole cluster in two tiers, with rules in order.
//!
//! The Admin tier is evaluated before NetworkPolicies, the Baseline tier after them and only for pods that no
//! NetworkPolicy selects in the direction. Within a tier policies are ordered by priority, then by name; within a
//! policy rules are in the order of the object. The first rule that matches decides.
//!
//! Labels may be unknown: those of an unreadable pod or node, and those of a namespace whose object is unknown or
//! unreadable. A selection is then [unknown](Selection::Unknown). It never accepts a flow, and where a Deny or Pass rule
//! depends on it, the flow is denied.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Diagnostic, Direction, Enforcement, Labels, ObjectName, Pod, Ports, Selector, Severity};

/// The tiers of ClusterNetworkPolicy, in the order of evaluation; NetworkPolicy lies between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// `spec.tier: Admin`, before NetworkPolicy.
    Admin,
    /// `spec.tier: Baseline`, after NetworkPolicy.
    Baseline,
}

impl Tier {
    /// In the order of evaluation.
    pub const BOTH: [Tier; 2] = [Tier::Admin, Tier::Baseline];

    /// The name in reports and metric labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Tier::Admin => "admin",
            Tier::Baseline => "baseline",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Tier::Admin => "Admin",
            Tier::Baseline => "Baseline",
        })
    }
}

/// The `action` of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleAction {
    /// Allows the flow in the direction, whatever later tiers say.
    Accept,
    /// Drops the flow, whatever later tiers say.
    Deny,
    /// Continues with the next tier.
    Pass,
}

impl fmt::Display for RuleAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RuleAction::Accept => "Accept",
            RuleAction::Deny => "Deny",
            RuleAction::Pass => "Pass",
        })
    }
}

/// A ClusterNetworkPolicy, with its invalid parts lowered to denial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPolicy {
    /// The namespace is empty.
    pub name: ObjectName,
    /// `spec.tier`
    pub tier: Tier,
    /// 0 to 1000, the lowest first.
    pub priority: u16,
    /// Never selects pods on the host network.
    pub subject: PodScope,
    /// Empty: no effect on the direction.
    pub ingress: Vec<ClusterRule>,
    /// Empty: no effect on the direction.
    pub egress: Vec<ClusterRule>,
    /// The object's own annotation; see [`crate::ClusterState::cluster_enforcement`].
    pub enforcement: Option<Enforcement>,
    /// Findings about the object, for the status and `ringfence check`.
    pub problems: Vec<Diagnostic>,
}

/// Pods by the labels of their namespace and their own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodScope {
    /// `namespaceSelector`; a subject or peer of `namespaces` selects all their pods.
    pub namespaces: Selector,
    /// `podSelector`, within these namespaces.
    pub pods: Selector,
}

/// An entry of `ingress` or `egress`: it decides about a flow whose peer and whose port both match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterRule {
    /// The index in the object's list.
    pub index: usize,
    /// The rule's `name`, for reports alone.
    pub name: Option<Arc<str>>,
    /// The effect on flows that match.
    pub action: RuleAction,
    /// `from` of an ingress rule, `to` of an egress rule.
    pub peers: ClusterPeers,
    /// `protocols`; without the field, every port and every protocol.
    pub ports: Ports,
}

/// The other end of the flows that a rule matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterPeers {
    /// Every address. Only results from invalid objects, which cannot say this.
    Any,
    /// Any of these; an empty list matches no address.
    Of(Vec<ClusterPeer>),
}

/// An entry of `from` or `to`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClusterPeer {
    /// Never selects pods on the host network.
    Pods(PodScope),
    /// The addresses in the status of the nodes.
    Nodes(Selector),
    /// Anything that has one of the addresses. Host bits are cleared.
    Networks(Vec<IpNet>),
    /// The addresses that were learned for these names ([`crate::ClusterState::learn`]).
    DomainNames(Vec<DomainPattern>),
}

/// A domain name, or all names below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct DomainPattern {
    /// `*.` precedes the name.
    pub wildcard: bool,
    /// In lower case, without a final dot.
    pub name: Arc<str>,
}

impl DomainPattern {
    /// Whether the name, which is in lower case and without a final dot, matches. `*` stands for one or more whole
    /// labels.
    pub fn matches(&self, name: &str) -> bool {
        match self.wildcard {
            false => *self.name == *name,
            true => name
                .strip_suffix(&*self.name)
                .and_then(|rest| rest.strip_suffix('.'))
                .is_some_and(|rest| !rest.is_empty()),
        }
    }
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.wildcard { "*." } else { "" })?;
        f.write_str(&self.name)
    }
}

/// Whether a selector selects an object whose labels may be unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Selection {
    /// The labels are known and do not match.
    No,
    /// It depends on labels that are unknown.
    Unknown,
    /// The labels are known and match.
    Yes,
}

impl Selection {
    pub(crate) fn of(selector: &Selector, labels: Option<&Labels>) -> Selection {
        match labels {
            Some(labels) if selector.matches(labels) => Selection::Yes,
            Some(_) => Selection::No,
            None => Selection::Unknown,
        }
    }

    /// Whether both conditions hold.
    pub fn and(self, other: Selection) -> Selection {
        self.min(other)
    }

    /// Whether one of the conditions holds.
    pub fn or(self, other: Selection) -> Selection {
        self.max(other)
    }
}

impl From<bool> for Selection {
    fn from(holds: bool) -> Selection {
        if holds { Selection::Yes } else { Selection::No }
    }
}

impl PodScope {
    /// Every pod of every namespace, except on the host network.
    pub(crate) fn everything() -> PodScope {
        PodScope { namespaces: Selector::everything(), pods: Selector::everything() }
    }

    /// Whether it selects the pod. The labels of its namespace are `None` while its object is unknown or unreadable.
    pub fn selects(&self, pod: &Pod, namespace: Option<&Labels>) -> Selection {
        if pod.host_network {
            return Selection::No;
        }
        let labels = (!pod.unreadable).then_some(&pod.labels);
        Selection::of(&self.namespaces, namespace).and(Selection::of(&self.pods, labels))
    }
}

impl ClusterPolicy {
    /// In the order of evaluation.
    pub(crate) fn rules(&self, direction: Direction) -> &[ClusterRule] {
        match direction {
            Direction::Egress => &self.egress,
            Direction::Ingress => &self.ingress,
        }
    }

    /// Whether no part of it was lowered to denial.
    pub fn is_understood(&self) -> bool {
        self.problems.iter().all(|problem| problem.severity != Severity::Error)
    }

    fn place(&self) -> EvaluationPlace {
        (self.tier, self.priority, self.name.name.clone())
    }
}

impl ClusterRule {
    /// The domain names among its peers.
    pub fn domain_names(&self) -> impl Iterator<Item = &DomainPattern> {
        let peers = match &self.peers {
            ClusterPeers::Any => &[],
            ClusterPeers::Of(peers) => &peers[..],
        };
        peers.iter().flat_map(|peer| match peer {
            ClusterPeer::DomainNames(names) => &names[..],
            ClusterPeer::Pods(_) | ClusterPeer::Nodes(_) | ClusterPeer::Networks(_) => &[],
        })
    }
}

/// The place in the order of evaluation.
type EvaluationPlace = (Tier, u16, Arc<str>);

/// The cluster policies, by name and in the order of evaluation.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ClusterPolicies {
    by_name: BTreeMap<Arc<str>, Arc<ClusterPolicy>>,
    by_place: BTreeMap<EvaluationPlace, Arc<ClusterPolicy>>,
}

impl ClusterPolicies {
    pub(crate) fn insert(&mut self, policy: Arc<ClusterPolicy>) {
        self.remove(&policy.name.name);
        self.by_place.insert(policy.place(), policy.clone());
        self.by_name.insert(policy.name.name.clone(), policy);
    }

    pub(crate) fn remove(&mut self, name: &str) {
        if let Some(policy) = self.by_name.remove(name) {
            self.by_place.remove(&policy.place());
        }
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<ClusterPolicy>> {
        self.by_name.get(name)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_name.len()
    }

    /// In the order of evaluation.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<ClusterPolicy>> {
        self.by_place.values()
    }

    /// In the order of evaluation.
    pub(crate) fn of_tier(&self, tier: Tier) -> impl Iterator<Item = &Arc<ClusterPolicy>> {
        self.by_place.range((tier, 0, "".into())..).map(|(_, policy)| policy).take_while(move |p| p.tier == tier)
    }
}
