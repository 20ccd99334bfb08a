//! The records of all nodes of a cluster: received once each, kept by window, and joined where two nodes report the same
//! connections.

mod edge_totals;
mod graph;
mod hints;
mod inbox;
mod interner;
mod join;
mod joined;
mod packed_records;
mod record_order;
mod statistics;
mod store;

pub use edge_totals::{EDGE_IDLE, EdgeTotal, EdgeTotals, NamespacePair};
pub use graph::{
    EdgeTraffic, Graph, GraphBuilder, GraphEdge, MOST_GRAPH_EDGES, PortTraffic, VerdictCount, VerdictCounts,
};
pub use hints::{Hint, HintBuilder, HintField, Hints, InvalidHintField, MOST_HINTS};
pub use inbox::{Acceptance, BatchHead, Inbox, InboxCounts, MOST_NODES, NodeReport, TooManyNodes};
pub use join::{ClusterRecord, JudgedSide, SeenBy, join};
pub use joined::JoinedWindows;
pub use record_order::{EdgePlace, InvalidEdgePlace, sort_by_place};
pub use statistics::{
    DecidedTraffic, MOST_RULES, PolicyKey, PolicySide, PolicyStatistics, RuleStatistics, RuleTraffic, Stage,
    Statistics, StatisticsBuilder,
};
pub use store::{CLUSTER_AGE, CLUSTER_AHEAD, ClusterCounts, ClusterStore, MOST_RECORDS_PER_NODE, RefusedRecord};

#[cfg(test)]
mod delivery_tests;
