//! `GET /v1/flows`: joined records as JSON lines, oldest window first, optionally paged.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use flow::{EdgePlace, FlowFilters, sort_by_place};
use futures::stream;
use jiff::Timestamp;
use serde::Serialize;
use tokio::sync::OwnedSemaphorePermit;

use super::Sources;
use super::page::{InvalidPage, Page, PageToken};
use super::query::{QueryParameters, Refusal, blocking};
use crate::aggregate::Aggregate;
use crate::read_stream::{ReadStream, STALLED_AFTER};

/// Limit of records per page: some 10 MB.
const MOST_RECORDS: usize = 10_000;

/// Encoded windows queued for the client.
const MOST_WAITING: usize = 1;

pub(super) async fn flows(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let mut given = QueryParameters::new(given);
    let page = given.take("page")?.map(|text| text.parse()).transpose();
    let token: Option<PageToken> = page.map_err(|error: InvalidPage| Refusal::bad_request(error))?;
    let started = sources.started.as_millisecond();
    if token.is_some_and(|token| token.started != started) {
        return Err(Refusal {
            code: StatusCode::GONE,
            reason: format!(
                "the page is from an earlier process of the aggregator, and this process (started at {}) may lack some of the \
                 records; request the first page",
                sources.started
            ),
        });
    }
    let page = token.map(|token| token.page);
    let limit = given.limit(MOST_RECORDS)?;
    let filters = given.filters()?;
    if let Some(page) = page {
        check_kept(&sources.aggregate, page)?;
    }
    let permit = sources.start_query()?;
    let from = page.map_or(Timestamp::MIN, |page| page.window);
    let windows: Vec<Timestamp> =
        sources.aggregate.windows(&filters).into_iter().filter(|window| *window >= from).collect();
    let answer = FlowsResponse {
        aggregate: sources.aggregate,
        started,
        filters,
        windows: windows.into_iter(),
        pages: (page.is_some() || limit.is_some()).then_some(Pages { from: page, left: limit.unwrap_or(usize::MAX) }),
        has_ended: false,
        _permit: permit,
    };
    let lines = stream::unfold(Some(answer), async |answer| {
        let mut answer = answer?;
        match blocking(move || (answer.next(), answer)).await {
            Ok((text, answer)) => text.map(|text| (text, Some(answer))),
            // The error aborts the response, so that the client detects that it is incomplete.
            Err(refusal) => Some((Err(io::Error::other(refusal.reason)), None)),
        }
    });
    let lines = ReadStream::new(lines, MOST_WAITING, STALLED_AFTER, io::Error::other);
    Ok(([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

/// Refuses a page whose window was evicted, since the response would lack its records.
fn check_kept(aggregate: &Aggregate, page: Page) -> Result<(), Refusal> {
    let kept = aggregate.left_before();
    if page.window >= kept {
        return Ok(());
    }
    Err(Refusal {
        code: StatusCode::GONE,
        reason: format!(
            "the records of this page have left the aggregator's memory, which begins at {kept}; query again with \
             since={kept}, or with a lower limit"
        ),
    })
}

/// A response, with the windows that are not yet written.
struct FlowsResponse {
    aggregate: Arc<Aggregate>,
    /// Start of the process, for page tokens.
    started: i64,
    filters: FlowFilters,
    windows: std::vec::IntoIter<Timestamp>,
    /// `None` if the response is not paged.
    pages: Option<Pages>,
    has_ended: bool,
    _permit: OwnedSemaphorePermit,
}

struct Pages {
    /// Position at which the page begins; `None` for the first page and after its first window.
    from: Option<Page>,
    /// Records for which the page still has room.
    left: usize,
}

/// The last line of a page.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PageEnd {
    /// `None` if this page is the last.
    next_page: Option<String>,
}

impl FlowsResponse {
    /// The lines of the next window.
    fn next(&mut self) -> Option<io::Result<Vec<u8>>> {
        if self.has_ended {
            return None;
        }
        match self.windows.next() {
            Some(window) => Some(self.lines(window)),
            None => {
                self.has_ended = true;
                self.pages.is_some().then(|| self.end(None))
            }
        }
    }

    fn lines(&mut self, window: Timestamp) -> io::Result<Vec<u8>> {
        let mut records = self.aggregate.read(window, &self.filters);
        let has_left = window < self.aggregate.left_before();
        let mut text = Vec::new();
        let Some(pages) = &mut self.pages else {
            if has_left {
                self.has_ended = true;
                return Err(io::Error::other(format!(
                    "the records of the window {window} left the aggregator's memory while the response was sent"
                )));
            }
            for record in records {
                write_line(&mut text, &record)?;
            }
            return Ok(text);
        };
        if has_left {
            // The next page begins at the evicted window, so the request for it is refused with the reason.
            self.has_ended = true;
            return self.end(Some(Page::at(window)));
        }
        sort_by_place(&mut records);
        let after = pages.from.take().filter(|page| page.window == window).and_then(|page| page.after);
        let mut last = after;
        for record in records {
            let place = EdgePlace::of(&record.record.key);
            if after.is_some_and(|after| place <= after) {
                continue;
            }
            // A page does not end between records of one edge.
            if pages.left == 0 && last != Some(place) {
                self.has_ended = true;
                text.extend(self.end(Some(Page { window, after: last }))?);
                return Ok(text);
            }
            pages.left = pages.left.saturating_sub(1);
            last = Some(place);
            write_line(&mut text, &record)?;
        }
        Ok(text)
    }

    fn end(&self, page: Option<Page>) -> io::Result<Vec<u8>> {
        let mut text = Vec::new();
        let token = page.map(|page| PageToken { started: self.started, page });
        write_line(&mut text, &PageEnd { next_page: token.map(|token| token.to_string()) })?;
        Ok(text)
    }
}

fn write_line(text: &mut Vec<u8>, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *text, value)?;
    text.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::SignedDuration;
    use serde_json::Value;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::testing::{begin, push, window};

    fn lines(aggregate: &Arc<Aggregate>, page: Option<Page>, limit: usize) -> Vec<Value> {
        let filters = FlowFilters::default();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let from = page.map_or(Timestamp::MIN, |page| page.window);
        let windows: Vec<Timestamp> = aggregate.windows(&filters).into_iter().filter(|begin| *begin >= from).collect();
        let mut answer = FlowsResponse {
            aggregate: aggregate.clone(),
            started: 7,
            filters,
            windows: windows.into_iter(),
            pages: Some(Pages { from: page, left: limit }),
            has_ended: false,
            _permit: permit,
        };
        let text: Vec<u8> = std::iter::from_fn(|| answer.next()).flat_map(|text| text.unwrap()).collect();
        let text = String::from_utf8(text).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn pages_have_each_record_once() {
        let now = begin() + SignedDuration::from_secs(40);
        for limit in [1, 2, 3, 5, 7, 100] {
            let aggregate = Arc::new(Aggregate::new(1 << 20));
            let first: Vec<_> = (0..3).flat_map(|window| (1..=4).map(move |port| (window, port, 1))).collect();
            push(&aggregate, 1, &first, now);
            let mut found: BTreeMap<(String, u64), u64> = BTreeMap::new();
            let (mut page, mut pages) = (None, 0u64);
            loop {
                let mut lines = lines(&aggregate, page, limit);
                let end = lines.pop().unwrap();
                assert!(lines.len() <= limit, "each edge has one record");
                for record in lines {
                    let key = (record["window"].as_str().unwrap().to_owned(), record["port"].as_u64().unwrap());
                    *found.entry(key).or_insert(0) += 1;
                }
                let Some(next) = end["nextPage"].as_str() else { break };
                page = Some(next.parse::<PageToken>().unwrap().page);
                // Between pages the agent sends records of a new window, and further records of an edge on some page.
                push(&aggregate, first.len() as u64 + 1 + 2 * pages, &[(3, 9, 1), (1, 2, 1)], now);
                pages += 1;
                assert!(pages < 20);
            }
            assert!(found.values().all(|times| *times == 1), "limit {limit}: {found:?}");
            assert_eq!(found.len() as u64, 12 + u64::from(pages > 0), "limit {limit}");
        }
    }

    #[test]
    fn page_of_window_that_left_is_refused() {
        let aggregate = Arc::new(Aggregate::new(1 << 20));
        push(&aggregate, 1, &[(0, 80, 1), (1, 80, 2)], begin());
        assert!(check_kept(&aggregate, Page::at(window(0))).is_ok());
        aggregate.expire(begin() + SignedDuration::from_secs(3_600 + 30));
        let refused = check_kept(&aggregate, Page::at(window(0))).unwrap_err();
        assert_eq!(refused.code, StatusCode::GONE);
        assert!(refused.reason.contains("since=2026-05-04T12:00:15Z"), "{}", refused.reason);
        assert!(check_kept(&aggregate, Page::at(window(1))).is_ok());
    }

    /// A response whose first window was evicted since the response began.
    fn answer_without_its_window(pages: Option<Pages>) -> FlowsResponse {
        let aggregate = Arc::new(Aggregate::new(1 << 20));
        push(&aggregate, 1, &[(0, 80, 1), (1, 80, 2)], begin());
        let answer = FlowsResponse {
            aggregate: aggregate.clone(),
            started: 7,
            filters: FlowFilters::default(),
            windows: vec![window(0), window(1)].into_iter(),
            pages,
            has_ended: false,
            _permit: Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(),
        };
        aggregate.expire(begin() + SignedDuration::from_secs(3_600 + 30));
        answer
    }

    #[test]
    fn window_that_leaves_meanwhile_ends_the_page() {
        let mut answer = answer_without_its_window(Some(Pages { from: None, left: 10 }));
        let aggregate = answer.aggregate.clone();
        let last: Value = serde_json::from_slice(&answer.next().unwrap().unwrap()).unwrap();
        let token: PageToken = last["nextPage"].as_str().unwrap().parse().unwrap();
        assert_eq!(token.started, 7);
        assert!(check_kept(&aggregate, token.page).is_err() && answer.next().is_none());
    }

    #[test]
    fn window_that_leaves_meanwhile_breaks_the_response() {
        let mut answer = answer_without_its_window(None);
        let error = answer.next().unwrap().unwrap_err();
        assert!(error.to_string().contains("2026-05-04T12:00:00Z left the aggregator's memory"), "{error}");
        assert!(answer.next().is_none());
    }
}
