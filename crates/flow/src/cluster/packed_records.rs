//! Records of one window, packed to about 50 bytes each: variable-length integers, and the numbers of interned values.

use std::collections::HashMap;
use std::mem::size_of;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::interner::Interner;
use crate::{Connections, EndSample, FlowKey, FlowRecord, Volume};

/// Upper bound of the longest record: 28 integers of at most 10 bytes.
const MOST_BYTES: usize = 288;

/// Estimated bytes of a node of a window: its element in the list, and its entry in the map at a load of at least 7/16.
pub(super) const NODE: usize = size_of::<Arc<str>>() + (size_of::<(Arc<str>, NodeOfWindow)>() + 1) * 16 / 7;

/// Numbers of the key and the samples of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RecordNumbers {
    pub(super) key: u32,
    pub(super) sources: u32,
    pub(super) destinations: u32,
}

/// A [`FlowRecord`] without the fields of its window.
#[derive(Debug, Serialize, Deserialize)]
struct PackedRecord {
    node: u32,
    shared: RecordNumbers,
    connections: Connections,
    sent: Option<Volume>,
    received: Option<Volume>,
    unknown_volume: u64,
    denied_packets: u64,
    generation: Option<u32>,
    first: Offset,
    last: Offset,
}

/// Seconds and nanoseconds from the begin of the window.
#[derive(Debug, Serialize, Deserialize)]
struct Offset(i64, i32);

impl Offset {
    fn of(time: Timestamp, begin: Timestamp) -> Offset {
        let duration = time.duration_since(begin);
        Offset(duration.as_secs(), duration.subsec_nanos())
    }

    fn from(self, begin: Timestamp) -> Timestamp {
        begin + SignedDuration::new(self.0, self.1)
    }
}

#[derive(Debug)]
struct NodeOfWindow {
    /// Index in `nodes`.
    index: u32,
    records: usize,
}

/// Records of a window, in order of arrival.
#[derive(Debug, Default)]
pub(super) struct PackedWindow {
    bytes: Vec<u8>,
    len: usize,
    nodes: Vec<Arc<str>>,
    by_name: HashMap<Arc<str>, NodeOfWindow>,
}

impl PackedWindow {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Number of records of a node.
    pub(super) fn len_of_node(&self, node: &str) -> usize {
        self.by_name.get(node).map_or(0, |node| node.records)
    }

    /// Estimated bytes in memory, without interned values.
    pub(super) fn size(&self) -> usize {
        self.bytes.capacity() + self.nodes.len() * NODE
    }

    /// The key and the samples of the record are in `shared`.
    pub(super) fn push(&mut self, record: &FlowRecord, shared: RecordNumbers) {
        let FlowRecord {
            window,
            node,
            key: _,
            sources: _,
            destinations: _,
            connections,
            sent,
            received,
            unknown_volume,
            denied_packets,
            generation,
            first,
            last,
        } = record;
        let packed = PackedRecord {
            node: self.number_of_node(node),
            shared,
            connections: *connections,
            sent: *sent,
            received: *received,
            unknown_volume: *unknown_volume,
            denied_packets: *denied_packets,
            generation: *generation,
            first: Offset::of(*first, *window),
            last: Offset::of(*last, *window),
        };
        let mut buffer = [0; MOST_BYTES];
        let bytes = postcard::to_slice(&packed, &mut buffer).expect("a packed record has at most MOST_BYTES");
        if self.bytes.capacity() - self.bytes.len() < bytes.len() {
            // `Vec` would double its capacity, but most windows do not grow any more.
            self.bytes.reserve_exact((self.bytes.len() / 8).max(bytes.len()));
        }
        self.bytes.extend_from_slice(bytes);
        self.len += 1;
    }

    fn number_of_node(&mut self, name: &Arc<str>) -> u32 {
        if let Some(node) = self.by_name.get_mut(name) {
            node.records += 1;
            return node.index;
        }
        let index = u32::try_from(self.nodes.len()).expect("MOST_NODES is less");
        self.nodes.push(Arc::clone(name));
        self.by_name.insert(Arc::clone(name), NodeOfWindow { index, records: 1 });
        index
    }

    /// The records of the window that begins at `begin`.
    pub(super) fn records(
        &self,
        begin: Timestamp,
        keys: &Interner<FlowKey>,
        samples: &Interner<EndSample>,
    ) -> Vec<FlowRecord> {
        let unpack = |packed: PackedRecord| {
            let RecordNumbers { key, sources, destinations } = packed.shared;
            FlowRecord {
                window: begin,
                node: Arc::clone(&self.nodes[packed.node as usize]),
                key: Arc::clone(keys.get(key)),
                sources: Arc::clone(samples.get(sources)),
                destinations: Arc::clone(samples.get(destinations)),
                connections: packed.connections,
                sent: packed.sent,
                received: packed.received,
                unknown_volume: packed.unknown_volume,
                denied_packets: packed.denied_packets,
                generation: packed.generation,
                first: packed.first.from(begin),
                last: packed.last.from(begin),
            }
        };
        self.packed().map(unpack).collect()
    }

    /// Numbers of the interned values of all records.
    pub(super) fn shared(&self) -> impl Iterator<Item = RecordNumbers> {
        self.packed().map(|packed| packed.shared)
    }

    fn packed(&self) -> impl Iterator<Item = PackedRecord> {
        let mut rest = &*self.bytes;
        (0..self.len).map(move |_| {
            let (packed, after) = postcard::take_from_bytes(rest).expect("written by push");
            rest = after;
            packed
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, record_of};

    #[test]
    fn largest_numbers_fit_and_come_back() {
        let volume = Some(Volume { packets: u64::MAX, bytes: u64::MAX });
        let record = FlowRecord {
            connections: Connections { started: u64::MAX, ended: u64::MAX, live: u64::MAX, lost: u64::MAX },
            sent: volume,
            received: volume,
            unknown_volume: u64::MAX,
            denied_packets: u64::MAX,
            generation: Some(u32::MAX),
            first: Timestamp::MIN,
            last: Timestamp::MAX,
            ..record_of("n1", 0)
        };
        let largest = RecordNumbers { key: u32::MAX, sources: u32::MAX, destinations: u32::MAX };
        let mut window = PackedWindow::default();
        window.push(&record, largest);
        assert_eq!(window.shared().collect::<Vec<_>>(), [largest]);

        let (mut keys, mut samples) = (Interner::new(), Interner::new());
        let shared = RecordNumbers {
            key: keys.retain(record.key.clone()).0,
            sources: samples.retain(record.sources.clone()).0,
            destinations: samples.retain(record.destinations.clone()).0,
        };
        let other = FlowRecord { node: "n2".into(), first: at(3), last: at(14_999), ..record.clone() };
        let mut window = PackedWindow::default();
        window.push(&record, shared);
        window.push(&other, shared);
        assert_eq!(window.records(at(0), &keys, &samples), [record, other]);
    }

    #[test]
    fn usual_record_has_at_most_50_bytes() {
        let volume = Some(Volume { packets: 3_000, bytes: 4_000_000 });
        let record = FlowRecord {
            connections: Connections { started: 200, ended: 200, live: 10, lost: 0 },
            sent: volume,
            received: volume,
            first: at(123),
            last: at(14_321),
            ..record_of("n1", 0)
        };
        let mut window = PackedWindow::default();
        window.push(&record, RecordNumbers { key: 5_000, sources: 5_000, destinations: 5_000 });
        assert!(window.bytes.len() <= 50, "{} bytes", window.bytes.len());
    }
}
