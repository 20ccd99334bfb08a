//! The API of the agent's socket: routes and wire types. docs/api.md documents them.
//!
//! Types here are plain values, independent of how the agent computes them. Within version 1 fields and routes are only
//! added, never removed or changed in meaning; clients ignore unknown fields.

pub(crate) mod audit;
pub(crate) mod client;
pub(crate) mod drops;
pub(crate) mod flow_server;
pub(crate) mod flow_stream;
pub(crate) mod flows;
pub(crate) mod identity;
pub(crate) mod loki;
pub(crate) mod observed;
pub(crate) mod query;
pub(crate) mod readiness;
pub(crate) mod rules;
pub(crate) mod status;

use ::identity::EndIdentity;
use policy::{Explanation, NamedTraffic, PartyName};
use query::parsed;
use serde::{Deserialize, Serialize};

/// `GET`: a [`status::AgentStatusReport`].
pub(crate) const STATUS: &str = "/v1/status";

/// `GET`: whether the event loop runs, as text. Also on the TCP port.
pub(crate) const LIVE: &str = "/healthz";

/// `GET`: whether the rules are in force, as text. Also on the TCP port.
pub(crate) const READY: &str = "/readyz";

/// `GET` with an [`ExplainQuery`]: a list of [`ExplainResponse`], one for each address family.
pub(crate) const EXPLAIN: &str = "/v1/explain";

/// `GET` with an [`identity::IdentityQuery`]: an [`identity::IdentityReport`].
pub(crate) const IDENTITY: &str = "/v1/identity";

/// `GET`: a [`TableVerdict`].
pub(crate) const VERIFY: &str = "/v1/verify";

/// `GET` with a [`rules::RulesQuery`]: the committed rules as nft text, compared with the kernel.
pub(crate) const RULES: &str = "/v1/rules";

/// `GET` with a [`drops::DropsQuery`]: the latest events as NDJSON, a [`drops::DropLine`] each, the oldest first; with
/// `follow=true` new ones follow.
pub(crate) const DROPS: &str = "/v1/drops";

/// `GET`: a [`drops::Coverage`].
pub(crate) const COVERAGE: &str = "/v1/drops/coverage";

/// `GET` with a [`flows::FlowsQuery`]: flow records as NDJSON, a [`flows::FlowLine`] each, the oldest first; with
/// `follow=true` also those of windows that are closed later.
pub(crate) const FLOWS: &str = "/v1/flows";

/// `GET`: a [`flows::FlowCoverage`].
pub(crate) const FLOW_COVERAGE: &str = "/v1/flows/coverage";

/// `GET` with an [`audit::AuditQuery`]: an [`audit::AuditReport`].
pub(crate) const AUDIT: &str = "/v1/audit";

/// `GET` with an [`audit::SuggestionQuery`]: an [`audit::SuggestionReport`].
pub(crate) const SUGGESTION: &str = "/v1/audit/suggestion";

/// Result of reading the kernel's table again and comparing it with the desired rules. Nothing is repaired.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "camelCase")]
pub(crate) enum TableVerdict {
    Equal,
    /// The operations that would repair the table, in nft syntax.
    #[serde(rename_all = "camelCase")]
    Different {
        operations: Vec<String>,
        more: usize,
    },
    Missing,
    /// The comparison was not possible.
    #[serde(rename_all = "camelCase")]
    Unknown {
        reason: String,
    },
}

/// The flow to explain, with each part as on the command line of `ringfence explain`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExplainQuery {
    #[serde(deserialize_with = "parsed")]
    pub(crate) source: PartyName,
    #[serde(deserialize_with = "parsed")]
    pub(crate) destination: PartyName,
    #[serde(deserialize_with = "parsed")]
    pub(crate) traffic: NamedTraffic,
}

/// Verdict of the policies for a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ExplainResponse {
    #[serde(flatten)]
    pub(crate) explanation: Explanation,
    /// Null while the name of the cluster is unknown.
    #[serde(rename = "sourceIdentity", default)]
    pub(crate) source_identity: Option<EndIdentity>,
    /// As `source_identity`.
    #[serde(rename = "destinationIdentity", default)]
    pub(crate) destination_identity: Option<EndIdentity>,
    /// Why the kernel's verdict may differ.
    #[serde(default)]
    pub(crate) notes: Vec<String>,
    /// Recorded flows between the two addresses; left out if the agent records no flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seen: Option<flows::SeenFlows>,
}

/// Body of every response with a status of 400 or above.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ApiError {
    pub(crate) error: String,
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};
    use serde::de::DeserializeOwned;

    use super::*;

    /// Asserts that the value serializes to the JSON, and that the JSON deserializes to the value.
    #[track_caller]
    pub(super) fn golden<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T, bytes: Expect) {
        let text = serde_json::to_string(value).unwrap();
        bytes.assert_eq(&text);
        assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value);
    }

    #[test]
    fn table_verdicts_serialize_to_expected_json() {
        golden(&TableVerdict::Equal, expect![[r#"{"verdict":"equal"}"#]]);
        golden(&TableVerdict::Missing, expect![[r#"{"verdict":"missing"}"#]]);
        golden(
            &TableVerdict::Unknown { reason: "initial sync not complete; waiting for the list of: Pod".into() },
            expect![[r#"{"verdict":"unknown","reason":"initial sync not complete; waiting for the list of: Pod"}"#]],
        );
        golden(
            &TableVerdict::Different { operations: vec!["add chain inet ringfence deny".into()], more: 2 },
            expect![[r#"{"verdict":"different","operations":["add chain inet ringfence deny"],"more":2}"#]],
        );
    }

    #[test]
    fn api_errors_serialize_to_expected_json() {
        golden(
            &ApiError { error: "pod shop/gone not found".into() },
            expect![[r#"{"error":"pod shop/gone not found"}"#]],
        );
    }

    #[test]
    fn explanations_serialize_to_expected_json() {
        let address = |text: &str| text.parse().unwrap();
        let explanation = policy::explain(
            &policy::ClusterState::new(),
            address("192.0.2.1"),
            address("2001:db8::1"),
            policy::Traffic::Port(nft::Protocol::Tcp, 80),
        );
        golden(
            &vec![ExplainResponse {
                explanation,
                source_identity: Some(EndIdentity::reserved(::identity::ReservedIdentity::World, None)),
                destination_identity: None,
                notes: vec!["a note".into()],
                seen: None,
            }],
            expect![[
                r#"[{"source":{"address":"192.0.2.1","pod":null,"node":null},"destination":{"address":"2001:db8::1","pod":null,"node":null},"traffic":"80/tcp","allowed":true,"egress":{"verdict":"not-a-pod"},"ingress":{"verdict":"not-a-pod"},"sourceIdentity":{"service":null,"sid":null,"num":2,"state":"world"},"destinationIdentity":null,"notes":["a note"]}]"#
            ]],
        );
    }

    #[test]
    fn api_error_ignores_unknown_fields() {
        let error: ApiError = serde_json::from_str(r#"{"error":"no","code":7}"#).unwrap();
        assert_eq!(error, ApiError { error: "no".into() });
    }
}
