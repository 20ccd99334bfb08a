//! Baselines and deltas: how a table that lives in one process is published, and followed by others.
//!
//! A publication has an epoch, which is one life of its producer, and numbers its deltas from 1 without gaps. Every
//! baseline says which of them it contains. A follower's table is a baseline and the deltas behind it; where that
//! cannot be had, it pulls the baseline again. What the table is about is not known here.
//!
//! Three resources stand for a feed `X`: `X/version` ([`Head`] as JSON), `X/download` (the baseline, with the fields of
//! its head as headers) and `X/deltas` (server-sent events, [`sse`]). A feed may have other forms (`?form=`), which say less of
//! the same table: their positions are the same.

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

pub use access::{Access, AccessError, install_tls_provider};
pub use backoff::Backoff;
pub use follower::{Follower, Next, Pull};
pub use head::{Digest, Head, HeadError};
pub use pace::Pace;
pub use position::{Position, PositionError};
pub use publication::{BACKLOG_BYTES, BACKLOG_EVENTS, Bounds, Event, NoReplay, Opening, Publication};
