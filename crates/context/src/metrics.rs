//! Prometheus metrics, in OpenMetrics text; docs/context.md describes each.
//!
//! Label values are from closed sets: feeds, outlets, reasons for the end of a subscription, configured clusters.
//! Counters are incremented where events occur; gauges are set when scraped.

mod feed;
mod history;
mod remote;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use access::AccessFigures;
use jiff::Timestamp;
use listener::{exposition, program_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::directory::{Directory, NumberUsage};
use crate::history::{Clock, HistoryUsage};
use crate::record::RECORDED;
use crate::remote::RemoteReport;
use crate::status::ProviderStatus;
pub(crate) use feed::{FeedDestination, FeedFigures};
use history::HistoryFigures;
pub(crate) use remote::RemoteFigures;

pub(crate) type Labels = [(&'static str, &'static str); 1];
pub(crate) type Pairs = [(&'static str, &'static str); 2];
pub(crate) type Seconds = Gauge<f64, AtomicU64>;

/// Histogram buckets: 1 ms to 32 s. Publications are delayed by 200 ms on purpose; uploading a baseline may take
/// seconds.
fn buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// All metrics.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    families: Families,
    published_after: Histogram,
    refused_connections: Counter,
    ready: Gauge,
    leads: Gauge,
    problems: Gauge,
    identities: Gauge,
    exceptions: Gauge,
    unnumbered: Gauge,
    reserved: Family<Labels, Gauge>,
    history: HistoryFigures,
    remote: RemoteFigures,
    access: AccessFigures,
}

/// Metric families with a label for the feed.
#[derive(Debug, Clone)]
pub(crate) struct Families {
    entries: Family<Labels, Gauge>,
    sequence: Family<Labels, Gauge>,
    backlog: Family<Labels, Gauge>,
    baseline_bytes: Family<Labels, Gauge>,
    subscribers: Family<Labels, Gauge>,
    deltas: Family<Labels, Counter>,
    dropped_subscribers: Family<Labels, Counter>,
    deliveries: Family<Pairs, Counter>,
    failures: Family<Pairs, Counter>,
    reseeds: Family<Pairs, Counter>,
    last_success_age: Family<Pairs, Seconds>,
    took: Histograms<Pairs>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut root = Registry::default();
        let registry = program_registry(&mut root, "ringfence_context", "provider", env!("CARGO_PKG_VERSION"));
        let families = Families {
            entries: Family::default(),
            sequence: Family::default(),
            backlog: Family::default(),
            baseline_bytes: Family::default(),
            subscribers: Family::default(),
            deltas: Family::default(),
            dropped_subscribers: Family::default(),
            deliveries: Family::default(),
            failures: Family::default(),
            reseeds: Family::default(),
            last_success_age: Family::default(),
            took: Family::new_with_constructor(buckets),
        };
        let mut gauge = |name: &str, help: &str, family: &Family<Labels, Gauge>| {
            registry.register(name, help, family.clone());
        };
        gauge("entries", "Entries in the last published table", &families.entries);
        gauge("sequence", "Sequence number of the last delta in its epoch", &families.sequence);
        gauge("push_backlog", "Deltas in the outbox that the relay has not acknowledged", &families.backlog);
        gauge("subscribers", "Open subscriptions (streams of deltas)", &families.subscribers);
        registry.register_with_unit(
            "baseline",
            "Size of the last encoded baseline",
            Unit::Bytes,
            families.baseline_bytes.clone(),
        );
        registry.register("deltas", "Published deltas", families.deltas.clone());
        registry.register(
            "dropped_subscribers",
            "Streams closed because the subscriber was too slow",
            families.dropped_subscribers.clone(),
        );
        registry.register(
            "deliveries",
            "Baselines and deltas that the relay or store accepted",
            families.deliveries.clone(),
        );
        registry.register(
            "delivery_failures",
            "Failed attempts to push to the relay or store",
            families.failures.clone(),
        );
        registry.register(
            "reseeds",
            "Baselines pushed again because the relay or store had lost them",
            families.reseeds.clone(),
        );
        registry.register_with_unit(
            "last_delivery_age",
            "Time since the relay or store last accepted a push; NaN before the first",
            Unit::Seconds,
            families.last_success_age.clone(),
        );
        registry.register_with_unit("delivery", "Duration of an attempt to push", Unit::Seconds, families.took.clone());
        let published_after = buckets();
        registry.register_with_unit(
            "publication_latency",
            "Time from an event's arrival to the delta that publishes it",
            Unit::Seconds,
            published_after.clone(),
        );
        let refused_connections = Counter::default();
        registry.register(
            "refused_connections",
            "Connections refused because the limit of open files was reached",
            refused_connections.clone(),
        );
        let (ready, leads, problems) = (Gauge::default(), Gauge::default(), Gauge::default());
        registry.register("ready", "1 while the initial sync is complete and the tables are published", ready.clone());
        registry.register("leads", "1 while this process is the leader, which pushes and stores", leads.clone());
        registry.register(
            "source_problems",
            "Problems of the informers or of the manifest folder; the tables may be stale",
            problems.clone(),
        );
        let (identities, exceptions, unnumbered) = (Gauge::default(), Gauge::default(), Gauge::default());
        registry.register("identities", "Security identities with at least one address", identities.clone());
        registry.register(
            "identity_exceptions",
            "Identities whose number is not their home because of a hash collision, including recently removed \
             identities",
            exceptions.clone(),
        );
        registry.register(
            "identities_without_number",
            "Identities without a number because all numbers are in use; they share the number 0",
            unnumbered.clone(),
        );
        let reserved: Family<Labels, Gauge> = Family::default();
        registry.register(
            "reserved_records",
            "Addresses of nodes, API servers, Ingresses, remote pods, and pods without a security identity, by state",
            reserved.clone(),
        );
        let history = HistoryFigures::default();
        history.register(registry);
        let remote = RemoteFigures::default();
        remote.register(registry);
        let access = AccessFigures::default();
        access.register(registry);
        Metrics {
            registry: root,
            families,
            published_after,
            refused_connections,
            ready,
            leads,
            problems,
            identities,
            exceptions,
            unnumbered,
            reserved,
            history,
            remote,
            access,
        }
    }

    /// Metrics of TLS and authentication.
    pub(crate) fn of_access(&self) -> AccessFigures {
        self.access.clone()
    }

    /// Metrics of other clusters.
    pub(crate) fn of_remote(&self) -> RemoteFigures {
        self.remote.clone()
    }

    pub(crate) fn set_identities(&self, directory: &Directory) {
        for state in RECORDED {
            let gauge = self.reserved.get_or_create(&[("state", state.text())]);
            gauge.set(number(directory.count_in_state(state)));
        }
        let NumberUsage { identities, exceptions, unnumbered } = directory.number_usage();
        self.identities.set(number(identities));
        self.exceptions.set(number(exceptions));
        self.unnumbered.set(number(unnumbered));
    }

    pub(crate) fn set_history(&self, usage: Option<HistoryUsage>, clock: Clock) {
        self.history.set(usage, clock);
    }

    /// Counts changes that were evicted from the history.
    pub(crate) fn evicted_history(&self, changes: usize) {
        self.history.evicted(changes);
    }

    pub(crate) fn refuse_connection(&self) {
        self.refused_connections.inc();
    }

    /// The metrics of one feed.
    pub(crate) fn of_feed(&self, name: &'static str) -> FeedFigures {
        FeedFigures::new(name, self.families.clone())
    }

    /// Observes the delay between an event and the delta that carries it.
    pub(crate) fn published(&self, after: Duration) {
        self.published_after.observe(after.as_secs_f64());
    }

    pub(crate) fn text(
        &self,
        status: &ProviderStatus,
        feeds: &[FeedFigures],
        remote: Option<&RemoteReport>,
        now: Instant,
    ) -> Result<String, fmt::Error> {
        if let Some(report) = remote {
            self.remote.set(report, Timestamp::now());
        }
        self.ready.set(i64::from(status.unready().is_none()));
        self.leads.set(i64::from(status.leads));
        self.problems.set(number(status.problems.len()));
        for feed in feeds {
            feed.set(now);
        }
        exposition(&self.registry)
    }
}

fn number(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
