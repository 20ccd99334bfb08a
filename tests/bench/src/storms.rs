//! Bursts of events and steady streams of events: into the real agent, through the fake API server.
//!
//! A storm is measured by the number of transactions and by the time until the rules are correct. The latency of single
//! events is measured outside of the agent: from the moment that the server writes the line of the watch to its socket,
//! to the kernel's notification of the element with the pod's address.

mod report;

use std::collections::VecDeque;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::fed::{Stage, restore_size, until_sent};
use super::figures::Spread;
use super::record::Measurement;
use generator::cluster::events::{AddedPeer, EventKind, Place};
use generator::cluster::{Cluster, Size as ClusterSize};
use kit::fake_api::FakeApi;
use report::StormsReport;

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Size {
    /// Pods of each cluster.
    pub pods: Vec<usize>,
    /// Runs with each cluster, whose medians are reported: each uses a new agent.
    pub rounds: usize,
    /// Events of a storm, within a second.
    pub events: usize,
    /// Rates of steady events, a second, and how long each lasts. A rate adds as many pods as its number, and a cluster
    /// has room for as many as its size: a higher rate is skipped.
    pub rates: Vec<usize>,
    pub lasting: Duration,
}

impl Size {
    /// The parameters of `docs/performance.md`.
    pub fn new(pods: Vec<usize>, rounds: usize) -> Size {
        Size { pods, rounds, events: 10_000, rates: vec![100, 1_000], lasting: Duration::from_secs(10) }
    }
}

/// Duration of a storm's events.
const STORM: Duration = Duration::from_secs(1);

struct Storm {
    events: usize,
    commits: usize,
    /// From the first event until the server had sent the last, and until the kernel had the last commit.
    sent: Duration,
    right: Duration,
    agent: Duration,
    /// Operations between the kernel's rules and the correct ones afterwards; `None` if there is no table.
    operations_missing: Option<usize>,
}

struct Steady {
    rate: usize,
    commits: usize,
    took: Duration,
    agent: Duration,
    /// Latency in milliseconds of the events that required a new address in the kernel.
    latency: Option<Spread>,
    /// The number of these events, and how many of their addresses never arrived.
    watched: usize,
    missed: usize,
    /// The mean of all events in milliseconds, by the agent's own metric.
    own_mean: f64,
    operations_missing: Option<usize>,
}

/// All runs with one cluster.
struct Runs {
    cluster: ClusterSize,
    runs: Vec<Run>,
}

struct Run {
    storm: Storm,
    steady: Vec<Steady>,
}

/// Measures with the program, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(program: &Path, size: &Size) -> Measurement {
    let clusters = size.pods.iter().map(|pods| {
        let cluster = Cluster::of(ClusterSize::of_pods(*pods));
        let runs = (0..size.rounds).map(|_| run(program, cluster.clone(), size)).collect();
        Runs { cluster: cluster.size(), runs }
    });
    StormsReport { clusters: clusters.collect() }.measured()
}

fn run(program: &Path, cluster: Cluster, size: &Size) -> Run {
    let stage = Stage::new(program);
    let pods = cluster.size().pods;
    let api = stage.serve(cluster);
    let mut agent = stage.start(&api);
    agent.until_ready();
    agent.until_idle();

    let storm = storm(&stage, &api, &agent, size.events);
    let steady = size.rates.iter().filter(|rate| **rate <= pods).map(|rate| {
        restore_size(&api);
        agent.until_idle();
        steady(&stage, &api, &agent, *rate, size.lasting)
    });
    Run { storm, steady: steady.collect() }
}

fn storm(stage: &Stage, api: &FakeApi, agent: &super::fed::Agent, events: usize) -> Storm {
    const SLICES: u32 = 100;
    let commits = stage.commits();
    let used = agent.processor_time();
    let (begun, at) = (Instant::now(), SystemTime::now());
    for slice in 1..=SLICES {
        let share = |slice: u32| events * slice as usize / SLICES as usize;
        let now = share(slice) - share(slice - 1);
        api.happen(|cluster| ((0..now).map(|_| cluster.next_event()).collect(), ()));
        thread::sleep((STORM * slice / SLICES).saturating_sub(begun.elapsed()));
    }
    until_sent(api);
    let sent = begun.elapsed();
    agent.until_idle();
    let used = agent.processor_time() - used;
    let seen = commits.seen();
    let right = seen.commits.last().and_then(|last| last.duration_since(at).ok()).unwrap_or_default();
    let operations_missing = missing(stage, api);
    Storm { events, commits: seen.commits.len(), sent, right, agent: used, operations_missing }
}

/// A third of the events add a pod whose address must reach the kernel, a third remove an earlier one of these, and the
/// others relabel pods anywhere. There are no other events: removing a local pod or a policy could make an address
/// unnecessary.
fn steady(stage: &Stage, api: &FakeApi, agent: &super::fed::Agent, rate: usize, lasting: Duration) -> Steady {
    let commits = stage.commits();
    let (used, own) = (agent.processor_time(), own_latency(agent));
    api.record_sent();
    let mut watched: Vec<AddedPeer> = Vec::new();
    // The added pods stay for a few seconds, until their addresses have been announced.
    let mut staying = VecDeque::new();
    let between = Duration::from_secs(1) / rate as u32;
    let events = (lasting.as_secs_f64() * rate as f64) as usize;
    let begun = Instant::now();
    for number in 0..events {
        thread::sleep((between * number as u32).saturating_sub(begun.elapsed()));
        let oldest = (number % 3 == 1 && staying.len() > rate).then(|| staying.pop_front()).flatten();
        match (number % 3, oldest) {
            (0, _) => {
                let peer = api.happen(|cluster| {
                    let (event, peer) = cluster.peer_added();
                    (vec![event], peer)
                });
                watched.push(peer);
                staying.push_back(peer);
            }
            (_, Some(peer)) => api.happen(|cluster| (vec![cluster.peer_removed(peer)], ())),
            (_, None) => {
                api.happen(|cluster| (vec![cluster.happen(EventKind::PodRelabelled, Place::Anywhere)], ()));
            }
        }
    }
    let took = begun.elapsed();
    until_sent(api);
    agent.until_idle();
    let used = agent.processor_time() - used;
    let own_mean = own_latency(agent).mean_since(&own);
    let (seen, sent) = (commits.seen(), api.sent());
    let latency = |peer: &AddedPeer| {
        // An earlier pod may have had the same address.
        let (left, announced) = (sent.get(&peer.version)?, seen.elements.get(&peer.address)?);
        let latencies = announced.iter().filter_map(|there| there.duration_since(*left).ok());
        latencies.min().map(|latency| latency.as_secs_f64() * 1e3)
    };
    let latencies: Vec<f64> = watched.iter().filter_map(latency).collect();
    let missed = watched.len() - latencies.len();
    Steady {
        rate,
        commits: seen.commits.len(),
        took,
        agent: used,
        latency: Spread::of(latencies),
        watched: watched.len(),
        missed,
        own_mean,
        operations_missing: missing(stage, api),
    }
}

/// The difference between the kernel's rules and a fresh translation of the server's objects.
fn missing(stage: &Stage, api: &FakeApi) -> Option<usize> {
    let cluster = api.happen(|cluster| (Vec::new(), cluster.clone()));
    stage.operations_missing(&cluster.state())
}

/// Sum and count of the agent's own histogram, over events of every kind.
struct OwnLatency {
    seconds: f64,
    events: f64,
}

impl OwnLatency {
    /// Mean in milliseconds.
    fn mean_since(&self, before: &OwnLatency) -> f64 {
        (self.seconds - before.seconds) * 1e3 / (self.events - before.events).max(1.0)
    }
}

fn own_latency(agent: &super::fed::Agent) -> OwnLatency {
    let text = agent.0.get("/metrics").body;
    let families = kit::openmetrics::parse(&text).expect("metrics");
    let sum = |name: &str| {
        let samples = families.iter().flat_map(|family| &family.samples).filter(|sample| sample.name == name);
        samples.map(|sample| sample.value).sum::<f64>()
    };
    let of = |part: &str| sum(&format!("ringfence_enforcement_latency_seconds_{part}"));
    OwnLatency { seconds: of("sum"), events: of("count") }
}
