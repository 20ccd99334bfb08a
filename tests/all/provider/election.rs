use kit::fake_api::FakeApi;
use kit::fake_api::Kind;
use kit::provider_process::{Provider, free_port};
use serde_json::{Value, json};
use tests::fake_relay::{FakeRelay, ReceivedPush};

use super::follower::Follower;
use super::relayed::until_relayed;
use super::{CLUSTER, FEEDS, IDENTITY, World, namespace, pod};

fn epochs(relay: &FakeRelay) -> Vec<u64> {
    let deltas = relay.taken(IDENTITY).into_iter().filter_map(|taken| match taken {
        ReceivedPush::Delta(delta) => delta["epoch"].as_u64(),
        ReceivedPush::Baseline { .. } => None,
    });
    let mut epochs: Vec<u64> = deltas.collect();
    epochs.dedup();
    epochs
}

/// One of several candidates, which pushes to the relay while it leads.
fn candidate(api: &FakeApi, relay: &FakeRelay, identity: &str) -> Provider {
    let (kubeconfig, url) = (api.kubeconfig().display().to_string(), relay.url());
    let arguments = ["--kubeconfig", &kubeconfig, "--push-url", &url, "--leader-elect", "--lease-identity", identity];
    Provider::start(free_port(), arguments)
}

/// The first candidate leads, and the second is on standby.
fn two(api: &FakeApi, relay: &FakeRelay) -> [Provider; 2] {
    let mut first = candidate(api, relay, "first");
    first.until_status("it leads", leads);
    let mut second = candidate(api, relay, "second");
    second.until_ready();
    [first, second]
}

fn leads(status: &Value) -> bool {
    status["leads"] == true
}

#[test]
fn second_provider_pushes_new_epoch_after_leader() {
    let (api, relay, mut world) = (FakeApi::start(), FakeRelay::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("kube-system", json!({})));
    world.set(&api, Kind::Namespace, namespace("shop", json!({})));
    world.set(&api, Kind::Pod, pod("shop", "web-1", "web", &["10.0.0.1"]));
    let [first, mut second] = two(&api, &relay);
    let followers = FEEDS.map(|feed| Follower::start(second.address(), feed));

    world.set(&api, Kind::Pod, pod("shop", "web-2", "web", &["10.0.0.2"]));
    let fresh = world.fresh();
    for (at, feed) in FEEDS.into_iter().enumerate() {
        until_relayed(&relay, feed, &fresh.tables[at]);
        followers[at].until_has(&fresh.tables[at]);
    }
    assert!(leads(&first.try_status().unwrap()) && !leads(&second.try_status().unwrap()));
    let of_first = epochs(&relay);
    assert_eq!(of_first.len(), 1);

    let (status, log) = first.stop();
    assert!(status.success(), "{log}");
    second.until_status("the other leads", leads);
    world.set(&api, Kind::Pod, pod("shop", "web-3", "web", &["10.0.0.3"]));
    let fresh = world.fresh();
    for (at, feed) in FEEDS.into_iter().enumerate() {
        until_relayed(&relay, feed, &fresh.tables[at]);
        followers[at].until_has(&fresh.tables[at]);
        let seen = followers[at].seen();
        assert!(seen.baselines >= 2, "a new epoch is pulled: {seen:?}");
    }
    let both = epochs(&relay);
    assert!(both.len() == 2 && both[0] == of_first[0] && both[1] > both[0], "{both:?}");
    for taken in relay.taken(IDENTITY) {
        if let ReceivedPush::Baseline { cluster, .. } = taken {
            assert_eq!(cluster, CLUSTER);
        }
    }
    assert_eq!(relay.complaints(), [""; 0]);
    assert!(api.writes().keys().eq(["leases"]), "{:?}", api.writes());
}

#[test]
fn paused_leader_begins_new_epoch_after_regaining_lease() {
    let (api, relay, mut world) = (FakeApi::start(), FakeRelay::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("kube-system", json!({})));
    world.set(&api, Kind::Namespace, namespace("shop", json!({})));
    let [mut first, mut second] = two(&api, &relay);
    world.set(&api, Kind::Pod, pod("shop", "web-1", "web", &["10.0.0.1"]));
    until_relayed(&relay, IDENTITY, &world.fresh().tables[0]);

    first.hang();
    second.until_status("the other leads", leads);
    world.set(&api, Kind::Pod, pod("shop", "web-2", "web", &["10.0.0.2"]));
    until_relayed(&relay, IDENTITY, &world.fresh().tables[0]);
    let (status, log) = second.stop();
    assert!(status.success(), "{log}");
    first.resume();
    // The Lease is free again: the first candidate leads as before, except for the other's pushes.
    world.set(&api, Kind::Pod, pod("shop", "web-3", "web", &["10.0.0.3"]));
    until_relayed(&relay, IDENTITY, &world.fresh().tables[0]);
    first.until_logged(&["lost leadership"]);
    let all = epochs(&relay);
    assert!(all.len() == 3 && all.is_sorted(), "{all:?}");
    assert_eq!(relay.complaints(), [""; 0]);
}

#[test]
fn a_provider_that_stands_alone_writes_nothing() {
    let (api, relay, mut world) = (FakeApi::start(), FakeRelay::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("kube-system", json!({})));
    let kubeconfig = api.kubeconfig().display().to_string();
    let mut provider = Provider::start(free_port(), ["--kubeconfig", &kubeconfig, "--push-url", &relay.url()]);
    provider.until_status("it pushes", |status| status["leads"] == true);
    world.set(&api, Kind::Pod, pod("kube-system", "dns", "dns", &["10.0.0.1"]));
    until_relayed(&relay, IDENTITY, &world.fresh().tables[0]);
    assert!(provider.stop().0.success());
    assert!(api.writes().is_empty(), "{:?}", api.writes());
}
