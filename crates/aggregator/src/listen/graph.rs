//! `GET /v1/graph`: edges between workloads, summed over a time range.

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use flow::{Graph, GraphBuilder, MOST_GRAPH_EDGES};
use serde::Serialize;

use super::Sources;
use super::query::{QueryParameters, Range, Refusal};

/// Default limit of edges in a response: more than a page can draw.
const USUAL_EDGES: usize = 2_000;

#[derive(Debug, Serialize)]
struct GraphAnswer {
    #[serde(flatten)]
    range: Range,
    #[serde(flatten)]
    graph: Graph,
}

pub(super) async fn graph(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let mut given = QueryParameters::new(given);
    let limit = given.limit(MOST_GRAPH_EDGES)?.unwrap_or(USUAL_EDGES);
    let (range, builder) = sources.sum(given.filters()?, GraphBuilder::new(), GraphBuilder::add).await?;
    Ok(Json(GraphAnswer { range, graph: builder.finish(limit) }).into_response())
}
