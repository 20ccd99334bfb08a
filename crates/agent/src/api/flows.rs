//! `GET /v1/flows`: flow records, one [`FlowLine`] of JSON each (docs/flows.md).

use flow::{FilterError, FlowFilter, FlowRecord, Volume};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A line of the response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum FlowLine {
    Record(Box<FlowRecord>),
    /// Number of records that were skipped because the reader was too slow.
    Lost {
        lost: u64,
    },
}

/// Completeness of the records.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FlowCoverage {
    /// RFC 3339: when the agent subscribed to conntrack events; null if it did not.
    pub(crate) since: Option<String>,
    /// RFC 3339: every record since this time is kept; null if there are none.
    pub(crate) kept_since: Option<String>,
    /// Connections since the agent started: started = ended + live + lost.
    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) live: u64,
    /// Connections that disappeared without an end event.
    pub(crate) lost: u64,
    /// Connections not tracked because there were too many at once.
    pub(crate) untracked: u64,
    /// Times that the kernel dropped events.
    pub(crate) lost_events: u64,
    /// Whether the kernel retains end events until they are delivered.
    pub(crate) reliable: bool,
    /// Problems that may make the records incomplete.
    pub(crate) problems: Vec<String>,
}

/// Totals of the flow records that list both addresses. A record covers the connections of all pods of two workloads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SeenFlows {
    /// RFC 3339: every record since this time is kept; null if there are none.
    pub(crate) kept_since: Option<String>,
    /// Connections started.
    pub(crate) started: u64,
    /// Connections still open.
    pub(crate) live: u64,
    /// Sent from the source to the destination; null if unknown.
    pub(crate) sent: Option<Volume>,
    pub(crate) received: Option<Volume>,
    /// Connections with unknown or partial volume, counted once per window.
    #[serde(default)]
    pub(crate) unknown_volume: u64,
    /// Denied packets.
    pub(crate) denied_packets: u64,
    /// False if further records may have the addresses: a record lists 100 per end, and may summarize the ports of a
    /// scan.
    #[serde(default)]
    pub(crate) complete: bool,
    /// RFC 3339: time of the last event; null if there was none.
    pub(crate) last: Option<String>,
}

/// Parameters of the query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "FlowParameters")]
pub(crate) struct FlowsQuery {
    /// Keep sending records as their windows are closed.
    pub(crate) follow: bool,
    pub(crate) filter: FlowFilter,
    /// The fields of the filter as given, since durations are relative to the time of the response.
    pub(crate) given: Vec<(&'static str, String)>,
}

impl FlowsQuery {
    /// # Errors
    /// If a field cannot be parsed.
    pub(crate) fn new(follow: bool, given: Vec<(&'static str, String)>) -> Result<FlowsQuery, FilterError> {
        let (mut filter, now) = (FlowFilter::default(), Timestamp::now());
        for (field, text) in &given {
            filter.set(field, text, now)?;
        }
        Ok(FlowsQuery { follow, filter, given })
    }
}

/// The parameters of a [`FlowsQuery`]: `follow`, and the fields of [`FlowFilter`].
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct FlowParameters {
    follow: bool,
    since: Option<String>,
    until: Option<String>,
    namespace: Option<String>,
    workload: Option<String>,
    peer: Option<String>,
    port: Option<String>,
    protocol: Option<String>,
    verdict: Option<String>,
    policy: Option<String>,
}

impl TryFrom<FlowParameters> for FlowsQuery {
    type Error = FilterError;

    fn try_from(given: FlowParameters) -> Result<FlowsQuery, FilterError> {
        let FlowParameters { follow, since, until, namespace, workload, peer, port, protocol, verdict, policy } = given;
        let fields = [
            ("since", since),
            ("until", until),
            ("namespace", namespace),
            ("workload", workload),
            ("peer", peer),
            ("port", port),
            ("protocol", protocol),
            ("verdict", verdict),
            ("policy", policy),
        ];
        let given = fields.into_iter().filter_map(|(field, text)| Some((field, text?)));
        FlowsQuery::new(follow, given.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::super::query::tests::queried;
    use super::*;

    #[test]
    fn every_filter_field_is_a_parameter() {
        for field in FlowFilter::FIELDS {
            let text = match field {
                "since" | "until" => "5m",
                "namespace" => "shop",
                "port" => "80",
                "protocol" => "tcp",
                "verdict" => "denied",
                _ => "shop/web",
            };
            let query = queried::<FlowsQuery>(&format!("follow=true&{field}={text}"));
            assert_eq!(query.map(|query| query.given), Ok(vec![(field, text.to_owned())]));
        }
        let refused = queried::<FlowsQuery>("hue=red").unwrap_err();
        assert!(refused.contains("unknown field `hue`"), "{refused}");
    }

    #[test]
    fn invalid_flow_filter_is_refused_with_expected_values() {
        let error = FlowsQuery::new(false, vec![("verdict", "nope".into())]).unwrap_err();
        assert_eq!(error.to_string(), "invalid verdict 'nope': expected allowed, would-deny or denied");
    }
}
