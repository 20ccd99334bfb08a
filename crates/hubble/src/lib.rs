//! Hubble's Observer API: messages, conversion of flow records to Hubble flows, and filters.
//!
//! Everything here is a function of values; the aggregator serves it. A Hubble flow describes a packet, and a flow
//! record the connections of a key in 15 s: fields of a single packet are absent, and volumes are in `extensions`.

mod convert;
mod filter;
pub mod message;
mod selector;
#[cfg(test)]
mod testing;

pub use convert::{DropReason, EMITTER, EVENT_DROP, EVENT_POLICY_VERDICT, convert, time};
pub use filter::{FilterError, Filters, MOST_VALUES};

/// Name of the service.
pub const SERVICE: &str = "observer.Observer";

/// Name of the service by which clients check whether [`SERVICE`] is available.
pub const HEALTH_SERVICE: &str = "grpc.health.v1.Health";

/// Name of [`SERVICE`] in the health checks of the `hubble` command.
pub const SERVICE_OF_CHECKS: &str = "hubble.server.Observer";
