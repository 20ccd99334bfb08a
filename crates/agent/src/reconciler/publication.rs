//! The status, which readers see as of the last publication, and log messages about its changes.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nft::{NameMap, Ruleset};
use policy::{ClusterState, Diagnostic, Kind, Program};
use tokio::sync::watch;

use super::Reconciler;
use crate::memory::Stores;
use crate::status::{Aged, AgentStatus, Counts};

/// Shortest interval between two measurements of the stores, which visit every attachment and set.
const MEASUREMENTS_APART: Duration = Duration::from_secs(10);

/// The present status, and its readers.
pub(super) struct Publication {
    status: AgentStatus,
    readers: watch::Sender<Arc<AgentStatus>>,
    /// The programs that the status counts; `AgentStatus::programs` is their number.
    pub(super) programs_in_force: NameMap<Program>,
    /// Whether the API server serves ClusterNetworkPolicy; `None` while unknown, and in manifests.
    serves_cluster_policies: Option<bool>,
    /// True if the state has changed since its objects were counted.
    pub(super) uncounted: bool,
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

impl DerefMut for Publication {
    fn deref_mut(&mut self) -> &mut AgentStatus {
        &mut self.status
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

    /// Replaces the source's problems and keeps the time when each of them began.
    pub(super) fn record_problems(&mut self, problems: Vec<cluster::Problem>) {
        let known = std::mem::take(&mut self.status.problems);
        for problem in problems.iter().filter(|p| !known.iter().any(|k| k.problem == **p)) {
            tracing::warn!(origin = problem.origin, "{}", problem.message);
        }
        for Aged { problem, .. } in known.iter().filter(|k| !problems.contains(&k.problem)) {
            tracing::info!(origin = problem.origin, "resolved: {}", problem.message);
        }
        let since = |origin: &str| known.iter().find(|k| k.problem.origin == origin).map(|k| k.since);
        let aged = |problem: cluster::Problem| {
            let since = since(&problem.origin).unwrap_or_else(Instant::now);
            Aged { problem, since }
        };
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

    /// Replaces the problems of objects, and logs the new ones.
    pub(super) fn record_diagnostics(&mut self, diagnostics: &Arc<[Diagnostic]>) {
        if Arc::ptr_eq(&self.status.diagnostics, diagnostics) {
            return;
        }
        let known: BTreeSet<&Diagnostic> = self.status.diagnostics.iter().collect();
        for new in diagnostics.iter().filter(|d| !known.contains(d)) {
            tracing::warn!("not understood: {new}");
        }
        self.status.diagnostics = diagnostics.clone();
    }

    /// Counts the objects after a change, and measures the stores from time to time.
    fn measure<'a>(&mut self, state: &ClusterState, rulesets: impl Iterator<Item = &'a Ruleset>) {
        if std::mem::take(&mut self.uncounted) {
            self.status.counts = Counts::of(state);
            self.unmeasured = true;
        }
        let due = self.measured.is_none_or(|at| at.elapsed() >= MEASUREMENTS_APART);
        if due && std::mem::take(&mut self.unmeasured) {
            self.status.stores = Stores::of(state, rulesets);
            self.measured = Some(Instant::now());
        }
    }

    fn publish(&mut self) {
        self.status.turned = Some(Instant::now());
        self.readers.send_replace(Arc::new(self.status.clone()));
    }
}

impl Reconciler {
    pub(super) fn publish(&mut self) {
        self.status.measure(self.model.state(), self.enforcer.rulesets());
        self.status.kernel_generation = self.enforcer.kernel_generation();
        self.status.policy_generation = self.status.in_force.then(|| self.enforcer.policy_generation());
        self.status.publish();
    }
}
