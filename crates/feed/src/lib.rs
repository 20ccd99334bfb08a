//! Baselines and deltas: publishing a table of one process, and following it in others.
//!
//! A publication has an epoch, one per life of its producer, and numbers its deltas from 1 without gaps. Every baseline
//! has the position of the last delta in it. A follower's table is a baseline and the deltas after it; after a gap, it
//! pulls the baseline again. This crate is independent of the table's contents.
//!
//! A feed `X` has three resources: `X/version` ([`Head`] as JSON), `X/download` (the baseline, with the fields of its
//! head as headers) and `X/deltas` (server-sent events, [`sse`]). A feed may have other forms (`?form=`), which have
//! less detail of the same table at the same positions.

mod access;
mod backoff;
pub mod client;
mod follower;
mod head;
mod pace;
mod position;
mod publication;
pub mod sse;

#[cfg(test)]
mod convergence;

pub use access::{Access, AccessError, install_tls_provider, read_basic_auth};
pub use backoff::Backoff;
pub use follower::{Follower, Next, Pull};
pub use head::{Digest, Head, HeadError};
pub use pace::Pace;
pub use position::{Position, PositionError};
pub use publication::{BACKLOG_BYTES, BACKLOG_EVENTS, Bounds, Event, NoReplay, Opening, Publication};
