//! One open window: its records by key, with a faster index by subject.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::Observation;
use super::fold::fold_ports;
use crate::shared_key::ByAddress;
use crate::{Connections, EndSample, FlowKey, FlowRecord, Subject, Volume};

/// Indexed subjects per allowed record of a window, which are found without hashing their keys. Further subjects are
/// only slower.
const SUBJECTS_PER_RECORD: usize = 8;

pub(super) type LiveSubjects = HashMap<ByAddress<Subject>, u64>;

#[derive(Debug, Clone)]
pub(super) struct OpenWindow {
    most_records: usize,
    sums: Vec<Sum>,
    by_key: HashMap<Arc<FlowKey>, usize>,
    /// Subjects whose ends are already listed in their record.
    by_subject: HashMap<ByAddress<Subject>, usize>,
    /// Connections that ended in this window and began before it.
    carried: LiveSubjects,
}

/// Record of an open window.
#[derive(Debug, Clone)]
pub(super) struct Sum {
    pub(super) key: Arc<FlowKey>,
    sources: EndSample,
    destinations: EndSample,
    connections: Connections,
    volume: Option<[Volume; 2]>,
    unknown_volume: u64,
    denied_packets: u64,
    generation: Option<u32>,
    first: Timestamp,
    last: Timestamp,
}

impl OpenWindow {
    pub(super) fn new(most_records: usize) -> OpenWindow {
        OpenWindow {
            most_records,
            sums: Vec::new(),
            by_key: HashMap::new(),
            by_subject: HashMap::new(),
            carried: HashMap::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sums.is_empty() && self.carried.is_empty()
    }

    /// False if the window has reached its limit of records.
    pub(super) fn add(&mut self, subject: &Subject, at: Timestamp, observation: &Observation) -> bool {
        let Some(index) = self.index(subject, [at, at]) else {
            return false;
        };
        self.sums[index].add(observation, at);
        true
    }

    /// Like `add`, and indexes the subject for faster lookups.
    pub(super) fn add_shared(&mut self, subject: &Arc<Subject>, at: Timestamp, observation: &Observation) -> bool {
        let Some(index) = self.index_shared(subject, [at, at]) else {
            return false;
        };
        self.sums[index].add(observation, at);
        true
    }

    /// Counts a connection that ended in this window and began before it. False if the window is full.
    pub(super) fn carry(&mut self, subject: &Arc<Subject>) -> bool {
        let room = self.carried.len() < self.most_subjects();
        let subject = ByAddress(Arc::clone(subject));
        match self.carried.get_mut(&subject) {
            Some(count) => *count += 1,
            None if room => {
                self.carried.insert(subject, 1);
            }
            None => return false,
        }
        true
    }

    pub(super) fn carried(&self) -> &LiveSubjects {
        &self.carried
    }

    /// Adds the connections that are live at the end of the window; a record without events spans `begin` to `end`.
    /// Returns the number of connections dropped because the window is full.
    pub(super) fn add_live(&mut self, live: LiveSubjects, begin: Timestamp, end: Timestamp) -> u64 {
        let mut dropped = 0;
        for (ByAddress(subject), count) in live {
            match self.index_shared(&subject, [begin, end]) {
                Some(index) => self.sums[index].connections.live += count,
                None => dropped += count,
            }
        }
        dropped
    }

    /// Aggregates the ports of ends that used many. Returns by how much the number of records fell. Must be the last
    /// change before the close.
    pub(super) fn fold_ports(&mut self) -> u64 {
        self.by_key.clear();
        self.by_subject.clear();
        fold_ports(&mut self.sums)
    }

    /// Records by key, sharing the samples of an earlier window if they are equal.
    pub(super) fn into_records(
        self,
        window: Timestamp,
        node: &Arc<str>,
        samples: &HashMap<Arc<FlowKey>, [Arc<EndSample>; 2]>,
    ) -> Vec<FlowRecord> {
        let mut records: Vec<FlowRecord> = self
            .sums
            .into_iter()
            .map(|sum| {
                let [sources, destinations] = match samples.get(&sum.key) {
                    Some([sources, destinations]) => [Some(sources), Some(destinations)],
                    None => [None, None],
                };
                let Sum { connections, volume, unknown_volume, denied_packets, generation, first, last, .. } = sum;
                FlowRecord {
                    window,
                    node: Arc::clone(node),
                    key: sum.key,
                    sources: share(sum.sources, sources),
                    destinations: share(sum.destinations, destinations),
                    connections,
                    sent: volume.map(|[sent, _]| sent),
                    received: volume.map(|[_, received]| received),
                    unknown_volume,
                    denied_packets,
                    generation,
                    first,
                    last,
                }
            })
            .collect();
        records.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        records
    }

    fn index_shared(&mut self, subject: &Arc<Subject>, span: [Timestamp; 2]) -> Option<usize> {
        let shared = ByAddress(Arc::clone(subject));
        if let Some(index) = self.by_subject.get(&shared) {
            return Some(*index);
        }
        let index = self.index(subject, span)?;
        if self.by_subject.len() < self.most_subjects() {
            self.by_subject.insert(shared, index);
        }
        Some(index)
    }

    /// Record of a subject's key, with the subject's ends added to its samples.
    fn index(&mut self, subject: &Subject, [first, last]: [Timestamp; 2]) -> Option<usize> {
        let index = match self.by_key.get(&subject.key) {
            Some(index) => *index,
            None if self.sums.len() < self.most_records => {
                self.sums.push(Sum {
                    key: Arc::clone(&subject.key),
                    sources: EndSample::default(),
                    destinations: EndSample::default(),
                    connections: Connections::default(),
                    volume: None,
                    unknown_volume: 0,
                    denied_packets: 0,
                    generation: None,
                    first,
                    last,
                });
                self.by_key.insert(Arc::clone(&subject.key), self.sums.len() - 1);
                self.sums.len() - 1
            }
            None => return None,
        };
        let sum = &mut self.sums[index];
        sum.sources.add(&subject.source);
        sum.destinations.add(&subject.destination);
        sum.generation = sum.generation.max(subject.generation);
        Some(index)
    }

    fn most_subjects(&self) -> usize {
        self.most_records.saturating_mul(SUBJECTS_PER_RECORD)
    }
}

impl Sum {
    fn add(&mut self, observation: &Observation, at: Timestamp) {
        let Observation { started, ended, lost, volume, unknown_volume, denied_packets } = *observation;
        self.connections += Connections { started, ended, live: 0, lost };
        if let Some([sent, received]) = volume {
            let sum = self.volume.get_or_insert_default();
            sum[0] += sent;
            sum[1] += received;
        }
        self.unknown_volume = self.unknown_volume.saturating_add(unknown_volume);
        self.denied_packets = self.denied_packets.saturating_add(denied_packets);
        self.first = self.first.min(at);
        self.last = self.last.max(at);
    }

    /// Adds the counts of a record with another key.
    pub(super) fn merge(&mut self, other: &Sum) {
        let Sum { key: _, sources, destinations, connections, volume, .. } = other;
        self.sources.merge(sources);
        self.destinations.merge(destinations);
        self.connections += *connections;
        if let Some([sent, received]) = volume {
            let sum = self.volume.get_or_insert_default();
            sum[0] += *sent;
            sum[1] += *received;
        }
        self.unknown_volume = self.unknown_volume.saturating_add(other.unknown_volume);
        self.denied_packets = self.denied_packets.saturating_add(other.denied_packets);
        self.generation = self.generation.max(other.generation);
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
    }
}

fn share(sample: EndSample, earlier: Option<&Arc<EndSample>>) -> Arc<EndSample> {
    match earlier {
        Some(earlier) if **earlier == sample => Arc::clone(earlier),
        Some(_) | None => Arc::new(sample),
    }
}
