//! Closed records of the last hour.

pub(crate) mod size;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::shared::ByAddress;
use crate::{EndSample, FlowKey, FlowRecord};

/// Age at which a record expires, from the end of its window.
pub const RING_AGE: SignedDuration = SignedDuration::from_mins(60);

/// Memory that the records of a ring take by default.
pub const RING_BYTES: usize = 32 << 20;

/// Closed records of the last hour, oldest first, within a bound of estimated bytes. The oldest records leave first.
///
/// Keys and samples that several records share count once. Names that are shared with the rest of the agent count in
/// every sample that has them.
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

/// Counters of a ring: `pushed` is the number of records that are in the ring or left it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RingCounts {
    pub pushed: u64,
    /// Records that left because they were older than [`RING_AGE`].
    pub left_by_age: u64,
    /// Records that left earlier, because the ring had no more bytes.
    pub left_by_bytes: u64,
}

/// Successive records of a ring, with their place in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordBatch {
    /// Sequence number of the first record, or of the next one that is pushed if there are none.
    pub first: u64,
    /// Sequence number of the oldest record that the ring keeps, or of the next one that is pushed.
    pub oldest: u64,
    /// Sequence number of the record that was pushed last; 0 if there was none.
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

    /// Up to `most` records, the oldest first, beginning with a sequence number, or with the oldest record if the ring no
    /// longer has it. Records are numbered from 1 in the order in which they were pushed.
    pub fn batch_from(&self, sequence: u64, most: usize) -> RecordBatch {
        let RingCounts { pushed, left_by_age, left_by_bytes } = self.counts;
        let oldest = left_by_age + left_by_bytes + 1;
        let first = sequence.max(oldest);
        let skipped = usize::try_from(first - oldest).unwrap_or(usize::MAX).min(self.records.len());
        let records = self.records.range(skipped..).take(most).cloned().collect();
        RecordBatch { first, oldest, newest: pushed, records }
    }

    /// Estimated bytes of the records; never more than the bound.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn counts(&self) -> RingCounts {
        self.counts
    }

    /// The begin of the first window of which, and after which, every record is kept; `None` if there was no record yet.
    pub fn since(&self) -> Option<Timestamp> {
        self.since
    }

    /// False if there is none.
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
