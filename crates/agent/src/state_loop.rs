//! The one owner of the cluster's state: takes events, enforces what follows from them, answers questions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nfnetlink::Notification;
use policy::{
    AttachmentId, Change, ClusterState, Diagnostic, Explanation, Kind, Named, NamedTraffic, Object, ObjectName,
    Unexplained, explain_named,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant as Tick, sleep_until};

use crate::api::{Aged, Status, TableVerdict};
use crate::attachments;
use crate::enforcer::{Enforced, Enforcer, Trouble};
use crate::gate::{Gate, Outcome, Standing, Waiting, standing};
use crate::metrics::Metrics;
use crate::pod_lookup::Wanted;

/// Everything that reaches the loop.
pub(crate) enum Event {
    Source(cluster::Event),
    Cni(Call),
    /// Others have changed the kernel's ruleset.
    Kernel(Notification),
    /// What the API server says of a pod that was asked for.
    Found(ObjectName, Result<Object, String>),
    Verify(oneshot::Sender<TableVerdict>),
    Explain {
        source: Named,
        destination: Named,
        traffic: NamedTraffic,
        reply: oneshot::Sender<Answer>,
    },
}

/// What the CNI plugin asks.
pub(crate) enum Call {
    Add(Box<Waiting>),
    Delete(AttachmentId),
    Check(AttachmentId, oneshot::Sender<Outcome>),
    /// Why an ADD would fail now; none if it would not.
    Status(oneshot::Sender<Option<String>>),
}

pub(crate) type Answer = Result<Vec<Explanation>, Unexplained>;

/// Events that may wait. Each holds a batch of changes; sources wait when it is full, and the kernel's and the
/// server's buffers hold what follows.
pub(crate) const EVENTS_QUEUED: usize = 1024;

/// Two commits are at least so far apart, so that a burst becomes a bounded number of transactions. A change after a
/// quiet moment does not wait.
const COMMITS_APART: Duration = Duration::from_millis(10);

/// Wait before a failed commit is tried again; doubles up to the resync interval.
const FIRST_RETRY: Duration = Duration::from_millis(250);

/// Two looks at what others did are at least so far apart: a program that fights us costs ten repairs a second.
const HEALS_APART: Duration = Duration::from_millis(100);

/// The name under which the kernel announces commits of the CNI plugin.
const PLUGIN: &str = "ringfence-cni";

/// Nodes named in a message about a node that is not known.
const NODES_NAMED: usize = 5;

pub(crate) struct StateLoop {
    enforcer: Enforcer,
    state: ClusterState,
    sync: cluster::Sync,
    status: Status,
    statuses: watch::Sender<Arc<Status>>,
    metrics: Arc<Metrics>,
    gate: Gate,
    /// When to look at what others have done to the tables, and who did it.
    heal: Option<Instant>,
    culprit: Option<String>,
    last_heal: Option<Instant>,
    /// The CNI plugin may have isolated pods by itself that the rules cover now.
    release: bool,
    /// It has isolated some that are not known here yet.
    unreleased: bool,
    run_dir: PathBuf,
    /// Pods to be asked for; none where there is nobody to ask.
    lookups: Option<mpsc::UnboundedSender<Wanted>>,
    resync: Duration,
    retry: Option<Duration>,
    last_attempt: Option<Instant>,
    /// Something was enforced, so that this process knows its node.
    enforced: bool,
}

/// What the loop works with beside the enforcer.
pub(crate) struct Parts {
    pub(crate) run_dir: PathBuf,
    /// Pods to be asked for; none where there is nobody to ask.
    pub(crate) lookups: Option<mpsc::UnboundedSender<Wanted>>,
    pub(crate) resync: Duration,
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
        let Parts { run_dir, lookups, resync } = parts;
        let mut state_loop = StateLoop {
            enforcer,
            state: ClusterState::new(),
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
            lookups,
            resync,
            retry: None,
            last_attempt: None,
            enforced: false,
        };
        state_loop.read_attachments();
        state_loop.examine_node();
        (state_loop, receiver)
    }

    /// Runs until no sender is left.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        let mut tick = Tick::now() + self.resync;
        loop {
            let retry = self.retry.map(|wait| Tick::from(self.last_attempt.unwrap_or_else(Instant::now)) + wait);
            let deadline = self.gate.next_deadline().map(Tick::from);
            let heal = self.heal.map(Tick::from);
            let wake = [retry, deadline, heal].into_iter().flatten().fold(tick, Tick::min);
            let first = tokio::select! {
                event = events.recv() => match event {
                    Some(event) => Some(event),
                    None => return,
                },
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
                self.release |= self.unreleased;
                self.examine_node();
            }
            if changed {
                self.enforce();
            }
            let heals = self.heal.is_some_and(|at| now >= Tick::from(at));
            if heals {
                (self.heal, self.last_heal) = (None, Some(Instant::now()));
            }
            if heals || ticked || retry.is_some_and(|at| now >= at) {
                self.verify();
            }
            self.settle();
            self.release_isolated();
            self.publish();
        }
    }

    fn enforce(&mut self) {
        if !self.sync.is_complete() {
            return;
        }
        match self.waits_for_pods() {
            Some(reason) => self.wait_for_pods(reason),
            None => {
                let result = self.enforcer.enforce(&self.state).map(Some);
                self.note(result);
            }
        }
    }

    fn verify(&mut self) {
        if self.sync.is_complete() && self.waits_for_pods().is_none() {
            let result = self.enforcer.verify(&self.state);
            self.note(result);
        }
    }

    /// Looks for what makes policies silently unenforced, whatever the rules say.
    fn examine_node(&mut self) {
        let findings = crate::doctor::cheap(Path::new("/"), &self.run_dir);
        let found: Vec<String> = findings.iter().map(ToString::to_string).collect();
        for finding in found.iter().filter(|f| !self.status.unenforced.contains(f)) {
            tracing::error!("{finding}");
        }
        for finding in self.status.unenforced.iter().filter(|f| !found.contains(f)) {
            tracing::info!("no longer: {finding}");
        }
        self.status.unenforced = found;
    }

    /// Says whether other attachments are known now.
    fn read_attachments(&mut self) -> bool {
        let (changed, problems) = match attachments::read(&attachments::folder(&self.run_dir)) {
            Ok(attached) => (self.state.replace_attachments(attached.attachments), attached.problems),
            Err(problem) => (false, vec![problem]),
        };
        for problem in problems.iter().filter(|p| !self.status.attachment_problems.contains(p)) {
            tracing::error!("{problem}");
        }
        self.status.attachment_problems = problems;
        changed
    }

    /// Lets pods start whose rules are committed.
    fn settle(&mut self) {
        self.status.waiting_for = self.missing();
        let reason = match self.status.unenforced.first() {
            Some(finding) => Some(finding.clone()),
            None if self.status.in_force => None,
            None => Some(self.status.unready().unwrap_or_else(|| "the rules are not committed".into())),
        };
        let now = Instant::now();
        for since in self.gate.settle(&self.state, reason.as_deref(), now) {
            self.metrics.cni_add_seconds.observe(now.duration_since(since).as_secs_f64());
        }
    }

    /// The plugin may have isolated a pod by itself. Its attachment may be one that it could not tell of, and has to be
    /// known before anything is taken over: otherwise an older one that claims the address would speak for it. Says
    /// whether other attachments are known now.
    fn expect_isolated(&mut self) -> bool {
        self.release = true;
        self.read_attachments()
    }

    /// Takes over pods that the plugin isolated while there was no agent to ask.
    fn release_isolated(&mut self) {
        self.release |= std::mem::take(&mut self.gate.failed);
        if !self.release || !self.status.in_force {
            return;
        }
        match self.enforcer.release_isolated(&self.state) {
            Ok(unreleased) => (self.release, self.unreleased) = (false, unreleased),
            Err(error) => {
                tracing::warn!("pods stay isolated that the CNI plugin isolated without the agent: {error}");
            }
        }
    }

    fn missing(&self) -> Vec<String> {
        self.sync.missing().iter().map(ToString::to_string).collect()
    }

    /// Says whether the rules may have to change.
    fn take(&mut self, event: Event) -> bool {
        match event {
            Event::Source(cluster::Event::Changes(changes)) => {
                self.metrics.events.inc();
                let completed = self.sync.observe(&changes);
                let mut changed = false;
                for change in changes {
                    changed |= self.state.apply(change);
                }
                if completed {
                    tracing::info!(
                        namespaces = self.state.namespaces().count(),
                        pods = self.state.pods().count(),
                        policies = self.state.policies().count(),
                        "every kind has been listed"
                    );
                }
                changed || completed
            }
            Event::Source(cluster::Event::Problems(problems)) => {
                self.note_problems(problems);
                false
            }
            Event::Cni(call) => self.answer(call),
            Event::Kernel(Notification::Foreign(foreign)) => {
                if self.enforcer.notice(&foreign) {
                    self.culprit = Some(format!("{} (process {})", foreign.program, foreign.process));
                    self.plan_heal();
                }
                foreign.program == PLUGIN && self.expect_isolated()
            }
            Event::Kernel(Notification::Lost) => {
                tracing::warn!("announcements of commits were lost; comparing");
                self.plan_heal();
                self.expect_isolated()
            }
            Event::Found(pod, found) => match found {
                // What the watch has told since is newer, unless it told of a predecessor.
                Ok(object) => {
                    let asked = self.state.pod(&pod).is_none_or(|known| !self.state.is_attached(known));
                    asked && object.kind() == Kind::Pod && self.state.apply(Change::Set(object))
                }
                Err(reason) => {
                    self.gate.note_unknown(&pod, &reason);
                    false
                }
            },
            Event::Verify(reply) => {
                let verdict = match self.sync.is_complete() {
                    true => self.enforcer.compare(&self.state),
                    false => TableVerdict::Unknown { reason: format!("not listed yet: {}", self.missing().join(", ")) },
                };
                if reply.send(verdict).is_err() {
                    tracing::debug!("the asker of a verdict has gone");
                }
                false
            }
            Event::Explain { source, destination, traffic, reply } => {
                if reply.send(explain_named(&self.state, &source, &destination, &traffic)).is_err() {
                    tracing::debug!("the asker of an explanation has gone");
                }
                false
            }
        }
    }

    /// Says whether the rules may have to change.
    fn answer(&mut self, call: Call) -> bool {
        match call {
            Call::Add(waiting) => self.add(*waiting),
            // The folder decides: a DEL that was held up may mean an earlier ADD of the same name.
            Call::Delete(id) => match attachments::kept(&attachments::folder(&self.run_dir), &id) {
                Ok(None) => {
                    self.gate.withdraw(&id);
                    self.state.detach(&id)
                }
                Ok(Some(_)) => {
                    tracing::info!("{id} stays, since it is kept");
                    false
                }
                Err(problem) => {
                    tracing::warn!("{id} stays: {problem}");
                    false
                }
            },
            Call::Check(id, reply) => {
                let outcome = match self.state.attachment(&id) {
                    None => Outcome::Failed("the agent does not know the attachment".into()),
                    Some(_) if !self.status.in_force => Outcome::Failed("the rules are not in force".into()),
                    Some(attachment) => match standing(&self.state, &attachment.addresses) {
                        Standing::Known => Outcome::Enforced,
                        Standing::Unknown | Standing::Missing => {
                            Outcome::Isolated(format!("pod {} is not known", attachment.pod))
                        }
                    },
                };
                if reply.send(outcome).is_err() {
                    tracing::debug!("the plugin that checked has gone");
                }
                false
            }
            Call::Status(reply) => {
                if reply.send(self.status.unready()).is_err() {
                    tracing::debug!("the plugin that asked for the status has gone");
                }
                false
            }
        }
    }

    /// Says whether the rules may have to change.
    fn add(&mut self, waiting: Waiting) -> bool {
        let attachment = &waiting.attachment;
        let folder = attachments::folder(&self.run_dir);
        // What is not kept would be forgotten at the next tick, while the pod runs.
        match attachments::kept(&folder, &attachment.id) {
            Ok(Some(kept)) if kept == *attachment => {}
            Ok(_) => {
                let reason = format!(
                    "the agent does not find the attachment in {}: the pod was deleted meanwhile, or the plugin's \
                     stateDir is not that folder of the agent's --run-dir",
                    folder.display()
                );
                self.gate.refuse(waiting, reason);
                return false;
            }
            Err(problem) => {
                self.gate.refuse(waiting, problem);
                return false;
            }
        }
        let changed = self.state.attach(attachment.clone());
        self.release |= self.unreleased;
        if changed && attachment.bridged {
            self.examine_node();
        }
        if standing(&self.state, &attachment.addresses) != Standing::Known
            && let Some(lookups) = &self.lookups
        {
            let (pod, uid) = (attachment.pod.clone(), attachment.uid.clone());
            let wanted = Wanted { pod, uid, deadline: waiting.deadline };
            if lookups.send(wanted).is_err() {
                tracing::error!("nobody asks the API server for pods any more");
            }
        }
        self.gate.admit(waiting);
        changed
    }

    /// Takes the source's problems in, and remembers since when each of them has been there.
    fn note_problems(&mut self, problems: Vec<cluster::Problem>) {
        let known = std::mem::take(&mut self.status.problems);
        for problem in problems.iter().filter(|p| !known.iter().any(|k| k.problem == **p)) {
            tracing::warn!(origin = problem.origin, "{}", problem.message);
        }
        for Aged { problem, .. } in known.iter().filter(|k| !problems.contains(&k.problem)) {
            tracing::info!(origin = problem.origin, "no longer: {}", problem.message);
        }
        let since = |origin: &str| known.iter().find(|k| k.problem.origin == origin).map(|k| k.since);
        let aged = |problem: cluster::Problem| {
            let since = since(&problem.origin).unwrap_or_else(Instant::now);
            Aged { problem, since }
        };
        self.status.problems = problems.into_iter().map(aged).collect();
    }

    fn plan_heal(&mut self) {
        let now = Instant::now();
        let allowed = self.last_heal.map_or(now, |last| (last + HEALS_APART).max(now));
        self.heal.get_or_insert(allowed);
    }

    async fn pace(&self) {
        if let Some(last) = self.last_attempt {
            tokio::time::sleep_until((last + COMMITS_APART).into()).await;
        }
    }

    fn note(&mut self, result: Result<Option<Enforced>, Trouble>) {
        self.last_attempt = Some(Instant::now());
        match result {
            Ok(None) => self.clear_trouble(),
            Ok(Some(enforced)) => {
                self.clear_trouble();
                self.note_enforced(&enforced);
            }
            Err(trouble) => {
                let wait = self.retry.map_or(FIRST_RETRY, |wait| wait * 2).min(self.resync);
                self.retry = Some(wait);
                let text = trouble.to_string();
                if self.status.trouble.as_ref() != Some(&text) {
                    tracing::error!(retry_in_ms = wait.as_millis() as u64, "{text}");
                }
                self.status.trouble = Some(text);
                self.status.in_force = false;
            }
        }
    }

    fn clear_trouble(&mut self) {
        self.enforced = true;
        self.retry = None;
        self.status.in_force = true;
        if self.status.trouble.take().is_some() {
            tracing::info!("the rules are in force again");
        }
    }

    fn note_enforced(&mut self, enforced: &Enforced) {
        let translation = &enforced.translation;
        self.note_diagnostics(&translation.diagnostics);
        let isolated: BTreeSet<_> = translation.programs.values().flat_map(|p| &p.pods).collect();
        self.status.isolated_pods = isolated.len();
        self.status.programs = translation.programs.len();
        self.status.elements = translation.ruleset.element_count();
        self.status.left_out = self.enforcer.left_out();
        let on_node = self.state.pods().filter(|p| p.node.as_deref() == Some(&*self.status.node));
        self.status.pods_on_node = on_node.filter(|p| self.state.addresses_of(p).next().is_some()).count();
        if let Some(commit) = &enforced.commit {
            self.status.last_commit = Some(Instant::now());
            self.status.commit_micros = Some(commit.duration.as_micros() as u64);
            let (operations, weight) = (commit.operations, commit.weight);
            let (generation, micros) = (self.enforcer.policy_generation(), commit.duration.as_micros() as u64);
            if commit.repaired {
                let program = self.culprit.take().unwrap_or_else(|| "nobody that was announced".into());
                tracing::warn!(
                    operations,
                    weight,
                    generation,
                    micros,
                    program,
                    "the table was not as we left it; repaired"
                );
            } else {
                tracing::info!(operations, weight, generation, micros, "committed");
            }
        }
    }

    fn note_diagnostics(&mut self, diagnostics: &[Diagnostic]) {
        for new in diagnostics.iter().filter(|d| !self.status.diagnostics.contains(d)) {
            tracing::warn!("not understood: {new}");
        }
        if self.status.diagnostics != diagnostics {
            self.status.diagnostics = diagnostics.to_vec();
        }
    }

    /// Nodes that pods are bound to, when this one is not among them and nothing has been enforced yet. A node without
    /// pods has nothing to enforce; a misspelt name looks the same, and would take the rules of all its pods away.
    fn waits_for_pods(&self) -> Option<String> {
        if self.enforced {
            return None;
        }
        let mut nodes: BTreeSet<&str> = self.state.pods().filter_map(|p| p.node.as_deref()).collect();
        let node = &*self.status.node;
        if nodes.is_empty() || nodes.contains(node) {
            return None;
        }
        let more = nodes.len().saturating_sub(NODES_NAMED);
        while nodes.len() > NODES_NAMED {
            nodes.pop_last();
        }
        let known = nodes.into_iter().collect::<Vec<&str>>().join(", ");
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some(format!(
            "no pod is bound to node '{node}', so nothing is enforced or changed until one is; check --node-name (pods are \
             bound to {known}{more})"
        ))
    }

    fn wait_for_pods(&mut self, reason: String) {
        if self.status.trouble.as_ref() != Some(&reason) {
            tracing::warn!("{reason}");
        }
        self.status.trouble = Some(reason);
    }

    fn publish(&mut self) {
        self.status.waiting_for = self.missing();
        self.status.kernel_generation = self.enforcer.kernel_generation();
        self.status.policy_generation = self.status.in_force.then(|| self.enforcer.policy_generation());
        self.statuses.send_replace(Arc::new(self.status.clone()));
    }
}
