//! Builds the status report for the socket: instants become ages.

use std::time::{Duration, Instant};

use policy::Diagnostic;

use super::{AgentStatus, Counts, LastCommit};
use crate::api::flows::FlowCoverage;
use crate::api::status as wire;
use crate::remote::{ClusterFreshness, RemoteFreshness};

/// Counters since the agent started that are kept outside of the status.
#[derive(Debug, Clone)]
pub(crate) struct Totals {
    pub(crate) commits: wire::Commits,
    pub(crate) repairs: wire::Repairs,
    /// `None` if drops are not counted.
    pub(crate) drops: Option<wire::Drops>,
    /// `None` with `--flows off`.
    pub(crate) flows: Option<FlowCoverage>,
}

impl AgentStatus {
    /// Builds the report of this moment.
    pub(crate) fn report(&self, totals: Totals, now: Instant) -> wire::AgentStatusReport {
        let Totals { commits, repairs, drops, flows } = totals;
        let unready = self.unready();
        wire::AgentStatusReport {
            node: self.node.clone(),
            version: self.version.to_owned(),
            kernel: self.kernel_release.clone(),
            seconds_up: age(self.started, now).unwrap_or(0),
            ready: unready.is_none(),
            unready,
            notes: self.notes(),
            source: self.source(now),
            rules: wire::Rules {
                table: self.table.clone(),
                in_force: self.in_force,
                trouble: self.trouble.clone(),
                kernel_generation: self.kernel_generation,
                policy_generation: self.policy_generation,
                elements: self.elements,
                programs: self.programs,
                left_out: self.left_out.clone(),
            },
            last_commit: self.last_commit.map(|commit| last_commit(commit, now)),
            commits,
            repairs,
            policies: self.counts.policies,
            diagnostics: self.diagnostics.iter().map(diagnostic).collect(),
            pods: wire::Pods {
                on_node: self.pods_on_node,
                isolated: self.isolated_pods,
                audited: self.audited_pods,
                unknown: self.counts.unknown_pods,
            },
            unenforced: self.unenforced.clone(),
            attachment_problems: self.attachment_problems.clone(),
            port_problem: self.port_problem.clone(),
            features: wire::Features {
                protection: self.protected,
                protection_reason: self.protection.clone(),
                source_check: self.source_check,
                bridge_table: self.bridge_table,
                source_check_hook: self.source_check_hook.into(),
                tunnel_ports: self.tunnel_ports.clone(),
                drop_log_group: self.drop_log_group,
                drop_log_reason: self.drop_log.clone(),
            },
            drops,
            flows,
            remote: self.remote.as_deref().map(|standing| remote(standing, now)),
        }
    }

    fn source(&self, now: Instant) -> wire::ObjectSource {
        let Counts { namespaces, pods, network_policies, .. } = self.counts;
        let problem = |aged: &super::OpenProblem| wire::ProblemReport {
            origin: aged.problem.origin.clone(),
            message: aged.problem.message.clone(),
            seconds: now.saturating_duration_since(aged.since).as_secs(),
        };
        wire::ObjectSource {
            kind: if self.from_folder { wire::SourceKind::Folder } else { wire::SourceKind::Cluster },
            waiting_for: self.waiting_for.clone(),
            seconds_since_synced: age(self.synced, now),
            seconds_since_change: age(self.last_change, now),
            namespaces,
            pods,
            network_policies,
            problems: self.problems.iter().map(problem).collect(),
        }
    }
}

fn remote(standing: &RemoteFreshness, now: Instant) -> wire::Remote {
    let cluster = |cluster: &ClusterFreshness| wire::RemoteCluster {
        cluster: cluster.cluster.clone(),
        fresh: cluster.fresh,
        seconds_stale: cluster.age(now).map(|age| age.as_secs()),
        held: cluster.held,
        dropped: cluster.dropped,
        sets: cluster.sets,
        addresses: cluster.addresses,
    };
    wire::Remote {
        problem: standing.problem.as_ref().map(|(why, _)| why.clone()),
        seconds_without: age(standing.problem.as_ref().map(|(_, since)| *since), now),
        persist_problem: standing.persist_problem.clone(),
        clusters: standing.clusters.iter().map(cluster).collect(),
    }
}

fn age(at: Option<Instant>, now: Instant) -> Option<u64> {
    at.map(|at| now.saturating_duration_since(at).as_secs())
}

fn last_commit(commit: LastCommit, now: Instant) -> wire::LastCommitReport {
    let LastCommit { at, time, duration, operations } = commit;
    wire::LastCommitReport {
        time: format!("{time:.3}"),
        seconds_ago: now.saturating_duration_since(at).as_secs(),
        micros: whole_micros(duration),
        operations,
    }
}

fn whole_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn diagnostic(diagnostic: &Diagnostic) -> wire::DiagnosticReport {
    wire::DiagnosticReport {
        severity: match diagnostic.severity {
            policy::Severity::Warning => wire::Severity::Warning,
            policy::Severity::Error => wire::Severity::Error,
        },
        kind: diagnostic.kind.to_string(),
        object: diagnostic.object.to_string(),
        field: diagnostic.field.clone(),
        message: diagnostic.message.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Totals = Totals {
        commits: wire::Commits { committed: 0, refused: 0 },
        repairs: wire::Repairs { changed: 0, removed: 0, at_start: 0 },
        drops: None,
        flows: None,
    };

    #[test]
    fn report_converts_instants_to_ages_and_times() {
        let at = Instant::now();
        let commit = LastCommit {
            at,
            time: "2026-05-04T03:02:01.000567Z".parse().unwrap(),
            duration: Duration::from_millis(2),
            operations: 3,
        };
        let status =
            AgentStatus { started: Some(at), synced: Some(at), last_commit: Some(commit), ..AgentStatus::default() };
        let report = status.report(NONE, at + Duration::from_secs(7));
        assert_eq!((report.seconds_up, report.source.seconds_since_synced), (7, Some(7)));
        assert_eq!(report.source.seconds_since_change, None);
        let wanted = wire::LastCommitReport {
            time: "2026-05-04T03:02:01.000Z".into(),
            seconds_ago: 7,
            micros: 2000,
            operations: 3,
        };
        assert_eq!(report.last_commit, Some(wanted));
    }

    #[test]
    fn report_is_ready_without_unready_reason() {
        let unready = AgentStatus::default().report(NONE, Instant::now());
        assert_eq!((unready.ready, unready.unready.as_deref()), (false, Some("the rules are not committed yet")));
        let ready = AgentStatus { in_force: true, ..AgentStatus::default() }.report(NONE, Instant::now());
        assert_eq!((ready.ready, ready.unready), (true, None));
    }
}
