//! Joins the reports of both nodes of a connection into one record.
//!
//! Both nodes report the same endpoints and port, because each sees the port after destination translation. Other
//! fields differ: only the client's node knows the Service, each node judges its own side, and a flow may be allowed at
//! one node and denied at the other. If an address was replaced (SNAT), the other node sees a node as the source; such
//! records are not joined.
//!
//! A record names workloads, not connections. If several records of one node match several of the other, they are
//! paired by the rules that both nodes report; ambiguous records are not joined, and their connections are counted
//! once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    Connections, EndSample, Endpoint, FlowKey, FlowRecord, FlowVerdict, PolicyHit, SideTrace, TraceVerdict, Volume,
};

/// Connections of one key in one window, as reported by all nodes together. The JSON form is that of a record with
/// three more fields.
///
/// `record.verdict` is the stricter verdict of both sides; `record.egress` is reported by the source's node and
/// `record.ingress` by the destination's node, if they report. Counts are those of the source's node if it has an
/// agent, and of the destination's node otherwise. `record.node` is the node that reported these counts; the first one
/// if there are several.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterRecord {
    #[serde(flatten)]
    pub record: FlowRecord,
    /// Verdict on the source's node; `None` if it does not report.
    pub source_verdict: Option<FlowVerdict>,
    /// Verdict on the destination's node; `None` if it does not report.
    pub destination_verdict: Option<FlowVerdict>,
    pub seen_by: Arc<SeenBy>,
}

/// Nodes that report the connections of a record. A node with both endpoints is in both sets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SeenBy {
    pub source: BTreeSet<Arc<str>>,
    pub destination: BTreeSet<Arc<str>>,
    /// Nodes that report packets without a side, such as packets with a forged source.
    pub other: BTreeSet<Arc<str>>,
}

/// The side of a flow that a reporting node judges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JudgedSide {
    Source,
    Destination,
    Both,
    Neither,
}

impl JudgedSide {
    pub fn of(key: &FlowKey) -> JudgedSide {
        match (key.egress.enforced_here, key.ingress.enforced_here) {
            (true, false) => JudgedSide::Source,
            (false, true) => JudgedSide::Destination,
            (true, true) => JudgedSide::Both,
            (false, false) => JudgedSide::Neither,
        }
    }
}

/// Fields of a key that are equal on both nodes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Edge<'a> {
    source: &'a Endpoint,
    destination: &'a Endpoint,
    protocol: u8,
    port: Option<u16>,
    icmp_type: Option<u8>,
}

/// Records of one key and side, of one or several nodes.
#[derive(Debug)]
struct KeyReport {
    sum: FlowRecord,
    nodes: BTreeSet<Arc<str>>,
}

/// The reports of one edge.
type Reports<'a> = BTreeMap<&'a FlowKey, KeyReport>;

/// Joins the records of one window. The result is ordered by edge, then by key.
pub fn join<'a>(records: impl IntoIterator<Item = &'a FlowRecord>) -> Vec<ClusterRecord> {
    let mut edges: BTreeMap<Edge<'a>, Reports<'a>> = BTreeMap::new();
    for record in records {
        let key = &*record.key;
        let FlowKey { source, destination, protocol, port, icmp_type, .. } = key;
        let edge = Edge { source, destination, protocol: *protocol, port: *port, icmp_type: *icmp_type };
        let reports = edges.entry(edge).or_default();
        match reports.get_mut(key) {
            Some(report) => report.add(record),
            None => {
                let nodes = [Arc::clone(&record.node)].into();
                reports.insert(key, KeyReport { sum: FlowRecord::clone(record), nodes });
            }
        }
    }
    let others = SourceReports::of(&edges);
    let joined =
        edges.into_iter().map(|(edge, reports)| join_edge(reports.into_values(), &others.of_other_ports(&edge)));
    joined.flatten().collect()
}

/// Source nodes that report connections both with and without a port. Each node sums up the ports of a pair with too
/// many of them; the destination's node sees fewer ports, because connections denied at the source do not reach it.
struct SourceReports<'a> {
    /// Nodes of records without a port, and nodes of records with one.
    nodes: BTreeMap<EndpointPair<'a>, [BTreeSet<Arc<str>>; 2]>,
}

/// Source, destination and protocol.
type EndpointPair<'a> = (&'a Endpoint, &'a Endpoint, u8);

impl<'a> SourceReports<'a> {
    fn of(edges: &BTreeMap<Edge<'a>, Reports<'a>>) -> SourceReports<'a> {
        let mut nodes: BTreeMap<_, [BTreeSet<Arc<str>>; 2]> = BTreeMap::new();
        for (edge, reports) in edges {
            let pair = (edge.source, edge.destination, edge.protocol);
            for (_, report) in reports.iter().filter(|(key, _)| JudgedSide::of(key) == JudgedSide::Source) {
                nodes.entry(pair).or_default()[usize::from(edge.port.is_some())].extend(report.nodes.iter().cloned());
            }
        }
        SourceReports { nodes }
    }

    /// Nodes whose records of other ports may include the connections of this edge: a record without a port covers all
    /// ports.
    fn of_other_ports(&self, edge: &Edge<'_>) -> BTreeSet<Arc<str>> {
        let nodes = self.nodes.get(&(edge.source, edge.destination, edge.protocol));
        nodes.map_or_else(BTreeSet::new, |nodes| nodes[usize::from(edge.port.is_none())].clone())
    }
}

/// Side whose counts are used for connections that both sides report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CountedSide {
    Source,
    Destination,
    /// The sides report different connections.
    Each,
}

/// `of_other_ports`: nodes that may have the connections of this edge in records of other ports.
fn join_edge(reports: impl Iterator<Item = KeyReport>, of_other_ports: &BTreeSet<Arc<str>>) -> Vec<ClusterRecord> {
    let (mut at_source, mut at_destination, mut joined) = (Vec::new(), Vec::new(), Vec::new());
    for report in reports {
        match JudgedSide::of(&report.sum.key) {
            JudgedSide::Source => at_source.push(report),
            JudgedSide::Destination => at_destination.push(report),
            JudgedSide::Both | JudgedSide::Neither => joined.push(report.into_record()),
        }
    }
    let counted = counted(&at_source, &at_destination);
    let pairs = match counted {
        CountedSide::Source | CountedSide::Destination => pair(&at_source, &at_destination),
        CountedSide::Each => vec![None; at_source.len()],
    };
    let paired: BTreeSet<usize> = pairs.iter().flatten().copied().collect();
    for (index, report) in at_destination.iter().enumerate() {
        if !paired.contains(&index) {
            let mut record = report.clone_record();
            let clients = &report.sum.sources;
            let is_counted_elsewhere = at_source.is_empty()
                && !clients.truncated
                && !clients.nodes.is_empty()
                && clients.nodes.is_subset(of_other_ports);
            if counted == CountedSide::Source || is_counted_elsewhere {
                clear_connections(&mut record.record);
            }
            joined.push(record);
        }
    }
    let mut counted_pairs = BTreeSet::new();
    for (source, pair) in at_source.into_iter().zip(pairs) {
        joined.push(match pair {
            Some(index) => {
                let is_first = counted_pairs.insert(index);
                join_pair(source, &at_destination[index], counted, is_first)
            }
            None => {
                let mut record = source.into_record();
                if counted == CountedSide::Destination {
                    clear_connections(&mut record.record);
                }
                record
            }
        });
    }
    joined.sort_by(|a, b| a.record.key.cmp(&b.record.key));
    joined
}

/// Uses the counts of the source's node if it has an agent. If only some nodes of a workload have agents, uses the side
/// that reports more connections, which is exact if all nodes of that side have agents.
fn counted(at_source: &[KeyReport], at_destination: &[KeyReport]) -> CountedSide {
    if at_source.is_empty() {
        return CountedSide::Each;
    }
    let nodes: BTreeSet<&Arc<str>> = at_source.iter().flat_map(|report| &report.nodes).collect();
    let clients = || at_destination.iter().flat_map(|report| &report.sum.sources.nodes);
    let are_all_known = at_destination.iter().all(|report| !report.sum.sources.truncated);
    if are_all_known && clients().all(|node| nodes.contains(node)) {
        return CountedSide::Source;
    }
    if are_all_known && !clients().any(|node| nodes.contains(node)) {
        return CountedSide::Each;
    }
    let seen = |reports: &[KeyReport]| -> u64 {
        // Saturating, since an agent chooses its counts.
        let counts = reports.iter().map(|report| report.sum.connections).flat_map(|connections| {
            let Connections { started: _, ended, live, lost } = connections;
            [ended, live, lost]
        });
        counts.fold(0, u64::saturating_add)
    };
    if seen(at_destination) > seen(at_source) { CountedSide::Destination } else { CountedSide::Source }
}

/// Matches each report of the source with the report of the destination about the same connections.
///
/// First pairs reports with equal rules, then reports with equal verdicts by other rules (a policy change may have
/// reached only one node), then the reports that are left if there is one on each side. Connections denied at the
/// source never reach the destination.
fn pair(at_source: &[KeyReport], at_destination: &[KeyReport]) -> Vec<Option<usize>> {
    let mut pairs: Vec<Option<usize>> = vec![None; at_source.len()];
    let mut taken: BTreeSet<usize> = BTreeSet::new();
    pair_alike(&mut pairs, &mut taken, at_source, at_destination, rules);
    pair_alike(&mut pairs, &mut taken, at_source, at_destination, verdicts);
    let open = |pairs: &[Option<usize>]| -> Vec<usize> {
        let indexes = pairs.iter().zip(at_source).enumerate();
        let is_open =
            |pair: &Option<usize>, source: &KeyReport| pair.is_none() && source.sum.key.verdict != FlowVerdict::Denied;
        indexes.filter(|(_, (pair, source))| is_open(pair, source)).map(|(index, _)| index).collect()
    };
    let left: Vec<usize> = (0..at_destination.len()).filter(|index| !taken.contains(index)).collect();
    if let ([source], [destination]) = (&*open(&pairs), &*left) {
        pairs[*source] = Some(*destination);
    }
    pairs
}

/// Pairs each open report of the source with the first report of the destination that is not taken and has the same
/// criterion. Clients that use different Services have several reports at the source and one at the destination.
fn pair_alike<'a, C: Ord>(
    pairs: &mut [Option<usize>],
    taken: &mut BTreeSet<usize>,
    at_source: &'a [KeyReport],
    at_destination: &'a [KeyReport],
    criterion: impl Fn(&'a FlowKey) -> C,
) {
    // An agent may report thousands of keys of one edge, so that a scan for each would be too slow.
    let mut first: BTreeMap<C, usize> = BTreeMap::new();
    for (index, report) in at_destination.iter().enumerate().filter(|(index, _)| !taken.contains(index)) {
        first.entry(criterion(&report.sum.key)).or_insert(index);
    }
    for (pair, source) in pairs.iter_mut().zip(at_source) {
        if pair.is_none() && source.sum.key.verdict != FlowVerdict::Denied {
            *pair = first.get(&criterion(&source.sum.key)).copied();
        }
    }
    taken.extend(pairs.iter().flatten());
}

type Rules<'a> = [(TraceVerdict, [&'a [PolicyHit]; 3]); 2];

fn rules(key: &FlowKey) -> Rules<'_> {
    [&key.egress, &key.ingress].map(|side| {
        let SideTrace { verdict, enforced_here: _, enforced, pending, passed_by } = side;
        (*verdict, [enforced, pending, passed_by].map(|hits| &**hits))
    })
}

fn verdicts(key: &FlowKey) -> [TraceVerdict; 2] {
    [key.egress.verdict, key.ingress.verdict]
}

/// `is_first`: whether this record also gets the counts that only the destination's node has.
fn join_pair(source: KeyReport, destination: &KeyReport, counted: CountedSide, is_first: bool) -> ClusterRecord {
    let (a, b) = (source.sum, &destination.sum);
    let mut sources = EndSample::clone(&a.sources);
    sources.merge(&b.sources);
    let mut destinations = EndSample::clone(&a.destinations);
    destinations.merge(&b.destinations);
    let is_denied_there = b.key.verdict > a.key.verdict;
    let key = FlowKey {
        service: a.key.service.clone().or_else(|| b.key.service.clone()),
        verdict: a.key.verdict.max(b.key.verdict),
        drop_cause: a.key.drop_cause.clone().or_else(|| b.key.drop_cause.clone()),
        egress: a.key.egress.clone(),
        ingress: b.key.ingress.clone(),
        ..FlowKey::clone(&a.key)
    };
    let (source_verdict, destination_verdict) = (a.key.verdict, b.key.verdict);
    let mut record = FlowRecord {
        key: Arc::new(key),
        sources: Arc::new(sources),
        destinations: Arc::new(destinations),
        denied_packets: match (is_denied_there, is_first) {
            (false, _) => a.denied_packets,
            (true, true) => b.denied_packets,
            (true, false) => 0,
        },
        generation: a.generation.max(b.generation),
        first: a.first.min(b.first),
        last: a.last.max(b.last),
        ..a
    };
    match (counted, is_first) {
        (CountedSide::Destination, true) => {
            record.node = Arc::clone(&b.node);
            record.connections = b.connections;
            record.sent = b.sent;
            record.received = b.received;
            record.unknown_volume = b.unknown_volume;
        }
        (CountedSide::Destination, false) => clear_connections(&mut record),
        (CountedSide::Source | CountedSide::Each, _) => {}
    }
    ClusterRecord {
        record,
        source_verdict: Some(source_verdict),
        destination_verdict: Some(destination_verdict),
        seen_by: Arc::new(SeenBy {
            source: source.nodes,
            destination: destination.nodes.clone(),
            other: BTreeSet::new(),
        }),
    }
}

/// Clears the counts, since another record has the connections.
fn clear_connections(record: &mut FlowRecord) {
    record.connections = Connections::default();
    record.sent = None;
    record.received = None;
    record.unknown_volume = 0;
}

impl KeyReport {
    fn add(&mut self, record: &FlowRecord) {
        let sum = &mut self.sum;
        let FlowRecord {
            window: _,
            node,
            key: _,
            sources,
            destinations,
            connections,
            sent,
            received,
            unknown_volume,
            denied_packets,
            generation,
            first,
            last,
        } = record;
        sum.node = Arc::clone(node).min(Arc::clone(&sum.node));
        Arc::make_mut(&mut sum.sources).merge(sources);
        Arc::make_mut(&mut sum.destinations).merge(destinations);
        sum.connections += *connections;
        add_volume(&mut sum.sent, *sent);
        add_volume(&mut sum.received, *received);
        sum.unknown_volume = sum.unknown_volume.saturating_add(*unknown_volume);
        sum.denied_packets = sum.denied_packets.saturating_add(*denied_packets);
        sum.generation = sum.generation.max(*generation);
        sum.first = sum.first.min(*first);
        sum.last = sum.last.max(*last);
        self.nodes.insert(Arc::clone(node));
    }

    fn clone_record(&self) -> ClusterRecord {
        KeyReport { sum: self.sum.clone(), nodes: self.nodes.clone() }.into_record()
    }

    fn into_record(self) -> ClusterRecord {
        let KeyReport { sum: record, nodes } = self;
        let verdict = Some(record.key.verdict);
        let none = BTreeSet::new;
        let (source_verdict, destination_verdict, seen_by) = match JudgedSide::of(&record.key) {
            JudgedSide::Source => (verdict, None, SeenBy { source: nodes, destination: none(), other: none() }),
            JudgedSide::Destination => (None, verdict, SeenBy { source: none(), destination: nodes, other: none() }),
            JudgedSide::Both => (verdict, verdict, SeenBy { source: nodes.clone(), destination: nodes, other: none() }),
            JudgedSide::Neither => (None, None, SeenBy { source: none(), destination: none(), other: nodes }),
        };
        ClusterRecord { record, source_verdict, destination_verdict, seen_by: Arc::new(seen_by) }
    }
}

fn add_volume(sum: &mut Option<Volume>, more: Option<Volume>) {
    if let Some(more) = more {
        *sum.get_or_insert_default() += more;
    }
}

#[cfg(test)]
mod tests;
