//! Observed edges compared with declared ones (docs/declared-edges.md): which observed edges are declared, and
//! which declared edges were not observed.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use flow::{Endpoint, EndpointKind};
use policy::remote::RemoteSet;
use policy::{
    Block, ClusterState, DeclaredLine, DeclaredLines, Direction, EdgeEnd, FlowPorts, ObjectName, PortSpan, Traffic,
    Withheld,
};
use serde::Serialize;

use crate::edge_ledger::{EdgeLedger, LedgerEdge};
use crate::observed::ObservedEdge;
use crate::sample::traffic_of;

/// Declaration of a flow by the policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "declaration")]
pub enum Declaration {
    /// Rules of both sides allow it. `partial`: they allow it for some pairs of pods.
    Declared { partial: bool },
    /// Policies isolate an end, and no rule allows it.
    Undeclared,
    /// No policy isolates an end: it passes without a declaration.
    NotGoverned,
    /// Not known: the declared edges are withheld, the edge does not say enough about its ends or ports, or a rule
    /// accepts it to domain names whose addresses are not known.
    Unknown,
}

/// Declared edges, indexed by their ends.
#[derive(Debug, Default)]
pub struct DeclaredEdges {
    lines: DeclaredLines,
    withheld: Option<Withheld>,
    pairs: HashMap<(EdgeEnd, EdgeEnd), DeclaredPorts>,
    /// Blocks by workload and the direction that the workload judges.
    blocks: HashMap<(ObjectName, Direction), Vec<(Block, DeclaredPorts)>>,
    /// Of domain names, by the workload that reaches their addresses.
    names: HashMap<ObjectName, DeclaredPorts>,
    governed: HashSet<(ObjectName, Direction)>,
    governing: HashMap<(ObjectName, Direction), BTreeSet<ObjectName>>,
}

/// Ports for all pairs of pods, and for some.
#[derive(Debug, Clone)]
struct DeclaredPorts {
    all: FlowPorts,
    some: FlowPorts,
}

/// One end of an edge, as declared edges name it.
enum Party<'a> {
    Workload(ObjectName),
    /// The set that the records name, and its observed addresses.
    Remote(RemoteSet, &'a BTreeSet<IpAddr>),
    /// Addresses that no pod of this cluster has.
    Outside(&'a BTreeSet<IpAddr>),
    Unknown,
}

/// A declared edge of which no flow was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnseenEdge {
    pub source: DeclaredEnd,
    pub destination: DeclaredEnd,
    /// The ports of which none was seen.
    pub ports: FlowPorts,
    pub partial: bool,
}

/// One end of a declared edge.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeclaredEnd {
    /// Every workload.
    Any,
    Workload(ObjectName),
    Remote(Arc<RemoteSet>),
    Block(Block),
}

impl Declaration {
    /// Whether the edge is declared; `None` if that is unknown.
    pub fn is_declared(self) -> Option<bool> {
        match self {
            Declaration::Declared { .. } => Some(true),
            Declaration::Undeclared | Declaration::NotGoverned => Some(false),
            Declaration::Unknown => None,
        }
    }
}

impl Default for DeclaredPorts {
    fn default() -> DeclaredPorts {
        DeclaredPorts { all: FlowPorts::none(), some: FlowPorts::none() }
    }
}

impl DeclaredPorts {
    fn add(&mut self, ports: &FlowPorts, partial: bool) {
        let sum = if partial { &mut self.some } else { &mut self.all };
        *sum = sum.union(ports);
    }

    fn declare(&self, traffic: Traffic) -> Option<bool> {
        match (self.all.holds(traffic), self.some.holds(traffic)) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => None,
        }
    }
}

impl DeclaredEdges {
    pub fn new(lines: DeclaredLines, withheld: Option<Withheld>) -> DeclaredEdges {
        let mut edges = DeclaredEdges { withheld, ..DeclaredEdges::default() };
        for line in lines.iter() {
            edges.index(line);
        }
        edges.lines = lines;
        edges
    }

    fn index(&mut self, line: DeclaredLine) {
        let mut block_of = |workload, direction, block, ports: FlowPorts, partial| {
            let mut declared = DeclaredPorts::default();
            declared.add(&ports, partial);
            self.blocks.entry((workload, direction)).or_default().push((block, declared));
        };
        match line {
            DeclaredLine::Edge { source, destination, ports, partial } => {
                self.pairs.entry((source, destination)).or_default().add(&ports, partial);
            }
            DeclaredLine::IngressGoverned(workload) => {
                self.governed.insert((workload, Direction::Ingress));
            }
            DeclaredLine::EgressGoverned(workload) => {
                self.governed.insert((workload, Direction::Egress));
            }
            DeclaredLine::Governs { policy, direction, workload } => {
                self.governing.entry((workload, direction)).or_default().insert(policy);
            }
            DeclaredLine::ClusterGoverns { tier: _, policy, direction, workload } => {
                let policy = ObjectName { namespace: "".into(), name: policy };
                self.governing.entry((workload, direction)).or_default().insert(policy);
            }
            // The edge itself has a line.
            DeclaredLine::Rule { .. } => {}
            DeclaredLine::FromBlock { block, destination, ports, partial } => {
                block_of(destination, Direction::Ingress, block, ports, partial);
            }
            DeclaredLine::ToBlock { source, block, ports, partial } => {
                block_of(source, Direction::Egress, block, ports, partial);
            }
            DeclaredLine::ToName { source, name: _, ports, partial } => {
                self.names.entry(source).or_default().add(&ports, partial)
            }
        }
    }

    /// Why nothing is known of declared edges.
    pub fn withheld(&self) -> Option<Withheld> {
        self.withheld
    }

    /// The policies that isolate pods of a workload, and the ClusterNetworkPolicies with rules for them, which have no
    /// namespace.
    pub fn governing(&self, workload: &ObjectName, direction: Direction) -> impl Iterator<Item = &ObjectName> {
        self.governing.get(&(workload.clone(), direction)).into_iter().flatten()
    }

    fn is_governed(&self, workload: &ObjectName, direction: Direction) -> bool {
        self.governed.contains(&(workload.clone(), direction))
    }

    /// The declaration of flows between pods of two workloads.
    pub fn between(&self, source: &ObjectName, destination: &ObjectName, traffic: Traffic) -> Declaration {
        if self.withheld.is_some() {
            return Declaration::Unknown;
        }
        if !self.is_governed(source, Direction::Egress) && !self.is_governed(destination, Direction::Ingress) {
            return Declaration::NotGoverned;
        }
        let ends = |end: &ObjectName| [EdgeEnd::Workload(end.clone()), EdgeEnd::Any];
        let pairs = ends(source).into_iter().flat_map(|source| ends(destination).map(|end| (source.clone(), end)));
        best(pairs.filter_map(|pair| self.pairs.get(&pair)?.declare(traffic)))
    }

    /// The declaration of an observed edge. `state` has the remote sets that the declared edges were derived with.
    pub fn declaration(&self, edge: &ObservedEdge, state: &ClusterState) -> Declaration {
        if self.withheld.is_some() {
            return Declaration::Unknown;
        }
        let source = Party::of(&edge.source, &edge.sources.addresses);
        let destination = Party::of(&edge.destination, &edge.destinations.addresses);
        let traffic = traffic_of(edge);
        let (workload, direction, other) = match (&source, &destination) {
            (Party::Workload(source), Party::Workload(destination)) => {
                return match traffic {
                    Some(traffic) => self.between(source, destination, traffic),
                    None => match self.between(source, destination, Traffic::Portless) {
                        Declaration::Undeclared => Declaration::Unknown,
                        known => known,
                    },
                };
            }
            (Party::Workload(source), other) => (source, Direction::Egress, other),
            (other, Party::Workload(destination)) => (destination, Direction::Ingress, other),
            (_, _) => return Declaration::NotGoverned,
        };
        if !self.is_governed(workload, direction) {
            return Declaration::NotGoverned;
        }
        let Some(traffic) = traffic else { return Declaration::Unknown };
        match other {
            Party::Outside(addresses) if !addresses.is_empty() => {
                self.with_outside(workload, direction, addresses, traffic)
            }
            Party::Remote(set, addresses) => self.with_remote((workload, direction), (set, addresses), traffic, state),
            Party::Workload(_) | Party::Outside(_) | Party::Unknown => Declaration::Unknown,
        }
    }

    /// Declared if, for each address, a line about one of its sets or a block declares it. Without the set in the
    /// state, the lines of the set may be missing.
    fn with_remote(
        &self,
        (workload, direction): (&ObjectName, Direction),
        (set, addresses): (&RemoteSet, &BTreeSet<IpAddr>),
        traffic: Traffic,
        state: &ClusterState,
    ) -> Declaration {
        let of_sets = |sets: BTreeSet<&RemoteSet>| {
            let pairs = sets.into_iter().filter_map(|set| {
                let (own, remote) = (EdgeEnd::Workload(workload.clone()), EdgeEnd::Remote(Arc::new(set.clone())));
                self.pairs.get(&match direction {
                    Direction::Egress => (own, remote),
                    Direction::Ingress => (remote, own),
                })
            });
            best(pairs.filter_map(|ports| ports.declare(traffic)))
        };
        let of_address = |address: &IpAddr| {
            let by_block = self.with_outside(workload, direction, &BTreeSet::from([*address]), traffic);
            stronger(of_sets(sets_of(set, *address, state)), by_block)
        };
        let declaration = match addresses.is_empty() {
            true => of_sets([set].into()),
            false => addresses.iter().map(of_address).fold(Declaration::Declared { partial: false }, weaker),
        };
        let is_known = state.remote_addresses_of(set).is_some_and(|mut addresses| addresses.next().is_some());
        match declaration {
            Declaration::Undeclared if !is_known => Declaration::Unknown,
            known => known,
        }
    }

    /// Declared if a block declares each address. Nodes alone know the addresses of domain names, so a port that a rule
    /// accepts to names may be declared at any other address.
    fn with_outside(
        &self,
        workload: &ObjectName,
        direction: Direction,
        addresses: &BTreeSet<IpAddr>,
        traffic: Traffic,
    ) -> Declaration {
        let blocks = self.blocks.get(&(workload.clone(), direction)).map_or(&[][..], Vec::as_slice);
        let mut is_partial = false;
        for address in addresses {
            let holding = blocks.iter().filter(|(block, _)| holds(block, *address));
            match best(holding.filter_map(|(_, ports)| ports.declare(traffic))) {
                Declaration::Declared { partial } => is_partial |= partial,
                Declaration::Undeclared if self.may_have_name(workload, direction, traffic) => {
                    return Declaration::Unknown;
                }
                other => return other,
            }
        }
        Declaration::Declared { partial: is_partial }
    }

    fn may_have_name(&self, workload: &ObjectName, direction: Direction, traffic: Traffic) -> bool {
        let to_names = self.names.get(workload).is_some_and(|ports| ports.declare(traffic).is_some());
        direction == Direction::Egress && to_names
    }

    /// Declared edges of which the ledger has no flow, ordered by their ends; empty if they are withheld. A range of
    /// ports is seen as soon as one of its ports is.
    pub fn unseen(&self, ledger: &EdgeLedger, state: &ClusterState) -> Vec<UnseenEdge> {
        if self.withheld.is_some() {
            return Vec::new();
        }
        let seen = SeenEdges::of(ledger, state);
        let mut unseen: Vec<UnseenEdge> = self.lines.iter().filter_map(|line| seen.rest(line)).collect();
        unseen.sort_by(|a, b| (&a.source, &a.destination, &a.ports).cmp(&(&b.source, &b.destination, &b.ports)));
        unseen
    }
}

/// Whether an observed edge is a violation: policies isolate an end and do not declare it, or its last flow was denied,
/// or would be.
pub fn is_violation(edge: &LedgerEdge, declaration: Declaration) -> bool {
    let was_denied_last = edge.last_denied.is_some_and(|denied| denied >= edge.observed.last);
    was_denied_last || (declaration == Declaration::Undeclared && !edge.exempt)
}

/// The strongest of the lines that declare a flow.
fn best(declaring: impl Iterator<Item = bool>) -> Declaration {
    declaring.min().map_or(Declaration::Undeclared, |partial| Declaration::Declared { partial })
}

/// The declaration of a flow that either of two lines may declare.
fn stronger(one: Declaration, other: Declaration) -> Declaration {
    best([one, other].into_iter().filter_map(|declaration| match declaration {
        Declaration::Declared { partial } => Some(partial),
        Declaration::Undeclared | Declaration::NotGoverned | Declaration::Unknown => None,
    }))
}

/// The declaration of two flows together.
fn weaker(one: Declaration, other: Declaration) -> Declaration {
    match (one, other) {
        (Declaration::Declared { partial: one }, Declaration::Declared { partial: other }) => {
            Declaration::Declared { partial: one || other }
        }
        (Declaration::Declared { .. }, denied) | (denied, _) => denied,
    }
}

/// All sets of an address, of which records name one; only the named one if the address has left it.
fn sets_of<'a>(named: &'a RemoteSet, address: IpAddr, state: &'a ClusterState) -> BTreeSet<&'a RemoteSet> {
    let sets: BTreeSet<&RemoteSet> = state.remote_sets_with(address).collect();
    if sets.contains(named) { sets } else { [named].into() }
}

fn holds(block: &Block, address: IpAddr) -> bool {
    block.cidr.contains(&address) && !block.except.iter().any(|except| except.contains(&address))
}

impl Party<'_> {
    fn of<'a>(end: &Endpoint, addresses: &'a BTreeSet<IpAddr>) -> Party<'a> {
        match (end.kind, &end.namespace, &end.name, &end.cluster) {
            (EndpointKind::Pod, Some(namespace), Some(name), _) => {
                Party::Workload(ObjectName { namespace: namespace.clone(), name: name.clone() })
            }
            (EndpointKind::RemoteCluster, Some(namespace), Some(name), Some(cluster)) => {
                Party::Remote(RemoteSet::new(cluster, namespace, name), addresses)
            }
            (EndpointKind::Node | EndpointKind::KubeApiserver | EndpointKind::World, _, _, _) => {
                Party::Outside(addresses)
            }
            (EndpointKind::Pod | EndpointKind::RemoteCluster | EndpointKind::UnknownPod, _, _, _) => Party::Unknown,
        }
    }
}

/// An address outside, and traffic with it; `None` if it sums up many ports.
type OutsideTraffic = (IpAddr, Option<Traffic>);

/// Observed traffic, by the ends that declared edges name.
#[derive(Default)]
struct SeenEdges {
    pairs: HashMap<(EdgeEnd, EdgeEnd), BTreeSet<Option<Traffic>>>,
    /// Traffic of workloads with addresses outside, by the direction that the workload judges.
    outside: BTreeMap<(ObjectName, Direction), Vec<OutsideTraffic>>,
}

impl SeenEdges {
    fn of(ledger: &EdgeLedger, state: &ClusterState) -> SeenEdges {
        let mut seen = SeenEdges::default();
        for LedgerEdge { observed: edge, .. } in ledger.edges() {
            let traffic = traffic_of(edge);
            let source = Party::of(&edge.source, &edge.sources.addresses);
            let destination = Party::of(&edge.destination, &edge.destinations.addresses);
            let outside = match (&source, &destination) {
                (Party::Workload(workload), Party::Outside(addresses) | Party::Remote(_, addresses)) => {
                    Some((workload, Direction::Egress, addresses))
                }
                (Party::Outside(addresses) | Party::Remote(_, addresses), Party::Workload(workload)) => {
                    Some((workload, Direction::Ingress, addresses))
                }
                (_, _) => None,
            };
            if let Some((workload, direction, addresses)) = outside {
                seen.add_outside(workload, direction, addresses, traffic);
            }
            let destinations = destination.ends(state);
            for source in source.ends(state) {
                for destination in &destinations {
                    seen.pairs.entry((source.clone(), destination.clone())).or_default().insert(traffic);
                }
            }
        }
        seen
    }

    fn add_outside(
        &mut self,
        workload: &ObjectName,
        direction: Direction,
        addresses: &BTreeSet<IpAddr>,
        traffic: Option<Traffic>,
    ) {
        let seen = self.outside.entry((workload.clone(), direction)).or_default();
        seen.extend(addresses.iter().map(|address| (*address, traffic)));
    }

    /// The part of a declared edge that was not seen.
    fn rest(&self, line: DeclaredLine) -> Option<UnseenEdge> {
        let named = |end: EdgeEnd| match end {
            EdgeEnd::Any => DeclaredEnd::Any,
            EdgeEnd::Workload(name) => DeclaredEnd::Workload(name),
            EdgeEnd::Remote(set) => DeclaredEnd::Remote(set),
        };
        let (source, destination, ports, partial, seen) = match line {
            DeclaredLine::Edge { source, destination, ports, partial } => {
                let key = (source, destination);
                let seen: BTreeSet<Option<Traffic>> = self.pairs.get(&key).cloned().unwrap_or_default();
                (named(key.0), named(key.1), ports, partial, seen)
            }
            DeclaredLine::FromBlock { block, destination, ports, partial } => {
                let seen = self.with_block(&destination, Direction::Ingress, &block);
                (DeclaredEnd::Block(block), DeclaredEnd::Workload(destination), ports, partial, seen)
            }
            DeclaredLine::ToBlock { source, block, ports, partial } => {
                let seen = self.with_block(&source, Direction::Egress, &block);
                (DeclaredEnd::Workload(source), DeclaredEnd::Block(block), ports, partial, seen)
            }
            DeclaredLine::IngressGoverned(_)
            | DeclaredLine::EgressGoverned(_)
            | DeclaredLine::Governs { .. }
            | DeclaredLine::ClusterGoverns { .. }
            | DeclaredLine::Rule { .. }
            // Which flows are to addresses of the name is not known.
            | DeclaredLine::ToName { .. } => return None,
        };
        let ports = unseen_ports(&ports, &seen);
        (!ports.is_none()).then_some(UnseenEdge { source, destination, ports, partial })
    }

    fn with_block(&self, workload: &ObjectName, direction: Direction, block: &Block) -> BTreeSet<Option<Traffic>> {
        let seen = self.outside.get(&(workload.clone(), direction));
        let within = seen.into_iter().flatten().filter(|(address, _)| holds(block, *address));
        within.map(|(_, traffic)| *traffic).collect()
    }
}

impl Party<'_> {
    /// The ends of declared edges that this party is.
    fn ends(&self, state: &ClusterState) -> BTreeSet<EdgeEnd> {
        match self {
            Party::Workload(name) => [EdgeEnd::Workload(name.clone()), EdgeEnd::Any].into(),
            Party::Remote(set, addresses) => {
                let others = addresses.iter().flat_map(|address| sets_of(set, *address, state));
                others.chain([set]).map(|set| EdgeEnd::Remote(Arc::new(set.clone()))).collect()
            }
            Party::Outside(_) | Party::Unknown => BTreeSet::new(),
        }
    }
}

/// The spans of which no port was seen. Flows that sum up many ports are not known to be of any span.
fn unseen_ports(ports: &FlowPorts, seen: &BTreeSet<Option<Traffic>>) -> FlowPorts {
    let Some(spans) = ports.spans() else {
        return if seen.is_empty() { ports.clone() } else { FlowPorts::none() };
    };
    let is_seen = |span: &&PortSpan| {
        let one = FlowPorts::of([**span]);
        seen.iter().flatten().any(|traffic| one.holds(*traffic))
    };
    FlowPorts::of(spans.iter().filter(|span| !is_seen(span)).copied())
}

#[cfg(test)]
mod tests;
