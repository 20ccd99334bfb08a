//! Routes of the aggregator's port: the agents' gRPC call, queries, health, status and metrics.

mod comparison;
mod edges;
mod flows;
mod graph;
mod hints;
mod page;
mod pushes;
mod query;
mod readiness;
mod statistics;
mod stream;

use std::sync::Arc;
use std::time::Duration;

use access::{PortSecurity, Principal};
use axum::body::{Body, to_bytes};
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use jiff::Timestamp;
use listener::{ListenerLimits, Protocols, scrape_response};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use self::pushes::Pushes;
use crate::aggregate::Aggregate;
use crate::cluster_view::ClusterView;
use crate::export::Exports;
use crate::metrics::Metrics;
use crate::observation::Observation;
use crate::report::{CoverageReport, StatusReport};

/// Limit of concurrent queries: each holds the joined records of one window in memory.
const QUERIES: usize = 8;

/// Limit of connections: one per agent of the largest clusters.
const MOST_CONNECTIONS: u64 = 8_192;

/// File descriptors that are reserved for everything but connections.
const OTHER_FILES: u64 = 64;
const FEWEST_CONNECTIONS: u64 = 16;

/// Longest lifetime of a connection: enough for the response to a query. Agents reconnect.
const LIFETIME: Duration = Duration::from_secs(600);

const REQUEST_HEAD: Duration = Duration::from_secs(10);

/// Timeout of waiting for a permit and receiving a batch. Agents have the same timeout.
const PUSH_TIMEOUT: Duration = Duration::from_secs(30);

/// Longest error message of a route that is converted to a gRPC status.
const ERROR_BYTES: usize = 4 << 10;

/// Shared state of the routes.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) aggregate: Arc<Aggregate>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) exports: Arc<Exports>,
    pub(crate) security: PortSecurity,
    pub(crate) started: Timestamp,
    /// `None` without `--edges on`.
    pub(crate) observation: Option<Arc<Observation>>,
    /// `None` without `--watch-policies on`.
    pub(crate) view: Option<Arc<ClusterView>>,
    queries: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    pushes: Pushes,
    /// Limits the windows that are joined for streams concurrently.
    joins: Arc<Semaphore>,
}

impl Sources {
    pub(crate) fn new(
        aggregate: Arc<Aggregate>,
        metrics: Arc<Metrics>,
        exports: Arc<Exports>,
        security: PortSecurity,
        started: Timestamp,
    ) -> Sources {
        Sources {
            aggregate,
            metrics,
            exports,
            security,
            started,
            observation: None,
            view: None,
            queries: Arc::new(Semaphore::new(QUERIES)),
            streams: Arc::new(Semaphore::new(stream::MOST_STREAMS)),
            pushes: Pushes::new(),
            joins: Arc::new(Semaphore::new(stream::JOINS)),
        }
    }

    /// Adds the observed edges and the evidence of audits, and the view of the cluster.
    #[must_use]
    pub(crate) fn with_observation(
        self,
        observation: Option<Arc<Observation>>,
        view: Option<Arc<ClusterView>>,
    ) -> Sources {
        Sources { observation, view, ..self }
    }

    fn coverage(&self) -> CoverageReport {
        let mut report =
            CoverageReport::new(&self.aggregate.figures(), self.started, Timestamp::now()).with_exports(&self.exports);
        report.problems.extend(self.observation.iter().flat_map(|observation| observation.problems()));
        let of_view = self.view.iter().flat_map(|view| view.problems());
        report.problems.extend(of_view.map(|problem| problem.to_string()));
        report
    }
}

/// Serves the port and never returns. `file_limit` is the process's limit of open files; `None` if it has none.
pub(crate) async fn serve(
    listener: TcpListener,
    sources: Sources,
    file_limit: Option<u64>,
) -> std::convert::Infallible {
    let connections = file_limit.map_or(MOST_CONNECTIONS, |limit| limit.saturating_sub(OTHER_FILES));
    let connections = connections.clamp(FEWEST_CONNECTIONS, MOST_CONNECTIONS);
    let limits = ListenerLimits {
        connections: usize::try_from(connections).unwrap_or(usize::MAX),
        request_head: REQUEST_HEAD,
        lifetime: Some(LIFETIME),
        protocols: Protocols::Http1AndHttp2,
    };
    let (security, metrics) = (sources.security.clone(), sources.metrics.clone());
    serve_protected(listener, routes(sources), limits, security, metrics).await
}

/// Serves routes with the certificate of the port, if it has one, and never returns.
pub(crate) async fn serve_protected(
    listener: TcpListener,
    routes: Router,
    limits: ListenerLimits,
    security: PortSecurity,
    metrics: Arc<Metrics>,
) -> std::convert::Infallible {
    security.serve(listener, routes, limits, move || metrics.refuse_connection()).await
}

fn routes(sources: Sources) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(async || "ok\n"))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .merge(queries())
        .route(delivery::PATH, post(push))
        .fallback(async || refuse(StatusCode::NOT_FOUND, "resource not found"))
        .method_not_allowed_fallback(async || refuse(StatusCode::METHOD_NOT_ALLOWED, "method not allowed"))
        .layer(from_fn_with_state(sources.security.guard.clone(), access::check))
        .layer(from_fn(as_grpc_status))
        .with_state(sources)
}

/// Routes of queries, on this port and on that of the page.
pub(crate) fn queries() -> Router<Sources> {
    Router::new()
        .route("/v1/flows", get(flows::flows))
        .route("/v1/flows/coverage", get(coverage))
        .route("/v1/flows/hints", get(hints::hints))
        .route("/v1/flows/stream", get(stream::stream))
        .route("/v1/graph", get(graph::graph))
        .route("/v1/statistics", get(statistics::statistics))
        .route("/v1/edges", get(edges::edges))
        .route("/v1/edges/unseen", get(edges::unseen))
        .route("/v1/edges/first-seen", get(edges::first_seen))
        .route("/v1/readiness", get(readiness::readiness))
        .route("/v1/explain", get(readiness::explain))
        .route("/v1/suggestions", get(comparison::suggestions))
        .route("/v1/what-if", post(comparison::compare))
}

/// Converts the error response of a gRPC call that was refused before it was decoded to a gRPC status, so that the
/// agent logs the reason.
pub(crate) async fn as_grpc_status(request: Request, next: Next) -> Response {
    let is_grpc =
        request.headers().get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"));
    let response = next.run(request).await;
    let code = match response.status() {
        _ if !is_grpc => return response,
        StatusCode::OK => return response,
        StatusCode::UNAUTHORIZED => tonic::Code::Unauthenticated,
        StatusCode::FORBIDDEN => tonic::Code::PermissionDenied,
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => tonic::Code::Unimplemented,
        _ => tonic::Code::Unavailable,
    };
    let message = match to_bytes(response.into_body(), ERROR_BYTES).await {
        Ok(bytes) => String::from_utf8_lossy(&bytes).trim_end().to_owned(),
        Err(error) => error.to_string(),
    };
    tonic::Status::new(code, message).into_http::<Body>()
}

async fn push(State(sources): State<Sources>, sender: Option<Extension<Arc<Principal>>>, request: Request) -> Response {
    let sender = sender.map(|Extension(sender)| sender);
    let (aggregate, late) = (sources.aggregate.clone(), sources.aggregate);
    let received = tokio::time::timeout(PUSH_TIMEOUT, async {
        let _permit = sources.pushes.acquire(sender.as_deref()).await;
        delivery::receive(request, |batch| aggregate.receive(&batch, sender.as_deref(), Timestamp::now())).await
    });
    match received.await {
        Ok(response) => response.map(Body::new),
        Err(_) => {
            late.refuse_batch();
            let why = format!("the batch was not received within {} s; try again later", PUSH_TIMEOUT.as_secs());
            tonic::Status::unavailable(why).into_http::<Body>()
        }
    }
}

async fn coverage(State(sources): State<Sources>) -> Response {
    Json(sources.coverage()).into_response()
}

async fn status(State(sources): State<Sources>) -> Response {
    Json(StatusReport {
        version: env!("CARGO_PKG_VERSION"),
        memory_bytes: sources.aggregate.figures().bytes,
        port: sources.security.report(),
        coverage: sources.coverage(),
    })
    .into_response()
}

async fn metrics(State(sources): State<Sources>) -> Response {
    sources.security.set_figures();
    scrape_response(sources.metrics.text())
}

/// Body of an error response, in the form of the agent's socket.
#[derive(Serialize)]
struct ApiError {
    error: String,
}

pub(crate) fn refuse(code: StatusCode, reason: impl Into<String>) -> Response {
    (code, Json(ApiError { error: reason.into() })).into_response()
}
