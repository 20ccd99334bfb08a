//! The status, which readers see as of the last publication, and log messages about its changes.
//!
//! Only this file writes the fields of [`AgentStatus`]: one method per concern, which logs what is new.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nft::{NameMap, Ruleset};
use policy::{ClusterState, Diagnostic, EdgeHook, Enforcement, Kind, ObjectName, Program, Translation};
use tokio::sync::watch;

use crate::memory::Stores;
use crate::remote::RemoteFreshness;
use crate::status::{AgentStatus, Counts, LastCommit, OpenProblem, TranslationDifference};

/// Shortest interval between two measurements of the stores, which visit every attachment and set.
const MEASUREMENTS_APART: Duration = Duration::from_secs(10);

/// The present status, and its readers.
pub(super) struct Publication {
    status: AgentStatus,
    readers: watch::Sender<Arc<AgentStatus>>,
    /// The programs that the status counts; `AgentStatus::programs` is their number.
    programs_in_force: NameMap<Program>,
    /// Whether the API server serves ClusterNetworkPolicy; `None` while unknown, and in manifests.
    serves_cluster_policies: Option<bool>,
    /// True if the state has changed since its objects were counted.
    uncounted: bool,
    /// True if the state has changed since the stores were measured at `measured`.
    unmeasured: bool,
    measured: Option<Instant>,
}

impl Deref for Publication {
    type Target = AgentStatus;
    fn deref(&self) -> &AgentStatus {
        &self.status
    }
}

impl Publication {
    pub(super) fn new(status: AgentStatus) -> (Publication, watch::Receiver<Arc<AgentStatus>>) {
        let (readers, receiver) = watch::channel(Arc::new(status.clone()));
        let publication = Publication {
            status,
            readers,
            programs_in_force: NameMap::new(),
            serves_cluster_policies: None,
            uncounted: true,
            unmeasured: true,
            measured: None,
        };
        (publication, receiver)
    }

    /// Records changes of the source, and the kinds whose first list is outstanding.
    pub(super) fn record_changes(&mut self, waiting_for: Vec<String>, now: Instant) {
        self.status.last_change = Some(now);
        self.status.waiting_for = waiting_for;
    }

    /// Records that the initial sync is complete.
    pub(super) fn record_sync(&mut self, now: Instant) {
        self.status.synced = Some(now);
    }

    /// Replaces the source's problems and keeps the time when each of them began.
    pub(super) fn record_problems(&mut self, problems: Vec<cluster::Problem>, now: Instant) {
        let known = std::mem::take(&mut self.status.problems);
        for problem in problems.iter().filter(|p| !known.iter().any(|k| k.problem == **p)) {
            tracing::warn!(origin = problem.origin, "{}", problem.message);
        }
        for OpenProblem { problem, .. } in known.iter().filter(|k| !problems.contains(&k.problem)) {
            tracing::info!(origin = problem.origin, "resolved: {}", problem.message);
        }
        let since = |origin: &str| known.iter().find(|k| k.problem.origin == origin).map(|k| k.since);
        let aged = |problem: cluster::Problem| OpenProblem { since: since(&problem.origin).unwrap_or(now), problem };
        self.status.problems = problems.into_iter().map(aged).collect();
    }

    /// Records the kinds that the API server does not serve: ClusterNetworkPolicy, or none.
    pub(super) fn record_unserved(&mut self, kinds: &[Kind]) {
        let serves_cluster_policies = !kinds.contains(&Kind::ClusterNetworkPolicy);
        if self.serves_cluster_policies.replace(serves_cluster_policies) != Some(serves_cluster_policies) {
            match serves_cluster_policies {
                true => tracing::info!("the API server serves ClusterNetworkPolicy"),
                false => tracing::info!(
                    "the API server does not serve ClusterNetworkPolicy (policy.networking.k8s.io); retrying the list \
                     until its CustomResourceDefinition is installed"
                ),
            }
        }
    }

    pub(super) fn record_remote(&mut self, freshness: RemoteFreshness) {
        self.status.remote = Some(Arc::new(freshness));
    }

    /// Records the bind error of the TCP port; `None` once it is bound.
    pub(super) fn record_port(&mut self, problem: Option<String>) {
        self.status.port_problem = problem;
    }

    /// Replaces the findings of the node's examination.
    pub(super) fn record_findings(&mut self, found: Vec<String>) {
        for finding in found.iter().filter(|f| !self.status.unenforced.contains(f)) {
            tracing::error!("{finding}");
        }
        for finding in self.status.unenforced.iter().filter(|f| !found.contains(f)) {
            tracing::info!("resolved: {finding}");
        }
        self.status.unenforced = found;
    }

    /// Replaces the problems of the attachments that were read.
    pub(super) fn record_attachment_problems(&mut self, problems: Vec<String>) {
        for problem in problems.iter().filter(|p| !self.status.attachment_problems.contains(p)) {
            tracing::error!("{problem}");
        }
        self.status.attachment_problems = problems;
    }

    /// Replaces the pods whose source addresses are not checked.
    pub(super) fn record_unchecked(&mut self, unchecked: Vec<String>) {
        for pod in unchecked.iter().filter(|u| self.status.source_check && !self.status.unchecked.contains(u)) {
            tracing::warn!("{pod}");
        }
        self.status.unchecked = unchecked;
    }

    /// Records why the interfaces at which tc may redirect packets are unknown; `None` if they are known.
    pub(super) fn record_qdiscs(&mut self, problem: Option<String>) {
        if let Some(problem) = &problem
            && self.status.qdisc_problem.as_ref() != Some(problem)
        {
            tracing::error!("{problem}");
        }
        self.status.qdisc_problem = problem;
    }

    /// Replaces the pods' interfaces at which tc may redirect packets.
    pub(super) fn record_redirecting(&mut self, ports: BTreeSet<String>) {
        if self.status.redirecting_ports == ports {
            return;
        }
        if !ports.is_empty() && self.status.source_check {
            let interfaces = ports.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            tracing::info!(
                interfaces,
                "tc may redirect packets of pods; checking these interfaces at the prerouting hooks, too"
            );
        }
        self.status.redirecting_ports = ports;
    }

    /// Records the domain names that have learned addresses, and why others have none.
    pub(super) fn record_names(&mut self, learned: usize, problem: Option<String>) {
        (self.status.learned_names, self.status.learning_problem) = (learned, problem);
    }

    /// Records that the kernel has the desired rules.
    pub(super) fn record_in_force(&mut self) {
        self.status.in_force = true;
        if self.status.trouble.take().is_some() {
            tracing::info!("the rules are in force again");
        }
    }

    /// Records why the desired rules are not in force. Returns whether the reason is new.
    pub(super) fn record_trouble(&mut self, reason: String) -> bool {
        let is_new = self.status.trouble.as_ref() != Some(&reason);
        self.status.trouble = Some(reason);
        self.status.in_force = false;
        is_new
    }

    /// Records the translation in force, and its parts that the kernel refused. Returns whether the first pod is isolated,
    /// or none is any more.
    pub(super) fn record_translation(
        &mut self,
        translation: &Translation,
        left_out: Vec<String>,
        hook: EdgeHook,
    ) -> bool {
        self.record_diagnostics(&translation.diagnostics);
        let isolated_before = self.status.isolated_pods;
        if !self.programs_in_force.ptr_eq(&translation.programs) {
            self.programs_in_force = translation.programs.clone();
            self.status.isolated_pods = judged(translation, Enforcement::Enforce).len();
            self.status.audited_pods = judged(translation, Enforcement::Audit).len();
            self.status.programs = translation.programs.len();
        }
        self.status.elements = translation.ruleset.element_count();
        self.status.left_out = left_out;
        self.status.bridge_table = translation.bridge.is_some();
        self.status.source_check_hook = match hook {
            EdgeHook::Ingress => "ingress",
            EdgeHook::Prerouting => "prerouting",
        };
        self.status.pods_on_node = translation.pods_on_node;
        (isolated_before == 0) != (self.status.isolated_pods == 0)
    }

    /// Replaces the problems of objects, and logs the new ones.
    fn record_diagnostics(&mut self, diagnostics: &Arc<[Diagnostic]>) {
        if Arc::ptr_eq(&self.status.diagnostics, diagnostics) {
            return;
        }
        let known: BTreeSet<&Diagnostic> = self.status.diagnostics.iter().collect();
        for new in diagnostics.iter().filter(|d| !known.contains(d)) {
            tracing::warn!("not understood: {new}");
        }
        self.status.diagnostics = diagnostics.clone();
    }

    pub(super) fn record_commit(&mut self, commit: LastCommit) {
        self.status.last_commit = Some(commit);
    }

    pub(super) fn record_translation_difference(&mut self, differences: Vec<String>, now: Instant) {
        self.status.translation_difference = Some(TranslationDifference { at: now, differences });
    }

    /// Records a change of the state, whose objects are counted at the next publication.
    pub(super) fn record_state_change(&mut self) {
        self.uncounted = true;
    }

    /// Counts the objects after a change, and measures the stores from time to time.
    pub(super) fn measure<'a>(
        &mut self,
        state: &ClusterState,
        rulesets: impl Iterator<Item = &'a Ruleset>,
        now: Instant,
    ) {
        if std::mem::take(&mut self.uncounted) {
            self.status.counts = Counts::of(state);
            self.unmeasured = true;
        }
        let due = self.measured.is_none_or(|at| now.saturating_duration_since(at) >= MEASUREMENTS_APART);
        if due && std::mem::take(&mut self.unmeasured) {
            self.status.stores = Stores::of(state, rulesets);
            self.measured = Some(now);
        }
    }

    /// Publishes the status with the kernel's ruleset generation, and the generation of the approvals if the desired rules
    /// are in force.
    pub(super) fn publish(&mut self, kernel_generation: Option<u32>, policy_generation: Option<u32>, now: Instant) {
        self.status.kernel_generation = kernel_generation;
        self.status.policy_generation = policy_generation.filter(|_| self.status.in_force);
        self.status.last_iteration = Some(now);
        self.readers.send_replace(Arc::new(self.status.clone()));
    }
}

/// Pods of the node with a program of this enforcement. A pod may have one of each, since programs are per direction.
fn judged(translation: &Translation, enforcement: Enforcement) -> BTreeSet<&ObjectName> {
    let programs = translation.programs.values().filter(|program| program.enforcement == enforcement);
    programs.flat_map(|program| &program.pods).collect()
}
