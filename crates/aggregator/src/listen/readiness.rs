//! `GET /v1/readiness`: whether audited policies can be enforced; `GET /v1/explain`: what the policies say about a flow, in
//! the words of `ringfence explain`.

use axum::Json;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};
use identity::identities_of_flow;
use insight::{NodeGap, PolicyReadiness};
use jiff::{SignedDuration, Timestamp};
use policy::{
    ClusterState, Explanation, FlowEnd, NamedTraffic, PartyName, explain_ambient, explain_domain_names, explain_named,
};
use serde::Serialize;

use super::Sources;
use super::query::{QueryParameters, Refusal, blocking};
use crate::cluster_view::Snapshot;

/// Days without a flow that the policy would deny, unless the query says otherwise.
const USUAL_DAYS: usize = 7;
const MOST_DAYS: usize = 365;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ReadinessAnswer {
    /// False without `--edges on`.
    kept: bool,
    /// False without `--watch-policies on`, and before its initial sync.
    policies_known: bool,
    /// False if the query names a namespace that does not exist: most likely a typing error.
    namespace_known: bool,
    days: usize,
    now: Timestamp,
    /// Nodes that are known, and those that did not report for some of the days.
    nodes: usize,
    unreported: Vec<NodeGap>,
    policies: Vec<PolicyReadiness>,
    problems: Vec<String>,
}

pub(super) async fn readiness(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let mut given = QueryParameters::new(given);
    let days = given.number("days", MOST_DAYS)?.unwrap_or(USUAL_DAYS);
    let namespace = given.take("namespace")?;
    given.end()?;
    let now = Timestamp::now();
    let state = sources.view.as_ref().and_then(|view| view.snapshot());
    let mut answer = ReadinessAnswer {
        kept: sources.observation.is_some(),
        policies_known: state.is_some(),
        namespace_known: namespace
            .as_deref()
            .zip(state.as_deref())
            .is_none_or(|(namespace, state)| exists(state, namespace)),
        days,
        now,
        nodes: 0,
        unreported: Vec::new(),
        policies: Vec::new(),
        problems: sources.observation.iter().flat_map(|observation| observation.problems()).collect(),
    };
    if let Some(observation) = &sources.observation {
        let core = observation.core();
        let required = SignedDuration::from_hours(24 * i64::try_from(days).unwrap_or(i64::MAX / 24));
        answer.nodes = core.presence.len();
        answer.unreported = core.presence.gaps(now.checked_sub(required).unwrap_or(Timestamp::MIN), now);
        if let Some(state) = &state {
            answer.policies = insight::readiness(&core.audits, &core.presence, state, required, now);
        }
    }
    if let Some(namespace) = namespace {
        answer.policies.retain(|readiness| *readiness.policy.namespace == *namespace);
    }
    Ok(Json(answer).into_response())
}

/// Manifests may have no object of a namespace.
fn exists(state: &ClusterState, namespace: &str) -> bool {
    state.namespace(namespace).is_some()
        || state.pods_in(namespace).next().is_some()
        || state.policies().any(|policy| *policy.name.namespace == *namespace)
}

#[derive(Debug, Serialize)]
struct ExplainAnswer {
    /// False without `--watch-policies on`, and before its initial sync.
    known: bool,
    /// The text of `ringfence explain`.
    text: String,
    explanations: Vec<Explanation>,
}

pub(super) async fn explain(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
) -> Result<Response, Refusal> {
    let mut given = QueryParameters::new(given);
    let source: PartyName = given.required("source")?;
    let destination: PartyName = given.required("destination")?;
    let traffic: NamedTraffic = given.required("traffic")?;
    given.end()?;
    let Some(snapshot) = sources.view.as_ref().and_then(|view| view.full_snapshot()) else {
        let answer = ExplainAnswer { known: false, text: String::new(), explanations: Vec::new() };
        return Ok(Json(answer).into_response());
    };
    let permit = sources.start_query()?;
    let answer = blocking(move || {
        let Snapshot { state, identities, declared: _ } = snapshot;
        let explanations = match explain_named(&state, &source, &destination, &traffic) {
            Ok(explanations) => explanations,
            // Pods of records may be gone.
            Err(error) => return ExplainAnswer { known: true, text: format!("{error}\n"), explanations: Vec::new() },
        };
        let identity_of = |end: &FlowEnd| Some(identities.scheme()?.of_address(&state, end.address));
        let text = explanations.iter().map(|explanation| {
            let [source, destination] = [&explanation.source, &explanation.destination].map(identity_of);
            let line = identities_of_flow(source.as_ref(), destination.as_ref());
            let line = line.map_or(String::new(), |line| format!("  {line}\n"));
            let (ambient, names) = (explain_ambient(&state, explanation), explain_domain_names(&state, explanation));
            let notes: String = ambient.into_iter().chain(names).map(|note| format!("  note: {note}\n")).collect();
            format!("{explanation}\n{line}{notes}")
        });
        let text = text.collect();
        drop(permit);
        ExplainAnswer { known: true, text, explanations }
    });
    Ok(Json(answer.await?).into_response())
}
