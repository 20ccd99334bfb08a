//! Pods of other clusters: what context providers tell of them, held through outages of theirs and of ours.
//!
//! `mirror` decides what is in force, `kept` has it on disk, `following` asks the providers. The loop gets
//! `News`: changes for its state, and how things stand.

mod following;
mod kept;
mod mirror;
mod standing;

use std::time::Instant;

use policy::remote::RemoteChange;

pub(crate) use following::{Followed, Following};
pub(crate) use kept::Kept;
pub use mirror::Mirror;
pub(crate) use standing::{ClusterStanding, RemoteStanding};

/// What the loop is told.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) changes: Vec<RemoteChange>,
    pub(crate) standing: RemoteStanding,
    /// When it reached this process.
    pub(crate) at: Instant,
}
