//! The agent's port (health, readiness, metrics) and its socket.

mod flows;
mod rules;

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{FromRequestParts, Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use listener::{ListenerLimits, Protocols, scrape_response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

use crate::api::audit::{AuditQuery, SuggestionQuery};
use crate::api::drops::{Coverage, DropsQuery};
use crate::api::identity::IdentityQuery;
use crate::api::query::NoParameters;
use crate::api::status::AgentStatusReport;
use crate::api::{self, ApiError, ExplainQuery};
use crate::event_loop::Event;
use crate::flows::FlowStore;
use crate::identities::IdentityError;
use crate::metrics::Metrics;
use crate::reconciler::questions::{NoAnswer, Question, Reply};
use crate::reports::{DropStream, DropsReader, coverage};
use crate::status::{AgentStatus, Totals};

/// The heartbeat is due every few seconds; a silence far beyond the largest commit means that the event loop hangs.
const LOOP_HANGS: Duration = Duration::from_secs(120);

/// Limits of the Unix socket, which only root can connect to. Up to 16 connections stream drop events without an end.
pub(crate) const SOCKET_LIMITS: ListenerLimits = ListenerLimits {
    connections: 128,
    request_head: Duration::from_secs(10),
    lifetime: None,
    protocols: Protocols::Http1,
};

/// State shared by the routes.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) status: watch::Receiver<Arc<AgentStatus>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) drops: Arc<DropStream>,
    /// Flow records; `None` where the agent keeps none.
    pub(crate) flows: Option<Arc<FlowStore>>,
    /// Limits concurrent comparisons with the kernel.
    comparisons: Arc<Semaphore>,
}

impl Sources {
    pub(crate) fn new(
        status: watch::Receiver<Arc<AgentStatus>>,
        metrics: Arc<Metrics>,
        events: mpsc::Sender<Event>,
        drops: Arc<DropStream>,
    ) -> Sources {
        Sources { status, metrics, events, drops, flows: None, comparisons: rules::comparisons() }
    }

    pub(crate) fn with_flows(self, flows: Option<Arc<FlowStore>>) -> Sources {
        Sources { flows, ..self }
    }
}

/// Routes of the TCP port. They expose nothing about individual pods.
pub(crate) fn port_routes(sources: Sources) -> Router {
    Router::new()
        .route(api::LIVE, get(healthz))
        .route(api::READY, get(readyz))
        .route("/metrics", get(metrics))
        .with_state(sources)
}

/// Routes of the Unix socket.
pub(crate) fn socket_routes(sources: Sources) -> Router {
    Router::new()
        .route(api::LIVE, get(healthz))
        .route(api::READY, get(readyz))
        .route(api::STATUS, get(status))
        .route(api::EXPLAIN, get(explain))
        .route(api::IDENTITY, get(identity))
        .route(api::VERIFY, get(verify))
        .route(api::RULES, get(rules::rules))
        .route(api::DROPS, get(drops))
        .route(api::COVERAGE, get(covered))
        .route(api::FLOWS, get(flows::flows))
        .route(api::FLOW_COVERAGE, get(flows::coverage))
        .route(api::AUDIT, get(audit))
        .route(api::SUGGESTION, get(suggestion))
        .fallback(|| async { refuse(StatusCode::NOT_FOUND, "not found: this agent has no such path".into()) })
        .method_not_allowed_fallback(|| async {
            refuse(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: only GET is supported".into())
        })
        .with_state(sources)
}

/// Alive as long as the event loop has a recent heartbeat.
async fn healthz(State(sources): State<Sources>) -> Response {
    let last_iteration = sources.status.borrow().last_iteration;
    let refuse = |reason: String| (StatusCode::SERVICE_UNAVAILABLE, reason).into_response();
    match last_iteration.map(|at| at.elapsed()) {
        _ if sources.events.is_closed() => refuse("the agent's event loop has ended\n".into()),
        Some(since) if since > LOOP_HANGS => {
            refuse(format!("the agent's event loop has been blocked for {} s\n", since.as_secs()))
        }
        Some(_) | None => "ok\n".into_response(),
    }
}

async fn readyz(State(sources): State<Sources>) -> Response {
    let status = sources.status.borrow().clone();
    match status.unready() {
        None => status.notes().iter().fold("ok\n".to_owned(), |text, note| text + note + "\n").into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(State(sources): State<Sources>) -> Response {
    let status = sources.status.borrow().clone();
    scrape_response(sources.metrics.text(&status, Instant::now()))
}

async fn status(
    State(sources): State<Sources>,
    ValidQuery(NoParameters {}): ValidQuery<NoParameters>,
) -> Json<AgentStatusReport> {
    let status = sources.status.borrow().clone();
    let now = Instant::now();
    let flows = sources.flows.as_ref().map(|store| flows::coverage_of(&store.figures()));
    Json(status.report(Totals { flows, ..sources.metrics.totals(now) }, now))
}

async fn verify(State(sources): State<Sources>, ValidQuery(NoParameters {}): ValidQuery<NoParameters>) -> Response {
    respond(&sources, Question::Verify).await
}

/// Streams each line as soon as it is available, at the reader's pace.
async fn drops(State(sources): State<Sources>, ValidQuery(query): ValidQuery<DropsQuery>) -> Response {
    let Some(followed) = sources.drops.subscribe(query) else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many subscribers; try again later".into());
    };
    let lines = futures::stream::unfold(followed, async |mut followed: DropsReader| {
        let line = followed.next().await?;
        let text = serde_json::to_string(&line).map(|text| text + "\n");
        Some((text, followed))
    });
    ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

async fn covered(
    State(sources): State<Sources>,
    ValidQuery(NoParameters {}): ValidQuery<NoParameters>,
) -> Json<Coverage> {
    let status = sources.status.borrow().clone();
    Json(coverage(&status, sources.metrics.totals(Instant::now()).drops, &sources.drops))
}

async fn audit(State(sources): State<Sources>, ValidQuery(query): ValidQuery<AuditQuery>) -> Response {
    respond(&sources, |reply| Question::Audit(query, reply)).await
}

async fn suggestion(State(sources): State<Sources>, ValidQuery(query): ValidQuery<SuggestionQuery>) -> Response {
    respond(&sources, |reply| Question::Suggest(query, reply)).await
}

async fn explain(State(sources): State<Sources>, ValidQuery(query): ValidQuery<ExplainQuery>) -> Response {
    match answer_of(&sources, |reply| Question::Explain(query, reply)).await {
        Ok(mut explanations) => {
            if let Some(store) = &sources.flows {
                store.refresh().await;
                flows::add_seen(&mut explanations, store);
            }
            Json(explanations).into_response()
        }
        Err(refusal) => refusal,
    }
}

async fn identity(State(sources): State<Sources>, ValidQuery(query): ValidQuery<IdentityQuery>) -> Response {
    respond(&sources, |reply| Question::Identity(query, reply)).await
}

/// Sends a query to the event loop and responds with its answer as JSON.
async fn respond<T: Serialize>(sources: &Sources, question: impl FnOnce(Reply<T>) -> Question) -> Response {
    match answer_of(sources, question).await {
        Ok(answer) => Json(answer).into_response(),
        Err(refusal) => refusal,
    }
}

/// The event loop's answer; the response of a refusal if there is none.
async fn answer_of<T>(sources: &Sources, question: impl FnOnce(Reply<T>) -> Question) -> Result<T, Response> {
    let (reply, answer) = oneshot::channel();
    let sent = sources.events.send(Event::Question(question(reply))).await;
    match (sent, answer.await) {
        (Ok(()), Ok(Ok(answer))) => Ok(answer),
        (Ok(()), Ok(Err(no_answer))) => {
            let code = match &no_answer {
                NoAnswer::NotListed(_) | NoAnswer::NotCommitted(_) => StatusCode::SERVICE_UNAVAILABLE,
                NoAnswer::Unidentified(IdentityError::UnknownCluster) => StatusCode::SERVICE_UNAVAILABLE,
                NoAnswer::Unexplained(_)
                | NoAnswer::NotKnown(_)
                | NoAnswer::Unidentified(IdentityError::UnknownPod(_)) => StatusCode::NOT_FOUND,
            };
            Err(refuse(code, no_answer.to_string()))
        }
        (Err(_), _) | (_, Err(_)) => Err(refuse(StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping".into())),
    }
}

/// axum's [`Query`], whose refusals are an [`ApiError`].
struct ValidQuery<Q>(Q);

impl<S: Send + Sync, Q: DeserializeOwned> FromRequestParts<S> for ValidQuery<Q> {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<ValidQuery<Q>, Response> {
        let query = Query::try_from_uri(&parts.uri);
        query.map(|Query(query)| ValidQuery(query)).map_err(|refused| {
            // The message of serde for a required field.
            let is_missing = refused.source().is_some_and(|reason| reason.to_string().starts_with("missing field"));
            let code = if is_missing { StatusCode::BAD_REQUEST } else { StatusCode::UNPROCESSABLE_ENTITY };
            refuse(code, refused.body_text())
        })
    }
}

fn refuse(code: StatusCode, error: String) -> Response {
    (code, Json(ApiError { error })).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn healthz_fails_when_event_loop_hangs() {
        let (events, _queue) = mpsc::channel(1);
        let last_iteration = std::time::Instant::now().checked_sub(LOOP_HANGS + Duration::from_secs(1));
        for (last_iteration, expected) in [
            (Some(std::time::Instant::now()), StatusCode::OK),
            (last_iteration, StatusCode::SERVICE_UNAVAILABLE),
            (None, StatusCode::OK),
        ] {
            let (_statuses, status) =
                watch::channel(Arc::new(AgentStatus { last_iteration, ..AgentStatus::default() }));
            let (metrics, drops) = (Arc::new(Metrics::new()), Arc::new(DropStream::new()));
            let sources = Sources::new(status, metrics, events.clone(), drops);
            assert_eq!(healthz(State(sources)).await.status(), expected, "{last_iteration:?}");
        }
    }
}
