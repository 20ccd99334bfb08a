//! `POST /v1/what-if`: which observed edges a change of policies would affect; `GET /v1/suggestions`: policies that allow
//! the observed edges. Both only read: the body of a request is compared and forgotten.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use flow::FlowFilters;
use insight::{
    EXCLUDED_NAMESPACES, InvalidChange, NamespaceChoice, ObservedEdge, ObservedEdges, PolicyChanges, PolicyId,
    SuggestionScope, suggest, what_if,
};
use jiff::Timestamp;
use policy::{ClusterState, Direction, Object};
use tokio::time::timeout;

use super::Sources;
use super::query::{QueryParameters, Refusal, blocking};

/// Largest body: many times the policies of a namespace.
const LARGEST_BODY_BYTES: usize = 1 << 20;

/// Longest time in which a client sends the body.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// Name of the body in messages about it.
const BODY: &str = "policies";

pub(super) async fn compare(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
    request: Request,
) -> Result<Response, Refusal> {
    let mut given = QueryParameters::new(given);
    let deleted = given.take_all("delete").iter().map(|name| name.parse()).collect::<Result<Vec<PolicyId>, _>>();
    let deleted = deleted.map_err(|error: InvalidChange| Refusal::bad_request(error))?;
    let since = since(&mut given)?;
    given.end()?;
    // Before the permit: a client that sends slowly must not keep others from their queries.
    let body = timeout(BODY_TIMEOUT, axum::body::to_bytes(request.into_body(), LARGEST_BODY_BYTES)).await;
    let body = body.map_err(|_| Refusal {
        code: StatusCode::REQUEST_TIMEOUT,
        reason: format!("the policies were not received within {} s", BODY_TIMEOUT.as_secs()),
    })?;
    let body = body.map_err(|_| Refusal {
        code: StatusCode::PAYLOAD_TOO_LARGE,
        reason: format!("the policies are larger than {} KiB, or were not received", LARGEST_BODY_BYTES >> 10),
    })?;
    let permit = sources.start_query()?;
    let state = state_of(&sources)?;
    blocking(move || {
        let changes = changes(&body, deleted)?;
        let edges = edges(&sources, since);
        let report = what_if(&state, &changes, &edges);
        drop(permit);
        Ok(Json(report).into_response())
    })
    .await?
}

/// The policies of a body. An object that is not a policy is refused, since nothing would be said about it.
fn changes(body: &[u8], deleted: Vec<PolicyId>) -> Result<PolicyChanges, Refusal> {
    let text = std::str::from_utf8(body).map_err(|_| Refusal::bad_request("the policies are not UTF-8"))?;
    let folder = cluster::read_text::<Object>(BODY, text).map_err(Refusal::bad_request)?;
    if let Some(problem) = folder.problems.first() {
        return Err(Refusal::bad_request(problem));
    }
    if folder.ignored > 0 {
        return Err(Refusal::bad_request("expected NetworkPolicy and ClusterNetworkPolicy only"));
    }
    let objects = folder.objects.into_iter().map(|located| located.object);
    PolicyChanges::new(objects, deleted).map_err(Refusal::bad_request)
}

pub(super) async fn suggestions(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let mut given = QueryParameters::new(given);
    let scope = scope(&mut given)?;
    let since = since(&mut given)?;
    given.end()?;
    let permit = sources.start_query()?;
    let state = state_of(&sources)?;
    blocking(move || {
        let suggestions = suggest(&state, &scope, &edges(&sources, since));
        drop(permit);
        Json(suggestions).into_response()
    })
    .await
}

/// `namespace` or `excludeNamespace`, `direction`, `audit`. Without a namespace: all but those that are excluded by
/// default.
fn scope(given: &mut QueryParameters) -> Result<SuggestionScope, Refusal> {
    let named: BTreeSet<String> = given.take_all("namespace").into_iter().collect();
    let excluded: BTreeSet<String> = given.take_all("excludeNamespace").into_iter().collect();
    let namespaces = match (named.is_empty(), excluded.is_empty()) {
        (false, true) => NamespaceChoice::Named(named),
        (true, false) => NamespaceChoice::AllBut(excluded),
        (true, true) => NamespaceChoice::AllBut(EXCLUDED_NAMESPACES.map(str::to_owned).into()),
        (false, false) => return Err(Refusal::bad_request("expected either namespace or excludeNamespace")),
    };
    let mut directions = BTreeSet::new();
    for word in given.take_all("direction") {
        match Direction::BOTH.into_iter().find(|direction| direction.as_str() == word) {
            Some(direction) => directions.insert(direction),
            None => {
                let word = word.escape_debug();
                return Err(Refusal::bad_request(format!("invalid direction '{word}': expected egress or ingress")));
            }
        };
    }
    if directions.is_empty() {
        directions = Direction::BOTH.into();
    }
    let audit = match given.take("audit")?.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => {
            let other = other.escape_debug();
            return Err(Refusal::bad_request(format!("invalid audit '{other}': expected true or false")));
        }
    };
    Ok(SuggestionScope { namespaces, directions, audit })
}

/// `since`: a duration or a time. Default: everything that is known.
fn since(given: &mut QueryParameters) -> Result<Timestamp, Refusal> {
    let Some(text) = given.take("since")? else { return Ok(Timestamp::MIN) };
    flow::parse_time(&text, Timestamp::now()).ok_or_else(|| {
        let text = text.escape_debug();
        Refusal::bad_request(format!("invalid since '{text}': expected a duration, such as 7d, or a time (RFC 3339)"))
    })
}

fn state_of(sources: &Sources) -> Result<Arc<ClusterState>, Refusal> {
    match &sources.view {
        None => Err(Refusal {
            code: StatusCode::NOT_FOUND,
            reason: "the aggregator does not watch the cluster's policies; start it with --watch-policies on".into(),
        }),
        Some(view) => view.snapshot().ok_or_else(|| {
            Refusal::unavailable("the aggregator has not listed the cluster's objects yet; try again later")
        }),
    }
}

/// The observed edges of the ledger; without one, those of the records in memory.
fn edges(sources: &Sources, since: Timestamp) -> Vec<ObservedEdge> {
    if let Some(observation) = &sources.observation {
        let core = observation.core();
        return core.ledger.edges().filter_map(|edge| edge.observed_since(since)).collect();
    }
    let filters = FlowFilters::default();
    let mut edges = ObservedEdges::default();
    for window in sources.aggregate.windows(&filters) {
        let records = sources.aggregate.read(window, &filters);
        records.iter().filter(|joined| joined.record.last >= since).for_each(|joined| edges.add(joined));
    }
    edges.into_vec()
}
