//! A cluster that exceeds its limits.

use super::*;

fn in_namespace(namespace: &str, name: &str, set: &str, addresses: &[&str]) -> Value {
    let mut pod = offering(name, set, addresses);
    pod["metadata"]["namespace"] = namespace.into();
    pod
}

/// Sets of the cluster east, as `namespace/name`.
fn sets_of(of: &[(&str, &[&str])]) -> FollowedTable {
    let addresses = |list: &[&str]| list.iter().map(|ip| ip.parse::<IpAddr>().unwrap()).collect::<BTreeSet<_>>();
    FollowedTable::Remote(of.iter().map(|(set, list)| (format!("east/{set}"), addresses(list))).collect())
}

fn east_with(stage: &Stage, limits: Value) -> Value {
    let mut cluster = stage.east_by_token();
    cluster["limits"] = limits;
    cluster
}

fn until_left_out(provider: &mut Provider, sets: u64) -> Value {
    provider.until_status(&format!("{sets} sets are left out"), |status| east(status)["leftOut"]["sets"] == sets)
}

#[test]
fn cluster_over_its_limits_loses_largest_namespace_first() {
    let stage = Stage::new();
    stage.write_clusters(&[east_with(&stage, json!({"addresses": 3}))]);
    stage.set(in_namespace("shop", "web-1", "web", &["10.4.1.1", "10.4.1.2"]));
    stage.set(in_namespace("team", "api-1", "api", &["10.4.2.1"]));
    let mut provider = stage.start();
    until_served(&mut provider, &sets_of(&[("shop/web", &["10.4.1.1", "10.4.1.2"]), ("team/api", &["10.4.2.1"])]));
    let follower = stage.follower();

    // Labelled pods flood one namespace: sets of this namespace are dropped, those of the other stay.
    stage.set(in_namespace("shop", "flood-1", "aaa", &["10.4.3.1"]));
    stage.set(in_namespace("shop", "flood-2", "aab", &["10.4.3.2"]));
    let kept = sets_of(&[("shop/aaa", &["10.4.3.1"]), ("shop/aab", &["10.4.3.2"]), ("team/api", &["10.4.2.1"])]);
    until_served(&mut provider, &kept);
    follower.until_has(&kept);
    let status = until_left_out(&mut provider, 1);
    let remote = east(&status);
    assert_eq!(remote["offered"], json!({"sets": 4, "addresses": 5, "labelBytes": 28}));
    assert_eq!(remote["limits"], json!({"sets": 5000, "addresses": 3, "labelBytes": 524_288}));
    assert_eq!(remote["leftOut"], json!({"sets": 1, "addresses": 2, "labelBytes": 7}));
    assert_eq!((&remote["sets"], &remote["addresses"], &remote["reachable"]), (&json!(3), &json!(3), &json!(true)));
    assert!(problems(&status).contains("1 sets with 2 addresses are left out (shop/web)"), "{status}");
    provider.until_logged(&["WARN", "the cluster offers more than its limits", "shop/web"]);
    assert!((provider.metric("ringfence_context_remote_left_out_sets", &[("cluster", "east")]) - 1.0).abs() < 0.1);
    let of = |resource| [("cluster", "east"), ("resource", resource)];
    assert!((provider.metric("ringfence_context_remote_offered", &of("addresses")) - 5.0).abs() < 0.1);
    assert!((provider.metric("ringfence_context_remote_limit", &of("addresses")) - 3.0).abs() < 0.1);

    // After a restart with the same state the selection is the same, also while the cluster is unreachable.
    provider.until("the state is on disk", |_| {
        let state = std::fs::read_to_string(stage.path("state/remote-sets/east.json")).ok()?;
        (state.contains("10.4.3.2") && state.contains("10.4.1.2")).then_some(())
    });
    provider.kill();
    stage.cut_off();
    let mut provider = stage.start();
    until_served(&mut provider, &kept);
    stage.restore();
    provider.until_status("east is reachable", |status| east(status)["reachable"] == true);
    assert_eq!(served(&provider), Some(kept));

    stage.east.remove(Kind::Pod, "shop", "flood-1");
    stage.east.remove(Kind::Pod, "shop", "flood-2");
    until_served(&mut provider, &sets_of(&[("shop/web", &["10.4.1.1", "10.4.1.2"]), ("team/api", &["10.4.2.1"])]));
    let status = until_left_out(&mut provider, 0);
    assert_eq!(problems(&status), "");
    provider.until_logged(&["the cluster is within its limits again"]);
}

#[test]
fn changed_limits_apply_while_cluster_is_unreachable() {
    let stage = Stage::new();
    for (pod, address) in [("web", "10.4.1.1"), ("api", "10.4.1.2"), ("db", "10.4.1.3")] {
        stage.set(offering(pod, pod, &[address]));
    }
    let all = sets(&[("web", &["10.4.1.1"]), ("api", &["10.4.1.2"]), ("db", &["10.4.1.3"])]);
    let mut provider = stage.start();
    until_served(&mut provider, &all);
    stage.cut_off();
    provider.until_status("east is unreachable", |status| east(status)["reachable"] == false);
    stage.write_clusters(&[east_with(&stage, json!({"sets": 2}))]);
    until_served(&mut provider, &sets(&[("api", &["10.4.1.2"]), ("db", &["10.4.1.3"])]));
    stage.write_clusters(&[east_with(&stage, json!({"labelBytes": 12}))]);
    until_served(&mut provider, &sets(&[("api", &["10.4.1.2"])]));
    stage.write_clusters(&[stage.east_by_token()]);
    until_served(&mut provider, &all);
}

#[test]
fn too_many_pods_keep_the_last_sets() {
    let stage = Stage::new();
    // Four pods for each address.
    stage.write_clusters(&[east_with(&stage, json!({"addresses": 1}))]);
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    let web = sets(&[("web", &["10.4.1.1"])]);
    until_served(&mut provider, &web);
    let finished = |number: usize| {
        let mut pod = offering(&format!("job-{number}"), "job", &["10.4.2.1"]);
        pod["status"]["phase"] = "Succeeded".into();
        pod
    };
    for number in 0..4 {
        stage.set(finished(number));
    }
    let refused = |status: &Value| problems(status).contains("more than 4 pods with the label");
    let status = provider.until_status("the watch is refused", refused);
    assert_eq!(east(&status)["reachable"], false);
    assert_eq!(served(&provider), Some(web));
    // The initial list of a restarted provider is limited as well.
    provider.kill();
    let mut provider = stage.start();
    provider.until_status("the list is refused", refused);
    stage.remove("job-0");
    provider.until_status("east is watched again", |status| east(status)["reachable"] == true);
}
