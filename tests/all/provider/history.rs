use std::time::Duration;

use kit::fake_api::FakeApi;
use kit::fake_api::Kind;
use kit::provider_process::{Provider, free_port, run};
use serde_json::{Value, json};

use super::{CLUSTER, World, namespace, pod};

const ADDRESS: &str = "10.0.0.1";

fn start(api: &FakeApi, arguments: &[&str]) -> Provider {
    let kubeconfig = api.kubeconfig().display().to_string();
    let given = ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER];
    let mut provider = Provider::start(free_port(), given.iter().chain(arguments));
    provider.until_ready();
    provider
}

/// The current record of the address.
fn current(provider: &Provider) -> Value {
    provider.try_json(&format!("/identity/lookup?ip={ADDRESS}")).unwrap()
}

/// Assigns the address to a workload, and waits until that is published.
fn move_to(api: &FakeApi, world: &mut World, provider: &mut Provider, app: &str) {
    world.set(api, Kind::Pod, pod("shop", "one", app, &[ADDRESS]));
    provider.until("the record is published", |provider| (current(provider)["record"]["app"] == app).then_some(()));
}

/// A namespace `shop` whose only pod is `web`.
fn shop() -> (FakeApi, World) {
    let (api, mut world) = (FakeApi::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("shop", json!({})));
    world.set(&api, Kind::Pod, pod("shop", "one", "web", &[ADDRESS]));
    (api, world)
}

#[test]
fn lookup_at_a_time_finds_its_record() {
    let (api, mut world) = shop();
    let mut provider = start(&api, &[]);
    let first = current(&provider);
    let time = |answer: &Value, field: &str| answer[field].as_str().unwrap().to_owned();
    assert_eq!((&first["record"]["app"], first.get("from"), first.get("until")), (&json!("web"), None, None));
    move_to(&api, &mut world, &mut provider, "db");
    let now = current(&provider);
    let moved = time(&now, "from");

    let ask = |arguments: &[&str]| {
        let ended = run([&["lookup", ADDRESS, "--from", &provider.url()], arguments].concat());
        (ended.code, ended.stdout, ended.stderr)
    };
    let (code, text, stderr) = ask(&["--at", &time(&first, "at"), "-o", "json"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let then: Value = serde_json::from_str(&text).unwrap();
    let then = &then[0];
    assert_eq!((&then["record"]["app"], &then["until"]), (&json!("web"), &json!(moved)));
    let (code, text, _) = ask(&["--at", &moved]);
    assert_eq!(code, Some(0));
    for words in ["shop/db", "app=db", &format!("{moved} to now"), &format!("since {}", time(&now, "started"))] {
        assert!(text.contains(words), "{words} in {text}");
    }

    let (code, _, stderr) = ask(&["--at", "1h"]);
    assert_eq!(code, Some(2));
    for words in ["the oldest known moment is", "when this process started", "410"] {
        assert!(stderr.contains(words), "{words} in {stderr}");
    }
    let status = provider.try_status().unwrap();
    assert_eq!((&status["history"]["limitedBy"], &status["history"]["changes"]), (&json!("start"), &json!(1)));
    assert!(provider.metric("ringfence_context_history_bytes", &[]) > 0.0);
    let oldest = provider.metric("ringfence_context_history_oldest_timestamp_seconds", &[]);
    let lived = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64() - oldest;
    assert!((0.0..600.0).contains(&lived), "{lived}");
}

#[test]
fn lookup_with_a_bad_question_names_the_parameter() {
    let (api, _) = shop();
    let provider = start(&api, &[]);
    for (path, status, words) in [
        ("/identity/lookup", 400, "missing parameter ip"),
        ("/identity/lookup?ip=10.0.0.300", 400, "invalid parameter ip"),
        ("/identity/lookup?ip=10.0.0.1&at=yesterday", 400, "expected RFC 3339"),
        ("/identity/lookup?ip=10.0.0.1&at=2999-01-01T00:00:00Z", 400, "in the future"),
        ("/identity/lookup?ip=10.0.0.1&at=0001-01-01T00:00:00Z", 410, "too old"),
        ("/policy-edges/lookup?ip=10.0.0.1", 404, "/identity/lookup"),
        ("/identity/download?form=letters", 400, "has the form numbers"),
        ("/policy-edges/deltas?form=numbers", 400, "has the form numbers"),
        ("/identity/download?part=numbers", 404, "part of the feed not found"),
    ] {
        let answer = provider.get(path);
        assert!(answer.status == status && answer.body.contains(words), "{path}: {} {}", answer.status, answer.body);
    }
    let ended = run(["lookup", ADDRESS, "--at", "10m", "--from", "out"]);
    assert!(ended.code == Some(2) && ended.stderr.contains("--at needs a provider"), "{ended:?}");
}

#[test]
fn history_starts_anew_with_the_process() {
    let (api, mut world) = shop();
    let mut provider = start(&api, &[]);
    let before = current(&provider)["at"].as_str().unwrap().to_owned();
    move_to(&api, &mut world, &mut provider, "db");
    provider.kill();
    let restarted = start(&api, &[]);
    let answer = restarted.get(&format!("/identity/lookup?ip={ADDRESS}&at={before}"));
    assert_eq!(answer.status, 410, "{}", answer.body);

    let without = start(&api, &["--history", "off"]);
    let answer = without.get(&format!("/identity/lookup?ip={ADDRESS}"));
    assert!(answer.status == 404 && answer.body.contains("--history off"), "{}", answer.body);
    assert_eq!(without.try_status().unwrap().get("history"), None);
}

#[test]
fn history_of_a_second_expires() {
    let (api, mut world) = shop();
    let mut provider = start(&api, &["--history", "1s"]);
    move_to(&api, &mut world, &mut provider, "db");
    let moved = current(&provider)["from"].as_str().unwrap().to_owned();
    let path = format!("/identity/lookup?ip={ADDRESS}&at={moved}");
    provider.until_within(Duration::from_secs(30), "the moment is too old", |provider| {
        let answer = provider.get(&path);
        (answer.status == 410 && answer.body.contains("(--history)")).then_some(())
    });
    assert_eq!(current(&provider)["record"]["app"], "db");
}
