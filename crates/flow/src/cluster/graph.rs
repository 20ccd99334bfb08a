//! Communication graph: one edge for all connections between two endpoints, summed over windows.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ClusterRecord;
use crate::{Endpoint, FlowVerdict, Volume};

/// Default limit of the edges of one response: about 4 MB of JSON.
pub const MOST_GRAPH_EDGES: usize = 10_000;

/// Limit of endpoint pairs aggregated for one response, which bounds the memory if a sender invents names. Further
/// pairs are summed in `other`.
const MOST_PAIRS: usize = 50_000;

/// Limits of the ports that are aggregated and listed per edge. Port scans have more.
const MOST_PORTS: usize = 64;
const LISTED_PORTS: usize = 16;

/// Endpoints and edges of a time range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Graph {
    /// Endpoints of the listed edges, ordered by name.
    pub nodes: Vec<Endpoint>,
    /// Ordered by connections plus denied packets, descending.
    pub edges: Vec<GraphEdge>,
    /// Sum over the edges that are not listed.
    pub other: EdgeTraffic,
    /// Whether there are edges that are not listed.
    pub truncated: bool,
}

/// All flows from one endpoint to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GraphEdge {
    /// Index in `nodes`.
    pub source: usize,
    pub destination: usize,
    #[serde(flatten)]
    pub traffic: EdgeTraffic,
    /// Ordered by connections plus denied packets, descending; at most 16.
    pub ports: Vec<PortTraffic>,
    /// Whether there are ports that are not listed.
    pub ports_truncated: bool,
    pub first: Timestamp,
    pub last: Timestamp,
}

/// Sums over records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EdgeTraffic {
    /// Connections that started.
    pub connections: u64,
    /// `None` if no record has a known volume.
    pub sent: Option<Volume>,
    pub received: Option<Volume>,
    /// Connections without counters; each counts once per window.
    pub unknown_volume: u64,
    pub denied_packets: u64,
    pub verdicts: VerdictCounts,
}

/// Sums by verdict of the flows of an edge.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerdictCounts {
    pub allowed: VerdictCount,
    pub would_deny: VerdictCount,
    pub denied: VerdictCount,
}

/// Flows of one verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerdictCount {
    /// Joined records; one per window.
    pub records: u64,
    pub connections: u64,
    pub denied_packets: u64,
}

/// Flows of an edge to one port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PortTraffic {
    /// IANA number.
    pub protocol: u8,
    pub port: Option<u16>,
    pub connections: u64,
    pub denied_packets: u64,
}

/// Aggregates records into a graph.
#[derive(Debug, Default)]
pub struct GraphBuilder {
    pairs: HashMap<(Endpoint, Endpoint), PairTraffic>,
    other: EdgeTraffic,
    is_truncated: bool,
}

#[derive(Debug)]
struct PairTraffic {
    traffic: EdgeTraffic,
    ports: BTreeMap<(u8, Option<u16>), PortTraffic>,
    is_truncated: bool,
    first: Timestamp,
    last: Timestamp,
}

impl GraphBuilder {
    pub fn new() -> GraphBuilder {
        GraphBuilder::default()
    }

    pub fn add(&mut self, joined: &ClusterRecord) {
        self.add_within(joined, MOST_PAIRS);
    }

    fn add_within(&mut self, joined: &ClusterRecord, most_pairs: usize) {
        let record = &joined.record;
        let key = &record.key;
        let ends = (key.source.clone(), key.destination.clone());
        let is_full = self.pairs.len() >= most_pairs;
        if is_full && !self.pairs.contains_key(&ends) {
            self.other.add(joined);
            self.is_truncated = true;
            return;
        }
        let pair = self.pairs.entry(ends).or_insert_with(|| PairTraffic {
            traffic: EdgeTraffic::default(),
            ports: BTreeMap::new(),
            is_truncated: false,
            first: record.first,
            last: record.last,
        });
        pair.traffic.add(joined);
        pair.first = pair.first.min(record.first);
        pair.last = pair.last.max(record.last);
        let port = (key.protocol, key.port);
        if pair.ports.len() >= MOST_PORTS && !pair.ports.contains_key(&port) {
            pair.is_truncated = true;
            return;
        }
        let (protocol, port) = port;
        let traffic = pair.ports.entry((protocol, port)).or_insert(PortTraffic {
            protocol,
            port,
            connections: 0,
            denied_packets: 0,
        });
        traffic.connections = traffic.connections.saturating_add(record.connections.started);
        traffic.denied_packets = traffic.denied_packets.saturating_add(record.denied_packets);
    }

    /// Returns the graph, limited to a number of edges.
    pub fn finish(self, most_edges: usize) -> Graph {
        let GraphBuilder { pairs, mut other, mut is_truncated } = self;
        let mut pairs: Vec<((Endpoint, Endpoint), PairTraffic)> = pairs.into_iter().collect();
        pairs.sort_by(|(a_ends, a), (b_ends, b)| b.traffic.weight().cmp(&a.traffic.weight()).then(a_ends.cmp(b_ends)));
        let unlisted = pairs.split_off(most_edges.min(pairs.len()));
        is_truncated |= !unlisted.is_empty();
        for (_, pair) in unlisted {
            other.merge(&pair.traffic);
        }
        let mut nodes: BTreeMap<Endpoint, usize> = BTreeMap::new();
        for (source, destination) in pairs.iter().map(|(ends, _)| ends) {
            for end in [source, destination] {
                if !nodes.contains_key(end) {
                    nodes.insert(end.clone(), 0);
                }
            }
        }
        nodes.values_mut().enumerate().for_each(|(index, place)| *place = index);
        let edges = pairs.into_iter().map(|((source, destination), pair)| {
            let PairTraffic { traffic, ports, is_truncated, first, last } = pair;
            let mut ports: Vec<PortTraffic> = ports.into_values().collect();
            ports.sort_by_key(|port| std::cmp::Reverse(port.connections.saturating_add(port.denied_packets)));
            let ports_truncated = is_truncated || ports.len() > LISTED_PORTS;
            ports.truncate(LISTED_PORTS);
            let (source, destination) = (nodes[&source], nodes[&destination]);
            GraphEdge { source, destination, traffic, ports, ports_truncated, first, last }
        });
        let edges = edges.collect();
        Graph { nodes: nodes.into_keys().collect(), edges, other, truncated: is_truncated }
    }
}

impl EdgeTraffic {
    pub(super) fn add(&mut self, joined: &ClusterRecord) {
        let record = &joined.record;
        let count =
            VerdictCount { records: 1, connections: record.connections.started, denied_packets: record.denied_packets };
        let verdicts = VerdictCounts::of(record.key.verdict, &count);
        self.merge(&EdgeTraffic {
            connections: record.connections.started,
            sent: record.sent,
            received: record.received,
            unknown_volume: record.unknown_volume,
            denied_packets: record.denied_packets,
            verdicts,
        });
    }

    fn merge(&mut self, more: &EdgeTraffic) {
        let EdgeTraffic { connections, sent, received, unknown_volume, denied_packets, verdicts } = more;
        self.connections = self.connections.saturating_add(*connections);
        for (sum, more) in [(&mut self.sent, sent), (&mut self.received, received)] {
            if let Some(more) = more {
                *sum.get_or_insert_default() += *more;
            }
        }
        self.unknown_volume = self.unknown_volume.saturating_add(*unknown_volume);
        self.denied_packets = self.denied_packets.saturating_add(*denied_packets);
        self.verdicts.add(verdicts);
    }

    /// Sort key of edges. A denied packet weighs as much as a connection.
    fn weight(&self) -> u64 {
        self.connections.saturating_add(self.denied_packets)
    }
}

impl VerdictCounts {
    /// The count of one verdict, and 0 for the others.
    pub fn of(verdict: FlowVerdict, count: &VerdictCount) -> VerdictCounts {
        let mut counts = VerdictCounts::default();
        *counts.of_mut(verdict) = *count;
        counts
    }

    pub fn add(&mut self, more: &VerdictCounts) {
        let VerdictCounts { allowed, would_deny, denied } = more;
        for (verdict, more) in
            [(FlowVerdict::Allowed, allowed), (FlowVerdict::WouldDeny, would_deny), (FlowVerdict::Denied, denied)]
        {
            let VerdictCount { records, connections, denied_packets } = more;
            let sum = self.of_mut(verdict);
            sum.records = sum.records.saturating_add(*records);
            sum.connections = sum.connections.saturating_add(*connections);
            sum.denied_packets = sum.denied_packets.saturating_add(*denied_packets);
        }
    }

    fn of_mut(&mut self, verdict: FlowVerdict) -> &mut VerdictCount {
        match verdict {
            FlowVerdict::Allowed => &mut self.allowed,
            FlowVerdict::WouldDeny => &mut self.would_deny,
            FlowVerdict::Denied => &mut self.denied,
        }
    }
}

#[cfg(test)]
mod tests;
