//! Durable export of flow records (the trail): selects the lines that a window adds, encodes them, and queues them for
//! the receiver.
//!
//! [`ExportProgress`] tracks which records are exported, [`new_lines()`] creates lines of the records that are not, [`loki`] and
//! [`otlp`] encode them, and a [`Spool`] queues the encoded batches in order, on disk or in memory. [`DeliveryOutcome`]
//! interprets the response of a receiver. The caller sends requests and reads the clock; only [`SpoolFolder`],
//! [`Spool`] and [`PositionFile`] access files.

mod batch;
mod entry;
mod exported_records;
pub mod loki;
pub mod otlp;
mod outcome;
mod position_file;
mod spool;
#[cfg(test)]
mod testing;
mod window_lines;

pub use batch::{BATCH_BYTES, Batch, json_lines, plan};
pub use entry::{Entry, JudgingSide, LARGEST_LINE, LabelStream, MOST_NAMESPACES, Namespaces};
pub use exported_records::{DueWindow, EpochPosition, ExportPosition, ExportProgress};
pub use outcome::DeliveryOutcome;
pub use position_file::{PositionFile, PositionFileError};
pub use spool::{MEMORY_BYTES, Spool, SpoolCounts, SpoolError, SpoolFolder, SpooledBatch};
pub use window_lines::{
    EdgeKey, MOST_EXCESS, NewLines, RecordTotals, SettledRecord, TrailRecord, WindowState, new_lines,
};
