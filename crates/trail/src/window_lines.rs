//! Which lines a window adds to the trail.
//!
//! A window is exported when it has settled, and again when records of it arrive late. A line is never taken back, so that
//! late lines carry only the growth: what the joined records count for an edge now, without what the trail already has of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use flow::{ClusterRecord, Connections, Endpoint, FlowKey, FlowRecord, Volume, join};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A joined record as the trail has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrailRecord {
    #[serde(flatten)]
    pub joined: ClusterRecord,
    /// The window had been exported before: the counts are what is new.
    pub late: bool,
    /// Event of an edge that was not seen before. It counts nothing: another line has the connections. Omitted from JSON
    /// if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub first_seen: bool,
}

/// Common key of all records of two ends: the unit in which connections are counted once. Ports are not part of it,
/// since a node sums up those of a scan.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EdgeKey {
    source: Endpoint,
    destination: Endpoint,
    protocol: u8,
}

/// Counts of records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordTotals {
    started: u64,
    ended: u64,
    live: u64,
    lost: u64,
    sent: Volume,
    received: Volume,
    unknown_volume: u64,
    denied_packets: u64,
}

/// Counts of edges in the trail beyond those of the exported records of their windows when joined again. Joining
/// more records may lower a total: connections that were counted on either side turn out to be the same ones. Nearly
/// always empty.
pub(crate) type Excess = BTreeMap<Timestamp, BTreeMap<EdgeKey, RecordTotals>>;

/// Edges of a window of which an excess is kept. Beyond, late connections of an edge that is left out may be counted twice.
pub const MOST_EXCESS: usize = 1_000;

/// Comparisons by which the changed lines of an edge find their predecessors: two thousand lines and as many before, more
/// than honest nodes report of an edge. Beyond, growth goes to the first lines, with the same sums.
const MOST_COMPARISONS: usize = 1 << 22;

impl EdgeKey {
    fn of(record: &FlowRecord) -> EdgeKey {
        let key = &record.key;
        EdgeKey { source: key.source.clone(), destination: key.destination.clone(), protocol: key.protocol }
    }
}

impl RecordTotals {
    /// More than any edge has, of what the sides of a flow both count. Packets that were denied are those of one side.
    const UNKNOWN: RecordTotals = RecordTotals {
        started: u64::MAX,
        ended: u64::MAX,
        live: u64::MAX,
        lost: u64::MAX,
        sent: Volume { packets: u64::MAX, bytes: u64::MAX },
        received: Volume { packets: u64::MAX, bytes: u64::MAX },
        unknown_volume: u64::MAX,
        denied_packets: 0,
    };

    pub fn of(record: &FlowRecord) -> RecordTotals {
        let Connections { started, ended, live, lost } = record.connections;
        RecordTotals {
            started,
            ended,
            live,
            lost,
            sent: record.sent.unwrap_or_default(),
            received: record.received.unwrap_or_default(),
            unknown_volume: record.unknown_volume,
            denied_packets: record.denied_packets,
        }
    }

    fn zip(self, other: RecordTotals, number: fn(u64, u64) -> u64) -> RecordTotals {
        let volume =
            |a: Volume, b: Volume| Volume { packets: number(a.packets, b.packets), bytes: number(a.bytes, b.bytes) };
        RecordTotals {
            started: number(self.started, other.started),
            ended: number(self.ended, other.ended),
            live: number(self.live, other.live),
            lost: number(self.lost, other.lost),
            sent: volume(self.sent, other.sent),
            received: volume(self.received, other.received),
            unknown_volume: number(self.unknown_volume, other.unknown_volume),
            denied_packets: number(self.denied_packets, other.denied_packets),
        }
    }

    #[must_use]
    pub fn plus(self, other: RecordTotals) -> RecordTotals {
        self.zip(other, u64::saturating_add)
    }

    fn minus(self, other: RecordTotals) -> RecordTotals {
        self.zip(other, u64::saturating_sub)
    }

    fn at_most(self, other: RecordTotals) -> RecordTotals {
        self.zip(other, u64::min)
    }

    fn write_to(self, record: &mut FlowRecord) {
        let RecordTotals { started, ended, live, lost, sent, received, unknown_volume, denied_packets } = self;
        record.connections = Connections { started, ended, live, lost };
        // Unknown volumes stay unknown; a volume that the trail already contains is omitted.
        let shown =
            |known: Option<Volume>, volume: Volume| known.filter(|_| volume != Volume::default()).map(|_| volume);
        record.sent = shown(record.sent, sent);
        record.received = shown(record.received, received);
        record.unknown_volume = unknown_volume;
        record.denied_packets = denied_packets;
    }
}

/// A record of a window, and whether the trail has it.
#[derive(Debug, Clone)]
pub struct SettledRecord {
    pub record: FlowRecord,
    pub is_exported: bool,
}

/// State of a window besides its records.
#[derive(Debug, Clone, Default)]
pub struct WindowState {
    /// The trail has passed the window.
    pub is_late: bool,
    /// Nodes whose exported records are not in memory, so that it is not known which connections the trail has.
    pub unknown_nodes: BTreeSet<Arc<str>>,
    /// That of this window.
    pub excess: BTreeMap<EdgeKey, RecordTotals>,
}

/// Lines of a window that the trail does not have yet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewLines {
    pub records: Vec<TrailRecord>,
    /// Lines without connections, since the trail may have them.
    pub uncounted: u64,
}

/// The lines of a window that the trail does not have yet. The excess is brought up to date. The result does not depend on
/// the order of the records.
pub fn new_lines(records: &[SettledRecord], state: &mut WindowState) -> NewLines {
    if records.iter().all(|settled| settled.is_exported) {
        return NewLines::default();
    }
    if state.unknown_nodes.is_empty() {
        return NewLines { records: growth(records, state), uncounted: 0 };
    }
    // It is not known, now or later, which of these connections the trail contains.
    let excess = state.excess.clone();
    let mut lines = growth(records, state);
    state.excess = excess;
    for line in &mut lines {
        let record = &mut line.joined.record;
        let RecordTotals { denied_packets, .. } = RecordTotals::of(record);
        let edge = EdgeKey::of(record);
        RecordTotals { denied_packets, ..RecordTotals::default() }.write_to(record);
        keep_excess(&mut state.excess, &edge, RecordTotals::UNKNOWN);
    }
    NewLines { uncounted: lines.len() as u64, records: lines }
}

fn keep_excess(excess: &mut BTreeMap<EdgeKey, RecordTotals>, edge: &EdgeKey, left: RecordTotals) {
    if left == RecordTotals::default() {
        excess.remove(edge);
    } else if excess.contains_key(edge) || excess.len() < MOST_EXCESS {
        excess.insert(edge.clone(), left);
    }
}

fn growth(records: &[SettledRecord], state: &mut WindowState) -> Vec<TrailRecord> {
    let WindowState { is_late, unknown_nodes: _, excess } = state;
    let is_late = *is_late;
    let now = join_sorted(records.iter().map(|settled| &settled.record));
    if !records.iter().any(|settled| settled.is_exported) {
        return now.into_iter().map(|joined| TrailRecord { joined, late: is_late, first_seen: false }).collect();
    }
    let before = join_sorted(records.iter().filter(|settled| settled.is_exported).map(|settled| &settled.record));
    let (mut edges, mut lines) = (by_edge(now), Vec::new());
    let mut edges_before = by_edge(before);
    for (edge, now) in &mut edges {
        let before = edges_before.remove(edge).unwrap_or_default();
        if *now == before {
            continue;
        }
        lines.extend(grown(std::mem::take(now), before, edge, excess));
    }
    lines
}

/// Identities are in the order of their arrival, and a repeated line has to be the same.
fn join_sorted<'a>(records: impl Iterator<Item = &'a FlowRecord>) -> Vec<ClusterRecord> {
    let mut records: Vec<&FlowRecord> = records.collect();
    records.sort_by(|a, b| (&a.node, &a.key, a.first, a.last).cmp(&(&b.node, &b.key, b.first, b.last)));
    join(records)
}

fn by_edge(joined: Vec<ClusterRecord>) -> BTreeMap<EdgeKey, Vec<ClusterRecord>> {
    let mut edges: BTreeMap<EdgeKey, Vec<ClusterRecord>> = BTreeMap::new();
    for record in joined {
        edges.entry(EdgeKey::of(&record.record)).or_default().push(record);
    }
    edges
}

fn sum(records: &[ClusterRecord]) -> RecordTotals {
    records.iter().fold(RecordTotals::default(), |sum, joined| sum.plus(RecordTotals::of(&joined.record)))
}

/// The lines of an edge that changed, with what the edge has gained.
fn grown(
    mut now: Vec<ClusterRecord>,
    before: Vec<ClusterRecord>,
    edge: &EdgeKey,
    excess: &mut BTreeMap<EdgeKey, RecordTotals>,
) -> Vec<TrailRecord> {
    let total = sum(&now);
    let exported = sum(&before).plus(excess.get(edge).copied().unwrap_or_default());
    let mut growth = total.minus(exported);
    let left = exported.minus(total);
    keep_excess(excess, edge, left);
    let mut before = remove_equal(&mut now, before);
    if now.len().saturating_mul(before.len()) > MOST_COMPARISONS {
        before.clear();
    }
    // First each line gets what it has more than its predecessor, then what remains.
    let mut given: Vec<RecordTotals> = Vec::new();
    for joined in &now {
        let own = RecordTotals::of(&joined.record);
        let predecessor = before.iter().position(|other| is_predecessor(&other.record, &joined.record));
        let predecessor =
            predecessor.map(|index| RecordTotals::of(&before.swap_remove(index).record)).unwrap_or_default();
        let given_now = own.minus(predecessor).at_most(growth);
        growth = growth.minus(given_now);
        given.push(given_now);
    }
    let mut lines = Vec::new();
    for (mut joined, given) in now.into_iter().zip(given) {
        let more = RecordTotals::of(&joined.record).minus(given).at_most(growth);
        growth = growth.minus(more);
        given.plus(more).write_to(&mut joined.record);
        lines.push(TrailRecord { joined, late: true, first_seen: false });
    }
    lines
}

/// Removes the records that are in both lists, and returns the others of `before`.
fn remove_equal(now: &mut Vec<ClusterRecord>, before: Vec<ClusterRecord>) -> Vec<ClusterRecord> {
    let mut by_key: BTreeMap<Arc<FlowKey>, Vec<ClusterRecord>> = BTreeMap::new();
    for joined in before {
        by_key.entry(Arc::clone(&joined.record.key)).or_default().push(joined);
    }
    now.retain(|joined| {
        let Some(others) = by_key.get_mut(&joined.record.key) else { return true };
        let Some(index) = others.iter().position(|other| other == joined) else { return true };
        others.swap_remove(index);
        false
    });
    by_key.into_values().flatten().collect()
}

/// Whether a record is about the same connections, before the other node reported.
fn is_predecessor(before: &FlowRecord, now: &FlowRecord) -> bool {
    let (before, now) = (&before.key, &now.key);
    if (before.port, before.icmp_type) != (now.port, now.icmp_type) {
        return false;
    }
    before == now
        || (before.service == now.service && before.egress == now.egress)
        || (before.ingress == now.ingress && before.verdict <= now.verdict)
}

#[cfg(test)]
mod tests;
