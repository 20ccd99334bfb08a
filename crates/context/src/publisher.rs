//! The task that owns the tables: applies changes, and publishes deltas in batches.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{Problem, SourceEvent, Sync};
use pacing::Debounce;
use policy::remote::RemoteChange;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;

use crate::channel::{Channel, DeltaEncoder};
use crate::edge_publication;
use crate::epoch::epoch_now;
use crate::history::SharedHistory;
use crate::identity::{DeltaAudience, IdentityDelta};
use crate::metrics::{FeedFigures, Metrics};
use crate::object::{WatchedKind, WatchedObject};
use crate::published_tables::{Deltas, Tables};
use crate::push::{Outbox, QueuedDelta};
use crate::remote::ExportInput;
use crate::status::ProviderStatus;

/// How long the first publication waits for optional kinds and for the sets of other clusters, once the required kinds
/// are listed. Later ones are published as deltas.
const CLASSIFYING_WITHIN: Duration = Duration::from_secs(2);

/// The published sets of other clusters.
pub(crate) struct RemoteSnapshots {
    snapshots: watch::Receiver<Option<Arc<ExportInput>>>,
    /// The snapshot that the tables contain.
    applied: Option<Arc<ExportInput>>,
}

impl RemoteSnapshots {
    pub(crate) fn new(snapshots: watch::Receiver<Option<Arc<ExportInput>>>) -> RemoteSnapshots {
        RemoteSnapshots { snapshots, applied: None }
    }

    /// Waits for the next snapshot; forever if there is no sender.
    async fn changed(&mut self) {
        if self.snapshots.changed().await.is_err() {
            std::future::pending().await
        }
    }

    fn take_changes(&mut self) -> Vec<RemoteChange> {
        let Some(newer) = self.snapshots.borrow_and_update().clone() else { return vec![] };
        let changes = newer.changes_since(self.applied.as_deref());
        self.applied = Some(newer);
        changes
    }
}

/// The channel and outbox of a feed.
pub(crate) struct Way {
    pub(crate) channel: Arc<Channel>,
    /// `None` without a relay.
    pub(crate) outbox: Option<Arc<Outbox>>,
    pub(crate) figures: FeedFigures,
}

pub(crate) struct Publisher {
    tables: Tables,
    sync: Sync<WatchedObject>,
    /// Time at which the required kinds were complete.
    complete: Option<Instant>,
    debounce: Debounce,
    /// Time of the first unpublished change.
    waiting_since: Option<Instant>,
    identity: Way,
    declared: Way,
    /// `None` if no history is kept.
    history: Option<SharedHistory>,
    source_problems: Vec<Problem>,
    unserved: Vec<WatchedKind>,
    /// `None` without other clusters.
    remote: Option<RemoteSnapshots>,
    status: watch::Sender<Arc<ProviderStatus>>,
    metrics: Arc<Metrics>,
    elected: watch::Receiver<bool>,
    leads: watch::Sender<bool>,
}

/// Arguments of a publisher.
pub(crate) struct Parts {
    pub(crate) tables: Tables,
    pub(crate) identity: Way,
    pub(crate) declared: Way,
    pub(crate) remote: Option<RemoteSnapshots>,
    pub(crate) history: Option<SharedHistory>,
    pub(crate) status: watch::Sender<Arc<ProviderStatus>>,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether this process should lead (push and store).
    pub(crate) elected: watch::Receiver<bool>,
    /// Whether it leads, with something to push.
    pub(crate) leads: watch::Sender<bool>,
}

impl Publisher {
    pub(crate) fn new(parts: Parts) -> Publisher {
        let Parts { tables, identity, declared, history, remote, status, metrics, elected, leads } = parts;
        Publisher {
            tables,
            sync: Sync::default(),
            complete: None,
            debounce: Debounce::new(),
            waiting_since: None,
            identity,
            declared,
            history,
            source_problems: vec![],
            unserved: vec![],
            remote,
            status,
            metrics,
            elected,
            leads,
        }
    }

    /// Runs until the source ends.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<SourceEvent<WatchedObject>>) {
        self.report_status();
        loop {
            let due = self.next_turn();
            let turn = async {
                match due {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.apply(event),
                    None => return,
                },
                () = turn => {}
                () = other_snapshot(self.remote.as_mut()) => self.apply_remote(),
                changed = self.elected.changed() => match changed {
                    Ok(()) => self.lead(),
                    Err(_) => return,
                },
            }
            let now = Instant::now();
            self.tables.expire(now);
            if self.tables.has_changes() {
                self.debounce.change(now);
            }
            self.publish(now);
        }
    }

    /// The next deadline without an event.
    fn next_turn(&self) -> Option<Instant> {
        let published = self.identity.channel.baseline().is_some();
        let due = match (published, self.complete) {
            (true, _) => self.debounce.due(),
            (false, complete) => complete.map(|at| at + CLASSIFYING_WITHIN),
        };
        [due, self.tables.directory().next_expiry()].into_iter().flatten().min()
    }

    fn apply(&mut self, event: SourceEvent<WatchedObject>) {
        match event {
            SourceEvent::Changes(changes) => {
                for timed in changes {
                    self.sync.observe([&timed.change]);
                    self.tables.apply(timed.change, Instant::now());
                    if self.tables.has_changes() {
                        self.waiting_since.get_or_insert(timed.at);
                    }
                }
                let now = Instant::now();
                if self.complete.is_none() && self.sync.is_complete() {
                    self.complete = Some(now);
                    let state = self.tables.directory().state();
                    tracing::info!(
                        namespaces = state.namespace_count(),
                        pods = state.pod_count(),
                        policies = state.policy_count(),
                        "initial sync complete"
                    );
                }
            }
            SourceEvent::Problems(problems) => {
                for problem in problems.iter().filter(|problem| !self.source_problems.contains(problem)) {
                    tracing::warn!("{problem}");
                }
                self.source_problems = problems;
                self.report_status();
            }
            SourceEvent::Unserved(kinds) => {
                for kind in kinds.iter().filter(|kind| !self.unserved.contains(kind)) {
                    tracing::info!(%kind, "the API server does not serve the kind (404); retrying periodically");
                }
                self.unserved = kinds;
                self.report_status();
            }
        }
    }

    fn apply_remote(&mut self) {
        let now = Instant::now();
        for change in self.remote.iter_mut().flat_map(RemoteSnapshots::take_changes) {
            self.tables.apply_remote(change, now);
        }
        if self.tables.has_changes() {
            self.waiting_since.get_or_insert(now);
        }
    }

    fn publish(&mut self, now: Instant) {
        if self.identity.channel.baseline().is_some() {
            if self.debounce.take_due(now) {
                self.publish_changes(now);
                self.debounce.published(now, Instant::now());
            }
            return;
        }
        let has_remote = self.remote.as_ref().is_none_or(|remote| remote.applied.is_some());
        let is_classified = has_remote && self.sync.unlisted().next().is_none();
        let Some(complete) = self.complete else { return };
        if is_classified || complete + CLASSIFYING_WITHIN <= now {
            self.publish_first();
        }
    }

    /// Publishes the current tables as the start of the epoch, without deltas.
    fn publish_first(&mut self) {
        self.tables.begin();
        self.debounce = Debounce::new();
        self.waiting_since = None;
        if let Some(history) = &self.history {
            history.lock().begin(self.tables.directory().published().table.clone(), Instant::now());
        }
        self.identity.channel.publish(vec![], self.tables.identities());
        self.declared.channel.publish(vec![], self.tables.declared());
        for way in [&self.identity, &self.declared] {
            if let Some(baseline) = way.channel.baseline() {
                way.figures.published(0, baseline.position, baseline.count);
                tracing::info!(
                    feed = way.channel.name,
                    version = baseline.version,
                    entries = baseline.count,
                    "published"
                );
            }
        }
        self.leads.send_replace(*self.elected.borrow());
        self.metrics.set_identities(self.tables.directory());
        self.report_status();
    }

    fn publish_changes(&mut self, now: Instant) {
        let Deltas { has_other_ledger, identities, edges, past } = self.tables.take_deltas();
        if let Some(history) = &self.history {
            let table = self.tables.directory().published().table.clone();
            self.metrics.evicted_history(history.lock().record(past, table, Instant::now()));
        }
        let waiting_since = self.waiting_since.take();
        let mut is_published = false;
        if has_other_ledger || !identities.is_empty() {
            is_published = true;
            self.metrics.set_identities(self.tables.directory());
            let chunks: Vec<Arc<IdentityDelta>> = identities.into_iter().map(Arc::new).collect();
            let delta = |chunk: &Arc<IdentityDelta>| -> DeltaEncoder {
                let chunk = chunk.clone();
                Box::new(move |at| chunk.json(at, DeltaAudience::Follower))
            };
            let number_delta = |chunk: &Arc<IdentityDelta>| -> DeltaEncoder {
                let chunk = chunk.clone();
                Box::new(move |at| chunk.number_json(at))
            };
            let deltas = chunks.iter().map(delta).collect();
            let number_deltas = chunks.iter().map(number_delta).collect();
            let events = self.identity.channel.publish_forms(deltas, number_deltas, self.tables.identities());
            let pushed = |(event, chunk): (&Arc<feed::DeltaEvent>, &Arc<IdentityDelta>)| {
                QueuedDelta::delta(event.position, chunk.json(event.position, DeltaAudience::Relay).into())
            };
            self.identity.forward(events.len(), events.iter().zip(&chunks).map(pushed));
        }
        // Changes that only the extended form shows make no delta in the published form, but a new baseline: its
        // extended part differs.
        let version = self.tables.edges_version();
        if !edges.is_empty() || self.declared.channel.baseline().is_some_and(|known| known.version != version) {
            is_published = true;
            let delta = |chunk: edge_publication::DeclaredDelta| -> DeltaEncoder { Box::new(move |at| chunk.json(at)) };
            let deltas = edges.into_iter().map(delta).collect();
            let events = self.declared.channel.publish(deltas, self.tables.declared());
            let pushed = |event: &Arc<feed::DeltaEvent>| QueuedDelta::delta(event.position, event.json.clone());
            self.declared.forward(events.len(), events.iter().map(pushed));
        }
        if let Some(since) = waiting_since.filter(|_| is_published) {
            self.metrics.published(now.saturating_duration_since(since));
        }
        self.report_status();
    }

    /// Handles a change of leadership: a new leader starts a new epoch.
    fn lead(&mut self) {
        let elected = *self.elected.borrow_and_update();
        if self.identity.channel.baseline().is_some() {
            if elected {
                let (epoch, reason) = (epoch_now(), "became leader");
                self.identity.channel.renew(epoch, reason, self.tables.identities());
                self.declared.channel.renew(epoch, reason, self.tables.declared());
            }
            self.leads.send_replace(elected);
        }
        self.report_status();
    }

    fn report_status(&self) {
        let mut problems = self.source_problems.clone();
        problems.extend(self.tables.problems());
        let status = ProviderStatus {
            missing: self.sync.missing().iter().map(ToString::to_string).collect(),
            unserved: self.unserved.iter().map(ToString::to_string).collect(),
            published: self.identity.channel.baseline().is_some(),
            leads: *self.leads.borrow(),
            problems,
            cluster: self.status.borrow().cluster.clone(),
        };
        // An error means that there are no receivers.
        drop(self.status.send(Arc::new(status)));
    }
}

/// Waits for the next snapshot of other clusters; forever without other clusters.
async fn other_snapshot(remote: Option<&mut RemoteSnapshots>) {
    match remote {
        Some(remote) => remote.changed().await,
        None => std::future::pending().await,
    }
}

impl Way {
    /// Sends published deltas to the relay's outbox, too.
    fn forward(&self, count: usize, deltas: impl Iterator<Item = QueuedDelta>) {
        if let Some(baseline) = self.channel.baseline() {
            self.figures.published(count, baseline.position, baseline.count);
        }
        if let Some(outbox) = &self.outbox {
            outbox.enqueue(deltas);
            self.figures.waiting(outbox.waiting());
        }
    }
}
