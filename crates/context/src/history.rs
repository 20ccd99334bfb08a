//! Past records of addresses: a bounded ring of changes behind the published table, for the interpretation of old flow
//! records. It is a plain value without I/O.
//!
//! Moments are monotonic, so that a step of the wall clock changes neither their order nor their expiry. A wall-clock
//! time is converted on lookup ([`Clock`]).

mod clock;
#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::directory::IdentityTable;
use crate::identity::RecordFields;
use crate::record::{Detail, Record};
pub(crate) use clock::{Clock, PastTime, PastTimeError};

/// Memory of a change: its entry of the B-tree (48 bytes, in nodes that may be half empty) and its place in the queue
/// (40 bytes, in a buffer that may be half empty).
const CHANGE_BYTES: usize = 192;
/// Memory of a record and its template, without their texts and labels.
const RECORD_BYTES: usize = 512;
/// Memory of a label beside its text: two pointers, each with a length, and the counts before the texts.
const LABEL_BYTES: usize = 64;

/// Memory of the fields that few records have, without their texts.
const DETAIL_BYTES: usize = 128;
/// Memory of one of these texts beside its bytes: a pointer, its length and its counts.
const TEXT_BYTES: usize = 32;

/// Limits of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HistoryBounds {
    pub(crate) age: Duration,
    /// Size of the changes and their records, an upper estimate.
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) struct History {
    bounds: HistoryBounds,
    /// Publication of the first table. `None` before it.
    started: Option<Instant>,
    /// Start of the complete part of the history.
    complete_since: Option<Instant>,
    /// Time of the last change.
    latest: Option<Instant>,
    table: IdentityTable,
    /// The record that an address had until a moment; `None` if it had none.
    changes: BTreeMap<(IpAddr, Instant), Option<Arc<Record>>>,
    /// The keys of the changes, oldest first.
    order: VecDeque<(Instant, IpAddr)>,
    /// Interned records of the changes, with their reference counts.
    records: HashMap<Arc<Record>, usize>,
    bytes: usize,
}

/// The record that an address had at a moment, and its validity.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PastRecord {
    pub(crate) record: Option<Arc<Record>>,
    /// `None` if it was valid before the oldest known moment.
    pub(crate) from: Option<Instant>,
    /// `None` if it is still valid.
    pub(crate) until: Option<Instant>,
}

/// Error: the history does not cover a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HistoryGap {
    /// Nothing is published yet.
    NotStarted,
    TooOld(HistoryUsage),
    Future,
}

/// Extent and size of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HistoryUsage {
    pub(crate) started: Instant,
    pub(crate) oldest: Instant,
    pub(crate) limit: HistoryLimit,
    pub(crate) changes: usize,
    pub(crate) bytes: usize,
}

/// Reason for the start of the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HistoryLimit {
    /// Start of the process.
    Start,
    Age,
    /// Changes were evicted because of the size limit, before they expired.
    Bytes,
}

impl HistoryLimit {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            HistoryLimit::Start => "start",
            HistoryLimit::Age => "age",
            HistoryLimit::Bytes => "bytes",
        }
    }
}

impl History {
    pub(crate) fn new(bounds: HistoryBounds) -> History {
        History {
            bounds,
            started: None,
            complete_since: None,
            latest: None,
            table: IdentityTable::default(),
            changes: BTreeMap::new(),
            order: VecDeque::new(),
            records: HashMap::new(),
            bytes: 0,
        }
    }

    /// Starts a new history with the first published table.
    pub(crate) fn begin(&mut self, table: IdentityTable, now: Instant) {
        *self = History { started: Some(now), complete_since: Some(now), table, ..History::new(self.bounds) };
    }

    /// Records the records that the changes replaced, and the new published table. Returns how many changes were
    /// evicted because of the size limit.
    pub(crate) fn record(
        &mut self,
        past: Vec<(IpAddr, Option<Arc<Record>>)>,
        table: IdentityTable,
        now: Instant,
    ) -> usize {
        // Changes of an address have distinct moments.
        let now = self.latest.map_or(now, |latest| now.max(latest + Duration::from_nanos(1)));
        self.latest = Some(now);
        self.table = table;
        let mut evicted = 0;
        for (address, record) in past {
            let record = record.map(|record| self.hold(record));
            self.changes.insert((address, now), record);
            self.order.push_back((now, address));
            self.bytes += CHANGE_BYTES;
            evicted += self.trim(now);
        }
        evicted + self.trim(now)
    }

    /// The record that an address had at a moment.
    ///
    /// # Errors
    /// If the history does not cover the moment.
    pub(crate) fn at(&self, address: IpAddr, moment: Instant, now: Instant) -> Result<PastRecord, HistoryGap> {
        let usage = self.usage(now).ok_or(HistoryGap::NotStarted)?;
        if moment > now {
            return Err(HistoryGap::Future);
        }
        if moment < usage.oldest {
            return Err(HistoryGap::TooOld(usage));
        }
        let address = address.to_canonical();
        let later = self.changes.range((Bound::Excluded((address, moment)), Bound::Unbounded)).next();
        let (record, until) = match later.filter(|((of, _), _)| *of == address) {
            Some(((_, until), record)) => (record.clone(), Some(*until)),
            None => (self.table.get(address).cloned(), None),
        };
        let before = self.changes.range(..=(address, moment)).next_back();
        let from = before.filter(|((of, from), _)| *of == address && *from > usage.oldest).map(|((_, from), _)| *from);
        Ok(PastRecord { record, from, until })
    }

    /// `None` before the first publication.
    pub(crate) fn usage(&self, now: Instant) -> Option<HistoryUsage> {
        let (started, complete_since) = (self.started?, self.complete_since?);
        let of_age = now.checked_sub(self.bounds.age);
        let (oldest, limit) = match of_age.filter(|of_age| *of_age > complete_since) {
            Some(of_age) => (of_age, HistoryLimit::Age),
            None if complete_since == started => (started, HistoryLimit::Start),
            None => (complete_since, HistoryLimit::Bytes),
        };
        Some(HistoryUsage { started, oldest, limit, changes: self.order.len(), bytes: self.bytes })
    }

    /// Expires old changes, then evicts the oldest ones while the size limit is exceeded. Returns the number of evicted
    /// changes.
    fn trim(&mut self, now: Instant) -> usize {
        let mut evicted = 0;
        while let Some((until, address)) = self.order.front().copied() {
            let is_expired = now.saturating_duration_since(until) >= self.bounds.age;
            if !is_expired && self.bytes <= self.bounds.bytes {
                break;
            }
            evicted += usize::from(!is_expired);
            self.order.pop_front();
            self.bytes -= CHANGE_BYTES;
            if let Some(Some(record)) = self.changes.remove(&(address, until)) {
                self.release(&record);
            }
            self.complete_since = Some(until);
        }
        evicted
    }

    /// Interns a record.
    fn hold(&mut self, record: Arc<Record>) -> Arc<Record> {
        match self.records.entry(record) {
            Entry::Occupied(mut held) => {
                *held.get_mut() += 1;
                held.key().clone()
            }
            Entry::Vacant(vacant) => {
                let record = vacant.key().clone();
                self.bytes += weight(&record);
                vacant.insert(1);
                record
            }
        }
    }

    fn release(&mut self, record: &Arc<Record>) {
        let Some(changes) = self.records.get_mut(record) else { return };
        *changes -= 1;
        if *changes == 0 {
            self.records.remove(record);
            self.bytes -= weight(record);
        }
    }
}

/// The memory of a record that is not shared.
fn weight(record: &Record) -> usize {
    let names = record.namespace.len() + record.workload.len() + record.app.len();
    let labels: usize = record.pod_labels.iter().map(|(key, value)| key.len() + value.len() + LABEL_BYTES).sum();
    let detail = record.detail.as_ref().map_or(0, |detail| {
        let Detail { pod, node, cluster, host_workloads } = &**detail;
        let texts = [pod, node, cluster].into_iter().flatten().chain(host_workloads);
        DETAIL_BYTES + texts.map(|text| text.len() + TEXT_BYTES).sum::<usize>()
    });
    RECORD_BYTES + names + labels + detail
}

/// The history, shared by the recording task and lookups.
#[derive(Debug, Clone)]
pub(crate) struct SharedHistory(Arc<Mutex<History>>);

impl SharedHistory {
    pub(crate) fn new(bounds: HistoryBounds) -> SharedHistory {
        SharedHistory(Arc::new(Mutex::new(History::new(bounds))))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, History> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Response of `/identity/lookup`. Times are RFC 3339.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LookupAnswer<'a> {
    pub(crate) ip: IpAddr,
    pub(crate) at: String,
    /// `None` if the address had no record.
    pub(crate) record: Option<RecordFields<'a>>,
    /// Omitted if it was valid before the oldest known moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<String>,
    /// Omitted if it is still valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<String>,
    /// The oldest known moment.
    pub(crate) oldest: String,
    /// Start of the history of this process; it differs between processes.
    pub(crate) started: String,
}
