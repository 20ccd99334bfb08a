//! Publication delay of a change while the API server reports a steady stream of events. Delays are counted in events
//! of that stream instead of seconds, so that a busy machine slows both sides.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use kit::agent_process::until;
use kit::fake_api::FakeApi;
use kit::fake_api::Kind;
use kit::provider_process::{Provider, free_port};
use serde_json::json;

use super::follower::Follower;
use super::table::FollowedTable;
use super::{CLUSTER, IDENTITY, namespace, pod};

/// At most 100 events per second.
const EVENT_INTERVAL: Duration = Duration::from_millis(10);

/// Changes whose delays are measured, one after the other.
const MARKERS: usize = 9;

/// The debounce before a publication is 20 events; waiting for a quiet moment took 100.
const MEDIAN_DELAY_EVENTS: usize = 50;

/// Publishes markers amid the stream of events. Returns their median delay, and the number of published deltas.
fn publish_markers(api: &FakeApi, provider: &Provider, event: impl Fn(usize) + Sync) -> (usize, usize) {
    let follower = Follower::start(provider.address(), IDENTITY);
    until("the follower has the baseline", || (follower.seen().baselines > 0).then_some(()));
    let (events, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut delays = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                event(events.fetch_add(1, Ordering::Relaxed));
                // A busy machine delays events; a pause keeps them from following as one burst.
                std::thread::sleep(EVENT_INTERVAL);
            }
        });
        let publish = |number: usize| {
            let address = format!("10.9.0.{number}");
            let at = events.load(Ordering::Relaxed);
            api.set(Kind::Pod, pod("shop", &format!("marker-{number}"), "marker", &[&address]));
            until("the marker is published", || {
                let FollowedTable::Identity(records) = follower.seen().table else {
                    panic!("not the feed of identities")
                };
                records.contains_key(&address.parse().unwrap()).then_some(())
            });
            events.load(Ordering::Relaxed) - at
        };
        let delays = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            (0..MARKERS).map(publish).collect::<Vec<usize>>()
        }));
        ended.store(true, Ordering::Relaxed);
        delays.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    delays.sort_unstable();
    (delays[MARKERS / 2], follower.seen().deltas)
}

fn start() -> (FakeApi, Provider) {
    let api = FakeApi::start();
    api.set(Kind::Namespace, namespace("shop", json!({})));
    api.set(Kind::Pod, pod("shop", "web", "web", &["10.0.0.1"]));
    let kubeconfig = api.kubeconfig().display().to_string();
    let mut provider = Provider::start(free_port(), ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER]);
    provider.until_ready();
    (api, provider)
}

#[test]
fn provider_publishes_soon_under_steady_changes() {
    let (api, provider) = start();
    let (median, _) = publish_markers(&api, &provider, |number| {
        api.set(Kind::Pod, pod("shop", "web", &format!("web-{number}"), &["10.0.0.1"]));
    });
    assert!(median <= MEDIAN_DELAY_EVENTS, "{median} events came before a change was published");
}

#[test]
fn provider_ignores_events_that_change_nothing() {
    const LATENCIES: &str = "ringfence_context_publication_latency_seconds_count";
    let (api, provider) = start();
    let published = provider.metric(LATENCIES, &[]);
    let (median, deltas) = publish_markers(&api, &provider, |number| {
        let mut same = pod("shop", "web", "web", &["10.0.0.1"]);
        same["metadata"]["annotations"] = json!({"number": number.to_string()});
        api.set(Kind::Pod, same);
    });
    assert!(median <= MEDIAN_DELAY_EVENTS, "{median} events came before a change was published");
    assert_eq!(deltas, MARKERS);
    assert!((provider.metric(LATENCIES, &[]) - published - MARKERS as f64).abs() < 0.1, "one latency for each delta");
}
