//! The agent's status as its event loop keeps it, with instants instead of ages. [`AgentStatus::report`] makes the status
//! report for the socket from it.

mod counts;
mod report;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use policy::Diagnostic;

use crate::memory::Stores;
use crate::remote::RemoteFreshness;

pub(crate) use counts::Counts;
pub(crate) use report::Totals;

#[derive(Debug, Clone, Default)]
pub(crate) struct AgentStatus {
    pub(crate) node: String,
    pub(crate) started: Option<Instant>,
    /// When the last iteration of the event loop ended.
    pub(crate) last_iteration: Option<Instant>,
    pub(crate) version: &'static str,
    pub(crate) kernel_release: Option<String>,
    pub(crate) table: String,
    /// The source is a folder, in which a problem means that some user's manifest is not in force. (A failed watch
    /// keeps the last known state and restarts by itself.)
    pub(crate) from_folder: bool,
    /// Kinds of which the initial sync is not complete; nothing is programmed before it is.
    pub(crate) waiting_for: Vec<String>,
    /// When the initial sync was complete.
    pub(crate) synced: Option<Instant>,
    /// When the source last sent a change.
    pub(crate) last_change: Option<Instant>,
    /// Problems of the source that make the state incomplete or stale.
    pub(crate) problems: Vec<OpenProblem>,
    /// Whether the kernel is known to have the desired rules.
    pub(crate) in_force: bool,
    /// Why the desired rules are not in force.
    pub(crate) trouble: Option<String>,
    /// The kernel's ruleset generation after the last commit.
    pub(crate) kernel_generation: Option<u32>,
    /// Generation in the marks of approved flows.
    pub(crate) policy_generation: Option<u32>,
    pub(crate) last_commit: Option<LastCommit>,
    pub(crate) elements: usize,
    pub(crate) programs: usize,
    /// Parts that the kernel refused, which are denied.
    pub(crate) left_out: Vec<String>,
    pub(crate) pods_on_node: usize,
    pub(crate) isolated_pods: usize,
    /// Pods for which, in at least one direction, all selecting policies are audited.
    pub(crate) audited_pods: usize,
    /// Problems of objects that could not be fully parsed.
    pub(crate) diagnostics: Arc<[Diagnostic]>,
    /// Why policies would not be enforced on this node although their rules are in the kernel.
    pub(crate) unenforced: Vec<String>,
    /// Unreadable attachments of the CNI plugin: their pods may run here without rules.
    pub(crate) attachment_problems: Vec<String>,
    /// Pods whose source addresses are not checked although their interfaces are known, and why.
    pub(crate) unchecked: Vec<String>,
    /// Host-side interfaces of pods at which tc may redirect packets.
    pub(crate) redirecting_ports: BTreeSet<String>,
    /// Why the interfaces at which tc may redirect packets are unknown.
    pub(crate) qdisc_problem: Option<String>,
    /// Whether other programs can change the tables, and why.
    pub(crate) protected: bool,
    pub(crate) protection: String,
    pub(crate) source_check: bool,
    pub(crate) bridge_table: bool,
    /// The hook at which sources are checked, as named in the API.
    pub(crate) source_check_hook: &'static str,
    /// UDP ports of tunnels that pods may not send to; empty if this is not checked.
    pub(crate) tunnel_ports: Vec<u16>,
    /// The nfnetlink_log group of denied packets.
    pub(crate) drop_log_group: Option<u16>,
    /// Why drop logging is on or off.
    pub(crate) drop_log: String,
    /// Domain names that have learned addresses.
    pub(crate) learned_names: usize,
    /// Why addresses of domain names are not learned although policies have the names.
    pub(crate) learning_problem: Option<String>,
    /// Bind error of the TCP port.
    pub(crate) port_problem: Option<String>,
    pub(crate) counts: Counts,
    /// Sizes of the stores at the last measurement.
    pub(crate) stores: Stores,
    /// `None` without context providers.
    pub(crate) remote: Option<Arc<RemoteFreshness>>,
    /// The last difference between the incremental and the full translation.
    pub(crate) translation_difference: Option<TranslationDifference>,
}

/// Difference between the incremental translation and the full one that replaced it.
#[derive(Debug, Clone)]
pub(crate) struct TranslationDifference {
    pub(crate) at: Instant,
    pub(crate) differences: Vec<String>,
}

/// A problem and when it began.
#[derive(Debug, Clone)]
pub(crate) struct OpenProblem {
    pub(crate) problem: cluster::Problem,
    pub(crate) since: Instant,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LastCommit {
    pub(crate) at: Instant,
    pub(crate) time: Timestamp,
    pub(crate) duration: Duration,
    pub(crate) operations: usize,
}

impl AgentStatus {
    /// Why the node is not ready; `None` if it is.
    pub(crate) fn unready(&self) -> Option<String> {
        if !self.waiting_for.is_empty() {
            let mut reason =
                format!("initial sync not complete; waiting for the list of: {}", self.waiting_for.join(", "));
            for problem in &self.problems {
                reason.push_str(&format!("\n{}", problem.problem));
            }
            return Some(reason);
        }
        if self.from_folder && !self.problems.is_empty() {
            let problems: Vec<String> = self.problems.iter().map(|p| p.problem.to_string()).collect();
            return Some(format!("some manifests are not in force:\n{}", problems.join("\n")));
        }
        if let Some(finding) = self.unenforced.first().or(self.qdisc_problem.as_ref()) {
            return Some(finding.clone());
        }
        match (&self.trouble, self.in_force) {
            (Some(trouble), _) => Some(trouble.clone()),
            (None, false) => Some("the rules are not committed yet".into()),
            (None, true) => self.attachment_problems.first().cloned(),
        }
    }

    /// Whether the source's problems are among the reasons of [`AgentStatus::unready`].
    fn problems_keep_unready(&self) -> bool {
        !self.waiting_for.is_empty() || self.from_folder
    }

    /// Remarks that do not affect [`AgentStatus::unready`].
    pub(crate) fn notes(&self) -> Vec<String> {
        let note = |OpenProblem { problem, since }: &OpenProblem| {
            format!("for {}, with the last known state enforced meanwhile: {problem}", in_words(since.elapsed()))
        };
        let problems = match self.problems_keep_unready() {
            true => &[],
            false => &self.problems[..],
        };
        let unchecked = if self.source_check { &self.unchecked[..] } else { &[] };
        let difference = self.translation_difference.iter().map(|TranslationDifference { at, differences }| {
            let (age, differences) = (in_words(at.elapsed()), differences.join("; "));
            format!(
                "translation check failed {age} ago: the rules differed from a fresh translation, which replaced \
                 them; please report this: {differences}"
            )
        });
        let unchecked = unchecked.iter().cloned();
        let redirecting = (self.source_check && !self.redirecting_ports.is_empty()).then(|| {
            let interfaces = self.redirecting_ports.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            format!("tc may redirect packets of pods at {interfaces}: they are checked at the prerouting hooks, too")
        });
        let others = unchecked
            .chain(redirecting)
            .chain(self.learning_problem.clone())
            .chain(self.port_problem.clone())
            .chain(difference);
        problems.iter().map(note).chain(others).collect()
    }
}

/// Formats a duration in its largest fitting unit.
pub(crate) fn in_words(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds @ 7200..172_800 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_a_problem() -> AgentStatus {
        let problem = cluster::Problem { origin: "pods watch".into(), message: "timed out".into() };
        let problems = vec![OpenProblem { problem, since: Instant::now() }];
        AgentStatus { in_force: true, problems, ..AgentStatus::default() }
    }

    #[test]
    fn unready_reason_is_not_repeated_in_notes() {
        let at_start = AgentStatus { waiting_for: vec!["Pod".into()], ..with_a_problem() };
        let of_a_folder = AgentStatus { from_folder: true, ..with_a_problem() };
        for status in [at_start, of_a_folder] {
            assert!(status.unready().is_some_and(|reason| reason.contains("timed out")), "{status:?}");
            assert_eq!(status.notes(), Vec::<String>::new());
        }
    }

    #[test]
    fn watch_failure_after_initial_sync_is_note() {
        let status = with_a_problem();
        assert_eq!(status.unready(), None);
        let notes = status.notes();
        assert!(notes.len() == 1 && notes[0].starts_with("for 0 s, with the last known state enforced"), "{notes:?}");
    }
}
