//! The records of all nodes of a cluster: received once each, kept by window, and joined where two nodes report the same
//! connections.

mod inbox;
mod interner;
mod join;
mod store;

pub use inbox::{Acceptance, BatchHead, Inbox, InboxCounts, MOST_NODES, NodeReport, TooManyNodes};
pub use join::{ClusterRecord, SeenBy, Sighting, join};
pub use store::{CLUSTER_AGE, ClusterCounts, ClusterStore, MOST_RECORDS_PER_NODE, RefusedRecord};

#[cfg(test)]
mod delivery_tests;
