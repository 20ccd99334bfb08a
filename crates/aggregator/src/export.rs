//! Exports of settled windows: to Loki, OTLP receivers, a Goldmane and a file of JSON lines.
//!
//! A pass encodes the windows settled since the last pass and appends their batches to the spool of each exporter.
//! Exporters send independently: an outage of one receiver delays neither the other exporters nor the passes.

mod arguments;
mod exporter;
mod figures;
mod goldmane;
pub(crate) mod pass;
mod sink;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use tokio::sync::oneshot;
use trail::otlp::FlowBytes;
use trail::{Batch, Entry, ExportProgress, Namespaces, PositionFile, Spool, SpoolFolder, TrailRecord, plan};

use crate::aggregate::{Aggregate, Reader};

pub(crate) use arguments::ExportArguments;
use exporter::Exporter;
pub(crate) use figures::{ExportCollector, ExportReport};

/// Interval of the check at shutdown whether all batches are sent.
const LOOK_AT_END: Duration = Duration::from_millis(100);

const SPOOL_REMEDY: &str = "cannot open the spool; choose a folder that no other process uses with --spool-dir";

/// All exports of a process.
pub(crate) struct Exports {
    cluster: String,
    exporters: Vec<Arc<Exporter>>,
    position: Option<PositionFile>,
    /// Number of the last pass whose batches are all in the spools.
    committed: Arc<AtomicU64>,
    /// Time from the start to the first pass, in which agents reconnect.
    start_delay: Duration,
    counts: Mutex<PassCounts>,
    /// `None` without a receiver of metrics.
    byte_sums: Option<ByteSums>,
}

/// Sums of bytes since the start of the process.
struct ByteSums(Mutex<FlowBytes>);

impl ByteSums {
    fn lock(&self) -> MutexGuard<'_, FlowBytes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counters of all passes since the start.
#[derive(Debug, Clone, Default)]
struct PassCounts {
    lines: u64,
    late: u64,
    uncounted: u64,
    /// Records expired or evicted before their export.
    unexported: u64,
    unencodable: u64,
    /// Error of reading or writing the position.
    position_problem: Option<String>,
}

impl Exports {
    /// Reads the position, opens the spools, and makes the aggregate track exported records.
    ///
    /// # Errors
    /// If an argument is invalid, a file of an argument cannot be used, or a spool cannot.
    pub(crate) async fn open(
        arguments: &ExportArguments,
        aggregate: &Aggregate,
        now: Timestamp,
    ) -> anyhow::Result<Exports> {
        let sinks = arguments.sinks().await?;
        let mut counts = PassCounts::default();
        // The position is read once the folder is locked.
        let folder = match arguments.spool_dir.as_deref().filter(|_| !sinks.is_empty()) {
            Some(path) => Some(SpoolFolder::open(path).context(SPOOL_REMEDY)?),
            None => None,
        };
        let position = folder.as_ref().map(SpoolFolder::position);
        let last = match position.as_ref().map(PositionFile::read) {
            None | Some(Ok(None)) => None,
            Some(Ok(Some(position))) => Some(position),
            Some(Err(error)) => {
                tracing::error!("{error}; windows from before this start are not exported, since some of them were");
                counts.position_problem = Some(error.to_string());
                None
            }
        };
        let is_first_start = position.is_some() && last.is_none() && counts.position_problem.is_none();
        let since = if is_first_start { Timestamp::MIN } else { now };
        let committed = Arc::new(AtomicU64::new(last.as_ref().map_or(0, |position| position.pass)));
        let (mut exporters, mut newest) = (Vec::new(), 0);
        for sink in sinks {
            let spool = match &folder {
                Some(folder) => {
                    // If the position is lost, all spooled batches are sent: no later pass repeats their windows.
                    let until =
                        if is_first_start || last.is_some() { committed.load(Ordering::Acquire) } else { u64::MAX };
                    folder.spool(sink.name(), arguments.spool_bytes(), until).context(SPOOL_REMEDY)?
                }
                None => Spool::in_memory(),
            };
            newest = newest.max(spool.newest_pass());
            exporters.push(Arc::new(Exporter::new(sink, spool, committed.clone())));
        }
        if !exporters.is_empty() {
            aggregate.mark(Reader::Exports, ExportProgress::new(last, since).after_pass(newest));
            committed.fetch_max(newest, Ordering::AcqRel);
        }
        Ok(Exports {
            cluster: arguments.cluster.clone(),
            exporters,
            position,
            committed,
            start_delay: arguments.start_delay(),
            counts: Mutex::new(counts),
            byte_sums: arguments.metric_series().map(|most| ByteSums(Mutex::new(FlowBytes::new(most, now)))),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.exporters.is_empty()
    }

    /// Exports until `end` is sent, and then until every batch is sent or on disk.
    pub(crate) async fn run(self: Arc<Exports>, aggregate: Arc<Aggregate>, end: oneshot::Receiver<()>) {
        for exporter in &self.exporters {
            tokio::spawn(exporter.clone().run());
        }
        pass::run(self.clone(), aggregate, end).await;
        while self.unsaved_records() > 0 {
            tokio::time::sleep(LOOK_AT_END).await;
        }
    }

    /// Appends lines besides those of the passes. On return they are in the spools.
    pub(crate) fn append(&self, records: Vec<TrailRecord>) {
        let (pass, mut namespaces) = (self.committed.load(Ordering::Acquire), Namespaces::default());
        let entries = records.into_iter().filter_map(|record| {
            Entry::new(&self.cluster, record, &mut namespaces)
                .inspect_err(|error| tracing::error!("cannot encode flow records: {error}"))
                .ok()
        });
        for part in plan(entries.collect()) {
            let Some(window) = part.first().map(|entry| entry.time) else { continue };
            for exporter in &self.exporters {
                match exporter.sink().encode_lines(&self.cluster, &part) {
                    None => {}
                    Some(Ok(body)) => {
                        exporter.append(pass, vec![Batch { window, records: part.len() as u64, body }]);
                        exporter.sync();
                        exporter.wake();
                    }
                    Some(Err(error)) => tracing::error!("cannot encode flow records: {error}"),
                }
            }
        }
    }

    /// Records of batches that are only in memory.
    pub(crate) fn unsaved_records(&self) -> u64 {
        self.exporters.iter().map(|exporter| exporter.unsaved_records()).sum()
    }

    fn counts(&self) -> MutexGuard<'_, PassCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
