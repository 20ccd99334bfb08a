//! Ledgers for tests.

use super::*;

/// A ledger of these edges, all of them allowed.
pub(crate) fn ledger_of(edges: Vec<ObservedEdge>) -> EdgeLedger {
    let limits =
        LedgerLimits { bytes: 1 << 20, retention: SignedDuration::from_hours(1), learning: SignedDuration::ZERO };
    let mut ledger = EdgeLedger::new(limits, Timestamp::UNIX_EPOCH);
    for observed in edges {
        let edge = LedgerEdge {
            by_verdict: VerdictCounts::default(),
            last_denied: None,
            last_passed: None,
            exempt: false,
            observed,
        };
        ledger.edges.insert(key_of(&edge.observed), edge);
    }
    ledger
}
