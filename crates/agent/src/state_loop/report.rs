//! The loop's status, and log messages about its changes.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use policy::{Changed, Diagnostic, EdgeHook, Enforcement, Kind, ObjectName, Translation};
use tokio::sync::oneshot::error::RecvError;

use super::{FIRST_RETRY, MEASURES_APART, StateLoop};
use crate::enforcer::{Enforced, Trouble};
use crate::memory::Stores;
use crate::metrics::labels::RepairCause;
use crate::status::{Aged, Counts, LastCommit, TranslationDifference};
use crate::translation_check::Differences;

/// Maximum number of nodes listed in a message about an unknown node.
const NODES_NAMED: usize = 5;

impl StateLoop {
    /// Checks for conditions that silently bypass the rules.
    pub(super) fn examine_node(&mut self) {
        let findings = crate::doctor::cheap(Path::new("/"), &self.run_dir, self.status.isolated_pods > 0);
        let found: Vec<String> = findings.iter().map(ToString::to_string).collect();
        for finding in found.iter().filter(|f| !self.status.unenforced.contains(f)) {
            tracing::error!("{finding}");
        }
        for finding in self.status.unenforced.iter().filter(|f| !found.contains(f)) {
            tracing::info!("resolved: {finding}");
        }
        self.status.unenforced = found;
    }

    /// Replaces the source's problems and keeps the time when each of them began.
    pub(super) fn note_problems(&mut self, problems: Vec<cluster::Problem>) {
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

    /// Records the optional kinds that the API server does not serve.
    pub(super) fn note_unserved(&mut self, kinds: &[Kind]) {
        let unserved: Vec<String> = kinds.iter().map(ToString::to_string).collect();
        if !unserved.is_empty() {
            tracing::warn!(
                kinds = unserved.join(", "),
                "the API server does not serve all kinds (404); falling back to stricter rules"
            );
        } else if !self.status.unserved.is_empty() {
            tracing::info!("the API server serves all kinds again");
        }
        self.status.unserved = unserved;
    }

    pub(super) fn record_attempt(&mut self, result: Result<Option<Enforced>, Trouble>) {
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

    /// Starts a translation check (incremental against full translation).
    pub(super) fn check_translation(&mut self) {
        if !self.enforced || !self.enforcer.follows() {
            self.checks.postpone();
            return;
        }
        self.follow();
        let check = self.enforcer.translation_check(&self.state);
        if let Err(error) = self.checks.start(check) {
            tracing::warn!("cannot check the rules against a fresh translation: {error}");
        }
    }

    /// Records the result of a translation check. After a difference the full translation is enforced.
    pub(super) fn note_check(&mut self, outcome: Result<Differences, RecvError>) {
        let differences = match outcome {
            Ok(differences) => differences,
            Err(_) => vec!["the translation check panicked".into()],
        };
        self.metrics.translation_checks.inc();
        if differences.is_empty() {
            return;
        }
        self.metrics.translation_differences.inc();
        tracing::error!(
            "translation check failed: the rules differ from a fresh translation, which replaces them; please report \
             this: {}",
            differences.join("; ")
        );
        self.status.translation_difference = Some(TranslationDifference { at: Instant::now(), differences });
        // A full translation includes the pending delta.
        self.changed = Changed::default();
        self.enforcer.retranslate(&self.state);
        self.enforce();
    }

    pub(super) fn clear_trouble(&mut self) {
        self.enforced = true;
        self.retry = None;
        self.status.in_force = true;
        if self.status.trouble.take().is_some() {
            tracing::info!("the rules are in force again");
        }
    }

    pub(super) fn note_enforced(&mut self, enforced: &Enforced) {
        let translation = &enforced.translation;
        self.note_diagnostics(&translation.diagnostics);
        if !self.programs.ptr_eq(&translation.programs) {
            self.programs = translation.programs.clone();
            let isolated_pods = judged(translation, Enforcement::Enforce).len();
            let before = std::mem::replace(&mut self.status.isolated_pods, isolated_pods);
            // Some findings are errors only while a pod is isolated.
            if (before == 0) != (isolated_pods == 0) {
                self.examine_node();
            }
            self.status.audited_pods = judged(translation, Enforcement::Audit).len();
            self.status.programs = translation.programs.len();
        }
        self.status.elements = translation.ruleset.element_count();
        self.status.left_out = self.enforcer.left_out();
        self.status.bridge_table = translation.bridge.is_some();
        self.status.source_check_hook = match self.enforcer.edge_hook() {
            EdgeHook::Ingress => "ingress",
            EdgeHook::Prerouting => "prerouting",
        };
        self.status.pods_on_node = translation.pods_on_node;
        if let Some(commit) = &enforced.commit {
            let had_committed = self.status.last_commit.is_some();
            let (at, time) = (Instant::now(), Timestamp::now());
            let (duration, operations) = (commit.duration, commit.operations);
            self.status.last_commit = Some(LastCommit { at, time, duration, operations });
            let (operations, weight) = (commit.operations, commit.weight);
            let (generation, micros) = (self.enforcer.policy_generation(), commit.duration.as_micros() as u64);
            match commit.repaired {
                Some(RepairCause::Changed | RepairCause::Removed) => {
                    let program =
                        self.culprit.take().unwrap_or_else(|| "unknown (not named by a netlink notification)".into());
                    tracing::warn!(
                        operations,
                        weight,
                        generation,
                        micros,
                        program,
                        "repaired the tables, which another program had changed"
                    );
                }
                // Per-commit messages would repeat the events, at up to a thousand a second.
                None if had_committed => {
                    tracing::debug!(operations, weight, generation, micros, "committed");
                }
                Some(RepairCause::AtStart) | None => {
                    tracing::info!(operations, weight, generation, micros, "committed");
                }
            }
        }
    }

    fn note_diagnostics(&mut self, diagnostics: &Arc<[Diagnostic]>) {
        if Arc::ptr_eq(&self.status.diagnostics, diagnostics) {
            return;
        }
        let known: BTreeSet<&Diagnostic> = self.status.diagnostics.iter().collect();
        for new in diagnostics.iter().filter(|d| !known.contains(d)) {
            tracing::warn!("not understood: {new}");
        }
        self.status.diagnostics = diagnostics.clone();
    }

    /// Why nothing can be enforced yet. Rules of an earlier agent stay in force meanwhile.
    pub(super) fn enforcement_obstacle(&self) -> Option<String> {
        if self.enforced {
            return None;
        }
        self.missing_attachments().or_else(|| self.missing_pods())
    }

    /// The attachment folder could not be read. Without it the interfaces of pods are not known, and the checks at them
    /// would be removed.
    fn missing_attachments(&self) -> Option<String> {
        let problem = self.status.attachment_problems.first().filter(|_| !self.attachments_read)?;
        Some(format!("nothing is enforced or changed until the attachments can be read: {problem}"))
    }

    /// All pods are bound to other nodes. A node without pods has nothing to enforce; a misspelt node name looks the
    /// same, and would remove the rules of all its pods.
    fn missing_pods(&self) -> Option<String> {
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
            "no pod is bound to node '{node}'; nothing is enforced or changed until a pod is; check --node-name (pods \
             are bound to {known}{more})"
        ))
    }

    pub(super) fn wait(&mut self, reason: String) {
        if self.status.trouble.as_ref() != Some(&reason) {
            tracing::warn!("{reason}");
        }
        self.status.trouble = Some(reason);
    }

    pub(super) fn missing(&self) -> Vec<String> {
        self.sync.missing().iter().map(ToString::to_string).collect()
    }

    /// Counts the objects after a change, and measures the stores from time to time.
    fn measure(&mut self) {
        if std::mem::take(&mut self.uncounted) {
            self.status.counts = Counts::of(&self.state);
            self.unmeasured = true;
        }
        let due = self.measured.is_none_or(|at| at.elapsed() >= MEASURES_APART);
        if due && std::mem::take(&mut self.unmeasured) {
            self.status.stores = Stores::of(&self.state, self.enforcer.rulesets());
            self.measured = Some(Instant::now());
        }
    }

    pub(super) fn publish(&mut self) {
        self.status.turned = Some(Instant::now());
        self.measure();
        self.status.kernel_generation = self.enforcer.kernel_generation();
        self.status.policy_generation = self.status.in_force.then(|| self.enforcer.policy_generation());
        self.statuses.send_replace(Arc::new(self.status.clone()));
    }
}

/// Pods of the node with a program of this enforcement. A pod may have one of each, since programs are per direction.
fn judged(translation: &Translation, enforcement: Enforcement) -> BTreeSet<&ObjectName> {
    let programs = translation.programs.values().filter(|program| program.enforcement == enforcement);
    programs.flat_map(|program| &program.pods).collect()
}
