mod optional;
mod streaming;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use cluster::{Problem, RequestTiming, SourceEvent, Sync, Watchable, connect, watch_cluster};
use kit::fake_api::{DEADLINE, FakeApi, Faults, Verb};
use policy::{Change, Kind, Object, lower};
use serde_json::{Value, json};
use tests::generate::draw_worlds;
use tests::objects::kind_of;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// Short timeouts and backoffs, to keep the tests fast. No test depends on their length.
fn impatient() -> RequestTiming {
    RequestTiming {
        answer: Duration::from_secs(10),
        watch: Duration::from_secs(290),
        watch_grace: Duration::from_secs(5),
        steady: Duration::from_millis(20),
        backoff_first: Duration::from_millis(5),
        backoff_last: Duration::from_millis(40),
        streaming_retry: Duration::from_secs(600),
    }
}

/// Events received from the source so far.
struct InformerReader<O: Watchable = Object> {
    events: mpsc::Receiver<SourceEvent<O>>,
    task: JoinHandle<()>,
    objects: BTreeMap<(O::Kind, String), O>,
    sync: Sync<O>,
    problems: Vec<Problem>,
    unserved: Vec<O::Kind>,
    /// Number of relists per kind.
    replaced: BTreeMap<O::Kind, usize>,
}

impl<O: Watchable> InformerReader<O> {
    async fn of(kubeconfig: &Path, timing: RequestTiming) -> InformerReader<O> {
        let connection = connect(Some(kubeconfig)).await.unwrap().with_timing(timing);
        let (sender, events) = mpsc::channel(8);
        let task = tokio::spawn(watch_cluster::<O, _>(connection, sender));
        let (objects, replaced) = (BTreeMap::new(), BTreeMap::new());
        InformerReader { events, task, objects, sync: Sync::default(), problems: vec![], unserved: vec![], replaced }
    }

    /// Receives events until the condition holds.
    async fn until(&mut self, what: &str, condition: impl Fn(&InformerReader<O>) -> bool) {
        let began = Instant::now();
        while !condition(self) {
            let left = DEADLINE.saturating_sub(began.elapsed());
            let Ok(event) = timeout(left, self.events.recv()).await else {
                panic!("{what}: not within {DEADLINE:?}; names {:?}, problems {:?}", self.names(), self.problems);
            };
            match event.expect("the watch goes on") {
                SourceEvent::Changes(changes) => {
                    self.sync.observe(changes.iter().map(|timed| &timed.change));
                    changes.into_iter().for_each(|timed| self.apply(timed.change));
                }
                SourceEvent::Problems(problems) => self.problems = problems,
                SourceEvent::Unserved(kinds) => self.unserved = kinds,
            }
        }
    }

    fn apply(&mut self, change: Change<O>) {
        let key = |o: &O| (o.kind(), o.name().to_string());
        match change {
            Change::Set(object) => {
                self.objects.insert(key(&object), object);
            }
            Change::Remove(kind, name) => {
                self.objects.remove(&(kind, name.to_string()));
            }
            Change::Replace(kind, objects) => {
                *self.replaced.entry(kind).or_default() += 1;
                self.objects.retain(|(k, _), _| *k != kind);
                self.objects.extend(objects.into_iter().map(|object| (key(&object), object)));
            }
        }
    }

    async fn until_synced(&mut self) {
        self.until("a list of every kind", |known| known.sync.is_complete()).await;
    }

    async fn until_problem(&mut self, text: &str) {
        let has = |known: &InformerReader<O>| known.problems.iter().any(|problem| problem.to_string().contains(text));
        self.until(&format!("a problem with '{text}'"), has).await;
    }

    async fn until_well(&mut self) {
        self.until("no problems", |known| known.problems.is_empty()).await;
    }

    fn names(&self) -> Vec<String> {
        self.objects.keys().map(|(kind, name)| format!("{kind} {name}")).collect()
    }
}

impl InformerReader {
    async fn until_pods(&mut self, names: &[&str]) {
        let names: Vec<String> = names.iter().map(|name| format!("shop/{name}")).collect();
        self.until(&format!("the pods {names:?}"), |known| known.pods() == names).await;
    }

    fn pods(&self) -> Vec<String> {
        self.objects.keys().filter(|(kind, _)| *kind == Kind::Pod).map(|(_, name)| name.clone()).collect()
    }

    fn lists_of_pods(&self) -> usize {
        self.replaced.get(&Kind::Pod).copied().unwrap_or(0)
    }
}

/// An API server with a pod, a namespace and a policy, and a source after its initial sync.
async fn watched(faults: impl FnOnce(&mut Faults)) -> (FakeApi, InformerReader) {
    watched_with(impatient(), faults).await
}

async fn watched_with(timing: RequestTiming, faults: impl FnOnce(&mut Faults)) -> (FakeApi, InformerReader) {
    let api = small_cluster();
    api.faults(faults);
    let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), timing).await;
    known.until_synced().await;
    api.until_watched().await;
    assert_eq!(known.names(), ["Namespace shop", "Pod shop/web", "NetworkPolicy shop/deny"]);
    (api, known)
}

fn small_cluster() -> FakeApi {
    let api = FakeApi::start();
    api.set(Kind::Namespace, json!({"metadata": {"name": "shop"}}));
    api.set(
        Kind::NetworkPolicy,
        json!({"metadata": {"namespace": "shop", "name": "deny"}, "spec": {"podSelector": {}}}),
    );
    api.set(Kind::Pod, pod("web"));
    api
}

fn pod(name: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "uid": name, "labels": {"app": name}},
        "spec": {"nodeName": "a", "containers": []},
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]},
    })
}

#[tokio::test]
async fn streaming_list_continues_as_watch_without_another_request() {
    let api = small_cluster();
    api.install(Kind::ClusterNetworkPolicy);
    let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), impatient()).await;
    known.until_synced().await;
    api.until_watched().await;
    api.set(Kind::Pod, pod("db"));
    known.until_pods(&["db", "web"]).await;
    api.remove(Kind::Pod, "shop", "web");
    known.until_pods(&["db"]).await;
    assert!(api.requests().iter().all(|r| r.verb == Verb::Watch && r.has("sendInitialEvents", "true")));
    assert!(api.requests().iter().all(|r| r.has("allowWatchBookmarks", "true") && r.has("timeoutSeconds", "290")));
    api.until_watching(Object::KINDS).await;
    assert_eq!(api.requests().len(), Object::KINDS.len());
}

#[tokio::test]
async fn unsupported_streaming_list_falls_back_to_pages_permanently() {
    let api = small_cluster();
    api.faults(|f| f.no_streaming = true);
    let names: Vec<String> = (0..1201).map(|i| format!("pod-{i:04}")).collect();
    names.iter().for_each(|name| api.set(Kind::Pod, pod(name)));
    let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), impatient()).await;
    known.until_synced().await;
    assert_eq!(known.pods().len(), 1202);
    assert_eq!(api.count(Verb::List, Kind::Pod), 3);
    assert!(known.problems.is_empty(), "{:?}", known.problems);

    api.until_watched().await;
    api.set(Kind::Namespace, json!({"metadata": {"name": "later"}}));
    api.compact();
    api.cut_connections();
    known.until("a second list", |known| known.lists_of_pods() == 2).await;
    let streams = |r: &&kit::fake_api::Request| r.kind == Kind::Pod.into() && r.has("sendInitialEvents", "true");
    assert_eq!(api.requests().iter().filter(streams).count(), 1);
}

#[tokio::test]
async fn unfinished_initial_stream_falls_back_to_pages() {
    let (api, mut known) = watched(|f| f.no_end_of_list = true).await;
    assert_eq!(api.count(Verb::List, Kind::Pod), 1);
    known.until_well().await;
}

#[tokio::test]
async fn pages_that_expire_are_read_as_one() {
    let api = small_cluster();
    (0..600).for_each(|i| api.set(Kind::Pod, pod(&format!("pod-{i}"))));
    api.faults(|f| (f.no_streaming, f.delay) = (true, Duration::from_millis(300)));
    let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), impatient()).await;
    let second_page = |r: &kit::fake_api::Request| r.kind == Kind::Pod.into() && r.query.contains_key("continue");
    api.until_requests("the second page", |requests| requests.iter().any(second_page)).await;
    api.compact();
    known.until_synced().await;
    assert_eq!(known.pods().len(), 601);
    let last = api.requests().into_iter().rfind(|r| (r.verb, r.kind) == (Verb::List, Kind::Pod.into())).unwrap();
    assert!(!last.query.contains_key("limit"), "{last:?}");
}

#[tokio::test]
async fn dropped_connection_loses_no_event_and_relists_nothing() {
    let (api, mut known) = watched(|_| {}).await;
    for round in 0..5 {
        api.cut_connections();
        api.set(Kind::Pod, pod(&format!("new-{round}")));
        api.remove(Kind::Pod, "shop", if round == 0 { "web".into() } else { format!("new-{}", round - 1) }.as_str());
        known.until_pods(&[&format!("new-{round}")]).await;
    }
    assert_eq!(known.lists_of_pods(), 1);
}

#[tokio::test]
async fn bookmark_advances_resource_version_of_idle_watch() {
    let (api, mut known) = watched(|_| {}).await;
    (0..10).for_each(|i| api.set(Kind::Pod, pod(&format!("pod-{i}"))));
    api.bookmark();
    let version = |r: &kit::fake_api::Request| r.query.get("resourceVersion").cloned();
    known.until("the pods", |known| known.pods().len() == 11).await;
    // The watch of namespaces has received only the bookmark; garbage makes it resume from there.
    api.send_raw(Kind::Namespace, b"garbage\n");
    let resumed = |r: &&kit::fake_api::Request| r.kind == Kind::Namespace.into() && !r.has("sendInitialEvents", "true");
    api.until_requests("the watch resumed", |requests| requests.iter().any(|r| resumed(&r))).await;
    let from = api.requests().iter().find(resumed).and_then(version);
    assert_eq!(from.as_deref(), Some("113"), "100, three objects, ten pods");
}

#[tokio::test]
async fn expired_resource_version_relists_and_applies_deletions() {
    for gone_as_status in [false, true] {
        let (api, mut known) = watched(|f| f.gone_as_status = gone_as_status).await;
        api.faults(|f| Object::KINDS.iter().for_each(|kind| f.refuse(*kind, &[Verb::Watch], 503)));
        api.cut_connections();
        known.until_problem("returned 503 to watch pods").await;
        api.remove(Kind::Pod, "shop", "web");
        api.set(Kind::Pod, pod("db"));
        api.compact();
        api.faults(|f| f.refusals.clear());
        known.until_pods(&["db"]).await;
        assert_eq!(known.lists_of_pods(), 2);
        known.until_well().await;
    }
}

#[tokio::test]
async fn undecodable_object_stops_neither_list_nor_watch() {
    let bad = |name: &str| json!({"metadata": {"namespace": "shop", "name": name, "labels": 7}, "spec": "none", "status": [1]});
    for no_streaming in [false, true] {
        let api = small_cluster();
        api.faults(|f| f.no_streaming = no_streaming);
        api.install(Kind::ClusterNetworkPolicy);
        Object::KINDS.iter().for_each(|kind| api.set(*kind, bad("bad")));
        let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), impatient()).await;
        known.until_synced().await;
        known.until_pods(&["bad", "web"]).await;
        Object::KINDS.iter().for_each(|kind| api.set(*kind, bad("worse")));
        api.set(Kind::Pod, pod("zoo"));
        known.until_pods(&["bad", "web", "worse", "zoo"]).await;
        let Object::Pod(worse) = &known.objects[&(Kind::Pod, "shop/worse".into())] else { panic!("not a pod") };
        assert!(worse.unreadable && !worse.problems.is_empty());
        assert_eq!(known.lists_of_pods(), 1);
    }
}

#[tokio::test]
async fn listed_and_watched_objects_equal_directly_lowered_ones() {
    for (number, world) in draw_worlds(12).iter().enumerate() {
        let mut documents = world.documents();
        for document in documents.iter_mut().filter(|document| kind_of(document) == Kind::NetworkPolicy) {
            // A server serves the requested API version.
            document["apiVersion"] = json!("networking.k8s.io/v1");
        }
        let object = |document| lower(kind_of(document), document).expect("generated objects have names");
        let objects = documents.iter().map(object);
        let expected: BTreeMap<_, _> =
            objects.map(|object| ((object.kind(), object.name().to_string()), object)).collect();
        let api = FakeApi::start();
        api.faults(|f| f.no_streaming = number % 2 == 1);
        // Some of each kind, since a list omits from its items the fields that every watch event has.
        let half = documents.len() / 2;
        documents.sort_by_key(|document| document["metadata"]["name"].to_string());
        let (listed, watched) = documents.split_at(half);
        listed.iter().for_each(|document| api.set(kind_of(document), document.clone()));
        let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), impatient()).await;
        known.until_synced().await;
        api.until_watched().await;
        watched.iter().for_each(|document| api.set(kind_of(document), document.clone()));
        known.until("every object", |known| known.objects.len() == expected.len()).await;
        assert_eq!(known.objects, expected);
    }
}

#[tokio::test]
async fn paged_policy_inherits_api_version_of_its_list() {
    for no_streaming in [false, true] {
        let api = small_cluster();
        api.faults(|f| f.no_streaming = no_streaming);
        let spec = json!({"podSelector": {}, "ingress": [{}]});
        let metadata = json!({"namespace": "shop", "name": "open"});
        api.set(
            Kind::NetworkPolicy,
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}),
        );
        let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), impatient()).await;
        known.until_synced().await;
        let Object::Policy(open) = &known.objects[&(Kind::NetworkPolicy, "shop/open".into())] else {
            panic!("not a policy")
        };
        assert!(open.is_understood(), "{open:?}");
    }
}

#[tokio::test]
async fn unnamed_object_is_a_problem_and_watch_continues() {
    let (api, mut known) = watched(|_| {}).await;
    api.send_raw(Kind::Pod, b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"labels\":{}}}}\n");
    known.until_problem("pods watch: ignored 1 objects without metadata.name").await;
    api.set(Kind::Pod, pod("db"));
    known.until_pods(&["db", "web"]).await;
}

#[tokio::test]
async fn garbled_event_is_not_lost() {
    let (api, mut known) = watched(|_| {}).await;
    api.set_garbled(Kind::Pod, pod("db"));
    api.set(Kind::Pod, pod("zoo"));
    known.until_pods(&["db", "web", "zoo"]).await;
    assert_eq!(known.lists_of_pods(), 1);
}

#[tokio::test]
async fn invalid_watch_lines_lose_no_event_without_relist() {
    let (api, mut known) = watched(|_| {}).await;
    for garbage in [b"\xff\xfe{{{\n".as_slice(), b"{}\n", b"{\"type\":\"NEW\",\"object\":{}}\n"] {
        api.until_watched().await;
        api.send_raw(Kind::Pod, garbage);
        api.set(Kind::Pod, pod("db"));
        known.until_pods(&["db", "web"]).await;
        api.remove(Kind::Pod, "shop", "db");
        known.until_pods(&["web"]).await;
        assert_eq!(known.lists_of_pods(), 1);
    }
}

#[tokio::test]
async fn forbidden_kind_names_missing_verb_others_continue() {
    let api = small_cluster();
    let policies = Kind::NetworkPolicy;
    api.faults(|f| f.refuse(policies, &[Verb::Watch, Verb::List], 403));
    let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), impatient()).await;
    known.until_problem("networkpolicies watch: forbidden: the RBAC verb 'watch' on networkpolicies").await;
    known.until_pods(&["web"]).await;
    known.until("the lists of the other kinds", |known| known.sync.missing() == [policies]).await;

    api.faults(|f| (f.no_streaming, f.refusals) = (true, BTreeMap::from([((policies.into(), Verb::List), 403)])));
    known.until_problem("the RBAC verb 'list' on networkpolicies in the API group networking.k8s.io is missing").await;
    api.faults(|f| f.refusals.clear());
    known.until_synced().await;
    known.until_well().await;
}

#[tokio::test]
async fn rejected_credentials_are_reported_as_unauthorized() {
    let api = small_cluster();
    api.faults(|f| f.refuse(Kind::Pod, &[Verb::Watch], 401));
    let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), impatient()).await;
    known.until_problem("pods watch: unauthorized: the API server rejected the credentials (401)").await;
    api.faults(|f| f.refusals.clear());
    known.until_synced().await;
    known.until_well().await;
}

#[tokio::test]
async fn server_errors_are_retried_and_store_is_kept() {
    let (api, mut known) = watched(|_| {}).await;
    api.faults(|f| Object::KINDS.iter().for_each(|kind| f.refuse(*kind, &[Verb::Watch], 500)));
    api.cut_connections();
    known.until_problem("the API server returned 500 to watch pods").await;
    let before = api.count(Verb::Watch, Kind::Pod);
    // More attempts than the informer makes before it gives up the resource version.
    api.until_requests("more attempts", |requests| requests.len() > 3 * (before + 10)).await;
    assert_eq!(known.names().len(), 3);
    api.set(Kind::Pod, pod("db"));
    api.faults(|f| f.refusals.clear());
    known.until_pods(&["db", "web"]).await;
    known.until_well().await;
}

#[tokio::test]
async fn unanswered_watch_request_times_out_and_is_retried() {
    let api = small_cluster();
    api.faults(|f| f.silent = true);
    let timing = RequestTiming { answer: Duration::from_millis(200), ..impatient() };
    let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), timing).await;
    known
        .until_problem("pods watch: the request to watch pods timed out: no answer from the API server for 200ms")
        .await;
    api.faults(|f| f.silent = false);
    known.until_synced().await;
    known.until_well().await;
}

#[tokio::test]
async fn stalled_watch_is_reopened_after_its_deadline() {
    let timing =
        RequestTiming { watch: Duration::from_secs(1), watch_grace: Duration::from_millis(200), ..impatient() };
    let (api, mut known) = watched_with(timing, |_| {}).await;
    api.faults(|f| f.stalled = true);
    let before = api.requests().len();
    api.until_requests("another watch", |requests| requests.len() >= before + 3).await;
    api.set(Kind::Pod, pod("db"));
    api.faults(|f| f.stalled = false);
    known.until_pods(&["db", "web"]).await;
    assert_eq!(known.lists_of_pods(), 1);
}

#[tokio::test]
async fn watch_ended_by_timeout_resumes_without_problem() {
    let timing = RequestTiming { watch: Duration::from_secs(1), ..impatient() };
    let (api, mut known) = watched_with(timing, |_| {}).await;
    let before = api.requests().len();
    api.until_requests("the next watches", |requests| requests.len() >= before + 6).await;
    api.set(Kind::Pod, pod("db"));
    known.until_pods(&["db", "web"]).await;
    assert_eq!((known.lists_of_pods(), known.problems.len()), (1, 0));
}

#[tokio::test]
async fn immediately_closed_watches_are_retried_with_backoff() {
    let (api, mut known) = watched(|_| {}).await;
    api.faults(|f| f.ends_watches = true);
    api.cut_connections();
    known.until_problem("the API server closes each watch of pods immediately").await;
    let (before, began) = (api.count(Verb::Watch, Kind::Pod), Instant::now());
    let pods = |r: &&kit::fake_api::Request| r.kind == Kind::Pod.into();
    api.until_requests("ten more", |requests| requests.iter().filter(pods).count() >= before + 10).await;
    // The backoffs are 5, 10, 20, 40, 40, … ms, each with at least half of that after jitter.
    assert!(began.elapsed() >= Duration::from_millis(120), "{:?}", began.elapsed());
    api.faults(|f| f.ends_watches = false);
    api.set(Kind::Pod, pod("db"));
    known.until_pods(&["db", "web"]).await;
    known.until_well().await;
}

#[tokio::test]
async fn delayed_and_fragmented_responses_are_read() {
    for no_streaming in [false, true] {
        let (api, mut known) = watched(|f| {
            *f = Faults { no_streaming, pieces: Some(3), delay: Duration::from_millis(50), ..Faults::default() };
        })
        .await;
        api.set(Kind::Pod, pod("db"));
        known.until_pods(&["db", "web"]).await;
        assert!(known.problems.is_empty(), "{:?}", known.problems);
    }
}

#[tokio::test]
async fn initial_sync_needs_every_required_kind() {
    for missing in Kind::NEEDED.into_iter().chain([Kind::ClusterNetworkPolicy]) {
        let api = small_cluster();
        api.install(Kind::ClusterNetworkPolicy);
        api.faults(|f| f.refuse(missing, &[Verb::Watch, Verb::List], 500));
        let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), impatient()).await;
        known.until("the lists of the other kinds", |known| known.sync.missing() == [missing]).await;
        api.faults(|f| f.refusals.clear());
        known.until_synced().await;
    }
}

#[tokio::test]
async fn unreachable_server_is_a_problem_of_every_watch() {
    let api = small_cluster();
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    std::fs::copy(api.kubeconfig(), kubeconfig.path()).unwrap();
    drop(api);
    let mut known: InformerReader = InformerReader::of(kubeconfig.path(), impatient()).await;
    let plurals = ["clusternetworkpolicies", "namespaces", "networkpolicies", "nodes", "pods"];
    known.until("a problem of each watch", |known| known.problems.len() == plurals.len()).await;
    for (problem, plural) in known.problems.iter().zip(plurals) {
        assert_eq!(problem.origin, format!("{plural} watch"));
        assert!(problem.message.starts_with("cannot connect to the API server: "), "{problem}");
        assert!(problem.message.contains("refused"), "{problem}");
    }
}

#[tokio::test]
async fn the_watches_end_with_their_listener() {
    let (_api, known) = watched(|_| {}).await;
    drop(known.events);
    timeout(DEADLINE, known.task).await.expect("it ends").expect("it does not panic");
}

#[tokio::test]
async fn nodes_are_listed_and_followed() {
    let node = |name: &str, address: &str| {
        json!({
            "metadata": {"name": name}, "spec": {"podCIDR": "10.1.0.0/24"},
            "status": {"addresses": [{"type": "InternalIP", "address": address}], "images": [{"names": ["a"]}]},
        })
    };
    for no_streaming in [false, true] {
        let api = small_cluster();
        api.faults(|f| f.no_streaming = no_streaming);
        api.set(Kind::Node, node("a", "192.0.2.1"));
        let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), impatient()).await;
        let lowered = |object: Value| lower(Kind::Node, &object).unwrap();
        let has = |known: &InformerReader, name: &str, address: &str| {
            known.objects.get(&(Kind::Node, name.into())) == Some(&lowered(node(name, address)))
        };
        known.until("the first node", |known| has(known, "a", "192.0.2.1")).await;
        api.until_watching(&[Kind::Node]).await;
        api.set(Kind::Node, node("a", "192.0.2.2"));
        api.set(Kind::Node, node("b", "2001:db8::1"));
        known.until("both nodes", |known| has(known, "a", "192.0.2.2") && has(known, "b", "2001:db8::1")).await;
        api.remove(Kind::Node, "", "a");
        known.until("one node", |known| !known.objects.contains_key(&(Kind::Node, "a".into()))).await;
    }
}
