//! Compares observed flows with policies.
//!
//! Everything here is a function of values from the caller: [`ObservedEdge`]s, which [`observe()`] makes of joined flow
//! records, and the state of the cluster. An [`EdgeLedger`] keeps the edges of days; the caller stores it.
//!
//! [`DeclaredEdges`] says which observed edge the policies declare. [`suggest()`] writes policies that allow observed flows.
//! [`what_if()`] judges the flows of observed edges under a change of policies. [`readiness()`] says whether an audited
//! policy can be enforced.

mod audit_evidence;
mod declared;
mod difference;
mod edge_ledger;
mod existing_policies;
mod node_presence;
mod observed;
mod readiness;
mod sample;
mod suggest;
#[cfg(test)]
mod testing;
mod what_if;
mod workload_index;

pub use audit_evidence::{AuditEvidence, MOST_AUDITED, PolicyEvidence, PolicyReference, SavedEvidence, WouldDeny};
pub use declared::{Declaration, DeclaredEdges, DeclaredEnd, UnseenEdge, is_violation};
pub use difference::line_difference;
pub use edge_ledger::{
    EdgeLedger, FirstSeen, LedgerCounts, LedgerEdge, LedgerLimits, MOST_PENDING, MOST_RECENT, SavedLedger,
};
pub use node_presence::{NodeGap, NodePresence, SILENT_AFTER};
pub use observed::{ObservedEdge, ObservedEdges, observe};
pub use readiness::{EnforcementSteps, MOST_UNREPORTED_SHARE, PolicyReadiness, enforcement_steps, readiness, span};
pub use sample::{Flows, NoFlow, flows_of, traffic_of};
pub use suggest::{
    EXCLUDED_NAMESPACES, EdgeWithoutRule, NamespaceChoice, SuggestedPolicy, SuggestionScope, Suggestions, suggest,
    units,
};
pub use what_if::{
    ChangedEdge, EdgeName, Effect, InvalidChange, PolicyChange, PolicyChanges, PolicyFinding, PolicyId, PolicyOutcome,
    UnevaluatedEdge, WhatIf, what_if,
};
pub use workload_index::WorkloadIndex;
