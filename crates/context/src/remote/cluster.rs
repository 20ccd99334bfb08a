//! One other cluster: its watches, their state, and the resulting offers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{ApiClient, LabelledEvent, connect_to};
use jiff::Timestamp;
use policy::remote::LabelPrefix;
use policy::remote::wire::ClusterRow;
use policy::{Change, Kind, Object, Pod};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::config::ClusterConfig;
use super::limits::Excess;
use super::offers::{Doubt, Offers};
use super::report::ClusterReport;
use super::state::Memory;

/// Delay before a suspicious list is repeated: long enough for a starting server to complete its state.
const CONFIRM_AFTER: Duration = Duration::from_secs(1);

/// Excess sets that the status lists by name.
const EXCESS_SHOWN: usize = 5;

/// Queue limit of watch events. When the queue is full, the watch stops reading.
const EVENTS_QUEUED: usize = 256;

/// An event of a watch.
pub(super) struct WatchEvent {
    pub(super) cluster: Arc<str>,
    prefix: LabelPrefix,
    /// Number of the watch: events of a replaced watch are ignored.
    number: u64,
    event: LabelledEvent<Object>,
}

impl WatchEvent {
    /// True if it is an event of one pod, which may be one of many.
    pub(super) fn is_of_one_pod(&self) -> bool {
        match &self.event {
            LabelledEvent::Change(timed) => match timed.change {
                Change::Set(_) | Change::Remove(..) => true,
                Change::Replace(..) => false,
            },
            LabelledEvent::IsCurrent | LabelledEvent::Restarts | LabelledEvent::Failing(_) => false,
        }
    }
}

pub(super) struct Cluster {
    pub(super) config: ClusterConfig,
    connection: ApiClient,
    pub(super) offers: Offers,
    watches: BTreeMap<LabelPrefix, Watch>,
    watches_begun: u64,
    restarts: u64,
    /// Last sync before this process started, or before its sets were dropped.
    remembered_at: Option<Timestamp>,
    /// Its sets were dropped after exceeding the maximum staleness.
    dropped: bool,
    /// Problem of its state file when this process started.
    pub(super) damaged: Option<String>,
    /// Reason why its state file is outdated.
    pub(super) unwritten: Option<String>,
}

struct Watch {
    number: u64,
    task: AbortHandle,
    /// When the state of this watch was last known to be complete.
    current_at: Option<Timestamp>,
    failing: Option<String>,
    doubt: Option<Doubt>,
    /// When to relist.
    confirm_at: Option<Instant>,
}

/// Closes with its last sender.
pub(super) type EventSender = mpsc::Sender<WatchEvent>;

pub(super) fn event_channel() -> (EventSender, mpsc::Receiver<WatchEvent>) {
    mpsc::channel(EVENTS_QUEUED)
}

impl Cluster {
    /// A cluster with its remembered state, without watches.
    pub(super) fn new(config: ClusterConfig, memory: Memory) -> Cluster {
        let mut offers = Offers::new(config.rules.clone(), config.prefixes.iter().cloned());
        for (prefix, claims) in memory.claims {
            offers.remember(&prefix, claims);
        }
        Cluster {
            connection: connect_to(config.way.clone()),
            config,
            offers,
            watches: BTreeMap::new(),
            watches_begun: 0,
            restarts: 0,
            remembered_at: memory.synced_at,
            dropped: false,
            damaged: None,
            unwritten: None,
        }
    }

    pub(super) fn watch_all(&mut self, tasks: &mut JoinSet<()>, events: &EventSender) {
        for prefix in self.config.prefixes.clone() {
            self.watch(&prefix, tasks, events);
        }
    }

    /// Starts or replaces the watch of a family, beginning with a list.
    fn watch(&mut self, prefix: &LabelPrefix, tasks: &mut JoinSet<()>, events: &EventSender) {
        self.watches_begun += 1;
        let number = self.watches_begun;
        let (sender, mut received) = mpsc::channel(EVENTS_QUEUED);
        let selector = prefix.name_label().to_string();
        let pods_max = self.config.rules.limits.pods();
        let following =
            cluster::watch_labelled::<Object>(self.connection.clone(), Kind::Pod, selector, pods_max, sender);
        let (events, cluster, of) = (events.clone(), self.config.name.clone(), prefix.clone());
        let forwarding = async move {
            while let Some(event) = received.recv().await {
                let event = WatchEvent { cluster: cluster.clone(), prefix: of.clone(), number, event };
                if events.send(event).await.is_err() {
                    return;
                }
            }
        };
        let task = tasks.spawn(async move {
            futures::future::join(following, forwarding).await;
        });
        let begun = Watch { number, task, current_at: None, failing: None, doubt: None, confirm_at: None };
        match self.watches.get_mut(prefix) {
            // A relist does not invalidate the current state.
            Some(watch) => {
                watch.task.abort();
                let Watch { current_at, failing, doubt, .. } = &watch;
                let (current_at, failing, doubt) = (*current_at, failing.clone(), doubt.clone());
                *watch = Watch { current_at, failing, doubt, ..begun };
            }
            None => drop(self.watches.insert(prefix.clone(), begun)),
        }
    }

    pub(super) fn end(&mut self) {
        for watch in self.watches.values() {
            watch.task.abort();
        }
    }

    /// Applies an event of a watch.
    pub(super) fn apply(&mut self, WatchEvent { cluster, prefix, number, event }: WatchEvent) {
        let Some(watch) = self.watches.get_mut(&prefix).filter(|watch| watch.number == number) else { return };
        match event {
            LabelledEvent::Change(timed) => match timed.change {
                Change::Set(Object::Pod(pod)) => self.offers.set(&prefix, &pod),
                Change::Remove(_, name) => self.offers.remove(&prefix, &name),
                Change::Replace(_, objects) => {
                    let pods: Vec<Arc<Pod>> = objects.into_iter().filter_map(pod).collect();
                    watch.doubt = self.offers.replace(&prefix, pods.iter().map(AsRef::as_ref));
                    watch.confirm_at = watch.doubt.is_some().then(|| Instant::now() + CONFIRM_AFTER);
                    if watch.doubt.is_none() {
                        watch.current_at = Some(Timestamp::now());
                    }
                    if let Some(doubt) = &watch.doubt {
                        tracing::warn!(%cluster, family = %prefix, "suspicious list: {doubt}; nothing is removed \
                            until a relist confirms it");
                    }
                    tracing::debug!(%cluster, family = %prefix, pods = pods.len(), "listed");
                }
                // Only pods are watched.
                Change::Set(Object::Namespace(_) | Object::Policy(_) | Object::Node(_) | Object::ClusterPolicy(_)) => {}
            },
            LabelledEvent::IsCurrent if watch.doubt.is_none() => watch.current_at = Some(Timestamp::now()),
            LabelledEvent::IsCurrent => {}
            LabelledEvent::Restarts => self.restarts += 1,
            LabelledEvent::Failing(now) => {
                match &now {
                    Some(why) if watch.failing.as_ref() != Some(why) => tracing::warn!(%cluster, "{why}"),
                    None if watch.failing.is_some() => {
                        tracing::info!(%cluster, family = %prefix, "cluster reachable again")
                    }
                    Some(_) | None => {}
                }
                watch.failing = now;
            }
        }
        if self.dropped && self.offers.is_listed() {
            self.dropped = false;
        }
    }

    /// When the next suspicious list has to be confirmed.
    pub(super) fn confirm_at(&self) -> Option<Instant> {
        self.watches.values().filter_map(|watch| watch.confirm_at).min()
    }

    /// Relists where a suspicious list has to be confirmed.
    pub(super) fn confirm(&mut self, now: Instant, tasks: &mut JoinSet<()>, events: &EventSender) {
        let due = |watch: &Watch| watch.confirm_at.is_some_and(|at| at <= now);
        let prefixes: Vec<LabelPrefix> =
            self.watches.iter().filter(|(_, watch)| due(watch)).map(|(prefix, _)| prefix.clone()).collect();
        for prefix in prefixes {
            self.watch(&prefix, tasks, events);
        }
    }

    /// Drops the sets if the last sync is older than `longest`. Returns whether they were dropped.
    pub(super) fn drop_stale(
        &mut self,
        longest: Duration,
        now: Timestamp,
        tasks: &mut JoinSet<()>,
        events: &EventSender,
    ) -> bool {
        let is_stale = |at: Timestamp| now.duration_since(at).unsigned_abs() > longest && at < now;
        if self.dropped || self.is_reachable() || !self.synced_at().is_some_and(is_stale) {
            return false;
        }
        self.remembered_at = self.synced_at();
        self.dropped = true;
        self.offers = Offers::new(self.config.rules.clone(), self.config.prefixes.iter().cloned());
        // A resumed watch would deliver only changes.
        for watch in std::mem::take(&mut self.watches).into_values() {
            watch.task.abort();
        }
        self.watch_all(tasks, events);
        true
    }

    /// Whether all watches are working, and their lists are complete and confirmed.
    pub(super) fn is_reachable(&self) -> bool {
        let is_believed = |watch: &Watch| watch.failing.is_none() && watch.doubt.is_none();
        self.offers.is_listed() && self.watches.values().all(is_believed)
    }

    /// When its sets were last known to be up to date: the earliest of the families' last events, bookmarks included.
    pub(super) fn synced_at(&self) -> Option<Timestamp> {
        let families: Option<Vec<Timestamp>> = self.watches.values().map(|watch| watch.current_at).collect();
        families.and_then(|families| families.into_iter().min()).or(self.remembered_at)
    }

    /// Whether its state is known, even if it is empty.
    pub(super) fn is_known(&self) -> bool {
        self.offers.is_listed() || self.remembered_at.is_some()
    }

    pub(super) fn row(&self) -> ClusterRow {
        let synced_at = self.synced_at().filter(|_| self.is_known());
        ClusterRow { cluster: self.config.name.clone(), reachable: self.is_reachable(), synced_at }
    }

    pub(super) fn memory(&self) -> Memory {
        Memory { synced_at: self.row().synced_at, claims: self.offers.memory() }
    }

    pub(super) fn restarts(&self) -> u64 {
        self.restarts
    }

    /// Describes the excess over the limits, with a few of the sets. Their names are untrusted: pod owners in the other
    /// cluster choose them.
    pub(super) fn excess_problem(&self) -> Option<String> {
        let Excess { sets, amounts } = self.offers.excess();
        let shown: Vec<String> = sets.iter().take(EXCESS_SHOWN).map(|set| policy::plain(&set.to_string())).collect();
        let more = if sets.len() > shown.len() { ", …" } else { "" };
        (!sets.is_empty()).then(|| {
            format!(
                "the cluster offers more than its limits: {} sets with {} addresses are left out ({}{more}); narrow \
                 'accept' or raise 'limits' of the cluster in the file of clusters",
                amounts.sets,
                amounts.addresses,
                shown.join(", ")
            )
        })
    }

    pub(super) fn report(&self, (sets, addresses): (usize, usize)) -> ClusterReport {
        let ClusterRow { cluster, reachable, synced_at } = self.row();
        let failures = self.watches.values().filter_map(|watch| watch.failing.clone());
        let doubts = self.watches.values().filter_map(|watch| watch.doubt.as_ref().map(ToString::to_string));
        let mut problems: Vec<String> =
            failures.chain(doubts).chain(self.damaged.clone()).chain(self.unwritten.clone()).collect();
        problems.dedup();
        problems.extend(self.excess_problem());
        ClusterReport {
            cluster: cluster.to_string(),
            reachable,
            synced_at,
            sets,
            addresses,
            offered: self.offers.offered(),
            limits: self.config.rules.limits.0,
            left_out: self.offers.excess().amounts,
            watch_restarts: self.restarts,
            dropped: self.dropped,
            problems,
        }
    }
}

fn pod(object: Object) -> Option<Arc<Pod>> {
    match object {
        Object::Pod(pod) => Some(pod),
        Object::Namespace(_) | Object::Policy(_) | Object::Node(_) | Object::ClusterPolicy(_) => None,
    }
}
