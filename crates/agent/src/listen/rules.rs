//! Responds with the committed rules as nft text, compared with the kernel.

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures::stream;
use tokio::sync::Semaphore;

use super::{Sources, ValidQuery, answer_of, refuse};
use crate::api::TableVerdict;
use crate::api::rules::{KERNEL_HEADER, KernelMatch, RulesQuery, head};
use crate::reconciler::questions::{CommittedRules, Question};

/// Maximum number of comparisons per response: the agent may commit while the kernel's rules are read.
const ATTEMPTS: usize = 5;

/// One at a time, since each keeps the kernel's whole tables in memory.
pub(super) fn comparisons() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

pub(super) async fn rules(State(sources): State<Sources>, ValidQuery(query): ValidQuery<RulesQuery>) -> Response {
    match compared(&sources, query).await {
        Ok((CommittedRules { node, notes, snapshot }, verdict)) => {
            let text = std::iter::once(head(&node, &verdict, &notes)).chain(snapshot.into_text_parts());
            let body = Body::from_stream(stream::iter(text.map(Ok::<String, Infallible>)));
            let matched = KernelMatch::of(&verdict).as_str();
            ([(CONTENT_TYPE.as_str(), "text/plain; charset=utf-8"), (KERNEL_HEADER, matched)], body).into_response()
        }
        Err(refusal) => refusal,
    }
}

/// A difference counts if the second comparison with the same rules finds one again: during the first, the agent may
/// have been about to commit, or to repair a foreign change.
async fn compared(sources: &Sources, query: RulesQuery) -> Result<(CommittedRules, TableVerdict), Response> {
    let mut last_different = None;
    for _ in 1..ATTEMPTS {
        let (rules, verdict) = compare_once(sources, query).await?;
        match verdict {
            TableVerdict::Different { .. } | TableVerdict::Missing
                if last_different.as_ref() != Some(&rules.snapshot) =>
            {
                last_different = Some(rules.snapshot);
            }
            verdict => return Ok((rules, verdict)),
        }
    }
    let (rules, verdict) = compare_once(sources, query).await?;
    let verdict = match verdict {
        TableVerdict::Different { .. } | TableVerdict::Missing => {
            TableVerdict::Unknown { reason: format!("they changed during each of {ATTEMPTS} comparisons") }
        }
        verdict => verdict,
    };
    Ok((rules, verdict))
}

async fn compare_once(sources: &Sources, query: RulesQuery) -> Result<(CommittedRules, TableVerdict), Response> {
    let mut rules = answer_of(sources, Question::Rules).await?;
    if let Some(family) = query.family {
        rules.snapshot = rules.snapshot.of_family(family);
    }
    let stopping = || refuse(StatusCode::SERVICE_UNAVAILABLE, "the agent is stopping".into());
    let permit = sources.comparisons.clone().acquire_owned().await.map_err(|_| stopping())?;
    let snapshot = rules.snapshot.clone();
    let compare = move || {
        let verdict = snapshot.compare();
        // Held until the comparison ends, even if the client has disconnected.
        drop(permit);
        verdict
    };
    let verdict = tokio::task::spawn_blocking(compare).await.map_err(|_| stopping())?;
    Ok((rules, verdict))
}
