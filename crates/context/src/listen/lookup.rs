//! `/identity/lookup`: the record of an address at a moment.

use std::net::IpAddr;
use std::time::Instant;

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::http::header::CACHE_CONTROL;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::{Refusal, Sources, published, refuse};
use crate::history::{Clock, History, HistoryGap, HistoryLimit, LookupAnswer, PastTime, PastTimeError};
use crate::identity::{self, RecordFields};
use crate::ranges::RangeRecords;

const USAGE: &str = "expected /identity/lookup?ip=ADDRESS&at=TIME";

/// Query parameters of a lookup.
#[derive(Debug, Default, Deserialize)]
pub(super) struct LookupQuery {
    ip: Option<String>,
    /// Default: now.
    at: Option<String>,
}

pub(super) async fn lookup(
    State(sources): State<Sources>,
    Path(feed): Path<String>,
    Query(query): Query<LookupQuery>,
) -> Result<Response, Refusal> {
    if feed != identity::FEED {
        return Err(refuse(StatusCode::NOT_FOUND, format!("resource not found: {USAGE}")));
    }
    published(&sources, &feed)?;
    let disabled = || refuse(StatusCode::NOT_FOUND, "this provider keeps no history (--history off)");
    let history = sources.history.as_ref().ok_or_else(disabled)?;
    let bad = |reason: String| refuse(StatusCode::BAD_REQUEST, reason);
    let ip = query.ip.ok_or_else(|| bad(format!("missing parameter ip: {USAGE}")))?;
    let ip: IpAddr = ip.parse().map_err(|_| bad(format!("invalid parameter ip: {USAGE}")))?;
    let time = query.at.map(|text| text.parse()).transpose().map_err(|e: PastTimeError| bad(e.to_string()))?;
    let answer = answer(&history.lock(), &sources.ranges, ip, time, Clock::now())?;
    Ok(([(CACHE_CONTROL, "no-store")], answer).into_response())
}

fn answer(
    history: &History,
    ranges: &RangeRecords,
    ip: IpAddr,
    time: Option<PastTime>,
    clock: Clock,
) -> Result<Response, Refusal> {
    let now = clock.instant;
    let moment = time.map_or(Some(now), |time| time.instant(clock));
    let found = || {
        let usage = history.usage(now).ok_or(HistoryGap::NotStarted)?;
        // A moment that the monotonic clock cannot represent is before the boot of the machine.
        let moment = moment.ok_or(HistoryGap::TooOld(usage))?;
        Ok((moment, history.at(ip, moment, now)?, usage))
    };
    let text = |moment: Instant| clock.time_of(moment).to_string();
    let (moment, past, usage) = found().map_err(|gap| refusal(gap, clock))?;
    let answer = LookupAnswer {
        ip,
        at: text(moment),
        record: past.record.as_ref().or_else(|| ranges.get(ip)).map(|record| RecordFields::from(&**record)),
        from: past.from.map(text),
        until: past.until.map(text),
        oldest: text(usage.oldest),
        started: text(usage.started),
    };
    Ok(Json(answer).into_response())
}

fn refusal(gap: HistoryGap, clock: Clock) -> Refusal {
    match gap {
        HistoryGap::NotStarted => refuse(StatusCode::SERVICE_UNAVAILABLE, "nothing published yet"),
        HistoryGap::Future => {
            let now = clock.time_of(clock.instant);
            refuse(StatusCode::BAD_REQUEST, format!("the time is in the future: it is {now} here"))
        }
        HistoryGap::TooOld(usage) => {
            let why = match usage.limit {
                HistoryLimit::Start => "when this process started; another replica may know more",
                HistoryLimit::Age => "as older changes are not kept (--history)",
                HistoryLimit::Bytes => "as older changes were evicted (--history-mib)",
            };
            let oldest = clock.time_of(usage.oldest);
            refuse(StatusCode::GONE, format!("the time is too old: the oldest known moment is {oldest}, {why}"))
        }
    }
}
