//! The collector of a Goldmane, written from the published protocol (goldmane/proto/api.proto of Calico). It demands mutual
//! TLS, checks each message, and fails as servers and the networks before them do. It must not use `crates/goldmane`.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::post;
use futures::stream::{self, Stream};
use listener::PeerCertificate;
use tonic::server::{Grpc, StreamingService};
use tonic::{Status, Streaming};

use crate::certificates::{TestCertificate, Validity};
use crate::grpc_bytes::{Bytes, BytesCodec, Fields};
use crate::tls_server::TlsServer;

/// A fault of the collector. It lasts until another one is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Refuses streams.
    Unavailable,
    /// Ends each stream after this many receipts.
    EndAfter(usize),
    /// Accepts one flow more than it sends receipts, and ends the stream.
    LoseReceiptAfter(usize),
    /// Refuses the flow after this many receipts as invalid.
    InvalidAfter(usize),
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// `goldmane.Flow` in the order of arrival.
    flows: Vec<Bytes>,
    distinct: BTreeSet<Bytes>,
    repeated: usize,
    streams: usize,
    complaints: Vec<String>,
}

/// The collector. It stops on drop.
pub struct FakeGoldmane {
    state: Arc<Mutex<State>>,
    server: TlsServer,
}

impl FakeGoldmane {
    /// Listens on the loopback. Its certificate is below the folder.
    ///
    /// # Panics
    /// If it cannot listen.
    pub fn start(folder: &Path) -> FakeGoldmane {
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        let connect = move |request: Request| connect(shared.clone(), request);
        let routes = Router::new().route("/goldmane.FlowCollector/Connect", post(connect));
        FakeGoldmane { state, server: TlsServer::start(folder, routes) }
    }

    pub fn url(&self) -> String {
        self.server.url()
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Writes the files of a client below the folder, and returns the flags of the aggregator that name them.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn client_flags(&self, folder: &Path) -> Vec<String> {
        let TestCertificate { certificate, key } = self.server.ca.client("ringfence-flows", &[], Validity::Valid);
        let files = [
            ("ca-file", "ca.crt", &self.server.ca.pem),
            ("cert", "client.crt", &certificate),
            ("key", "client.key", &key),
        ];
        let flag = |(flag, name, content): (&str, &str, &String)| {
            let path = folder.join(name);
            std::fs::write(&path, content).expect("a folder of ours");
            [format!("--goldmane-push-{flag}"), path.display().to_string()]
        };
        files.into_iter().flat_map(flag).collect()
    }

    pub fn fail(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    pub fn heal(&self) {
        self.lock().fault = None;
    }

    /// Accepted flows, in the order of their arrival.
    pub fn flows(&self) -> Vec<Fields> {
        self.lock().flows.iter().map(|flow| Fields::read(flow)).collect()
    }

    /// The sum of started connections in the flows of a reporter: 1 for the source, 2 for the destination.
    pub fn started(&self, reporter: i64) -> u64 {
        let flows = self.flows().into_iter().filter(|flow| flow.message(1).number(13) == reporter);
        flows.map(|flow| flow.number(10).cast_unsigned()).sum()
    }

    /// Flows that arrived more than once, byte by byte.
    pub fn repeated(&self) -> usize {
        self.lock().repeated
    }

    /// Streams so far, refused ones included.
    pub fn streams(&self) -> usize {
        self.lock().streams
    }

    /// Violations of the protocol.
    pub fn complaints(&self) -> Vec<String> {
        self.lock().complaints.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves one stream.
async fn connect(state: Arc<Mutex<State>>, request: Request) -> Response {
    let user = request.extensions().get::<Arc<PeerCertificate>>().map(|peer| peer.common_name.clone());
    let collector = Collector { state, is_known: user.is_some_and(|user| user.as_deref() == Some("ringfence-flows")) };
    Grpc::new(BytesCodec).streaming(collector, request).await.map(Body::new)
}

struct Collector {
    state: Arc<Mutex<State>>,
    is_known: bool,
}

type Receipts = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

impl StreamingService<Bytes> for Collector {
    type Response = Bytes;
    type ResponseStream = Receipts;
    type Future = std::future::Ready<Result<tonic::Response<Receipts>, Status>>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        let mut state = lock(&self.state);
        state.streams += 1;
        if !self.is_known {
            return std::future::ready(Err(Status::unauthenticated("a client certificate is required")));
        }
        if state.fault == Some(Fault::Unavailable) {
            return std::future::ready(Err(Status::unavailable("the collector is starting")));
        }
        let start = (self.state.clone(), request.into_inner(), 0);
        let receipts = stream::try_unfold(start, async |(state, mut updates, sent)| {
            let Some(update) = updates.message().await? else { return Ok(None) };
            receive(&state, &update, sent)?;
            Ok(Some((Bytes::new(), (state, updates, sent + 1))))
        });
        std::future::ready(Ok(tonic::Response::new(Box::pin(receipts))))
    }
}

/// Accepts an update after this many receipts of its stream. Without an error a receipt follows.
fn receive(state: &Mutex<State>, update: &[u8], sent: usize) -> Result<(), Status> {
    let mut state = lock(state);
    let mut is_lost = false;
    match state.fault {
        Some(Fault::EndAfter(most)) if sent >= most => return Err(Status::unavailable("the collector ends")),
        Some(Fault::InvalidAfter(most)) if sent >= most => return Err(Status::invalid_argument("no such flow")),
        Some(Fault::LoseReceiptAfter(most)) => is_lost = sent >= most,
        Some(Fault::EndAfter(_) | Fault::InvalidAfter(_) | Fault::Unavailable) | None => {}
    }
    let flow = match checked_flow(update) {
        Ok(flow) => flow,
        Err(complaint) => {
            state.complaints.push(complaint.clone());
            return Err(Status::internal(complaint));
        }
    };
    if !state.distinct.insert(flow.clone()) {
        state.repeated += 1;
    }
    state.flows.push(flow);
    if is_lost { Err(Status::unavailable("the connection was lost")) } else { Ok(()) }
}

/// The flow of a `goldmane.FlowUpdate`, as the protocol and Calico's agents define it.
fn checked_flow(update: &[u8]) -> Result<Bytes, String> {
    let fields = Fields::read(update);
    if fields.numbers().ne([1]) {
        return Err(format!("fields of an update: {:?}", fields.numbers().collect::<Vec<_>>()));
    }
    let bytes = fields.all(1)[0].to_vec();
    let flow = Fields::read(&bytes);
    if flow.numbers().any(|number| number > 12) || !flow.has(1) {
        return Err(format!("fields of a flow: {:?}", flow.numbers().collect::<Vec<_>>()));
    }
    let (start, end) = (flow.number(2), flow.number(3));
    if start <= 0 || start % 15 != 0 || end != start + 15 {
        return Err(format!("a flow from {start} to {end}"));
    }
    if let Some(negative) = (6..=12).find(|number| flow.number(*number) < 0) {
        return Err(format!("count {negative} is negative"));
    }
    let key = flow.message(1);
    if key.numbers().any(|number| number > 15) || !key.has(15) {
        return Err(format!("fields of a key: {:?}", key.numbers().collect::<Vec<_>>()));
    }
    for name in [1, 2, 4, 5, 8, 9, 10, 12] {
        if key.text(name).is_empty() {
            return Err(format!("text {name} of a key is empty"));
        }
    }
    let is_type = |field| (1..=4).contains(&key.number(field));
    let (reporter, action) = (key.number(13), key.number(14));
    if !is_type(3) || !is_type(6) || !(0..=2).contains(&reporter) || !(1..=2).contains(&action) {
        return Err(format!("types, reporter {reporter} or action {action} of a key"));
    }
    let trace = key.message(15);
    for hit in trace.messages(1).iter().chain(&trace.messages(2)) {
        let (kind, is_end) = (hit.number(1), hit.number(1) == 10);
        if !matches!(kind, 1..=6 | 9..=11) || hit.has(8) != is_end || !(1..=3).contains(&hit.number(5)) {
            return Err(format!("a policy of kind {kind} with action {}", hit.number(5)));
        }
    }
    Ok(bytes)
}
