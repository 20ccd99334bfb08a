//! gRPC services `observer.Observer` and `grpc.health.v1.Health`, which `hubble` and hubble-ui call.
//!
//! A stream sends flows of settled windows only, so that each flow is sent once and in order.

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;

use access::Session;
use axum::Router;
use axum::extract::{Extension, Request, State};
use axum::response::Response;
use axum::routing::post;
use flow::{ClusterRecord, WINDOW_SECONDS};
use futures::stream;
use hubble::message::{
    EmptyRequest, GetFlowsRequest, GetFlowsResponse, GetNamespacesResponse, GetNodesResponse, HealthCheckRequest,
    HealthCheckResponse, LostEvent, LostEventSource, Namespace, Node, NodeState, ResponseType, ServerStatusResponse,
    ServingStatus, UInt32Value,
};
use hubble::{Filters, HEALTH_SERVICE, SERVICE, SERVICE_OF_CHECKS, convert, time};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tonic::Status;
use wire::Strict;

use crate::aggregate::Figures;
use crate::grpc::{Answers, answers, streaming, unary};
use crate::interfaces::{Archive, revoked};
use crate::report::CoverageReport;
use crate::window_cursor::WindowCursor;

/// Upper bound of the unavailable nodes that a status lists.
const MOST_UNAVAILABLE: usize = 100;

pub(crate) fn routes(archive: Archive) -> Router {
    let path = |method: &str| format!("/{SERVICE}/{method}");
    Router::new()
        .route(&path("GetFlows"), post(get_flows))
        .route(&path("GetNodes"), post(get_nodes))
        .route(&path("GetNamespaces"), post(get_namespaces))
        .route(&path("ServerStatus"), post(server_status))
        .route(&format!("/{HEALTH_SERVICE}/Check"), post(check))
        .with_state(archive)
}

async fn check(request: Request) -> Response {
    unary(request, async |HealthCheckRequest { service }| match service.as_str() {
        "" | SERVICE | SERVICE_OF_CHECKS => Ok(HealthCheckResponse { status: ServingStatus::Serving.into() }),
        _ => Err(Status::not_found("unknown service")),
    })
    .await
}

async fn server_status(State(archive): State<Archive>, request: Request) -> Response {
    unary(request, |EmptyRequest {}| {
        let archive = archive.clone();
        async move {
            let figures = archive.aggregate.figures();
            Ok(status(&figures, archive.started, Timestamp::now()))
        }
    })
    .await
}

fn status(figures: &Figures, started: Timestamp, now: Timestamp) -> ServerStatusResponse {
    let coverage = CoverageReport::new(figures, started, now);
    let silent = coverage.silent_nodes();
    let count = |number: usize| Some(UInt32Value { value: u32::try_from(number).unwrap_or(u32::MAX) });
    let uptime = now.duration_since(started);
    let seconds = uptime.as_secs_f64().max(1.0);
    // The store is bounded in bytes. Its capacity in records is estimated from the mean size of the stored ones.
    let most = (figures.records as u64).saturating_mul(figures.most_bytes as u64).checked_div(figures.bytes as u64);
    let silent_nodes = coverage.nodes.iter().filter(|node| node.silent).map(|node| node.node.clone());
    ServerStatusResponse {
        num_flows: figures.records as u64,
        max_flows: most.unwrap_or(0),
        seen_flows: figures.inbox.received,
        uptime_ns: u64::try_from(uptime.as_nanos()).unwrap_or(0),
        num_connected_nodes: count(coverage.nodes.len() - silent),
        num_unavailable_nodes: count(silent),
        unavailable_nodes: silent_nodes.take(MOST_UNAVAILABLE).collect(),
        version: concat!("ringfence-flows ", env!("CARGO_PKG_VERSION")).to_owned(),
        flows_rate: figures.inbox.received as f64 / seconds,
    }
}

async fn get_nodes(State(archive): State<Archive>, request: Request) -> Response {
    unary(request, |EmptyRequest {}| {
        let archive = archive.clone();
        async move {
            let figures = archive.aggregate.figures();
            let coverage = CoverageReport::new(&figures, archive.started, Timestamp::now());
            let nodes = coverage.nodes.into_iter().zip(figures.nodes).map(|(node, report)| Node {
                name: node.node,
                state: if node.silent { NodeState::Unavailable } else { NodeState::Connected }.into(),
                seen_flows: report.acknowledged,
            });
            Ok(GetNodesResponse { nodes: nodes.collect() })
        }
    })
    .await
}

/// Namespaces of the last hour.
async fn get_namespaces(State(archive): State<Archive>, request: Request) -> Response {
    unary(request, |EmptyRequest {}| {
        let archive = archive.clone();
        async move {
            let _permit = archive.admit_query()?;
            let mut namespaces = BTreeSet::new();
            for window in archive.windows() {
                for record in archive.read(window).await? {
                    for end in [&record.record.key.source, &record.record.key.destination] {
                        if let Some(namespace) = &end.namespace {
                            let cluster = end.cluster.as_deref().unwrap_or_default().to_owned();
                            namespaces.insert(Namespace { cluster, namespace: namespace.to_string() });
                        }
                    }
                }
            }
            Ok(GetNamespacesResponse { namespaces: namespaces.into_iter().collect() })
        }
    })
    .await
}

async fn get_flows(State(archive): State<Archive>, session: Option<Extension<Session>>, request: Request) -> Response {
    streaming(request, |request: Strict<GetFlowsRequest>| {
        let filters = Filters::parse(&request).map_err(|error| Status::invalid_argument(error.to_string()))?;
        let session = session.clone().map(|Extension(session)| session);
        answer(archive.clone(), session, request.message, filters)
    })
    .await
}

fn answer(
    archive: Archive,
    session: Option<Session>,
    request: GetFlowsRequest,
    filters: Filters,
) -> Result<Answers<GetFlowsResponse>, Status> {
    let query = archive.admit_query()?;
    let follow = match request.follow {
        true => Some(Follow::new(&archive, session)?),
        false => None,
    };
    let bound = |time: Option<wire::Timestamp>| match time {
        None => Ok(None),
        Some(time) => Timestamp::new(time.seconds, time.nanos)
            .map(Some)
            .map_err(|error| Status::invalid_argument(format!("invalid time: {error}"))),
    };
    let range = TimeRange { since: bound(request.since)?, until: bound(request.until)? };
    let reader = FlowReader {
        archive,
        filters,
        range,
        windows: VecDeque::new(),
        records: Vec::new().into_iter(),
        skip: 0,
        left: (request.first && request.number > 0).then_some(request.number),
        last: (!request.first && request.number > 0).then_some(request.number),
        is_prepared: false,
        lost: VecDeque::new(),
        query: Some(query),
        follow,
    };
    Ok(answers(stream::try_unfold(reader, async |mut reader| {
        Ok(reader.next().await?.map(|response| (response, reader)))
    })))
}

#[derive(Debug, Clone, Copy)]
struct TimeRange {
    since: Option<Timestamp>,
    until: Option<Timestamp>,
}

impl TimeRange {
    fn has(self, time: Timestamp) -> bool {
        self.since.is_none_or(|since| time >= since) && self.until.is_none_or(|until| time <= until)
    }

    /// Whether a window may contain flows of the range.
    fn has_window(self, begin: Timestamp) -> bool {
        let end = begin.checked_add(SignedDuration::from_secs(WINDOW_SECONDS)).unwrap_or(Timestamp::MAX);
        self.since.is_none_or(|since| end >= since) && self.until.is_none_or(|until| begin <= until)
    }
}

/// Follow mode of a call, which waits for further settled windows.
struct Follow {
    settled: watch::Receiver<Timestamp>,
    /// Windows before it are read or queued.
    cursor: WindowCursor,
    /// Last reported counters of records never received, and of records evicted or late.
    lost: (u64, u64),
    revoked: Pin<Box<dyn Future<Output = ()> + Send>>,
    _permit: OwnedSemaphorePermit,
}

impl Follow {
    fn new(archive: &Archive, session: Option<Session>) -> Result<Follow, Status> {
        let permit = archive.admit_stream()?;
        let mut settled = archive.aggregate.settled();
        let cursor = WindowCursor::new(*settled.borrow_and_update(), archive.windows().last().copied());
        let lost = lost(&archive.aggregate.figures());
        Ok(Follow { settled, cursor, lost, revoked: Box::pin(revoked(session)), _permit: permit })
    }
}

fn lost(figures: &Figures) -> (u64, u64) {
    (figures.inbox.missed + figures.late, figures.store.left_by_bytes)
}

/// Records of a window, sorted by time.
async fn read(archive: &Archive, window: Timestamp) -> Result<std::vec::IntoIter<ClusterRecord>, Status> {
    let mut records = archive.read(window).await?;
    records.sort_by_key(time);
    Ok(records.into_iter())
}

/// State of a `GetFlows` call: the unread windows.
struct FlowReader {
    archive: Archive,
    filters: Filters,
    range: TimeRange,
    windows: VecDeque<Timestamp>,
    /// Remaining records of the current window.
    records: std::vec::IntoIter<ClusterRecord>,
    /// Matching flows to skip, since only the `last` newest ones are requested.
    skip: u64,
    /// Flows that may still be sent; `None` for all.
    left: Option<u64>,
    /// Requested number of newest flows; `None` for all.
    last: Option<u64>,
    is_prepared: bool,
    lost: VecDeque<GetFlowsResponse>,
    /// Permit held until all past windows are read.
    query: Option<OwnedSemaphorePermit>,
    follow: Option<Follow>,
}

impl FlowReader {
    async fn next(&mut self) -> Result<Option<GetFlowsResponse>, Status> {
        if !self.is_prepared {
            self.prepare().await?;
            self.is_prepared = true;
        }
        loop {
            if let Some(lost) = self.lost.pop_front() {
                return Ok(Some(lost));
            }
            if self.left == Some(0) {
                return Ok(None);
            }
            if let Some(response) = self.next_of_window() {
                self.left = self.left.map(|left| left - 1);
                return Ok(Some(response));
            }
            if let Some(window) = self.windows.pop_front() {
                self.records = read(&self.archive, window).await?;
            } else if !self.wait().await? {
                return Ok(None);
            }
        }
    }

    /// Selects the past windows to read, and counts the flows to skip.
    async fn prepare(&mut self) -> Result<(), Status> {
        let (range, settled) = (self.range, self.follow.as_ref().map(|follow| follow.cursor.settled()));
        let mut windows: VecDeque<Timestamp> = self.archive.windows().into();
        windows.retain(|window| range.has_window(*window) && settled.is_none_or(|settled| *window < settled));
        // A client in follow mode receives past flows only if it requests a range or a number of them.
        if self.follow.is_some() && self.last.is_none() && range.since.is_none() {
            windows.clear();
        }
        if let Some(last) = self.last {
            let mut count = 0;
            while let Some(window) = windows.pop_back() {
                self.windows.push_front(window);
                self.records = read(&self.archive, window).await?;
                while self.next_record().is_some() {
                    count += 1;
                }
                if count >= last {
                    self.skip = count - last;
                    break;
                }
            }
        } else {
            self.windows = windows;
        }
        Ok(())
    }

    fn next_of_window(&mut self) -> Option<GetFlowsResponse> {
        while self.skip > 0 && self.next_record().is_some() {
            self.skip -= 1;
        }
        let flow = convert(&self.next_record()?);
        Some(GetFlowsResponse {
            node_name: flow.node_name.clone(),
            time: flow.time,
            response_type: Some(ResponseType::Flow(Box::new(flow))),
        })
    }

    /// The next record of the current window that the request admits.
    fn next_record(&mut self) -> Option<ClusterRecord> {
        let (range, filters) = (self.range, &self.filters);
        self.records.find(|record| range.has(time(record)) && filters.admits(record))
    }

    /// Waits for further settled windows. False if none will follow.
    async fn wait(&mut self) -> Result<bool, Status> {
        self.query = None;
        let Some(follow) = &mut self.follow else { return Ok(false) };
        if self.range.until.is_some_and(|until| until < follow.cursor.settled()) {
            return Ok(false);
        }
        tokio::select! {
            changed = follow.settled.changed() => if changed.is_err() { return Ok(false) },
            () = &mut follow.revoked => return Err(Status::unauthenticated("the access has been revoked")),
        }
        let settled = *follow.settled.borrow_and_update();
        let (before, now) = (follow.lost, lost(&self.archive.aggregate.figures()));
        follow.lost = now;
        for (source, count) in [
            (LostEventSource::ObserverEventsQueue, now.0.saturating_sub(before.0)),
            (LostEventSource::HubbleRingBuffer, now.1.saturating_sub(before.1)),
        ] {
            if count > 0 {
                let lost = LostEvent { source: source.into(), num_events_lost: count };
                let response_type = Some(ResponseType::LostEvents(lost));
                self.lost.push_back(GetFlowsResponse { response_type, ..GetFlowsResponse::default() });
            }
        }
        let windows = follow.cursor.advance(settled, self.archive.windows()).into_iter();
        self.windows = windows.filter(|window| self.range.has_window(*window)).collect();
        Ok(true)
    }
}
