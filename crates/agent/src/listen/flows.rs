//! The routes of flow records.

use std::net::IpAddr;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use flow::{EndSample, FlowFilter, FlowRecord, Volume};
use jiff::Timestamp;

use super::{Sources, ValidQuery, refuse};
use crate::api::ExplainResponse;
use crate::api::flows::{FlowCoverage, FlowLine, FlowsQuery, SeenFlows};
use crate::api::query::NoParameters;
use crate::flows::{self, FlowFigures, FlowStore, FollowedFlows, traffic};
use crate::reports::written;

const SWITCHED_OFF: &str = "this agent keeps no flow records; start it with --flows on";

/// Streams each line as soon as it is available, at the reader's pace.
pub(super) async fn flows(State(sources): State<Sources>, ValidQuery(query): ValidQuery<FlowsQuery>) -> Response {
    let Some(store) = &sources.flows else { return refuse(StatusCode::NOT_FOUND, SWITCHED_OFF.into()) };
    if !query.follow {
        store.refresh().await;
    }
    let Some(followed) = store.read(query.filter, query.follow, Timestamp::now()) else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many subscribers; try again later".into());
    };
    let lines = futures::stream::unfold(followed, async |mut followed: FollowedFlows| {
        let line = match followed.next().await? {
            flows::FlowItem::Record(record) => FlowLine::Record(Box::new(FlowRecord::clone(&record))),
            flows::FlowItem::Lost(lost) => FlowLine::Lost { lost },
        };
        let text = serde_json::to_string(&line).map(|text| text + "\n");
        Some((text, followed))
    });
    ([(CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response()
}

pub(super) async fn coverage(
    State(sources): State<Sources>,
    ValidQuery(NoParameters {}): ValidQuery<NoParameters>,
) -> Response {
    match &sources.flows {
        Some(store) => Json(coverage_of(&store.figures())).into_response(),
        None => refuse(StatusCode::NOT_FOUND, SWITCHED_OFF.into()),
    }
}

pub(super) fn coverage_of(figures: &FlowFigures) -> FlowCoverage {
    let FlowFigures { ledger, health, kept_since, delivery, .. } = figures;
    let undelivered = delivery.as_ref().and_then(|delivery| delivery.failure.as_ref());
    let undelivered =
        undelivered.map(|why| format!("flow records are kept, and cannot be sent to the aggregator: {why}"));
    FlowCoverage {
        since: health.since.map(written),
        kept_since: kept_since.map(written),
        started: ledger.started,
        ended: ledger.ended,
        live: ledger.live,
        lost: ledger.lost,
        untracked: ledger.untracked,
        lost_events: health.lost_events,
        reliable: health.reliable,
        problems: health.problems.iter().cloned().chain(undelivered).collect(),
    }
}

/// Adds the observed flows to their explanations.
pub(super) fn add_seen(explanations: &mut [ExplainResponse], store: &FlowStore) {
    let now = Timestamp::now();
    let Some(records) = store.read(FlowFilter::default(), false, now) else { return };
    let records: Vec<_> = records.present().collect();
    // An open connection is in the records of every window. After a clock was set back, the newest records may be of a
    // window in the future.
    let newest = records.iter().map(|record| record.window).max();
    let kept_since = store.figures().kept_since.map(written);
    for explained in explanations {
        let explanation = &explained.explanation;
        let (source, destination) = (explanation.source.address, explanation.destination.address);
        let mut seen = SeenFlows {
            kept_since: kept_since.clone(),
            started: 0,
            live: 0,
            sent: None,
            received: None,
            unknown_volume: 0,
            denied_packets: 0,
            complete: true,
            last: None,
        };
        let mut last: Option<&Timestamp> = None;
        for record in &records {
            match listing(record, source, destination, &explanation.traffic) {
                AddressCoverage::Both => {}
                AddressCoverage::Perhaps => {
                    seen.complete = false;
                    continue;
                }
                AddressCoverage::No => continue,
            }
            if Some(record.window) == newest {
                seen.live += record.connections.live;
            }
            seen.started += record.connections.started;
            seen.sent = plus(seen.sent, record.sent);
            seen.received = plus(seen.received, record.received);
            seen.unknown_volume += record.unknown_volume;
            seen.denied_packets += record.denied_packets;
            last = last.max(Some(&record.last));
        }
        seen.last = last.copied().map(written);
        explained.seen = Some(seen);
    }
}

/// Whether a record lists both addresses of a flow.
enum AddressCoverage {
    Both,
    /// It may include the flow: its lists are truncated, or it aggregates many ports.
    Perhaps,
    No,
}

fn listing(record: &FlowRecord, source: IpAddr, destination: IpAddr, asked: &str) -> AddressCoverage {
    let FlowRecord { key, sources, destinations, .. } = record;
    let of_end = |sample: &EndSample, address| match sample.addresses.contains(&address) {
        true => AddressCoverage::Both,
        false if sample.truncated => AddressCoverage::Perhaps,
        false => AddressCoverage::No,
    };
    let ends = match (of_end(sources, source), of_end(destinations, destination)) {
        (AddressCoverage::No, _) | (_, AddressCoverage::No) => return AddressCoverage::No,
        (AddressCoverage::Both, AddressCoverage::Both) => AddressCoverage::Both,
        (_, _) => AddressCoverage::Perhaps,
    };
    let recorded = traffic(key);
    if recorded == asked {
        return ends;
    }
    let is_summed_up = key.port.is_none() && asked.strip_suffix(&*recorded).is_some_and(|port| port.ends_with('/'));
    if is_summed_up { AddressCoverage::Perhaps } else { AddressCoverage::No }
}

fn plus(sum: Option<Volume>, more: Option<Volume>) -> Option<Volume> {
    match (sum, more) {
        (Some(sum), Some(more)) => Some(sum + more),
        (sum, more) => sum.or(more),
    }
}
