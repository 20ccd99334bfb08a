use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use kit::fake_api::Kind;
use kit::fake_api::{FailingStreams, FakeApi, NO_WATCH_PROGRESS, Verb};
use kit::provider_process::{Provider, free_port};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

use super::follower::Follower;
use super::{CLUSTER, FEEDS, Fresh, IDENTITY, World, namespace, pod};

fn start(api: &FakeApi) -> Provider {
    let kubeconfig = api.kubeconfig().display().to_string();
    Provider::start(free_port(), ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER])
}

#[track_caller]
fn until_served(provider: &mut Provider, fresh: &Fresh) {
    provider.until("what a fresh start has is served", |provider| {
        let version = |feed: &str| Some(provider.try_json(&format!("/{feed}/version")).ok()?["version"].clone());
        FEEDS.iter().zip(&fresh.versions).all(|(feed, meant)| version(feed).is_some_and(|v| v == *meant)).then_some(())
    });
}

fn has_problem(status: &Value, words: &[&str]) -> bool {
    let problems = status["problems"].as_array().unwrap();
    problems.iter().any(|problem| words.iter().all(|word| problem.to_string().contains(word)))
}

#[test]
fn invalid_parts_of_objects_are_skipped_and_reported() {
    let (api, mut world) = (FakeApi::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("shop", json!({})));
    world.set(&api, Kind::Pod, pod("shop", "odd", "odd", &["10.0.0.300", "10.0.0.1"]));
    world.set(&api, Kind::Pod, pod("shop", "twin-1", "twin-1", &["10.0.0.2"]));
    world.set(&api, Kind::Pod, pod("shop", "twin-2", "twin-2", &["10.0.0.2"]));
    let mut huge = pod("shop", "huge", "huge", &["10.0.0.3"]);
    huge["metadata"]["labels"]["essay"] = "x".repeat(100_000).into();
    huge["metadata"]["labels"]["empty"] = "".into();
    world.set(&api, Kind::Pod, huge);
    world.set(&api, Kind::Pod, json!({"metadata": {"namespace": "shop", "name": "hollow"}, "spec": 7, "status": []}));
    let mut provider = start(&api);
    provider.until_ready();
    let fresh = world.fresh();
    until_served(&mut provider, &fresh);
    let super::table::FollowedTable::Identity(records) = &fresh.tables[0] else { panic!("{fresh:?}") };
    let of = |address: &str| &records[&address.parse().unwrap()];
    assert_eq!(records.len(), 3, "{records:#?}");
    assert_eq!(of("10.0.0.1")["workload"], "odd");
    assert_eq!(of("10.0.0.3")["labels"], json!({"app": "huge", "empty": ""}));
    let status = provider.try_status().unwrap();
    for words in [&["shop/odd", "10.0.0.300"], &["shop/huge", "labels[essay]"]] {
        assert!(has_problem(&status, words), "{words:?} in {status:#}");
    }
    // One of the two pods owns the address, and the other does once that one is deleted.
    let owner = of("10.0.0.2")["workload"].as_str().unwrap().to_owned();
    let follower = Follower::start(provider.address(), IDENTITY);
    follower.until_has(&fresh.tables[0]);
    world.remove(&api, Kind::Pod, "shop", &owner);
    let fresh = world.fresh();
    follower.until_has(&fresh.tables[0]);
    let super::table::FollowedTable::Identity(records) = &fresh.tables[0] else { panic!("{fresh:?}") };
    assert_ne!(records[&"10.0.0.2".parse().unwrap()]["workload"], owner);
}

#[test]
fn identities_are_served_without_classifying_kinds() {
    let (api, mut world) = (FakeApi::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("shop", json!({})));
    world.set(&api, Kind::Pod, pod("shop", "web-1", "web", &["10.0.0.1"]));
    for kind in [Kind::Service, Kind::Ingress] {
        api.faults(|faults| faults.refuse(kind, &[Verb::List, Verb::Watch], 403));
    }
    let mut provider = start(&api);
    provider.until_ready();
    let without = world.fresh();
    until_served(&mut provider, &without);
    provider.until_status("what is forbidden is named", |status| {
        has_problem(status, &["services"]) && has_problem(status, &["ingresses"])
    });
    // A kind whose CustomResourceDefinition is missing is also named, and is not a problem.
    let custom =
        json!(["ClusterNetworkPolicy", "Gateway", "HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"]);
    provider.until_status("what is not served is named", |status| status["unserved"] == custom);
    assert!(!has_problem(&provider.try_status().unwrap(), &["routes"]));

    let service = json!({
        "metadata": {"namespace": "shop", "name": "web"}, "spec": {"type": "NodePort", "selector": {"app": "web"}},
    });
    world.set(&api, Kind::Service, service);
    api.faults(|faults| faults.refusals.clear());
    let exposed = world.fresh();
    assert_ne!(exposed.versions[0], without.versions[0]);
    until_served(&mut provider, &exposed);
    provider.until_status("nothing is missing", |status| !has_problem(status, &["services"]));
}

#[test]
fn interrupted_lists_are_retried_until_complete() {
    let (api, mut world) = (FakeApi::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("shop", json!({})));
    for number in 0..200 {
        world.set(&api, Kind::Pod, pod("shop", &format!("web-{number}"), "web", &[&format!("10.0.1.{number}")]));
    }
    api.faults(|faults| faults.pieces = Some(64));
    let mut provider = start(&api);
    let ends = Instant::now() + Duration::from_millis(500);
    while Instant::now() < ends {
        api.cut_connections();
        std::thread::sleep(Duration::from_millis(20));
        // A partial list never counts as the whole.
        if let Ok(head) = provider.try_json("/identity/version") {
            assert_eq!(head["count"], 200);
        }
    }
    provider.until_ready();
    until_served(&mut provider, &world.fresh());
    world.remove(&api, Kind::Pod, "shop", "web-7");
    api.cut_connections();
    until_served(&mut provider, &world.fresh());
}

/// Longer than the kernel's timeout for a peer that reads nothing.
const SENT_AWAY_WITHIN: Duration = Duration::from_secs(150);

/// Shorter than the kernel's timeout for such a peer: a follower that takes that long is blocked by it.
const NOT_HELD: Duration = Duration::from_secs(30);

/// Together larger than any kernel buffer.
const HEAVY_ROUNDS: usize = 14;

#[test]
fn stalled_subscriber_is_disconnected_without_delaying_others() {
    let (api, mut world) = (FakeApi::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("shop", json!({})));
    for number in 0..250 {
        world.set(&api, Kind::Pod, pod("shop", &format!("web-{number}"), "web", &[&format!("10.0.1.{number}")]));
    }
    let mut provider = start(&api);
    provider.until_ready();
    let mut deaf = TcpStream::connect(provider.address()).unwrap();
    setsockopt(&deaf, sockopt::RcvBuf, &4096).unwrap();
    write!(deaf, "GET /identity/deltas HTTP/1.1\r\nhost: ringfence\r\n\r\n").unwrap();
    let follower = Follower::start(provider.address(), IDENTITY);
    let subscribers = |status: &Value| status["feeds"][IDENTITY]["subscribers"].as_u64();
    provider.until_status("both are there", |status| subscribers(status) == Some(2));
    // Labels that make the deltas large.
    for round in 0..HEAVY_ROUNDS {
        for number in 0..20 {
            let mut pod = pod("shop", &format!("web-{number}"), "web", &[&format!("10.0.1.{number}")]);
            for key in 0..150 {
                pod["metadata"]["labels"][format!("essay-{key}")] = format!("{round:x>250}").into();
            }
            world.set(&api, Kind::Pod, pod);
        }
        let fresh = world.fresh();
        let began = Instant::now();
        until_served(&mut provider, &fresh);
        follower.until_has(&fresh.tables[0]);
        assert!(began.elapsed() < NOT_HELD, "the other waited for {:?}", began.elapsed());
    }
    let ends = Instant::now() + SENT_AWAY_WITHIN;
    while subscribers(&provider.try_status().unwrap()) != Some(1) {
        assert!(Instant::now() < ends, "{}", provider.try_status().unwrap());
        std::thread::sleep(Duration::from_millis(100));
    }
    world.set(&api, Kind::Pod, pod("shop", "last", "web", &["10.0.2.1"]));
    follower.until_has(&world.fresh().tables[0]);
    // Data in flight can still be read, and then the connection is closed.
    deaf.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut rest = vec![];
    let end = deaf.read_to_end(&mut rest);
    assert!(end.is_ok() || end.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionReset), "{end:?}");
}

#[test]
fn provider_serves_where_etcd_lacks_watch_progress() {
    let (api, mut world) = (FakeApi::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("shop", json!({})));
    world.set(&api, Kind::Pod, pod("shop", "web", "web", &["10.0.0.1"]));
    api.faults(|f| f.failing_streams = Some(FailingStreams { failure: NO_WATCH_PROGRESS, requests: None }));
    let mut provider = start(&api);
    provider.until_ready();
    until_served(&mut provider, &world.fresh());
    let status = provider.try_status().unwrap();
    assert!(!has_problem(&status, &["RequestWatchProgress"]), "{status:#}");
}
