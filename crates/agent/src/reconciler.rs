//! The event loop. It owns the cluster state, reconciles the kernel's rules with it and answers queries.

mod adoption;
mod attachments;
pub(crate) mod drop_reporting;
mod examinations;
mod model;
pub(crate) mod name_learning;
mod outcome;
mod publication;
pub(crate) mod questions;
mod schedule;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::TimedChange;
use nfnetlink::Notification;
use policy::remote::LabelPrefix;
use policy::{AttachmentId, Change, Enforcement, Kind, Layout, Object, ObjectName};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep_until;

use crate::dns::CopiedAnswer;
use crate::enforcer::Enforcer;
use crate::flows::FlowFeed;
use crate::gate::{Gate, Outcome, PendingAdd};
use crate::identities::Unidentified;
use crate::latency::Pending;
use crate::link_watch::Queued;
use crate::metrics::Metrics;
use crate::metrics::labels::Watched;
use crate::own_subnets::own_subnets;
use crate::pod_lookup::PodRequest;
use crate::remote::RemoteUpdate;
use crate::reports::DropEvent;
use crate::status::AgentStatus;
use crate::translation_check::TranslationChecks;
use adoption::Adoption;
use drop_reporting::DropReporting;
use examinations::Examinations;
use model::Model;
use name_learning::NameLearning;
use publication::Publication;
use questions::Question;
use schedule::{Schedule, Timer};

/// Events of the event loop.
pub(crate) enum Event {
    Source(cluster::SourceEvent),
    /// Changes of other clusters' pods, from the context providers.
    Remote(RemoteUpdate),
    Cni(Call),
    /// DNS answers to pods whose cluster policies have domain names.
    DnsAnswers(Vec<CopiedAnswer>),
    /// An interface of the node was renamed or removed, or the set of interfaces that tc may redirect packets to
    /// changed.
    Links(Queued),
    /// An address of an interface of the node was added or removed.
    Addresses(Queued),
    /// Another program committed a ruleset change, or notifications were lost.
    Kernel(Notification),
    /// Response of the API server to a pod lookup.
    PodLookup(ObjectName, Result<Object, String>),
    Question(Question),
    /// Bind error of the TCP port; `None` once it is bound.
    Port(Option<String>),
}

/// The informers send into the queue of the event loop.
impl From<cluster::SourceEvent> for Event {
    fn from(event: cluster::SourceEvent) -> Event {
        Event::Source(event)
    }
}

/// Requests of the CNI plugin.
pub(crate) enum Call {
    Add(Box<PendingAdd>),
    /// The instant is when the request arrived.
    Delete(AttachmentId, Instant),
    Check(AttachmentId, oneshot::Sender<Outcome>),
    /// Why an ADD would fail now; `None` if it would succeed.
    Status(oneshot::Sender<Option<String>>),
}

/// Capacity of the event queue. An event holds a batch of up to some hundred changes. When the queue is full, sources
/// wait and further changes stay in kernel and server buffers, which bounds memory while a commit is slow.
pub(crate) const EVENTS_QUEUED: usize = 64;

/// Process name of the CNI plugin in the kernel's commit notifications.
const PLUGIN: &str = "ringfence-cni";

pub(crate) struct Reconciler {
    enforcer: Enforcer,
    model: Model,
    schedule: Schedule,
    sync: cluster::Sync,
    status: Publication,
    metrics: Arc<Metrics>,
    gate: Gate,
    adoption: Adoption,
    examinations: Examinations,
    /// Translation checks (incremental against full translation).
    checks: TranslationChecks,
    /// Denied packets.
    drop_reporting: DropReporting,
    /// Learned addresses of domain names.
    names: NameLearning,
    /// Events that the rules do not cover yet, for the latency metric.
    latency: Pending,
    run_dir: PathBuf,
    /// True once the attachment folder could be read: before, the pods' interfaces are not known.
    attachments_read: bool,
    /// Queue of pod lookups; `None` without an API server.
    lookups: Option<mpsc::Sender<PodRequest>>,
    /// True once rules were enforced: the node name needs no check any more.
    enforced: bool,
}

/// Dependencies of the loop other than the enforcer.
pub(crate) struct Dependencies {
    pub(crate) layout: Layout,
    pub(crate) run_dir: PathBuf,
    /// Queue of pod lookups; `None` without an API server.
    pub(crate) lookups: Option<mpsc::Sender<PodRequest>>,
    pub(crate) resync: Duration,
    /// Translation checks (incremental against full translation).
    pub(crate) checks: TranslationChecks,
    /// Enforcement of policies that do not set it.
    pub(crate) enforcement: Enforcement,
    pub(crate) drop_reporting: DropReporting,
    pub(crate) names: NameLearning,
    /// Updates for the flow thread; `None` without flow records.
    pub(crate) flows: Option<FlowFeed>,
    /// Label prefixes by which policies select pods of other clusters.
    pub(crate) prefixes: Vec<LabelPrefix>,
    /// Initial remote state; `None` without context providers.
    pub(crate) remote: Option<RemoteUpdate>,
}

impl Reconciler {
    pub(crate) fn new(
        enforcer: Enforcer,
        status: AgentStatus,
        dependencies: Dependencies,
        metrics: Arc<Metrics>,
    ) -> (Reconciler, watch::Receiver<Arc<AgentStatus>>) {
        let sync = cluster::Sync::default();
        let waiting_for = sync.missing().iter().map(ToString::to_string).collect();
        let (status, receiver) = Publication::new(AgentStatus { waiting_for, ..status });
        let Dependencies {
            layout,
            run_dir,
            lookups,
            resync,
            checks,
            enforcement,
            drop_reporting,
            names,
            flows,
            prefixes,
            remote,
        } = dependencies;
        let mut reconciler = Reconciler {
            model: Model::new(&status.node, layout, enforcement, prefixes, flows),
            enforcer,
            schedule: Schedule::new(resync, Instant::now()),
            sync,
            status,
            metrics,
            gate: Gate::default(),
            adoption: Adoption::default(),
            examinations: Examinations::new(&run_dir),
            checks,
            drop_reporting,
            names,
            latency: Pending::default(),
            run_dir,
            attachments_read: false,
            lookups,
            enforced: false,
        };
        reconciler.restore_names();
        if let Some(update) = remote {
            reconciler.apply_remote(update);
        }
        reconciler.read_attachments();
        reconciler.publish_redirecting();
        let findings = reconciler.examinations.examine_now(false);
        reconciler.record_examination(Some(findings));
        (reconciler, receiver)
    }

    /// Runs until all senders are dropped.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<Event>, mut drop_events: mpsc::Receiver<DropEvent>) {
        loop {
            // The actions of these timers wait for a pending commit.
            let is_current = !self.schedule.is_commit_pending();
            self.schedule.set(Timer::GateDeadline, self.gate.next_deadline().filter(|_| is_current));
            self.schedule.set(Timer::TranslationCheck, self.checks.next().filter(|_| is_current));
            self.schedule_names();
            let wake = self.schedule.next().unwrap_or_else(Instant::now);
            tokio::select! {
                event = events.recv() => {
                    let Some(event) = event else { return };
                    self.receive(event);
                    // Those that arrive meanwhile wait for the next iteration, so that they do not delay its commit.
                    for _ in 0..events.len() {
                        let Ok(event) = events.try_recv() else { break };
                        self.receive(event);
                    }
                }
                // Pods cannot be named before the initial sync. Notifications that exceed the queue wait in the kernel.
                Some(event) = drop_events.recv(), if self.sync.is_complete() && !self.drop_reporting.naming.is_running() => {
                    self.name_drops(event, &mut drop_events);
                }
                named = self.drop_reporting.naming.outcome() => self.report_named(named),
                outcome = self.checks.outcome() => self.record_check(outcome),
                findings = self.examinations.outcome() => self.record_examination(findings),
                () = sleep_until(wake.into()) => {}
            }
            self.step(Instant::now());
        }
    }

    fn receive(&mut self, event: Event) {
        if self.apply(event) {
            self.request_commit();
        }
    }

    fn request_commit(&mut self) {
        self.status.record_state_change();
        self.schedule.request_commit(Instant::now());
    }

    /// Does what is due, and what depends on the rules in force.
    fn step(&mut self, now: Instant) {
        let mut expired = self.schedule.expire(now);
        if self.expire_names(now) {
            self.request_commit();
            expired.extend(self.schedule.expire(now));
        }
        if expired.contains(&Timer::Resync) {
            let changed = [self.read_attachments(), self.read_own_subnets()];
            if changed.contains(&true) {
                self.request_commit();
            }
            self.adoption.retry();
            self.examinations.request(self.status.isolated_pods > 0);
        }
        let verifies = [Timer::Resync, Timer::Repair, Timer::Retry].iter().any(|timer| expired.contains(timer));
        // A verification compares the tables with the last commit, so a pending commit goes first.
        if expired.contains(&Timer::Commit) || (verifies && self.schedule.is_commit_pending()) {
            self.schedule.set(Timer::Commit, None);
            self.publish_redirecting();
            self.drop_reporting.update(self.model.state());
            self.reconcile();
        }
        if verifies {
            self.verify();
        }
        // While a commit is pending, the rules lag behind the state: nothing may rely on them.
        if !self.schedule.is_commit_pending() {
            if self.status.in_force {
                self.latency.record_commit(Instant::now(), &self.metrics);
            }
            self.answer_waiting();
            self.publish_to_flows();
            self.adopt_isolated();
            if expired.contains(&Timer::TranslationCheck) {
                self.check_translation();
            }
        }
        self.save_names(now);
        self.publish_names();
        let (state, rulesets) = (self.model.state(), self.enforcer.rulesets());
        self.status.measure(state, rulesets, Instant::now());
        let generations = (self.enforcer.kernel_generation(), self.enforcer.policy_generation());
        self.status.publish(generations.0, generations.1, Instant::now());
    }

    /// Commits the rules of the present state.
    fn reconcile(&mut self) {
        if !self.sync.is_complete() {
            return;
        }
        if let Some(reason) = self.enforcement_obstacle() {
            return self.wait(reason);
        }
        let began = Instant::now();
        self.model.begin_commit();
        self.translate();
        let result = self.enforcer.enforce(self.model.translator()).map(Some);
        self.model.end_commit();
        self.record_attempt(result);
        self.publish_to_flows();
        self.schedule.record_duration(began.elapsed());
    }

    fn verify(&mut self) {
        if self.sync.is_complete() && self.enforcement_obstacle().is_none() {
            self.translate();
            let result = self.enforcer.verify(self.model.translator());
            self.record_attempt(result);
        }
    }

    /// Applies the pending delta to the translation.
    fn translate(&mut self) {
        let delta = self.model.translate();
        self.enforcer.follow(&delta);
    }

    /// Publishes the enforced state to flow attribution.
    fn publish_to_flows(&mut self) {
        if self.status.in_force {
            self.model.publish_to_flows(self.enforcer.policy_generation());
        }
    }

    /// Applies an event. Returns whether the rules may have to change.
    fn apply(&mut self, event: Event) -> bool {
        match event {
            Event::Source(cluster::SourceEvent::Changes(changes)) => {
                self.metrics.events.inc();
                let completed = self.sync.observe(changes.iter().map(|timed| &timed.change));
                self.status.record_changes(self.missing(), Instant::now());
                let mut changed = false;
                for TimedChange { change, at } in changes {
                    let kind = Watched::of(&change);
                    if kind == Watched::ClusterNetworkPolicy {
                        self.names.outdate();
                    }
                    self.latency.add(kind, at, &self.metrics);
                    changed |= self.model.apply(change);
                }
                if completed {
                    self.status.record_sync(Instant::now());
                    tracing::info!(
                        namespaces = self.model.state().namespace_count(),
                        pods = self.model.state().pod_count(),
                        policies = self.model.state().policy_count(),
                        "initial sync complete"
                    );
                    self.drop_reporting.update(self.model.state());
                    if self.drop_reporting.identities.scheme().is_none() {
                        tracing::warn!("security identities are not computed: {}", Unidentified::UnknownCluster);
                    }
                }
                changed || completed
            }
            Event::Source(cluster::SourceEvent::Problems(problems)) => {
                self.status.record_problems(problems, Instant::now());
                false
            }
            Event::Source(cluster::SourceEvent::Unserved(kinds)) => {
                self.status.record_unserved(&kinds);
                false
            }
            Event::Remote(update) => self.apply_remote(update),
            Event::Cni(call) => self.answer(call),
            Event::Kernel(Notification::Foreign(foreign)) => {
                if self.enforcer.notice(&foreign) {
                    self.metrics.drift_events.inc();
                    self.schedule.request_repair(Instant::now());
                }
                foreign.program == PLUGIN && self.expect_isolated()
            }
            Event::Kernel(Notification::Lost) => {
                self.metrics.lost_notifications.inc();
                tracing::warn!("netlink notifications lost (ENOBUFS); resyncing from the kernel");
                self.schedule.request_repair(Instant::now());
                self.expect_isolated()
            }
            Event::PodLookup(pod, result) => match result {
                // The watch is newer than this response, unless it has the pod's predecessor. If no ADD waits any more,
                // the pod may already be deleted.
                Ok(object) => {
                    let state = self.model.state();
                    let asked = state.pod(&pod).is_none_or(|known| !state.is_attached(known));
                    asked
                        && self.gate.waits_for(&pod)
                        && object.kind() == Kind::Pod
                        && self.model.apply(Change::Set(object))
                }
                Err(reason) => {
                    self.gate.record_unknown(&pod, &reason);
                    false
                }
            },
            Event::DnsAnswers(answers) => self.learn(answers),
            Event::Links(queued) => {
                queued.dequeue();
                self.read_attachments()
            }
            Event::Addresses(queued) => {
                queued.dequeue();
                self.read_own_subnets()
            }
            Event::Question(question) => {
                self.reply(question);
                false
            }
            Event::Port(problem) => {
                self.status.record_port(problem);
                false
            }
        }
    }

    /// Returns whether the rules may have to change.
    fn apply_remote(&mut self, RemoteUpdate { changes, standing: freshness, at }: RemoteUpdate) -> bool {
        self.status.record_remote(freshness);
        let mut changed = false;
        for change in changes {
            changed |= self.model.apply_remote(change);
        }
        if changed {
            self.latency.add(Watched::RemoteSet, at, &self.metrics);
        }
        changed
    }

    /// Returns whether the rules may have to change.
    fn read_own_subnets(&mut self) -> bool {
        match own_subnets() {
            Ok(subnets) => self.model.set_own_subnets(&subnets),
            Err(error) => {
                tracing::warn!(
                    "cannot read the addresses of this node's interfaces (getifaddrs), which the rules about tunnels \
                     need; retrying at the next resync: {error}"
                );
                false
            }
        }
    }
}
