//! How things stand with each of the other clusters, for status and figures.

use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::limits::Amounts;

/// All of them, by name.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    pub(crate) clusters: Vec<ClusterReport>,
    /// What is wrong with the file that names them, while what it said before counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) file: Option<String>,
    /// What keeps anything from being exported.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) export: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClusterReport {
    pub(crate) cluster: String,
    /// It answers, and what is served of it is as of now.
    pub(crate) reachable: bool,
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "moment")]
    pub(crate) synced_at: Option<Timestamp>,
    pub(crate) sets: usize,
    pub(crate) addresses: usize,
    /// All that its pods offer, what exceeds the limits included.
    pub(crate) offered: Amounts,
    pub(crate) limits: Amounts,
    /// What exceeds the limits, and is in no set.
    pub(crate) left_out: Amounts,
    pub(crate) watch_restarts: u64,
    /// Its sets were dropped since nothing was heard of it for too long.
    pub(crate) dropped: bool,
    pub(crate) problems: Vec<String>,
}

impl ClusterReport {
    /// How long nothing is known of what the cluster offers: zero while it answers, none if it never did.
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
