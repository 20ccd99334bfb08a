//! Suggests policies that allow the observed flows, and no others but for stated widenings.
//!
//! A policy is written for a unit: the pods of a workload, or of workloads that labels do not distinguish. A flow
//! that no policy can allow without allowing more becomes a note.

mod blocks;
mod document;
mod units;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use flow::{EndSample, Endpoint, EndpointKind};
use policy::remote::RemoteSet;
use policy::{ClusterState, Direction, Pod, Protocol, Traffic};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::difference::line_difference;
use crate::existing_policies::existing_policy;
use crate::{EdgeName, ObservedEdge, WorkloadIndex, traffic_of};
use units::{NoUnit, Unit, Units, units_in};

/// Ports between two ends that are listed in a rule. More are a scan, or a protocol that needs a range, which a person
/// has to choose.
const MOST_PORTS: usize = 32;

const DNS_PORT: u16 = 53;

/// Namespaces for which nothing is suggested unless they are named: a policy that isolates DNS or the network's own pods
/// can stop the cluster.
pub const EXCLUDED_NAMESPACES: [&str; 1] = ["kube-system"];

/// Workloads and directions to suggest policies for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuggestionScope {
    pub namespaces: NamespaceChoice,
    /// Directions in which policies isolate, if something was seen.
    pub directions: BTreeSet<Direction>,
    /// Adds the annotation for audit.
    pub audit: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamespaceChoice {
    Named(BTreeSet<String>),
    AllBut(BTreeSet<String>),
}

impl SuggestionScope {
    /// The named namespaces that neither exist nor have a pod or an observed edge: most likely typing errors.
    fn unknown_namespaces(&self, state: &ClusterState, edges: &[ObservedEdge]) -> Vec<String> {
        let NamespaceChoice::Named(names) = &self.namespaces else { return Vec::new() };
        let is_observed = |name: &str| {
            let ends = edges.iter().flat_map(|edge| [&edge.source, &edge.destination]);
            ends.into_iter().any(|end| end.namespace.as_deref() == Some(name))
        };
        let is_known =
            |name: &str| state.namespace(name).is_some() || state.pods_in(name).next().is_some() || is_observed(name);
        names.iter().filter(|name| !is_known(name)).cloned().collect()
    }
}

/// Suggested policies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Suggestions {
    /// By namespace and name.
    pub policies: Vec<SuggestedPolicy>,
    /// Edges for which there is no rule.
    pub without_rule: Vec<EdgeWithoutRule>,
    /// Further remarks for the reader.
    pub notes: Vec<String>,
    /// Observed edges of pods in the scope.
    pub edges: u64,
    /// Those of them whose flows were all denied, which get no rule.
    pub denied: u64,
    /// Named namespaces that do not exist and of which nothing was seen.
    #[serde(default)]
    pub unknown_namespaces: Vec<String>,
}

/// An edge that a suggested policy does not allow, on the side of one of its ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeWithoutRule {
    #[serde(flatten)]
    pub edge: EdgeName,
    pub direction: Direction,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuggestedPolicy {
    pub namespace: String,
    pub name: String,
    /// Workloads that it selects.
    pub workloads: Vec<String>,
    /// By how much rules are wider than the observed addresses, and what they depend on.
    pub comments: Vec<String>,
    /// The NetworkPolicy.
    pub policy: Value,
    /// The policy as YAML with its comments, for kubectl.
    pub yaml: String,
    /// Name of the existing policy that the difference starts from: the one of the same name or, if there is none, the only
    /// one that selects these pods.
    pub existing: Option<String>,
    /// The difference from the existing policy as lines, each with `+`, `-` or a space in front.
    pub diff: String,
}

/// The peer in a rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum SeenPeer {
    Unit(Rc<Unit>),
    Remote(RemoteSet),
}

type Port = (Protocol, u16);

/// Peers and ports that a unit was seen with in one direction.
#[derive(Debug, Default)]
struct Allowances {
    peers: BTreeMap<SeenPeer, BTreeSet<Port>>,
    /// Addresses that are not pods'.
    outside: BTreeMap<Port, BTreeSet<IpAddr>>,
    comments: BTreeSet<String>,
}

type ByUnit = BTreeMap<Rc<Unit>, BTreeMap<Direction, Allowances>>;

/// Suggests policies for the units of the scope from the flows that passed. Flows that were denied get no rule.
pub fn suggest(state: &ClusterState, scope: &SuggestionScope, edges: &[ObservedEdge]) -> Suggestions {
    let directory = WorkloadIndex::of(state);
    let mut collector = Collector {
        units: Units::of(&directory),
        state,
        found: ByUnit::new(),
        without_rule: vec![],
        notes: BTreeSet::new(),
    };
    let mut suggestions =
        Suggestions { unknown_namespaces: scope.unknown_namespaces(state, edges), ..Suggestions::default() };
    for edge in edges {
        let concerned: Vec<Direction> =
            scope.directions.iter().copied().filter(|direction| scope.holds(local_end(edge, *direction))).collect();
        if concerned.is_empty() {
            continue;
        }
        suggestions.edges += 1;
        if !edge.has_passed() {
            suggestions.denied += 1;
            continue;
        }
        concerned.into_iter().for_each(|direction| collector.add(edge, direction));
    }
    let others = inner_addresses(state);
    let Collector { units: _, state: _, found, without_rule, notes } = collector;
    for (unit, directions) in found {
        let prefix = state.remote_prefixes().next();
        let (policy, comments) = document::policy(&unit, &directions, (&others, prefix), scope.audit);
        suggestions.policies.push(suggested(state, &unit, policy, comments));
    }
    suggestions.policies.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
    suggestions.without_rule = without_rule;
    suggestions.notes = notes.into_iter().collect();
    suggestions
}

fn suggested(state: &ClusterState, unit: &Unit, policy: Value, comments: Vec<String>) -> SuggestedPolicy {
    let name = document::name_of(unit);
    let pods: Vec<&Arc<Pod>> = state.pods_in(&unit.namespace).filter(|pod| unit.selects(pod)).collect();
    let existing = existing_policy(state, &unit.namespace, &name, &pods);
    let text = to_yaml(&policy);
    let old = existing.as_ref().map(|(_, value)| to_yaml(value)).unwrap_or_default();
    let comment_lines: String = comments.iter().map(|comment| format!("# {comment}\n")).collect();
    SuggestedPolicy {
        namespace: unit.namespace.to_string(),
        name,
        workloads: unit.workloads.iter().map(|name| name.to_string()).collect(),
        comments,
        diff: line_difference(&old, &text),
        yaml: comment_lines + &text,
        existing: existing.map(|(name, _)| name),
        policy,
    }
}

fn to_yaml(value: &Value) -> String {
    serde_saphyr::to_string(value).expect("JSON values can be written as YAML")
}

/// The unit of each workload of a namespace, by name: pods that suggestions select together. `None` for workloads that
/// no policy can select.
pub fn units(state: &ClusterState, namespace: &str) -> BTreeMap<Arc<str>, Option<String>> {
    let found = units_in(&WorkloadIndex::of(state), &namespace.into());
    found.into_iter().map(|(workload, unit)| (workload, unit.map(|unit| unit.name.clone()))).collect()
}

/// Addresses of pods and nodes, which a block for addresses outside must not contain.
fn inner_addresses(state: &ClusterState) -> BTreeSet<IpAddr> {
    let pods = state.pods().flat_map(|pod| pod.addresses.iter());
    let nodes = state.nodes().flat_map(|node| node.addresses.iter());
    pods.chain(nodes).collect()
}

fn local_end(edge: &ObservedEdge, direction: Direction) -> &Endpoint {
    match direction {
        Direction::Egress => &edge.source,
        Direction::Ingress => &edge.destination,
    }
}

impl SuggestionScope {
    fn holds(&self, end: &Endpoint) -> bool {
        let Some(namespace) = end.namespace.as_deref().filter(|_| end.kind == EndpointKind::Pod) else { return false };
        match &self.namespaces {
            NamespaceChoice::Named(names) => names.contains(namespace),
            NamespaceChoice::AllBut(names) => !names.contains(namespace),
        }
    }
}

struct Collector<'a> {
    units: Units<'a>,
    state: &'a ClusterState,
    found: ByUnit,
    without_rule: Vec<EdgeWithoutRule>,
    notes: BTreeSet<String>,
}

impl Collector<'_> {
    fn add(&mut self, edge: &ObservedEdge, direction: Direction) {
        if let Err(reason) = self.try_add(edge, direction) {
            self.without_rule.push(EdgeWithoutRule { edge: EdgeName::of(edge), direction, reason });
        }
    }

    /// # Errors
    /// Why there is no rule for the edge.
    fn try_add(&mut self, edge: &ObservedEdge, direction: Direction) -> Result<(), String> {
        let (local, peer, local_sample, peer_sample) = match direction {
            Direction::Egress => (&edge.source, &edge.destination, &edge.sources, &edge.destinations),
            Direction::Ingress => (&edge.destination, &edge.source, &edge.destinations, &edge.sources),
        };
        if is_own_node(peer, local_sample) {
            let notes = "traffic between pods and their own node, such as the kubelet's probes, is always allowed and needs no rule";
            self.notes.insert(notes.into());
            return Ok(());
        }
        let unit = self.units.find(local).map_err(|reason| reason.describe("the workload"))?;
        let port = match traffic_of(edge) {
            Some(Traffic::Port(_, 0)) => return Err("no rule can name port 0".into()),
            Some(Traffic::Port(protocol, port)) => (protocol, port),
            Some(Traffic::Portless) => {
                return Err("only a rule without ports allows it, and that rule would allow every port".into());
            }
            None => return Err("its records aggregate many ports; choose a range".into()),
        };
        let mut ports = vec![port];
        let mut comments = Vec::new();
        if direction == Direction::Egress && is_dns(edge) {
            ports = [Protocol::Udp, Protocol::Tcp].map(|protocol| (protocol, port.1)).to_vec();
            comments.push(format!("DNS: port {} of {peer} is allowed over both UDP and TCP", port.1));
        }
        let peer = self.peer(peer, peer_sample)?;
        let allowances = self.found.entry(unit).or_default().entry(direction).or_default();
        match peer {
            PeerAddresses::Peer(seen) => {
                let known = allowances.peers.entry(seen).or_default();
                if known.union(&ports.iter().copied().collect()).count() > MOST_PORTS {
                    return Err(format!("more than {MOST_PORTS} ports between these ends; choose a range"));
                }
                known.extend(ports);
            }
            PeerAddresses::Outside(addresses, comment) => {
                comments.extend(comment);
                for port in ports {
                    allowances.outside.entry(port).or_default().extend(&addresses);
                }
            }
        }
        allowances.comments.extend(comments);
        Ok(())
    }

    fn peer(&self, peer: &Endpoint, sample: &EndSample) -> Result<PeerAddresses, String> {
        match peer.kind {
            EndpointKind::Pod => {
                let unit = self.units.find(peer).map_err(|reason| reason.describe("the peer"))?;
                if self.state.namespace_labels(&unit.namespace).is_none() {
                    return Err("the peer's namespace is not known or invalid".into());
                }
                Ok(PeerAddresses::Peer(SeenPeer::Unit(unit)))
            }
            EndpointKind::UnknownPod => Err("the peer was a pod that is not known".into()),
            EndpointKind::RemoteCluster => {
                let (Some(cluster), Some(namespace), Some(name)) = (&peer.cluster, &peer.namespace, &peer.name) else {
                    return self.outside(sample, None);
                };
                let set = RemoteSet::new(cluster, namespace, name);
                match self.state.remote_addresses_of(&set).is_some() && self.state.remote_prefixes().next().is_some() {
                    true => Ok(PeerAddresses::Peer(SeenPeer::Remote(set))),
                    false => {
                        let peer = policy::plain(&peer.to_string());
                        self.outside(
                            sample,
                            Some(format!("{peer} is named by its addresses, which change with its pods")),
                        )
                    }
                }
            }
            EndpointKind::Node | EndpointKind::KubeApiserver => {
                let peer = policy::plain(&peer.to_string());
                self.outside(
                    sample,
                    Some(format!("{peer} is named by its addresses, which change when it is replaced")),
                )
            }
            EndpointKind::World => self.outside(sample, None),
        }
    }

    fn outside(&self, sample: &EndSample, comment: Option<String>) -> Result<PeerAddresses, String> {
        if sample.truncated {
            return Err("more addresses were seen than records list; choose a range".into());
        }
        let addresses: BTreeSet<IpAddr> = sample
            .addresses
            .iter()
            .map(IpAddr::to_canonical)
            .filter(|address| self.state.holder(*address).is_none())
            .collect();
        match addresses.is_empty() {
            true => Err("its addresses are not known, or belong to pods now".into()),
            false => Ok(PeerAddresses::Outside(addresses, comment)),
        }
    }
}

enum PeerAddresses {
    Peer(SeenPeer),
    /// With a comment for the reader.
    Outside(BTreeSet<IpAddr>, Option<String>),
}

impl NoUnit {
    fn describe(self, end: &str) -> String {
        match self {
            NoUnit::Gone => format!("no pod of {end} exists"),
            NoUnit::Unlabelled => {
                format!("no selector matches only the pods of {end}: they have no stable label in common")
            }
        }
    }
}

/// Whether the peer is the node of all local pods that were seen: policies do not apply between the two.
fn is_own_node(peer: &Endpoint, local: &EndSample) -> bool {
    let is_node = |name: &Arc<str>| local.nodes.len() == 1 && local.nodes.contains(name);
    peer.kind == EndpointKind::Node && peer.name.as_ref().is_some_and(is_node)
}

fn is_dns(edge: &ObservedEdge) -> bool {
    let is_transport = matches!(traffic_of(edge), Some(Traffic::Port(Protocol::Udp | Protocol::Tcp, _)));
    is_transport && (edge.port == Some(DNS_PORT) || edge.services.iter().any(|service| service.port == DNS_PORT))
}

#[cfg(test)]
mod tests;
