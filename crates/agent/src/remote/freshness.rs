//! Status of other clusters, in `Instant`s; the status report turns them into ages.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::Mirror;
use super::mirror::View;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RemoteFreshness {
    /// Why no provider is followed, and since when; `None` while one is.
    pub(crate) problem: Option<(String, Instant)>,
    /// Why the state cannot be persisted.
    pub(crate) persist_problem: Option<String>,
    /// Sorted by cluster name.
    pub(crate) clusters: Vec<ClusterFreshness>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterFreshness {
    pub(crate) cluster: String,
    /// The provider is connected and reports the cluster as reachable.
    pub(crate) fresh: bool,
    /// When its sets were last known to be current, unless that is now; `None` if never.
    pub(crate) as_of: Option<Instant>,
    /// The sets are held because the provider's view is older.
    pub(crate) held: bool,
    /// Its sets are stale and not in force (`--remote-max-stale`).
    pub(crate) dropped: bool,
    pub(crate) sets: usize,
    pub(crate) addresses: usize,
}

impl RemoteFreshness {
    pub(super) fn clusters_of(mirror: &Mirror, now: Timestamp) -> Vec<ClusterFreshness> {
        let moment = Instant::now();
        let freshness = |View { cluster, fresh, as_of, held, dropped, sets, addresses }| {
            let age = |as_of: Timestamp| Duration::try_from(now.duration_since(as_of)).unwrap_or_default();
            let as_of = as_of.map(|as_of| moment.checked_sub(age(as_of)).unwrap_or(moment));
            let cluster = policy::plain(cluster).to_string();
            ClusterFreshness { cluster, fresh, as_of, held, dropped, sets, addresses }
        };
        mirror.views().map(freshness).collect()
    }
}

impl ClusterFreshness {
    /// Time since the sets were last known to be current; `None` if they never were.
    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        if self.fresh { Some(Duration::ZERO) } else { self.as_of.map(|as_of| now.saturating_duration_since(as_of)) }
    }
}
