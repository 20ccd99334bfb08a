//! Closed records of the last hour.

pub(crate) mod size;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::shared_key::ByAddress;
use crate::{EndSample, FlowKey, FlowRecord};

/// Age at which a record expires, from the end of its window.
pub const RING_AGE: SignedDuration = SignedDuration::from_mins(60);

/// Default bound of the memory of a ring.
pub const RING_BYTES: usize = 32 << 20;

/// Closed records of the last hour, oldest first, within a bound of estimated bytes. The oldest records are evicted
/// first.
///
/// Keys and samples shared between records count once. Names shared with the rest of the agent count in every sample
/// that contains them.
#[derive(Debug)]
pub struct Ring {
    most_bytes: usize,
    records: VecDeque<Arc<FlowRecord>>,
    /// Number of records that share the key, or the sample of an end.
    keys: HashMap<ByAddress<FlowKey>, usize>,
    samples: HashMap<ByAddress<EndSample>, usize>,
    bytes: usize,
    counts: RingCounts,
    since: Option<Timestamp>,
}

/// Counters of a ring: `pushed` is the number of records pushed, including those removed later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingCounts {
    pub pushed: u64,
    /// Records removed because they were older than [`RING_AGE`].
    pub left_by_age: u64,
    /// Records evicted before that age, because the bound of bytes was reached.
    pub left_by_bytes: u64,
}

/// Successive records of a ring, with their sequence numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordBatch {
    /// Sequence number of the first record; of the next record to be pushed if the batch is empty.
    pub first: u64,
    /// Sequence number of the oldest record in the ring; of the next record to be pushed if the ring is empty.
    pub oldest: u64,
    /// Sequence number of the newest record; 0 if there was none.
    pub newest: u64,
    pub records: Vec<Arc<FlowRecord>>,
}

impl Default for Ring {
    fn default() -> Ring {
        Ring::new(RING_BYTES)
    }
}

impl Ring {
    pub fn new(most_bytes: usize) -> Ring {
        Ring {
            most_bytes,
            records: VecDeque::new(),
            keys: HashMap::new(),
            samples: HashMap::new(),
            bytes: 0,
            counts: RingCounts::default(),
            since: None,
        }
    }

    /// Adds records of closed windows, in the order in which the windows closed.
    pub fn push(&mut self, records: impl IntoIterator<Item = Arc<FlowRecord>>) {
        for record in records {
            self.since.get_or_insert(record.window);
            self.retain_parts(&record);
            self.records.push_back(record);
            self.counts.pushed += 1;
            while self.bytes > self.most_bytes && self.pop() {
                self.counts.left_by_bytes += 1;
            }
        }
        self.give_back_memory();
    }

    /// Removes records whose windows ended more than [`RING_AGE`] before `now`.
    pub fn expire(&mut self, now: Timestamp) {
        let oldest = now.checked_sub(RING_AGE).unwrap_or(Timestamp::MIN);
        while self.records.front().is_some_and(|record| record.window_end() < oldest) && self.pop() {
            self.counts.left_by_age += 1;
        }
        self.give_back_memory();
    }

    /// All records, oldest window first.
    pub fn records(&self) -> impl DoubleEndedIterator<Item = &Arc<FlowRecord>> + ExactSizeIterator {
        self.records.iter()
    }

    /// Up to `most` records in ascending order, starting with a sequence number, or with the oldest record if that one
    /// was removed. Records are numbered from 1 in the order in which they were pushed.
    pub fn batch_from(&self, sequence: u64, most: usize) -> RecordBatch {
        let RingCounts { pushed, left_by_age, left_by_bytes } = self.counts;
        let oldest = left_by_age + left_by_bytes + 1;
        let first = sequence.max(oldest);
        let skipped = usize::try_from(first - oldest).unwrap_or(usize::MAX).min(self.records.len());
        let records = self.records.range(skipped..).take(most).cloned().collect();
        RecordBatch { first, oldest, newest: pushed, records }
    }

    /// Estimated bytes of the records, within the bound.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn counts(&self) -> RingCounts {
        self.counts
    }

    /// Begin of the oldest window from which on the ring is complete; `None` if no record was pushed yet.
    pub fn since(&self) -> Option<Timestamp> {
        self.since
    }

    /// Removes the oldest record. False if the ring is empty.
    fn pop(&mut self) -> bool {
        let Some(record) = self.records.pop_front() else {
            return false;
        };
        self.release_parts(&record);
        self.since = self.since.max(Some(record.window_end()));
        true
    }

    fn retain_parts(&mut self, record: &FlowRecord) {
        self.bytes += size::RECORD;
        let key = self.keys.entry(ByAddress(Arc::clone(&record.key))).or_insert(0);
        if *key == 0 {
            self.bytes += size::of_key(&record.key);
        }
        *key += 1;
        for end in [&record.sources, &record.destinations] {
            let sample = self.samples.entry(ByAddress(Arc::clone(end))).or_insert(0);
            if *sample == 0 {
                self.bytes += size::of_sample(end);
            }
            *sample += 1;
        }
    }

    fn release_parts(&mut self, record: &FlowRecord) {
        self.bytes -= size::RECORD;
        if release(&mut self.keys, &record.key) {
            self.bytes -= size::of_key(&record.key);
        }
        for end in [&record.sources, &record.destinations] {
            if release(&mut self.samples, end) {
                self.bytes -= size::of_sample(end);
            }
        }
    }

    /// Shrinks the capacity after a burst.
    fn give_back_memory(&mut self) {
        if self.records.capacity() > 1024 && self.records.len() < self.records.capacity() / 4 {
            self.records.shrink_to(self.records.len() * 2);
            self.keys.shrink_to(self.keys.len() * 2);
            self.samples.shrink_to(self.samples.len() * 2);
        }
    }
}

/// Releases a record's reference to a key or sample; true if it was the last one.
fn release<T>(parts: &mut HashMap<ByAddress<T>, usize>, part: &Arc<T>) -> bool {
    let part = ByAddress(Arc::clone(part));
    let Some(count) = parts.get_mut(&part) else {
        return false;
    };
    *count -= 1;
    let last = *count == 0;
    if last {
        parts.remove(&part);
    }
    last
}

#[cfg(test)]
mod tests;
