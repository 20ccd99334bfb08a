//! Declared edges with pods of other clusters, and their verdicts by `verdict`.

use kit::agent_process::ProgramExit;
use kit::provider_process::run;

use super::super::EDGES;
use super::*;

const LINE: &str = "E east:shop/web > data/db : 5432";

/// The home cluster has a database that admits `web` of east, and a workload with the same name.
pub(super) fn stage_with_database() -> Stage {
    let stage = Stage::new();
    for name in ["data", "shop"] {
        stage.home.set(Kind::Namespace, namespace(name, json!({})));
    }
    stage.home.set(Kind::Pod, pod("data", "db", "db", &["10.0.0.2"]));
    stage.home.set(Kind::Pod, pod("shop", "web", "web", &["10.0.0.3"]));
    let web_of_east = json!({
        "namespaceSelector": {"matchLabels": {"semaphore.uw.systems/cluster": "east"}},
        "podSelector": {"matchLabels": {"semaphore.uw.systems/name": "web"}},
    });
    let ingress = json!([{"from": [web_of_east], "ports": [{"port": 5432}]}]);
    stage.home.set(
        Kind::NetworkPolicy,
        json!({
            "metadata": {"namespace": "data", "name": "db"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress},
        }),
    );
    stage
}

fn lines(remote: &[&str]) -> FollowedTable {
    FollowedTable::Edges(remote.iter().copied().chain(["G data/db"]).map(String::from).collect())
}

fn verdict(provider: &Provider, source: &str, destination: &str, port: &str) -> ProgramExit {
    run(["verdict", source, destination, port, "--from", &provider.url()])
}

#[test]
fn remote_line_follows_its_set_in_deltas() {
    let stage = stage_with_database();
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    provider.until_ready();
    let follower = Follower::start(stage.address, EDGES);
    follower.until_has(&lines(&[LINE]));
    let extended = provider.get("/policy-edges/download?part=extended").body;
    assert!(extended.contains("E east:shop/web > data/db : 5432/TCP\n"), "{extended}");

    // Another address does not change the lines.
    let version = |provider: &Provider| provider.try_json("/policy-edges/version").unwrap()["version"].clone();
    let before = version(&provider);
    stage.set(offering("web-2", "web", &["10.4.1.2"]));
    until_served(&mut provider, &sets(&[("web", &["10.4.1.1", "10.4.1.2"])]));
    stage.remove("web-1");
    until_served(&mut provider, &sets(&[("web", &["10.4.1.2"])]));
    stage.set(offering("jobs-1", "jobs", &["10.4.1.3"]));
    until_served(&mut provider, &sets(&[("web", &["10.4.1.2"]), ("jobs", &["10.4.1.3"])]));
    assert_eq!(version(&provider), before);

    stage.remove("web-2");
    follower.until_has(&lines(&[]));
    stage.set(offering("web-3", "web", &["10.4.1.4"]));
    follower.until_has(&lines(&[LINE]));
    // The cluster is removed from the file.
    stage.write_clusters(&[]);
    follower.until_has(&lines(&[]));
    let seen = follower.seen();
    assert_eq!((seen.baselines, seen.lost.len()), (1, 0), "the rest was sent in deltas: {seen:?}");
}

#[test]
fn first_list_has_lines_of_unreachable_clusters() {
    let stage = stage_with_database();
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    provider.until_ready();
    let path = stage.path("state/remote-sets/east.json");
    kit::agent_process::until("the set is on disk", || {
        std::fs::read_to_string(&path).ok().filter(|text| text.contains("10.4.1.1"))
    });
    provider.kill();
    stage.cut_off();
    let mut provider = stage.start();
    provider.until_ready();
    assert_eq!(FollowedTable::of(EDGES, provider.get("/policy-edges/download").body.as_bytes()), lines(&[LINE]));
}

#[test]
fn verdict_knows_remote_pods_by_name_and_address() {
    let stage = stage_with_database();
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    stage.set(offering("jobs-1", "jobs", &["10.4.1.3"]));
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[("web", &["10.4.1.1"]), ("jobs", &["10.4.1.3"])]));
    provider.until("the line is there", |provider| {
        provider.try_get("/policy-edges/download").ok()?.body.contains(LINE).then_some(())
    });
    let governs = "P data/db > data/db : ingress";
    for (source, port, code, word, line) in [
        ("east/shop/web", "5432", 0, "DECLARED  east/shop/web -> data/db 5432", "E east:shop/web > data/db : 5432/TCP"),
        ("east:shop/web", "5432", 0, "DECLARED  east/shop/web -> data/db 5432", "E east:shop/web > data/db : 5432/TCP"),
        (
            "10.4.1.1",
            "5432/tcp",
            0,
            "DECLARED  east/shop/web -> data/db 5432/tcp",
            "E east:shop/web > data/db : 5432/TCP",
        ),
        ("10.4.1.1", "5433", 1, "VIOLATION", governs),
        ("east/shop/jobs", "5432", 1, "VIOLATION  east/shop/jobs -> data/db 5432", governs),
        ("10.4.1.3", "5432", 1, "VIOLATION  east/shop/jobs -> data/db 5432", governs),
        ("10.4.1.9", "5432", 1, "VIOLATION  10.4.1.9 -> data/db 5432", governs),
        // This workload has the namespace and the name of the remote set, and is not allowed anything.
        ("shop/web", "5432", 1, "VIOLATION  shop/web -> data/db 5432", governs),
        ("10.0.0.3", "5432", 1, "VIOLATION  shop/web -> data/db 5432", governs),
    ] {
        let answer = verdict(&provider, source, "data/db", port);
        assert_eq!(answer.code, Some(code), "{source} {port}: {answer:?}");
        assert!(answer.stdout.starts_with(word) && answer.stdout.contains(line), "{source} {port}: {answer:?}");
    }
    let to_remote = verdict(&provider, "shop/web", "10.4.1.1", "80");
    assert!(to_remote.code == Some(0) && to_remote.stdout.starts_with("NOT GOVERNED"), "{to_remote:?}");
    let unknown = verdict(&provider, "east/shop/wbe", "data/db", "5432");
    assert_eq!((unknown.code, unknown.stdout.as_str()), (Some(2), ""), "{unknown:?}");
    assert!(unknown.stderr.contains("remote set 'east/shop/wbe' not found"), "{unknown:?}");
}

#[test]
fn verdict_reads_remote_set_from_stored_record() {
    let store = TempDir::new().unwrap();
    let (folder, url) = (store.path().display().to_string(), format!("file://{}", store.path().display()));
    let stage = stage_with_database().with(&["--store", &url, "--baseline-secs", "1"]);
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    let answer = provider.until("the store has the list and the record", |_| {
        Some(run(["verdict", "10.4.1.1", "data/db", "5432", "--from", &folder])).filter(|answer| answer.code == Some(0))
    });
    assert!(answer.stdout.starts_with("DECLARED  east/shop/web -> data/db 5432"), "{answer:?}");
}

#[test]
fn label_prefixes_decide_which_policies_have_remote_lines() {
    let stage = stage_with_database().with(&["--remote-label-prefix", "example.com"]);
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[("web", &["10.4.1.1"])]));
    let follower = Follower::start(stage.address, EDGES);
    follower.until_has(&lines(&[]));
    let by_example = json!({"namespaceSelector": {"matchLabels": {"example.com/cluster": "east"}}});
    stage.home.set(
        Kind::NetworkPolicy,
        json!({
            "metadata": {"namespace": "data", "name": "db"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [by_example]}]},
        }),
    );
    follower.until_has(&lines(&["E east:shop/web > data/db : *"]));
}
