//! What the provider knows and does, as one value that the publisher replaces and others read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use access::PortReport;
use cluster::Problem;
use serde::Serialize;

use crate::history::{Clock, HistoryUsage};
use crate::metrics::{FeedFigures, Outlet};
use crate::remote;

#[derive(Debug, Clone, Default)]
pub(crate) struct Status {
    pub(crate) cluster: String,
    /// Kinds that are needed and have not been listed yet, in words.
    pub(crate) missing: Vec<String>,
    /// Kinds that the API server does not know and that only classify, in words.
    pub(crate) unserved: Vec<String>,
    /// Everything that is needed has been published once.
    pub(crate) published: bool,
    /// This process pushes and stores.
    pub(crate) leads: bool,
    /// What keeps the source from telling the whole truth, or could not be understood.
    pub(crate) problems: Vec<Problem>,
}

/// `/status`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    version: &'static str,
    cluster: String,
    ready: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    unready: Option<String>,
    leads: bool,
    unserved: Vec<String>,
    problems: Vec<Problem>,
    feeds: BTreeMap<&'static str, FeedReport>,
    /// Left out where none is kept, or nothing was published yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    history: Option<HistoryReport>,
    /// Left out where no other clusters are watched. Whether they answer has no part in `ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    remote: Option<Arc<remote::Report>>,
    port: PortReport,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FeedReport {
    #[serde(flatten)]
    baseline: Option<Published>,
    subscribers: usize,
    push_backlog: usize,
    relay: DeliveryReport,
    store: DeliveryReport,
}

/// The baseline as it is now.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Published {
    #[serde(rename = "version")]
    pub(crate) of_version: String,
    #[serde(flatten)]
    pub(crate) position: feed::Position,
    pub(crate) count: usize,
}

/// How far back `/identity/lookup` knows.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct HistoryReport {
    oldest: String,
    started: String,
    /// Why nothing older is known: `start`, `age` or `bytes`.
    limited_by: &'static str,
    changes: usize,
    bytes: usize,
}

impl HistoryReport {
    pub(crate) fn of(usage: HistoryUsage, clock: Clock) -> HistoryReport {
        let HistoryUsage { started, oldest, limit, changes, bytes } = usage;
        let [oldest, started] = [oldest, started].map(|moment| clock.time_of(moment).to_string());
        HistoryReport { oldest, started, limited_by: limit.word(), changes, bytes }
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

impl Status {
    /// Why nobody should rely on what is served.
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
        feeds: impl IntoIterator<Item = (&'a FeedFigures, Option<Published>)>,
        remote: Option<Arc<remote::Report>>,
        history: Option<HistoryReport>,
        port: PortReport,
        now: Instant,
    ) -> Report {
        let unready = self.unready();
        let delivery = |figures: &FeedFigures, outlet| {
            let delivered = figures.of(outlet);
            let ago = delivered.last.map(|at| now.saturating_duration_since(at).as_secs());
            DeliveryReport { last_success_seconds_ago: ago, failure: delivered.failure }
        };
        let of_feed = |(figures, baseline): (&'a FeedFigures, Option<Published>)| {
            let report = FeedReport {
                baseline,
                subscribers: figures.subscribers(),
                push_backlog: figures.backlog(),
                relay: delivery(figures, Outlet::Relay),
                store: delivery(figures, Outlet::Store),
            };
            (figures.name, report)
        };
        Report {
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
