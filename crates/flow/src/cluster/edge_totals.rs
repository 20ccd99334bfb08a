//! Totals by pair of namespaces, for metrics: few and stable series.
//!
//! Metrics need stable series, so these are not the largest pairs at each moment. A pair gets a free series by its size
//! and keeps it until it has been idle for an hour and another pair needs a series; its total is then added to `other`.
//! So totals only grow, and they add up to all records.

use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::ClusterRecord;
use crate::{Endpoint, EndpointKind};

/// Pairs without a series that compete for the next free one. Records of further pairs are added to `other` only.
const MOST_CANDIDATES: usize = 4_096;

/// Time without records after which a pair can be evicted in favour of another one.
pub const EDGE_IDLE: SignedDuration = SignedDuration::from_hours(1);

/// Namespaces of source and destination; a placeholder such as `(world)` for endpoints without a namespace.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacePair {
    pub source: Arc<str>,
    pub destination: Arc<str>,
}

/// Sums of one pair of namespaces, or of all pairs without a series, since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EdgeTotal {
    /// Connections that started.
    pub connections: u64,
    /// Known bytes of both directions.
    pub bytes: u64,
    pub denied_packets: u64,
}

/// Totals of a bounded number of pairs, and the sum of all others.
#[derive(Debug)]
pub struct EdgeTotals {
    most: usize,
    shown: HashMap<NamespacePair, Shown>,
    /// Size of each candidate pair since its first record, or since the candidates were last cleared at their limit.
    candidates: HashMap<NamespacePair, u64>,
    other: EdgeTotal,
}

#[derive(Debug)]
struct Shown {
    total: EdgeTotal,
    last: Timestamp,
}

impl EdgeTotals {
    pub fn new(most: usize) -> EdgeTotals {
        EdgeTotals { most, shown: HashMap::new(), candidates: HashMap::new(), other: EdgeTotal::default() }
    }

    /// Adds the records of a window. Free series are then assigned to the largest pairs, whose totals start at 0.
    pub fn add_window<'a>(&mut self, window: Timestamp, records: impl IntoIterator<Item = &'a ClusterRecord>) {
        self.add_within(window, records, MOST_CANDIDATES);
    }

    fn add_within<'a>(
        &mut self,
        window: Timestamp,
        records: impl IntoIterator<Item = &'a ClusterRecord>,
        most_candidates: usize,
    ) {
        for joined in records {
            let key = &joined.record.key;
            let pair = NamespacePair { source: name(&key.source), destination: name(&key.destination) };
            let more = EdgeTotal::of(joined);
            if let Some(shown) = self.shown.get_mut(&pair) {
                shown.total += more;
                shown.last = shown.last.max(window);
                continue;
            }
            self.other += more;
            let is_full = self.candidates.len() >= most_candidates;
            match self.candidates.get_mut(&pair) {
                Some(size) => *size = size.saturating_add(more.size()),
                None if is_full => {}
                None => {
                    self.candidates.insert(pair, more.size());
                }
            }
        }
        self.fill(window);
        if self.candidates.len() >= most_candidates {
            // Otherwise the first candidates would exclude all later ones.
            self.candidates.clear();
        }
    }

    fn fill(&mut self, window: Timestamp) {
        let mut candidates: Vec<(NamespacePair, u64)> =
            self.candidates.iter().map(|(pair, size)| (pair.clone(), *size)).collect();
        candidates.sort_by(|(a_pair, a), (b_pair, b)| b.cmp(a).then_with(|| a_pair.cmp(b_pair)));
        for (pair, _) in candidates {
            if self.shown.len() >= self.most && !self.evict_idle(window) {
                return;
            }
            self.candidates.remove(&pair);
            self.shown.insert(pair, Shown { total: EdgeTotal::default(), last: window });
        }
    }

    /// Evicts the pair that has been idle for the longest time, if that is long enough. True if a pair was evicted.
    fn evict_idle(&mut self, window: Timestamp) -> bool {
        let longest = self.shown.iter().min_by_key(|(pair, shown)| (shown.last, (*pair).clone()));
        let idle = longest.filter(|(_, shown)| window.duration_since(shown.last) >= EDGE_IDLE);
        let Some(pair) = idle.map(|(pair, _)| pair.clone()) else { return false };
        if let Some(shown) = self.shown.remove(&pair) {
            self.other += shown.total;
        }
        true
    }

    /// Pairs with a series, ordered by name.
    pub fn shown(&self) -> Vec<(NamespacePair, EdgeTotal)> {
        let mut shown: Vec<_> = self.shown.iter().map(|(pair, shown)| (pair.clone(), shown.total)).collect();
        shown.sort_by(|(a, _), (b, _)| a.cmp(b));
        shown
    }

    /// Sum of all pairs without a series, and of other pairs before they had one.
    pub fn other(&self) -> EdgeTotal {
        self.other
    }
}

/// The names of namespaces cannot contain parentheses.
fn name(end: &Endpoint) -> Arc<str> {
    match (&end.namespace, end.kind) {
        (Some(namespace), EndpointKind::Pod | EndpointKind::RemoteCluster) => Arc::clone(namespace),
        (_, kind) => format!("({})", kind.as_str()).into(),
    }
}

impl EdgeTotal {
    fn of(joined: &ClusterRecord) -> EdgeTotal {
        let record = &joined.record;
        let volumes = [record.sent, record.received].into_iter().flatten();
        EdgeTotal {
            connections: record.connections.started,
            bytes: volumes.fold(0, |sum, volume| sum.saturating_add(volume.bytes)),
            denied_packets: record.denied_packets,
        }
    }

    fn size(&self) -> u64 {
        self.connections.saturating_add(self.denied_packets)
    }
}

impl AddAssign for EdgeTotal {
    fn add_assign(&mut self, other: EdgeTotal) {
        let EdgeTotal { connections, bytes, denied_packets } = other;
        self.connections = self.connections.saturating_add(connections);
        self.bytes = self.bytes.saturating_add(bytes);
        self.denied_packets = self.denied_packets.saturating_add(denied_packets);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{at, cluster_records};

    proptest! {
        #[test]
        fn totals_only_grow_and_nothing_is_lost(
            windows in vec((cluster_records(), 0i64..90), 1..8),
            most in 0usize..6,
            candidates in 1usize..20,
        ) {
            let mut totals = EdgeTotals::new(most);
            let (mut now, mut sum) = (at(0), EdgeTotal::default());
            let mut before: BTreeMap<NamespacePair, EdgeTotal> = BTreeMap::new();
            let mut other = EdgeTotal::default();
            let mut last_seen: BTreeMap<NamespacePair, Timestamp> = BTreeMap::new();
            for (records, minutes) in windows {
                now += SignedDuration::from_mins(minutes);
                totals.add_within(now, &records, candidates);
                for joined in &records {
                    sum += EdgeTotal::of(joined);
                    let key = &joined.record.key;
                    let pair = NamespacePair { source: name(&key.source), destination: name(&key.destination) };
                    last_seen.insert(pair, now);
                }
                let shown: BTreeMap<NamespacePair, EdgeTotal> = totals.shown().into_iter().collect();
                prop_assert!(shown.len() <= most);
                let grows = |less: &EdgeTotal, more: &EdgeTotal| {
                    less.connections <= more.connections
                        && less.bytes <= more.bytes
                        && less.denied_packets <= more.denied_packets
                };
                for (pair, total) in &before {
                    match shown.get(pair) {
                        Some(later) => prop_assert!(grows(total, later)),
                        None => prop_assert!(now.duration_since(last_seen[pair]) >= EDGE_IDLE),
                    }
                }
                prop_assert!(grows(&other, &totals.other()));
                let mut all = totals.other();
                shown.values().for_each(|total| all += *total);
                prop_assert_eq!(all, sum);
                (before, other) = (shown, totals.other());
            }
        }
    }

    #[test]
    fn free_places_go_to_the_largest_pairs() {
        let record = |namespace: &str, started: u64| {
            let mut record = crate::testing::record_of("n1", 0);
            Arc::make_mut(&mut record.key).destination = crate::testing::pod(namespace, "db");
            record.connections.started = started;
            record
        };
        let records = [record("a", 1), record("b", 5), record("c", 3)];
        let mut totals = EdgeTotals::new(2);
        let joined = crate::join(&records);
        totals.add_window(at(0), &joined);
        totals.add_window(at(15_000), &joined);
        let shown: Vec<(String, u64)> =
            totals.shown().into_iter().map(|(pair, total)| (pair.destination.to_string(), total.connections)).collect();
        assert_eq!(shown, [("b".to_owned(), 5), ("c".to_owned(), 3)]);
        assert_eq!(totals.other().connections, 10);
    }
}
