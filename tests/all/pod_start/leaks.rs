//! Counts, over a thousand starts, the packets that a pod gets through to denied destinations when it sends from its
//! first instruction.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kit::agent_process::until;
use kit::cni_runtime::Runtime;
use kit::prober::{PacketArrivals, Sent, arrivals, count_arrivals};
use policy::Kind;
use serde_json::{Value, json};

use super::{ISOLATED, Network, Pod, Running, Site, egress, pending};
use crate::stage::{ingress, namespace, pod};

/// How long a pod sends, from its first instruction on; some continue, through changes and restarts.
const SENDS: Duration = Duration::from_millis(3);
const SENDS_ON: Duration = Duration::from_millis(60);
const ONE_IN: usize = 10;

/// The interval between two changes of each kind in a storm, and between two kills of the agent.
const STORM: Duration = Duration::from_millis(3);
const KILLS: Duration = Duration::from_millis(200);

/// The result of a phase.
#[derive(Debug, Default)]
struct Tally {
    starts: usize,
    sent: u64,
    /// The time that ringfence-cni added to each start.
    took: Vec<Duration>,
    whole: Vec<Duration>,
}

impl Tally {
    fn print(mut self, what: &str, leaked: u64) {
        self.took.sort();
        self.whole.sort();
        let at = |list: &[Duration], percent: usize| list[(list.len() * percent / 100).min(list.len() - 1)];
        let Tally { starts, sent, took, whole } = self;
        println!(
            "{what}: {starts} starts, {sent} packets sent, {leaked} leaked; our plugin p50 {:.1?} p99 {:.1?}, \
             whole chain p50 {:.1?} p99 {:.1?}",
            at(&took, 50),
            at(&took, 99),
            at(&whole, 50),
            at(&whole, 99),
        );
    }
}

/// A node with a victim for each family, to which no prober may send.
struct Range<'a> {
    site: &'a Site,
    victims: [Running; 2],
    started: AtomicUsize,
}

fn objects() -> Vec<Value> {
    vec![
        namespace("shop", ""),
        egress("prober", "app=prober", "app=friend"),
        ingress("friend", "app=friend", "app=prober"),
        pending("victim-4", "app=victim"),
        pending("victim-6", "app=victim"),
    ]
}

impl<'a> Range<'a> {
    fn new(site: &'a Site, runtime: &Runtime) -> Range<'a> {
        let victims = ["victim-4", "victim-6"].map(|name| Running::start(runtime, name));
        let range = Range { site, victims, started: AtomicUsize::new(0) };
        for family in [0, 1] {
            range.victims[family].pod.sandbox.run(|| count_arrivals(&[range.target(family)]));
        }
        range
    }

    fn target(&self, family: usize) -> IpAddr {
        self.victims[family].addresses[family]
    }

    /// Starts this many pods, a few at once; each sends and is deleted again.
    fn starts(&self, runtime: &Runtime, count: usize, at_once: usize) -> Tally {
        let tally = Mutex::new(Tally::default());
        let left = AtomicUsize::new(count);
        let take = || left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok();
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while take() {
                        self.start(runtime, &tally);
                    }
                });
            }
        });
        tally.into_inner().unwrap()
    }

    fn start(&self, runtime: &Runtime, tally: &Mutex<Tally>) {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let name = format!("prober-{number}");
        self.site.api.set(Kind::Pod, pending(&name, "app=prober"));
        let pod = Pod::new(&name);
        let prober = pod.ready_to_send(self.target(number / ONE_IN % 2));
        let begin = Instant::now();
        let added = runtime.add(&pod.container).unwrap();
        let whole = begin.elapsed();
        let time = if number.is_multiple_of(ONE_IN) { SENDS_ON } else { SENDS };
        let Sent { datagrams, connections } = prober.start(time).end();
        assert!(datagrams > 0 && connections > 0, "{name} sent {datagrams} datagrams and {connections} SYNs");
        runtime.delete(&pod.container).unwrap();
        self.site.api.remove(Kind::Pod, "shop", &name);
        let mut tally = tally.lock().unwrap();
        tally.starts += 1;
        tally.sent += datagrams + connections;
        tally.took.push(added.steps.last().unwrap().took);
        tally.whole.push(whole);
    }

    /// The packets that have arrived so far.
    fn arrived(&self) -> BTreeMap<IpAddr, PacketArrivals> {
        self.victims.iter().flat_map(|victim| victim.pod.sandbox.run(arrivals)).collect()
    }

    fn leaked(&self) -> u64 {
        self.arrived().values().map(|arrived| arrived.datagrams + arrived.connections).sum()
    }
}

/// Changes the probers' policies, and pods elsewhere that these select, until it is stopped.
fn storm(site: &Site, done: &AtomicBool) {
    for round in 0_usize.. {
        if done.load(Ordering::Relaxed) {
            return;
        }
        let (number, label) = (round % 40, format!("churn=c{}", round % 7));
        let address = format!("10.3.{}.{number}", round % 200);
        site.api.set(Kind::Pod, pod(&format!("elsewhere-{number}"), "node-b", &label, &[&address]));
        site.api.set(Kind::NetworkPolicy, egress(&format!("storm-{}", number % 8), "app=prober", &label));
        std::thread::sleep(STORM);
    }
}

/// Returns the result of `work` and the number of kills.
fn while_the_agent_is_killed<T>(site: &Site, work: impl FnOnce() -> T) -> (T, usize) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let kills = scope.spawn(|| {
            let mut kills = 0;
            while !done.load(Ordering::Relaxed) {
                let mut agent = site.stage.start(site.agent());
                // Every other agent becomes ready, however long that takes, so that pods do start.
                if kills % 2 == 1 {
                    agent.until_ready();
                }
                std::thread::sleep(KILLS);
                drop(agent);
                kills += 1;
            }
            kills
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        (result, kills.join().unwrap())
    })
}

#[test]
fn thousand_routed_starts_leak_no_packet() {
    let site = Site::with(&objects());
    let runtime = site.runtime(Network::Routed, json!({}));
    let agent = site.start_agent();
    let range = Range::new(&site, &runtime);
    let during = |what: &str, tally: Tally| {
        tally.print(what, range.leaked());
        assert_eq!(range.arrived(), BTreeMap::new(), "{what}");
    };

    during("agent idle, one by one", range.starts(&runtime, 100, 1));
    during("agent idle", range.starts(&runtime, 200, 3));

    let done = AtomicBool::new(false);
    let busy = std::thread::scope(|scope| {
        scope.spawn(|| storm(&site, &done));
        let busy = range.starts(&runtime, 300, 3);
        done.store(true, Ordering::Relaxed);
        busy
    });
    during("agent busy", busy);
    drop(agent);

    let (restarting, kills) = while_the_agent_is_killed(&site, || range.starts(&runtime, 250, 6));
    during(&format!("agent killed {kills} times"), restarting);

    let isolating = site.runtime(Network::Routed, json!({"timeoutSeconds": 1, "onTimeout": "isolate"}));
    during("agent absent", range.starts(&isolating, 150, 25));
    let _agent = site.start_agent();
    until("the plugin's table is gone", || (!site.stage.tables().contains(ISOLATED)).then_some(()));
    assert_eq!(range.started.into_inner(), 1000);
}

#[test]
fn bridged_starts_leak_no_packet() {
    let site = Site::with(&objects());
    let runtime = site.runtime(Network::Bridged, json!({}));
    let agent = site.start_agent();
    let range = Range::new(&site, &runtime);
    range.starts(&runtime, 60, 3).print("on a bridge", range.leaked());
    drop(agent);
    let (restarting, kills) = while_the_agent_is_killed(&site, || range.starts(&runtime, 60, 6));
    restarting.print(&format!("on a bridge, agent killed {kills} times"), range.leaked());
    assert_eq!(range.arrived(), BTreeMap::new());
}

/// Number of pods that must leak packets without the plugin. A single start is not conclusive: on a fast machine the
/// agent may have enforced the rules before the pod's first packet.
const LEAKING: usize = 10;
const ROUND: usize = 20;
const ROUNDS: usize = 25;

#[test]
fn starts_without_the_plugin_leak_packets() {
    for network in [Network::Routed, Network::Bridged] {
        let site = Site::with(&objects());
        let runtime = site.runtime(network, json!({}));
        let _agent = site.start_agent();
        let range = Range::new(&site, &runtime);
        let without = site.chain("1.0.0", &[site.entry(network)]);
        let enough = (1..=ROUNDS).any(|_| {
            range.starts(&without, ROUND, 2).print("without the plugin", range.leaked());
            range.arrived().len() >= LEAKING
        });
        let (leaking, starts) = (range.arrived().len(), range.started.into_inner());
        assert!(enough, "{network:?}: packets of {leaking} of {starts} pods came through");
    }
}
