//! The event loop. It owns the cluster state, reconciles the kernel's rules with it and answers queries.

mod attached;
pub(crate) mod denied;
pub(crate) mod questions;
mod report;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::TimedChange;
use nfnetlink::Notification;
use nft::NameMap;
use policy::remote::LabelPrefix;
use policy::{AttachmentId, Change, Changed, ClusterState, Enforcement, Kind, Object, ObjectName, Program};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant as Tick, sleep_until};

use crate::enforcer::Enforcer;
use crate::flows::{FlowFeed, Mutation};
use crate::gate::{Gate, Outcome, Waiting};
use crate::identities::Unidentified;
use crate::latency::Pending;
use crate::metrics::Metrics;
use crate::metrics::labels::Watched;
use crate::own_subnets::own_subnets;
use crate::pod_lookup::PodRequest;
use crate::remote::News;
use crate::reports::Observed;
use crate::state_loop::denied::Denied;
use crate::state_loop::questions::Question;
use crate::status::Status;
use crate::translation_check::Schedule;

/// Events of the event loop.
pub(crate) enum Event {
    Source(cluster::Event),
    /// Changes of other clusters' pods, from the context providers.
    Remote(News),
    Cni(Call),
    /// An interface of the node was renamed or removed, or the set of interfaces that tc may redirect packets to
    /// changed.
    Links,
    /// An address of an interface of the node was added or removed.
    Addresses,
    /// Another program committed a ruleset change, or notifications were lost.
    Kernel(Notification),
    /// Response of the API server to a pod lookup.
    Found(ObjectName, Result<Object, String>),
    Question(Question),
    /// Bind error of the TCP port; `None` once it is bound.
    Port(Option<String>),
}

/// Requests of the CNI plugin.
pub(crate) enum Call {
    Add(Box<Waiting>),
    /// The instant is when the request arrived.
    Delete(AttachmentId, Instant),
    Check(AttachmentId, oneshot::Sender<Outcome>),
    /// Why an ADD would fail now; `None` if it would succeed.
    Status(oneshot::Sender<Option<String>>),
}

/// Capacity of the event queue. An event holds a batch of up to some hundred changes. When the queue is full, sources
/// wait and further changes stay in kernel and server buffers, which bounds memory while a commit is slow.
pub(crate) const EVENTS_QUEUED: usize = 64;

/// Shortest interval between two commits: it coalesces a burst into at most a thousand transactions a second. A change
/// after an idle period does not wait.
const COMMITS_APART: Duration = Duration::from_millis(1);
/// Debounce delay as a multiple of the duration of the last attempt, so that a steady stream of small changes uses a
/// fifth of a processor. `LONGEST_APART` caps it, since all waiting changes are coalesced into one commit anyway.
const COMMITS_APART_TIMES: u32 = 4;
const LONGEST_APART: Duration = Duration::from_millis(10);

/// Initial backoff after a failed commit; doubles up to the resync interval.
const FIRST_RETRY: Duration = Duration::from_millis(250);

/// Heartbeat interval of the event loop, used by the liveness probe.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// Shortest interval between two repairs after foreign commits: a program that fights ours costs ten repairs a second.
const HEALS_APART: Duration = Duration::from_millis(100);

/// Shortest interval between two measurements of the stores, which visit every attachment and set.
const MEASURES_APART: Duration = Duration::from_secs(10);

/// Process name of the CNI plugin in the kernel's commit notifications.
const PLUGIN: &str = "ringfence-cni";

pub(crate) struct StateLoop {
    enforcer: Enforcer,
    state: ClusterState,
    sync: cluster::Sync,
    status: Status,
    statuses: watch::Sender<Arc<Status>>,
    metrics: Arc<Metrics>,
    gate: Gate,
    /// When to verify the tables after a foreign commit, and which program made it.
    heal: Option<Instant>,
    culprit: Option<String>,
    last_heal: Option<Instant>,
    /// True if the CNI plugin may have isolated pods that the rules cover now.
    release: bool,
    /// True if the plugin isolated pods that are still unknown here.
    unreleased: bool,
    run_dir: PathBuf,
    /// True once the attachment folder could be read: before, the pods' interfaces are not known.
    attachments_read: bool,
    /// Queue of pod lookups; `None` without an API server.
    lookups: Option<mpsc::UnboundedSender<PodRequest>>,
    resync: Duration,
    retry: Option<Duration>,
    last_attempt: Option<Instant>,
    /// Duration of the last attempt to enforce, including translation.
    attempt_took: Duration,
    /// True once rules were enforced: the node name needs no check any more.
    enforced: bool,
    /// Delta since the translator was last updated.
    changed: Changed,
    /// Programs, as counted in the status.
    programs: NameMap<Program>,
    /// Events that the rules do not cover yet, for the latency metric.
    pending: Pending,
    /// True if the state has changed since its objects were counted.
    uncounted: bool,
    /// True if the state has changed since the stores were measured at `measured`.
    unmeasured: bool,
    measured: Option<Instant>,
    /// Denied packets.
    denied: Denied,
    /// Schedule of the translation checks (incremental against full translation).
    checks: Schedule,
    /// Updates for the flow thread; `None` without flow records.
    flows: Option<FlowFeed>,
}

/// Dependencies of the loop other than the enforcer.
pub(crate) struct Parts {
    pub(crate) run_dir: PathBuf,
    /// Queue of pod lookups; `None` without an API server.
    pub(crate) lookups: Option<mpsc::UnboundedSender<PodRequest>>,
    pub(crate) resync: Duration,
    /// Schedule of the translation checks (incremental against full translation).
    pub(crate) checks: Schedule,
    /// Enforcement of policies that do not set it.
    pub(crate) enforcement: Enforcement,
    pub(crate) denied: Denied,
    /// Updates for the flow thread; `None` without flow records.
    pub(crate) flows: Option<FlowFeed>,
    /// Label prefixes by which policies select pods of other clusters.
    pub(crate) prefixes: Vec<LabelPrefix>,
    /// Initial remote state; `None` without context providers.
    pub(crate) remote: Option<News>,
}

impl StateLoop {
    pub(crate) fn new(
        enforcer: Enforcer,
        status: Status,
        parts: Parts,
        metrics: Arc<Metrics>,
    ) -> (StateLoop, watch::Receiver<Arc<Status>>) {
        let sync = cluster::Sync::default();
        let waiting_for = sync.missing().iter().map(ToString::to_string).collect();
        let status = Status { waiting_for, ..status };
        let (statuses, receiver) = watch::channel(Arc::new(status.clone()));
        let Parts { run_dir, lookups, resync, checks, enforcement, denied, flows, prefixes, remote } = parts;
        let mut state = ClusterState::new();
        state.set_default_enforcement(enforcement);
        state.set_remote_prefixes(prefixes);
        let mut state_loop = StateLoop {
            enforcer,
            state,
            sync,
            status,
            statuses,
            metrics,
            gate: Gate::default(),
            heal: None,
            culprit: None,
            last_heal: None,
            release: true,
            unreleased: false,
            run_dir,
            attachments_read: false,
            lookups,
            resync,
            retry: None,
            last_attempt: None,
            attempt_took: Duration::ZERO,
            enforced: false,
            changed: Changed::default(),
            programs: NameMap::new(),
            pending: Pending::default(),
            uncounted: true,
            unmeasured: true,
            measured: None,
            denied,
            checks,
            flows,
        };
        if let Some(news) = remote {
            state_loop.note_remote(news);
        }
        state_loop.read_attachments();
        state_loop.note_redirecting();
        state_loop.examine_node();
        (state_loop, receiver)
    }

    /// Runs until all senders are dropped.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<Event>, mut observations: mpsc::Receiver<Observed>) {
        let mut tick = Tick::now() + self.resync;
        loop {
            let retry = self.retry.map(|wait| Tick::from(self.last_attempt.unwrap_or_else(Instant::now)) + wait);
            let deadline = self.gate.next_deadline().map(Tick::from);
            let heal = self.heal.map(Tick::from);
            let sign_of_life = Tick::now() + SIGN_OF_LIFE;
            let check = self.checks.next.filter(|_| self.checks.running.is_none()).map(Tick::from);
            let wake = [retry, deadline, heal, check].into_iter().flatten().fold(tick.min(sign_of_life), Tick::min);
            let first = tokio::select! {
                event = events.recv() => match event {
                    Some(event) => Some(event),
                    None => return,
                },
                // Pods cannot be named before the initial sync. Notifications that exceed the queue wait in the kernel.
                Some(observed) = observations.recv(), if self.sync.is_complete() => {
                    self.tell_all(&observed, &mut observations);
                    None
                }
                outcome = self.checks.outcome() => {
                    self.note_check(outcome);
                    None
                }
                () = sleep_until(wake) => None,
            };
            let mut changed = false;
            if let Some(event) = first {
                changed = self.take(event);
                if changed {
                    self.pace().await;
                }
                while let Ok(event) = events.try_recv() {
                    changed |= self.take(event);
                }
            }
            let now = Tick::now();
            let ticked = now >= tick;
            if ticked {
                tick = now + self.resync;
                changed |= self.read_attachments();
                changed |= self.read_own_subnets();
                self.release |= self.unreleased;
                self.examine_node();
            }
            self.uncounted |= changed;
            if changed {
                self.note_redirecting();
                self.denied.keep_up(&self.state);
                self.enforce();
            }
            let heals = self.heal.is_some_and(|at| now >= Tick::from(at));
            if heals {
                (self.heal, self.last_heal) = (None, Some(Instant::now()));
            }
            if heals || ticked || retry.is_some_and(|at| now >= at) {
                self.verify();
            }
            if self.status.in_force {
                self.pending.record_commit(Instant::now(), &self.metrics);
            }
            self.answer_waiting();
            self.publish_to_flows();
            self.release_isolated();
            if self.checks.is_due(now.into_std()) {
                self.check_translation();
            }
            self.publish();
        }
    }

    fn enforce(&mut self) {
        if !self.sync.is_complete() {
            return;
        }
        match self.enforcement_obstacle() {
            Some(reason) => self.wait(reason),
            None => {
                let began = Instant::now();
                if let Some(flows) = &mut self.flows {
                    flows.begin_commit();
                }
                self.follow();
                let result = self.enforcer.enforce().map(Some);
                if let Some(flows) = &mut self.flows {
                    flows.end_commit();
                }
                self.record_attempt(result);
                self.publish_to_flows();
                self.attempt_took = began.elapsed();
            }
        }
    }

    fn verify(&mut self) {
        if self.sync.is_complete() && self.enforcement_obstacle().is_none() {
            self.follow();
            let result = self.enforcer.verify();
            self.record_attempt(result);
        }
    }

    /// Passes the delta to the translator.
    fn follow(&mut self) {
        self.enforcer.follow(&self.state, &std::mem::take(&mut self.changed));
    }

    /// Records a change of the state for flow attribution.
    fn record(&mut self, mutation: impl FnOnce() -> Mutation) {
        if let Some(flows) = &mut self.flows {
            flows.record(mutation());
        }
    }

    /// Publishes the enforced state to flow attribution.
    fn publish_to_flows(&mut self) {
        if let Some(flows) = self.flows.as_mut().filter(|_| self.status.in_force) {
            flows.publish(&self.state, self.enforcer.policy_generation());
        }
    }

    /// Accumulates the delta until the next reconcile. Returns whether anything changed.
    fn keep_in_mind(&mut self, changed: Changed) -> bool {
        let any = changed.any();
        // A translator that has not begun starts from the whole state.
        if self.enforcer.follows() {
            self.changed.join(changed);
        }
        any
    }

    /// Returns whether the rules may have to change.
    fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Source(cluster::Event::Changes(changes)) => {
                self.metrics.events.inc();
                self.status.told = Some(Instant::now());
                let completed = self.sync.observe(changes.iter().map(|told| &told.change));
                self.status.waiting_for = self.missing();
                let mut changed = false;
                for TimedChange { change, at } in changes {
                    self.pending.add(Watched::of(&change), at, &self.metrics);
                    self.record(|| Mutation::Object(change.clone()));
                    let applied = self.state.apply(change);
                    changed |= self.keep_in_mind(applied);
                }
                if completed {
                    self.status.synced = Some(Instant::now());
                    tracing::info!(
                        namespaces = self.state.namespace_count(),
                        pods = self.state.pod_count(),
                        policies = self.state.policy_count(),
                        "initial sync complete"
                    );
                    self.denied.keep_up(&self.state);
                    if self.denied.identities.scheme().is_none() {
                        tracing::warn!("security identities are not computed: {}", Unidentified::UnknownCluster);
                    }
                }
                changed || completed
            }
            Event::Source(cluster::Event::Problems(problems)) => {
                self.note_problems(problems);
                false
            }
            Event::Source(cluster::Event::Unserved(kinds)) => {
                self.note_unserved(&kinds);
                false
            }
            Event::Remote(news) => self.note_remote(news),
            Event::Cni(call) => self.answer(call),
            Event::Kernel(Notification::Foreign(foreign)) => {
                if self.enforcer.notice(&foreign) {
                    self.metrics.drift_events.inc();
                    self.culprit = Some(format!("{} (process {})", foreign.program, foreign.process));
                    self.plan_heal();
                }
                foreign.program == PLUGIN && self.expect_isolated()
            }
            Event::Kernel(Notification::Lost) => {
                self.metrics.lost_announcements.inc();
                tracing::warn!("netlink notifications lost (ENOBUFS); resyncing from the kernel");
                self.plan_heal();
                self.expect_isolated()
            }
            Event::Found(pod, found) => match found {
                // The watch is newer than this response, unless it has the pod's predecessor. If no ADD waits any more,
                // the pod may already be deleted.
                Ok(object) => {
                    let asked = self.state.pod(&pod).is_none_or(|known| !self.state.is_attached(known));
                    if !asked || !self.gate.waits_for(&pod) || object.kind() != Kind::Pod {
                        return false;
                    }
                    self.record(|| Mutation::Object(Change::Set(object.clone())));
                    let applied = self.state.apply(Change::Set(object));
                    self.keep_in_mind(applied)
                }
                Err(reason) => {
                    self.gate.note_unknown(&pod, &reason);
                    false
                }
            },
            Event::Links => self.read_attachments(),
            Event::Addresses => self.read_own_subnets(),
            Event::Question(question) => {
                self.reply(question);
                false
            }
            Event::Port(problem) => {
                self.status.port_problem = problem;
                false
            }
        }
    }

    /// Returns whether the rules may have to change.
    fn note_remote(&mut self, News { changes, standing, at }: News) -> bool {
        self.status.remote = Some(Arc::new(standing));
        let mut changed = false;
        for change in changes {
            self.record(|| Mutation::Remote(change.clone()));
            let applied = self.state.apply_remote(change);
            changed |= self.keep_in_mind(applied);
        }
        if changed {
            self.pending.add(Watched::RemoteSet, at, &self.metrics);
        }
        changed
    }

    /// Returns whether the rules may have to change.
    fn read_own_subnets(&mut self) -> bool {
        match own_subnets() {
            Ok(subnets) => self.enforcer.set_own_subnets(subnets),
            Err(error) => {
                tracing::warn!(
                    "cannot read the addresses of this node's interfaces (getifaddrs), which the rules about tunnels \
                     need; retrying at the next resync: {error}"
                );
                false
            }
        }
    }

    fn plan_heal(&mut self) {
        let now = Instant::now();
        let allowed = self.last_heal.map_or(now, |last| (last + HEALS_APART).max(now));
        self.heal.get_or_insert(allowed);
    }

    async fn pace(&self) {
        if let Some(last) = self.last_attempt {
            let apart = (self.attempt_took * COMMITS_APART_TIMES).clamp(COMMITS_APART, LONGEST_APART);
            tokio::time::sleep_until((last + apart).into()).await;
        }
    }
}
