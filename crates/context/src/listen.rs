//! Routes of the provider's port: the three resources of each feed, health, status and metrics.

mod lookup;
mod stream;

use std::sync::Arc;
use std::time::{Duration, Instant};

use access::{PortSecurity, Session};
use axum::body::Body;
use axum::extract::{Extension, Path, Query, State};
use axum::http::header::{ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::ListenerExt;
use axum::{Json, Router};
use feed::Position;
use futures::StreamExt;
use listener::{ListenerLimits, Protocols, scrape_response};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::channel::{Baseline, Channel, EncodedForm, FeedForm, Unencodable, UnknownForm};
use crate::frame::ContentCoding;
use crate::history::{Clock, HistoryUsage, SharedHistory};
use crate::metrics::{FeedFigures, Metrics};
use crate::ranges::RangeRecords;
use crate::remote;
use crate::status::{HistoryReport, ProviderStatus, PublishedBaseline};

/// Time without an acknowledgement after which the kernel closes the connection (tcp(7), TCP_USER_TIMEOUT), whether the
/// peer is gone or reads nothing.
const UNREAD_FOR: Duration = Duration::from_secs(30);

/// A served feed.
#[derive(Clone)]
pub(crate) struct ServedFeed {
    pub(crate) channel: Arc<Channel>,
    pub(crate) figures: FeedFigures,
}

/// Shared state of the routes.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) status: watch::Receiver<Arc<ProviderStatus>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) feeds: Arc<[ServedFeed]>,
    /// `None` if no history is kept.
    pub(crate) history: Option<SharedHistory>,
    pub(crate) ranges: Arc<RangeRecords>,
    /// `None` if no other clusters are watched.
    pub(crate) remote: Option<watch::Receiver<Arc<remote::RemoteReport>>>,
    pub(crate) security: PortSecurity,
}

impl Sources {
    fn remote(&self) -> Option<Arc<remote::RemoteReport>> {
        self.remote.as_ref().map(|reports| reports.borrow().clone())
    }

    fn history_usage(&self, now: Instant) -> Option<HistoryUsage> {
        self.history.as_ref().and_then(|history| history.lock().usage(now))
    }

    fn feed(&self, name: &str) -> Result<&ServedFeed, Refusal> {
        let known = |served: &&ServedFeed| served.channel.name == name;
        self.feeds.iter().find(known).ok_or_else(|| refuse(StatusCode::NOT_FOUND, "feed not found"))
    }
}

/// File descriptors for everything except subscribers: watches of clusters, relays, stores, state files.
const OTHER_FILES: u64 = 256;

/// Connection limit: subscribers are the agents and consumers of a cluster, of which there are thousands.
const MOST_CONNECTIONS: u64 = 16_384;

/// Minimum of connections; a limit of open files that leaves fewer is a configuration error, which shows at once.
const FEWEST_CONNECTIONS: u64 = 16;

/// Connections have no maximum age, since a stream of deltas has no end. An idle connection is closed by the timeout of
/// the request head, and one whose peer does not read by [`UNREAD_FOR`].
fn limits(file_limit: Option<u64>) -> ListenerLimits {
    let connections = file_limit.map_or(MOST_CONNECTIONS, |limit| limit.saturating_sub(OTHER_FILES));
    let connections = connections.clamp(FEWEST_CONNECTIONS, MOST_CONNECTIONS);
    ListenerLimits {
        connections: usize::try_from(connections).unwrap_or(usize::MAX),
        request_head: Duration::from_secs(10),
        lifetime: None,
        protocols: Protocols::Http1,
    }
}

/// `file_limit` is the limit of open files; `None` if there is none.
pub(crate) async fn serve(
    listener: TcpListener,
    sources: Sources,
    file_limit: Option<u64>,
) -> std::convert::Infallible {
    let metrics = sources.metrics.clone();
    let listener = listener.tap_io(|stream| {
        let set = stream
            .set_nodelay(true)
            .and_then(|()| Ok(rustix::net::sockopt::set_tcp_user_timeout(&*stream, UNREAD_FOR.as_millis() as u32)?));
        if let Err(error) = set {
            tracing::debug!("cannot set the socket options of a connection: {error}");
        }
    });
    let security = sources.security.clone();
    security.serve(listener, routes(sources), limits(file_limit), move || metrics.refuse_connection()).await
}

fn routes(sources: Sources) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/{feed}/version", get(version))
        .route("/{feed}/download", get(download))
        .route("/{feed}/deltas", get(deltas))
        .route("/{feed}/lookup", get(lookup::lookup))
        .fallback(async || refuse(StatusCode::NOT_FOUND, "resource not found"))
        .method_not_allowed_fallback(async || {
            refuse(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: only GET is supported")
        })
        .layer(from_fn_with_state(sources.security.guard.clone(), access::check))
        .with_state(sources)
}

async fn readyz(State(sources): State<Sources>) -> Response {
    match sources.status.borrow().unready() {
        None => "ok\n".into_response(),
        Some(reason) => refuse(StatusCode::SERVICE_UNAVAILABLE, reason).into_response(),
    }
}

async fn metrics(State(sources): State<Sources>) -> Response {
    let status = sources.status.borrow().clone();
    sources.security.set_figures();
    let feeds: Vec<FeedFigures> = sources.feeds.iter().map(|served| served.figures.clone()).collect();
    sources.metrics.set_history(sources.history_usage(Instant::now()), Clock::now());
    scrape_response(sources.metrics.text(&status, &feeds, sources.remote().as_deref(), Instant::now()))
}

async fn status(State(sources): State<Sources>) -> Response {
    let status = sources.status.borrow().clone();
    let published = |baseline: Arc<Baseline>| PublishedBaseline {
        of_version: baseline.version.clone(),
        position: baseline.position,
        count: baseline.count,
    };
    let feeds = sources.feeds.iter().map(|served| (&served.figures, served.channel.baseline().map(published)));
    let history = sources.history_usage(Instant::now()).map(|usage| HistoryReport::of(usage, Clock::now()));
    Json(status.report(feeds, sources.remote(), history, sources.security.report(), Instant::now())).into_response()
}

/// Position, version and hash of the representation that `download` would send.
async fn version(
    State(sources): State<Sources>,
    Path(feed): Path<String>,
    Query(wanted): Query<BaselineQuery>,
) -> Result<Response, Refusal> {
    let (served, baseline) = published(&sources, &feed)?;
    let encoded = encoded(served, &baseline, form(wanted.form.as_deref())?).await?;
    Ok(Json(encoded.head.clone()).into_response())
}

#[derive(Debug, Default, Deserialize)]
struct BaselineQuery {
    /// Name of a part that is published with the baseline.
    part: Option<String>,
    /// Form of the feed; the default one if absent.
    form: Option<String>,
}

/// # Errors
/// If there is no such form.
fn form(name: Option<&str>) -> Result<FeedForm, Refusal> {
    name.map_or(Ok(FeedForm::default()), str::parse).map_err(unknown_form)
}

fn unknown_form(error: UnknownForm) -> Refusal {
    refuse(StatusCode::BAD_REQUEST, error.to_string())
}

async fn encoded(served: &ServedFeed, baseline: &Baseline, form: FeedForm) -> Result<Arc<EncodedForm>, Refusal> {
    let encoded = baseline.encoded_form(form).await.ok_or_else(|| unknown_form(UnknownForm))?.map_err(broken)?;
    if form == FeedForm::Whole {
        served.figures.encoded(encoded.bytes.len());
    }
    Ok(encoded)
}

async fn download(
    State(sources): State<Sources>,
    Path(feed): Path<String>,
    Query(wanted): Query<BaselineQuery>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (served, baseline) = published(&sources, &feed)?;
    let none = || refuse(StatusCode::NOT_FOUND, "part of the feed not found");
    let encoded = match (&wanted.part, form(wanted.form.as_deref())?) {
        (None, form) => encoded(served, &baseline, form).await?,
        (Some(_), FeedForm::Numbers) => {
            return Err(refuse(StatusCode::BAD_REQUEST, "part and form are mutually exclusive"));
        }
        (Some(name), FeedForm::Whole) => match baseline.parts().any(|(what, _)| what == name.as_str()) {
            true => baseline.encoded_part(name).await.ok_or_else(none)?.map_err(broken)?,
            false => return Err(none()),
        },
    };
    // A part has the position and version of the baseline, and its own hash.
    let head = &encoded.head;
    let mut answer = HeaderMap::new();
    let header = |text: String| {
        HeaderValue::try_from(text).map_err(|e| refuse(StatusCode::INTERNAL_SERVER_ERROR, e.to_string()))
    };
    for (name, value) in head.headers() {
        answer.insert(name, header(value)?);
    }
    // The version covers only the first part of a baseline.
    let etag = if wanted.part.is_none() { head.etag() } else { format!("W/\"{}\"", head.sha256) };
    answer.insert(ETAG, header(etag.clone())?);
    answer.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    answer.insert(VARY, HeaderValue::from_static("accept-encoding"));
    if names(&headers, IF_NONE_MATCH.as_str(), &etag) {
        return Ok((StatusCode::NOT_MODIFIED, answer).into_response());
    }
    answer.insert(CONTENT_TYPE, HeaderValue::from_static(encoded.media_type));
    let bytes = if accepts_gzip(&headers) {
        answer.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        encoded.compressed().await.map_err(broken)?
    } else {
        encoded.bytes.clone()
    };
    Ok((answer, Body::from(bytes)).into_response())
}

#[derive(Debug, Default, Deserialize)]
struct Subscription {
    from: Option<String>,
    form: Option<String>,
}

async fn deltas(
    State(sources): State<Sources>,
    Path(feed): Path<String>,
    Query(query): Query<Subscription>,
    session: Option<Extension<Session>>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (served, _) = published(&sources, &feed)?;
    let header = headers.get("last-event-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let from: Option<Position> = match header.or(query.from).filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => {
            Some(text.parse().map_err(|e: feed::PositionError| refuse(StatusCode::BAD_REQUEST, e.to_string()))?)
        }
    };
    let form = form(query.form.as_deref())?;
    let coding = if accepts_gzip(&headers) { ContentCoding::Gzip } else { ContentCoding::Plain };
    let stream = stream::subscribe(served, form, from, coding).map_err(unknown_form)?;
    let body = match session {
        Some(Extension(session)) => Body::from_stream(stream.take_until(Box::pin(session.revoked()))),
        None => Body::from_stream(stream),
    };
    let mut answer =
        ([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store"), (VARY, "accept-encoding")], body)
            .into_response();
    if coding == ContentCoding::Gzip {
        answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    Ok(answer)
}

/// The feed and its baseline.
fn published<'a>(sources: &'a Sources, name: &str) -> Result<(&'a ServedFeed, Arc<Baseline>), Refusal> {
    let served = sources.feed(name)?;
    let nothing = || "nothing published yet: initial sync not complete".to_owned();
    let unready = || match name {
        // The feed of other clusters does not depend on the state of this one.
        remote::FEED => nothing(),
        _ => sources.status.borrow().unready().unwrap_or_else(nothing),
    };
    let baseline = served.channel.baseline().ok_or_else(|| refuse(StatusCode::SERVICE_UNAVAILABLE, unready()))?;
    Ok((served, baseline))
}

fn broken(error: Unencodable) -> Refusal {
    refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// A refused request, with the reason.
struct Refusal {
    code: StatusCode,
    reason: String,
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.code, self.reason + "\n").into_response()
    }
}

fn refuse(code: StatusCode, reason: impl Into<String>) -> Refusal {
    Refusal { code, reason: reason.into() }
}

fn listed<'a>(headers: &'a HeaderMap, name: &'a str) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn names(headers: &HeaderMap, name: &str, etag: &str) -> bool {
    let opaque = |tag: &str| tag.strip_prefix("W/").unwrap_or(tag).to_owned();
    listed(headers, name).any(|tag| tag == "*" || opaque(tag) == opaque(etag))
}

/// Negotiation between gzip and identity (RFC 9110, 12.5.3). The compression layer of tower-http compresses each response
/// for itself; here a baseline and a delta are compressed once, for all subscribers.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    listed(headers, ACCEPT_ENCODING.as_str()).any(|coding| {
        let (name, weight) = coding.split_once(';').map_or((coding, ""), |(name, weight)| (name.trim(), weight.trim()));
        let refused = weight.strip_prefix("q=").and_then(|q| q.parse::<f32>().ok()).is_some_and(|q| q <= 0.0);
        (name.eq_ignore_ascii_case("gzip") || name == "*") && !refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_other_work() {
        for (file_limit, connections) in [(Some(1024), 768), (Some(1 << 20), 16_384), (Some(100), 16), (None, 16_384)] {
            assert_eq!(limits(file_limit).connections, connections, "{file_limit:?}");
        }
    }

    fn headers(name: &'static str, value: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(axum::http::HeaderName::from_static(name), HeaderValue::from_static(value))])
    }

    #[test]
    fn accept_encoding_header_decides_gzip() {
        for (value, takes) in
            [("gzip", true), ("br, GZIP;q=0.5", true), ("*", true), ("gzip;q=0", false), ("br", false)]
        {
            assert_eq!(accepts_gzip(&headers("accept-encoding", value)), takes, "{value}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn if_none_match_recognises_every_etag_form() {
        for (value, known) in [("W/\"id-1\"", true), ("\"x\", \"id-1\"", true), ("*", true), ("\"id-2\"", false)] {
            assert_eq!(names(&headers("if-none-match", value), "if-none-match", "W/\"id-1\""), known, "{value}");
        }
    }
}
