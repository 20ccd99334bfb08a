//! gRPC services `goldmane.Flows` and `goldmane.Statistics`, which Whisker calls.
//!
//! A stream sends flows of settled windows only, so that each flow is sent once.

use std::collections::VecDeque;

use access::Session;
use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::response::Response;
use axum::routing::post;
use flow::WINDOW_SECONDS;
use futures::stream;
use goldmane::message::{
    FilterHintsRequest, FlowListRequest, FlowResult, FlowStreamRequest, StatisticsRequest, StatisticsResult,
};
use goldmane::{
    FLOW_COLLECTOR, FLOWS, Filters, FlowList, Hints, Page, RequestError, STATISTICS, Sorting, StatisticsQuery,
    TimeRange, absolute,
};
use jiff::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tonic::Status;
use wire::Strict;

use crate::grpc::{answers, streaming, unary};
use crate::interfaces::{Archive, revoked};
use crate::window_cursor::WindowCursor;

pub(crate) fn routes(archive: Archive) -> Router {
    Router::new()
        .route(&format!("/{FLOWS}/List"), post(list))
        .route(&format!("/{FLOWS}/Stream"), post(stream_flows))
        .route(&format!("/{FLOWS}/FilterHints"), post(hints))
        .route(&format!("/{STATISTICS}/List"), post(statistics))
        .route(&format!("/{FLOW_COLLECTOR}/Connect"), post(connect))
        .with_state(archive)
}

/// Refuses flows of Calico's agents: the aggregator accepts only Ringfence's flow records.
async fn connect() -> Response {
    let message = "flows of Calico's agents are not received; agents of Ringfence send theirs with --flow-server";
    Status::unimplemented(message).into_http()
}

fn refused(error: RequestError) -> Status {
    match error {
        RequestError::TooManyFlows(_) => Status::resource_exhausted(error.to_string()),
        RequestError::Unknown { .. }
        | RequestError::Value { .. }
        | RequestError::TooManyValues
        | RequestError::Range { .. }
        | RequestError::Page
        | RequestError::PolicyText(_)
        | RequestError::SortOrders
        | RequestError::SortOrder(_)
        | RequestError::Interval => Status::invalid_argument(error.to_string()),
    }
}

/// The message of a request; an error if the request has unknown fields.
fn known<M>(request: Strict<M>) -> Result<M, Status> {
    match request.unknown {
        Some(field) => Err(refused(RequestError::Unknown { message: "the request", field })),
        None => Ok(request.message),
    }
}

fn now() -> i64 {
    Timestamp::now().as_second()
}

async fn list(State(archive): State<Archive>, request: Request) -> Response {
    unary(request, |request: Strict<FlowListRequest>| {
        let archive = archive.clone();
        async move {
            let request = known(request)?;
            let sorting = Sorting::parse(&request.sort_by).map_err(refused)?;
            let page = Page::parse(request.page, request.page_size).map_err(refused)?;
            let range = TimeRange::parse(request.start_time_gte, request.start_time_lt, now()).map_err(refused)?;
            let mut list = FlowList::new(Filters::parse(request.filter.as_ref()).map_err(refused)?);
            let _permit = archive.admit_query()?;
            for window in archive.windows().into_iter().filter(|window| range.has(*window)) {
                for record in archive.read(window).await? {
                    list.add(&record).map_err(refused)?;
                }
            }
            list.into_page(sorting, page).map_err(refused)
        }
    })
    .await
}

async fn hints(State(archive): State<Archive>, request: Request) -> Response {
    unary(request, |request: Strict<FilterHintsRequest>| {
        let archive = archive.clone();
        async move {
            let mut hints = Hints::parse(&request).map_err(refused)?;
            let request = request.message;
            let range = TimeRange::parse(request.start_time_gte, request.start_time_lt, now()).map_err(refused)?;
            let _permit = archive.admit_query()?;
            for window in archive.windows().into_iter().filter(|window| range.has(*window)) {
                for record in archive.read(window).await? {
                    hints.add(&record).map_err(refused)?;
                }
            }
            Ok(hints.into_result())
        }
    })
    .await
}

async fn statistics(State(archive): State<Archive>, request: Request) -> Response {
    streaming(request, |request: Strict<StatisticsRequest>| {
        let query = StatisticsQuery::parse(&request).map_err(refused)?;
        let request = request.message;
        let range = TimeRange::parse(request.start_time_gte, request.start_time_lt, now()).map_err(refused)?;
        let permit = archive.admit_query()?;
        let results = sum_up(archive.clone(), query, range, permit);
        Ok(answers(futures::StreamExt::flat_map(stream::once(results), |results| {
            let (results, error) = match results {
                Ok(results) => (results, None),
                Err(error) => (Vec::new(), Some(error)),
            };
            stream::iter(results.into_iter().map(Ok).chain(error.map(Err)))
        })))
    })
    .await
}

async fn sum_up(
    archive: Archive,
    mut query: StatisticsQuery,
    range: TimeRange,
    _permit: OwnedSemaphorePermit,
) -> Result<Vec<StatisticsResult>, Status> {
    for window in archive.windows().into_iter().filter(|window| range.has(*window)) {
        for record in archive.read(window).await? {
            query.add(&record);
        }
    }
    Ok(query.into_results())
}

async fn stream_flows(
    State(archive): State<Archive>,
    session: Option<Extension<Session>>,
    request: Request,
) -> Response {
    streaming(request, |request: Strict<FlowStreamRequest>| {
        let request = known(request)?;
        if !matches!(request.aggregation_interval, 0 | WINDOW_SECONDS) {
            return Err(refused(RequestError::Interval));
        }
        let filters = Filters::parse(request.filter.as_ref()).map_err(refused)?;
        let permit = archive.admit_stream()?;
        let mut settled = archive.aggregate.settled();
        let known = archive.windows();
        let cursor = WindowCursor::new(*settled.borrow_and_update(), known.last().copied());
        // Without a start time the stream begins now, without past flows.
        let start = absolute(request.start_time_gte, now());
        let is_wanted = |window: &Timestamp| {
            request.start_time_gte != 0 && window.as_second() >= start && *window < cursor.settled()
        };
        let follower = Follower {
            windows: known.into_iter().filter(is_wanted).collect(),
            archive: archive.clone(),
            filters,
            start: if request.start_time_gte == 0 { i64::MIN } else { start },
            results: Vec::new().into_iter(),
            settled,
            cursor,
            _permit: permit,
        };
        let session = session.clone().map(|Extension(session)| session);
        let flows = stream::try_unfold(follower, async |mut follower| {
            Ok(follower.next().await?.map(|result| (result, follower)))
        });
        let end = Box::pin(revoked(session));
        Ok(answers(futures::StreamExt::take_until(flows, end)))
    })
    .await
}

/// A stream of the flows of each window.
struct Follower {
    archive: Archive,
    filters: Filters,
    /// Start of the requested range, in seconds since 1970.
    start: i64,
    windows: VecDeque<Timestamp>,
    /// Unsent flows of the current window.
    results: std::vec::IntoIter<FlowResult>,
    settled: watch::Receiver<Timestamp>,
    /// Windows before it are read or queued.
    cursor: WindowCursor,
    _permit: OwnedSemaphorePermit,
}

impl Follower {
    async fn next(&mut self) -> Result<Option<FlowResult>, Status> {
        loop {
            if let Some(result) = self.results.next() {
                return Ok(Some(result));
            }
            if let Some(window) = self.windows.pop_front() {
                let mut list = FlowList::new(self.filters.clone());
                for record in self.archive.read(window).await? {
                    list.add(&record).map_err(refused)?;
                }
                self.results = list.into_results().into_iter();
                continue;
            }
            if self.settled.changed().await.is_err() {
                return Ok(None);
            }
            let settled = *self.settled.borrow_and_update();
            let windows = self.cursor.advance(settled, self.archive.windows()).into_iter();
            self.windows = windows.filter(|window| window.as_second() >= self.start).collect();
        }
    }
}
