//! How things stand with the other clusters: moments, of which the status makes ages.

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::Mirror;
use super::mirror::View;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RemoteStanding {
    /// Why no provider is followed, and since when; none while one is.
    pub(crate) problem: Option<(String, Instant)>,
    /// What is known cannot be kept on disk, and why.
    pub(crate) unkept: Option<String>,
    /// By name.
    pub(crate) clusters: Vec<ClusterStanding>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterStanding {
    pub(crate) cluster: String,
    /// A provider is followed, and says that the cluster answers.
    pub(crate) fresh: bool,
    /// When its sets were known to be right last, unless that is now; none if they never were.
    pub(crate) as_of: Option<Instant>,
    /// The provider knows less of it than is in force.
    pub(crate) held: bool,
    /// Its sets are too old to be in force (`--remote-max-stale`).
    pub(crate) dropped: bool,
    pub(crate) sets: usize,
    pub(crate) addresses: usize,
}

impl RemoteStanding {
    pub(super) fn clusters_of(mirror: &Mirror, now: Timestamp) -> Vec<ClusterStanding> {
        let moment = Instant::now();
        let standing = |View { cluster, fresh, as_of, held, dropped, sets, addresses }| {
            let age = |as_of: Timestamp| Duration::try_from(now.duration_since(as_of)).unwrap_or_default();
            let as_of = as_of.map(|as_of| moment.checked_sub(age(as_of)).unwrap_or(moment));
            let cluster = policy::plain(cluster).to_string();
            ClusterStanding { cluster, fresh, as_of, held, dropped, sets, addresses }
        };
        mirror.views().map(standing).collect()
    }
}

impl ClusterStanding {
    /// For how long nobody has known whether its sets are right; none if they never were.
    pub(crate) fn age(&self, now: Instant) -> Option<Duration> {
        if self.fresh { Some(Duration::ZERO) } else { self.as_of.map(|as_of| now.saturating_duration_since(as_of)) }
    }
}
