//! Requests and answers.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request as HttpRequest, State as Extract};
use axum::http::{Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use futures::stream::{self, Stream, StreamExt};
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};

use super::selection::Selection;
use super::store::{Cursor, Gone, Listing, Page, What, event, with_type};
use super::{
    Faults, Kind, Request, SharedState, State, StreamFailure, Verb, credentials, discovery, leases, network_sets,
    token_reviews,
};

type Parameters = BTreeMap<String, String>;

/// Serves until the other end of `stopped` is dropped.
pub(super) async fn serve(listener: TcpListener, shared: Arc<SharedState>, stopped: oneshot::Receiver<()>) {
    let mut routes = Router::new();
    for kind in Kind::ALL {
        let prefix = if kind.api_version() == "v1" { "/api" } else { "/apis" };
        let versions = || kind.alternative_versions().iter().copied().chain([kind.api_version()]);
        let answer = move |Extract(shared): Extract<Arc<SharedState>>, uri: Uri, Query(query): Query<Parameters>| {
            answer(shared, kind, uri, query)
        };
        for version in versions() {
            routes = routes.route(&format!("{prefix}/{version}/{}", kind.plural()), get(answer));
        }
        let below = format!("{prefix}/{}/namespaces/{{namespace}}/{}", kind.api_version(), kind.plural());
        if kind == Kind::EndpointSlice {
            routes = routes.route(&below, get(answer));
        }
    }
    routes = credentials::routes(network_sets::routes(routes))
        .route("/apis", get(discovery::groups))
        .route("/apis/{group}/{version}", get(discovery::resources))
        .route("/apis/authentication.k8s.io/v1/tokenreviews", post(token_reviews::create))
        .route("/api/v1/namespaces/{namespace}/pods/{name}", get(pod))
        .route("/api/v1/namespaces/{name}", get(namespace))
        .route("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", post(leases::create))
        .route(
            "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}",
            get(leases::get).put(leases::replace),
        )
        .layer(from_fn_with_state(shared.clone(), check_token))
        .layer(from_fn_with_state(shared.clone(), count_write));
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener of ours");
    // TCP_NODELAY, as servers written in Go set it: every write is sent at once.
    let listener = listener.tap_io(|stream| stream.set_nodelay(true).expect("a socket of ours"));
    tokio::select! {
        served = async { axum::serve(listener, routes.with_state(shared)).await } => served.expect("it serves"),
        // Sent or dropped, it means the same.
        _ = stopped => {}
    }
}

/// Counts every write request, whether its route is known or not.
async fn count_write(Extract(shared): Extract<Arc<SharedState>>, request: HttpRequest, next: Next) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let resource = resource_of(request.uri().path()).to_owned();
        shared.change(|state| *state.writes.entry(resource).or_default() += 1);
    }
    next.run(request).await
}

/// Refuses requests without the token, if there is one.
async fn check_token(Extract(shared): Extract<Arc<SharedState>>, request: HttpRequest, next: Next) -> Response {
    let wanted = shared.lock().faults.token.clone();
    let shown = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match wanted {
        Some(token) if shown != Some(&format!("Bearer {token}")) => {
            shared.change(|state| state.turned_away += 1);
            status(401, "Unauthorized", "Unauthorized")
        }
        Some(_) | None => next.run(request).await,
    }
}

/// `leases` of `/apis/coordination.k8s.io/v1/namespaces/a/leases/b`.
fn resource_of(path: &str) -> &str {
    let below_version = |prefix: &str, segments: usize| path.strip_prefix(prefix).map(|rest| (rest, segments));
    let Some((rest, before)) = below_version("/apis/", 2).or_else(|| below_version("/api/", 1)) else { return path };
    match rest.split('/').skip(before).collect::<Vec<_>>()[..] {
        ["namespaces", _, resource, ..] => resource,
        [resource, ..] => resource,
        [] => path,
    }
}

/// `a` of `/apis/discovery.k8s.io/v1/namespaces/a/endpointslices`; `None` for a path of all namespaces.
fn namespace_of(path: &str) -> Option<&str> {
    let (_, below) = path.split_once("/namespaces/")?;
    Some(below.split_once('/')?.0)
}

async fn answer(shared: Arc<SharedState>, kind: Kind, uri: Uri, query: Parameters) -> Response {
    let verb = if query.get("watch").is_some_and(|v| v == "true") { Verb::Watch } else { Verb::List };
    let request = Request { verb, kind, path: uri.path().to_owned(), query: query.clone() };
    let (faults, cuts) = match record_request(&shared, request).await {
        Ok(taken) => taken,
        Err(refusal) => return refusal,
    };
    let selection = Selection::of(namespace_of(uri.path()), &query);
    let body = match verb {
        Verb::List => match list(&shared, kind, &selection, &query) {
            Ok(list) => stream::iter([Ok(Bytes::from(list))]).boxed(),
            Err(Gone) => return status(410, "Expired", "The provided continue parameter is too old"),
        },
        // Routed to `pod`.
        Verb::Get | Verb::Create | Verb::Update | Verb::Delete => {
            return status(405, "MethodNotAllowed", "get asks for one object");
        }
        Verb::Watch => match watch(shared.clone(), kind, selection, &query, cuts) {
            Ok(stream) => stream.boxed(),
            Err(refusal) => return refusal,
        },
    };
    let body = match faults.pieces {
        None => Body::from_stream(body),
        Some(size) => Body::from_stream(body.flat_map(move |part| in_pieces(part, size))),
    };
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Records the request, and applies the faults up to the response.
async fn record_request(shared: &SharedState, request: Request) -> Result<(Faults, u64), Response> {
    let asked = (request.kind, request.verb);
    let is_served = shared.change(|state| {
        let installed = state.installed.get(&asked.0);
        let is_served = installed.is_some_and(|version| request.path.contains(&format!("/{version}/")));
        state.requests.push(request);
        !asked.0.is_custom() || is_served
    });
    let (faults, cuts) = suffer(shared).await;
    if !is_served {
        return Err((StatusCode::NOT_FOUND, "404 page not found\n").into_response());
    }
    match faults.refusals.get(&asked) {
        Some(code) => Err(status(*code, "Refused", &format!("the fake says {code}"))),
        None => Ok((faults, cuts)),
    }
}

/// Delays or withholds the response if a fault says so; returns the faults, and the number of cuts before.
pub(super) async fn suffer(shared: &SharedState) -> (Faults, u64) {
    let (faults, cuts) = {
        let state = shared.lock();
        (state.faults.clone(), state.cuts)
    };
    if faults.silent {
        cut(shared, cuts, |faults| !faults.silent).await;
    }
    sleep(faults.delay).await;
    (faults, cuts)
}

/// One pod by name.
async fn pod(
    Extract(shared): Extract<Arc<SharedState>>,
    uri: Uri,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    one(&shared, policy::Kind::Pod.into(), uri, &namespace, &name).await
}

async fn namespace(Extract(shared): Extract<Arc<SharedState>>, uri: Uri, Path(name): Path<String>) -> Response {
    one(&shared, policy::Kind::Namespace.into(), uri, "", &name).await
}

async fn one(shared: &SharedState, kind: Kind, uri: Uri, namespace: &str, name: &str) -> Response {
    let request = Request { verb: Verb::Get, kind, path: uri.path().to_owned(), query: Parameters::new() };
    if let Err(refusal) = record_request(shared, request).await {
        return refusal;
    }
    match shared.lock().store.get(kind, namespace, name) {
        Some(object) => {
            let text = with_type(kind, object.clone()).to_string();
            ([(header::CONTENT_TYPE, "application/json")], text).into_response()
        }
        None => status(404, "NotFound", &format!("{} \"{name}\" not found", kind.plural())),
    }
}

fn list(shared: &SharedState, kind: Kind, selection: &Selection, query: &Parameters) -> Result<Vec<u8>, Gone> {
    let limit = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX);
    let token = query.get("continue").map(String::as_str);
    let Page { version, items, next } = shared.change(|state| state.store.page(kind, selection, limit, token))?;
    let metadata = json!({"resourceVersion": version.to_string(), "continue": next.unwrap_or_default()});
    let head = format!(
        "{{\"kind\":\"{kind}List\",\"apiVersion\":\"{}\",\"metadata\":{metadata},\"items\":[",
        kind.api_version()
    );
    Ok([head.as_bytes(), &items, b"]}"].concat())
}

/// Bytes of a streaming list in one write.
const PIECE_OF_LIST: usize = 64 << 10;

/// An open watch.
struct Watch {
    shared: Arc<SharedState>,
    changed: watch::Receiver<u64>,
    kind: Kind,
    selection: Selection,
    /// Identifies the watch while it is open.
    number: u64,
    /// The streaming list that is sent first, and how much of it has been sent.
    listing: Option<Listing>,
    listed: usize,
    /// Lines that follow the streaming list.
    initial: std::vec::IntoIter<Vec<u8>>,
    /// The watch ends after these lines.
    ends: bool,
    /// The connection breaks after these lines.
    breaks: bool,
    cursor: Cursor,
    bookmarks: bool,
    deadline: Instant,
    cuts: u64,
    counted: bool,
}

impl Watch {
    /// The next chunk of the streaming list.
    fn next_of_list(&mut self) -> Option<Bytes> {
        let listing = self.listing.as_ref()?;
        let mut piece = Vec::new();
        while piece.len() < PIECE_OF_LIST && self.listed < listing.count() {
            listing.write_line(self.listed, &mut piece);
            self.listed += 1;
        }
        if piece.is_empty() {
            self.listing = None;
            return None;
        }
        Some(piece.into())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (kind, number, counted) = (self.kind, self.number, self.counted);
        self.shared.change(|state| {
            state.reading.remove(&number);
            if counted {
                *state.watching.entry(kind).or_default() -= 1;
            }
        });
    }
}

/// Opens a watch under the conditions of a real server.
// The refusal is a response like any other.
#[allow(clippy::result_large_err)]
fn watch(
    shared: Arc<SharedState>,
    kind: Kind,
    selection: Selection,
    query: &Parameters,
    cuts: u64,
) -> Result<impl Stream<Item = Result<Bytes, Cut>> + use<>, Response> {
    let is = |key: &str, value: &str| query.get(key).is_some_and(|v| v == value);
    let bookmarks = is("allowWatchBookmarks", "true");
    let changed = shared.changed.subscribe();
    let seconds = query.get("timeoutSeconds").and_then(|s| s.parse().ok()).unwrap_or(1800);
    let mut state = shared.lock();
    let mut listing = None;
    let mut initial = Vec::new();
    let mut ends = state.faults.ends_watches;
    let mut breaks = false;
    let cursor = if is("sendInitialEvents", "true") {
        if state.faults.no_streaming {
            let message = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the WatchList \
                           feature gate is enabled";
            return Err(status(422, "Invalid", message));
        }
        if !bookmarks || !is("resourceVersionMatch", "NotOlderThan") {
            return Err(status(422, "Invalid", "resourceVersionMatch: Forbidden: it must be NotOlderThan"));
        }
        listing = Some(state.store.listing(kind, &selection));
        let mark = json!({
            "kind": kind.to_string(),
            "apiVersion": kind.api_version(),
            "metadata": {
                "resourceVersion": state.store.version().to_string(),
                "annotations": {"k8s.io/initial-events-end": "true"},
            },
        });
        match stream_failure(&state, kind) {
            Some(StreamFailure::Status(code, message)) => return Err(status(code, "InternalError", message)),
            Some(StreamFailure::Busy { seconds }) => return Err(busy(seconds)),
            Some(StreamFailure::Ends) => ends = true,
            Some(StreamFailure::Breaks) => breaks = true,
            None if state.faults.no_end_of_list => ends = true,
            None => initial.push(event("BOOKMARK", &mark)),
        }
        state.store.end()
    } else {
        let version = query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
        match state.store.cursor(version) {
            Ok(cursor) => cursor,
            Err(Gone) if state.faults.gone_as_status => {
                return Err(status(410, "Expired", "too old resource version"));
            }
            Err(Gone) => {
                initial.push(event("ERROR", &status_object(410, "Expired", "too old resource version")));
                ends = true;
                state.store.end()
            }
        }
    };
    let number = state.opened;
    state.opened += 1;
    state.reading.insert(number, cursor.index);
    drop(state);
    let deadline = Instant::now() + Duration::from_secs(seconds);
    let (initial, listed, counted) = (initial.into_iter(), 0, false);
    let watch = Watch {
        shared,
        changed,
        kind,
        selection,
        number,
        listing,
        listed,
        initial,
        ends,
        breaks,
        cursor,
        bookmarks,
        deadline,
        cuts,
        counted,
    };
    Ok(stream::unfold(watch, step))
}

/// The failure of the requested streaming list.
fn stream_failure(state: &State, kind: Kind) -> Option<StreamFailure> {
    let failing = state.faults.failing_streams.as_ref()?;
    let is_stream = |request: &&Request| request.kind == kind && request.has("sendInitialEvents", "true");
    let asked = state.requests.iter().filter(is_stream).count();
    failing.requests.is_none_or(|most| asked <= most).then(|| failing.failure.clone())
}

/// The response of an API server's rate limit filter.
fn busy(seconds: u32) -> Response {
    let text = "Too many requests, please try again later.\n";
    (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, seconds.to_string())], text).into_response()
}

/// The response is aborted.
#[derive(Debug, thiserror::Error)]
#[error("cut")]
struct Cut;

async fn step(mut watch: Watch) -> Option<(Result<Bytes, Cut>, Watch)> {
    loop {
        watch.changed.borrow_and_update();
        let (entry, stalled, was_cut) = {
            let mut state = watch.shared.lock();
            let was_cut = state.cuts != watch.cuts;
            let stalled = state.faults.stalled;
            let entry = if stalled || was_cut || watch.listing.is_some() || watch.initial.len() > 0 {
                None
            } else {
                let entry = state.store.next(watch.kind, &mut watch.cursor);
                state.reading.insert(watch.number, watch.cursor.index);
                if let (Some(sent), Some(entry)) = (&mut state.sent, &entry) {
                    sent.insert(entry.version, SystemTime::now());
                }
                entry
            };
            (entry, stalled, was_cut)
        };
        if was_cut {
            return Some((Err(Cut), watch));
        }
        if !stalled {
            if let Some(piece) = watch.next_of_list() {
                return Some((Ok(piece), watch));
            }
            if let Some(line) = watch.initial.next() {
                return Some((Ok(line.into()), watch));
            }
            if watch.breaks {
                return Some((Err(Cut), watch));
            }
            if watch.ends {
                return None;
            }
            if !watch.counted {
                watch.counted = true;
                let kind = watch.kind;
                watch.shared.change(|state| *state.watching.entry(kind).or_default() += 1);
            }
            if let Some(entry) = entry {
                let bytes = match entry.what {
                    What::Change(bytes) | What::Garbled(bytes) => {
                        match watch.selection.selected(&entry.before, bytes) {
                            Some(bytes) => bytes,
                            None => continue,
                        }
                    }
                    What::Raw(bytes) => bytes,
                    What::Bookmark if watch.bookmarks => {
                        let metadata = json!({"resourceVersion": entry.version.to_string(), "creationTimestamp": null});
                        event("BOOKMARK", &with_type(watch.kind, json!({"metadata": metadata})))
                    }
                    What::Bookmark => continue,
                };
                return Some((Ok(bytes.into()), watch));
            }
        }
        tokio::select! {
            changed = watch.changed.changed() => if changed.is_err() { return None },
            () = sleep_until(watch.deadline), if !stalled => return None,
        }
    }
}

/// Waits until connections are cut, or the fault has ended.
async fn cut(shared: &SharedState, cuts: u64, is_over: impl Fn(&super::Faults) -> bool) {
    let mut changed = shared.changed.subscribe();
    loop {
        {
            let state = shared.lock();
            if state.cuts != cuts || is_over(&state.faults) {
                return;
            }
        }
        if changed.changed().await.is_err() {
            return;
        }
    }
}

fn in_pieces(part: Result<Bytes, Cut>, size: usize) -> impl Stream<Item = Result<Bytes, Cut>> {
    let pieces = match part {
        Ok(bytes) => bytes.chunks(size).map(|piece| Ok(Bytes::copy_from_slice(piece))).collect(),
        Err(cut) => vec![Err(cut)],
    };
    // A pause between chunks puts each into its own packet.
    stream::iter(pieces).then(|piece| async {
        tokio::task::yield_now().await;
        piece
    })
}

pub(super) fn status(code: u16, reason: &str, message: &str) -> Response {
    let code_line = StatusCode::from_u16(code).expect("a status code");
    (code_line, [(header::CONTENT_TYPE, "application/json")], status_object(code, reason, message).to_string())
        .into_response()
}

fn status_object(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "code": code, "reason": reason, "message": message,
    })
}
