//! Baselines in a bucket.

use std::path::Path;

use kit::agent_process::ended;
use kit::fake_api::FakeApi;
use kit::fake_api::Kind;
use kit::provider_process::{self, Provider, free_port};
use serde_json::Value;
use tempfile::TempDir;
use tests::fake_bucket::FakeBucket;

use super::storing::world;
use super::{CLUSTER, FEEDS, Fresh, IDENTITY, pod};

/// The prefix of the baselines in the bucket.
const PREFIX: &str = "clusters/west";

fn start(api: &FakeApi, bucket: &FakeBucket) -> Provider {
    let (kubeconfig, store) = (api.kubeconfig().display().to_string(), bucket.url(PREFIX));
    let arguments = ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER, "--store", &store, "--baseline-secs", "1"];
    Provider::start_with(bucket.variables(), free_port(), arguments)
}

/// The baselines in the bucket, if it has their pointers.
fn stored(bucket: &FakeBucket) -> Option<Fresh> {
    let folder = TempDir::new().unwrap();
    bucket.unpack(folder.path());
    let store = folder.path().join(PREFIX);
    let has_all = FEEDS.iter().all(|feed| store.join(feed).join("latest.json").exists());
    has_all.then(|| Fresh::of_store(&store))
}

/// The number of objects of the identity feed in the bucket.
fn objects(bucket: &FakeBucket) -> usize {
    let folder = TempDir::new().unwrap();
    bucket.unpack(folder.path());
    std::fs::read_dir(folder.path().join(PREFIX).join(IDENTITY)).unwrap().count()
}

#[track_caller]
fn until_stored(provider: &mut Provider, bucket: &FakeBucket, fresh: &Fresh) {
    provider.until("the bucket has what a fresh start has", |_| stored(bucket).filter(|stored| stored == fresh));
}

#[test]
fn bucket_holds_served_baselines_readable_by_consumers() {
    let (api, bucket) = (FakeApi::start(), FakeBucket::start());
    let mut world = world(&api);
    let mut provider = start(&api, &bucket);
    until_stored(&mut provider, &bucket, &world.fresh());
    for number in 0..6 {
        world.set(&api, Kind::Pod, pod("shop", "web-0", &format!("web-{number}"), &["10.0.0.1"]));
        until_stored(&mut provider, &bucket, &world.fresh());
    }
    let feed = Path::new(PREFIX).join(IDENTITY);
    provider.until("the newest and four before it are there, of two parts each, and the pointer", |_| {
        (objects(&bucket) == 2 * (1 + 4) + 1).then_some(())
    });
    let written = bucket.written();
    let of_feed: Vec<&String> = written.iter().filter(|name| Path::new(name).starts_with(&feed)).collect();
    for three in of_feed.chunks(3) {
        let is_pointer = |name: &str| name.ends_with("/latest.json");
        assert_eq!(three.iter().map(|name| is_pointer(name)).collect::<Vec<_>>(), [false, false, true], "{three:?}");
    }
    let ask = |from: &str| {
        let mut command = provider_process::provider();
        ended(command.envs(bucket.variables()).args(["lookup", "10.0.0.1", "--from", from]))
    };
    let (of_bucket, of_provider) = (ask(&bucket.url(PREFIX)), ask(&provider.url()));
    assert_eq!((of_bucket.code, &of_bucket.stdout), (Some(0), &of_provider.stdout), "{of_bucket:?}");
    assert!(of_bucket.stdout.contains("web-5"), "{of_bucket:?}");
}

fn failure(status: &Value) -> &str {
    status["feeds"][IDENTITY]["store"]["failure"].as_str().unwrap_or("")
}

#[track_caller]
fn until_no_failure(provider: &mut Provider) {
    provider.until_status("no failure", |status| {
        FEEDS.iter().all(|feed| status["feeds"][feed]["store"]["failure"].is_null())
    });
}

#[test]
fn refusing_bucket_is_reported_and_retried() {
    for (status, code) in [(503, "503"), (403, "403")] {
        let (api, bucket) = (FakeApi::start(), FakeBucket::start());
        let mut world = world(&api);
        bucket.refuse(&["GET", "PUT", "DELETE"], status);
        let mut provider = start(&api, &bucket);
        provider.until_ready();
        provider.until_status("the refusal", |status| failure(status).contains(code));
        provider.until_logged(&[IDENTITY, PREFIX, code, "retrying to write"]);
        world.set(&api, Kind::Pod, pod("shop", "web-0", "web-1", &["10.0.0.1"]));
        bucket.heal();
        until_stored(&mut provider, &bucket, &world.fresh());
        until_no_failure(&mut provider);
    }
}

#[test]
fn newest_baseline_is_stored_while_deletes_are_refused() {
    let (api, bucket) = (FakeApi::start(), FakeBucket::start());
    let mut world = world(&api);
    bucket.refuse(&["DELETE"], 403);
    let mut provider = start(&api, &bucket);
    for number in 0..8 {
        world.set(&api, Kind::Pod, pod("shop", "web-0", &format!("web-{number}"), &["10.0.0.1"]));
        until_stored(&mut provider, &bucket, &world.fresh());
    }
    provider.until_status("the failed removal", |status| failure(status).contains("403"));
    provider.until_logged(&[IDENTITY, "403", "retrying the removal"]);
    bucket.heal();
    world.set(&api, Kind::Pod, pod("shop", "web-0", "web-8", &["10.0.0.1"]));
    until_stored(&mut provider, &bucket, &world.fresh());
    until_no_failure(&mut provider);
    provider.until("old objects are removed", |_| (objects(&bucket) == 2 * (1 + 4) + 1).then_some(()));
}
