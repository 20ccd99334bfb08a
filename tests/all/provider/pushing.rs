use kit::agent_process::until;
use kit::fake_api::FakeApi;
use kit::fake_api::Kind;
use kit::provider_process::{Provider, free_port};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::fake_relay::{FakeRelay, Fault, ReceivedPush, Requests};

use super::relayed::{relayed, until_relayed};
use super::{CLUSTER, IDENTITY, World, namespace, pod};

struct Place {
    api: FakeApi,
    relay: FakeRelay,
    world: World,
    provider: Provider,
    folder: TempDir,
}

impl Place {
    /// A provider that has pushed its first baseline, with the token of the file.
    fn new() -> Place {
        Place::with(&[])
    }

    /// The same with additional arguments.
    fn with(more: &[&str]) -> Place {
        let (api, relay, mut world) = (FakeApi::start(), FakeRelay::start(), World::default());
        world.set(&api, Kind::Namespace, namespace("shop", json!({})));
        let folder = TempDir::new().unwrap();
        let token = folder.path().join("token").display().to_string();
        std::fs::write(&token, "first\n").unwrap();
        relay.demand_token("first");
        let (kubeconfig, url) = (api.kubeconfig().display().to_string(), relay.url());
        let arguments =
            ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER, "--push-url", &url, "--token-file", &token];
        let mut provider = Provider::start(free_port(), arguments.iter().chain(more));
        provider.until("a baseline at the relay", |_| (relay.taken(IDENTITY).len() == 1).then_some(()));
        Place { api, relay, world, provider, folder }
    }

    /// Adds another pod, which causes another delta.
    fn happen(&mut self, number: u64) {
        let (name, address) = (format!("web-{number}"), format!("10.0.0.{number}"));
        let seq = |provider: &Provider| provider.try_json("/identity/version").ok()?["seq"].as_u64();
        let before = seq(&self.provider).unwrap();
        self.world.set(&self.api, Kind::Pod, pod("shop", &name, "web", &[&address]));
        self.provider.until("a delta", |provider| seq(provider).filter(|seq| *seq > before));
    }
}

fn relay_of(status: &Value) -> &Value {
    &status["feeds"][IDENTITY]["relay"]
}

fn fails_with(status: &Value, words: &[&str]) -> bool {
    relay_of(status)["failure"].as_str().is_some_and(|failure| words.iter().all(|word| failure.contains(word)))
}

#[test]
fn rejected_token_is_reported_and_backlog_pushed_later() {
    let mut place = Place::new();
    place.relay.demand_token("second");
    for number in 1..=3 {
        place.happen(number);
    }
    place.provider.until_logged(&["identity", "rejected the token (401)", "check --token-file"]);
    let status = place.provider.until_status("the failure is reported", |status| fails_with(status, &["token", "401"]));
    assert_eq!(status["feeds"][IDENTITY]["pushBacklog"], 3, "{status}");
    assert!(!place.provider.log().contains("first"), "a token is nothing for logs");
    assert_eq!(place.relay.taken(IDENTITY).len(), 1);

    std::fs::write(place.folder.path().join("token"), "second").unwrap();
    let got = until_relayed(&place.relay, IDENTITY, &place.world.fresh().tables[0]);
    assert_eq!((got.baselines, got.deltas, got.gaps), (1, 3, 0));
    place.provider.until_status("nothing fails or waits", |status| {
        relay_of(status)["failure"].is_null() && status["feeds"][IDENTITY]["pushBacklog"] == 0
    });
    assert_eq!(place.provider.metric("ringfence_context_push_backlog", &[("feed", IDENTITY)]), 0.0);
    assert_eq!(place.relay.complaints(), [""; 0]);
}

#[test]
fn permanently_refused_delta_is_replaced_by_baseline() {
    let mut place = Place::new();
    place.relay.fail(Requests::Deltas, Fault::Refuse(400));
    place.happen(1);
    let fresh = place.world.fresh();
    place
        .provider
        .until("a baseline in place of the delta", |_| (place.relay.taken(IDENTITY).len() == 2).then_some(()));
    assert!(place.provider.log().contains("the relay returned 400: the fake says no"), "{}", place.provider.log());
    assert!(!place.provider.log().contains("and more"), "one line of what a relay says");
    let taken = place.relay.taken(IDENTITY);
    let ReceivedPush::Baseline { bytes, .. } = &taken[1] else { panic!("{taken:?}") };
    assert_eq!(super::table::FollowedTable::of(IDENTITY, bytes), fresh.tables[0]);
    // A follower of the relay learns of it although nothing else happens, and the next delta joins.
    place.relay.heal();
    let got = until_relayed(&place.relay, IDENTITY, &fresh.tables[0]);
    assert_eq!((got.baselines, got.deltas, got.gaps), (2, 1, 1));
    place.happen(2);
    let got = until_relayed(&place.relay, IDENTITY, &place.world.fresh().tables[0]);
    assert_eq!((got.baselines, got.deltas, got.gaps), (2, 2, 1));
}

#[test]
fn silent_relay_is_retried_and_receives_every_delta() {
    let mut place = Place::new();
    place.relay.fail(Requests::Deltas, Fault::Silent);
    place.happen(1);
    place.happen(2);
    place.provider.until_status("its silence is reported", |status| fails_with(status, &["timed out"]));
    place.relay.heal();
    let got = until_relayed(&place.relay, IDENTITY, &place.world.fresh().tables[0]);
    assert_eq!((got.baselines, got.deltas, got.gaps), (1, 2, 0));
}

#[test]
fn unacknowledged_delta_is_pushed_again_without_effect() {
    let mut place = Place::new();
    for (number, fault) in [(1, Fault::TakeAndReset), (2, Fault::TakeAndRefuse(503)), (3, Fault::ResetHalfWay)] {
        let before = place.relay.requests();
        place.relay.fail(Requests::Deltas, fault);
        place.happen(number);
        until("two tries", || (place.relay.requests() >= before + 2).then_some(()));
        place.relay.heal();
        until_relayed(&place.relay, IDENTITY, &place.world.fresh().tables[0]);
    }
    let got = relayed(&place.relay, IDENTITY);
    assert_eq!((got.baselines, got.gaps), (1, 0));
    assert!(got.deltas > 3, "{}", got.deltas);
}

#[test]
fn refused_delta_is_dropped_despite_frequent_baselines() {
    let mut place = Place::with(&["--baseline-secs", "1"]);
    place.relay.fail(Requests::Deltas, Fault::Refuse(400));
    let mut number = 0;
    until("the delta is given up", || {
        number += 1;
        place.happen(number % 200 + 1);
        place.provider.log().contains("refused a delta permanently").then_some(())
    });
    place.relay.heal();
    until_relayed(&place.relay, IDENTITY, &place.world.fresh().tables[0]);
    assert_eq!(place.relay.complaints(), [""; 0]);
}

#[test]
fn baselines_go_on_while_the_relay_refuses_deltas() {
    let mut place = Place::with(&["--baseline-secs", "1"]);
    place.relay.fail(Requests::Deltas, Fault::Refuse(503));
    place.happen(1);
    let fresh = place.world.fresh();
    place.provider.until("a baseline with what no delta could tell", |_| {
        let last = place.relay.taken(IDENTITY).pop()?;
        let ReceivedPush::Baseline { bytes, .. } = last else { panic!("{last:?}") };
        (super::table::FollowedTable::of(IDENTITY, &bytes) == fresh.tables[0]).then_some(())
    });
    place.happen(2);
    place.relay.heal();
    let got = until_relayed(&place.relay, IDENTITY, &place.world.fresh().tables[0]);
    assert_eq!((got.deltas, got.gaps), (2, 0), "what was not delivered is delivered later");
    assert_eq!(place.relay.complaints(), [""; 0]);
}

#[test]
fn deltas_are_pushed_while_relay_refuses_baselines() {
    let mut place = Place::with(&["--baseline-secs", "1"]);
    place.relay.fail(Requests::Baselines, Fault::Refuse(500));
    place.happen(1);
    let refused = |relay: &FakeRelay| relay.answers().get(&500).copied().unwrap_or(0);
    place.provider.until("the relay has refused baselines", |_| (refused(&place.relay) >= 4).then_some(()));
    // The next baseline retry may be many seconds away; the delta reaches the relay before it.
    let refusals = refused(&place.relay);
    place.happen(2);
    let is_delta = |taken: &&ReceivedPush| matches!(taken, ReceivedPush::Delta(_));
    place.provider.until("the delta is with the relay", |_| {
        (place.relay.taken(IDENTITY).iter().filter(is_delta).count() == 2).then_some(())
    });
    assert!(refused(&place.relay) <= refusals + 1, "it did not wait for a baseline");
    place.relay.heal();
    until_relayed(&place.relay, IDENTITY, &place.world.fresh().tables[0]);
    assert_eq!(place.relay.complaints(), [""; 0]);
}

#[test]
fn relay_that_lost_its_content_is_seeded_again() {
    let mut place = Place::with(&["--baseline-secs", "1"]);
    place.relay.start_reporting_versions();
    let version = |relay: &FakeRelay| match relay.taken(IDENTITY).first() {
        Some(ReceivedPush::Baseline { version, .. }) => Some(version.clone()),
        Some(ReceivedPush::Delta(_)) | None => None,
    };
    let before = version(&place.relay);
    assert!(before.is_some());
    let (relay, provider) = (&place.relay, &mut place.provider);
    provider.until("the relay has confirmed its baseline", |_| (relay.reported_versions(IDENTITY) > 0).then_some(()));
    relay.lose_content();
    provider.until("the relay has a baseline again", |_| version(relay));
    assert_eq!(version(&place.relay), before);
    let reseeds = "ringfence_context_reseeds_total{feed=\"identity\",outlet=\"relay\"} ";
    let figures = place.provider.get("/metrics").body;
    assert!(figures.lines().any(|line| line.strip_prefix(reseeds).is_some_and(|count| count != "0")), "{figures}");
    place.provider.until_logged(&["WARN", "the relay confirms no baseline (404)"]);
}
