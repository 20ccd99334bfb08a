//! Flow records: which connections the pods of a node had, between whom, how much went each way, and which rule decided
//! about them.
//!
//! Everything here is a function of values that others bring: connection tracking events, names of ends, times. The
//! agent reads the kernel, names the ends and serves the records.
//!
//! A [`Connection`] is one entry of connection tracking. A [`Subject`] says what it is about: its [`FlowKey`] and the
//! [`Member`] at each end. Connections of one key within one window are one [`FlowRecord`].
//!
//! A [`Tracker`] has the live connections and their [`Ledger`]; what it observes goes into [`Windows`]; closed windows go
//! into a [`Ring`]; a [`FlowFilter`] and [`group()`] read records.
//!
//! The records of several nodes meet in a [`ClusterStore`]: its [`Inbox`] keeps each record of a node's ring from being
//! missed or counted twice, and [`join()`] makes one [`ClusterRecord`] of what both nodes of a connection report.

mod cluster;
mod connection;
mod endpoint;
mod filter;
mod group;
mod record;
mod ring;
mod shared;
#[cfg(test)]
mod testing;
mod trace;
mod tracker;
mod windows;

pub use cluster::{
    Acceptance, BatchHead, CLUSTER_AGE, ClusterCounts, ClusterRecord, ClusterStore, DecidedTraffic, Direction,
    EDGE_IDLE, EdgePlace, EdgeTotal, EdgeTotals, EdgeTraffic, Graph, GraphBuilder, GraphEdge, Hint, HintBuilder,
    HintField, Hints, Inbox, InboxCounts, InvalidEdgePlace, InvalidHintField, MOST_GRAPH_EDGES, MOST_HINTS, MOST_NODES,
    MOST_RECORDS_PER_NODE, MOST_RULES, NamespacePair, NodeReport, PolicyKey, PolicyStatistics, PortTraffic,
    RefusedRecord, RuleStatistics, RuleTraffic, SeenBy, Sighting, Stage, Statistics, StatisticsBuilder, TooManyNodes,
    VerdictCount, VerdictCounts, join, sort_by_place,
};
pub use connection::{Connection, ConnectionId, Tuple, Volume};
pub use endpoint::{Endpoint, EndpointKind, Member, Network, ServicePort};
pub use filter::{FilterError, FlowFilter, FlowFilters, Peer, PolicyName, WorkloadName, parse_time};
pub use group::{FlowGroup, GroupField, GroupValue, InvalidGroupField, group};
pub use record::{Connections, EndSample, FlowKey, FlowRecord, MOST_MEMBERS, Subject, WINDOW_SECONDS};
pub use ring::{RING_AGE, RING_BYTES, RecordBatch, Ring, RingCounts};
pub use trace::{PolicyAction, PolicyHit, SideTrace, TraceVerdict, Verdict};
pub use tracker::{Ledger, Tracker};
pub use windows::{DroppedRecords, MOST_SILENT_WINDOWS, Windows};
