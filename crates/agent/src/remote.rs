//! Remote pods: state published by context providers, kept through outages of the providers and of the agent.
//!
//! `mirror` decides which sets are in force, `kept` persists them, `following` subscribes to the providers. The event
//! loop gets `News`: changes for its state, and the status of the subscription.

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

/// Event for the event loop.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) changes: Vec<RemoteChange>,
    pub(crate) standing: RemoteStanding,
    /// When this process received the update.
    pub(crate) at: Instant,
}
