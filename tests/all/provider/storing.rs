use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use feed::{Digest, Head};
use kit::agent_process::{WITHIN, until};
use kit::fake_api::FakeApi;
use kit::fake_api::Kind;
use kit::provider_process::{Provider, free_port};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{CLUSTER, FEEDS, Fresh, IDENTITY, World, latest, namespace, pod, read_part};

fn start(api: &FakeApi, store: &Path) -> Provider {
    let (kubeconfig, store) = (api.kubeconfig().display().to_string(), format!("file://{}", store.display()));
    let arguments = ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER, "--store", &store, "--baseline-secs", "1"];
    Provider::start(free_port(), arguments)
}

/// A namespace with a pod.
pub(super) fn world(api: &FakeApi) -> World {
    let mut world = World::default();
    world.set(api, Kind::Namespace, namespace("shop", json!({})));
    world.set(api, Kind::Pod, pod("shop", "web-0", "web", &["10.0.0.1"]));
    world
}

/// Waits until the store has these tables.
#[track_caller]
fn until_stored(store: &Path, fresh: &Fresh) {
    until("the store has what a fresh start has", || {
        // A pointer that was being written while the feed was removed is dangling until it is written again.
        let is_there = |feed: &&str| {
            let pointer = store.join(feed).join("latest.json");
            pointer.exists() && super::part(store, feed, &latest(store, feed), "baseline").exists()
        };
        (FEEDS.iter().all(is_there) && Fresh::of_store(store) == *fresh).then_some(())
    });
}

/// Names of the files of a feed, and the names in its pointer.
fn files(store: &Path, feed: &str) -> (Vec<String>, Vec<String>) {
    let entries = fs::read_dir(store.join(feed)).unwrap();
    let mut there: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    there.retain(|name| name != "latest.json");
    there.sort();
    let latest = latest(store, feed);
    let objects = latest["objects"].as_array().unwrap().iter().map(|object| &object["object"]);
    let names = objects.chain(latest["older"].as_array().unwrap());
    let mut known: Vec<String> = names.map(|name| name.as_str().unwrap().to_owned()).collect();
    known.sort();
    (there, known)
}

#[test]
fn pointer_names_existing_objects_and_old_baselines_expire() {
    let (api, store) = (FakeApi::start(), TempDir::new().unwrap());
    let mut world = world(&api);
    let _provider = start(&api, store.path());
    until_stored(store.path(), &world.fresh());
    let mut versions = vec![];
    let ends = Instant::now() + 2 * WITHIN;
    let mut changed = Instant::now();
    for number in 0.. {
        let pointed = latest(store.path(), IDENTITY);
        let head: Head = serde_json::from_value(pointed.clone()).unwrap();
        let bytes = read_part(store.path(), IDENTITY, &pointed, "baseline");
        assert_eq!((Digest::of(&bytes), bytes.len() as u64), (head.sha256, head.bytes));
        let ids: Value = serde_json::from_slice(&read_part(store.path(), IDENTITY, &pointed, "ids")).unwrap();
        assert_eq!(ids["version"], head.version);
        if !versions.contains(&head.version) {
            versions.push(head.version);
        }
        if versions.len() > 7 {
            break;
        }
        assert!(Instant::now() < ends, "{versions:?}");
        if changed.elapsed() > Duration::from_millis(300) {
            changed = Instant::now();
            world.set(&api, Kind::Pod, pod("shop", "web-0", &format!("web-{number}"), &["10.0.0.1"]));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    until_stored(store.path(), &world.fresh());
    // Files are deleted once the pointer does not name them.
    let there = until("nothing is there but what the pointer knows of", || {
        let (there, known) = files(store.path(), IDENTITY);
        (there == known).then_some(there)
    });
    assert_eq!(there.len(), 2 * (1 + 4), "the newest and four before it, of two parts each: {there:?}");
}

/// Runs the work with a small file system at a path in a private mount namespace. Needs root.
fn with_small_disk<T: Send>(kibibytes: usize, work: impl FnOnce(&Path) -> T + Send) -> T {
    let folder = TempDir::new().unwrap();
    let path = folder.path();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("a new mount namespace (the tests run as root)");
            let nothing = None::<&str>;
            mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).expect("mounts of its own");
            let size = format!("size={kibibytes}k");
            mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), Some(&*size)).expect("a tmpfs");
            work(path)
        });
        match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Fills the disk except for some blocks.
fn fill(disk: &Path, but: usize) {
    const BLOCK: usize = 4096;
    let reserves: Vec<_> = (0..but).map(|number| disk.join(format!("reserve-{number}"))).collect();
    reserves.iter().for_each(|reserve| fs::write(reserve, [1; BLOCK]).unwrap());
    let mut ballast = fs::File::options().create(true).append(true).open(disk.join("ballast")).unwrap();
    while ballast.write_all(&[1; BLOCK]).is_ok() {}
    reserves.iter().for_each(|reserve| fs::remove_file(reserve).unwrap());
}

#[test]
fn full_disk_is_reported_and_storing_resumes_cleanly() {
    // With no room at all, for one of two objects, for both without the pointer.
    for blocks in [0, 1, 2] {
        with_small_disk(128, |disk| {
            let api = FakeApi::start();
            let mut world = world(&api);
            fill(disk, blocks);
            let store = disk.join("store");
            let mut provider = start(&api, &store);
            let full = |status: &Value, feed: &str| {
                let failure = status["feeds"][feed]["store"]["failure"].as_str().unwrap_or("").to_owned();
                failure.contains("No space left on device")
            };
            provider.until_status("the disk is full", |status| full(status, IDENTITY));
            provider.until_logged(&["identity", "No space left on device", "retrying to write"]);
            let failures = |provider: &Provider| {
                provider.metric("ringfence_context_delivery_failures_total", &[("feed", IDENTITY), ("outlet", "store")])
            };
            // Each retry stores another baseline.
            for number in 0..2 {
                let before = failures(&provider);
                world.set(&api, Kind::Pod, pod("shop", "web-0", &format!("web-{number}"), &["10.0.0.1"]));
                provider.until("another try", |provider| (failures(provider) > before).then_some(()));
            }
            provider.until_ready();
            fs::remove_file(disk.join("ballast")).unwrap();
            until_stored(&store, &world.fresh());
            provider.until_status("no failure", |status| {
                FEEDS.iter().all(|feed| status["feeds"][feed]["store"]["failure"].is_null())
            });
            for feed in FEEDS {
                until("nothing is there but what the pointer knows of", || {
                    let (there, known) = files(&store, feed);
                    (there == known).then_some(())
                });
            }
        });
    }
}

#[test]
fn a_pointer_that_is_damaged_is_written_anew() {
    let (api, store) = (FakeApi::start(), TempDir::new().unwrap());
    let world = world(&api);
    let provider = start(&api, store.path());
    until_stored(store.path(), &world.fresh());
    provider.kill();
    let pointer = store.path().join(IDENTITY).join("latest.json");
    fs::write(&pointer, "{").unwrap();
    let mut provider = start(&api, store.path());
    provider.until_logged(&["cannot decode", "latest.json", "replacing it"]);
    until("the pointer is whole", || {
        serde_json::from_slice::<Value>(&fs::read(&pointer).unwrap()).is_ok().then_some(())
    });
    until_stored(store.path(), &world.fresh());
}

#[test]
fn store_that_lost_its_content_is_written_again() {
    let (api, store) = (FakeApi::start(), TempDir::new().unwrap());
    let world = world(&api);
    let mut provider = start(&api, store.path());
    let fresh = world.fresh();
    until_stored(store.path(), &fresh);
    // First the object that the pointer names, then the whole feed.
    let pointed = latest(store.path(), IDENTITY);
    fs::remove_file(super::part(store.path(), IDENTITY, &pointed, "baseline")).unwrap();
    until("the object is there again", || {
        super::part(store.path(), IDENTITY, &pointed, "baseline").exists().then_some(())
    });
    // The provider may be writing the pointer.
    until("the feed is removed", || fs::remove_dir_all(store.path().join(IDENTITY)).ok());
    until_stored(store.path(), &fresh);
    provider.until_logged(&["WARN", "the store does not have the baseline", "writing it again"]);
    let figures = provider.get("/metrics").body;
    let reseeds = "ringfence_context_reseeds_total{feed=\"identity\",outlet=\"store\"} ";
    assert!(figures.lines().any(|line| line.strip_prefix(reseeds).is_some_and(|count| count != "0")), "{figures}");
}
