//! Cache of joined windows: a query over an hour reads each window, and most windows have not changed since the last
//! query.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::sync::Arc;

use jiff::Timestamp;

use super::interner::Interner;
use super::packed_records::{PackedWindow, RecordNumbers};
use super::{ClusterRecord, SeenBy};
use crate::ring::size;
use crate::{EndSample, FlowKey, FlowVerdict};

/// Joined records of windows within a bound of estimated bytes. The oldest window is evicted first, so that queries
/// over a range that does not fit find the newest windows.
#[derive(Debug)]
pub struct JoinedWindows {
    most_bytes: usize,
    windows: BTreeMap<Timestamp, JoinedWindow>,
    keys: Interner<FlowKey>,
    samples: Interner<EndSample>,
    seen_by: Interner<SeenBy>,
    bytes: usize,
}

#[derive(Debug)]
struct JoinedWindow {
    /// Number of records before the join. Windows only grow, so an equal number means equal records.
    joined_from: usize,
    packed: PackedWindow,
    /// Fields of joined records that a [`PackedWindow`] lacks, in its order.
    sides: Vec<Sides>,
}

#[derive(Debug, Clone, Copy)]
struct Sides {
    source_verdict: Option<FlowVerdict>,
    destination_verdict: Option<FlowVerdict>,
    /// Number of the interned value.
    seen_by: u32,
}

impl JoinedWindow {
    fn size(&self) -> usize {
        self.packed.size() + self.sides.capacity() * size_of::<Sides>()
    }
}

impl JoinedWindows {
    pub fn new(most_bytes: usize) -> JoinedWindows {
        JoinedWindows {
            most_bytes,
            windows: BTreeMap::new(),
            keys: Interner::new(),
            samples: Interner::new(),
            seen_by: Interner::new(),
            bytes: 0,
        }
    }

    /// The joined records of a window that has `len` records before the join; `None` if they are not cached.
    pub fn get(&self, begin: Timestamp, len: usize) -> Option<Vec<ClusterRecord>> {
        let window = self.windows.get(&begin).filter(|window| window.joined_from == len)?;
        let records = window.packed.records(begin, &self.keys, &self.samples).into_iter();
        let joined = records.zip(&window.sides).map(|(record, sides)| ClusterRecord {
            record,
            source_verdict: sides.source_verdict,
            destination_verdict: sides.destination_verdict,
            seen_by: self.seen_by.get(sides.seen_by).clone(),
        });
        Some(joined.collect())
    }

    /// Caches the joined records of a window that had `len` records before the join.
    pub fn insert(&mut self, begin: Timestamp, len: usize, joined: &[ClusterRecord]) {
        if self.windows.get(&begin).is_some_and(|window| window.joined_from >= len) {
            // Another query has cached it meanwhile.
            return;
        }
        self.remove(begin);
        let mut window =
            JoinedWindow { joined_from: len, packed: PackedWindow::default(), sides: Vec::with_capacity(joined.len()) };
        for ClusterRecord { record, source_verdict, destination_verdict, seen_by } in joined {
            let (key, new_key) = self.keys.retain(record.key.clone());
            self.bytes += new_key.map_or(0, size::of_interned_key);
            let mut retain_sample = |sample: &Arc<EndSample>| {
                let (number, new_sample) = self.samples.retain(sample.clone());
                self.bytes += new_sample.map_or(0, size::of_interned_sample);
                number
            };
            let (sources, destinations) = (retain_sample(&record.sources), retain_sample(&record.destinations));
            let (seen_by, new_seen_by) = self.seen_by.retain(seen_by.clone());
            self.bytes += new_seen_by.map_or(0, size::of_interned_seen_by);
            window.packed.push(record, RecordNumbers { key, sources, destinations });
            window.sides.push(Sides {
                source_verdict: *source_verdict,
                destination_verdict: *destination_verdict,
                seen_by,
            });
        }
        self.bytes += window.size();
        self.windows.insert(begin, window);
        while self.bytes > self.most_bytes {
            let Some(oldest) = self.windows.keys().next().copied() else { break };
            self.remove(oldest);
        }
    }

    /// Removes windows that begin before `since`.
    pub fn remove_before(&mut self, since: Timestamp) {
        while let Some(oldest) = self.windows.keys().next().copied().filter(|begin| *begin < since) {
            self.remove(oldest);
        }
        self.keys.shrink();
        self.samples.shrink();
        self.seen_by.shrink();
    }

    /// Estimated bytes of the records, within the bound.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn remove(&mut self, begin: Timestamp) {
        let Some(window) = self.windows.remove(&begin) else { return };
        self.bytes -= window.size();
        for RecordNumbers { key, sources, destinations } in window.packed.shared() {
            self.bytes -= self.keys.release(key).map_or(0, |key| size::of_interned_key(&key));
            for sample in [sources, destinations] {
                self.bytes -= self.samples.release(sample).map_or(0, |sample| size::of_interned_sample(&sample));
            }
        }
        for Sides { source_verdict: _, destination_verdict: _, seen_by } in window.sides {
            self.bytes -= self.seen_by.release(seen_by).map_or(0, |seen_by| size::of_interned_seen_by(&seen_by));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, record_of};
    use crate::{FlowRecord, join};

    const MANY: usize = 64 << 20;

    /// The reports of both nodes of a connection, and of a third node about another port.
    fn records(window: i64) -> Vec<FlowRecord> {
        let side = |node: &str, is_source: bool, port: u16| {
            let mut record = record_of(node, window);
            let key = Arc::make_mut(&mut record.key);
            (key.egress.enforced_here, key.ingress.enforced_here) = (is_source, !is_source);
            key.port = Some(port);
            Arc::make_mut(&mut record.sources).nodes = ["n1".into()].into();
            record
        };
        vec![side("n1", true, 80), side("n2", false, 80), side("n3", true, 443)]
    }

    #[test]
    fn cached_window_equals_its_join() {
        let mut cache = JoinedWindows::new(MANY);
        for window in 0..3 {
            let records = records(window);
            let joined = join(&records);
            assert_eq!(joined.len(), 2);
            let begin = records[0].window;
            assert_eq!(cache.get(begin, records.len()), None);
            cache.insert(begin, records.len(), &joined);
            assert_eq!(cache.get(begin, records.len()), Some(joined));
        }
        assert!(cache.bytes() > 0);
        cache.remove_before(at(30_000));
        assert_eq!(cache.get(at(15_000), 3), None);
        assert!(cache.get(at(30_000), 3).is_some());
        cache.remove_before(at(45_000));
        assert_eq!(cache.bytes(), 0);
    }

    #[test]
    fn window_that_has_grown_is_replaced() {
        let mut cache = JoinedWindows::new(MANY);
        let records = records(0);
        let (few, all) = (join(&records[..1]), join(&records));
        cache.insert(at(0), 1, &few);
        let bytes = cache.bytes();
        assert_eq!(cache.get(at(0), 3), None, "two records have arrived since");
        cache.insert(at(0), 3, &all);
        assert_eq!(cache.get(at(0), 3), Some(all));
        // A query that began earlier finishes later.
        cache.insert(at(0), 1, &few);
        assert_eq!(cache.get(at(0), 1), None);
        cache.remove_before(at(1));
        cache.insert(at(0), 1, &few);
        assert_eq!(cache.bytes(), bytes);
    }

    #[test]
    fn newest_windows_stay_within_the_bound() {
        let mut one = JoinedWindows::new(MANY);
        one.insert(at(0), 3, &join(&records(0)));
        let most = one.bytes() * 2;
        let mut cache = JoinedWindows::new(most);
        // A second query over all windows must not evict the newest by the oldest.
        for window in (0..40).chain(0..40) {
            let records = records(window);
            cache.insert(records[0].window, 3, &join(&records));
            assert!(cache.bytes() <= most);
        }
        assert!(cache.get(at(39 * 15_000), 3).is_some());
        assert_eq!(cache.get(at(0), 3), None);
    }
}
