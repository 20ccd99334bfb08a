//! Compares observed flows with policies.
//!
//! Everything here is a function of values from the caller: [`ObservedEdge`]s, which [`observe()`] makes of joined flow
//! records, and the state of the cluster. An [`EdgeLedger`] has those of days; who stores it is the caller's matter.

mod edge_ledger;
mod observed;

pub use edge_ledger::{
    EdgeLedger, FirstSeen, LedgerCounts, LedgerEdge, LedgerLimits, MOST_PENDING, MOST_RECENT, SavedLedger,
};
pub use observed::{ObservedEdge, ObservedEdges, observe};
