//! Remote pods: state published by context providers, kept through outages of the providers and of the agent.
//!
//! `mirror` decides which sets are in force, `kept` persists them, `following` subscribes to the providers. The event
//! loop gets `RemoteUpdate`: changes for its state, and the status of the subscription.

mod cache;
mod following;
mod freshness;
mod mirror;

use std::time::Instant;

use policy::remote::RemoteChange;

pub(crate) use cache::RemoteCache;
pub(crate) use following::{RemoteSource, RemoteSubscription};
pub(crate) use freshness::{ClusterFreshness, RemoteFreshness};
pub use mirror::Mirror;

/// Event for the event loop.
#[derive(Debug)]
pub(crate) struct RemoteUpdate {
    pub(crate) changes: Vec<RemoteChange>,
    pub(crate) freshness: RemoteFreshness,
    /// When this process received the update.
    pub(crate) at: Instant,
}
