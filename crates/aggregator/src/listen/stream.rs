//! `GET /v1/flows/stream`: the joined records of each settled window once, as server-sent events.
//!
//! The ID of an event is the position after it, so that a client that reconnects with `Last-Event-ID` receives the
//! following events, each record once. A stream buffers a position and one event, and reads one window at a time.
//! Windows that were evicted before they were read are reported as a gap.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use access::Session;
use axum::body::{Body, Bytes};
use axum::extract::{Extension, Query, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName};
use axum::response::{IntoResponse, Response};
use feed::sse;
use flow::{ClusterRecord, EdgePlace, FlowFilters, WINDOW_SECONDS, sort_by_place};
use futures::stream;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout, timeout_at};

use super::Sources;
use super::page::{InvalidPage, Page};
use super::query::{QueryParameters, Refusal, blocking};
use crate::aggregate::{Aggregate, settled_at, window_of};

/// Limit of open streams: each has two events in memory and joins each window.
pub(super) const MOST_STREAMS: usize = 32;

/// Windows that are joined for streams concurrently, so that processors and memory remain for agents and queries.
pub(super) const JOINS: usize = 2;

/// Records of one event. A larger window is several events.
const EVENT_BYTES: usize = 512 << 10;

/// One event is queued while the previous one is sent.
const QUEUED_EVENTS: usize = 1;

/// Largest lead of a stream's position over the settled watermark: a stream begins with the next window to be settled.
const AHEAD: SignedDuration = SignedDuration::from_secs(2 * WINDOW_SECONDS);

/// A stream whose reader accepts no event for this long is closed. The client may reconnect.
const STALL: Duration = Duration::from_secs(30);

const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

/// Names of events.
const OPEN: &str = "open";
const FLOWS: &str = "flows";
const GAP: &str = "gap";

/// First event: the window with which the stream begins.
#[derive(Debug, Serialize)]
struct OpenData {
    from: Timestamp,
}

/// Event with records of one window. `more` is set on all events of the window except the last.
#[derive(Debug, Serialize)]
struct FlowsData {
    window: Timestamp,
    more: bool,
    records: Vec<ClusterRecord>,
}

/// Event of a gap: windows whose records the stream lacks.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct GapData {
    from: Timestamp,
    until: Timestamp,
    reason: String,
}

pub(super) async fn stream(
    State(sources): State<Sources>,
    Query(given): Query<Vec<(String, String)>>,
    session: Option<Extension<Session>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let filters = QueryParameters::new(given).filters()?;
    if filters.until().is_some() {
        return Err(Refusal::bad_request("a stream has no end: expected no until"));
    }
    let resumed = headers.get(LAST_EVENT_ID).map(|value| read_id(value.to_str().unwrap_or_default())).transpose()?;
    let Ok(permit) = sources.streams.clone().try_acquire_owned() else {
        sources.metrics.refuse_stream();
        return Err(Refusal::unavailable("too many streams are open; try again later"));
    };
    let open = sources.metrics.open_stream();
    let follower = Follower::new(&sources, filters, resumed);
    let (events, queue) = mpsc::channel(QUEUED_EVENTS);
    let metrics = sources.metrics.clone();
    tokio::spawn(async move {
        let revoked = async {
            match session {
                Some(Extension(session)) => session.revoked().await,
                None => std::future::pending().await,
            }
        };
        let output = Output { events: events.clone(), stall: STALL, heartbeat: sse::STILL_HERE_EVERY };
        let ended = tokio::select! {
            ended = follower.run(output) => ended,
            () = revoked => StreamEnd::Revoked,
            () = events.closed() => StreamEnd::Left,
        };
        match ended {
            StreamEnd::Stalled => {
                metrics.cut_stream();
                tracing::info!("a reader of the stream was too slow and was cut off");
            }
            StreamEnd::Failed(reason) => tracing::error!("a stream breaks off: {reason}"),
            StreamEnd::Left | StreamEnd::Revoked => {}
        }
        drop((open, permit));
    });
    let body = stream::unfold(queue, async |mut queue| {
        let event: Bytes = queue.recv().await?;
        Some((Ok::<_, Infallible>(event), queue))
    });
    Ok(([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")], Body::from_stream(body)).into_response())
}

/// Parses the ID of an event: the window that was read to its end, or the place within one.
fn read_id(text: &str) -> Result<Page, Refusal> {
    if let Ok(window) = text.parse::<Timestamp>() {
        return Ok(Page::behind(window_of(window)));
    }
    text.parse().map_err(|error: InvalidPage| Refusal::bad_request(error))
}

/// ID of the event that ends at this position.
fn id(next: Page) -> String {
    match next.after {
        Some(_) => next.to_string(),
        None => {
            let window = SignedDuration::from_secs(WINDOW_SECONDS);
            next.window.checked_sub(window).unwrap_or(Timestamp::MIN).to_string()
        }
    }
}

/// Reason for which a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum StreamEnd {
    /// The reader closed it.
    Left,
    Stalled,
    Revoked,
    Failed(String),
}

/// Channel to the response body of the reader.
struct Output {
    events: mpsc::Sender<Bytes>,
    /// See [`STALL`].
    stall: Duration,
    /// Interval of heartbeats while no event is sent.
    heartbeat: Duration,
}

impl Output {
    async fn send(&self, event: Bytes) -> Result<(), StreamEnd> {
        match timeout(self.stall, self.events.send(event)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(StreamEnd::Left),
            Err(_) => Err(StreamEnd::Stalled),
        }
    }

    async fn send_event(&self, name: &str, id: Option<&str>, data: &impl Serialize) -> Result<(), StreamEnd> {
        let json = serde_json::to_vec(data).map_err(|error| StreamEnd::Failed(error.to_string()))?;
        self.send(sse::event(name, id, &json)).await
    }
}

/// State of one stream: the position of its reader, and how windows are read.
struct Follower {
    aggregate: Arc<Aggregate>,
    joins: Arc<Semaphore>,
    filters: Arc<FlowFilters>,
    next: Page,
    /// Start of the aggregator if the reader resumes at an earlier window; reported as a gap, since records may be
    /// missing.
    restarted: Option<Timestamp>,
}

impl Follower {
    fn new(sources: &Sources, filters: FlowFilters, resumed: Option<Page>) -> Follower {
        let settled = (*sources.aggregate.settled().borrow()).max(settled_at(Timestamp::now()));
        let since = filters.since().map(|since| Page::at(window_of(since.max(Timestamp::UNIX_EPOCH))));
        let next = resumed.or(since).unwrap_or(Page::at(settled));
        let restarted = resumed.filter(|next| next.window < sources.started).map(|_| sources.started);
        let (aggregate, joins) = (sources.aggregate.clone(), sources.joins.clone());
        Follower { aggregate, joins, filters: Arc::new(filters), next, restarted }
    }

    async fn run(mut self, output: Output) -> StreamEnd {
        loop {
            if let Err(ended) = self.stream_windows(&output).await {
                return ended;
            }
        }
    }

    /// Sends all settled windows, then waits for further ones.
    async fn stream_windows(&mut self, output: &Output) -> Result<(), StreamEnd> {
        let mut settled = self.aggregate.settled();
        output.send_event(OPEN, Some(&id(self.next)), &OpenData { from: self.next.window }).await?;
        if let Some(started) = self.restarted.take() {
            let until = window_of(started);
            let reason = format!("the aggregator was started at {started}: records from before may be incomplete");
            output.send_event(GAP, None, &GapData { from: self.next.window, until, reason }).await?;
        }
        let mut heartbeat = Instant::now() + output.heartbeat;
        loop {
            let until = *settled.borrow_and_update();
            self.adjust_to_clock(until, output).await?;
            self.send_windows(until, output).await?;
            match timeout_at(heartbeat, settled.changed()).await {
                // The watermark also passes windows without records, for which no event is sent.
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(StreamEnd::Failed("the aggregator stops".to_owned())),
                Err(_) => {
                    output.send(sse::STILL_HERE).await?;
                    heartbeat = Instant::now() + output.heartbeat;
                }
            }
        }
    }

    /// Moves the position back if the aggregator's clock was set back: otherwise the stream would send no records until
    /// the clock reaches the old position. Reported as a gap, since windows settled too early were sent incomplete.
    async fn adjust_to_clock(&mut self, settled: Timestamp, output: &Output) -> Result<(), StreamEnd> {
        if self.next.window <= settled.saturating_add(AHEAD).unwrap_or(Timestamp::MAX) || self.awaits_since(settled) {
            return Ok(());
        }
        let reason = "the clock of the aggregator was set back: records that arrived while it was ahead were not sent"
            .to_owned();
        let gap = GapData { from: settled, until: self.next.window, reason };
        self.next = Page::at(settled);
        output.send_event(GAP, Some(&id(self.next)), &gap).await
    }

    /// Whether the requested start is in the future.
    fn awaits_since(&self, settled: Timestamp) -> bool {
        self.filters.since().is_some_and(|since| window_of(since) > settled)
    }

    /// Sends all windows that begin before `until`.
    async fn send_windows(&mut self, until: Timestamp, output: &Output) -> Result<(), StreamEnd> {
        while self.next.window < until {
            self.send_gap(output).await?;
            let from = self.next.window;
            let windows = self.aggregate.windows(&self.filters);
            let Some(window) = windows.into_iter().find(|window| *window >= from && *window < until) else {
                self.next = Page { window: self.next.window.max(until), after: None };
                return Ok(());
            };
            if window > self.next.window {
                self.next = Page::at(window);
            }
            let Some((next, data)) = self.read().await? else { continue };
            let json = data.map_err(|error| StreamEnd::Failed(error.to_string()))?;
            output.send(sse::event(FLOWS, Some(&id(next)), &json)).await?;
            self.next = next;
        }
        Ok(())
    }

    /// Reports windows that were evicted before they were read as a gap.
    async fn send_gap(&mut self, output: &Output) -> Result<(), StreamEnd> {
        let kept = self.aggregate.left_before();
        if self.next.window >= kept {
            return Ok(());
        }
        let reason = "these windows left the aggregator's memory before they were read".to_owned();
        let gap = GapData { from: self.next.window, until: kept, reason };
        let next = Page::at(kept);
        output.send_event(GAP, Some(&id(next)), &gap).await?;
        self.next = next;
        Ok(())
    }

    /// The records of the next event, from the position up to [`EVENT_BYTES`] or the end of the window, and the
    /// position after them. `None` if the window was evicted meanwhile.
    async fn read(&self) -> Result<Option<(Page, Result<Vec<u8>, serde_json::Error>)>, StreamEnd> {
        let permit = self.joins.clone().acquire_owned().await.map_err(|error| StreamEnd::Failed(error.to_string()))?;
        let (aggregate, filters, from) = (self.aggregate.clone(), self.filters.clone(), self.next);
        let read = blocking(move || {
            let records = aggregate.read(from.window, &filters);
            drop(permit);
            (aggregate.left_before() <= from.window).then(|| encode(from, records, EVENT_BYTES))
        });
        read.await.map_err(|refusal| StreamEnd::Failed(refusal.reason))
    }
}

/// Encodes the records after the position, in the order of places; returns the position after the last one, too.
fn encode(
    from: Page,
    mut records: Vec<ClusterRecord>,
    most_bytes: usize,
) -> (Page, Result<Vec<u8>, serde_json::Error>) {
    sort_by_place(&mut records);
    let place_of = |joined: &ClusterRecord| EdgePlace::of(&joined.record.key);
    let records = match from.after {
        Some(after) => records.split_off(records.partition_point(|joined| place_of(joined) <= after)),
        None => records,
    };
    let (mut bytes, mut last) = (0, None);
    let mut sent = Vec::new();
    for joined in records {
        let place = place_of(&joined);
        // Records of an edge stay together.
        if bytes > most_bytes && last != Some(place) {
            let data = FlowsData { window: from.window, more: true, records: sent };
            return (Page { window: from.window, after: last }, serde_json::to_vec(&data));
        }
        match serde_json::to_vec(&joined) {
            Ok(text) => bytes += text.len(),
            Err(error) => return (from, Err(error)),
        }
        last = Some(place);
        sent.push(joined);
    }
    let data = FlowsData { window: from.window, more: false, records: sent };
    (Page::behind(from.window), serde_json::to_vec(&data))
}

#[cfg(test)]
mod tests;
