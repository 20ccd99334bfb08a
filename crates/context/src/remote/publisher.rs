//! The task that owns the state of other clusters, and publishes deltas.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pacing::Debounce;
use policy::ObjectName;
use policy::remote::RemoteSet;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::sleep_until;

use super::calico::{ExportInput, Failures};
use super::cluster::{Cluster, EventSender, WatchEvent, event_channel};
use super::config::{ClusterConfig, read_clusters};
use super::report::RemoteReport;
use super::state::{Memory, StateDir, StoredMemory};
use super::table::{RemoteSetChanges, RemoteSetTable};
use crate::channel::Channel;
use crate::metrics::{FeedFigures, RemoteFigures};

/// Debounce of related changes, and longest wait of a change: a change should be in the kernels of this cluster's nodes
/// within a second.
const PAUSE: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_millis(200);

/// How long the first publication waits for every cluster. For a cluster that is missing in it, consumers keep their
/// last state.
const FIRST_WITHIN: Duration = Duration::from_secs(10);

/// Interval of rows that differ only in their age.
const ROWS_EVERY: Duration = Duration::from_secs(30);

/// Minimum interval of saves, or four times the duration of the last one.
const SAVED_EVERY: Duration = Duration::from_millis(200);

/// Interval of checks of ages and of the configuration file: a mounted Secret is replaced atomically.
const TICK: Duration = Duration::from_secs(1);

/// Settings of the other clusters.
#[derive(Debug, Clone)]
pub(crate) struct RemoteSettings {
    /// The configuration file.
    pub(crate) file: PathBuf,
    pub(crate) clusters: Vec<ClusterConfig>,
    pub(crate) state: Option<StateDir>,
    /// Sets without a sync for longer are dropped.
    pub(crate) max_stale: Option<Duration>,
}

/// Destinations of the publisher.
pub(crate) struct Outlet {
    pub(crate) channel: Arc<Channel>,
    pub(crate) figures: FeedFigures,
    pub(crate) remote: RemoteFigures,
    pub(crate) reports: watch::Sender<Arc<RemoteReport>>,
    /// Input of the export, and its errors.
    pub(crate) snapshots: watch::Sender<Option<Arc<ExportInput>>>,
    pub(crate) failures: watch::Receiver<Arc<Failures>>,
}

pub(crate) struct RemotePublisher {
    settings: RemoteSettings,
    outlet: Outlet,
    clusters: BTreeMap<Arc<str>, Cluster>,
    table: RemoteSetTable,
    difference: RemoteSetChanges,
    debounce: Debounce,
    /// Current problem of the configuration file.
    file_problem: Option<String>,
    begun: Instant,
    rows_at: BTreeMap<Arc<str>, Instant>,
    saving: StateWriter,
    tasks: JoinSet<()>,
    sender: EventSender,
    received: mpsc::Receiver<WatchEvent>,
}

/// State files to write.
#[derive(Default)]
struct StateWriter {
    due: BTreeSet<Arc<str>>,
    /// At most one: cluster, duration of the write, and error.
    running: JoinSet<(Arc<str>, Duration, Option<String>)>,
    next: Option<Instant>,
}

impl RemotePublisher {
    pub(crate) fn new(settings: RemoteSettings, outlet: Outlet) -> RemotePublisher {
        let (sender, received) = event_channel();
        RemotePublisher {
            settings,
            outlet,
            clusters: BTreeMap::new(),
            table: RemoteSetTable::default(),
            difference: RemoteSetChanges::default(),
            debounce: Debounce::with_delay(PAUSE, WAIT_MAX),
            file_problem: None,
            begun: Instant::now(),
            rows_at: BTreeMap::new(),
            saving: StateWriter::default(),
            tasks: JoinSet::new(),
            sender,
            received,
        }
    }

    /// Runs forever. Panics if one of its tasks does.
    pub(crate) async fn run(mut self) {
        self.set_clusters(self.settings.clusters.clone());
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let turn = self.next_turn();
            tokio::select! {
                Some(event) = self.received.recv() => self.apply(event),
                () = until(turn) => {}
                _ = tick.tick() => self.tick(),
                Some(ended) = self.tasks.join_next() => resume_panic(ended),
                Some(saved) = self.saving.running.join_next() => self.saved(saved),
            }
            let now = Instant::now();
            for cluster in self.clusters.values_mut() {
                cluster.confirm(now, &mut self.tasks, &self.sender);
            }
            self.publish(now);
            self.save(now);
        }
    }

    fn next_turn(&self) -> Option<Instant> {
        let confirm = self.clusters.values().filter_map(Cluster::confirm_at).min();
        let is_saving = !self.saving.running.is_empty() || self.saving.due.is_empty();
        let save = self.saving.next.filter(|_| !is_saving);
        let first = (!self.is_published()).then(|| self.begun + FIRST_WITHIN);
        [self.debounce.due().filter(|_| self.is_published()), confirm, save, first].into_iter().flatten().min()
    }

    fn is_published(&self) -> bool {
        self.outlet.channel.baseline().is_some()
    }

    /// Sets the configured clusters.
    fn set_clusters(&mut self, configs: Vec<ClusterConfig>) {
        let names: BTreeSet<Arc<str>> = configs.iter().map(|config| config.name.clone()).collect();
        let gone: Vec<Arc<str>> = self.clusters.keys().filter(|name| !names.contains(*name)).cloned().collect();
        for name in gone {
            tracing::info!(cluster = %name, "cluster removed from the file; its watch is stopped");
            if let Some(mut cluster) = self.clusters.remove(&name) {
                cluster.end();
            }
            self.table.discard(&name, &mut self.difference);
            self.rows_at.remove(&name);
            self.outlet.remote.discard(&name);
        }
        self.remove_other_states(&names);
        for config in configs {
            match self.clusters.get_mut(&config.name) {
                Some(known) if known.config == config => {}
                Some(known) => {
                    tracing::info!(cluster = %config.name, "cluster settings changed; restarting its watch");
                    known.end();
                    let memory = known.memory();
                    self.begin(config, memory, None);
                }
                None => {
                    let (memory, problem) = self.remembered(&config.name);
                    tracing::info!(cluster = %config.name, since = ?memory.synced_at, "watching cluster");
                    self.begin(config, memory, problem);
                }
            }
        }
        self.settings.clusters = self.clusters.values().map(|cluster| cluster.config.clone()).collect();
        self.drop_stale();
        self.debounce.change(Instant::now());
    }

    fn begin(&mut self, config: ClusterConfig, memory: Memory, damaged: Option<String>) {
        let mut cluster = Cluster::new(config, memory);
        cluster.damaged = damaged;
        cluster.watch_all(&mut self.tasks, &self.sender);
        self.outlet.remote.begin(&cluster.config.name);
        let name = cluster.config.name.clone();
        self.clusters.insert(name.clone(), cluster);
        self.reconcile_all_sets(&name);
    }

    /// The saved state of a cluster, and a problem with it.
    fn remembered(&self, name: &str) -> (Memory, Option<String>) {
        let Some(state) = &self.settings.state else { return (Memory::default(), None) };
        let problem = match state.read(name) {
            Ok(StoredMemory::Nothing) => return (Memory::default(), None),
            Ok(StoredMemory::Memory(memory)) => return (memory, None),
            Ok(StoredMemory::Damaged { reason, aside }) => {
                let aside = aside
                    .map_or("it could not be renamed".into(), |path| format!("it was renamed to {}", path.display()));
                format!("the state file of the cluster is damaged and ignored: {reason}; {aside}")
            }
            Err(e) => format!("cannot read the state file of the cluster: {e}"),
        };
        tracing::error!(cluster = name, "{problem}");
        (Memory::default(), Some(problem))
    }

    fn remove_other_states(&self, names: &BTreeSet<Arc<str>>) {
        let Some(state) = &self.settings.state else { return };
        match state.keep_only(&names.iter().map(AsRef::as_ref).collect()) {
            Ok(removed) => {
                for cluster in removed {
                    tracing::info!(
                        cluster,
                        "removed the state file of a cluster that is no longer in the file of clusters"
                    );
                }
            }
            Err(e) => tracing::warn!(
                "cannot remove the state files of clusters that are no longer in the file of clusters: {e}"
            ),
        }
    }

    fn apply(&mut self, event: WatchEvent) {
        let name = event.cluster.clone();
        let Some(cluster) = self.clusters.get_mut(&name) else { return };
        let restarts = cluster.restarts();
        // Choosing the admitted sets costs a pass over all of them: events of single pods wait for the next tick.
        let may_wait = event.is_of_one_pod();
        cluster.apply(event);
        self.outlet.remote.restarted(&name, cluster.restarts() - restarts);
        if !(may_wait && cluster.offers.exceeds_limits()) {
            self.reconcile(&name);
        }
    }

    /// Reconciles the table with the touched sets.
    fn reconcile(&mut self, name: &Arc<str>) {
        self.reconcile_with(name, vec![]);
    }

    /// As [`RemotePublisher::reconcile`], for these sets too.
    fn reconcile_with(&mut self, name: &Arc<str>, sets: Vec<RemoteSet>) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let had_excess = !cluster.offers.excess().sets.is_empty();
        let touched = cluster.offers.take_touched();
        // Sets that exceed the limits are saved, too, although they are not in the table.
        let is_remembered_otherwise = !touched.is_empty() && (had_excess || cluster.offers.exceeds_limits());
        let touched = touched.into_iter().map(|ObjectName { namespace, name: set }| RemoteSet {
            cluster: name.clone(),
            namespace,
            name: set,
        });
        match cluster.excess_problem() {
            Some(problem) if !had_excess => tracing::warn!(cluster = %name, "{problem}"),
            None if had_excess => tracing::info!(cluster = %name, "the cluster is within its limits again"),
            Some(_) | None => {}
        }
        let mut is_other = false;
        for set in touched.chain(sets).collect::<BTreeSet<RemoteSet>>() {
            let addresses = cluster.offers.addresses(&set.object_name());
            is_other |= self.table.set(set, &addresses, &mut self.difference);
        }
        let (row, now) = (cluster.row(), Instant::now());
        let is_due = self.rows_at.get(name).is_none_or(|at| *at + ROWS_EVERY <= now);
        let is_news = self.table.row(name).is_none_or(|known| {
            known.reachable != row.reachable || known.synced_at.is_none() != row.synced_at.is_none()
        });
        if is_news || is_due {
            self.table.publish(row, &mut self.difference);
            self.rows_at.insert(name.clone(), now);
            is_other = true;
        }
        if is_remembered_otherwise {
            self.saving.due.insert(name.clone());
        }
        if is_other {
            self.saving.due.insert(name.clone());
            self.debounce.change(now);
        }
    }

    /// As [`RemotePublisher::reconcile`], for all sets of a cluster.
    fn reconcile_all_sets(&mut self, name: &Arc<str>) {
        self.saving.due.insert(name.clone());
        self.debounce.change(Instant::now());
        self.reconcile_with(name, self.table.sets_of(name));
    }

    fn tick(&mut self) {
        self.reload_file();
        self.drop_stale();
        for name in self.clusters.keys().cloned().collect::<Vec<_>>() {
            self.reconcile(&name);
        }
        self.report_status();
    }

    /// Reloads the configuration file. An invalid one changes nothing.
    fn reload_file(&mut self) {
        match read_clusters(&self.settings.file) {
            Ok(mut configs) => {
                self.file_problem = None;
                configs.sort_by(|a, b| a.name.cmp(&b.name));
                if configs != self.settings.clusters {
                    self.set_clusters(configs);
                }
            }
            Err(e) => {
                let problem = e.to_string();
                if self.file_problem.as_ref() != Some(&problem) {
                    tracing::error!("{problem}; keeping the previous clusters");
                }
                self.file_problem = Some(problem);
            }
        }
    }

    fn drop_stale(&mut self) {
        let Some(longest) = self.settings.max_stale else { return };
        let now = Timestamp::now();
        let mut dropped = vec![];
        for (name, cluster) in &mut self.clusters {
            if cluster.drop_stale(longest, now, &mut self.tasks, &self.sender) {
                tracing::warn!(cluster = %name, since = ?cluster.synced_at(), "the stale sets of the cluster expired \
                    and are dropped");
                dropped.push(name.clone());
            }
        }
        for name in dropped {
            self.reconcile_all_sets(&name);
        }
    }

    fn publish(&mut self, now: Instant) {
        if !self.is_published() {
            let is_time = now >= self.begun + FIRST_WITHIN || self.clusters.values().all(Cluster::is_known);
            if is_time {
                self.difference = RemoteSetChanges::default();
                self.outlet.channel.publish(vec![], self.table.baseline());
                self.published(0);
            }
            return;
        }
        if !self.debounce.take_due(now) || self.difference.is_empty() {
            return;
        }
        let deltas = std::mem::take(&mut self.difference).deltas();
        let events = self.outlet.channel.publish(deltas, self.table.baseline());
        self.published(events.len());
        self.debounce.published(now, Instant::now());
    }

    fn published(&mut self, deltas: usize) {
        if let Some(baseline) = self.outlet.channel.baseline() {
            self.outlet.figures.published(deltas, baseline.position, baseline.count);
        }
        let families = |(name, cluster): (&Arc<str>, &Cluster)| (name.clone(), cluster.config.prefixes.clone());
        let unknown = self.clusters.iter().filter(|(_, cluster)| !cluster.is_known()).map(|(name, _)| name.clone());
        let snapshot = ExportInput {
            table: self.table.clone(),
            families: self.clusters.iter().map(families).collect(),
            unknown: unknown.collect(),
        };
        self.outlet.snapshots.send_replace(Some(Arc::new(snapshot)));
        self.report_status();
    }

    fn report_status(&self) {
        let failures = self.outlet.failures.borrow().clone();
        let of = |cluster: &str| failures.get(cluster).into_iter().flatten().cloned();
        let report = |(name, cluster): (&Arc<str>, &Cluster)| {
            let mut report = cluster.report(self.table.counts(name));
            report.problems.extend(of(name));
            report
        };
        let clusters = self.clusters.iter().map(report).collect();
        // Errors of clusters that are no longer watched are reported for the whole export.
        let others = failures.iter().filter(|(cluster, _)| !self.clusters.contains_key(*cluster));
        let export = others.flat_map(|(_, whys)| whys.iter().cloned()).collect();
        // An error means that there are no receivers.
        drop(self.outlet.reports.send(Arc::new(RemoteReport { clusters, file: self.file_problem.clone(), export })));
    }

    /// Starts to write the state file of the next due cluster.
    fn save(&mut self, now: Instant) {
        let Some(state) = self.settings.state.clone() else { return self.saving.due.clear() };
        if !self.saving.running.is_empty() || self.saving.next.is_some_and(|at| now < at) {
            return;
        }
        let Some(name) = self.saving.due.pop_first() else { return };
        let Some(cluster) = self.clusters.get(&name).filter(|cluster| cluster.is_known()) else { return };
        let memory = cluster.memory();
        self.saving.running.spawn_blocking(move || {
            let begun = Instant::now();
            let failure = state.write(&name, &memory).err().map(|e| e.to_string());
            (name, begun.elapsed(), failure)
        });
    }

    fn saved(&mut self, saved: Result<(Arc<str>, Duration, Option<String>), JoinError>) {
        let (name, took, failure) = match saved {
            Ok(saved) => saved,
            Err(panic) => return resume_panic::<()>(Err(panic)),
        };
        self.saving.next = Some(Instant::now() + SAVED_EVERY.max(took * 4));
        let Some(cluster) = self.clusters.get_mut(&name) else {
            // The cluster was removed during the write.
            return self.remove_other_states(&self.clusters.keys().cloned().collect());
        };
        let problem = failure.map(|e| format!("cannot write the state file of the cluster: {e}"));
        if let Some(problem) = problem.as_ref().filter(|problem| cluster.unwritten.as_ref() != Some(problem)) {
            tracing::error!(cluster = %name, "{problem}");
        }
        if problem.is_some() {
            self.saving.due.insert(name);
        }
        cluster.unwritten = problem;
    }
}

async fn until(turn: Option<Instant>) {
    match turn {
        Some(at) => sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Replaced watches end. A panic is propagated, so that the remaining watches do not hide it.
fn resume_panic<T>(ended: Result<T, JoinError>) {
    if let Err(error) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}
