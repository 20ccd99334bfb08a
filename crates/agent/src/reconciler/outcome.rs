//! Outcomes of commits, examinations and translation checks, and log messages about them.

use std::collections::BTreeSet;
use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::oneshot::error::RecvError;

use super::Reconciler;
use super::examinations::Findings;
use crate::enforcer::{Enforced, Trouble};
use crate::metrics::labels::RepairCause;
use crate::status::LastCommit;
use crate::translation_check::Differences;

/// Maximum number of nodes listed in a message about an unknown node.
const NODES_NAMED: usize = 5;

impl Reconciler {
    pub(super) fn record_attempt(&mut self, result: Result<Option<Enforced>, Trouble>) {
        match result {
            Ok(None) => self.clear_trouble(),
            Ok(Some(enforced)) => {
                self.clear_trouble();
                self.record_enforced(&enforced);
            }
            Err(trouble) => {
                let wait = self.schedule.record_failure(Instant::now());
                let text = trouble.to_string();
                if self.status.record_trouble(text) {
                    tracing::error!(retry_in_ms = wait.as_millis() as u64, "{trouble}");
                }
            }
        }
    }

    /// Starts a translation check (incremental against full translation).
    pub(super) fn check_translation(&mut self) {
        if !self.enforced || !self.model.is_translated() {
            self.checks.postpone();
            return;
        }
        self.translate();
        if let Err(error) = self.checks.start(self.model.translation_check()) {
            tracing::warn!("cannot check the rules against a fresh translation: {error}");
        }
    }

    /// Records the result of a translation check. After a difference the full translation is enforced.
    pub(super) fn record_check(&mut self, outcome: Result<Differences, RecvError>) {
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
        self.status.record_translation_difference(differences, Instant::now());
        self.model.translate_anew();
        self.reconcile();
    }

    /// Records the findings of an examination of the node; `None` if it failed.
    pub(super) fn record_examination(&mut self, findings: Option<Findings>) {
        let failed = || {
            vec![
                "the examination of the node failed: whether packets bypass the rules is unknown until the next".into(),
            ]
        };
        self.status.record_findings(findings.unwrap_or_else(failed));
    }

    fn clear_trouble(&mut self) {
        self.schedule.record_success(Instant::now());
        self.enforced = true;
        self.status.record_in_force();
    }

    fn record_enforced(&mut self, enforced: &Enforced) {
        let hook = self.model.layout().edge_hook();
        // Some findings are errors only while a pod is isolated.
        if self.status.record_translation(&enforced.translation, self.enforcer.left_out(), hook) {
            self.examinations.require(self.status.isolated_pods > 0);
        }
        if let Some(commit) = &enforced.commit {
            let had_committed = self.status.last_commit.is_some();
            let (at, time) = (Instant::now(), Timestamp::now());
            let (duration, operations) = (commit.duration, commit.operations);
            self.status.record_commit(LastCommit { at, time, duration, operations });
            let (operations, weight) = (commit.operations, commit.weight);
            let (generation, micros) = (self.enforcer.policy_generation(), commit.duration.as_micros() as u64);
            match commit.repaired {
                Some(RepairCause::Changed | RepairCause::Removed) => {
                    let program = commit.foreign_program.as_deref();
                    let program = program.unwrap_or("unknown (not named by a netlink notification)");
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

    /// Why nothing can be enforced yet. Rules of an earlier agent stay in force meanwhile.
    pub(super) fn enforcement_obstacle(&self) -> Option<String> {
        if let Some(obstacle) = self.missing_nodes() {
            return Some(obstacle);
        }
        if self.enforced {
            return None;
        }
        self.missing_attachments().or_else(|| self.missing_pods())
    }

    /// The nodes have not been listed and a cluster policy exists. Its rules about nodes, and about pods that are known by
    /// the pod ranges of their nodes only, would match nothing: a Deny rule of the earlier rules would be lost.
    fn missing_nodes(&self) -> Option<String> {
        let is_unlisted = self.sync.unlisted().any(|kind| kind == policy::Kind::Node);
        if !is_unlisted || self.model.state().cluster_policy_count() == 0 {
            return None;
        }
        let problem = self.status.problems.iter().find(|aged| aged.problem.origin.starts_with("nodes "));
        let problem = problem.map_or(String::new(), |aged| format!(": {}", aged.problem.message));
        Some(format!("no rule is changed until the nodes are listed, whose addresses cluster policies need{problem}"))
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
        let mut nodes: BTreeSet<&str> = self.model.state().pods().filter_map(|p| p.node.as_deref()).collect();
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
        if self.status.record_trouble(reason.clone()) {
            tracing::warn!("{reason}");
        }
    }

    pub(super) fn missing(&self) -> Vec<String> {
        self.sync.missing().iter().map(ToString::to_string).collect()
    }
}
