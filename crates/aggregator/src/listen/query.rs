//! Parameters of queries, and the limit of concurrent queries.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use flow::{ClusterRecord, FlowFilters};
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use super::{Sources, refuse};
use crate::aggregate::Aggregate;

/// A refused request: status code and reason.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) code: StatusCode,
    pub(super) reason: String,
}

impl Refusal {
    pub(super) fn bad_request(reason: impl ToString) -> Refusal {
        Refusal { code: StatusCode::BAD_REQUEST, reason: reason.to_string() }
    }

    pub(super) fn unavailable(reason: &str) -> Refusal {
        Refusal { code: StatusCode::SERVICE_UNAVAILABLE, reason: reason.to_owned() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = refuse(self.code, self.reason);
        if self.code == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// Parameters of the query string. A route removes its own parameters; those that remain are filters.
#[derive(Debug)]
pub(super) struct QueryParameters(Vec<(String, String)>);

impl QueryParameters {
    pub(super) fn new(given: Vec<(String, String)>) -> QueryParameters {
        QueryParameters(given)
    }

    /// Removes a parameter that has at most one value.
    pub(super) fn take(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        let mut taken = self.take_all(name).into_iter();
        match (taken.next(), taken.next()) {
            (Some(_), Some(_)) => Err(Refusal::bad_request(format!("duplicate parameter {name}"))),
            (first, _) => Ok(first),
        }
    }

    /// Removes all values of a parameter.
    pub(super) fn take_all(&mut self, name: &str) -> Vec<String> {
        let (taken, left) = std::mem::take(&mut self.0).into_iter().partition(|(given, _)| given == name);
        self.0 = left;
        let taken: Vec<(String, String)> = taken;
        taken.into_iter().map(|(_, value)| value).collect()
    }

    /// Removes `limit`, the number of items that the response lists, from 1 to `most`.
    pub(super) fn limit(&mut self, most: usize) -> Result<Option<usize>, Refusal> {
        self.number("limit", most)
    }

    /// Removes a required parameter.
    pub(super) fn required<T: FromStr<Err: fmt::Display>>(&mut self, name: &str) -> Result<T, Refusal> {
        let text = self.take(name)?.ok_or_else(|| Refusal::bad_request(format!("parameter {name} is missing")))?;
        text.parse().map_err(Refusal::bad_request)
    }

    /// Refuses parameters that remain.
    pub(super) fn end(self) -> Result<(), Refusal> {
        match self.0.first() {
            None => Ok(()),
            Some((name, _)) => Err(Refusal::bad_request(format!("unknown parameter '{}'", name.escape_debug()))),
        }
    }

    /// Removes a number from 1 to `most`.
    pub(super) fn number(&mut self, name: &str, most: usize) -> Result<Option<usize>, Refusal> {
        let Some(text) = self.take(name)? else { return Ok(None) };
        let number = text.parse().ok().filter(|number| text.bytes().all(|byte| byte.is_ascii_digit()) && *number > 0);
        match number {
            Some(number) if number <= most => Ok(Some(number)),
            _ => Err(Refusal::bad_request(format!(
                "invalid {name} '{}': expected a number from 1 to {most}",
                text.escape_debug()
            ))),
        }
    }

    /// Parses all remaining parameters as filters.
    pub(super) fn filters(&self) -> Result<FlowFilters, Refusal> {
        let given = self.0.iter().map(|(field, text)| (field.as_str(), text.as_str()));
        FlowFilters::parse(given, Timestamp::now()).map_err(Refusal::bad_request)
    }
}

impl Sources {
    /// Acquires a permit of a query, or refuses the query if too many run.
    pub(super) fn start_query(&self) -> Result<OwnedSemaphorePermit, Refusal> {
        let Ok(permit) = self.queries.clone().try_acquire_owned() else {
            self.metrics.refuse_query();
            return Err(Refusal::unavailable("too many queries are under way; try again later"));
        };
        self.metrics.query();
        Ok(permit)
    }

    /// Sums the records that the filters admit, window by window, on a blocking thread.
    pub(super) async fn sum<B: Send + 'static>(
        &self,
        filters: FlowFilters,
        mut builder: B,
        add: impl Fn(&mut B, &ClusterRecord) + Send + 'static,
    ) -> Result<(Range, B), Refusal> {
        let permit = self.start_query()?;
        let aggregate = self.aggregate.clone();
        blocking(move || {
            let windows = aggregate.windows(&filters);
            for window in &windows {
                aggregate.read(*window, &filters).iter().for_each(|joined| add(&mut builder, joined));
            }
            drop(permit);
            (Range::new(&windows, &aggregate), builder)
        })
        .await
    }
}

/// Runs work of milliseconds or longer on a blocking thread.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
    let failed = |error: tokio::task::JoinError| Refusal {
        code: StatusCode::INTERNAL_SERVER_ERROR,
        reason: format!("the query failed: {error}"),
    };
    tokio::task::spawn_blocking(work).await.map_err(failed)
}

/// Windows that a response covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Range {
    /// Starts of the first and of the last window with records; null if there are none.
    first_window: Option<Timestamp>,
    last_window: Option<Timestamp>,
    windows: usize,
    /// Windows of the range that were evicted during the summation: the response lacks their records.
    missed_windows: usize,
}

impl Range {
    fn new(windows: &[Timestamp], aggregate: &Arc<Aggregate>) -> Range {
        let left = aggregate.left_before();
        Range {
            first_window: windows.first().copied(),
            last_window: windows.last().copied(),
            windows: windows.len(),
            missed_windows: windows.iter().filter(|window| **window < left).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(pairs: &[(&str, &str)]) -> QueryParameters {
        QueryParameters::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn parameters_that_are_not_filters_are_taken() {
        let mut given = parameters(&[("limit", "10"), ("port", "80"), ("field", "port"), ("port", "443")]);
        assert_eq!(given.limit(10).unwrap(), Some(10));
        assert_eq!(given.take("field").unwrap().as_deref(), Some("port"));
        assert_eq!(given.filters().unwrap().combinations(), 2);
        assert_eq!(given.take_all("port"), ["80", "443"]);
        assert_eq!(given.limit(10).unwrap(), None);
    }

    #[test]
    fn invalid_and_duplicate_parameters_are_refused() {
        for text in ["0", "11", "+1", "x", ""] {
            let refused = parameters(&[("limit", text)]).limit(10).unwrap_err();
            assert!(refused.reason.contains("expected a number from 1 to 10"), "{text}: {}", refused.reason);
        }
        let twice = parameters(&[("limit", "1"), ("limit", "2")]).limit(10).unwrap_err();
        assert_eq!((twice.code, &*twice.reason), (StatusCode::BAD_REQUEST, "duplicate parameter limit"));
        assert_eq!(parameters(&[("page", "1")]).filters().unwrap_err().code, StatusCode::BAD_REQUEST);
    }
}
