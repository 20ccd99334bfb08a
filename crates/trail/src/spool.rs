//! Queue of batches that wait for their receiver, in order and bounded in bytes.
//!
//! On disk each batch is one file with a checksum. The file is written under a temporary name, synchronised and
//! renamed, so that a crash leaves either the whole batch or no file of that name. Damaged files are skipped and
//! counted. Each batch belongs to a pass. Batches of a pass that was not committed when the process ended are
//! discarded, since the next process repeats the pass.
//!
//! If a write to disk fails, the batch stays in memory, bounded by [`MEMORY_BYTES`], until a later write succeeds.

mod file;
mod folder;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;

use self::file::SpoolContents;
pub use self::folder::SpoolFolder;
use crate::batch::Batch;

/// Bound of the batches in memory, without a folder or after failed writes: some minutes of a large cluster.
pub const MEMORY_BYTES: u64 = 32 << 20;

/// Smallest size of a file on disk.
const BLOCK: u64 = 4096;

/// A queue of batches, without network access or a clock.
#[derive(Debug)]
pub struct Spool {
    /// `None` if the spool is only in memory.
    folder: Option<Folder>,
    /// Oldest first, with ascending sequence numbers.
    waiting: VecDeque<QueuedBatch>,
    next: u64,
    counts: SpoolCounts,
}

#[derive(Debug)]
struct Folder {
    path: PathBuf,
    most_bytes: u64,
    /// The lock of the [`SpoolFolder`].
    _lock: Arc<File>,
}

#[derive(Debug)]
struct QueuedBatch {
    sequence: u64,
    pass: u64,
    window: Timestamp,
    records: u64,
    bytes: u64,
    /// `None` if the batch is on disk.
    body: Option<Vec<u8>>,
}

/// A batch to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpooledBatch {
    pub sequence: u64,
    pub batch: Batch,
}

/// Size of the queue, and counters since the start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpoolCounts {
    pub batches: u64,
    pub disk_bytes: u64,
    pub memory_bytes: u64,
    /// The window of the oldest batch.
    pub oldest: Option<Timestamp>,
    /// Records evicted, oldest first, because a byte bound was exceeded.
    pub evicted: u64,
    /// Damaged batches that were skipped.
    pub damaged: u64,
    /// Failed disk operations.
    pub write_failures: u64,
    /// Error of the last failed disk operation; `None` once a batch was written since.
    pub write_failure: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    #[error("cannot use the folder {path}")]
    Open { path: PathBuf, source: io::Error },
    #[error("the folder {path} is in use by another process")]
    InUse { path: PathBuf },
}

impl Spool {
    /// A spool whose batches are lost when the process ends.
    pub fn in_memory() -> Spool {
        Spool { folder: None, waiting: VecDeque::new(), next: 1, counts: SpoolCounts::default() }
    }

    /// Opens the spool in a subfolder, which is created if missing. Discards batches of passes after `committed`.
    ///
    /// # Errors
    /// If the subfolder cannot be used.
    fn open(path: PathBuf, most_bytes: u64, committed: u64, lock: Arc<File>) -> Result<Spool, SpoolError> {
        let failed = |source| SpoolError::Open { path: path.clone(), source };
        file::make_folder(&path).map_err(failed)?;
        let (mut waiting, mut counts) = (VecDeque::new(), SpoolCounts::default());
        let SpoolContents { sequences, next } = file::list(&path).map_err(failed)?;
        for sequence in sequences {
            match file::read(&path, sequence) {
                Ok((pass, batch)) if pass <= committed => waiting.push_back(QueuedBatch {
                    sequence,
                    pass,
                    window: batch.window,
                    records: batch.records,
                    bytes: file::size(&batch),
                    body: None,
                }),
                Ok(_) => file::remove(&path, sequence).map_err(failed)?,
                Err(_) => {
                    counts.damaged += 1;
                    file::remove(&path, sequence).map_err(failed)?;
                }
            }
        }
        let folder = Folder { path, most_bytes, _lock: lock };
        let mut spool = Spool { folder: Some(folder), waiting, next, counts };
        spool.evict();
        Ok(spool)
    }

    /// Appends the batches of a pass. On return they are synchronised to disk, or in memory if the write failed.
    pub fn append(&mut self, pass: u64, batches: Vec<Batch>) {
        self.write_back();
        for batch in batches {
            let sequence = self.next;
            self.next += 1;
            let Batch { window, records, body } = batch;
            let mut waiting =
                QueuedBatch { sequence, pass, window, records, bytes: body.len() as u64, body: Some(body) };
            // The queue order is independent of whether a batch is in memory or on disk.
            self.store(&mut waiting);
            self.waiting.push_back(waiting);
            self.evict();
        }
    }

    /// Synchronises the folder. The file contents are already durable, their names are not.
    pub fn sync(&mut self) {
        let Some(folder) = &self.folder else { return };
        if let Err(error) = File::open(&folder.path).and_then(|folder| folder.sync_all()) {
            self.counts.write_failures += 1;
            self.counts.write_failure = Some(error.to_string());
        }
    }

    /// The newest pass with a queued batch; 0 if the queue is empty.
    pub fn newest_pass(&self) -> u64 {
        self.waiting.iter().map(|waiting| waiting.pass).max().unwrap_or(0)
    }

    /// Whether all queued batches are on disk.
    pub fn is_durable(&self) -> bool {
        self.waiting.iter().all(|waiting| waiting.body.is_none())
    }

    /// Records of batches that are only in memory.
    pub fn unsaved_records(&self) -> u64 {
        self.waiting.iter().filter(|waiting| waiting.body.is_some()).map(|waiting| waiting.records).sum()
    }

    /// The oldest batch of the passes up to `committed`. A damaged one is skipped and counted.
    pub fn front(&mut self, committed: u64) -> Option<SpooledBatch> {
        loop {
            let first = self.waiting.front().filter(|first| first.pass <= committed)?;
            let QueuedBatch { sequence, window, records, ref body, .. } = *first;
            let read = match (body, &self.folder) {
                (Some(body), _) => Some(Batch { window, records, body: body.clone() }),
                (None, Some(folder)) => file::read(&folder.path, sequence).ok().map(|(_, batch)| batch),
                (None, None) => None,
            };
            match read {
                Some(batch) => return Some(SpooledBatch { sequence, batch }),
                None => {
                    self.counts.damaged += 1;
                    self.remove(sequence);
                }
            }
        }
    }

    /// Removes a batch that was delivered or refused.
    pub fn remove(&mut self, sequence: u64) {
        let Some(index) = self.waiting.iter().position(|waiting| waiting.sequence == sequence) else { return };
        if let Some(waiting) = self.waiting.remove(index) {
            self.delete(&waiting);
        }
    }

    pub fn counts(&self) -> SpoolCounts {
        let [memory_bytes, disk_bytes] = self.bytes();
        SpoolCounts {
            batches: self.waiting.len() as u64,
            disk_bytes,
            memory_bytes,
            oldest: self.waiting.front().map(|waiting| waiting.window),
            ..self.counts.clone()
        }
    }

    /// Share of the bound that is used, from 0 to 1.
    pub fn fill(&self) -> f64 {
        let [memory, disk] = self.bytes();
        let on_disk = self.folder.as_ref().map_or(0.0, |folder| disk as f64 / folder.most_bytes as f64);
        on_disk.max(memory as f64 / MEMORY_BYTES as f64)
    }

    fn bytes(&self) -> [u64; 2] {
        self.waiting.iter().fold([0, 0], |[memory, disk], waiting| match waiting.body {
            Some(_) => [memory + waiting.bytes, disk],
            None => [memory, disk + waiting.bytes],
        })
    }

    /// Retries the failed writes, oldest first.
    fn write_back(&mut self) {
        let mut waiting = std::mem::take(&mut self.waiting);
        for batch in waiting.iter_mut().filter(|batch| batch.body.is_some()) {
            self.store(batch);
            if batch.body.is_some() {
                break;
            }
        }
        self.waiting = waiting;
    }

    fn store(&mut self, waiting: &mut QueuedBatch) {
        let Some(folder) = &self.folder else { return };
        let Some(body) = waiting.body.take() else { return };
        let batch = Batch { window: waiting.window, records: waiting.records, body };
        match file::write(&folder.path, waiting.sequence, waiting.pass, &batch) {
            Ok(()) => {
                self.counts.write_failure = None;
                waiting.bytes = file::size(&batch);
            }
            Err(error) => {
                self.counts.write_failures += 1;
                self.counts.write_failure = Some(error.to_string());
                waiting.body = Some(batch.body);
            }
        }
    }

    fn evict(&mut self) {
        loop {
            let [memory, disk] = self.bytes();
            let is_memory_over = memory > MEMORY_BYTES;
            let is_disk_over = self.folder.as_ref().is_some_and(|folder| disk > folder.most_bytes);
            let over = |waiting: &QueuedBatch| match waiting.body {
                Some(_) => is_memory_over,
                None => is_disk_over,
            };
            let Some(index) = self.waiting.iter().position(over) else { return };
            if let Some(waiting) = self.waiting.remove(index) {
                self.counts.evicted += waiting.records;
                self.delete(&waiting);
            }
        }
    }

    fn delete(&mut self, waiting: &QueuedBatch) {
        if let (None, Some(folder)) = (&waiting.body, &self.folder)
            && let Err(error) = file::remove(&folder.path, waiting.sequence)
        {
            self.counts.write_failures += 1;
            self.counts.write_failure = Some(error.to_string());
        }
    }
}

#[cfg(test)]
mod tests;
