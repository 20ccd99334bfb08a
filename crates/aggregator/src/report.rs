//! Coverage and status reports as JSON: nodes, and missed, evicted or refused records.

use access::PortReport;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use crate::aggregate::Figures;
use crate::export::{ExportReport, Exports};

/// A node without batches for this long is silent: agents send a window every 15 s, and their longest backoff is 30 s.
const SILENT_AFTER: SignedDuration = SignedDuration::from_secs(90);

/// `GET /v1/flows/coverage`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CoverageReport {
    /// Start of the aggregator. Agents resend the records in their rings at that time, those of at most one hour.
    pub(crate) since: Timestamp,
    /// Start of the oldest window; null if there is none.
    pub(crate) kept_since: Option<Timestamp>,
    pub(crate) records: usize,
    /// Records that were never received.
    pub(crate) missed: u64,
    /// Records evicted for lack of memory before they were one hour old.
    pub(crate) evicted: u64,
    /// Records received but not stored: too old, in the future, above a limit, or undecodable.
    pub(crate) refused: u64,
    pub(crate) nodes: Vec<NodeCoverage>,
    /// Exports of records, by sink.
    pub(crate) exports: Vec<ExportReport>,
    /// Problems, as sentences for people.
    pub(crate) problems: Vec<String>,
}

/// A node that has sent records in the last two hours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeCoverage {
    pub(crate) node: String,
    /// Time of the node's last batch.
    pub(crate) last_reported: Timestamp,
    /// Unsent records of the node at that time.
    pub(crate) behind: u64,
    pub(crate) silent: bool,
}

/// `GET /status`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusReport {
    pub(crate) version: &'static str,
    pub(crate) memory_bytes: usize,
    pub(crate) port: PortReport,
    pub(crate) coverage: CoverageReport,
}

impl CoverageReport {
    pub(crate) fn new(figures: &Figures, since: Timestamp, now: Timestamp) -> CoverageReport {
        let nodes: Vec<NodeCoverage> = figures
            .nodes
            .iter()
            .map(|report| NodeCoverage {
                node: report.node.to_string(),
                last_reported: report.last_reported,
                behind: report.behind,
                silent: now.duration_since(report.last_reported) > SILENT_AFTER,
            })
            .collect();
        let refused = figures.refused.values().sum::<u64>() + figures.undecodable;
        let mut problems = Vec::new();
        if nodes.is_empty() {
            problems.push("no agent has sent records yet; agents need --flows on and --flow-server".to_owned());
        }
        let silent: Vec<&str> = nodes.iter().filter(|node| node.silent).map(|node| node.node.as_str()).collect();
        if let [first, ..] = *silent {
            problems.push(format!("{} of {} nodes send no records, such as {first}", silent.len(), nodes.len()));
        }
        if refused > 0 {
            problems.push(format!("{refused} records were refused; ringfence_flows_refused_records says why"));
        }
        CoverageReport {
            since,
            kept_since: figures.oldest_window,
            records: figures.records,
            missed: figures.inbox.missed,
            evicted: figures.store.left_by_bytes,
            refused,
            nodes,
            exports: Vec::new(),
            problems,
        }
    }

    /// Adds the reports of exports and their problems.
    pub(crate) fn with_exports(mut self, exports: &Exports) -> CoverageReport {
        self.exports = exports.reports();
        self.problems.extend(exports.problems());
        self
    }

    pub(crate) fn silent_nodes(&self) -> usize {
        self.nodes.iter().filter(|node| node.silent).count()
    }
}
