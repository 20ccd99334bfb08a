//! Decides when the kernel's rules are reconciled with the cluster state, and answers queries.
//!
//! Sans-I/O: the event loop (`event_loop.rs`) passes events, what it has read, and the present time. In each iteration it
//! calls [`Reconciler::begin_iteration`], performs the actions of [`Reconciler::next_action`] until there are none, and
//! records their results. Nothing here reads a clock or a file, waits, or uses the kernel.

mod adoption;
mod attachments;
pub(crate) mod drop_reporting;
mod examinations;
#[cfg(test)]
pub(crate) mod fixture;
mod model;
pub(crate) mod name_learning;
mod outcome;
mod publication;
pub(crate) mod questions;
mod schedule;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{SourceEvent, TimedChange};
use ipnet::IpNet;
use jiff::Timestamp;
use nft::Ruleset;
use policy::remote::LabelPrefix;
use policy::{Change, ClusterState, Enforcement, Kind, Layout, Object, ObjectName, StateDelta, Translator};
use tokio::sync::watch;

use crate::api::TableVerdict;
use crate::dns::LearnedTable;
use crate::flows::{ClockReading, FlowFeed};
use crate::gate::Gate;
use crate::identities::IdentityError;
use crate::latency::PendingEvents;
use crate::metrics::Metrics;
use crate::metrics::labels::WatchedKind;
use crate::pod_lookup::PodRequest;
use crate::remote::RemoteUpdate;
use crate::status::AgentStatus;
use crate::translation_check::{CheckSchedule, TranslationCheck};
use adoption::Adoption;
pub(crate) use attachments::{AttachmentReading, InterfaceReading};
use drop_reporting::DropReporting;
use examinations::Examinations;
pub(crate) use examinations::Findings;
use model::Model;
use name_learning::NameLearning;
pub(crate) use outcome::CommitAttempt;
use publication::Publication;
use questions::{CommittedRules, Reply};
use schedule::{Schedule, Timer};

/// Process name of the CNI plugin in the kernel's commit notifications.
const PLUGIN: &str = "ringfence-cni";

/// I/O that the event loop performs for the reconciler.
#[derive(Debug)]
pub(crate) enum Action {
    /// Send a pod lookup, if there is an API server. Its response is passed to [`Reconciler::record_pod_lookup`].
    LookUpPod(PodRequest),
    /// Compare the kernel's tables with the state, and reply.
    Compare(Reply<TableVerdict>),
    /// Copy the rules of the last commit, and [reply](Reconciler::reply_with_rules).
    CopyRules(Reply<CommittedRules>),
    /// Then [`Reconciler::record_attachments`].
    ReadAttachments,
    /// Then [`Reconciler::record_own_subnets`].
    ReadOwnSubnets,
    /// Start an examination of the node in a thread. When it ends, [`Reconciler::record_examination`].
    Examine { isolates_pods: bool },
    /// Commit the rules of the present state, then [`Reconciler::record_commit`].
    Commit,
    /// Compare the kernel's rules with the last commit and repair them, then [`Reconciler::record_verification`].
    Verify,
    /// Release covered pods from the plugin's tables, then [`Reconciler::record_release`].
    ReleaseIsolated,
    /// Start a [translation check](Reconciler::translation_check) in a thread. When it ends,
    /// [`Reconciler::record_check`].
    CheckTranslation,
    /// Write the [learned names](Reconciler::learned_names) to their file.
    SaveNames,
}

/// Work that an expired timer or an event has made due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    ReadAttachments,
    ReadOwnSubnets,
    Verify,
    /// At most one attempt to adopt isolated pods in each iteration.
    Adopt,
    CheckTranslation,
    SaveNames,
}

pub(crate) struct Reconciler {
    model: Model,
    schedule: Schedule,
    sync: cluster::Sync,
    status: Publication,
    metrics: Arc<Metrics>,
    gate: Gate,
    adoption: Adoption,
    examinations: Examinations,
    /// Schedule of translation checks (incremental against full translation).
    checks: CheckSchedule,
    drop_reporting: DropReporting,
    /// Learned addresses of domain names.
    names: NameLearning,
    /// Events that the rules do not cover yet, for the latency metric.
    latency: PendingEvents,
    due: BTreeSet<Work>,
    /// Pod lookups and queries of this iteration.
    requested: VecDeque<Action>,
    /// True once the attachment folder could be read: before, the pods' interfaces are not known.
    attachments_read: bool,
    /// True once rules were enforced: the node name needs no check any more.
    enforced: bool,
    /// Wall-clock time at which the iteration began.
    time: Timestamp,
    /// Generation of the approvals after the last attempt to commit or verify; `None` before the first.
    policy_generation: Option<u32>,
}

/// Initial values of the reconciler other than its status.
pub(crate) struct Dependencies {
    pub(crate) layout: Layout,
    pub(crate) resync: Duration,
    /// Interval of translation checks (incremental against full translation); `None` if they are off.
    pub(crate) check_interval: Option<Duration>,
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
        status: AgentStatus,
        dependencies: Dependencies,
        metrics: Arc<Metrics>,
        now: Instant,
    ) -> (Reconciler, watch::Receiver<Arc<AgentStatus>>) {
        let sync = cluster::Sync::default();
        let waiting_for = sync.missing().iter().map(ToString::to_string).collect();
        let (status, receiver) = Publication::new(AgentStatus { waiting_for, ..status });
        let Dependencies {
            layout,
            resync,
            check_interval,
            enforcement,
            drop_reporting,
            names,
            flows,
            prefixes,
            remote,
        } = dependencies;
        let mut reconciler = Reconciler {
            model: Model::new(&status.node, layout, enforcement, prefixes, flows),
            schedule: Schedule::new(resync, now),
            sync,
            status,
            metrics,
            gate: Gate::default(),
            adoption: Adoption::default(),
            examinations: Examinations::default(),
            checks: CheckSchedule::new(check_interval, now),
            drop_reporting,
            names,
            latency: PendingEvents::default(),
            due: BTreeSet::new(),
            requested: VecDeque::new(),
            attachments_read: false,
            enforced: false,
            time: Timestamp::default(),
            policy_generation: None,
        };
        reconciler.restore_names(now);
        if let Some(update) = remote {
            reconciler.apply_remote(update, now);
        }
        (reconciler, receiver)
    }

    /// The cluster state that the rules are translated from.
    pub(crate) fn state(&self) -> &ClusterState {
        self.model.state()
    }

    pub(crate) fn is_synced(&self) -> bool {
        self.sync.is_complete()
    }

    /// When the next iteration is due if there is no event.
    pub(crate) fn wake_at(&mut self, now: Instant) -> Instant {
        self.arm_timers(now);
        self.schedule.next().unwrap_or(now)
    }

    /// Arms the timers whose time is determined elsewhere.
    fn arm_timers(&mut self, now: Instant) {
        // The work of these timers waits for a pending commit.
        let is_current = !self.schedule.is_commit_pending();
        self.schedule.set(Timer::GateDeadline, self.gate.next_deadline().filter(|_| is_current));
        self.schedule.set(Timer::TranslationCheck, self.checks.next().filter(|_| is_current));
        self.schedule.set(Timer::NameExpiry, self.next_name_expiry(now));
        self.schedule.set(Timer::SaveNames, self.names.next_save());
    }

    /// Begins an iteration of the event loop, after its events, at this wall-clock time: expires the timers. Only here, so that actions that take
    /// long cannot extend an iteration, in which no further event is received.
    pub(crate) fn begin_iteration(&mut self, now: Instant, time: Timestamp) {
        self.time = time;
        self.arm_timers(now);
        for timer in self.schedule.expire(now) {
            match timer {
                Timer::Resync => {
                    self.due.extend([Work::ReadAttachments, Work::ReadOwnSubnets, Work::Verify]);
                    self.adoption.retry();
                    self.examinations.request(self.status.isolated_pods > 0);
                }
                Timer::Repair | Timer::Retry => {
                    self.due.insert(Work::Verify);
                }
                Timer::TranslationCheck => {
                    self.due.insert(Work::CheckTranslation);
                }
                Timer::NameExpiry => self.expire_names(now),
                Timer::SaveNames => {
                    self.due.insert(Work::SaveNames);
                }
                // The wake-up is enough: ADDs are answered in every iteration without a pending commit.
                Timer::Commit | Timer::Heartbeat | Timer::GateDeadline => {}
            }
        }
        self.due.insert(Work::Adopt);
    }

    /// The next action of this iteration, in order of priority; `None` if there is nothing left to do. The result of the
    /// last action must have been recorded.
    pub(crate) fn next_action(&mut self, now: Instant) -> Option<Action> {
        if let Some(action) = self.requested.pop_front() {
            return Some(action);
        }
        if self.due.remove(&Work::ReadAttachments) {
            return Some(Action::ReadAttachments);
        }
        if self.due.remove(&Work::ReadOwnSubnets) {
            return Some(Action::ReadOwnSubnets);
        }
        if let Some(isolates_pods) = self.examinations.start() {
            return Some(Action::Examine { isolates_pods });
        }
        // A verification compares the tables with the last commit, so a pending commit goes first.
        if self.schedule.begin_commit(now, self.due.contains(&Work::Verify)) && self.begin_commit() {
            return Some(Action::Commit);
        }
        if self.due.remove(&Work::Verify) && self.sync.is_complete() && self.enforcement_obstacle().is_none() {
            return Some(Action::Verify);
        }
        // While a commit is pending, the rules lag behind the state: nothing may rely on them.
        if !self.schedule.is_commit_pending() {
            if self.status.in_force {
                self.latency.record_commit(now, &self.metrics);
            }
            self.answer_waiting(now);
            self.publish_to_flows(ClockReading { monotonic: now, wall: self.time });
            if let Some(action) = self.next_adoption() {
                return Some(action);
            }
            if self.due.remove(&Work::CheckTranslation) && self.begin_check(now) {
                return Some(Action::CheckTranslation);
            }
        }
        if self.due.remove(&Work::SaveNames) {
            self.names.begin_save();
            return Some(Action::SaveNames);
        }
        None
    }

    /// Publishes the status at the end of an iteration, with the rulesets and the generation of the kernel.
    pub(crate) fn publish<'a>(
        &mut self,
        rulesets: impl Iterator<Item = &'a Ruleset>,
        kernel_generation: Option<u32>,
        now: Instant,
    ) {
        self.publish_names();
        self.status.measure(self.model.state(), rulesets, now);
        self.status.publish(kernel_generation, self.policy_generation, now);
    }

    /// Requests a commit if a change of the state may change the rules.
    fn record_change(&mut self, changed: bool, now: Instant) {
        if changed {
            self.status.record_state_change();
            self.schedule.request_commit(now);
        }
    }

    /// Prepares a commit that is due. Returns whether the state can be enforced.
    fn begin_commit(&mut self) -> bool {
        self.publish_redirecting();
        self.drop_reporting.update(self.model.state());
        if !self.sync.is_complete() {
            return false;
        }
        if let Some(reason) = self.enforcement_obstacle() {
            self.wait(reason);
            return false;
        }
        true
    }

    /// Applies the pending delta to the translation, and returns it.
    pub(crate) fn translate(&mut self) -> StateDelta {
        self.model.translate()
    }

    /// The translator as of the last [`Reconciler::translate`]; the enforcer may move its checks to other hooks.
    pub(crate) fn translator(&mut self) -> &mut Translator {
        self.model.translator()
    }

    /// A check of the incremental translation as of the last [`Reconciler::translate`].
    pub(crate) fn translation_check(&self) -> TranslationCheck {
        self.model.translation_check()
    }

    /// The addresses of domain names, which are saved.
    pub(crate) fn learned_names(&self) -> &LearnedTable {
        self.names.table()
    }

    /// Publishes the enforced state to flow attribution.
    fn publish_to_flows(&mut self, now: ClockReading) {
        if self.status.in_force
            && let Some(generation) = self.policy_generation
        {
            self.model.publish_to_flows(generation, now);
        }
    }

    /// Applies changes of the source, or records its problems.
    pub(crate) fn apply_source(&mut self, event: SourceEvent, now: Instant) {
        match event {
            SourceEvent::Changes(changes) => self.apply_changes(changes, now),
            SourceEvent::Problems(problems) => self.status.record_problems(problems, now),
            SourceEvent::Unserved(kinds) => self.status.record_unserved(&kinds),
        }
    }

    fn apply_changes(&mut self, changes: Vec<TimedChange>, now: Instant) {
        self.metrics.events.inc();
        let completed = self.sync.observe(changes.iter().map(|timed| &timed.change));
        self.status.record_changes(self.missing(), now);
        let mut changed = completed;
        for TimedChange { change, at } in changes {
            let kind = WatchedKind::of(&change);
            if kind == WatchedKind::ClusterNetworkPolicy {
                self.names.mark_stale();
            }
            self.latency.add(kind, at, &self.metrics);
            changed |= self.model.apply(change);
        }
        if completed {
            self.record_sync(now);
        }
        self.record_change(changed, now);
    }

    fn record_sync(&mut self, now: Instant) {
        self.status.record_sync(now);
        tracing::info!(
            namespaces = self.model.state().namespace_count(),
            pods = self.model.state().pod_count(),
            policies = self.model.state().policy_count(),
            "initial sync complete"
        );
        self.drop_reporting.update(self.model.state());
        if self.drop_reporting.identities.scheme().is_none() {
            tracing::warn!("security identities are not computed: {}", IdentityError::UnknownCluster);
        }
    }

    /// Applies changes of other clusters' pods.
    pub(crate) fn apply_remote(&mut self, update: RemoteUpdate, now: Instant) {
        let RemoteUpdate { changes, freshness, at } = update;
        self.status.record_remote(freshness);
        let mut changed = false;
        for change in changes {
            changed |= self.model.apply_remote(change);
        }
        if changed {
            self.latency.add(WatchedKind::RemoteSet, at, &self.metrics);
        }
        self.record_change(changed, now);
    }

    /// Records a commit of another program, and whether it may have touched our tables.
    pub(crate) fn record_foreign_commit(&mut self, program: &str, touches: bool, now: Instant) {
        if touches {
            self.metrics.drift_events.inc();
            self.schedule.request_repair(now);
        }
        if program == PLUGIN {
            self.expect_isolated();
        }
    }

    /// Records that notifications of foreign commits were lost.
    pub(crate) fn record_lost_notifications(&mut self, now: Instant) {
        self.metrics.lost_notifications.inc();
        tracing::warn!("netlink notifications lost (ENOBUFS); resyncing from the kernel");
        self.schedule.request_repair(now);
        self.expect_isolated();
    }

    /// Applies the response of the API server to a pod lookup.
    pub(crate) fn record_pod_lookup(&mut self, pod: &ObjectName, result: Result<Object, String>, now: Instant) {
        match result {
            // The watch is newer than this response, unless it has the pod's predecessor. If no ADD waits any more, the
            // pod may already be deleted.
            Ok(object) => {
                let state = self.model.state();
                let is_missing = state.pod(pod).is_none_or(|known| !state.is_attached(known));
                let changed = is_missing
                    && self.gate.waits_for(pod)
                    && object.kind() == Kind::Pod
                    && self.model.apply(Change::Set(object));
                self.record_change(changed, now);
            }
            Err(reason) => self.gate.record_unknown(pod, &reason),
        }
    }

    /// Records the subnets of the node's interfaces.
    pub(crate) fn record_own_subnets(&mut self, subnets: io::Result<Vec<IpNet>>, now: Instant) {
        match subnets {
            Ok(subnets) => {
                let changed = self.model.set_own_subnets(&subnets);
                self.record_change(changed, now);
            }
            Err(error) => tracing::warn!(
                "cannot read the addresses of this node's interfaces (getifaddrs), which the rules about tunnels need; \
                 retrying at the next resync: {error}"
            ),
        }
    }

    /// Records the bind error of the TCP port; `None` once it is bound.
    pub(crate) fn record_port(&mut self, problem: Option<String>) {
        self.status.record_port(problem);
    }

    /// The subscribers of drop events.
    #[cfg(test)]
    pub(crate) fn drop_stream(&self) -> &crate::reports::DropStream {
        &self.drop_reporting.stream
    }

    /// Applies a change of the state that neither the translation nor the flow records see.
    #[cfg(test)]
    pub(crate) fn apply_unrecorded(&mut self, change: Change) -> bool {
        self.model.apply_unrecorded(change)
    }
}
