//! The state of the provider as one immutable value, replaced by the publisher.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use access::PortReport;
use cluster::Problem;
use serde::Serialize;

use crate::history::{Clock, HistoryUsage};
use crate::metrics::{FeedDestination, FeedFigures};
use crate::remote;

#[derive(Debug, Clone, Default)]
pub(crate) struct ProviderStatus {
    pub(crate) cluster: String,
    /// Descriptions of required kinds that are not listed yet.
    pub(crate) missing: Vec<String>,
    /// Descriptions of optional kinds that the API server does not serve.
    pub(crate) unserved: Vec<String>,
    /// The initial sync is complete and published.
    pub(crate) published: bool,
    /// This process leads: it pushes and stores.
    pub(crate) leads: bool,
    /// Problems of the source, and of objects.
    pub(crate) problems: Vec<Problem>,
}

/// Response to `GET /status`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProviderStatusReport {
    version: &'static str,
    cluster: String,
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    unready: Option<String>,
    leads: bool,
    unserved: Vec<String>,
    problems: Vec<Problem>,
    feeds: BTreeMap<&'static str, FeedReport>,
    /// Omitted without history, or before the first publication.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<HistoryReport>,
    /// Omitted without other clusters. Their reachability does not affect `ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<Arc<remote::RemoteReport>>,
    port: PortReport,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FeedReport {
    #[serde(flatten)]
    baseline: Option<PublishedBaseline>,
    subscribers: usize,
    push_backlog: usize,
    relay: DeliveryReport,
    store: DeliveryReport,
}

/// The current baseline.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PublishedBaseline {
    #[serde(rename = "version")]
    pub(crate) of_version: String,
    #[serde(flatten)]
    pub(crate) position: feed::Position,
    pub(crate) count: usize,
}

/// Extent of the history for `/identity/lookup`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryReport {
    oldest: String,
    started: String,
    /// Limit that determines the start of the history: `start` (of the process), `age` or `bytes`.
    limited_by: &'static str,
    changes: usize,
    bytes: usize,
}

impl HistoryReport {
    pub(crate) fn of(usage: HistoryUsage, clock: Clock) -> HistoryReport {
        let HistoryUsage { started, oldest, limit, changes, bytes } = usage;
        let [oldest, started] = [oldest, started].map(|moment| clock.time_of(moment).to_string());
        HistoryReport { oldest, started, limited_by: limit.as_str(), changes, bytes }
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DeliveryReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    last_success_seconds_ago: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

impl ProviderStatus {
    /// Reason why the served data is incomplete; `None` if the provider is ready.
    pub(crate) fn unready(&self) -> Option<String> {
        match (self.missing.is_empty(), self.published) {
            (false, _) => {
                Some(format!("initial sync not complete; waiting for the list of: {}", self.missing.join(", ")))
            }
            (true, false) => Some("nothing published yet".into()),
            (true, true) => None,
        }
    }

    pub(crate) fn report<'a>(
        &self,
        feeds: impl IntoIterator<Item = (&'a FeedFigures, Option<PublishedBaseline>)>,
        remote: Option<Arc<remote::RemoteReport>>,
        history: Option<HistoryReport>,
        port: PortReport,
        now: Instant,
    ) -> ProviderStatusReport {
        let unready = self.unready();
        let delivery = |figures: &FeedFigures, outlet| {
            let delivered = figures.of(outlet);
            let ago = delivered.last.map(|at| now.saturating_duration_since(at).as_secs());
            DeliveryReport { last_success_seconds_ago: ago, failure: delivered.failure }
        };
        let of_feed = |(figures, baseline): (&'a FeedFigures, Option<PublishedBaseline>)| {
            let report = FeedReport {
                baseline,
                subscribers: figures.subscribers(),
                push_backlog: figures.backlog(),
                relay: delivery(figures, FeedDestination::Relay),
                store: delivery(figures, FeedDestination::Store),
            };
            (figures.name, report)
        };
        ProviderStatusReport {
            version: env!("CARGO_PKG_VERSION"),
            cluster: self.cluster.clone(),
            ready: unready.is_none(),
            unready,
            leads: self.leads,
            unserved: self.unserved.clone(),
            problems: self.problems.clone(),
            feeds: feeds.into_iter().map(of_feed).collect(),
            history,
            remote,
            port,
        }
    }
}
