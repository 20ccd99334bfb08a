//! A fake API server at the HTTP boundary: lists, pages, streaming lists, watches and bookmarks of every watched kind,
//! Leases, and the failures of API servers and of the networks before them.
//!
//! It runs in its own thread on an ephemeral port of the loopback, so that tests of a function and tests of a process
//! share one server. It does not depend on how its clients interpret the objects.

mod credentials;
mod discovery;
mod kind;
mod leases;
mod network_sets;
mod selection;
mod serve;
mod store;
mod token_reviews;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::{oneshot, watch};

pub use credentials::CredentialRequest;
pub use kind::Kind;
pub use token_reviews::IssuedToken;

use generator::cluster::Cluster;
use generator::cluster::events::Event;
use store::Store;

/// Deadline of every wait. Long, because it is only reached when a test fails, and a busy machine is slow.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// An RBAC verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    List,
    Watch,
    Get,
    Create,
    Update,
    Delete,
}

impl Verb {
    /// The verb as RBAC rules spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Get => "get",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Delete => "delete",
        }
    }
}

/// A received request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    pub verb: Verb,
    pub kind: Kind,
    pub path: String,
    pub query: BTreeMap<String, String>,
}

impl Request {
    pub fn has(&self, key: &str, value: &str) -> bool {
        self.query.get(key).is_some_and(|v| v == value)
    }
}

/// How requests for streaming lists fail.
#[derive(Debug, Clone)]
pub struct FailingStreams {
    pub failure: StreamFailure,
    /// How many requests of each kind fail, counted from the first one; `None` for all.
    pub requests: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamFailure {
    /// A `Status` with this code and message.
    Status(u16, &'static str),
    /// 429 as plain text with the header `Retry-After`, as priority and fairness answers.
    Busy { seconds: u32 },
    /// The stream ends before the bookmark that closes the initial list.
    Ends,
    /// The connection breaks before that bookmark.
    Breaks,
}

/// The answer of an API server whose etcd lacks RequestWatchProgress (before 3.4.25, and 3.5 before 3.5.8).
pub const NO_WATCH_PROGRESS: StreamFailure = StreamFailure::Status(
    500,
    "a watch stream was requested by the client but the required storage feature RequestWatchProgress is disabled",
);

/// Faults to inject. Each is active until it is reset.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    /// Answers 422 to a request with `sendInitialEvents`, as a server with the feature disabled does.
    pub no_streaming: bool,
    /// A streaming list ends without the bookmark that closes the initial list.
    pub no_end_of_list: bool,
    /// Streaming lists fail, but paginated lists succeed.
    pub failing_streams: Option<FailingStreams>,
    /// Answers these requests with the status.
    pub refusals: BTreeMap<(Kind, Verb), u16>,
    /// Answers requests for the list of API groups with the status.
    pub discovery: Option<u16>,
    /// Answers requests of these verbs for a Lease with the status.
    pub lease_refusals: BTreeMap<Verb, u16>,
    /// Answers requests of these verbs for a GlobalNetworkSet with the status.
    pub network_set_refusals: BTreeMap<Verb, u16>,
    /// Answers TokenReviews with the status.
    pub token_review_refusal: Option<u16>,
    /// Answers a watch from a compacted version with the HTTP status 410 rather than an ERROR event.
    pub gone_as_status: bool,
    /// Accepts requests and does not answer.
    pub silent: bool,
    /// Open watches neither send anything nor end.
    pub stalled: bool,
    /// Ends every watch cleanly as soon as it is open.
    pub ends_watches: bool,
    /// Splits bodies into chunks of this many bytes.
    pub pieces: Option<usize>,
    /// Delays every response.
    pub delay: Duration,
    /// Answers 401 to requests without this token.
    pub token: Option<String>,
}

impl Faults {
    /// Starts to answer these requests with the status.
    pub fn refuse(&mut self, kind: impl Into<Kind>, verbs: &[Verb], code: u16) {
        let kind = kind.into();
        self.refusals.extend(verbs.iter().map(|verb| ((kind, *verb), code)));
    }
}

/// The server. It stops on drop.
pub struct FakeApi {
    shared: Arc<SharedState>,
    address: SocketAddr,
    folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

pub(crate) struct SharedState {
    state: Mutex<State>,
    /// Incremented with every change of `state`.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
pub(crate) struct State {
    store: Store,
    faults: Faults,
    requests: Vec<Request>,
    /// Write requests by resource.
    writes: BTreeMap<String, usize>,
    leases: leases::Leases,
    network_sets: network_sets::NetworkSets,
    tokens: token_reviews::Tokens,
    credentials: credentials::Credentials,
    /// Kinds whose CustomResourceDefinitions are installed, with the version that is served.
    installed: BTreeMap<Kind, &'static str>,
    /// Open watches that have sent their streaming list.
    watching: BTreeMap<Kind, usize>,
    /// Watches ever opened, and the log positions of the open ones.
    opened: u64,
    reading: BTreeMap<u64, usize>,
    /// When lines were sent, by the versions of their objects; `None` unless recording is enabled.
    sent: Option<BTreeMap<u64, SystemTime>>,
    /// Incremented when all connections are cut.
    cuts: u64,
    /// Requests refused for lack of the token.
    turned_away: usize,
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.changed.send_modify(|count| *count += 1);
        result
    }
}

impl FakeApi {
    pub fn start() -> FakeApi {
        FakeApi::start_at((Ipv4Addr::LOCALHOST, 0).into())
    }

    /// As [`FakeApi::start`], on this address and with this initial resource version: a restarted server must continue
    /// at the version of its predecessor.
    ///
    /// # Panics
    /// If the address is in use.
    pub fn start_again(address: SocketAddr, version: u64) -> FakeApi {
        let api = FakeApi::start_at(address);
        api.shared.change(|state| state.store.skip_to(version));
        api
    }

    fn start_at(address: SocketAddr) -> FakeApi {
        let listener = TcpListener::bind(address).expect("an address of ours");
        listener.set_nonblocking(true).expect("a socket of ours");
        let address = listener.local_addr().expect("a bound socket");
        let shared = Arc::new(SharedState { state: Mutex::default(), changed: watch::Sender::new(0) });
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                runtime.block_on(serve::serve(listener, shared, stopped));
            }
        });
        let folder = TempDir::new().expect("a folder for the kubeconfig");
        FakeApi { shared, address, folder, stop: Some(stop), thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The path of a kubeconfig file for this server. The file is removed with the server.
    pub fn kubeconfig(&self) -> PathBuf {
        let path = self.folder.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: fake\n\
             clusters: [{{name: fake, cluster: {{server: 'http://{}'}}}}]\n\
             users: [{{name: fake, user: {{token: fake}}}}]\n\
             contexts: [{{name: fake, context: {{cluster: fake, user: fake}}}}]\n",
            self.address
        );
        std::fs::write(&path, text).expect("a folder of ours");
        path
    }

    /// Creates or replaces an object. Only its name and namespace must be valid.
    pub fn set(&self, kind: impl Into<Kind>, object: Value) {
        let kind = kind.into();
        self.shared.change(|state| state.store.set(kind, object));
    }

    /// As `set`, but open watches get garbage instead of the change.
    pub fn set_garbled(&self, kind: impl Into<Kind>, object: Value) {
        let kind = kind.into();
        self.shared.change(|state| {
            state.store.set(kind, object);
            state.store.garble_last();
        });
    }

    pub fn remove(&self, kind: impl Into<Kind>, namespace: &str, name: &str) {
        let kind = kind.into();
        self.shared.change(|state| state.store.remove(kind, namespace, name));
    }

    /// Serves the objects of the cluster beside those that are set. Their JSON is written on request.
    pub fn set_cluster(&self, cluster: Cluster) {
        self.shared.change(|state| state.store.set_cluster(cluster));
    }

    /// Applies random events to the cluster, and sends them to the watches.
    ///
    /// # Panics
    /// If no cluster is set.
    pub fn happen<T>(&self, act: impl FnOnce(&mut Cluster) -> (Vec<Event>, T)) -> T {
        self.shared.change(|state| {
            let State { store, reading, .. } = state;
            store.happen(reading.values().copied(), act)
        })
    }

    /// Changes that some open watch has not sent yet.
    pub fn unsent(&self) -> usize {
        let state = self.shared.lock();
        let end = state.store.end_of_log();
        state.reading.values().map(|read| end - read).max().unwrap_or(0)
    }

    /// Starts to record when each change is sent, by its version.
    pub fn record_sent(&self) {
        self.shared.change(|state| state.sent = Some(BTreeMap::new()));
    }

    /// The times recorded since [`FakeApi::record_sent`].
    pub fn sent(&self) -> BTreeMap<u64, SystemTime> {
        self.shared.lock().sent.clone().unwrap_or_default()
    }

    /// Compacts the log, and expires the lists that are being paged through.
    pub fn compact(&self) {
        self.shared.change(|state| state.store.compact());
    }

    /// Sends a bookmark of the current version to the open watches.
    pub fn bookmark(&self) {
        self.shared.change(|state| state.store.bookmark());
    }

    /// Sends these bytes to the open watches of the kind, once.
    pub fn send_raw(&self, kind: impl Into<Kind>, bytes: &[u8]) {
        let kind = kind.into();
        self.shared.change(|state| state.store.raw(kind, bytes));
    }

    /// Aborts every response in progress.
    pub fn cut_connections(&self) {
        self.shared.change(|state| state.cuts += 1);
    }

    /// Changes the injected faults.
    pub fn faults(&self, change: impl FnOnce(&mut Faults)) {
        self.shared.change(|state| change(&mut state.faults));
    }

    pub fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// The number of requests of a verb for a kind.
    pub fn count(&self, verb: Verb, kind: impl Into<Kind>) -> usize {
        let kind = kind.into();
        self.requests().iter().filter(|r| (r.verb, r.kind) == (verb, kind)).count()
    }

    /// Requests refused for lack of the token.
    pub fn turned_away(&self) -> usize {
        self.shared.lock().turned_away
    }

    /// Write requests by resource, for example `leases`, including refused ones.
    pub fn writes(&self) -> BTreeMap<String, usize> {
        self.shared.lock().writes.clone()
    }

    /// Starts to serve a custom kind, as after the installation of its CustomResourceDefinition.
    pub fn install(&self, custom: impl Into<Kind>) {
        let custom = custom.into();
        self.install_version(custom, custom.api_version());
    }

    /// Serves this version of a custom kind, such as `policy.networking.k8s.io/v1beta1`, and no other.
    pub fn install_version(&self, custom: impl Into<Kind>, version: &'static str) {
        let custom = custom.into();
        self.shared.change(|state| state.installed.insert(custom, version));
    }

    /// The verbs of the Lease requests so far.
    pub fn lease_verbs(&self) -> BTreeSet<Verb> {
        self.shared.lock().leases.asked()
    }

    /// Removes the custom kind and its objects, and ends its watches.
    pub fn uninstall(&self, custom: impl Into<Kind>) {
        let custom = custom.into();
        self.shared.change(|state| {
            state.installed.remove(&custom);
            state.store.drop_kind(custom);
            state.cuts += 1;
        });
    }

    pub fn lease(&self, namespace: &str, name: &str) -> Option<Value> {
        self.shared.lock().leases.get(namespace, name).cloned()
    }

    /// Starts to serve GlobalNetworkSets as `crd.projectcalico.org/v1` or `projectcalico.org/v3`.
    pub fn install_network_sets(&self, group: &str) {
        self.shared.change(|state| state.network_sets.install(group));
    }

    /// GlobalNetworkSets by name.
    pub fn network_sets(&self) -> BTreeMap<String, Value> {
        self.shared.lock().network_sets.objects().clone()
    }

    /// Writes a GlobalNetworkSet as another client would.
    pub fn set_network_set(&self, object: Value) {
        self.shared.change(|state| state.network_sets.set(object));
    }

    /// Issues a token, or replaces an issued one.
    pub fn issue_token(&self, token: &str, of: IssuedToken) {
        self.shared.change(|state| state.tokens.issued.insert(token.to_owned(), of));
    }

    /// Revokes the token: it no longer authenticates.
    pub fn revoke_token(&self, token: &str) {
        self.shared.change(|state| state.tokens.issued.remove(token));
    }

    /// The number of TokenReviews answered.
    pub fn token_reviews(&self) -> usize {
        self.shared.lock().tokens.reviews
    }

    /// A Secret (`secrets`) or ConfigMap (`configmaps`).
    pub fn credential(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.shared.lock().credentials.get(resource, namespace, name).cloned()
    }

    /// Writes a Secret or ConfigMap as another client would.
    pub fn set_credential(&self, resource: &str, object: Value) {
        self.shared.change(|state| state.credentials.set(resource, object));
    }

    pub fn remove_credential(&self, resource: &str, namespace: &str, name: &str) {
        self.shared.change(|state| state.credentials.remove(resource, namespace, name));
    }

    /// Requests for Secrets and ConfigMaps so far.
    pub fn credential_requests(&self) -> BTreeSet<CredentialRequest> {
        self.shared.lock().credentials.requests.clone()
    }

    /// Writes a Lease as another client would.
    pub fn set_lease(&self, lease: Value) {
        self.shared.change(|state| state.leases.set(lease));
    }

    /// Waits until the Lease meets the condition.
    pub async fn until_lease(
        &self,
        what: &str,
        namespace: &str,
        name: &str,
        condition: impl Fn(Option<&Value>) -> bool,
    ) {
        self.until(what, |state| condition(state.leases.get(namespace, name))).await;
    }

    /// Waits until the requests so far meet the condition.
    pub async fn until_requests(&self, what: &str, condition: impl Fn(&[Request]) -> bool) {
        self.until(what, |state| condition(&state.requests)).await;
    }

    /// Waits until a watch of every kind that enforcement needs is open and has sent its initial list.
    pub async fn until_watched(&self) {
        self.until_watching(&policy::Kind::NEEDED).await;
    }

    /// Waits until a watch of each kind is open and has sent its initial list.
    pub async fn until_watching<K: Into<Kind> + Copy>(&self, kinds: &[K]) {
        self.until("a watch of every kind", |state| {
            kinds.iter().all(|kind| state.watching.get(&(*kind).into()).is_some_and(|open| *open > 0))
        })
        .await;
    }

    async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let mut changed = self.shared.changed.subscribe();
        let fulfilled = async {
            while !condition(&self.shared.lock()) {
                changed.changed().await.expect("the server outlives its tests");
            }
        };
        if tokio::time::timeout(DEADLINE, fulfilled).await.is_err() {
            panic!("{what}: not within {DEADLINE:?}; requests: {:#?}", self.requests());
        }
    }
}

impl Drop for FakeApi {
    fn drop(&mut self) {
        self.cut_connections();
        // Both may be gone already if the thread panicked, which `join` reports.
        drop(self.stop.take());
        crate::threads::end(self.thread.take());
    }
}
