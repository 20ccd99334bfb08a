//! Outcomes of commits, examinations and translation checks, and log messages about them.

use std::collections::BTreeSet;
use std::time::Instant;

use jiff::Timestamp;
use policy::{Kind, Object};

use super::Reconciler;
use super::examinations::Findings;
use crate::enforcer::{EnforceResult, Trouble};
use crate::flows::ClockReading;
use crate::metrics::labels::RepairCause;
use crate::status::LastCommit;
use crate::translation_check::Differences;

/// Maximum number of nodes listed in a message about an unknown node.
const NODES_NAMED: usize = 5;

/// An attempt to commit or to verify, as the enforcer reports it.
pub(crate) struct CommitAttempt {
    /// `Ok(None)` if a verification found no difference.
    pub(crate) result: Result<Option<EnforceResult>, Trouble>,
    /// Generation of the approvals after the attempt.
    pub(crate) policy_generation: u32,
    /// When the attempt ended by the wall clock, which is only reported.
    pub(crate) ended: Timestamp,
}

impl Reconciler {
    /// Records an attempt to commit, which includes the translation.
    pub(crate) fn record_commit(&mut self, attempt: CommitAttempt, began: ClockReading, now: Instant) {
        let ended = attempt.ended;
        self.model.record_commit(began.wall, ended);
        self.record_attempt(attempt, now);
        self.publish_to_flows(ClockReading { monotonic: now, wall: ended });
        self.schedule.record_duration(now.saturating_duration_since(began.monotonic));
    }

    pub(crate) fn record_verification(&mut self, attempt: CommitAttempt, now: Instant) {
        self.record_attempt(attempt, now);
    }

    fn record_attempt(&mut self, attempt: CommitAttempt, now: Instant) {
        let CommitAttempt { result, policy_generation, ended } = attempt;
        self.policy_generation = Some(policy_generation);
        match result {
            Ok(enforced) => {
                self.schedule.record_success(now);
                self.enforced = true;
                self.status.record_in_force();
                if let Some(enforced) = enforced {
                    self.record_enforced(enforced, now, ended);
                }
            }
            Err(trouble) => {
                let wait = self.schedule.record_failure(now);
                if self.status.record_trouble(trouble.to_string()) {
                    tracing::error!(retry_in_ms = wait.as_millis() as u64, "{trouble}");
                }
            }
        }
    }

    /// Begins a translation check (incremental against full translation), or postpones it while there is nothing to check.
    pub(super) fn begin_check(&mut self, now: Instant) -> bool {
        let is_possible = self.enforced && self.model.is_translated();
        match is_possible {
            true => self.checks.begin(now),
            false => self.checks.postpone(now),
        }
        is_possible
    }

    /// Records that a translation check could not be started.
    pub(crate) fn cancel_check(&mut self) {
        self.checks.end();
    }

    /// Records the result of a translation check; `None` if it panicked. After a difference the full translation is
    /// committed in this iteration.
    pub(crate) fn record_check(&mut self, differences: Option<Differences>, now: Instant) {
        self.checks.end();
        let differences = differences.unwrap_or_else(|| vec!["the translation check panicked".into()]);
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
        self.status.record_translation_difference(differences, now);
        self.model.translate_anew();
        self.schedule.request_immediate_commit(now);
    }

    /// Records the findings of an examination of the node; `None` if it failed.
    pub(crate) fn record_examination(&mut self, findings: Option<Findings>) {
        self.examinations.complete();
        let failed = || {
            vec![
                "the examination of the node failed: whether packets bypass the rules is unknown until the next".into(),
            ]
        };
        self.status.record_findings(findings.unwrap_or_else(failed));
    }

    fn record_enforced(&mut self, enforced: EnforceResult, now: Instant, time: Timestamp) {
        let EnforceResult { translation, left_out, commit } = enforced;
        let hook = self.model.layout().edge_hook();
        // Some findings are errors only while a pod is isolated.
        if self.status.record_translation(&translation, left_out, hook) {
            self.examinations.require(self.status.isolated_pods > 0);
        }
        if let Some(commit) = commit {
            let had_committed = self.status.last_commit.is_some();
            let (duration, operations) = (commit.duration, commit.operations);
            self.status.record_commit(LastCommit { at: now, time, duration, operations });
            let (operations, weight) = (commit.operations, commit.weight);
            let (generation, micros) = (self.policy_generation, commit.duration.as_micros() as u64);
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
        let is_unlisted = self.sync.unlisted().any(|kind| kind == Kind::Node);
        if !is_unlisted || self.model.state().cluster_policy_count() == 0 {
            return None;
        }
        let problem = self.status.problems.iter().find(|open| open.problem.is_of_watch::<Object>(Kind::Node));
        let problem = problem.map_or(String::new(), |open| format!(": {}", open.problem.message));
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
