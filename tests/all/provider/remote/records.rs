//! Identity records of pods of other clusters.

use kit::agent_process::until;
use kit::provider_process::run;

use super::super::IDENTITY;
use super::*;

/// `cluster namespace/workload state number` of an address, as `lookup` finds it.
fn record(provider: &Provider, address: &str) -> Option<String> {
    let asked = run(["lookup", "--from", &provider.url(), "--output", "json", address]);
    let found: Value = serde_json::from_str(&asked.stdout).ok()?;
    let record = found[0]["record"].as_object()?;
    let text = |field: &str| record.get(field).and_then(Value::as_str).unwrap_or("-");
    let [cluster, namespace, workload, state] = ["cluster", "namespace", "workload", "state"].map(text);
    Some(format!("{cluster} {namespace}/{workload} {state} {}", record["num"]))
}

#[track_caller]
fn until_record(provider: &mut Provider, address: &str, expected: Option<&str>) {
    let what = format!("{address} is {expected:?}");
    provider.until(&what, |provider| (record(provider, address).as_deref() == expected).then_some(()));
}

#[test]
fn remote_pods_have_records_that_follow_their_sets() {
    let stage = Stage::new();
    stage.home.set(Kind::Namespace, namespace("shop", json!({})));
    stage.home.set(Kind::Pod, pod("shop", "own", "own", &["10.4.1.40"]));
    stage.set(offering("web-1", "web", &["10.4.1.38", "2001:db8::38"]));
    stage.set(offering("web-2", "web", &["10.4.1.40"]));
    let mut provider = stage.start();
    for address in ["10.4.1.38", "2001:db8::38"] {
        until_record(&mut provider, address, Some("east shop/web remote 9"));
    }
    let own = record(&provider, "10.4.1.40").unwrap();
    assert!(own.starts_with("- shop/own - "), "a pod of this cluster has its address: {own}");
    let follower = Follower::start(stage.address, IDENTITY);
    let has = |address: &str, set: Option<&str>| {
        let FollowedTable::Identity(records) = follower.seen().table else { panic!("identities") };
        let record = records.get(&address.parse().unwrap());
        record.and_then(|record| record["workload"].as_str()) == set
    };
    let until_has = |address: &str, set: Option<&str>| {
        until(&format!("{address} is {set:?}"), || has(address, set).then_some(()));
    };
    until_has("10.4.1.38", Some("web"));
    stage.set(offering("web-3", "web", &["10.4.1.39"]));
    until_has("10.4.1.39", Some("web"));
    // Of several sets, the first one by name wins.
    stage.set(offering("api-1", "api", &["10.4.1.39"]));
    until_has("10.4.1.39", Some("api"));
    stage.remove("api-1");
    until_has("10.4.1.39", Some("web"));
    stage.home.remove(Kind::Pod, "shop", "own");
    until_has("10.4.1.40", Some("web"));
    stage.remove("web-3");
    until_has("10.4.1.39", None);
    assert_eq!(follower.seen().baselines, 1, "later changes were sent as deltas");

    // After a restart, the state on disk provides the records although the cluster does not answer.
    stage.cut_off();
    drop(provider);
    let mut provider = stage.start();
    provider.until_ready();
    assert_eq!(record(&provider, "10.4.1.38").as_deref(), Some("east shop/web remote 9"));
    stage.write_clusters(&[]);
    until_record(&mut provider, "10.4.1.38", None);
}
