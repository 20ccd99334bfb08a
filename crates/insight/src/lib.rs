//! Compares observed flows with policies.
//!
//! Everything here is a function of values from the caller: [`ObservedEdge`]s, which [`observe()`] makes of joined flow
//! records, and the state of the cluster. An [`EdgeLedger`] has those of days; who stores it is the caller's matter.

mod audit_evidence;
mod declared;
mod edge_ledger;
mod node_presence;
mod observed;

pub use audit_evidence::{AuditEvidence, MOST_AUDITED, PolicyEvidence, PolicyReference, SavedEvidence, WouldDeny};
pub use declared::{Declaration, DeclaredEdges, DeclaredEnd, UnseenEdge, is_violation, traffic_of};
pub use edge_ledger::{
    EdgeLedger, FirstSeen, LedgerCounts, LedgerEdge, LedgerLimits, MOST_PENDING, MOST_RECENT, SavedLedger,
};
pub use node_presence::{NodeGap, NodePresence, SILENT_AFTER};
pub use observed::{ObservedEdge, ObservedEdges, observe};
