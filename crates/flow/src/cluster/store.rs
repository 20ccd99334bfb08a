//! Received records of the last hour, by window.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use super::interner::Interner;
use super::packed_records::{PackedWindow, RecordNumbers};
use crate::ring::size;
use crate::{EndSample, FlowKey, FlowRecord, MOST_MEMBERS, WINDOW_SECONDS};

/// Age at which a window expires, from its end.
pub const CLUSTER_AGE: SignedDuration = SignedDuration::from_mins(60);

/// Limit of the records of one node in one window: as many as an agent creates. A faulty agent that sends more must not
/// evict the records of other nodes.
pub const MOST_RECORDS_PER_NODE: usize = 16_384;

/// Tolerance for windows in the future, since the clocks of nodes differ. Windows further ahead would outlive all
/// others.
pub const CLUSTER_AHEAD: SignedDuration = SignedDuration::from_secs(2 * WINDOW_SECONDS);

/// Records of all nodes within a bound of estimated bytes. The oldest window is evicted first.
#[derive(Debug)]
pub struct ClusterStore {
    most_bytes: usize,
    windows: BTreeMap<Timestamp, PackedWindow>,
    keys: Interner<FlowKey>,
    samples: Interner<EndSample>,
    bytes: usize,
    counts: ClusterCounts,
    /// Windows that begin before this were removed.
    since: Timestamp,
}

/// Counters of accepted and removed records. `kept` includes the records that were removed later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ClusterCounts {
    pub kept: u64,
    /// Records whose windows ended more than [`CLUSTER_AGE`] ago.
    pub left_by_age: u64,
    /// Records evicted before that age, because the bound of bytes was reached.
    pub left_by_bytes: u64,
}

/// Reason for which a record is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum RefusedRecord {
    #[error("its window has left")]
    TooOld,
    #[error("its window is in the future; check the clock of the node")]
    TooNew,
    #[error("its window does not begin at a multiple of {WINDOW_SECONDS} s")]
    NotAligned,
    #[error("it lists more than {MOST_MEMBERS} members of an end")]
    TooManyMembers,
    #[error("the node has sent {MOST_RECORDS_PER_NODE} records of its window")]
    TooMany,
}

impl RefusedRecord {
    pub const ALL: [RefusedRecord; 5] = [
        RefusedRecord::TooOld,
        RefusedRecord::TooNew,
        RefusedRecord::NotAligned,
        RefusedRecord::TooManyMembers,
        RefusedRecord::TooMany,
    ];

    /// Label value in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            RefusedRecord::TooOld => "too-old",
            RefusedRecord::TooNew => "too-new",
            RefusedRecord::NotAligned => "not-aligned",
            RefusedRecord::TooManyMembers => "too-many-members",
            RefusedRecord::TooMany => "too-many",
        }
    }
}

impl ClusterStore {
    pub fn new(most_bytes: usize) -> ClusterStore {
        ClusterStore {
            most_bytes,
            windows: BTreeMap::new(),
            keys: Interner::new(),
            samples: Interner::new(),
            bytes: 0,
            counts: ClusterCounts::default(),
            since: Timestamp::MIN,
        }
    }

    /// Adds a record that was received at `now`.
    ///
    /// # Errors
    /// If the record is refused.
    pub fn insert(&mut self, record: FlowRecord, now: Timestamp) -> Result<(), RefusedRecord> {
        check(&record, now)?;
        if record.window < self.since {
            return Err(RefusedRecord::TooOld);
        }
        let window = self.windows.entry(record.window).or_default();
        if window.len_of_node(&record.node) >= MOST_RECORDS_PER_NODE {
            return Err(RefusedRecord::TooMany);
        }
        let (key, new_key) = self.keys.retain(Arc::clone(&record.key));
        self.bytes += new_key.map_or(0, size::of_interned_key);
        let mut retain_sample = |sample: &Arc<EndSample>| {
            let (number, new_sample) = self.samples.retain(Arc::clone(sample));
            self.bytes += new_sample.map_or(0, size::of_interned_sample);
            number
        };
        let (sources, destinations) = (retain_sample(&record.sources), retain_sample(&record.destinations));
        let size_before = window.size();
        window.push(&record, RecordNumbers { key, sources, destinations });
        self.bytes += window.size() - size_before;
        self.counts.kept += 1;
        while self.bytes > self.most_bytes {
            let Some(left) = self.pop() else { break };
            self.counts.left_by_bytes += left;
        }
        Ok(())
    }

    /// Removes windows that ended more than [`CLUSTER_AGE`] before `now`.
    pub fn expire(&mut self, now: Timestamp) {
        let oldest = oldest_window(now);
        while self.windows.first_key_value().is_some_and(|(window, _)| *window < oldest) {
            let Some(left) = self.pop() else { break };
            self.counts.left_by_age += left;
        }
        self.keys.shrink();
        self.samples.shrink();
    }

    /// Begins of the windows that have records, in ascending order.
    pub fn windows(&self) -> impl DoubleEndedIterator<Item = Timestamp> {
        self.windows.keys().copied()
    }

    /// Records of a window, in order of arrival.
    pub fn records(&self, window: Timestamp) -> Vec<FlowRecord> {
        self.windows.get(&window).map_or_else(Vec::new, |packed| packed.records(window, &self.keys, &self.samples))
    }

    /// Windows that begin before this may have been removed; the minimum time if none was.
    pub fn left_before(&self) -> Timestamp {
        self.since
    }

    /// Number of records of a window. It grows until the window leaves.
    pub fn len_of_window(&self, window: Timestamp) -> usize {
        self.windows.get(&window).map_or(0, PackedWindow::len)
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.windows.values().map(PackedWindow::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Bound of the estimated bytes.
    pub fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    /// Estimated bytes of the records, within the bound.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn counts(&self) -> ClusterCounts {
        self.counts
    }

    #[cfg(test)]
    fn bytes_of_window(&self, window: Timestamp) -> usize {
        self.windows[&window].size()
    }

    /// Evicts the oldest window and returns its number of records.
    fn pop(&mut self) -> Option<u64> {
        let (begin, window) = self.windows.pop_first()?;
        self.bytes -= window.size();
        for RecordNumbers { key, sources, destinations } in window.shared() {
            self.bytes -= self.keys.release(key).map_or(0, |key| size::of_interned_key(&key));
            for sample in [sources, destinations] {
                self.bytes -= self.samples.release(sample).map_or(0, |sample| size::of_interned_sample(&sample));
            }
        }
        self.since = begin.checked_add(SignedDuration::from_secs(WINDOW_SECONDS)).unwrap_or(Timestamp::MAX);
        Some(window.len() as u64)
    }
}

/// Oldest window that has not expired at a time.
fn oldest_window(now: Timestamp) -> Timestamp {
    let age = CLUSTER_AGE + SignedDuration::from_secs(WINDOW_SECONDS);
    now.checked_sub(age).unwrap_or(Timestamp::MIN)
}

fn check(record: &FlowRecord, now: Timestamp) -> Result<(), RefusedRecord> {
    let is_aligned = record.window.subsec_nanosecond() == 0 && record.window.as_second() % WINDOW_SECONDS == 0;
    if !is_aligned {
        return Err(RefusedRecord::NotAligned);
    }
    if record.window < oldest_window(now) {
        return Err(RefusedRecord::TooOld);
    }
    if record.window > now.checked_add(CLUSTER_AHEAD).unwrap_or(Timestamp::MAX) {
        return Err(RefusedRecord::TooNew);
    }
    let is_bounded = |sample: &EndSample| {
        let EndSample { addresses, pods, nodes, labels, identities, truncated: _ } = sample;
        let lengths = [addresses.len(), pods.len(), nodes.len(), labels.len(), identities.len()];
        lengths.into_iter().all(|length| length <= MOST_MEMBERS)
    };
    if !is_bounded(&record.sources) || !is_bounded(&record.destinations) {
        return Err(RefusedRecord::TooManyMembers);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, record_of};

    const MANY: usize = 64 << 20;

    #[test]
    fn windows_leave_after_an_hour() {
        let mut store = ClusterStore::new(MANY);
        for window in 0..3 {
            store.insert(record_of("n1", window), at(0)).unwrap();
        }
        assert_eq!(store.left_before(), Timestamp::MIN);
        store.expire(at(3_600_000 + 30_000));
        assert_eq!(store.left_before(), at(15_000));
        assert_eq!(store.windows().collect::<Vec<_>>(), [at(15_000), at(30_000)]);
        assert_eq!(store.insert(record_of("n1", 0), at(0)), Err(RefusedRecord::TooOld));
        assert_eq!(store.counts(), ClusterCounts { kept: 3, left_by_age: 1, left_by_bytes: 0 });
        store.expire(at(4_000_000));
        assert_eq!((store.bytes(), store.len()), (0, 0));
    }

    #[test]
    fn oldest_windows_leave_when_bytes_run_out() {
        let mut one = ClusterStore::new(MANY);
        one.insert(record_of("n1", 0), at(0)).unwrap();
        let most = one.bytes() + one.bytes_of_window(at(0));
        let mut store = ClusterStore::new(most);
        for window in 0..3 {
            store.insert(record_of("n1", window), at(0)).unwrap();
            assert!(store.bytes() <= most);
        }
        assert_eq!(store.windows().collect::<Vec<_>>(), [at(15_000), at(30_000)]);
        assert_eq!(store.counts(), ClusterCounts { kept: 3, left_by_age: 0, left_by_bytes: 1 });
    }

    #[test]
    fn records_of_wrong_clocks_are_refused() {
        let mut store = ClusterStore::new(MANY);
        assert_eq!(store.insert(record_of("n1", 3), at(0)), Err(RefusedRecord::TooNew));
        assert_eq!(store.insert(record_of("n1", -242), at(0)), Err(RefusedRecord::TooOld));
        let oblique = FlowRecord { window: at(1), ..record_of("n1", 0) };
        assert_eq!(store.insert(oblique, at(0)), Err(RefusedRecord::NotAligned));
        assert!(store.is_empty());
    }

    #[test]
    fn records_per_node_and_window_are_bounded() {
        let mut store = ClusterStore::new(MANY);
        for _ in 0..MOST_RECORDS_PER_NODE {
            store.insert(record_of("n1", 0), at(0)).unwrap();
        }
        assert_eq!(store.insert(record_of("n1", 0), at(0)), Err(RefusedRecord::TooMany));
        assert_eq!(store.insert(record_of("n2", 0), at(0)), Ok(()));
        assert_eq!(store.insert(record_of("n1", 1), at(0)), Ok(()));
    }

    #[test]
    fn equal_keys_are_kept_once() {
        let mut store = ClusterStore::new(MANY);
        store.insert(record_of("n1", 0), at(0)).unwrap();
        let before = store.bytes();
        store.insert(record_of("n1", 1), at(0)).unwrap();
        assert_eq!(store.bytes() - before, store.bytes_of_window(at(15_000)));
        let [first, second] = [0, 1].map(|window| store.records(at(window * 15_000))[0].clone());
        assert!(Arc::ptr_eq(&first.key, &second.key) && Arc::ptr_eq(&first.sources, &second.sources));
    }
}
