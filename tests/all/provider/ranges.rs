//! Records of the world and of health checks, from a provider.

use super::*;
use kit::provider_process::{Provider, free_port, run};

fn start(api: &FakeApi, flags: &[&str]) -> Provider {
    let kubeconfig = api.kubeconfig().display().to_string();
    let given = ["--kubeconfig", &kubeconfig, "--cluster-id", CLUSTER];
    let mut provider = Provider::start(free_port(), given.iter().chain(flags));
    provider.until_ready();
    provider
}

fn lookup(provider: &Provider, address: &str) -> (Option<i32>, String) {
    let ended = run(["lookup", address, "--from", &provider.url()]);
    let first = ended.stdout.lines().next().unwrap_or_default().to_owned();
    (ended.code, first)
}

#[test]
fn lookup_answers_world_where_it_has_records() {
    let (api, mut world) = (FakeApi::start(), World::default());
    world.set(&api, Kind::Namespace, namespace("shop", json!({})));
    world.set(&api, Kind::Pod, pod("shop", "one", "web", &["10.0.0.1"]));
    let plain = start(&api, &[]);
    assert_eq!(lookup(&plain, "203.0.113.5"), (Some(1), "203.0.113.5  not found".into()));
    let flags = ["--world-records", "--world-except", "10.0.0.0/8", "--health-cidr", "35.191.0.0/16"];
    let provider = start(&api, &flags);
    for (address, code, says) in [
        ("10.0.0.1", 0, "shop/web"),
        ("10.0.0.2", 1, "not found"),
        ("203.0.113.5", 1, "world"),
        ("2001:db8::1", 1, "world"),
        ("35.191.0.1", 0, "health"),
    ] {
        assert_eq!(lookup(&provider, address), (Some(code), format!("{address}  {says}")));
    }
    let now = provider.try_json("/identity/lookup?ip=203.0.113.5").unwrap();
    assert_eq!((&now["record"]["state"], &now["record"]["num"]), (&json!("world"), &json!(2)));
    let version = |provider: &Provider| provider.try_json("/identity/version").unwrap()["version"].clone();
    assert_ne!(version(&plain), version(&provider));
}

#[test]
fn exceptions_without_world_records_are_refused() {
    let ended = run(["serve", "--manifests", "/nowhere", "--world-except", "10.0.0.0/8"]);
    assert_eq!(ended.code, Some(2));
    assert!(ended.stderr.contains("--world-records"), "{}", ended.stderr);
    let ended = run(["serve", "--manifests", "/nowhere", "--health-cidr", "10.0.0.1/8"]);
    assert!(ended.stderr.contains("10.0.0.1/8 has host bits; expected 10.0.0.0/8"), "{}", ended.stderr);
}
