use kit::agent_process::until;
use serde_json::{Value, json};

use super::{NO, Network, Pod, Running, Site, YES, pending, reaches, with_uid};
use crate::stage::{NODE, ingress, namespace, pod, set_all};

/// Shop's db allows ingress only from pods with label app=friend.
fn objects() -> Vec<Value> {
    vec![
        namespace("shop", ""),
        ingress("db", "app=db", "app=friend"),
        pending("db", "app=db"),
        pending("stranger", "app=stranger"),
        pending("friend", "app=friend"),
    ]
}

/// The address of a pod elsewhere, which the watch delivers after everything that was set before it.
const MARK: &str = "10.2.0.99";

fn until_watched_up_to_here(site: &Site, objects: &mut Vec<Value>) {
    let mark = pod("mark", "node-b", "app=friend", &[MARK]);
    set_all(&site.api, std::slice::from_ref(&mark));
    objects.push(mark);
    until("the watch has sent it", || site.mentions(MARK.parse().unwrap()).then_some(()));
}

/// The owner of this object claims the stranger's addresses. That does not admit the stranger.
fn assert_claim_is_void(claim: impl Fn(&[&str]) -> Value) {
    let mut objects = objects();
    let site = Site::with(&objects);
    let agent = site.start_agent();
    let runtime = site.runtime(Network::Routed, json!({}));
    let [db, stranger, friend] = ["db", "stranger", "friend"].map(|name| Running::start(&runtime, name));
    let judged = || (reaches(&stranger, &db), reaches(&friend, &db));
    assert_eq!(judged(), (NO, YES));

    let addresses: Vec<String> = stranger.addresses.iter().map(ToString::to_string).collect();
    let claim = claim(&addresses.iter().map(String::as_str).collect::<Vec<_>>());
    set_all(&site.api, std::slice::from_ref(&claim));
    objects.push(claim);
    until_watched_up_to_here(&site, &mut objects);
    assert_eq!(judged(), (NO, YES));
    site.assert_enforced(&objects, &stranger.addresses);

    drop(agent);
    assert_eq!(judged(), (NO, YES));
    let _agent = site.start_agent();
    assert_eq!(judged(), (NO, YES));
    site.assert_enforced(&objects, &stranger.addresses);

    // Without the attachment, only the API reports addresses.
    runtime.delete(&stranger.pod.container).unwrap();
    until("the claim is all that is known", || site.stage.enforces(&site.state(&objects)).then_some(()));
}

#[test]
fn remote_status_claiming_local_address_gains_no_access() {
    assert_claim_is_void(|addresses| with_uid("of-the-impostor", pod("impostor", "node-b", "app=friend", addresses)));
}

#[test]
fn stale_local_status_does_not_claim_reused_address() {
    assert_claim_is_void(|addresses| {
        let mut old = with_uid("of-the-old", pod("old", NODE, "app=friend", addresses));
        old["status"]["phase"] = json!("Running");
        old["status"]["startTime"] = json!("2099-01-01T00:00:00Z");
        old
    });
}

#[test]
fn recreated_sandbox_keeps_rules_after_old_delete() {
    let objects = objects();
    let site = Site::with(&objects);
    let agent = site.start_agent();
    let runtime = site.runtime(Network::Bridged, json!({}));
    let [first, friend, stranger] = ["db", "friend", "stranger"].map(|name| Running::start(&runtime, name));
    let again = Pod::again("db", 1);
    let addresses = runtime.add(&again.container).unwrap().addresses();
    let second = Running { pod: again, addresses };
    site.assert_enforced(&objects, &[&first.addresses[..], &second.addresses].concat());
    runtime.delete(&first.pod.container).unwrap();
    until("the first is forgotten", || (!first.addresses.iter().any(|a| site.mentions(*a))).then_some(()));
    let judged = || (reaches(&friend, &second), reaches(&stranger, &second));
    assert_eq!(judged(), (YES, NO));
    drop(agent);
    let _agent = site.start_agent();
    assert_eq!(judged(), (YES, NO));
    site.assert_enforced(&objects, &second.addresses);
}
