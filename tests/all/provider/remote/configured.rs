//! The file that names the clusters, and the credentials for them.

use super::*;

#[test]
fn changed_token_file_is_reloaded() {
    let stage = Stage::new();
    stage.east.faults(|faults| faults.token = Some("first".into()));
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[("web", &["10.4.1.1"])]));
    stage.east.faults(|faults| faults.token = Some("second".into()));
    stage.east.cut_connections();
    let status = provider.until_status("it is not let in", |status| problems(status).contains("401"));
    assert_eq!(east(&status)["reachable"], false);
    assert!(stage.east.turned_away() > 0);
    stage.set(offering("web-2", "web", &["10.4.1.2"]));
    stage.write("token", "second");
    until_served(&mut provider, &sets(&[("web", &["10.4.1.1", "10.4.1.2"])]));
}

#[test]
fn changed_kubeconfig_and_its_token_file_are_reloaded() {
    let stage = Stage::new();
    stage.east.faults(|faults| faults.token = Some("first".into()));
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    stage.write_clusters(&[json!({"name": "east", "kubeconfig": stage.path("kubeconfig")})]);
    let mut provider = stage.start();
    provider.until_status("the file is missing", |status| problems(status).contains("cannot read"));
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": format!("http://{}", stage.east.address())}}],
        "users": [{"name": "it", "user": {"tokenFile": "token"}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    });
    stage.write("kubeconfig", &kubeconfig.to_string());
    until_served(&mut provider, &sets(&[("web", &["10.4.1.1"])]));
    stage.write("token", "second\n");
    stage.east.faults(|faults| faults.token = Some("second".into()));
    stage.east.cut_connections();
    stage.set(offering("web-1", "web", &["10.4.1.2"]));
    until_served(&mut provider, &sets(&[("web", &["10.4.1.2"])]));
    assert_eq!(stage.east.turned_away(), 0);
}

#[test]
fn removed_cluster_loses_its_sets_and_state() {
    let stage = Stage::new();
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[("web", &["10.4.1.1"])]));
    let state = stage.path("state/remote-sets/east.json");
    provider.until("it is on disk", |_| state.exists().then_some(()));
    let follower = stage.follower();
    follower.until_has(&sets(&[("web", &["10.4.1.1"])]));
    stage.write_clusters(&[]);
    follower.until_has(&sets(&[]));
    assert_eq!(follower.seen().baselines, 1, "a delta says that it is gone");
    provider.until("nothing is left on disk", |_| (!state.exists()).then_some(()));
    provider.until_status("nor in the status", |status| east(status).is_null());
    assert!(!provider.get("/metrics").body.contains("cluster=\"east\""));

    stage.write_clusters(&[stage.east_by_token()]);
    until_served(&mut provider, &sets(&[("web", &["10.4.1.1"])]));
    provider.until("it is on disk again", |_| state.exists().then_some(()));
    provider.kill();
    stage.write_clusters(&[]);
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[]));
    assert!(!state.exists());
}

#[test]
fn invalid_cluster_file_fails_start_and_keeps_clusters() {
    let stage = Stage::new();
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[("web", &["10.4.1.1"])]));
    stage.write("clusters.yaml", "clusters: [{name: east}]");
    provider.until_logged(&["ERROR", "missing kubeconfig, or url", "keeping the previous clusters"]);
    provider.until_status("it says so", |status| status["remote"]["file"].is_string());
    assert_eq!(served(&provider), Some(sets(&[("web", &["10.4.1.1"])])));
    provider.kill();

    let clusters = stage.path("clusters.yaml").display().to_string();
    let kubeconfig = stage.home.kubeconfig().display().to_string();
    let ended = kit::provider_process::run([
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--kubeconfig",
        &kubeconfig,
        "--remote-clusters",
        &clusters,
    ]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    assert!(ended.stderr.contains("missing kubeconfig, or url"), "{ended:?}");
}

#[test]
fn clusters_with_ambiguous_joined_names_stay_distinct() {
    let stage = Stage::new();
    let other = FakeApi::start();
    let mut in_a = offering("web-1", "web", &["10.4.1.1"]);
    in_a["metadata"]["namespace"] = "b-c".into();
    stage.set(in_a);
    let mut in_a_b = offering("web-1", "web", &["10.5.1.1"]);
    in_a_b["metadata"]["namespace"] = "c".into();
    other.set(Kind::Pod, in_a_b);
    let mut a = stage.east_by_token();
    a["name"] = "a".into();
    let a_b = json!({"name": "a-b", "url": format!("http://{}", other.address()), "tokenFile": stage.path("token")});
    stage.write_clusters(&[a, a_b]);
    let mut provider = stage.start();
    let table = |of: [(&str, &str); 2]| {
        let set = |(set, ip): (&str, &str)| (set.to_owned(), BTreeSet::from([ip.parse::<IpAddr>().unwrap()]));
        FollowedTable::Remote(of.into_iter().map(set).collect())
    };
    until_served(&mut provider, &table([("a/b-c/web", "10.4.1.1"), ("a-b/c/web", "10.5.1.1")]));
}

#[test]
fn remote_feed_is_absent_without_remote_clusters() {
    let home = FakeApi::start();
    home.set(Kind::Namespace, namespace("kube-system", json!({})));
    let kubeconfig = home.kubeconfig().display().to_string();
    let mut provider = Provider::start(free_port(), ["--kubeconfig", &kubeconfig]);
    provider.until_ready();
    assert_eq!(provider.get("/remote-sets/version").status, 404);
    assert!(provider.try_status().unwrap().get("remote").is_none());
}
