//! `GET /v1/status`: what the agent knows and has done. Ages are whole seconds, at the time of the answer.

use serde::{Deserialize, Serialize};

use super::flows::FlowCoverage;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StatusReport {
    pub(crate) node: String,
    /// Of the agent.
    pub(crate) version: String,
    /// The kernel's release, as `uname -r` has it; null if it cannot be read.
    pub(crate) kernel: Option<String>,
    pub(crate) seconds_up: u64,
    /// As `/readyz` has it.
    pub(crate) ready: bool,
    /// Why not, a line each; null if it is ready.
    pub(crate) unready: Option<String>,
    /// What to know beside that.
    pub(crate) notes: Vec<String>,
    pub(crate) source: Source,
    pub(crate) rules: Rules,
    /// Null before the first.
    pub(crate) last_commit: Option<LastCommit>,
    pub(crate) commits: Commits,
    pub(crate) repairs: Repairs,
    pub(crate) policies: Policies,
    /// Objects of which something was not understood.
    pub(crate) diagnostics: Vec<Diagnostic>,
    pub(crate) pods: Pods,
    /// Why policies would not be enforced on this node although their rules are in the kernel.
    pub(crate) unenforced: Vec<String>,
    /// Attachments of the CNI plugin that cannot be read: pods that may be here without their rules.
    pub(crate) attachment_problems: Vec<String>,
    /// Why the TCP port cannot be listened on.
    pub(crate) port_problem: Option<String>,
    pub(crate) features: Features,
    /// Null while the agent does not count them.
    pub(crate) drops: Option<Drops>,
    /// Null with `--flows off`.
    #[serde(default)]
    pub(crate) flows: Option<FlowCoverage>,
    /// Pods of other clusters; null where no context provider is asked.
    pub(crate) remote: Option<Remote>,
}

/// What is known of other clusters' pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Remote {
    /// Why no context provider is followed; null while one is.
    pub(crate) problem: Option<String>,
    /// For how long; null while one is.
    pub(crate) seconds_without: Option<u64>,
    /// Why what is known is not on disk; null while it is.
    pub(crate) unkept: Option<String>,
    /// By name.
    pub(crate) clusters: Vec<RemoteCluster>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RemoteCluster {
    pub(crate) cluster: String,
    /// Whether a provider is followed who says that it answers.
    pub(crate) fresh: bool,
    /// Since its sets were known to be right; null if they never were.
    pub(crate) seconds_stale: Option<u64>,
    /// The provider knows less of it than this agent, which goes by what it knows.
    pub(crate) held: bool,
    /// Its sets are too old to be in force.
    pub(crate) dropped: bool,
    /// In force.
    pub(crate) sets: usize,
    /// In force, each set's counted by itself.
    pub(crate) addresses: usize,
}

/// Where the objects come from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Source {
    pub(crate) kind: SourceKind,
    /// Kinds of object that have not been listed yet; nothing is programmed before all are.
    pub(crate) waiting_for: Vec<String>,
    /// Since every kind has been listed; null before.
    pub(crate) seconds_since_synced: Option<u64>,
    /// Since it told of a change last; null before.
    pub(crate) seconds_since_change: Option<u64>,
    pub(crate) namespaces: usize,
    pub(crate) pods: usize,
    pub(crate) network_policies: usize,
    /// What keeps it from telling the whole truth.
    pub(crate) problems: Vec<Problem>,
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
pub(crate) struct Problem {
    /// `pods watch`, or `shop/web.yaml:12`.
    pub(crate) origin: String,
    pub(crate) message: String,
    /// Since it came up.
    pub(crate) seconds: u64,
}

/// What is in the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Rules {
    pub(crate) table: String,
    /// Whether the kernel has the rules that the policies ask for, as far as is known.
    pub(crate) in_force: bool,
    /// Why not, where that is known.
    pub(crate) trouble: Option<String>,
    /// The kernel's own count of commits, when the agent last looked.
    pub(crate) kernel_generation: Option<u32>,
    /// The number that approved flows carry; null while the rules are not in force.
    pub(crate) policy_generation: Option<u32>,
    /// In all sets and maps.
    pub(crate) elements: usize,
    /// Distinct sets of rules.
    pub(crate) programs: usize,
    /// What the kernel refused: it is denied.
    pub(crate) left_out: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LastCommit {
    /// RFC 3339, in UTC, with milliseconds.
    pub(crate) time: String,
    pub(crate) seconds_ago: u64,
    /// From the finished translation to the kernel's acknowledgement.
    pub(crate) micros: u64,
    /// Changes that it held.
    pub(crate) operations: usize,
}

/// Since the agent started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Commits {
    /// Transactions that the kernel took.
    pub(crate) taken: u64,
    pub(crate) refused: u64,
}

/// Transactions since the agent started that put right what was not as it should have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Repairs {
    /// Somebody had changed a table.
    pub(crate) changed: u64,
    /// Somebody had removed it.
    pub(crate) removed: u64,
    /// The table of an earlier agent was not what the state asks for when this one started.
    pub(crate) at_start: u64,
}

/// Policies by what becomes of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Policies {
    pub(crate) enforced: usize,
    pub(crate) audit: usize,
    /// Something in them was not understood, and denies.
    pub(crate) not_understood: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Diagnostic {
    pub(crate) severity: Severity,
    /// `Namespace`, `Pod` or `NetworkPolicy`.
    pub(crate) kind: String,
    /// `namespace/name`.
    pub(crate) object: String,
    /// As in `spec.ingress[0].ports[1].protocol`; empty for the whole object.
    pub(crate) field: String,
    /// What is wrong, and what follows from it.
    pub(crate) message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Severity {
    /// Works as written, and may not be what was meant.
    Warning,
    /// Was not understood; what it would allow is denied.
    Error,
}

/// Pods of this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Pods {
    /// They have an address of their own.
    pub(crate) on_node: usize,
    /// Some enforced policy isolates them.
    pub(crate) isolated: usize,
    /// In one direction at least, all policies that select them are audited. They may be isolated in the other.
    pub(crate) audited: usize,
    /// They were attached here and their objects are not known: they are isolated and allowed nothing.
    pub(crate) unknown: usize,
}

/// What of the kernel's is in use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Features {
    /// Other programs cannot change the tables.
    pub(crate) protection: bool,
    /// Why they can or cannot.
    pub(crate) protection_reason: String,
    /// Pods are held to their own source addresses, where their interfaces are known.
    pub(crate) source_check: bool,
    /// The table of family `bridge`, for pods on a bridge.
    pub(crate) bridge_table: bool,
    /// Where pods are held to their own source addresses: `ingress` of their interfaces, or `prerouting`.
    #[serde(default)]
    pub(crate) source_check_hook: String,
    /// UDP ports of tunnels to which pods send nothing, where they are nodes'; empty if this is not checked.
    #[serde(default)]
    pub(crate) tunnel_ports: Vec<u16>,
    /// The group in which the kernel reports denied packets; null if it does not.
    pub(crate) drop_log_group: Option<u16>,
    /// Why it does or does not.
    pub(crate) drop_log_reason: String,
}

/// Packets that a policy or another rule denied, or would if its policies were enforced.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Drops {
    pub(crate) denied: u64,
    pub(crate) would_deny: u64,
    /// Over the last minute, or since the count began.
    pub(crate) denied_per_minute: f64,
    pub(crate) would_deny_per_minute: f64,
    /// Reports of packets that were lost on the way to the agent; the packets are counted all the same.
    pub(crate) lost: u64,
    /// Packets that no event tells of, or none yet.
    pub(crate) unnamed: u64,
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::tests::golden;
    use super::*;

    /// Every field has a value.
    fn full() -> StatusReport {
        StatusReport {
            node: "node-a".into(),
            version: "0.1.0".into(),
            kernel: Some("6.18.5".into()),
            seconds_up: 3600,
            ready: false,
            unready: Some("no".into()),
            notes: vec!["a note".into()],
            source: Source {
                kind: SourceKind::Cluster,
                waiting_for: vec!["Pod".into()],
                seconds_since_synced: Some(3599),
                seconds_since_change: Some(4),
                namespaces: 3,
                pods: 40,
                network_policies: 5,
                problems: vec![Problem { origin: "pods watch".into(), message: "no".into(), seconds: 9 }],
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
            last_commit: Some(LastCommit {
                time: "2026-05-04T03:02:01.000Z".into(),
                seconds_ago: 12,
                micros: 1300,
                operations: 2,
            }),
            commits: Commits { taken: 41, refused: 1 },
            repairs: Repairs { changed: 2, removed: 1, at_start: 0 },
            policies: Policies { enforced: 3, audit: 1, not_understood: 1 },
            diagnostics: vec![Diagnostic {
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
                unkept: Some("no room".into()),
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
                r#"{"node":"node-a","version":"0.1.0","kernel":"6.18.5","secondsUp":3600,"ready":false,"unready":"no","notes":["a note"],"source":{"kind":"cluster","waitingFor":["Pod"],"secondsSinceSynced":3599,"secondsSinceChange":4,"namespaces":3,"pods":40,"networkPolicies":5,"problems":[{"origin":"pods watch","message":"no","seconds":9}]},"rules":{"table":"ringfence","inForce":false,"trouble":"refused","kernelGeneration":17,"policyGeneration":3,"elements":120,"programs":6,"leftOut":["add element"]},"lastCommit":{"time":"2026-05-04T03:02:01.000Z","secondsAgo":12,"micros":1300,"operations":2},"commits":{"taken":41,"refused":1},"repairs":{"changed":2,"removed":1,"atStart":0},"policies":{"enforced":3,"audit":1,"notUnderstood":1},"diagnostics":[{"severity":"error","kind":"NetworkPolicy","object":"shop/db","field":"spec","message":"no"}],"pods":{"onNode":30,"isolated":12,"audited":5,"unknown":1},"unenforced":["no"],"attachmentProblems":["no"],"portProblem":"no","features":{"protection":true,"protectionReason":"on","sourceCheck":true,"bridgeTable":false,"sourceCheckHook":"ingress","tunnelPorts":[4789,8472],"dropLogGroup":9470,"dropLogReason":"on"},"drops":{"denied":120,"wouldDeny":3,"deniedPerMinute":4.5,"wouldDenyPerMinute":0.0,"lost":0,"unnamed":2},"flows":{"since":"2026-05-04T02:02:01.000Z","keptSince":null,"started":10,"ended":7,"live":2,"lost":1,"untracked":0,"lostEvents":3,"reliable":true,"problems":["no"]},"remote":{"problem":"no","secondsWithout":5,"unkept":"no room","clusters":[{"cluster":"east","fresh":false,"secondsStale":7,"held":true,"dropped":false,"sets":2,"addresses":3}]}}"#
            ]],
        );
    }
}
