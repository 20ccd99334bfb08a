//! Effects of a change of policies on the observed flows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use flow::{Endpoint, EndpointKind};
use jiff::Timestamp;
use policy::{
    Change, ClusterState, Explanation, Kind, Object, ObjectName, Severity, SideVerdict, Traffic, check, explain,
};
use serde::{Deserialize, Serialize};

use crate::sample::{Flows, NoFlow, flows_of};
use crate::{ObservedEdge, WorkloadIndex};

/// Policies to set and to delete.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicyChanges {
    set: BTreeMap<PolicyId, Object>,
    deleted: BTreeSet<PolicyId>,
}

/// A policy by its kind and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyId {
    kind: Kind,
    name: ObjectName,
}

/// Why objects are not changes of policies.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidChange {
    #[error("invalid policy '{}': expected NetworkPolicy/NAMESPACE/NAME or ClusterNetworkPolicy/NAME", .0.escape_debug())]
    Name(String),
    #[error("unsupported kind {0} of {1}: expected NetworkPolicy or ClusterNetworkPolicy")]
    Kind(Kind, ObjectName),
    #[error("{0} appears twice")]
    Repeated(PolicyId),
    #[error("no policy given")]
    Empty,
}

/// The result of a change, by edge.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WhatIf {
    /// Outcome for each policy.
    pub policies: Vec<PolicyChange>,
    /// Findings of `ringfence check` about the policies.
    pub findings: Vec<PolicyFinding>,
    /// Observed edges, whether the change concerns them or not.
    pub edges: u64,
    /// Edges to which none of the policies can apply, or none of whose flows changes.
    pub unchanged: u64,
    /// By effect, the most severe first; an edge whose flows differ appears once for each effect.
    pub changed: Vec<ChangedEdge>,
    /// Edges that the policies may concern, and that have no flows to judge.
    pub not_evaluated: Vec<UnevaluatedEdge>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyChange {
    /// `NetworkPolicy shop/web`
    pub policy: String,
    pub action: PolicyOutcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyOutcome {
    Created,
    Changed,
    Deleted,
    /// The policy exists as given.
    Unchanged,
    /// The policy to delete does not exist.
    NotFound,
}

/// A problem of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyFinding {
    /// `error` or `warning`
    pub severity: String,
    pub message: String,
}

/// An edge of which some flows change.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChangedEdge {
    #[serde(flatten)]
    pub edge: EdgeName,
    pub effect: Effect,
    /// Flows between pods and addresses of its ends that have the effect.
    pub flows: u64,
    /// Flows that were judged.
    pub judged: u64,
    /// One of the flows, with the rules that decide now, and those that would.
    pub before: Explanation,
    pub after: Explanation,
}

/// The most severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    NewlyDenied,
    /// It would pass, and be reported as a flow that audited policies would deny.
    NewlyWouldDeny,
    NewlyAllowed,
    /// It passes as before, and audited policies would no longer deny it.
    NoLongerWouldDeny,
    /// The verdict stays, and another rule decides.
    OtherRule,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UnevaluatedEdge {
    #[serde(flatten)]
    pub edge: EdgeName,
    pub reason: NoFlow,
}

/// The ends of an edge and its port, with what was seen of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeName {
    pub source: Endpoint,
    pub destination: Endpoint,
    /// IANA number.
    pub protocol: u8,
    pub port: Option<u16>,
    /// Connections that were seen.
    pub connections: u64,
    pub last: Timestamp,
}

impl PolicyChanges {
    /// # Errors
    /// If an object is not a policy, or one is given twice, or there is none.
    pub fn new(
        set: impl IntoIterator<Item = Object>,
        deleted: impl IntoIterator<Item = PolicyId>,
    ) -> Result<PolicyChanges, InvalidChange> {
        let mut changes = PolicyChanges::default();
        for object in set {
            match object.kind() {
                Kind::NetworkPolicy | Kind::ClusterNetworkPolicy => {}
                kind @ (Kind::Namespace | Kind::Pod | Kind::Node) => {
                    return Err(InvalidChange::Kind(kind, object.name().clone()));
                }
            }
            let name = PolicyId { kind: object.kind(), name: object.name().clone() };
            if changes.set.insert(name.clone(), object).is_some() {
                return Err(InvalidChange::Repeated(name));
            }
        }
        for name in deleted {
            if changes.set.contains_key(&name) || !changes.deleted.insert(name.clone()) {
                return Err(InvalidChange::Repeated(name));
            }
        }
        match changes.set.is_empty() && changes.deleted.is_empty() {
            true => Err(InvalidChange::Empty),
            false => Ok(changes),
        }
    }

    /// The namespaces of which pods may be concerned; `None` for all.
    pub fn namespaces(&self) -> Option<BTreeSet<String>> {
        match Scope::of(self) {
            Scope::Everywhere => None,
            Scope::Namespaces(names) => Some(names.iter().map(|name| name.to_string()).collect()),
        }
    }

    /// The state with the changes.
    fn applied(&self, state: &ClusterState) -> ClusterState {
        let mut after = state.clone();
        for object in self.set.values() {
            after.apply(Change::Set(object.clone()));
        }
        for PolicyId { kind, name } in &self.deleted {
            after.apply(Change::Remove(*kind, name.clone()));
        }
        after
    }

    fn names(&self) -> impl Iterator<Item = &PolicyId> {
        self.set.keys().chain(&self.deleted)
    }

    fn actions(&self, state: &ClusterState) -> Vec<PolicyChange> {
        let set = self.set.iter().map(|(name, object)| {
            let action = match name.find(state) {
                None => PolicyOutcome::Created,
                Some(old) if old == *object => PolicyOutcome::Unchanged,
                Some(_) => PolicyOutcome::Changed,
            };
            (name, action)
        });
        let deleted = self.deleted.iter().map(|name| match name.find(state) {
            None => (name, PolicyOutcome::NotFound),
            Some(_) => (name, PolicyOutcome::Deleted),
        });
        set.chain(deleted).map(|(name, action)| PolicyChange { policy: name.to_string(), action }).collect()
    }
}

impl PolicyId {
    fn find(&self, state: &ClusterState) -> Option<Object> {
        match self.kind {
            Kind::ClusterNetworkPolicy => state.cluster_policy(&self.name.name).cloned().map(Object::ClusterPolicy),
            Kind::NetworkPolicy => state.policy(&self.name).cloned().map(Object::Policy),
            Kind::Namespace | Kind::Pod | Kind::Node => None,
        }
    }
}

impl PolicyId {
    /// The form that is parsed: `NetworkPolicy/shop/web`.
    pub fn argument(&self) -> String {
        match self.name.namespace.is_empty() {
            true => format!("{}/{}", self.kind, self.name.name),
            false => format!("{}/{}/{}", self.kind, self.name.namespace, self.name.name),
        }
    }
}

impl fmt::Display for PolicyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)
    }
}

/// `NetworkPolicy/shop/web`, `ClusterNetworkPolicy/tenants`; the kind also in lower case, as for kubectl.
impl std::str::FromStr for PolicyId {
    type Err = InvalidChange;

    fn from_str(text: &str) -> Result<PolicyId, InvalidChange> {
        let invalid = || InvalidChange::Name(text.to_owned());
        let (kind, name) = text.split_once('/').ok_or_else(invalid)?;
        match kind.to_ascii_lowercase().as_str() {
            "networkpolicy" | "netpol" => {
                Ok(PolicyId { kind: Kind::NetworkPolicy, name: name.parse().map_err(|_| invalid())? })
            }
            "clusternetworkpolicy" | "cnp" if !name.is_empty() && !name.contains('/') => {
                Ok(PolicyId { kind: Kind::ClusterNetworkPolicy, name: ObjectName::new("", name) })
            }
            _ => Err(invalid()),
        }
    }
}

/// Judges the flows of observed edges with and without the changes.
pub fn what_if(state: &ClusterState, changes: &PolicyChanges, edges: &[ObservedEdge]) -> WhatIf {
    let after = changes.applied(state);
    let directory = WorkloadIndex::of(state);
    let scope = Scope::of(changes);
    let mut report = WhatIf {
        policies: changes.actions(state),
        findings: findings(changes, &after),
        edges: edges.len().try_into().unwrap_or(u64::MAX),
        ..WhatIf::default()
    };
    for edge in edges {
        if !scope.concerns(edge) {
            report.unchanged += 1;
            continue;
        }
        match flows_of(&directory, edge) {
            Err(reason) => report.not_evaluated.push(UnevaluatedEdge { edge: EdgeName::of(edge), reason }),
            Ok(flows) => {
                let changed = compare(state, &after, edge, &flows);
                report.unchanged += u64::from(changed.is_empty());
                report.changed.extend(changed);
            }
        }
    }
    // A stable sort: edges of an effect stay in the order of their ends.
    report.changed.sort_by_key(|changed| changed.effect);
    report
}

fn compare(before: &ClusterState, after: &ClusterState, edge: &ObservedEdge, flows: &Flows) -> Vec<ChangedEdge> {
    let mut by_effect: BTreeMap<Effect, ChangedEdge> = BTreeMap::new();
    let judged = flows.pairs.len().try_into().unwrap_or(u64::MAX);
    for &pair in &flows.pairs {
        let [old, new] = [before, after].map(|state| judge(state, pair, flows.traffic));
        let Some(effect) = Effect::of(&old, &new) else { continue };
        let changed = by_effect.entry(effect).or_insert_with(|| ChangedEdge {
            edge: EdgeName::of(edge),
            effect,
            flows: 0,
            judged,
            before: old,
            after: new,
        });
        changed.flows += 1;
    }
    by_effect.into_values().collect()
}

fn judge(state: &ClusterState, (source, destination): (IpAddr, IpAddr), traffic: Traffic) -> Explanation {
    explain(state, source, destination, traffic)
}

impl Effect {
    pub const ALL: [Effect; 5] = [
        Effect::NewlyDenied,
        Effect::NewlyWouldDeny,
        Effect::NewlyAllowed,
        Effect::NoLongerWouldDeny,
        Effect::OtherRule,
    ];

    /// `None` if the same rules decide the same.
    fn of(before: &Explanation, after: &Explanation) -> Option<Effect> {
        match (before.allowed, after.allowed) {
            (true, false) => return Some(Effect::NewlyDenied),
            (false, true) => return Some(Effect::NewlyAllowed),
            (true, true) | (false, false) => {}
        }
        match (before.would_be_denied(), after.would_be_denied()) {
            (false, true) => return Some(Effect::NewlyWouldDeny),
            (true, false) => return Some(Effect::NoLongerWouldDeny),
            (true, true) | (false, false) => {}
        }
        let is_same = DecidingRule::of(&before.egress) == DecidingRule::of(&after.egress)
            && DecidingRule::of(&before.ingress) == DecidingRule::of(&after.ingress);
        (!is_same).then_some(Effect::OtherRule)
    }
}

/// Decision of a side: the variant and its rule. The closest rule and further policies that isolate decide nothing.
#[derive(Debug, PartialEq)]
enum DecidingRule {
    Nothing,
    Rule(&'static str, String),
    NoRule(&'static str),
}

impl DecidingRule {
    fn of(side: &SideVerdict) -> DecidingRule {
        match side {
            SideVerdict::NotAPod | SideVerdict::NotIsolated | SideVerdict::Itself | SideVerdict::OwnNode => {
                DecidingRule::Nothing
            }
            SideVerdict::Allowed { isolated_by: _, rule } => DecidingRule::Rule("allowed", rule.to_string()),
            SideVerdict::WouldAllow { audited_by: _, rule } => DecidingRule::Rule("would allow", rule.to_string()),
            SideVerdict::Accepted { rule } => DecidingRule::Rule("accepted", rule.to_string()),
            SideVerdict::DeniedByRule { rule } => DecidingRule::Rule("denied", rule.to_string()),
            SideVerdict::WouldAccept { rule } => DecidingRule::Rule("would accept", rule.to_string()),
            SideVerdict::WouldDenyByRule { rule } => DecidingRule::Rule("would deny", rule.to_string()),
            SideVerdict::Denied { .. } => DecidingRule::NoRule("denied"),
            SideVerdict::WouldDeny { .. } => DecidingRule::NoRule("would deny"),
            SideVerdict::Unreadable { .. } => DecidingRule::NoRule("unreadable"),
        }
    }
}

/// The pods that the changed policies may select.
enum Scope {
    Everywhere,
    Namespaces(BTreeSet<Arc<str>>),
}

impl Scope {
    fn of(changes: &PolicyChanges) -> Scope {
        let mut namespaces = BTreeSet::new();
        for PolicyId { kind, name } in changes.names() {
            if *kind == Kind::ClusterNetworkPolicy {
                return Scope::Everywhere;
            }
            namespaces.insert(name.namespace.clone());
        }
        Scope::Namespaces(namespaces)
    }

    fn concerns(&self, edge: &ObservedEdge) -> bool {
        let is_in = |end: &Endpoint| match (end.kind, self, &end.namespace) {
            (EndpointKind::Pod, Scope::Everywhere, _) => true,
            (EndpointKind::Pod, Scope::Namespaces(namespaces), Some(namespace)) => namespaces.contains(namespace),
            (EndpointKind::Pod, Scope::Namespaces(_), None) | (EndpointKind::UnknownPod, ..) => true,
            (
                EndpointKind::Node | EndpointKind::KubeApiserver | EndpointKind::RemoteCluster | EndpointKind::World,
                ..,
            ) => false,
        };
        is_in(&edge.source) || is_in(&edge.destination)
    }
}

fn findings(changes: &PolicyChanges, after: &ClusterState) -> Vec<PolicyFinding> {
    let is_about = |kind: Kind, object: &ObjectName| {
        changes.set.keys().any(|PolicyId { kind: changed, name }| *changed == kind && name == object)
    };
    let found = check(after).into_iter().filter(|found| is_about(found.kind, &found.object));
    found.map(|found| PolicyFinding { severity: found.severity.to_string(), message: found.to_string() }).collect()
}

impl EdgeName {
    pub fn of(edge: &ObservedEdge) -> EdgeName {
        EdgeName {
            source: edge.source.clone(),
            destination: edge.destination.clone(),
            protocol: edge.protocol,
            port: edge.port,
            connections: edge.connections,
            last: edge.last,
        }
    }
}

impl WhatIf {
    /// Whether flows of an observed edge would be denied that pass now.
    pub fn denies(&self) -> bool {
        self.changed.iter().any(|changed| changed.effect == Effect::NewlyDenied)
    }

    /// Whether a policy to delete does not exist.
    pub fn misses_policy(&self) -> bool {
        self.policies.iter().any(|policy| policy.action == PolicyOutcome::NotFound)
    }

    /// Whether a policy is partly invalid.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|found| found.severity == Severity::Error.to_string())
    }
}
