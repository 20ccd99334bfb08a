//! Observed edges: the connections between two ends at one port, over all windows in which they were seen.

use std::collections::{BTreeMap, BTreeSet};

use flow::{ClusterRecord, EndSample, Endpoint, FlowKey, FlowVerdict, ServicePort};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// An edge as seen within some time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ObservedEdge {
    pub source: Endpoint,
    pub destination: Endpoint,
    /// IANA number of the protocol.
    pub protocol: u8,
    /// Destination port after destination translation; `None` for protocols without ports, and for records that
    /// aggregate many ports.
    pub port: Option<u16>,
    /// Services that clients connected to; empty if all connected to the destination directly.
    pub services: BTreeSet<ServicePort>,
    /// Verdicts on its connections at the time.
    pub verdicts: BTreeSet<FlowVerdict>,
    /// Connections that began.
    pub connections: u64,
    pub denied_packets: u64,
    pub sources: EndSample,
    pub destinations: EndSample,
    pub first: Timestamp,
    pub last: Timestamp,
}

/// The edges of joined records, in the order of their ends. Packets that were dropped for other reasons than a policy
/// (a forged source, a tunnel) are no edge.
pub fn observe<'a>(records: impl IntoIterator<Item = &'a ClusterRecord>) -> Vec<ObservedEdge> {
    let mut edges = ObservedEdges::default();
    records.into_iter().for_each(|record| edges.add(record));
    edges.into_vec()
}

/// The edge of one record; `None` for packets that were dropped for other reasons than a policy.
pub(crate) fn observed_edge(ClusterRecord { record, .. }: &ClusterRecord) -> Option<ObservedEdge> {
    let FlowKey { source, destination, protocol, port, service, verdict, drop_cause, .. } = &*record.key;
    drop_cause.is_none().then(|| ObservedEdge {
        source: source.clone(),
        destination: destination.clone(),
        protocol: *protocol,
        port: *port,
        services: service.iter().cloned().collect(),
        verdicts: [*verdict].into(),
        connections: record.connections.started,
        denied_packets: record.denied_packets,
        sources: EndSample::clone(&record.sources),
        destinations: EndSample::clone(&record.destinations),
        first: record.first,
        last: record.last,
    })
}

/// Edges that are collected record by record.
#[derive(Debug, Default)]
pub struct ObservedEdges {
    by_key: BTreeMap<EdgeKey, ObservedEdge>,
}

type EdgeKey = (Endpoint, Endpoint, u8, Option<u16>);

impl ObservedEdges {
    pub fn add(&mut self, joined: &ClusterRecord) {
        if let Some(edge) = observed_edge(joined) {
            self.merge(edge);
        }
    }

    /// Adds what was seen of an edge elsewhere or at another time.
    pub fn merge(&mut self, other: ObservedEdge) {
        let key = (other.source.clone(), other.destination.clone(), other.protocol, other.port);
        match self.by_key.get_mut(&key) {
            Some(edge) => edge.merge(other),
            None => {
                self.by_key.insert(key, other);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    pub fn into_vec(self) -> Vec<ObservedEdge> {
        self.by_key.into_values().collect()
    }
}

impl ObservedEdge {
    pub(crate) fn merge(&mut self, other: ObservedEdge) {
        let ObservedEdge {
            source: _,
            destination: _,
            protocol: _,
            port: _,
            services,
            verdicts,
            connections,
            denied_packets,
            sources,
            destinations,
            first,
            last,
        } = other;
        self.services.extend(services);
        self.verdicts.extend(verdicts);
        self.connections = self.connections.saturating_add(connections);
        self.denied_packets = self.denied_packets.saturating_add(denied_packets);
        self.sources.merge(&sources);
        self.destinations.merge(&destinations);
        self.first = self.first.min(first);
        self.last = self.last.max(last);
    }

    /// Whether one of its flows passed.
    pub fn has_passed(&self) -> bool {
        self.verdicts.iter().any(|verdict| match verdict {
            FlowVerdict::Allowed | FlowVerdict::WouldDeny => true,
            FlowVerdict::Denied => false,
        })
    }
}
