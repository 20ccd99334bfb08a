//! Ledger of observed edges: the edges of days, bounded in bytes, and which of them are new.
//!
//! The caller adds every joined record once, and stores the ledger together with the position of what it has added.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use flow::{ClusterRecord, Connections, EndSample, Endpoint, EndpointKind, FlowVerdict, TraceVerdict, VerdictCounts};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::observed::{ObservedEdge, observed_edge};

/// Events that wait for [`EdgeLedger::confirm`]: more at once are a scan, and are counted instead.
pub const MOST_PENDING: usize = 1_000;

/// Events that [`EdgeLedger::recent`] lists.
pub const MOST_RECENT: usize = 500;

/// Members of each end that an event lists.
const EVENT_MEMBERS: usize = 3;

/// Estimated bytes of an edge without its samples and names.
const EDGE_BYTES: usize = 1_024;

/// Estimated overhead of a text in a set.
const TEXT_BYTES: usize = 40;

/// Bounds of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerLimits {
    /// Estimated memory. Beyond it new edges are left out and counted, and the samples of known edges are not extended.
    pub bytes: usize,
    /// Edges that were last seen longer ago are removed.
    pub retention: SignedDuration,
    /// Edges first seen within this time after the start of the ledger are no events.
    pub learning: SignedDuration,
}

/// An edge of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerEdge {
    #[serde(flatten)]
    pub observed: ObservedEdge,
    /// Sums by verdict; `records` are joined records, one per window.
    pub by_verdict: VerdictCounts,
    /// Last record that was denied, or would be.
    pub last_denied: Option<Timestamp>,
    /// Last record that passed; `None` also in the state file of a version that did not write it.
    #[serde(default)]
    pub last_passed: Option<Timestamp>,
    /// Every flow is one that policies do not judge: of a pod with itself, or from the pod's own node.
    pub exempt: bool,
}

/// Event of an edge that was not seen before: its first record, without counts and with the first members of each end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FirstSeen {
    pub joined: ClusterRecord,
}

/// Counters of a ledger; all but the first two are sums since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LedgerCounts {
    pub edges: usize,
    /// Estimated memory.
    pub bytes: usize,
    /// Joined records that were added to an edge.
    pub records: u64,
    pub connections: u64,
    /// Records, connections and packets that no edge has, because the ledger was full.
    pub left_out_records: u64,
    pub left_out_connections: u64,
    /// Records, connections and packets of edges that were removed after the retention.
    pub expired_edges: u64,
    pub expired_connections: u64,
    /// First-seen events that were not raised, because too many waited.
    pub left_out_events: u64,
}

/// Form of a ledger in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SavedLedger {
    since: Timestamp,
    counts: LedgerCounts,
    pending: Vec<FirstSeen>,
    recent: VecDeque<FirstSeen>,
    edges: Vec<LedgerEdge>,
}

/// Observed edges by source, destination, protocol and port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EdgeLedger {
    limits: LedgerLimits,
    since: Timestamp,
    edges: BTreeMap<EdgeKey, LedgerEdge>,
    counts: LedgerCounts,
    pending: Vec<FirstSeen>,
    recent: VecDeque<FirstSeen>,
}

type EdgeKey = (Endpoint, Endpoint, u8, Option<u16>);

impl EdgeLedger {
    /// A ledger that starts at a time, with the learning period.
    pub fn new(limits: LedgerLimits, since: Timestamp) -> EdgeLedger {
        EdgeLedger {
            limits,
            since,
            edges: BTreeMap::new(),
            counts: LedgerCounts::default(),
            pending: Vec::new(),
            recent: VecDeque::new(),
        }
    }

    /// Continues a saved ledger, under other limits if they were changed.
    pub fn restore(saved: SavedLedger, limits: LedgerLimits) -> EdgeLedger {
        let SavedLedger { since, mut counts, pending, recent, edges } = saved;
        counts = LedgerCounts { edges: 0, bytes: edges.iter().map(size_of_edge).sum(), ..counts };
        let edges = edges.into_iter().map(|edge| (key_of(&edge.observed), edge)).collect();
        EdgeLedger { limits, since, edges, counts, pending, recent }
    }

    pub fn save(&self) -> SavedLedger {
        SavedLedger {
            since: self.since,
            counts: self.counts(),
            pending: self.pending.clone(),
            recent: self.recent.clone(),
            edges: self.edges.values().cloned().collect(),
        }
    }

    /// Adds a joined record, or the growth of one that was added before. Must be called once for each. Packets that
    /// were dropped for other reasons than a policy are no edge.
    pub fn add(&mut self, joined: &ClusterRecord) {
        let Some(mut observed) = observed_edge(joined) else { return };
        let record = &joined.record;
        let verdict = record.key.verdict;
        // Identities follow from the labels, and are as long as they.
        observed.sources.identities.clear();
        observed.destinations.identities.clear();
        let added = LedgerEdge {
            by_verdict: VerdictCounts::of(verdict, &observed_count(joined)),
            last_denied: (verdict != FlowVerdict::Allowed).then_some(record.last),
            last_passed: (verdict != FlowVerdict::Denied).then_some(record.last),
            exempt: is_exempt(joined),
            observed,
        };
        let key = key_of(&added.observed);
        if let Some(edge) = self.edges.get_mut(&key) {
            let before = size_of_edge(edge);
            edge.merge(added, self.counts.bytes < self.limits.bytes);
            self.counts.bytes = self.counts.bytes.saturating_sub(before) + size_of_edge(edge);
        } else {
            let size = size_of_edge(&added);
            if self.counts.bytes + size > self.limits.bytes {
                self.counts.left_out_records += 1;
                self.counts.left_out_connections =
                    self.counts.left_out_connections.saturating_add(record.connections.started);
                return;
            }
            if record.first >= self.learned_at() {
                self.raise(FirstSeen::of(joined));
            }
            self.counts.bytes += size;
            self.edges.insert(key, added);
        }
        self.counts.records += 1;
        self.counts.connections = self.counts.connections.saturating_add(record.connections.started);
    }

    fn raise(&mut self, event: FirstSeen) {
        if self.pending.len() < MOST_PENDING {
            self.pending.push(event);
        } else {
            self.counts.left_out_events += 1;
        }
    }

    /// Removes the edges that were last seen before the retention.
    pub fn expire(&mut self, now: Timestamp) {
        let oldest = now.checked_sub(self.limits.retention).unwrap_or(Timestamp::MIN);
        let counts = &mut self.counts;
        self.edges.retain(|_, edge| {
            let is_kept = edge.observed.last >= oldest;
            if !is_kept {
                counts.bytes = counts.bytes.saturating_sub(size_of_edge(edge));
                counts.expired_edges += 1;
                counts.expired_connections = counts.expired_connections.saturating_add(edge.observed.connections);
            }
            is_kept
        });
    }

    /// Start of the ledger. Edges seen earlier and not since are unknown.
    pub fn since(&self) -> Timestamp {
        self.since
    }

    /// End of the learning period.
    pub fn learned_at(&self) -> Timestamp {
        self.since.checked_add(self.limits.learning).unwrap_or(Timestamp::MAX)
    }

    pub fn limits(&self) -> LedgerLimits {
        self.limits
    }

    /// All edges, ordered by source, destination, protocol and port.
    pub fn edges(&self) -> impl ExactSizeIterator<Item = &LedgerEdge> {
        self.edges.values()
    }

    pub fn edge(
        &self,
        source: &Endpoint,
        destination: &Endpoint,
        protocol: u8,
        port: Option<u16>,
    ) -> Option<&LedgerEdge> {
        self.edges.get(&(source.clone(), destination.clone(), protocol, port))
    }

    pub fn counts(&self) -> LedgerCounts {
        LedgerCounts { edges: self.edges.len(), ..self.counts }
    }

    /// Events that are not confirmed, oldest first. The ledger has to be saved before they are raised and after they
    /// are [confirmed](EdgeLedger::confirm): then a crash raises an event again with equal content, and loses none.
    pub fn pending(&self) -> &[FirstSeen] {
        &self.pending
    }

    /// Removes the first events that wait, and lists them as recent.
    pub fn confirm(&mut self, events: usize) {
        let events = events.min(self.pending.len());
        self.recent.extend(self.pending.drain(..events));
        while self.recent.len() > MOST_RECENT {
            self.recent.pop_front();
        }
    }

    /// The last confirmed events, oldest first.
    pub fn recent(&self) -> impl ExactSizeIterator<Item = &FirstSeen> + DoubleEndedIterator {
        self.recent.iter()
    }
}

impl LedgerEdge {
    /// The edge for a comparison with policies, without the verdicts of which every record is older than `since`; `None` if
    /// the whole edge is older. The ledger has one sum and one sample per edge: counts, Services and samples
    /// of ends are those of the whole retention.
    pub fn observed_since(&self, since: Timestamp) -> Option<ObservedEdge> {
        let LedgerEdge { observed, by_verdict: _, last_denied, last_passed, exempt: _ } = self;
        if observed.last < since {
            return None;
        }
        let is_older = |last: &Option<Timestamp>| last.is_some_and(|last| last < since);
        let mut recent = observed.clone();
        recent.verdicts.retain(|verdict| match verdict {
            FlowVerdict::Allowed => !is_older(last_passed),
            FlowVerdict::WouldDeny => !is_older(last_passed) && !is_older(last_denied),
            FlowVerdict::Denied => !is_older(last_denied),
        });
        Some(recent)
    }

    /// Adds records of the same edge; without their samples if there is no room for them.
    fn merge(&mut self, added: LedgerEdge, has_room: bool) {
        let LedgerEdge { mut observed, by_verdict, last_denied, last_passed, exempt } = added;
        let ends = [
            (&mut self.observed.sources, std::mem::take(&mut observed.sources), &self.observed.source),
            (&mut self.observed.destinations, std::mem::take(&mut observed.destinations), &self.observed.destination),
        ];
        for (sample, newest, end) in ends {
            if has_room {
                sample.merge(&newest);
                replace_full(end, sample, newest);
            } else {
                sample.truncated |= *sample != newest;
            }
        }
        self.observed.merge(observed);
        self.by_verdict.add(&by_verdict);
        self.last_denied = self.last_denied.max(last_denied);
        self.last_passed = self.last_passed.max(last_passed);
        self.exempt &= exempt;
    }
}

impl FirstSeen {
    fn of(joined: &ClusterRecord) -> FirstSeen {
        let mut joined = joined.clone();
        let record = &mut joined.record;
        for sample in [&mut record.sources, &mut record.destinations] {
            *sample = Arc::new(first_members(sample));
        }
        record.connections = Connections::default();
        record.sent = None;
        record.received = None;
        record.unknown_volume = 0;
        record.denied_packets = 0;
        FirstSeen { joined }
    }

    /// Time of the first event of the edge.
    pub fn at(&self) -> Timestamp {
        self.joined.record.first
    }
}

/// The first members of a sample: an event names some pods, and no more.
fn first_members(sample: &EndSample) -> EndSample {
    let texts = |set: &BTreeSet<Arc<str>>| set.iter().take(EVENT_MEMBERS).cloned().collect();
    let EndSample { addresses, pods, nodes, labels, identities: _, truncated: _ } = sample;
    let first = EndSample {
        addresses: addresses.iter().take(EVENT_MEMBERS).copied().collect(),
        pods: texts(pods),
        nodes: texts(nodes),
        labels: texts(labels),
        identities: Vec::new(),
        truncated: false,
    };
    EndSample { truncated: first != *sample, ..first }
}

fn key_of(edge: &ObservedEdge) -> EdgeKey {
    (edge.source.clone(), edge.destination.clone(), edge.protocol, edge.port)
}

fn observed_count(joined: &ClusterRecord) -> flow::VerdictCount {
    let record = &joined.record;
    flow::VerdictCount { records: 1, connections: record.connections.started, denied_packets: record.denied_packets }
}

fn is_exempt(joined: &ClusterRecord) -> bool {
    let of = |verdict| matches!(verdict, TraceVerdict::Itself | TraceVerdict::OwnNode);
    of(joined.record.key.ingress.verdict) || of(joined.record.key.egress.verdict)
}

/// Pods are replaced over days: a sample that is full lists those of the last record. Other ends have no such life, and
/// keep the first addresses.
fn replace_full(end: &Endpoint, sample: &mut EndSample, newest: EndSample) {
    if sample.truncated && end.kind == EndpointKind::Pod {
        *sample = EndSample { truncated: true, ..newest };
    }
}

/// Estimated memory of an edge.
fn size_of_edge(edge: &LedgerEdge) -> usize {
    let ObservedEdge { source, destination, sources, destinations, services, .. } = &edge.observed;
    let texts = |set: &BTreeSet<Arc<str>>| set.iter().map(|text| text.len() + TEXT_BYTES).sum::<usize>();
    let sample = |sample: &EndSample| {
        let EndSample { addresses, pods, nodes, labels, identities: _, truncated: _ } = sample;
        addresses.len() * TEXT_BYTES + texts(pods) + texts(nodes) + texts(labels)
    };
    // The names are in the key and in the edge.
    let name = |end: &Endpoint| {
        let Endpoint { kind: _, namespace, name, service, cluster, network: _ } = end;
        [namespace, name, service, cluster].into_iter().flatten().map(|text| text.len() + TEXT_BYTES).sum::<usize>()
    };
    EDGE_BYTES
        + sample(sources)
        + sample(destinations)
        + name(source)
        + name(destination)
        + services.len() * 4 * TEXT_BYTES
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
