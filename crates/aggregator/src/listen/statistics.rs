//! `GET /v1/statistics`: counters of each policy and rule in a time range.

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use flow::{Statistics, StatisticsBuilder};
use serde::Serialize;

use super::Sources;
use super::query::{QueryParameters, Range, Refusal};

#[derive(Debug, Serialize)]
struct StatisticsAnswer {
    #[serde(flatten)]
    range: Range,
    #[serde(flatten)]
    statistics: Statistics,
}

pub(super) async fn statistics(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let filters = QueryParameters::new(given).filters()?;
    let (range, builder) = sources.sum(filters, StatisticsBuilder::new(), StatisticsBuilder::add).await?;
    Ok(Json(StatisticsAnswer { range, statistics: builder.finish() }).into_response())
}
