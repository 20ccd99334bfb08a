//! Batches: the lines of one request.

use jiff::Timestamp;

use crate::entry::Entry;

/// Bytes of lines and metadata in a batch before compression. Loki's defaults are 4 MB a request and a burst of 6 MB.
pub const BATCH_BYTES: usize = 1 << 20;

/// Names and punctuation of an entry.
const OVERHEAD: usize = 64;

/// Body of one request to a receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The window of its records.
    pub window: Timestamp,
    /// Number of records.
    pub records: u64,
    /// The body of the request.
    pub body: Vec<u8>,
}

/// Splits the entries of one window into batches, sorted by stream.
pub fn plan(mut entries: Vec<Entry>) -> Vec<Vec<Entry>> {
    entries.sort_by(|a, b| (&a.stream, a.time, &a.line).cmp(&(&b.stream, b.time, &b.line)));
    let (mut batches, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    for entry in entries {
        let metadata: usize = entry.metadata().iter().map(|(name, value)| name.len() + value.len()).sum();
        let more = entry.line.len() + metadata + OVERHEAD;
        if bytes + more > BATCH_BYTES && !batch.is_empty() {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
        bytes += more;
        batch.push(entry);
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

/// One line for each entry.
pub fn json_lines(entries: &[Entry]) -> Vec<u8> {
    let mut text = Vec::new();
    for entry in entries {
        text.extend_from_slice(entry.line.as_bytes());
        text.push(b'\n');
    }
    text
}
