use kit::agent_process::until;
use kit::fake_api::Verb;
use policy::Kind;
use serde_json::json;

use super::{
    ANSWERED_SECONDS, NO, Network, Pod, Running, Site, TRY_AGAIN_LATER, YES, egress, pending, reaches, with_uid,
};
use crate::stage::{namespace, set_all};

#[test]
fn pod_missing_from_watch_is_fetched_for_add() {
    let mut objects = vec![namespace("shop", ""), egress("web", "app=web", "app=db")];
    let site = Site::with(&objects);
    let _agent = site.start_agent();
    site.api.faults(|faults| faults.stalled = true);
    objects.push(pending("web", "app=web"));
    set_all(&site.api, &objects[2..]);
    let web = Running::start(&site.runtime(Network::Routed, json!({})), "web");
    site.assert_enforced(&objects, &web.addresses);
    assert!(site.api.count(Verb::Get, Kind::Pod) > 0);

    // Later watch events are applied as usual.
    site.api.faults(|faults| faults.stalled = false);
    objects[2] = pending("web", "app=renamed");
    set_all(&site.api, &objects[2..]);
    until("the rules follow", || site.stage.enforces(&site.state(&objects)).then_some(()));
}

#[test]
fn unknown_pod_fails_add_and_releases_its_addresses() {
    let objects = [namespace("shop", ""), egress("web", "app=web", "app=db")];
    let site = Site::with(&objects);
    let _agent = site.start_agent();
    let refused = site.runtime(Network::Routed, json!({"timeoutSeconds": ANSWERED_SECONDS}));
    let runtime = site.runtime(Network::Routed, json!({}));
    let pod = Pod::new("web");
    let failed = refused.add(&pod.container).unwrap_err();
    assert_eq!((failed.plugin.as_str(), failed.code), ("ringfence-cni", TRY_AGAIN_LATER));
    assert!(
        failed.details.contains("pod shop/web not found: the API server does not have the pod (404)"),
        "{failed:?}"
    );
    runtime.delete(&pod.container).unwrap();
    let address = "10.1.0.2".parse().unwrap();
    until("no pod has the address", || (!site.mentions(address)).then_some(()));
    site.assert_enforced(&objects, &[]);

    set_all(&site.api, &[pending("web", "app=web")]);
    runtime.add(&pod.container).unwrap();
}

#[test]
fn unknown_pod_is_isolated_until_known() {
    for network in [Network::Routed, Network::Bridged] {
        let mut objects = vec![
            namespace("shop", ""),
            egress("late", "app=late", "app=db"),
            pending("db", "app=db"),
            pending("other", "app=other"),
        ];
        let site = Site::with(&objects);
        let _agent = site.start_agent();
        let runtime = site.runtime(network, json!({}));
        let isolating = site.runtime(network, json!({"timeoutSeconds": ANSWERED_SECONDS, "onTimeout": "isolate"}));
        let [db, other] = ["db", "other"].map(|name| Running::start(&runtime, name));
        let pod = Pod::new("late");
        let added = isolating.add(&pod.container).unwrap();
        let said = &added.steps[1].stderr;
        assert!(said.contains("pod shop/late starts isolated by the agent, with all traffic denied"), "{said}");
        let late = Running { pod, addresses: added.addresses() };
        site.assert_enforced(&objects, &late.addresses);
        assert_eq!([&db, &other].map(|to| reaches(&late, to)), [NO, NO], "{network:?}");
        assert_eq!([&db, &other].map(|from| reaches(from, &late)), [NO, NO], "{network:?}");
        assert_eq!(reaches(&other, &db), YES, "{network:?}");

        objects.push(pending("late", "app=late"));
        set_all(&site.api, &objects[4..]);
        until("it is policed", || site.stage.enforces(&site.state(&objects)).then_some(()));
        assert_eq!([&db, &other].map(|to| reaches(&late, to)), [YES, NO], "{network:?}");
        assert_eq!([&db, &other].map(|from| reaches(from, &late)), [YES, YES], "{network:?}");
    }
}

#[test]
fn failed_pod_request_is_named_and_retry_succeeds() {
    let site = Site::with(&[namespace("shop", "")]);
    let _agent = site.start_agent();
    site.api.faults(|faults| {
        faults.stalled = true;
        faults.refuse(Kind::Pod, &[Verb::Get], 403);
    });
    set_all(&site.api, &[pending("web", "app=web")]);
    let refused = site.runtime(Network::Routed, json!({"timeoutSeconds": ANSWERED_SECONDS}));
    let runtime = site.runtime(Network::Routed, json!({}));
    let pod = Pod::new("web");
    let failed = refused.add(&pod.container).unwrap_err();
    assert_eq!(failed.code, TRY_AGAIN_LATER);
    assert!(failed.details.contains("pod shop/web not found"), "{failed:?}");
    assert!(failed.details.contains("RBAC verb 'get'") || failed.details.contains("get"), "{failed:?}");
    runtime.delete(&pod.container).unwrap();
    site.api.faults(|faults| faults.refusals.clear());
    runtime.add(&pod.container).unwrap();
}

#[test]
fn stale_pod_object_does_not_release_its_successor() {
    let predecessor = |uid: &str| with_uid(uid, pending("db-0", "app=free"));
    let mut objects = vec![namespace("shop", ""), pending("peer", "app=peer"), predecessor("of-the-first")];
    let site = Site::with(&objects);
    let _agent = site.start_agent();
    let refused = site.runtime(Network::Routed, json!({"timeoutSeconds": ANSWERED_SECONDS}));
    let pod = Pod::new("db-0");
    assert_eq!(refused.add(&pod.container).unwrap_err().code, TRY_AGAIN_LATER);
    refused.delete(&pod.container).unwrap();

    let runtime = site.runtime(Network::Routed, json!({}));
    let isolating = json!({"timeoutSeconds": ANSWERED_SECONDS, "onTimeout": "isolate"});
    let peer = Running::start(&runtime, "peer");
    let successor = Running::start(&site.runtime(Network::Routed, isolating), "db-0");
    site.assert_enforced(&objects, &successor.addresses);
    assert_eq!((reaches(&successor, &peer), reaches(&peer, &successor)), (NO, NO));
    let check = runtime.check(&successor.pod.container).unwrap_err();
    assert!(check.code == 100 && check.details.contains("the pod is isolated, with all traffic denied"), "{check:?}");

    objects[2] = predecessor("uid-of-db-0");
    set_all(&site.api, &objects[2..]);
    until("it is known", || site.stage.enforces(&site.state(&objects)).then_some(()));
    assert_eq!((reaches(&successor, &peer), reaches(&peer, &successor)), (YES, YES));
    runtime.check(&successor.pod.container).unwrap();
}
