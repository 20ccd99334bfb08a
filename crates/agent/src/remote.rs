//! Remote pods: state published by context providers, kept through outages of the providers and of the agent.
//!
//! `mirror` decides which sets are in force, `kept` persists them, `following` subscribes to the providers. The event
//! loop gets `RemoteUpdate`: changes for its state, and the status of the subscription.

mod cache;
mod freshness;
mod mirror;
mod subscription;

use std::time::Instant;

use policy::remote::RemoteChange;

pub(crate) use cache::RemoteCache;
pub(crate) use freshness::{ClusterFreshness, RemoteFreshness};
pub use mirror::Mirror;
pub(crate) use subscription::{RemoteSource, RemoteSubscription};

/// Event for the event loop.
#[derive(Debug)]
pub(crate) struct RemoteUpdate {
    pub(crate) changes: Vec<RemoteChange>,
    pub(crate) freshness: RemoteFreshness,
    /// When this process received the update.
    pub(crate) at: Instant,
}
