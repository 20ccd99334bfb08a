//! A follower against a scripted server on the loopback interface.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, Response, StatusCode};
use axum::routing::get;
use bytes::Bytes;
use futures::StreamExt;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::task::JoinHandle;

use super::*;
use crate::FeedBacklog;

/// A server of one feed named `things`. Its baseline is the text of its position.
struct Server {
    inner: Arc<Inner>,
    url: Url,
}

struct Inner {
    publication: Mutex<FeedBacklog>,
    streams: Mutex<Vec<UnboundedSender<Bytes>>>,
    /// Requests, with their `Last-Event-ID` and query.
    asked: Mutex<Vec<String>>,
    /// Responses that `download` returns first.
    downloads: Mutex<VecDeque<Response<Body>>>,
    /// Responses that `deltas` returns first.
    openings: Mutex<VecDeque<Response<Body>>>,
    /// Number of deltas to publish on a request for a baseline, before it is encoded.
    at_download: Mutex<u64>,
    token: Option<&'static str>,
}

impl Server {
    async fn start(epoch: u64) -> Server {
        Server::start_with(epoch, None).await
    }

    async fn start_with(epoch: u64, token: Option<&'static str>) -> Server {
        let inner = Arc::new(Inner {
            publication: Mutex::new(FeedBacklog::new(epoch)),
            streams: Mutex::default(),
            asked: Mutex::default(),
            downloads: Mutex::default(),
            openings: Mutex::default(),
            at_download: Mutex::default(),
            token,
        });
        let routes = Router::new()
            .route("/base/things/deltas", get(deltas))
            .route("/base/things/download", get(download))
            .with_state(inner.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{}/base/", listener.local_addr().unwrap())).unwrap();
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Server { inner, url }
    }

    fn publish(&self) {
        publish(&self.inner);
    }

    fn send(&self, frame: Bytes) {
        self.inner.streams.lock().unwrap().retain(|stream| stream.send(frame.clone()).is_ok());
    }

    fn end_streams(&self) {
        self.inner.streams.lock().unwrap().clear();
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.asked.lock().unwrap())
    }
}

fn publish(server: &Inner) {
    let event = server.publication.lock().unwrap().publish(|at| format!("\"{at}\"").into_bytes());
    server.streams.lock().unwrap().retain(|stream| stream.send(event.frame.clone()).is_ok());
}

fn refusal(server: &Inner, headers: &HeaderMap) -> Option<Response<Body>> {
    let wanted = server.token.map(|token| format!("Bearer {token}"));
    let given = headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
    let refused = Response::builder().status(StatusCode::UNAUTHORIZED).body("who are you?\n".into()).unwrap();
    (wanted.is_some() && wanted != given).then_some(refused)
}

fn of_query(query: Option<String>) -> String {
    query.map_or(String::new(), |query| format!(" ?{query}"))
}

async fn deltas(State(server): State<Arc<Inner>>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response<Body> {
    let behind = headers.get("last-event-id").map(|value| value.to_str().unwrap());
    server.asked.lock().unwrap().push(format!("deltas {}{}", behind.unwrap_or("-"), of_query(query)));
    if let Some(refusal) = refusal(&server, &headers) {
        return refusal;
    }
    if let Some(answer) = server.openings.lock().unwrap().pop_front() {
        return answer;
    }
    let (sender, receiver) = mpsc::unbounded_channel();
    let publication = server.publication.lock().unwrap();
    for frame in publication.since(behind.map(|text| text.parse().unwrap())).frames() {
        sender.send(frame).unwrap();
    }
    server.streams.lock().unwrap().push(sender);
    stream_of(receiver)
}

fn stream_of(receiver: mpsc::UnboundedReceiver<Bytes>) -> Response<Body> {
    let frames = futures::stream::unfold(receiver, async |mut receiver| receiver.recv().await.map(|f| (f, receiver)));
    let body = Body::from_stream(frames.map(Ok::<_, std::convert::Infallible>));
    Response::builder().header("content-type", "text/event-stream; charset=utf-8").body(body).unwrap()
}

async fn download(State(server): State<Arc<Inner>>, RawQuery(query): RawQuery, headers: HeaderMap) -> Response<Body> {
    server.asked.lock().unwrap().push(format!("download{}", of_query(query)));
    if let Some(refusal) = refusal(&server, &headers) {
        return refusal;
    }
    if let Some(answer) = server.downloads.lock().unwrap().pop_front() {
        return answer;
    }
    for _ in 0..std::mem::take(&mut *server.at_download.lock().unwrap()) {
        publish(&server);
    }
    baseline(server.publication.lock().unwrap().position())
}

fn baseline(at: Position) -> Response<Body> {
    let text = at.to_string();
    let head = Head::of(text.as_bytes(), "things-1".into(), at, 1);
    head.headers()
        .into_iter()
        .fold(Response::builder(), |response, (name, value)| response.header(name, value))
        .body(text.into())
        .unwrap()
}

struct Following {
    updates: mpsc::Receiver<Update>,
    task: JoinHandle<Result<(), FollowError>>,
}

fn source(servers: &[&Server]) -> FeedSource {
    let retry = Duration::from_millis(20);
    let timing = FollowerTiming { retry_first: retry, retry_longest: retry, ..FollowerTiming::default() };
    FeedSource { timing, ..FeedSource::new(servers.iter().map(|server| server.url.clone()).collect(), "things") }
}

fn start(source: FeedSource) -> Following {
    let (sender, updates) = mpsc::channel(16);
    Following { updates, task: tokio::spawn(follow(source, sender)) }
}

impl Following {
    /// Each update in a few words, with its error if it has one.
    async fn next(&mut self) -> String {
        let update = tokio::time::timeout(Duration::from_secs(60), self.updates.recv()).await;
        match update.expect("an update").expect("a follower") {
            Update::Baseline { head, bytes } => {
                assert_eq!(bytes, head.position.to_string());
                format!("baseline {}", head.position)
            }
            Update::Resumed { position } => format!("resumed {position}"),
            Update::Delta { position, json } => {
                assert_eq!(json, format!("\"{position}\""));
                format!("delta {position}")
            }
            Update::Lost(lost) => format!("lost: {lost}"),
        }
    }

    async fn expect(&mut self, updates: &[&str]) {
        for expected in updates {
            let update = self.next().await;
            assert!(
                update.starts_with("lost") == expected.starts_with("lost")
                    && update.contains(expected.trim_start_matches("lost: ")),
                "{update}, not {expected}"
            );
        }
    }
}

#[tokio::test]
async fn client_receives_baseline_then_deltas() {
    let server = Server::start(7).await;
    server.publish();
    let mut following = start(source(&[&server]));
    following.expect(&["baseline 7:1"]).await;
    server.publish();
    server.publish();
    following.expect(&["delta 7:2", "delta 7:3"]).await;
    assert_eq!(server.asked(), ["deltas -", "download"], "the stream is opened first");
}

#[tokio::test]
async fn client_requests_the_form_of_its_source() {
    let server = Server::start(7).await;
    let mut following = start(FeedSource { form: Some("numbers".into()), ..source(&[&server]) });
    following.expect(&["baseline 7:0"]).await;
    assert_eq!(server.asked(), ["deltas - ?form=numbers", "download ?form=numbers"]);
}

#[tokio::test]
async fn delta_contained_in_baseline_is_skipped() {
    let server = Server::start(7).await;
    *server.inner.at_download.lock().unwrap() = 2;
    let mut following = start(source(&[&server]));
    following.expect(&["baseline 7:2"]).await;
    server.publish();
    following.expect(&["delta 7:3"]).await;
}

#[tokio::test]
async fn reconnect_resumes_with_missed_deltas_only() {
    let server = Server::start(7).await;
    let mut following = start(source(&[&server]));
    following.expect(&["baseline 7:0"]).await;
    server.end_streams();
    server.publish();
    following.expect(&["lost: closed the stream", "resumed 7:0", "delta 7:1"]).await;
    assert_eq!(server.asked(), ["deltas -", "download", "deltas 7:0"]);
}

#[tokio::test]
async fn gap_or_new_epoch_pulls_one_baseline() {
    let server = Server::start(7).await;
    let mut following = start(source(&[&server]));
    following.expect(&["baseline 7:0"]).await;
    server.inner.publication.lock().unwrap().publish(|_| b"{}".to_vec());
    server.publish();
    following.expect(&["baseline 7:2"]).await;
    let begins = server.inner.publication.lock().unwrap().renew(8);
    server.send(sse::pull(begins, "another epoch"));
    server.publish();
    following.expect(&["baseline 8:1"]).await;
    server.inner.publication.lock().unwrap().renew(9);
    server.end_streams();
    following.expect(&["lost: closed the stream", "baseline 9:0"]).await;
    server.publish();
    following.expect(&["delta 9:1"]).await;
    assert_eq!(server.asked(), ["deltas -", "download", "download", "download", "deltas 8:1", "download"]);
}

#[tokio::test]
async fn baseline_with_wrong_digest_or_headers_is_refused() {
    let server = Server::start(7).await;
    let mut cut = baseline(Position { epoch: 7, seq: 0 });
    *cut.body_mut() = "7".into();
    server.inner.downloads.lock().unwrap().push_back(cut);
    server.inner.downloads.lock().unwrap().push_back(Response::new("no headers".into()));
    let mut following = start(source(&[&server]));
    following.expect(&["lost: SHA-256", "lost: missing header", "baseline 7:0"]).await;
}

#[tokio::test]
async fn too_large_baseline_is_refused() {
    let server = Server::start(7).await;
    let mut following = start(FeedSource { baseline_bytes: 2, ..source(&[&server]) });
    following.expect(&["lost: larger than 2 bytes"]).await;
}

#[tokio::test]
async fn baseline_of_other_producer_reopens_stream() {
    let server = Server::start(7).await;
    server.inner.downloads.lock().unwrap().push_back(baseline(Position { epoch: 5, seq: 3 }));
    let mut following = start(source(&[&server]));
    following.expect(&["baseline 5:3", "lost: does not join", "baseline 7:0"]).await;
    assert_eq!(server.asked(), ["deltas -", "download", "deltas 5:3", "download"]);
}

#[tokio::test]
async fn stream_times_out_only_without_heartbeats() {
    let server = Server::start(7).await;
    // Longer than a busy machine delays a message, so that the messages below arrive in time.
    let read_timeout = Duration::from_secs(4);
    let mut source = source(&[&server]);
    source.timing.read_timeout = read_timeout;
    let mut following = start(source);
    following.expect(&["baseline 7:0"]).await;
    for _ in 0..12 {
        tokio::time::sleep(read_timeout / 10).await;
        server.send(sse::STILL_HERE);
    }
    assert!(following.updates.try_recv().is_err(), "it was not silent");
    following.expect(&["lost: timed out", "resumed 7:0"]).await;
}

#[tokio::test]
async fn another_server_is_asked_when_one_fails() {
    let (first, second) = (Server::start(7).await, Server::start(8).await);
    let gone = Url::parse("http://127.0.0.1:9/").unwrap();
    let mut source = source(&[&first, &second]);
    source.urls.insert(0, gone);
    let mut following = start(source);
    following.expect(&["lost: error sending request", "baseline 7:0"]).await;
    first.end_streams();
    following.expect(&["lost: closed the stream", "baseline 8:0"]).await;
}

#[tokio::test]
async fn a_token_that_is_replaced_is_used() {
    let server = Server::start_with(7, Some("right")).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "wrong").unwrap();
    let mut source = source(&[&server]);
    source.access.token_file = Some(path.clone());
    let mut following = start(source);
    following.expect(&["lost: returned 401 Unauthorized: who are you?"]).await;
    std::fs::write(&path, "right").unwrap();
    while !following.next().await.starts_with("baseline") {}
}

#[tokio::test]
async fn invalid_streams_are_reported_as_lost() {
    let server = Server::start(7).await;
    let stream = |text: &'static [u8]| {
        let (sender, receiver) = mpsc::unbounded_channel();
        sender.send(Bytes::from_static(text)).unwrap();
        stream_of(receiver)
    };
    server.inner.openings.lock().unwrap().extend([
        Response::new("hello".into()),
        stream(b"event: delta\nid: 7:1\ndata: {}\n\n"),
        stream(b"event: position\ndata: 7:1\n\n"),
    ]);
    let mut following = start(source(&[&server]));
    let lost = [
        "lost: did not return an event stream",
        "lost: begins with its position",
        "lost: cannot decode the stream event \"position\"",
    ];
    following.expect(&lost).await;
    following.expect(&["baseline 7:0"]).await;
    server.send(Bytes::from_static(b"event: news\ndata: of another version\n\n"));
    server.send(Bytes::from_static(b"event: delta\nid: 7\ndata: {}\n\n"));
    following.expect(&["lost: invalid position", "resumed 7:0"]).await;
}

#[tokio::test]
async fn follower_ends_when_receiver_is_dropped() {
    let server = Server::start(7).await;
    let mut following = start(source(&[&server]));
    following.expect(&["baseline 7:0"]).await;
    drop(following.updates);
    let ended = tokio::time::timeout(Duration::from_secs(60), following.task).await;
    ended.expect("in time").unwrap().unwrap();
}

#[tokio::test]
async fn missing_ca_file_is_read_when_it_appears() {
    let server = Server::start(7).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ca.crt");
    let access = Access { token_file: None, ca_file: Some(path.clone()) };
    let mut following = start(FeedSource { access, ..source(&[&server]) });
    following.expect(&["lost: cannot read"]).await;
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["ca".into()]).unwrap().self_signed(&key).unwrap();
    let new = folder.path().join("new");
    std::fs::write(&new, certificate.pem()).unwrap();
    std::fs::rename(new, path).unwrap();
    let mut update = following.next().await;
    while update.starts_with("lost: cannot read") {
        update = following.next().await;
    }
    assert_eq!(update, "baseline 7:0");
}

#[tokio::test]
async fn source_without_http_url_is_refused_immediately() {
    let (sender, _updates) = mpsc::channel(1);
    let nowhere = follow(FeedSource::new(vec![], "things"), sender.clone()).await;
    assert!(matches!(nowhere, Err(FollowError::NoUrl)));
    let file = Url::parse("file:///etc").unwrap();
    assert!(matches!(follow(FeedSource::new(vec![file], "things"), sender).await, Err(FollowError::Scheme(_))));
}
