//! Metrics of other clusters' pods. The cluster labels are those of the providers' configuration, which no workload can
//! extend.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::remote::RemoteFreshness;

type OfCluster = [(&'static str, String); 1];

#[derive(Debug, Default)]
pub(super) struct RemoteFigures {
    connected: Gauge,
    kept: Gauge,
    sets: Family<OfCluster, Gauge>,
    addresses: Family<OfCluster, Gauge>,
    stale: Family<OfCluster, Gauge<f64, AtomicU64>>,
    dropped: Family<OfCluster, Gauge>,
}

impl RemoteFigures {
    pub(super) fn register(registry: &mut Registry) -> RemoteFigures {
        let figures = RemoteFigures::default();
        let registry = registry.sub_registry_with_prefix("remote");
        registry.register(
            "provider_connected",
            "1 while subscribed to a context provider; also 0 if none is configured",
            figures.connected.clone(),
        );
        registry.register(
            "state_kept",
            "1 while the state of other clusters is saved on disk; also 0 if no context provider is configured",
            figures.kept.clone(),
        );
        registry.register("sets", "Remote sets of the cluster that are in force", figures.sets.clone());
        registry.register(
            "addresses",
            "Addresses of these remote sets, summed over the sets",
            figures.addresses.clone(),
        );
        registry.register_with_unit(
            "stale",
            "Time since the remote sets of the cluster were last up to date; NaN if they never were",
            Unit::Seconds,
            figures.stale.clone(),
        );
        registry.register(
            "dropped",
            "1 while the remote sets of the cluster are expired and not in force",
            figures.dropped.clone(),
        );
        figures
    }

    pub(super) fn set(&self, freshness: Option<&RemoteFreshness>, now: Instant) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let clusters = freshness.map_or(&[][..], |freshness| &freshness.clusters);
        self.connected.set(i64::from(freshness.is_some_and(|freshness| freshness.problem.is_none())));
        self.kept.set(i64::from(freshness.is_some_and(|freshness| freshness.persist_problem.is_none())));
        // A cluster that is no longer watched has no series.
        self.sets.clear();
        self.addresses.clear();
        self.stale.clear();
        self.dropped.clear();
        for cluster in clusters {
            let label = [("cluster", cluster.cluster.clone())];
            let stale = cluster.age(now).map_or(f64::NAN, |age| age.as_secs_f64());
            self.sets.get_or_create(&label).set(number(cluster.sets));
            self.addresses.get_or_create(&label).set(number(cluster.addresses));
            self.stale.get_or_create(&label).set(stale);
            self.dropped.get_or_create(&label).set(i64::from(cluster.dropped));
        }
    }
}
