//! Tests of the event loop with a real kernel, in separate network namespaces. They need the kernel, threads or the queue;
//! decisions of the reconciler are tested beside it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use policy::{Cause, Change, Judgement, Kind, Layout};
use tokio::sync::watch;

use super::*;
use crate::api::drops::DropsQuery;
use crate::enforcer::EarlierTables;
use crate::metrics::Metrics;
use crate::netns::in_new_namespace;
use crate::reconciler::fixture::{dependencies, pod, shop, source_event};
use crate::reports::{DropsReader, FirstPacket, PacketContent, PacketFlow, PacketGroup};
use crate::status::AgentStatus;
use crate::translation_check::{Differences, TranslationCheck};

/// Timeout of the loop's reactions.
const PATIENCE: Duration = Duration::from_secs(30);

/// No scheduled check interferes with the test's own.
const RARELY: Duration = Duration::from_secs(3600);

/// An event loop that has enforced the policy of a database that its web servers may reach.
fn enforcing(
    check_interval: Option<Duration>,
    run_dir: &Path,
) -> (EventLoop, watch::Receiver<Arc<AgentStatus>>, Arc<Metrics>) {
    let metrics = Arc::new(Metrics::new());
    let layout = Layout::for_table("ringfence").unwrap();
    let enforcer = Enforcer::start(&layout, layout.first_generation(), metrics.clone()).unwrap();
    let status = AgentStatus { node: "node-a".into(), ..AgentStatus::default() };
    let dependencies = dependencies(layout, RARELY, check_interval);
    let (reconciler, statuses) = Reconciler::new(status, dependencies, metrics.clone(), Instant::now());
    let mut event_loop = EventLoop::new(
        reconciler,
        enforcer,
        run_dir,
        None,
        DnsClients::of_agent(EarlierTables::Missing, Instant::now()),
    );
    event_loop.receive(changes_event(shop()));
    event_loop.finish_iteration();
    assert_eq!(web_servers(&event_loop.enforcer), ["10.2.0.1"]);
    (event_loop, statuses, metrics)
}

fn changes_event(changes: impl IntoIterator<Item = Change>) -> Event {
    Event::Source(source_event(changes, Instant::now()))
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
fn run_beside(event_loop: EventLoop, work: impl AsyncFnOnce(mpsc::Sender<Event>)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let (events, queue) = mpsc::channel(EVENTS_QUEUED);
        let (observations, observed) = mpsc::channel(1);
        tokio::join!(event_loop.run(queue, observed), async {
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
fn translation_difference_is_reported_and_repaired() {
    in_new_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let (mut event_loop, statuses, metrics) = enforcing(Some(Duration::from_millis(50)), folder.path());
        // The translation does not see this change.
        assert!(event_loop.reconciler.apply_unrecorded(Change::Set(pod("web-2", "web", "node-b", "10.2.0.2"))));
        assert_eq!(in_kernel(), ["10.2.0.1"]);
        run_beside(event_loop, async |_events| {
            until("the difference is repaired", || in_kernel() == ["10.2.0.1", "10.2.0.2"]).await;
            let checks = metrics.translation_checks.get();
            until("another check has run", || metrics.translation_checks.get() > checks).await;
            assert_eq!(metrics.translation_differences.get(), 1, "it is repaired once");
            let notes = statuses.borrow().notes();
            assert!(
                notes.len() == 1 && notes[0].contains("10.2.0.2") && notes[0].contains("translation check failed"),
                "{notes:?}"
            );
        });
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
        let (mut event_loop, statuses, metrics) = enforcing(Some(Duration::from_millis(50)), folder.path());
        event_loop.checks = CheckThread::running(take_long);
        run_beside(event_loop, async |events| {
            until("a check runs", || STARTED.load(Ordering::SeqCst)).await;
            events.send(changes_event([Change::Set(pod("web-2", "web", "node-b", "10.2.0.2"))])).await.unwrap();
            until("the change is in force", || in_kernel() == ["10.2.0.1", "10.2.0.2"]).await;
            assert_eq!(metrics.translation_checks.get(), 0, "the check still runs");
            RELEASED.store(true, Ordering::SeqCst);
            until("the check has ended", || metrics.translation_checks.get() > 0).await;
            assert_eq!(metrics.translation_differences.get(), 0, "a change during the check is no difference");
            assert_eq!(statuses.borrow().notes(), Vec::<String>::new());
        });
    });
}

#[test]
fn denied_packets_are_named_from_a_snapshot() {
    in_new_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let (mut event_loop, ..) = enforcing(None, folder.path());
        let flow = PacketFlow {
            source: "10.2.0.1".parse().unwrap(),
            destination: "10.1.0.1".parse().unwrap(),
            protocol: 6,
            port: Some(80),
        };
        let group = PacketGroup {
            judgement: Judgement::Denied,
            cause: Cause::Ingress,
            reply: false,
            carried: PacketContent::Flow(flow),
            input: None,
            output: None,
        };
        let event =
            DropEvent { at: "2026-05-04T03:02:01Z".parse().unwrap(), group, first: FirstPacket::default(), count: 1 };
        let (events, mut queue) = mpsc::channel(100);
        for _ in 0..100 {
            events.try_send(event.clone()).unwrap();
        }
        event_loop.name_drops(event, &mut queue);
        assert_eq!(queue.len(), 37, "64 are named at once");
        let gone = Change::Remove(Kind::Pod, ObjectName::new("shop", "web-1"));
        event_loop.receive(changes_event([gone]));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let named = runtime.block_on(event_loop.naming.outcome()).unwrap();
        assert_eq!(named[0].1.source.named(), "shop/web-1");
        event_loop.report_drops(Some(named));
        let lines = event_loop.reconciler.drop_stream().subscribe(DropsQuery::default()).unwrap();
        assert_eq!(runtime.block_on(kept(lines)), 64);
    });
}

/// Number of files that each event makes the loop list, which takes longer than to send the event.
const FILES_LISTED: usize = 2_000;

/// Each event takes longer to handle than to send, so the queue is never empty: a loop that handled events until it is would
/// not commit before the flood ends, which waits for the commit.
#[test]
fn flood_of_events_does_not_delay_commit() {
    in_new_namespace(|| {
        let folder = tempfile::tempdir().unwrap();
        let (event_loop, ..) = enforcing(None, folder.path());
        let attachments = attachments::folder(folder.path());
        std::fs::create_dir_all(&attachments).unwrap();
        for number in 0..FILES_LISTED {
            std::fs::write(attachments.join(format!(".unfinished{number}.json.new")), "").unwrap();
        }
        let (sent, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        run_beside(event_loop, async |events| {
            let (flood, counter, end) = (events.clone(), sent.clone(), ended.clone());
            let sender = std::thread::spawn(move || {
                let deadline = Instant::now() + PATIENCE;
                while !end.load(Ordering::SeqCst) && Instant::now() < deadline {
                    flood.blocking_send(Event::Links(QueuedFlag::default())).unwrap();
                    counter.fetch_add(1, Ordering::SeqCst);
                }
            });
            // In a thread of its own: the loop does not give way to a task while its queue has events.
            let waiter = std::thread::spawn(move || {
                poll_until("the queue overflows", || sent.load(Ordering::SeqCst) > 2 * EVENTS_QUEUED);
                let change = Change::Set(pod("web-2", "web", "node-b", "10.2.0.2"));
                events.blocking_send(changes_event([change])).unwrap();
                poll_until("the change is in force", || in_kernel() == ["10.2.0.1", "10.2.0.2"]);
                assert!(!sender.is_finished(), "it was in force only after the flood");
                ended.store(true, Ordering::SeqCst);
                sender.join().unwrap();
            });
            until("the flood has ended", || waiter.is_finished()).await;
            waiter.join().unwrap();
        });
    });
}

fn poll_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + 2 * PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Number of the lines until the last kept one.
async fn kept(mut lines: DropsReader) -> usize {
    let mut count = 0;
    while lines.next().await.is_some() {
        count += 1;
    }
    count
}
