//! The durable trail of flow records: which lines a window adds, how they are encoded, and where they wait until a
//! receiver has them.
//!
//! [`Book`] says which records the trail has, [`new_lines()`] makes lines of the others, [`loki`] and [`otlp`] encode them,
//! and a [`Spool`] keeps the encoded batches in order, on disk or in memory. What a receiver's answer means is in
//! [`Outcome`]. Requests and clocks are those of the caller; only [`Spool`] and [`PositionFile`] touch files.

mod batch;
mod book;
mod entry;
pub mod loki;
pub mod otlp;
mod outcome;
mod position_file;
mod settlement;
mod spool;
#[cfg(test)]
mod testing;

pub use batch::{BATCH_BYTES, Batch, json_lines, plan};
pub use book::{Book, DueWindow, NodePosition, Position};
pub use entry::{Direction, Entry, LARGEST_LINE, MOST_NAMESPACES, Namespaces, Stream};
pub use outcome::Outcome;
pub use position_file::{PositionError, PositionFile};
pub use settlement::{EdgeKey, MOST_EXCESS, NewLines, Settled, Totals, TrailRecord, WindowState, new_lines};
pub use spool::{MEMORY_BYTES, Spool, SpoolCounts, SpoolError, Spooled};
