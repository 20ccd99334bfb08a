//! The event loop: receives events, performs the reconciler's actions and publishes the status.
//!
//! All I/O of the reconciler is here: its clock, the enforcer's netlink socket, files of the run directory, rtnetlink, and
//! the threads that name denied packets, examine the node and check the translation. It decides nothing about rules.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use jiff::Timestamp;
use nfnetlink::Notification;
use policy::{AttachmentId, Object, ObjectName, dns_clients};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep_until;

use crate::attachments;
use crate::background::Background;
use crate::bridge_ports::bridge_ports;
use crate::dns::{CopiedAnswer, DnsClients, SavedNames};
use crate::enforcer::{EnforceResult, Enforcer, Trouble};
use crate::flows::ClockReading;
use crate::gate::{Outcome, PendingAdd};
use crate::link_watch::QueuedFlag;
use crate::own_subnets::own_subnets;
use crate::pod_lookup::PodRequest;
use crate::reconciler::drop_reporting::NamedEvents;
use crate::reconciler::questions::{Question, send_reply};
use crate::reconciler::{Action, AttachmentReading, CommitAttempt, Findings, InterfaceReading, Reconciler};
use crate::remote::RemoteUpdate;
use crate::reports::DropEvent;
use crate::tc_redirects::redirecting_interfaces;
use crate::translation_check::CheckThread;

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
    Links(QueuedFlag),
    /// An address of an interface of the node was added or removed.
    Addresses(QueuedFlag),
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

/// Bound on the packets named from one snapshot: a snapshot that is held makes a change of the state copy it. Further
/// packets wait in their queue, and those that exceed it are counted.
const NAMED_AT_ONCE: usize = 64;

pub(crate) struct EventLoop {
    reconciler: Reconciler,
    enforcer: Enforcer,
    run_dir: PathBuf,
    /// Queue of pod lookups; `None` without an API server.
    lookups: Option<mpsc::Sender<PodRequest>>,
    saved_names: SavedNames,
    dns_clients: DnsClients,
    /// The thread that names denied packets.
    naming: Background<NamedEvents>,
    /// The thread that examines the node.
    examination: Background<Findings>,
    checks: CheckThread,
}

impl EventLoop {
    /// Reads the attachments and examines the node, before any event.
    pub(crate) fn new(
        reconciler: Reconciler,
        enforcer: Enforcer,
        run_dir: &Path,
        lookups: Option<mpsc::Sender<PodRequest>>,
        dns_clients: DnsClients,
    ) -> EventLoop {
        let mut event_loop = EventLoop {
            reconciler,
            enforcer,
            run_dir: run_dir.to_owned(),
            lookups,
            saved_names: SavedNames::in_folder(run_dir),
            dns_clients,
            naming: Background::default(),
            examination: Background::default(),
            checks: CheckThread::default(),
        };
        event_loop.read_attachments();
        event_loop.reconciler.record_examination(Some(examine(run_dir, false)));
        event_loop
    }

    /// Runs until all senders are dropped.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<Event>, mut drop_events: mpsc::Receiver<DropEvent>) {
        loop {
            let wake = self.reconciler.wake_at(Instant::now());
            // Pods cannot be named before the initial sync. Notifications that exceed the queue wait in the kernel.
            let can_name = self.reconciler.is_synced() && !self.naming.is_running();
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
                Some(event) = drop_events.recv(), if can_name => self.name_drops(event, &mut drop_events),
                named = self.naming.outcome() => self.report_drops(named.ok()),
                differences = self.checks.outcome() => self.reconciler.record_check(differences, Instant::now()),
                findings = self.examination.outcome() => self.reconciler.record_examination(findings.ok()),
                () = sleep_until(wake.into()) => {}
            }
            self.finish_iteration();
        }
    }

    /// Performs the actions that are due, and publishes the status.
    fn finish_iteration(&mut self) {
        self.reconciler.begin_iteration(Instant::now(), Timestamp::now());
        while let Some(action) = self.reconciler.next_action(Instant::now()) {
            self.perform(action);
        }
        self.reconciler.publish(self.enforcer.rulesets(), self.enforcer.kernel_generation(), Instant::now());
    }

    /// Passes an event to the reconciler, with what its handling requires to be read.
    fn receive(&mut self, event: Event) {
        let now = Instant::now();
        match event {
            Event::Source(event) => self.reconciler.apply_source(event, now),
            Event::Remote(update) => self.reconciler.apply_remote(update, now),
            Event::Cni(call) => self.handle_call(call),
            Event::DnsAnswers(answers) => self.reconciler.learn(answers, now),
            Event::Links(queued) => {
                queued.dequeue();
                self.read_attachments();
            }
            Event::Addresses(queued) => {
                queued.dequeue();
                self.read_own_subnets();
            }
            Event::Kernel(Notification::Foreign(foreign)) => {
                let touches = self.enforcer.record_foreign_commit(&foreign);
                self.reconciler.record_foreign_commit(&foreign.program, touches, now);
            }
            Event::Kernel(Notification::Lost) => self.reconciler.record_lost_notifications(now),
            Event::PodLookup(pod, result) => self.reconciler.record_pod_lookup(&pod, result, now),
            Event::Question(question) => self.reconciler.reply(question, now),
            Event::Port(problem) => self.reconciler.record_port(problem),
        }
    }

    fn handle_call(&mut self, call: Call) {
        let folder = attachments::folder(&self.run_dir);
        match call {
            Call::Add(waiting) => {
                let confirmed = attachments::confirm(&folder, &waiting.attachment).map(|()| read_interfaces());
                self.reconciler.add(*waiting, confirmed, Instant::now());
            }
            Call::Delete(id, at) => {
                let file = attachments::read_one(&folder, &id);
                self.reconciler.delete(&id, at, file, Instant::now());
            }
            Call::Check(id, reply) => self.reconciler.check(&id, reply),
            Call::Status(reply) => self.reconciler.report_add_obstacle(reply),
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::LookUpPod(request) => self.look_up_pod(request),
            Action::Compare(reply) => {
                self.translate();
                send_reply(reply, Ok(self.enforcer.compare(self.reconciler.translator())));
            }
            Action::CopyRules(reply) => self.reconciler.reply_with_rules(reply, self.enforcer.snapshot()),
            Action::ReadAttachments => self.read_attachments(),
            Action::ReadOwnSubnets => self.read_own_subnets(),
            Action::Examine { isolates_pods } => self.start_examination(isolates_pods),
            Action::Commit => {
                let began = ClockReading { monotonic: Instant::now(), wall: Timestamp::now() };
                self.translate();
                let result = self.enforcer.enforce(self.reconciler.translator());
                let attempt = self.attempt(result.map(Some));
                self.reconciler.record_commit(attempt, began, Instant::now());
            }
            Action::Verify => {
                self.translate();
                let result = self.enforcer.verify(self.reconciler.translator());
                let attempt = self.attempt(result);
                self.reconciler.record_verification(attempt, Instant::now());
            }
            Action::ReleaseIsolated => {
                let unknown_remain = self.enforcer.release_isolated(self.reconciler.state());
                self.reconciler.record_release(unknown_remain);
            }
            Action::CheckTranslation => self.check_translation(),
            Action::SaveNames => {
                if let Err(error) = self.saved_names.write(self.reconciler.learned_names(), Instant::now()) {
                    tracing::warn!(
                        "cannot save the learned domain names; after a restart they are learned again: {error}"
                    );
                }
            }
        }
    }

    fn look_up_pod(&self, request: PodRequest) {
        if let Some(lookups) = &self.lookups
            && let Err(error) = lookups.try_send(request)
        {
            tracing::error!("no pod lookup, so the pod is found by the watch only: {error}");
        }
    }

    fn read_attachments(&mut self) {
        let known = self.reconciler.state().attachments().map(|attachment| &attachment.id);
        let folder = attachments::reread(&attachments::folder(&self.run_dir), known);
        let reading = AttachmentReading { folder, interfaces: read_interfaces() };
        self.reconciler.record_attachments(reading, Instant::now());
    }

    fn read_own_subnets(&mut self) {
        self.reconciler.record_own_subnets(own_subnets(), Instant::now());
    }

    /// Applies the pending delta to the translation.
    fn translate(&mut self) {
        let delta = self.reconciler.translate();
        self.enforcer.record_delta(&delta);
    }

    fn attempt(&self, result: Result<Option<EnforceResult>, Trouble>) -> CommitAttempt {
        let policy_generation = self.enforcer.policy_generation();
        if let Ok(Some(EnforceResult { commit: Some(commit), .. })) = &result
            && commit.repaired.is_some()
        {
            // The rules that copy answers may have been missing.
            self.dns_clients.publish(&BTreeSet::new(), Instant::now());
        }
        self.dns_clients.publish(&self.enforcer.rulesets().flat_map(dns_clients).collect(), Instant::now());
        CommitAttempt { result, policy_generation, ended: Timestamp::now() }
    }

    fn start_examination(&mut self, isolates_pods: bool) {
        let run_dir = self.run_dir.clone();
        if let Err(error) = self.examination.start("examination", move || examine(&run_dir, isolates_pods)) {
            tracing::warn!("cannot start the thread that examines the node: {error}");
            self.examination.fail();
        }
    }

    fn check_translation(&mut self) {
        self.translate();
        if let Err(error) = self.checks.start(self.reconciler.translation_check()) {
            tracing::warn!("cannot check the rules against a fresh translation: {error}");
            self.reconciler.cancel_check();
        }
    }

    /// Starts to name the first packet and those that are queued.
    fn name_drops(&mut self, first: DropEvent, more: &mut mpsc::Receiver<DropEvent>) {
        let queued = std::iter::from_fn(|| more.try_recv().ok());
        let events: Vec<DropEvent> = std::iter::once(first).chain(queued).take(NAMED_AT_ONCE).collect();
        let snapshot = self.reconciler.naming_snapshot();
        if let Err(error) = self.naming.start("naming", move || snapshot.name_all(events)) {
            tracing::warn!("denied packets are counted, but not named: cannot start a thread: {error}");
        }
    }

    /// Reports packets once they are named; `None` if the thread panicked.
    fn report_drops(&mut self, named: Option<NamedEvents>) {
        match named {
            Some(named) => self.reconciler.report_drops(named),
            None => tracing::error!("denied packets are counted, but not named: the thread that names them panicked"),
        }
    }
}

fn read_interfaces() -> InterfaceReading {
    InterfaceReading { redirecting: redirecting_interfaces(), bridge_ports: bridge_ports() }
}

fn examine(run_dir: &Path, isolates_pods: bool) -> Findings {
    let findings = crate::doctor::cheap(Path::new("/"), run_dir, isolates_pods);
    findings.iter().map(ToString::to_string).collect()
}
