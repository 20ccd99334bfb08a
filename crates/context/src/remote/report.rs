//! State of each of the other clusters, for status and metrics.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::limits::Amounts;

/// All clusters, by name.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RemoteReport {
    pub(crate) clusters: Vec<ClusterReport>,
    /// Problem of the configuration file; its last valid content stays in effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    /// Problems of the whole export.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) export: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterReport {
    pub(crate) cluster: String,
    /// The cluster is reachable, and its sets are up to date.
    pub(crate) reachable: bool,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "moment")]
    pub(crate) synced_at: Option<Timestamp>,
    pub(crate) sets: usize,
    pub(crate) addresses: usize,
    /// Size of all its sets, those that exceed the limits included.
    pub(crate) offered: Amounts,
    pub(crate) limits: Amounts,
    /// Size of the sets that exceed the limits and are left out.
    pub(crate) left_out: Amounts,
    pub(crate) watch_restarts: u64,
    /// Its sets were dropped after exceeding the maximum staleness.
    pub(crate) dropped: bool,
    pub(crate) problems: Vec<String>,
}

impl ClusterReport {
    /// Age of the last sync: zero while the cluster is reachable, `None` if there never was one.
    pub(crate) fn stale_seconds(&self, now: Timestamp) -> Option<f64> {
        match (self.reachable, self.synced_at) {
            (true, _) => Some(0.0),
            (false, at) => at.map(|at| now.duration_since(at).as_secs_f64().max(0.0)),
        }
    }
}

fn moment<S: Serializer>(at: &Option<Timestamp>, serializer: S) -> Result<S::Ok, S::Error> {
    match at {
        Some(at) => serializer.collect_str(at),
        None => serializer.serialize_none(),
    }
}
