//! Flow records: the connections of a node's pods, their endpoints, the volume in each direction, and the rule that
//! decided.
//!
//! Everything here is a function of values from the caller: conntrack events, names of ends, times. The agent reads the
//! kernel, resolves the names of the ends and serves the records.
//!
//! A [`CountedFlow`] is one conntrack entry. A [`Subject`] is its attribution: its [`FlowKey`] and the [`Member`] at
//! each end. Connections of one key within one window are aggregated into one [`FlowRecord`].
//!
//! A [`Tracker`] tracks the live connections and their [`ConnectionLedger`] and adds its observations to [`Windows`]; closed
//! windows are pushed to a [`Ring`]; a [`FlowFilter`] and [`group()`] query records.
//!
//! A [`ClusterStore`] stores the records of several nodes: its [`Inbox`] ensures that no record of a node's ring is
//! missed or counted twice, and [`join()`] joins the reports of both nodes of a connection into one [`ClusterRecord`].

mod cluster;
mod connection;
mod endpoint;
mod filter;
mod group;
mod record;
mod ring;
mod shared_key;
#[cfg(test)]
mod testing;
mod trace;
mod tracker;
mod windows;

pub use cluster::{
    Acceptance, BatchHead, CLUSTER_AGE, CLUSTER_AHEAD, ClusterCounts, ClusterRecord, ClusterStore, DecidedTraffic,
    EDGE_IDLE, EdgePlace, EdgeTotal, EdgeTotals, EdgeTraffic, Graph, GraphBuilder, GraphEdge, Hint, HintBuilder,
    HintField, Hints, Inbox, InboxCounts, InvalidEdgePlace, InvalidHintField, JoinedWindows, JudgedSide,
    MOST_GRAPH_EDGES, MOST_HINTS, MOST_NODES, MOST_RECORDS_PER_NODE, MOST_RULES, NamespacePair, NodeReport, PolicyKey,
    PolicySide, PolicyStatistics, PortTraffic, RefusedRecord, RuleStatistics, RuleTraffic, SeenBy, Stage, Statistics,
    StatisticsBuilder, TooManyNodes, VerdictCount, VerdictCounts, join, sort_by_place,
};
pub use connection::{ConnectionId, CountedFlow, Tuple, Volume};
pub use endpoint::{Endpoint, EndpointKind, Member, Network, ServicePort};
pub use filter::{FilterError, FlowFilter, FlowFilters, PeerFilter, PolicyName, WorkloadName, parse_label, parse_time};
pub use group::{FlowGroup, GroupField, GroupValue, InvalidGroupField, group};
pub use record::{Connections, EndSample, FlowKey, FlowRecord, MOST_MEMBERS, Subject, WINDOW_SECONDS};
pub use ring::{RING_AGE, RING_BYTES, RecordBatch, Ring, RingCounts};
pub use trace::{FlowVerdict, PolicyAction, PolicyHit, PolicyTier, SideTrace, TraceVerdict};
pub use tracker::{ConnectionLedger, Tracker};
pub use windows::{DroppedRecords, MOST_SILENT_WINDOWS, Windows};
