//! `GET /v1/status`: state of the agent. Ages are whole seconds, at the time of the response.

use serde::{Deserialize, Serialize};

use super::flows::FlowCoverage;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AgentStatusReport {
    pub(crate) node: String,
    /// Version of the agent.
    pub(crate) version: String,
    /// The kernel's release, as in `uname -r`; null if it cannot be read.
    pub(crate) kernel: Option<String>,
    pub(crate) seconds_up: u64,
    /// Same as `/readyz`.
    pub(crate) ready: bool,
    /// Reasons for not being ready, one per line; null if ready.
    pub(crate) unready: Option<String>,
    /// Warnings that do not affect readiness.
    pub(crate) notes: Vec<String>,
    pub(crate) source: ObjectSource,
    pub(crate) rules: Rules,
    /// Null before the first commit.
    pub(crate) last_commit: Option<LastCommitReport>,
    pub(crate) commits: Commits,
    pub(crate) repairs: Repairs,
    pub(crate) policies: Policies,
    /// Problems in objects.
    pub(crate) diagnostics: Vec<DiagnosticReport>,
    pub(crate) pods: Pods,
    /// Why policies would not be enforced on this node although their rules are in the kernel.
    pub(crate) unenforced: Vec<String>,
    /// Attachments of the CNI plugin that cannot be read: such pods may lack their rules.
    pub(crate) attachment_problems: Vec<String>,
    /// Why the TCP port cannot be listened on.
    pub(crate) port_problem: Option<String>,
    pub(crate) features: Features,
    /// Null while packets are not counted.
    pub(crate) drops: Option<Drops>,
    /// Null with `--flows off`.
    #[serde(default)]
    pub(crate) flows: Option<FlowCoverage>,
    /// Pods of other clusters; null if no context provider is configured.
    pub(crate) remote: Option<Remote>,
}

/// State of the pods of other clusters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Remote {
    /// Why no context provider is followed; null while one is.
    pub(crate) problem: Option<String>,
    /// Seconds without a provider; null while one is followed.
    pub(crate) seconds_without: Option<u64>,
    /// Why the state cannot be persisted; null if it is.
    pub(crate) persist_problem: Option<String>,
    /// Sorted by name.
    pub(crate) clusters: Vec<RemoteCluster>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RemoteCluster {
    pub(crate) cluster: String,
    /// True if a provider is followed and reports the cluster as reachable.
    pub(crate) fresh: bool,
    /// Seconds since its sets were last known to be current; null if never.
    pub(crate) seconds_stale: Option<u64>,
    /// True if the agent keeps its own sets because the provider's are older.
    pub(crate) held: bool,
    /// True if the cluster's sets are stale and therefore not in force.
    pub(crate) dropped: bool,
    /// Number of sets in force.
    pub(crate) sets: usize,
    /// Number of addresses in force; an address counts once for each set.
    pub(crate) addresses: usize,
}

/// Source of the objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObjectSource {
    pub(crate) kind: SourceKind,
    /// Kinds that are not listed yet; nothing is programmed before the initial sync is complete.
    pub(crate) waiting_for: Vec<String>,
    /// Seconds since the initial sync; null before.
    pub(crate) seconds_since_synced: Option<u64>,
    /// Seconds since the last change; null before the first.
    pub(crate) seconds_since_change: Option<u64>,
    pub(crate) namespaces: usize,
    pub(crate) pods: usize,
    pub(crate) network_policies: usize,
    /// Problems that may make the objects incomplete or stale.
    pub(crate) problems: Vec<ProblemReport>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum SourceKind {
    Cluster,
    /// A folder of manifests.
    Folder,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProblemReport {
    /// `pods watch`, or `shop/web.yaml:12`.
    pub(crate) origin: String,
    pub(crate) message: String,
    /// Seconds since the problem began.
    pub(crate) seconds: u64,
}

/// State of the rules in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rules {
    pub(crate) table: String,
    /// Whether the kernel has the desired rules, as far as the agent knows.
    pub(crate) in_force: bool,
    /// Why the rules are not in force, if known.
    pub(crate) trouble: Option<String>,
    /// The kernel's generation at the last check.
    pub(crate) kernel_generation: Option<u32>,
    /// Generation of approvals; null while the rules are not in force.
    pub(crate) policy_generation: Option<u32>,
    /// Elements of all sets and maps.
    pub(crate) elements: usize,
    /// Distinct programs (sets of rules).
    pub(crate) programs: usize,
    /// Operations that the kernel refused; the traffic is denied.
    pub(crate) left_out: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LastCommitReport {
    /// RFC 3339, in UTC, with milliseconds.
    pub(crate) time: String,
    pub(crate) seconds_ago: u64,
    /// Microseconds from the end of the translation to the kernel's acknowledgement.
    pub(crate) micros: u64,
    /// Number of operations in the transaction.
    pub(crate) operations: usize,
}

/// Transactions since the agent started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Commits {
    /// Transactions that the kernel committed.
    pub(crate) committed: u64,
    pub(crate) refused: u64,
}

/// Repair transactions since the agent started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Repairs {
    /// Another program had changed a table.
    pub(crate) changed: u64,
    /// Another program had removed a table.
    pub(crate) removed: u64,
    /// The table of an earlier agent differed from the desired rules at the start.
    pub(crate) at_start: u64,
}

/// Policies by enforcement mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Policies {
    pub(crate) enforced: usize,
    pub(crate) audit: usize,
    /// Policies with an invalid or unsupported part, which denies.
    pub(crate) not_understood: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct DiagnosticReport {
    pub(crate) severity: Severity,
    /// `Namespace`, `Pod` or `NetworkPolicy`.
    pub(crate) kind: String,
    /// `namespace/name`.
    pub(crate) object: String,
    /// For example `spec.ingress[0].ports[1].protocol`; empty for the whole object.
    pub(crate) field: String,
    /// The problem and its effect.
    pub(crate) message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Severity {
    /// Works as written, but may not be intended.
    Warning,
    /// Invalid or unsupported; traffic that it would allow is denied.
    Error,
}

/// Pods of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pods {
    /// Pods with their own address, not in the host network.
    pub(crate) on_node: usize,
    /// Pods isolated by an enforced policy.
    pub(crate) isolated: usize,
    /// Pods for which, in at least one direction, all selecting policies are audited. They may be isolated in the other
    /// direction.
    pub(crate) audited: usize,
    /// Pods attached here whose objects are unknown: they are isolated and all traffic is denied.
    pub(crate) unknown: usize,
}

/// Kernel features in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Features {
    /// Whether the tables are protected against changes by other programs.
    pub(crate) protection: bool,
    /// Why they are protected, or why not.
    pub(crate) protection_reason: String,
    /// Whether pods may only send from their own addresses, where their interfaces are known.
    pub(crate) source_check: bool,
    /// Whether there is a table of family `bridge`, for pods on a bridge.
    pub(crate) bridge_table: bool,
    /// Hook that checks source addresses: `ingress` of the pods' interfaces, or `prerouting`.
    #[serde(default)]
    pub(crate) source_check_hook: String,
    /// UDP tunnel ports of nodes to which pods cannot send; empty if this is not checked.
    #[serde(default)]
    pub(crate) tunnel_ports: Vec<u16>,
    /// The NFLOG group of denied packets; null if they are not reported.
    pub(crate) drop_log_group: Option<u16>,
    /// Why packets are reported, or why not.
    pub(crate) drop_log_reason: String,
}

/// Packets that a policy or another rule denied, and packets that audited policies would deny if they were enforced.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Drops {
    pub(crate) denied: u64,
    pub(crate) would_deny: u64,
    /// Average of the last minute, or since counting began.
    pub(crate) denied_per_minute: f64,
    pub(crate) would_deny_per_minute: f64,
    /// Packet reports lost before the agent received them; the packets are counted all the same.
    pub(crate) lost: u64,
    /// Packets that no event reports, including those that a later event will report.
    pub(crate) unnamed: u64,
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::tests::golden;
    use super::*;

    /// A report in which every field has a value.
    fn full() -> AgentStatusReport {
        AgentStatusReport {
            node: "node-a".into(),
            version: "0.1.0".into(),
            kernel: Some("6.18.5".into()),
            seconds_up: 3600,
            ready: false,
            unready: Some("no".into()),
            notes: vec!["a note".into()],
            source: ObjectSource {
                kind: SourceKind::Cluster,
                waiting_for: vec!["Pod".into()],
                seconds_since_synced: Some(3599),
                seconds_since_change: Some(4),
                namespaces: 3,
                pods: 40,
                network_policies: 5,
                problems: vec![ProblemReport { origin: "pods watch".into(), message: "no".into(), seconds: 9 }],
            },
            rules: Rules {
                table: "ringfence".into(),
                in_force: false,
                trouble: Some("refused".into()),
                kernel_generation: Some(17),
                policy_generation: Some(3),
                elements: 120,
                programs: 6,
                left_out: vec!["add element".into()],
            },
            last_commit: Some(LastCommitReport {
                time: "2026-05-04T03:02:01.000Z".into(),
                seconds_ago: 12,
                micros: 1300,
                operations: 2,
            }),
            commits: Commits { committed: 41, refused: 1 },
            repairs: Repairs { changed: 2, removed: 1, at_start: 0 },
            policies: Policies { enforced: 3, audit: 1, not_understood: 1 },
            diagnostics: vec![DiagnosticReport {
                severity: Severity::Error,
                kind: "NetworkPolicy".into(),
                object: "shop/db".into(),
                field: "spec".into(),
                message: "no".into(),
            }],
            pods: Pods { on_node: 30, isolated: 12, audited: 5, unknown: 1 },
            unenforced: vec!["no".into()],
            attachment_problems: vec!["no".into()],
            port_problem: Some("no".into()),
            features: Features {
                protection: true,
                protection_reason: "on".into(),
                source_check: true,
                bridge_table: false,
                source_check_hook: "ingress".into(),
                tunnel_ports: vec![4789, 8472],
                drop_log_group: Some(9470),
                drop_log_reason: "on".into(),
            },
            drops: Some(Drops {
                denied: 120,
                would_deny: 3,
                denied_per_minute: 4.5,
                would_deny_per_minute: 0.0,
                lost: 0,
                unnamed: 2,
            }),
            flows: Some(FlowCoverage {
                since: Some("2026-05-04T02:02:01.000Z".into()),
                kept_since: None,
                started: 10,
                ended: 7,
                live: 2,
                lost: 1,
                untracked: 0,
                lost_events: 3,
                reliable: true,
                problems: vec!["no".into()],
            }),
            remote: Some(Remote {
                problem: Some("no".into()),
                seconds_without: Some(5),
                persist_problem: Some("no room".into()),
                clusters: vec![RemoteCluster {
                    cluster: "east".into(),
                    fresh: false,
                    seconds_stale: Some(7),
                    held: true,
                    dropped: false,
                    sets: 2,
                    addresses: 3,
                }],
            }),
        }
    }

    #[test]
    fn a_status_has_these_bytes() {
        golden(
            &full(),
            expect![[
                r#"{"node":"node-a","version":"0.1.0","kernel":"6.18.5","secondsUp":3600,"ready":false,"unready":"no","notes":["a note"],"source":{"kind":"cluster","waitingFor":["Pod"],"secondsSinceSynced":3599,"secondsSinceChange":4,"namespaces":3,"pods":40,"networkPolicies":5,"problems":[{"origin":"pods watch","message":"no","seconds":9}]},"rules":{"table":"ringfence","inForce":false,"trouble":"refused","kernelGeneration":17,"policyGeneration":3,"elements":120,"programs":6,"leftOut":["add element"]},"lastCommit":{"time":"2026-05-04T03:02:01.000Z","secondsAgo":12,"micros":1300,"operations":2},"commits":{"committed":41,"refused":1},"repairs":{"changed":2,"removed":1,"atStart":0},"policies":{"enforced":3,"audit":1,"notUnderstood":1},"diagnostics":[{"severity":"error","kind":"NetworkPolicy","object":"shop/db","field":"spec","message":"no"}],"pods":{"onNode":30,"isolated":12,"audited":5,"unknown":1},"unenforced":["no"],"attachmentProblems":["no"],"portProblem":"no","features":{"protection":true,"protectionReason":"on","sourceCheck":true,"bridgeTable":false,"sourceCheckHook":"ingress","tunnelPorts":[4789,8472],"dropLogGroup":9470,"dropLogReason":"on"},"drops":{"denied":120,"wouldDeny":3,"deniedPerMinute":4.5,"wouldDenyPerMinute":0.0,"lost":0,"unnamed":2},"flows":{"since":"2026-05-04T02:02:01.000Z","keptSince":null,"started":10,"ended":7,"live":2,"lost":1,"untracked":0,"lostEvents":3,"reliable":true,"problems":["no"]},"remote":{"problem":"no","secondsWithout":5,"persistProblem":"no room","clusters":[{"cluster":"east","fresh":false,"secondsStale":7,"held":true,"dropped":false,"sets":2,"addresses":3}]}}"#
            ]],
        );
    }
}
