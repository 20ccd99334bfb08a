//! `GET /v1/audit`: what audited policies would have denied; `GET /v1/audit/suggestion`: policies that would allow it.

use policy::Direction;
use serde::{Deserialize, Serialize};

use super::drops::{Coverage, DropEnd};
use super::query::{name, optional_name};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditReport {
    pub(crate) node: String,
    /// RFC 3339: start of the count, which is the start of the agent.
    pub(crate) since: String,
    /// Every audited policy, sorted by name.
    pub(crate) policies: Vec<AuditedPolicy>,
    /// Flows are unknown while packets are not reported.
    pub(crate) coverage: Coverage,
}

/// Packets that a policy, together with others that isolate the same pods, would have denied on this node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AuditedPolicy {
    /// `namespace/name`, or `name` of a ClusterNetworkPolicy.
    pub(crate) policy: String,
    /// Number of packets. A flow counts once when it begins, and again after a change that narrows what is allowed; its
    /// other packets are not evaluated.
    pub(crate) would_deny: u64,
    /// Distinct flows of these packets: source, destination, protocol and port.
    pub(crate) flows: u64,
    /// `flows` is a lower bound, because there were too many to distinguish.
    pub(crate) more_flows: bool,
    /// RFC 3339: time of the first packet; null if there was none.
    pub(crate) first: Option<String>,
    /// RFC 3339: time of the last packet; null if there was none.
    pub(crate) last: Option<String>,
    /// Number of known flows that the current policies would still deny.
    pub(crate) remaining: u64,
    /// The most frequent remaining flows.
    pub(crate) top: Vec<AuditedFlow>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AuditedFlow {
    pub(crate) direction: Direction,
    pub(crate) source: DropEnd,
    pub(crate) destination: DropEnd,
    /// As in a denial, or `many ports`.
    pub(crate) traffic: String,
    pub(crate) count: u64,
    /// RFC 3339: when the flow was last seen.
    pub(crate) last: String,
}

/// Parameters of the query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    #[serde(default, deserialize_with = "optional_name")]
    pub(crate) namespace: Option<String>,
}

/// Target of the suggestion: all workloads of the namespace, the named workload, or the workload of the pod.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "SuggestionParameters")]
pub(crate) struct SuggestionQuery {
    pub(crate) namespace: String,
    pub(crate) pod: Option<String>,
    pub(crate) workload: Option<String>,
}

/// The parameters of a [`SuggestionQuery`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SuggestionParameters {
    #[serde(deserialize_with = "name")]
    namespace: String,
    #[serde(default, deserialize_with = "optional_name")]
    pod: Option<String>,
    #[serde(default, deserialize_with = "optional_name")]
    workload: Option<String>,
}

impl TryFrom<SuggestionParameters> for SuggestionQuery {
    type Error = &'static str;

    fn try_from(given: SuggestionParameters) -> Result<SuggestionQuery, &'static str> {
        match given {
            SuggestionParameters { pod: Some(_), workload: Some(_), .. } => {
                Err("pod and workload are mutually exclusive")
            }
            SuggestionParameters { namespace, pod, workload } => Ok(SuggestionQuery { namespace, pod, workload }),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct SuggestionReport {
    /// NetworkPolicy objects.
    pub(crate) policies: Vec<serde_json::Value>,
    /// Observed traffic that the policies do not allow, and why.
    pub(crate) notes: Vec<String>,
    /// Flows are unknown while packets are not reported.
    pub(crate) coverage: Coverage,
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use serde_json::json;

    use super::super::drops::EndKind;
    use super::super::tests::golden;
    use super::*;

    #[test]
    fn audit_reports_serialize_to_expected_json() {
        let end = |address: &str| DropEnd {
            address: Some(address.parse().unwrap()),
            kind: EndKind::World,
            pod: None,
            node: None,
            cluster: None,
            set: None,
        };
        let flow = AuditedFlow {
            direction: Direction::Egress,
            source: end("192.0.2.1"),
            destination: end("192.0.2.2"),
            traffic: "53/udp".into(),
            count: 7,
            last: "2026-05-04T03:02:02.000Z".into(),
        };
        let policy = AuditedPolicy {
            policy: "shop/db".into(),
            would_deny: 7,
            flows: 1,
            more_flows: false,
            first: Some("2026-05-04T03:02:01.000Z".into()),
            last: None,
            remaining: 1,
            top: vec![flow],
        };
        let coverage = Coverage { reporting: true, would_deny: Some(7), ..Coverage::default() };
        let since = "2026-05-04T03:00:00.000Z".into();
        let report = AuditReport { node: "node-a".into(), since, policies: vec![policy], coverage: coverage.clone() };
        golden(
            &report,
            expect![[
                r#"{"node":"node-a","since":"2026-05-04T03:00:00.000Z","policies":[{"policy":"shop/db","wouldDeny":7,"flows":1,"moreFlows":false,"first":"2026-05-04T03:02:01.000Z","last":null,"remaining":1,"top":[{"direction":"egress","source":{"address":"192.0.2.1","kind":"world","pod":null,"node":null,"cluster":null},"destination":{"address":"192.0.2.2","kind":"world","pod":null,"node":null,"cluster":null},"traffic":"53/udp","count":7,"last":"2026-05-04T03:02:02.000Z"}]}],"coverage":{"reporting":true,"reportingReason":"","keptSince":"","forgottenEvents":0,"denied":null,"wouldDeny":7,"unnamed":null}}"#
            ]],
        );
        golden(
            &SuggestionReport {
                policies: vec![json!({"kind": "NetworkPolicy"})],
                notes: vec!["a note".into()],
                coverage,
            },
            expect![[
                r#"{"policies":[{"kind":"NetworkPolicy"}],"notes":["a note"],"coverage":{"reporting":true,"reportingReason":"","keptSince":"","forgottenEvents":0,"denied":null,"wouldDeny":7,"unnamed":null}}"#
            ]],
        );
    }
}
