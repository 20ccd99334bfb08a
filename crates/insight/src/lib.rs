//! Compares observed flows with policies.
//!
//! Everything here is a function of values from the caller: [`ObservedEdge`]s, which [`observe()`] makes of joined flow
//! records, and the state of the cluster. Who keeps them and for how long is the caller's matter.

mod observed;

pub use observed::{ObservedEdge, ObservedEdges, observe};
