//! Tests of the event loop with a real kernel, in separate network namespaces.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use identity::{ClusterName, ClusterScheme, LabelFilter};
use policy::{Cause, Judgement, Layout, lower};
use serde_json::{Value, json};

use super::*;
use crate::api::drops::DropsQuery;
use crate::attachments;
use crate::dns::{Lifetimes, Resolvers, SavedNames};
use crate::netns::in_new_namespace;
use crate::reports::{Carried, DropsReader, FirstPacket, Flow, PacketGroup, Place, Stream};
use crate::translation_check::{Differences, TranslationCheck};

/// Timeout of the loop's reactions.
const PATIENCE: Duration = Duration::from_secs(30);

/// No scheduled check interferes with the test's own.
const RARELY: Duration = Duration::from_secs(3600);

fn pod(name: &str, app: &str, node: &str, address: &str) -> Object {
    let object = json!({
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": app}},
        "spec": {"nodeName": node}, "status": {"podIPs": [{"ip": address}]},
    });
    lower(Kind::Pod, &object).unwrap()
}

fn object(kind: Kind, object: &Value) -> Object {
    lower(kind, object).unwrap()
}

/// A loop that has enforced the policy of a database that its web servers may reach.
fn enforcing(
    checks: TranslationChecks,
    run_dir: &std::path::Path,
) -> (Reconciler, watch::Receiver<Arc<AgentStatus>>, Arc<Metrics>) {
    let (mut reconciler, statuses, metrics) = synced(checks, run_dir);
    reconciler.reconcile();
    assert_eq!(web_servers(&reconciler.enforcer), ["10.2.0.1"]);
    (reconciler, statuses, metrics)
}

/// The loop of [`enforcing`], before it has enforced anything.
fn synced(
    checks: TranslationChecks,
    run_dir: &std::path::Path,
) -> (Reconciler, watch::Receiver<Arc<AgentStatus>>, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new());
    let layout = Layout::for_table("ringfence").unwrap();
    let enforcer = Enforcer::start(&layout, layout.first_generation(), metrics.clone()).unwrap();
    let place = Place { node: "node-a".into(), remote: vec![], pod_cidrs: vec![] };
    let identities = ClusterScheme::new(ClusterName::Configured("".into()), LabelFilter::default());
    let lifetimes = Lifetimes { shortest: RARELY, longest: RARELY };
    let dependencies = Dependencies {
        layout,
        run_dir: run_dir.to_owned(),
        lookups: None,
        resync: RARELY,
        checks,
        enforcement: Enforcement::Enforce,
        drop_reporting: DropReporting::new(place, Arc::new(Stream::new()), identities),
        names: NameLearning::new(
            Resolvers::default(),
            lifetimes,
            "cluster.local".into(),
            SavedNames::in_folder(run_dir),
            None,
        ),
        flows: None,
        prefixes: vec![],
        remote: None,
    };
    let status = AgentStatus { node: "node-a".into(), ..AgentStatus::default() };
    let (mut reconciler, statuses) = Reconciler::new(enforcer, status, dependencies, metrics.clone());
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
        },
    });
    let pods = vec![pod("db", "db", "node-a", "10.1.0.1"), pod("web-1", "web", "node-b", "10.2.0.1")];
    let changes = [
        Change::Replace(Kind::Namespace, vec![object(Kind::Namespace, &json!({"metadata": {"name": "shop"}}))]),
        Change::Replace(Kind::Pod, pods),
        Change::Replace(Kind::NetworkPolicy, vec![object(Kind::NetworkPolicy, &policy)]),
        Change::Replace(Kind::ClusterNetworkPolicy, vec![]),
    ];
    assert!(reconciler.apply(changes_event(changes)));
    (reconciler, statuses, metrics)
}

fn changes_event(changes: impl IntoIterator<Item = Change>) -> Event {
    let timed = |change| TimedChange { change, at: Instant::now() };
    Event::Source(cluster::SourceEvent::Changes(changes.into_iter().map(timed).collect()))
}

/// Addresses of the web servers in the rules of the last commit.
fn web_servers(enforcer: &Enforcer) -> Vec<String> {
    let ruleset = enforcer.rulesets().next().expect("rules in force");
    let (_, set) = ruleset.sets.iter().find(|(name, _)| name.as_str() == "pods4/shop/app/web").unwrap();
    set.elements.iter().map(|(key, _)| key.to_string()).collect()
}

fn in_kernel() -> Vec<String> {
    let table = nft::Table::inet(nft::Name::new("ringfence").unwrap());
    let observed = nfnetlink::Kernel::open().unwrap().read(&table).unwrap().expect("a table");
    observed.addresses("pods4/shop/app/web").iter().map(IpAddr::to_string).collect()
}

/// Runs the loop until the concurrent work ends.
fn run_beside(reconciler: Reconciler, work: impl AsyncFnOnce(mpsc::Sender<Event>)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let (events, queue) = mpsc::channel(EVENTS_QUEUED);
        let (observations, observed) = mpsc::channel(1);
        tokio::join!(reconciler.run(queue, observed), async {
            work(events).await;
            drop(observations);
        });
    });
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn lost_change_is_found_reported_and_mended() {
    in_new_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let checks = TranslationChecks::new(Some(Duration::from_millis(50)));
        let (mut reconciler, statuses, metrics) = enforcing(checks, folder.path());
        // The translation does not see this change.
        assert!(reconciler.model.apply_unrecorded(Change::Set(pod("web-2", "web", "node-b", "10.2.0.2"))));
        assert_eq!(in_kernel(), ["10.2.0.1"]);
        run_beside(reconciler, async |_events| {
            until("the difference is mended", || in_kernel() == ["10.2.0.1", "10.2.0.2"]).await;
            let checks = metrics.translation_checks.get();
            until("another check has run", || metrics.translation_checks.get() > checks).await;
            assert_eq!(metrics.translation_differences.get(), 1, "it is mended once");
            let notes = statuses.borrow().notes();
            assert!(
                notes.len() == 1 && notes[0].contains("10.2.0.2") && notes[0].contains("translation check failed"),
                "{notes:?}"
            );
        });
    });
}

#[test]
fn add_waits_for_pending_commit_and_examination() {
    in_new_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let (mut reconciler, ..) = enforcing(TranslationChecks::new(None), folder.path());
        let id = cni::AttachmentKey::new("c1", "eth0").unwrap();
        let address = "10.1.0.1".parse().unwrap();
        let attachment =
            cni::AttachmentRecord { addresses: vec![address], ..cni::AttachmentRecord::new(id, "shop", "db") };
        cni::store::write(&attachments::folder(folder.path()), &attachment).unwrap();
        // A long attempt before: the next commit is debounced.
        reconciler.schedule.record_duration(Duration::from_secs(1));
        let since = Instant::now();
        reconciler.schedule.record_success(since);
        let (reply, mut answer) = oneshot::channel();
        let attachment = attachments::lower(&attachment);
        let waiting = PendingAdd { attachment, since, deadline: since + PATIENCE, reply, unknown: None };
        reconciler.receive(Event::Cni(Call::Add(Box::new(waiting))));
        reconciler.step(since);
        assert!(reconciler.schedule.is_commit_pending());
        assert!(answer.try_recv().is_err(), "the rules in force do not cover the attachment yet");
        reconciler.step(since + Duration::from_millis(10));
        assert!(answer.try_recv().is_err(), "the node has not been examined since a pod is isolated");
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        while reconciler.examinations.is_pending() {
            let findings = runtime.block_on(reconciler.examinations.outcome());
            reconciler.record_examination(findings.map(|_| vec![]));
        }
        reconciler.step(Instant::now());
        assert_eq!(answer.try_recv(), Ok(Outcome::Enforced));
    });
}

/// Rules without the attachments would replace those of an earlier agent that check the pods' interfaces.
#[test]
fn unreadable_attachment_folder_delays_first_commit() {
    in_new_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let attachments = folder.path().join("cni");
        std::fs::write(&attachments, "not a folder").unwrap();
        let (mut reconciler, _, _) = synced(TranslationChecks::new(None), folder.path());
        reconciler.reconcile();
        assert_eq!(reconciler.enforcer.rulesets().count(), 0);
        let reason = reconciler.status.unready().unwrap();
        assert!(reason.contains("until the attachments can be read"), "{reason}");
        std::fs::remove_file(&attachments).unwrap();
        reconciler.read_attachments();
        reconciler.verify();
        assert_eq!(web_servers(&reconciler.enforcer), ["10.2.0.1"]);
        assert_eq!(reconciler.status.unready(), None);
    });
}

static RELEASED: AtomicBool = AtomicBool::new(false);
static STARTED: AtomicBool = AtomicBool::new(false);

/// Blocks until it is released.
fn take_long(check: TranslationCheck) -> Differences {
    STARTED.store(true, Ordering::SeqCst);
    let deadline = Instant::now() + PATIENCE;
    while !RELEASED.load(Ordering::SeqCst) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(5));
    }
    check.run()
}

#[test]
fn event_loop_enforces_while_translations_are_compared() {
    in_new_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let checks = TranslationChecks::new(Some(Duration::from_millis(50))).running_with(take_long);
        let (reconciler, statuses, metrics) = enforcing(checks, folder.path());
        run_beside(reconciler, async |events| {
            until("a check runs", || STARTED.load(Ordering::SeqCst)).await;
            events.send(changes_event([Change::Set(pod("web-2", "web", "node-b", "10.2.0.2"))])).await.unwrap();
            until("the change is in force", || in_kernel() == ["10.2.0.1", "10.2.0.2"]).await;
            assert_eq!(metrics.translation_checks.get(), 0, "the check still runs");
            RELEASED.store(true, Ordering::SeqCst);
            until("the check has ended", || metrics.translation_checks.get() > 0).await;
            assert_eq!(metrics.translation_differences.get(), 0, "what came during the check is no difference");
            assert_eq!(statuses.borrow().notes(), Vec::<String>::new());
        });
    });
}

#[test]
fn denied_packets_are_named_from_a_snapshot() {
    in_new_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let (mut reconciler, ..) = enforcing(TranslationChecks::new(None), folder.path());
        let flow = Flow {
            source: "10.2.0.1".parse().unwrap(),
            destination: "10.1.0.1".parse().unwrap(),
            protocol: 6,
            port: Some(80),
        };
        let group = PacketGroup {
            judgement: Judgement::Denied,
            cause: Cause::Ingress,
            reply: false,
            carried: Carried::Flow(flow),
            input: None,
            output: None,
        };
        let event =
            DropEvent { at: "2026-05-04T03:02:01Z".parse().unwrap(), group, first: FirstPacket::default(), count: 1 };
        let (events, mut queue) = mpsc::channel(100);
        for _ in 0..100 {
            events.try_send(event.clone()).unwrap();
        }
        reconciler.name_drops(event, &mut queue);
        assert_eq!(queue.len(), 37, "64 are named at once");
        let gone = Change::Remove(Kind::Pod, ObjectName::new("shop", "web-1"));
        assert!(reconciler.apply(changes_event([gone])));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let named = runtime.block_on(reconciler.drop_reporting.naming.outcome());
        assert_eq!(named.as_ref().unwrap()[0].1.source.named(), "shop/web-1");
        reconciler.report_named(named);
        let lines = reconciler.drop_reporting.stream.follow(DropsQuery::default()).unwrap();
        assert_eq!(runtime.block_on(kept(lines)), 64);
    });
}

/// Each event takes longer to handle than to send, so the queue is never empty.
#[test]
fn flood_of_events_does_not_delay_commit() {
    const FLOOD: Duration = Duration::from_secs(5);
    in_new_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let (reconciler, ..) = enforcing(TranslationChecks::new(None), folder.path());
        run_beside(reconciler, async |events| {
            let (since, flood) = (Instant::now(), events.clone());
            let sender = std::thread::spawn(move || {
                while since.elapsed() < FLOOD && flood.blocking_send(Event::Links(Queued::default())).is_ok() {}
            });
            tokio::time::sleep(Duration::from_millis(100)).await;
            events.send(changes_event([Change::Set(pod("web-2", "web", "node-b", "10.2.0.2"))])).await.unwrap();
            until("the change is in force", || in_kernel() == ["10.2.0.1", "10.2.0.2"]).await;
            assert!(since.elapsed() < FLOOD, "it was in force after {:?}", since.elapsed());
            // The loop has to take its last event from the queue.
            while !sender.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
    });
}

/// Number of the lines until the last kept one.
async fn kept(mut lines: DropsReader) -> usize {
    let mut count = 0;
    while lines.next().await.is_some() {
        count += 1;
    }
    count
}
