//! `GET /v1/flows`: flow records, one [`FlowLine`] of JSON each (docs/flows.md).

use flow::{FilterError, FlowFilter, FlowRecord, Volume};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::query::{ApiQuery, InvalidQuery, Parameters, boolean};

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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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

impl ApiQuery for FlowsQuery {
    const PARAMETERS: &'static [&'static str] =
        &["follow", "since", "until", "namespace", "workload", "peer", "port", "protocol", "verdict", "policy"];

    fn read(parameters: &Parameters) -> Result<FlowsQuery, InvalidQuery> {
        let follow = parameters.read("follow", boolean)?.is_some_and(|follow| follow);
        let mut query = FlowsQuery { follow, ..FlowsQuery::default() };
        let now = Timestamp::now();
        for field in FlowFilter::FIELDS {
            let filter = &mut query.filter;
            let given = parameters.read(field, |text| filter.set(field, text, now).map(|()| text.to_owned()))?;
            query.given.extend(given.map(|text| (field, text)));
        }
        Ok(query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_fields_are_the_parameters() {
        assert_eq!(FlowsQuery::PARAMETERS[0], "follow");
        assert_eq!(FlowsQuery::PARAMETERS[1..], FlowFilter::FIELDS);
    }

    #[test]
    fn invalid_flow_filter_is_refused_with_expected_values() {
        let error = FlowsQuery::new(false, vec![("verdict", "nope".into())]).unwrap_err();
        assert_eq!(error.to_string(), "invalid verdict 'nope': expected allowed, would-deny or denied");
    }
}
