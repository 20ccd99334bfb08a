//! `GET /v1/flows/hints`: the values of a filter that occur in the records.

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use flow::{HintBuilder, HintField, Hints, InvalidHintField, MOST_HINTS};
use serde::Serialize;

use super::Sources;
use super::query::{QueryParameters, Range, Refusal};

/// Default limit of values in a response.
const USUAL_HINTS: usize = 100;

#[derive(Debug, Serialize)]
struct HintsAnswer {
    #[serde(flatten)]
    range: Range,
    #[serde(flatten)]
    hints: Hints,
}

pub(super) async fn hints(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let mut given = QueryParameters::new(given);
    let field = given.take("field")?.ok_or_else(|| Refusal::bad_request("missing parameter field"))?;
    let field: HintField = field.parse().map_err(|error: InvalidHintField| Refusal::bad_request(error))?;
    let prefix = given.take("prefix")?.unwrap_or_default();
    let limit = given.limit(MOST_HINTS)?.unwrap_or(USUAL_HINTS);
    // Values of one field are alternatives, so values of this field in the query do not restrict the hints.
    given.take_all(field.as_str());
    let filters = given.filters()?;
    let builder = HintBuilder::new(field, filters.clone(), prefix);
    let (range, builder) = sources.sum(filters, builder, HintBuilder::add).await?;
    Ok(Json(HintsAnswer { range, hints: builder.finish(limit) }).into_response())
}
