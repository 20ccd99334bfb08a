//! Hubble's Observer API: messages, conversion of flow records to Hubble flows, and filters.
//!
//! All functions are pure; the aggregator serves the API. A Hubble flow describes one packet, but a flow record
//! describes all connections of a key in 15 s: fields of a single packet are therefore absent, and volumes are in
//! `extensions`.

mod convert;
mod filter;
pub mod message;
mod selector;
#[cfg(test)]
mod testing;

pub use convert::{DropReason, EMITTER, EVENT_DROP, EVENT_POLICY_VERDICT, convert, time};
pub use filter::{FilterError, Filters, MOST_VALUES};

/// gRPC service of the Observer API.
pub const SERVICE: &str = "observer.Observer";

/// Name of the service by which clients check whether [`SERVICE`] is available.
pub const HEALTH_SERVICE: &str = "grpc.health.v1.Health";

/// Name of [`SERVICE`] in the health checks of the `hubble` command.
pub const SERVICE_OF_CHECKS: &str = "hubble.server.Observer";
