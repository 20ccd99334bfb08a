//! A remote set follows its pods: label, addresses, phase and deletion.

use super::*;

#[test]
fn follower_receives_every_change_of_labelled_pods() {
    let stage = Stage::new();
    stage.set(offering("web-1", "web", &["10.4.1.38", "2001:db8::38"]));
    stage.set(pod("shop", "plain", "any", &["10.4.1.99"]));
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[("web", &["10.4.1.38", "2001:db8::38"])]));
    let follower = stage.follower();
    follower.until_has(&sets(&[("web", &["10.4.1.38", "2001:db8::38"])]));

    stage.set(offering("web-2", "web", &["10.4.1.39"]));
    follower.until_has(&sets(&[("web", &["10.4.1.38", "10.4.1.39", "2001:db8::38"])]));
    // The label's value changes.
    stage.set(offering("web-1", "api", &["10.4.1.38", "2001:db8::38"]));
    follower.until_has(&sets(&[("web", &["10.4.1.39"]), ("api", &["10.4.1.38", "2001:db8::38"])]));
    // A pod gets the label.
    stage.set(offering("plain", "web", &["10.4.1.99"]));
    follower.until_has(&sets(&[("web", &["10.4.1.39", "10.4.1.99"]), ("api", &["10.4.1.38", "2001:db8::38"])]));
    // A pod loses the label.
    stage.set(pod("shop", "web-1", "any", &["10.4.1.38", "2001:db8::38"]));
    follower.until_has(&sets(&[("web", &["10.4.1.39", "10.4.1.99"])]));
    // A pod finishes.
    let mut finished = offering("web-2", "web", &["10.4.1.39"]);
    finished["status"]["phase"] = "Succeeded".into();
    stage.set(finished);
    follower.until_has(&sets(&[("web", &["10.4.1.99"])]));
    stage.remove("plain");
    follower.until_has(&sets(&[]));
    let seen = follower.seen();
    assert_eq!((seen.baselines, seen.lost.len()), (1, 0), "the rest was sent in deltas: {seen:?}");
    let watched = stage.east.requests();
    assert!(
        watched.iter().all(|request| request.query.contains_key("labelSelector")),
        "only labelled pods: {watched:?}"
    );
}

#[test]
fn default_and_configured_label_prefixes_are_watched() {
    let stage = Stage::new();
    let mut newer = offering("web-1", "web", &["10.4.1.1"]);
    newer["metadata"]["labels"] = json!({"policy.semaphore.uw.io/name": "web"});
    stage.set(newer);
    let mut other = offering("web-2", "web", &["10.4.1.2"]);
    other["metadata"]["labels"] = json!({"example.com/name": "web"});
    stage.set(other);
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[("web", &["10.4.1.1"])]));
    let mut cluster = stage.east_by_token();
    cluster["labelPrefixes"] = json!(["example.com"]);
    stage.write_clusters(&[cluster]);
    until_served(&mut provider, &sets(&[("web", &["10.4.1.2"])]));
}

#[test]
fn shared_address_stays_when_one_pod_is_removed() {
    let stage = Stage::new();
    stage.set(offering("old", "web", &["10.4.1.38"]));
    stage.set(offering("new", "web", &["10.4.1.38"]));
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[("web", &["10.4.1.38"])]));
    let follower = stage.follower();
    stage.remove("old");
    stage.set(offering("mark", "mark", &["10.4.1.1"]));
    follower.until_has(&sets(&[("web", &["10.4.1.38"]), ("mark", &["10.4.1.1"])]));
}

#[test]
fn host_network_pods_and_unaccepted_sets_are_excluded() {
    let stage = Stage::new();
    let mut on_host = offering("host-1", "web-host", &["10.0.0.1"]);
    on_host["spec"]["hostNetwork"] = true.into();
    stage.set(on_host);
    stage.set(offering("web-1", "web-1", &["10.4.1.1"]));
    stage.set(offering("db-1", "db", &["10.4.1.2"]));
    let mut cluster = stage.east_by_token();
    cluster["accept"] = json!([{"namespace": "shop", "name": "web-*"}]);
    stage.write_clusters(&[cluster.clone()]);
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[("web-1", &["10.4.1.1"])]));
    cluster["hostNetwork"] = true.into();
    stage.write_clusters(&[cluster.clone()]);
    until_served(&mut provider, &sets(&[("web-1", &["10.4.1.1"]), ("web-host", &["10.0.0.1"])]));
    // A set that is not accepted any more is removed immediately, although the other cluster is unreachable.
    stage.cut_off();
    provider.until_status("it is away", |status| east(status)["reachable"] == false);
    cluster["accept"] = json!([{"name": "web-host"}]);
    stage.write_clusters(&[cluster]);
    until_served(&mut provider, &sets(&[("web-host", &["10.0.0.1"])]));
}
