//! Prometheus metrics in OpenMetrics text; docs/metrics.md describes each.
//!
//! Label values are from closed sets ([`labels`]): no pod names, no addresses. Counters are incremented where the event
//! happens; gauges are set from the status at each scrape.

mod drops;
mod flows;
pub(crate) mod labels;
mod process;
mod recent_keys;
mod remote;
mod rules;
mod services;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use listener::{exposition, program_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::api::status::{Commits, Repairs};
use crate::dns::connections::IgnoreReason;
use crate::flows::FlowStore;
use crate::memory::Stores;
use crate::status::{AgentStatus, Totals};
pub(crate) use drops::DropFigures;
use flows::FlowCollector;
use labels::{AddressRefusal, AnswerOutcome, Listens, PolicyState, RepairCause, WatchedKind};
use remote::RemoteFigures;

type Labels = [(&'static str, &'static str); 1];
type Seconds = Gauge<f64, AtomicU64>;

/// Upper bounds of the histograms' buckets: 0.1 ms to 3 s, and beyond. A commit of one change takes less than a
/// millisecond, one of a hundred thousand elements about a second.
fn buckets() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.0, 16))
}

#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    pub(crate) commits: Counter,
    pub(crate) refused_commits: Counter,
    pub(crate) resyncs: Counter,
    /// Translation checks (incremental against full translation).
    pub(crate) translation_checks: Counter,
    /// Translation checks that found a difference.
    pub(crate) translation_differences: Counter,
    pub(crate) events: Counter,
    /// Foreign commits that touched our tables.
    pub(crate) drift_events: Counter,
    pub(crate) lost_notifications: Counter,
    /// Events whose latency was not measured, since too many were pending.
    pub(crate) unmeasured_events: Counter,
    pub(crate) commit_seconds: Histogram,
    pub(crate) cni_add_seconds: Histogram,
    /// Denied packets, and packets that audited policies would deny.
    pub(crate) drops: DropFigures,
    repairs: Family<Labels, Counter>,
    refused_connections: Family<Labels, Counter>,
    dns_answers: Family<Labels, Counter>,
    ignored_dns_segments: Family<Labels, Counter>,
    refused_dns_addresses: Family<Labels, Counter>,
    latency: Family<Labels, Histogram, fn() -> Histogram>,
    gauges: Gauges,
}

#[derive(Debug, Default)]
struct Gauges {
    ready: Gauge,
    elements: Gauge,
    programs: Gauge,
    pods_on_node: Gauge,
    isolated_pods: Gauge,
    audited_pods: Gauge,
    unknown_pods: Gauge,
    not_understood: Gauge,
    source_problems: Gauge,
    kernel_generation: Gauge,
    policy_generation: Gauge,
    policies: Family<Labels, Gauge>,
    objects: Family<Labels, Gauge>,
    store_memory: Family<Labels, Gauge>,
    last_commit_age: Seconds,
    last_change_age: Seconds,
    synced_age: Seconds,
    resident_memory: Gauge,
    learned_names: Gauge,
    remote: RemoteFigures,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        let mut root = Registry::default();
        let gauges = Gauges::register(&mut root);
        let registry = program_registry(&mut root, "ringfence", "agent", env!("CARGO_PKG_VERSION"));
        let mut counter = |name: &str, help: &str| {
            let metric = Counter::default();
            registry.register(name, help, metric.clone());
            metric
        };
        let commits = counter("commits", "Transactions that the kernel committed");
        let refused_commits = counter("refused_commits", "Transactions that the kernel refused");
        let resyncs = counter("resyncs", "Resyncs: full comparisons of the tables with the wanted rules");
        let help = "Translation checks: comparisons of the incremental translation with a fresh one";
        let translation_checks = counter("translation_checks", help);
        let help = "Translation checks that found a difference and replaced the rules by a fresh translation";
        let translation_differences = counter("translation_differences", help);
        let events = counter("events", "Event batches from the informers; a batch may contain many changes");
        let drift_events = counter("drift_events", "Commits of other programs that touched the agent's tables");
        let lost_notifications = counter(
            "lost_notifications",
            "Times that netlink notifications were lost (ENOBUFS), which causes a resync",
        );
        let unmeasured_events = counter(
            "unmeasured_events",
            "Events that enforcement_latency does not include, since too many were pending at once",
        );
        let repairs = Family::<Labels, Counter>::default();
        for cause in RepairCause::ALL {
            drop(repairs.get_or_create(&cause.label()));
        }
        registry.register("repairs", "Transactions that repaired changes by other programs", repairs.clone());
        let refused_connections = Family::<Labels, Counter>::default();
        for listens in Listens::ALL {
            drop(refused_connections.get_or_create(&listens.label()));
        }
        let help = "Connections refused because the listener's connection limit was reached";
        registry.register("refused_connections", help, refused_connections.clone());
        let dns_answers = Family::<Labels, Counter>::default();
        for outcome in AnswerOutcome::ALL {
            drop(dns_answers.get_or_create(&outcome.label()));
        }
        let help = "DNS answers to pods whose cluster policies have domain names, by outcome";
        registry.register("dns_answers", help, dns_answers.clone());
        let ignored_dns_segments = Family::<Labels, Counter>::default();
        for reason in IgnoreReason::ALL {
            drop(ignored_dns_segments.get_or_create(&reason.label()));
        }
        let help = "Copied TCP segments of resolvers that were not assembled to DNS answers";
        registry.register("ignored_dns_segments", help, ignored_dns_segments.clone());
        let refused_dns_addresses = Family::<Labels, Counter>::default();
        for refusal in AddressRefusal::ALL {
            drop(refused_dns_addresses.get_or_create(&refusal.label()));
        }
        let help = "Addresses in DNS answers that were not learned although a policy has the name";
        registry.register("refused_dns_addresses", help, refused_dns_addresses.clone());
        let latency: Family<Labels, Histogram, fn() -> Histogram> = Family::new_with_constructor(buckets);
        for kind in WatchedKind::ALL {
            drop(latency.get_or_create(&kind.label()));
        }
        registry.register_with_unit(
            "enforcement_latency",
            "Time from an event's arrival to the commit that covers it, or to the decision that no commit is needed",
            Unit::Seconds,
            latency.clone(),
        );
        let mut histogram = |name: &str, help: &str| {
            let metric = buckets();
            registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
            metric
        };
        let commit_seconds = histogram(
            "commit_duration",
            "Time from the end of the translation to the kernel's acknowledgement of the commit",
        );
        let cni_add_seconds =
            histogram("cni_add_duration", "Time from the CNI plugin's ADD request to the commit of the pod's rules");
        let drops = DropFigures::register(registry);
        Metrics {
            registry: root,
            commits,
            refused_commits,
            resyncs,
            translation_checks,
            translation_differences,
            events,
            drift_events,
            lost_notifications,
            unmeasured_events,
            commit_seconds,
            cni_add_seconds,
            drops,
            repairs,
            refused_connections,
            dns_answers,
            ignored_dns_segments,
            refused_dns_addresses,
            latency,
            gauges,
        }
    }

    /// Adds the metrics of flow records.
    pub(crate) fn with_flows(mut self, store: Arc<FlowStore>) -> Metrics {
        self.registry.sub_registry_with_prefix("ringfence").register_collector(Box::new(FlowCollector(store)));
        self
    }

    pub(crate) fn repaired(&self, cause: RepairCause) {
        self.repairs.get_or_create(&cause.label()).inc();
    }

    pub(crate) fn refuse_connection(&self, at: Listens) {
        self.refused_connections.get_or_create(&at.label()).inc();
    }

    pub(crate) fn dns_answer(&self, outcome: AnswerOutcome, answers: u64) {
        self.dns_answers.get_or_create(&outcome.label()).inc_by(answers);
    }

    pub(crate) fn ignore_dns_segment(&self, reason: IgnoreReason) {
        self.ignored_dns_segments.get_or_create(&reason.label()).inc();
    }

    pub(crate) fn dns_address_refused(&self, refusal: AddressRefusal) {
        self.refused_dns_addresses.get_or_create(&refusal.label()).inc();
    }

    /// Observes the latency of an event that the rules cover now.
    pub(crate) fn enforced(&self, kind: WatchedKind, latency: Duration) {
        self.latency.get_or_create(&kind.label()).observe(latency.as_secs_f64());
    }

    /// Current values of the counters.
    pub(crate) fn totals(&self, now: Instant) -> Totals {
        let commits = Commits { committed: self.commits.get(), refused: self.refused_commits.get() };
        let repairs = |cause: RepairCause| self.repairs.get_or_create(&cause.label()).get();
        let repairs = Repairs {
            changed: repairs(RepairCause::Changed),
            removed: repairs(RepairCause::Removed),
            at_start: repairs(RepairCause::AtStart),
        };
        Totals { commits, repairs, drops: self.drops.summary(now), flows: None }
    }

    pub(crate) fn text(&self, status: &AgentStatus, now: Instant) -> Result<String, fmt::Error> {
        self.gauges.set(status, now);
        exposition(&self.registry)
    }
}

impl Gauges {
    fn register(root: &mut Registry) -> Gauges {
        let mut gauges = Gauges::default();
        root.register_with_unit(
            "process_resident_memory",
            "Resident memory of the agent's process",
            Unit::Bytes,
            gauges.resident_memory.clone(),
        );
        let registry = root.sub_registry_with_prefix("ringfence");
        let mut gauge = |name: &str, help: &str, metric: &Gauge| registry.register(name, help, metric.clone());
        gauge("ready", "1 while the rules of all policies are in force", &gauges.ready);
        gauge("elements", "Elements in all sets and maps", &gauges.elements);
        gauge("programs", "Compiled programs: distinct sets of rules on this node", &gauges.programs);
        gauge(
            "pods_on_node",
            "Pods of this node with a pod IP of their own, not on the host network",
            &gauges.pods_on_node,
        );
        gauge("isolated_pods", "Pods of this node that at least one enforced policy isolates", &gauges.isolated_pods);
        let help = "Pods of this node that only audited policies select for at least one direction";
        gauge("audited_pods", help, &gauges.audited_pods);
        gauge(
            "unknown_pods",
            "Attached pods whose objects the agent has not received; all their traffic is denied",
            &gauges.unknown_pods,
        );
        gauge(
            "not_understood",
            "Diagnostics: invalid or unsupported parts of objects, which deny",
            &gauges.not_understood,
        );
        gauge(
            "source_problems",
            "Problems of the informers or of the manifest folder; the state may be stale",
            &gauges.source_problems,
        );
        gauge("kernel_generation", "Generation of the kernel's ruleset (number of commits)", &gauges.kernel_generation);
        gauge("policy_generation", "Generation of approvals in the connection marks", &gauges.policy_generation);
        gauge("learned_names", "Domain names that have learned addresses", &gauges.learned_names);
        let mut family = |name: &str, help: &str, metric: &Family<Labels, Gauge>| {
            registry.register(name, help, metric.clone());
        };
        family("policies", "Policies by state", &gauges.policies);
        family("objects", "Objects in the store by kind", &gauges.objects);
        registry.register_with_unit(
            "store_memory",
            "Estimated memory of the stored objects and their rules",
            Unit::Bytes,
            gauges.store_memory.clone(),
        );
        let mut age = |name: &str, help: &str, metric: &Seconds| {
            registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
        };
        age("last_commit_age", "Time since the last commit; NaN before the first", &gauges.last_commit_age);
        age(
            "source_last_change_age",
            "Time since the last event of the informers; NaN before the first",
            &gauges.last_change_age,
        );
        age("source_synced_age", "Time since the initial sync completed; NaN before that", &gauges.synced_age);
        gauges.remote = RemoteFigures::register(registry);
        gauges
    }

    fn set(&self, status: &AgentStatus, now: Instant) {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let age = |at: Option<Instant>| at.map_or(f64::NAN, |at| now.saturating_duration_since(at).as_secs_f64());
        self.ready.set(i64::from(status.unready().is_none()));
        self.elements.set(number(status.elements));
        self.programs.set(number(status.programs));
        self.pods_on_node.set(number(status.pods_on_node));
        self.isolated_pods.set(number(status.isolated_pods));
        self.audited_pods.set(number(status.audited_pods));
        self.unknown_pods.set(number(status.counts.unknown_pods));
        self.not_understood.set(number(status.diagnostics.len()));
        self.source_problems.set(number(status.problems.len()));
        self.kernel_generation.set(status.kernel_generation.map_or(0, i64::from));
        self.policy_generation.set(status.policy_generation.map_or(0, i64::from));
        for state in PolicyState::ALL {
            self.policies.get_or_create(&state.label()).set(number(state.count(&status.counts.policies)));
        }
        for kind in WatchedKind::ALL {
            self.objects.get_or_create(&kind.label()).set(number(kind.count(&status.counts)));
        }
        let Stores { namespaces, pods, network_policies, nodes, cluster_network_policies, attachments, rules } =
            status.stores;
        let stores = [
            (WatchedKind::Namespace.as_str(), namespaces),
            (WatchedKind::Pod.as_str(), pods),
            (WatchedKind::NetworkPolicy.as_str(), network_policies),
            (WatchedKind::Node.as_str(), nodes),
            (WatchedKind::ClusterNetworkPolicy.as_str(), cluster_network_policies),
            (WatchedKind::Attachment.as_str(), attachments),
            ("rules", rules),
        ];
        for (kind, bytes) in stores {
            self.store_memory.get_or_create(&[("kind", kind)]).set(number(bytes));
        }
        self.last_commit_age.set(age(status.last_commit.map(|commit| commit.at)));
        self.last_change_age.set(age(status.last_change));
        self.synced_age.set(age(status.synced));
        self.learned_names.set(number(status.learned_names));
        self.remote.set(status.remote.as_deref(), now);
        if let Some(bytes) = process::resident_bytes() {
            self.resident_memory.set(number(bytes));
        }
    }
}
