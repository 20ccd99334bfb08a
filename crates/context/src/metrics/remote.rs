//! Metrics of other clusters. The label values are the names in the configuration file, which are few.

use jiff::Timestamp;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Seconds, number};
use crate::remote::RemoteReport;
use crate::remote::limits::Amounts;

type Label = [(&'static str, String); 1];

/// Cluster and limited resource.
type ResourceLabel = [(&'static str, String); 2];

#[derive(Debug, Clone, Default)]
pub(crate) struct RemoteFigures {
    sets: Family<Label, Gauge>,
    addresses: Family<Label, Gauge>,
    reachable: Family<Label, Gauge>,
    last_sync: Family<Label, Seconds>,
    stale: Family<Label, Seconds>,
    restarts: Family<Label, Counter>,
    export_failures: Family<Label, Counter>,
    exported: Family<Label, Gauge>,
    offered: Family<ResourceLabel, Gauge>,
    limits: Family<ResourceLabel, Gauge>,
    left_out: Family<Label, Gauge>,
}

fn label(cluster: &str) -> Label {
    [("cluster", cluster.to_owned())]
}

fn of_resources(cluster: &str, amounts: Amounts) -> [(ResourceLabel, usize); 3] {
    let Amounts { sets, addresses, label_bytes } = amounts;
    let label = |resource: &str| [("cluster", cluster.to_owned()), ("resource", resource.to_owned())];
    [(label("sets"), sets), (label("addresses"), addresses), (label("label_bytes"), label_bytes)]
}

impl RemoteFigures {
    pub(super) fn register(&self, registry: &mut Registry) {
        let RemoteFigures {
            sets,
            addresses,
            reachable,
            last_sync,
            stale,
            restarts,
            export_failures,
            exported,
            offered,
            limits,
            left_out,
        } = self;
        registry.register(
            "remote_offered",
            "Sets, addresses and bytes of labels that the cluster offers, including those beyond its limits",
            offered.clone(),
        );
        registry.register(
            "remote_limit",
            "Sets, addresses and bytes of labels that the cluster may offer",
            limits.clone(),
        );
        let mut gauge = |name: &str, help: &str, family: &Family<Label, Gauge>| {
            registry.register(name, help, family.clone());
        };
        gauge("remote_sets", "Remote sets of the cluster", sets);
        gauge("remote_addresses", "Addresses in at least one remote set of the cluster", addresses);
        gauge("remote_reachable", "1 while the cluster is reachable and its remote sets are up to date", reachable);
        gauge("remote_left_out_sets", "Sets left out because the cluster offers more than its limits", left_out);
        gauge("remote_exported", "GlobalNetworkSets that are up to date", exported);
        registry.register_with_unit(
            "remote_last_sync_timestamp",
            "Unix time at which the remote sets were last up to date; NaN if they never were",
            Unit::Seconds,
            last_sync.clone(),
        );
        registry.register_with_unit(
            "remote_stale",
            "Age of the stale remote sets while the cluster is unreachable, 0 while it is reachable; NaN if it never \
             was",
            Unit::Seconds,
            stale.clone(),
        );
        registry.register(
            "remote_watch_restarts",
            "Requests to the cluster that failed and were retried",
            restarts.clone(),
        );
        registry.register(
            "remote_export_failures",
            "Failed updates of GlobalNetworkSets, and updates skipped because the object belongs to another operator",
            export_failures.clone(),
        );
    }

    /// Creates the series of a watched cluster.
    pub(crate) fn begin(&self, cluster: &str) {
        drop(self.restarts.get_or_create(&label(cluster)));
        drop(self.export_failures.get_or_create(&label(cluster)));
        drop(self.exported.get_or_create(&label(cluster)));
    }

    pub(crate) fn discard(&self, cluster: &str) {
        let RemoteFigures {
            sets,
            addresses,
            reachable,
            last_sync,
            stale,
            restarts,
            export_failures,
            exported,
            offered,
            limits,
            left_out,
        } = self;
        for (label, _) in of_resources(cluster, Amounts::default()) {
            offered.remove(&label);
            limits.remove(&label);
        }
        let label = label(cluster);
        for family in [sets, addresses, reachable, exported, left_out] {
            family.remove(&label);
        }
        for family in [last_sync, stale] {
            family.remove(&label);
        }
        for family in [restarts, export_failures] {
            family.remove(&label);
        }
    }

    pub(crate) fn restarted(&self, cluster: &str, times: u64) {
        if times > 0 {
            self.restarts.get_or_create(&label(cluster)).inc_by(times);
        }
    }

    pub(crate) fn exported(&self, cluster: &str, objects: usize) {
        self.exported.get_or_create(&label(cluster)).set(number(objects));
    }

    pub(crate) fn export_failed(&self, cluster: &str) {
        self.export_failures.get_or_create(&label(cluster)).inc();
    }

    pub(super) fn set(&self, report: &RemoteReport, now: Timestamp) {
        for cluster in &report.clusters {
            let label = label(&cluster.cluster);
            self.sets.get_or_create(&label).set(number(cluster.sets));
            self.addresses.get_or_create(&label).set(number(cluster.addresses));
            self.left_out.get_or_create(&label).set(number(cluster.left_out.sets));
            for (label, amount) in of_resources(&cluster.cluster, cluster.offered) {
                self.offered.get_or_create(&label).set(number(amount));
            }
            for (label, limit) in of_resources(&cluster.cluster, cluster.limits) {
                self.limits.get_or_create(&label).set(number(limit));
            }
            self.reachable.get_or_create(&label).set(i64::from(cluster.reachable));
            let synced = cluster.synced_at.map_or(f64::NAN, |at| at.as_microsecond() as f64 / 1e6);
            self.last_sync.get_or_create(&label).set(synced);
            self.stale.get_or_create(&label).set(cluster.stale_seconds(now).unwrap_or(f64::NAN));
        }
    }
}
