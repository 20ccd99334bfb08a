//! `GET /v1/flows`: flow records, one [`FlowLine`] of JSON each (docs/flows.md).

use flow::{FilterError, FlowFilter, FlowRecord, Volume};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::question::{BadQuestion, Parameters, Question, boolean};

/// A line of the answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum FlowLine {
    Record(Box<FlowRecord>),
    /// So many records were skipped, since the reader was too slow.
    Lost {
        lost: u64,
    },
}

/// How complete the records are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FlowCoverage {
    /// RFC 3339: when the agent began to follow connection tracking; null while it does not.
    pub(crate) since: Option<String>,
    /// RFC 3339: every record since then is kept; null while there are none.
    pub(crate) kept_since: Option<String>,
    /// Connections since the agent started: started = ended + live + lost.
    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) live: u64,
    /// Gone, although no end was reported.
    pub(crate) lost: u64,
    /// Not followed, since there were too many at once.
    pub(crate) untracked: u64,
    /// Times that the kernel dropped events.
    pub(crate) lost_events: u64,
    /// Whether the kernel keeps ends of connections until they are delivered.
    pub(crate) reliable: bool,
    /// Problems, as sentences for people.
    pub(crate) problems: Vec<String>,
}

/// Sums over the flow records that list both addresses. A record has the connections of all pods of two workloads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SeenFlows {
    /// RFC 3339: every record since then is kept; null while there are none.
    pub(crate) kept_since: Option<String>,
    /// Connections that began.
    pub(crate) started: u64,
    /// Connections that are open.
    pub(crate) live: u64,
    /// From the source to the destination; null if it is unknown.
    pub(crate) sent: Option<Volume>,
    pub(crate) received: Option<Volume>,
    /// Connections whose volume is not in these, or only in part; each once for each window.
    #[serde(default)]
    pub(crate) unknown_volume: u64,
    /// Packets that were denied.
    pub(crate) denied_packets: u64,
    /// Whether no further record may have the addresses: one lists 100 of an end, and may sum up the ports of a scan.
    #[serde(default)]
    pub(crate) complete: bool,
    /// RFC 3339: the last event; null if there was none.
    pub(crate) last: Option<String>,
}

/// Parameters of the query.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FlowsQuery {
    /// Go on with records as their windows are closed.
    pub(crate) follow: bool,
    pub(crate) filter: FlowFilter,
    /// The fields of the filter as they were given: durations count back from the time of the answer.
    pub(crate) given: Vec<(&'static str, String)>,
}

impl FlowsQuery {
    /// # Errors
    /// If the text of a field cannot be parsed.
    pub(crate) fn new(follow: bool, given: Vec<(&'static str, String)>) -> Result<FlowsQuery, FilterError> {
        let (mut filter, now) = (FlowFilter::default(), Timestamp::now());
        for (field, text) in &given {
            filter.set(field, text, now)?;
        }
        Ok(FlowsQuery { follow, filter, given })
    }
}

impl Question for FlowsQuery {
    const PARAMETERS: &'static [&'static str] =
        &["follow", "since", "until", "namespace", "workload", "peer", "port", "protocol", "verdict", "policy"];

    fn read(parameters: &Parameters) -> Result<FlowsQuery, BadQuestion> {
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
