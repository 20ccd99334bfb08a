//! Reads the trail of flow records from Loki (`GET /loki/api/v1/query_range`).

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use feed::client::{Url, with_causes};
use feed::{Access, read_basic_auth};
use flow::ClusterRecord;
use jiff::Timestamp;
use serde::Deserialize;

use super::client::target;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout between two parts of a response; queries over days are slow.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum size of a response: lines have up to 200 kB, and 5,000 usual ones some 10 MB.
const LARGEST_RESPONSE_BYTES: usize = 256 << 20;

const PATH: &str = "loki/api/v1/query_range";

/// A server of Loki's query API.
#[derive(Debug, Clone)]
pub(crate) struct Loki {
    pub(crate) url: Url,
    pub(crate) access: Access,
    /// File with `USER:PASSWORD`.
    pub(crate) basic_auth_file: Option<PathBuf>,
    pub(crate) tenant: Option<String>,
    /// Value of the stream label `cluster`.
    pub(crate) cluster: Option<String>,
    /// Lines per request.
    pub(crate) limit: usize,
}

/// Lines that a query selects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TrailQuery {
    /// Selects flows with an end in one of these namespaces; empty for all flows.
    pub(crate) namespaces: BTreeSet<String>,
    /// Selects only flows that were not denied.
    pub(crate) only_passed: bool,
}

#[derive(Debug, Deserialize)]
struct LokiResponse {
    data: Data,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: Vec<Stream>,
}

#[derive(Debug, Deserialize)]
struct Stream {
    /// Nanoseconds since 1970, and the line; newer versions add an object.
    values: Vec<Vec<serde_json::Value>>,
}

type TrailLine = (i128, String);

impl Loki {
    /// Passes the records of the time range to `each`, in the order of their windows. `progress` is called after each
    /// response with the number of lines so far, and the time of the last one.
    ///
    /// # Errors
    /// If Loki refuses a query, or has more lines with one timestamp than it returns at once.
    pub(crate) async fn records(
        &self,
        query: &TrailQuery,
        (since, until): (Timestamp, Timestamp),
        mut each: impl FnMut(&ClusterRecord),
        mut progress: impl FnMut(usize, Timestamp),
    ) -> anyhow::Result<()> {
        let mut start = since.as_nanosecond();
        // Lines with the timestamp at which the next page starts, which that page repeats.
        let mut at_start: BTreeSet<String> = BTreeSet::new();
        let mut count = 0;
        loop {
            let lines = self.page(query, start, until.as_nanosecond()).await?;
            let is_last = lines.len() < self.limit;
            let Some(end) = lines.last().map(|(time, _)| *time) else { return Ok(()) };
            let mut at_end = if end == start { at_start.clone() } else { BTreeSet::new() };
            for (time, line) in lines {
                if time == start && at_start.contains(&line) {
                    continue;
                }
                let record =
                    serde_json::from_str(&line).context("a line in Loki is not a flow record of this version")?;
                each(&record);
                count += 1;
                if time == end {
                    at_end.insert(line);
                }
            }
            let time = Timestamp::from_nanosecond(end).unwrap_or(Timestamp::MAX);
            progress(count, time);
            if is_last {
                return Ok(());
            }
            if end == start {
                bail!(
                    "Loki has more than {} lines with the timestamp {time}; raise --loki-limit, and max_entries_limit_per_query of Loki",
                    self.limit
                );
            }
            (start, at_start) = (end, at_end);
        }
    }

    /// The first lines of the range, in the order of their times. Streams are merged by time.
    async fn page(&self, query: &TrailQuery, start: i128, end: i128) -> anyhow::Result<Vec<TrailLine>> {
        let base = self.url.as_str().trim_end_matches('/');
        // Errors omit the query, which may name hundreds of namespaces.
        let failed = || format!("cannot query Loki at {base}/{PATH}");
        let parameters = [
            ("query", Some(self.log_query(query))),
            ("start", Some(start.to_string())),
            ("end", Some(end.to_string())),
            ("limit", Some(self.limit.to_string())),
            ("direction", Some("forward".to_owned())),
        ];
        let parameters: Vec<(&str, Option<&str>)> =
            parameters.iter().map(|(name, value)| (*name, value.as_deref())).collect();
        let url: Url = target(&format!("{base}/{PATH}"), &parameters).parse().with_context(failed)?;
        let client =
            self.access.client(url.scheme() == "https", CONNECT_TIMEOUT, READ_TIMEOUT).await.with_context(failed)?;
        let mut request = client.get(url);
        if let Some(value) = self.access.authorization().await.with_context(failed)? {
            request = request.header("authorization", value);
        }
        if let Some(path) = &self.basic_auth_file {
            let (user, password) = read_basic_auth(path).await.with_context(failed)?;
            request = request.basic_auth(user, Some(password));
        }
        if let Some(tenant) = &self.tenant {
            request = request.header("x-scope-orgid", tenant);
        }
        let broke_off = |error: &dyn std::error::Error| anyhow!("{}: {}", failed(), with_causes(error));
        let mut response = request.send().await.map_err(|error| broke_off(&error.without_url()))?;
        let status = response.status();
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(|error| broke_off(&error.without_url()))? {
            body.extend_from_slice(&part);
            if body.len() > LARGEST_RESPONSE_BYTES {
                bail!("{}: the response is too large; lower --loki-limit", failed());
            }
        }
        if !status.is_success() {
            bail!("{}: it returned {status}: {}", failed(), String::from_utf8_lossy(&body).trim_end());
        }
        let answer: LokiResponse = serde_json::from_slice(&body).context("cannot decode Loki's response")?;
        if answer.data.result_type != "streams" {
            bail!("Loki's response has {} instead of streams", answer.data.result_type);
        }
        let values = answer.data.result.into_iter().flat_map(|stream| stream.values);
        let mut lines: Vec<TrailLine> =
            values.map(line).collect::<Option<_>>().context("cannot decode a line of Loki")?;
        lines.sort();
        Ok(lines)
    }

    /// The LogQL query.
    fn log_query(&self, query: &TrailQuery) -> String {
        let mut matchers = vec!["service_name=\"ringfence-flows\"".to_owned()];
        matchers.extend(self.cluster.as_ref().map(|cluster| format!("cluster={}", quoted(cluster))));
        if query.only_passed {
            matchers.push("verdict!=\"denied\"".into());
        }
        let ends = query.namespaces.iter().flat_map(|namespace| {
            let namespace = quoted(namespace);
            [format!("source_namespace={namespace}"), format!("destination_namespace={namespace}")]
        });
        let ends: Vec<String> = ends.collect();
        let filter = if ends.is_empty() { String::new() } else { format!(" | {}", ends.join(" or ")) };
        format!("{{{}}}{filter}", matchers.join(","))
    }
}

fn line(mut value: Vec<serde_json::Value>) -> Option<TrailLine> {
    value.truncate(2);
    match (value.pop()?, value.pop()?) {
        (serde_json::Value::String(line), serde_json::Value::String(time)) => Some((time.parse().ok()?, line)),
        _ => None,
    }
}

/// A LogQL string. It has the escapes of Go, which include those of JSON except `\/`, which `serde_json` does not write.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_selects_both_ends_of_namespaces() {
        let loki = |cluster: Option<&str>| Loki {
            url: "http://127.0.0.1:3100".parse().unwrap(),
            access: Access::default(),
            basic_auth_file: None,
            tenant: None,
            cluster: cluster.map(str::to_owned),
            limit: 10,
        };
        assert_eq!(loki(None).log_query(&TrailQuery::default()), r#"{service_name="ringfence-flows"}"#);
        let query = TrailQuery { namespaces: ["shop".to_owned()].into(), only_passed: true };
        assert_eq!(
            loki(Some("east\"")).log_query(&query),
            r#"{service_name="ringfence-flows",cluster="east\"",verdict!="denied"} | source_namespace="shop" or destination_namespace="shop""#
        );
    }
}
