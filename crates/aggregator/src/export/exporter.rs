//! One exporter: its spool, and the task that sends the spooled batches.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pacing::Backoff;
use tokio::sync::Notify;
use trail::{Batch, DeliveryOutcome, Spool, SpoolCounts, SpooledBatch};

use super::sink::{Answer, Sink};

/// Backoff of retries: a recovered receiver is retried within the longest wait.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// A receiver with its spool.
pub(super) struct Exporter {
    sink: Sink,
    spool: Mutex<Spool>,
    committed: Arc<AtomicU64>,
    wake: Notify,
    counts: Mutex<SendCounts>,
}

/// Counters of sent batches, and the errors of the receiver.
#[derive(Debug, Clone, Default)]
pub(super) struct SendCounts {
    pub(super) sent_records: u64,
    pub(super) sent_batches: u64,
    pub(super) retries: u64,
    /// Records of batches that the receiver refused permanently.
    pub(super) refused: u64,
    /// Records that the receiver rejected from a batch that it accepted.
    pub(super) rejected: u64,
    pub(super) last_refusal: Option<String>,
    /// Error of the last attempt; `None` if it succeeded.
    pub(super) failure: Option<String>,
}

impl Exporter {
    pub(super) fn new(sink: Sink, spool: Spool, committed: Arc<AtomicU64>) -> Exporter {
        Exporter { sink, spool: Mutex::new(spool), committed, wake: Notify::new(), counts: Mutex::default() }
    }

    pub(super) fn sink(&self) -> &Sink {
        &self.sink
    }

    /// Appends the batches of a pass. They are sent once the pass is committed.
    pub(super) fn append(&self, pass: u64, batches: Vec<Batch>) {
        self.spool().append(pass, batches);
    }

    /// Synchronises the spool. True if all of its batches are on disk.
    pub(super) fn sync(&self) -> bool {
        let mut spool = self.spool();
        spool.sync();
        spool.is_durable()
    }

    /// Records of batches that are only in memory.
    pub(super) fn unsaved_records(&self) -> u64 {
        self.spool().unsaved_records()
    }

    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    pub(super) fn send_counts(&self) -> SendCounts {
        self.counts().clone()
    }

    pub(super) fn spool_counts(&self) -> (SpoolCounts, f64) {
        let spool = self.spool();
        (spool.counts(), spool.fill())
    }

    fn spool(&self) -> MutexGuard<'_, Spool> {
        self.spool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> MutexGuard<'_, SendCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends batches in order until the process ends. A failed batch is retried without limit.
    pub(super) async fn run(self: Arc<Exporter>) {
        let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
        loop {
            match self.next().await {
                None => self.wake.notified().await,
                Some(spooled) => match self.send(spooled).await {
                    None => backoff.reset(),
                    Some(after) => tokio::time::sleep(backoff.wait().max(after)).await,
                },
            }
        }
    }

    /// Reads the oldest committed batch on a blocking thread: the read may wait for the disk.
    async fn next(self: &Arc<Exporter>) -> Option<SpooledBatch> {
        let this = self.clone();
        let read = move || this.spool().front(this.committed.load(Ordering::Acquire));
        match tokio::task::spawn_blocking(read).await {
            Ok(spooled) => spooled,
            Err(panic) => {
                tracing::error!(exporter = self.sink.name(), "cannot read the spool: {panic}");
                None
            }
        }
    }

    /// Sends a batch. Returns the shortest wait before a retry; `None` if the batch was delivered or refused.
    async fn send(&self, spooled: SpooledBatch) -> Option<Duration> {
        let (sequence, records) = (spooled.sequence, spooled.batch.records);
        let (exporter, target) = (self.sink.name(), self.sink.target());
        let Answer { outcome, rejected } = self.sink.send(spooled).await;
        let mut counts = self.counts();
        match outcome {
            DeliveryOutcome::Retry { after, why } => {
                counts.retries += 1;
                if counts.failure.as_ref() != Some(&why) {
                    tracing::warn!(
                        exporter,
                        "cannot export flow records to {target}, they are kept and sent later: {why}"
                    );
                }
                counts.failure = Some(why);
                return Some(after.unwrap_or_default());
            }
            DeliveryOutcome::Refused { why } => {
                counts.refused += records;
                counts.failure = None;
                tracing::error!(exporter, records, "{target} refused flow records, they are dropped: {why}");
                counts.last_refusal = Some(why);
            }
            DeliveryOutcome::Delivered => {
                let (not_taken, why) = rejected.unwrap_or_default();
                if not_taken > 0 {
                    tracing::error!(
                        exporter,
                        records = not_taken,
                        "{target} rejected flow records, they are dropped: {why}"
                    );
                    counts.last_refusal = Some(why);
                }
                counts.rejected += not_taken;
                counts.sent_batches += 1;
                counts.sent_records += records.saturating_sub(not_taken);
                if counts.failure.take().is_some() {
                    tracing::info!(exporter, "flow records are exported again");
                }
            }
        }
        drop(counts);
        self.spool().remove(sequence);
        None
    }
}
