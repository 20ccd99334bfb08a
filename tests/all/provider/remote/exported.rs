//! `--export calico`: a GlobalNetworkSet for each set, and nothing else touched.

use super::*;

const V1: &str = "crd.projectcalico.org/v1";
const SETS: &str = "globalnetworksets";

fn stage() -> Stage {
    let stage = Stage::new().with(&["--export", "calico"]);
    stage.home.install_network_sets(V1);
    stage
}

fn writes(stage: &Stage) -> usize {
    stage.home.writes().get(SETS).copied().unwrap_or(0)
}

/// The nets of the existing objects, by name.
fn nets(stage: &Stage) -> BTreeMap<String, Vec<String>> {
    let nets = |object: &Value| {
        object["spec"]["nets"].as_array().into_iter().flatten().map(|net| net.as_str().unwrap().to_owned()).collect()
    };
    stage.home.network_sets().iter().map(|(name, object)| (name.clone(), nets(object))).collect()
}

fn wanted(of: &[(&str, &[&str])]) -> BTreeMap<String, Vec<String>> {
    of.iter().map(|(name, nets)| ((*name).to_owned(), nets.iter().map(|net| (*net).to_owned()).collect())).collect()
}

#[track_caller]
fn until_nets(stage: &Stage, provider: &mut Provider, wanted: &BTreeMap<String, Vec<String>>) {
    provider.until(&format!("the objects are {wanted:?}"), |_| (nets(stage) == *wanted).then_some(()));
}

#[test]
fn each_set_is_an_object_to_the_letter() {
    let stage = stage();
    let mut cluster = stage.east_by_token();
    cluster["name"] = "my-cluster".into();
    stage.write_clusters(&[cluster]);
    let mut my_app = offering("pod-1", "my-app", &["10.4.1.38", "2001:db8::1"]);
    my_app["metadata"]["namespace"] = "my-ns".into();
    stage.set(my_app);
    let mut provider = stage.start();
    until_nets(&stage, &mut provider, &wanted(&[("my-cluster-my-ns-my-app", &["10.4.1.38/32", "2001:db8::1/128"])]));
    let object = stage.home.network_sets().remove("my-cluster-my-ns-my-app").unwrap();
    assert_eq!((&object["apiVersion"], &object["kind"]), (&json!(V1), &json!("GlobalNetworkSet")));
    assert_eq!(
        object["metadata"]["labels"],
        json!({
            "managed-by": "calico-global-network-sync-operator",
            "ringfence.io/exported-by": "ringfence.ringfence-context",
            "semaphore.uw.systems/cluster": "my-cluster",
            "semaphore.uw.systems/namespace": "my-ns",
            "semaphore.uw.systems/name": "my-app",
        })
    );
    assert_eq!(object["spec"], json!({"nets": ["10.4.1.38/32", "2001:db8::1/128"]}));
    provider.until("it is counted", |provider| {
        (provider.metric("ringfence_context_remote_exported", &[("cluster", "my-cluster")]) == 1.0).then_some(())
    });
}

#[test]
fn calico_api_is_used_where_served() {
    let stage = stage();
    stage.home.install_network_sets("projectcalico.org/v3");
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    until_nets(&stage, &mut provider, &wanted(&[("east-shop-web", &["10.4.1.1/32"])]));
    assert_eq!(stage.home.network_sets()["east-shop-web"]["apiVersion"], "projectcalico.org/v3");
}

#[test]
fn exported_objects_follow_sets_without_redundant_writes() {
    let stage = stage();
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    stage.set(offering("api-1", "api", &["10.4.1.9"]));
    let mut provider = stage.start();
    until_nets(
        &stage,
        &mut provider,
        &wanted(&[("east-shop-api", &["10.4.1.9/32"]), ("east-shop-web", &["10.4.1.1/32"])]),
    );
    stage.set(offering("web-2", "web", &["10.4.1.2"]));
    stage.remove("api-1");
    let now = wanted(&[("east-shop-web", &["10.4.1.1/32", "10.4.1.2/32"])]);
    until_nets(&stage, &mut provider, &now);
    let before = writes(&stage);
    assert_eq!(before, 4);

    // The same pods again, as duplicate events of watches and lists.
    for round in 0..20 {
        let mut again = offering("web-1", "web", &["10.4.1.1"]);
        again["metadata"]["annotations"] = json!({"round": round.to_string()});
        stage.set(again);
    }
    stage.east.compact();
    stage.east.cut_connections();
    provider.until_logged(&["cluster reachable again"]);
    provider.kill();
    let mut provider = stage.start();
    provider.until("it has looked at the objects", |provider| {
        let text = provider.try_get("/metrics").ok()?.body;
        text.contains("ringfence_context_remote_exported{cluster=\"east\"} 1").then_some(())
    });
    assert_eq!((nets(&stage), writes(&stage)), (now, before));
}

#[test]
fn foreign_network_set_is_kept_and_reported() {
    let stage = stage();
    let theirs = |name: &str, labels: Value| {
        json!({
            "apiVersion": V1, "kind": "GlobalNetworkSet",
            "metadata": {"name": name, "labels": labels}, "spec": {"nets": ["192.0.2.0/24"]},
        })
    };
    stage.home.set_network_set(theirs("east-shop-web", json!({"semaphore.uw.systems/cluster": "east"})));
    stage.home.set_network_set(theirs("other", json!({"managed-by": "somebody"})));
    let before = stage.home.network_sets();
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    stage.set(offering("api-1", "api", &["10.4.1.9"]));
    let mut provider = stage.start();
    provider.until_logged(&["ERROR", "GlobalNetworkSet east-shop-web belongs to another operator"]);
    provider.until_status("it says so", |status| problems(status).contains("another operator"));
    assert!(provider.metric("ringfence_context_remote_export_failures_total", &[("cluster", "east")]) > 0.0);
    provider.until("the other is written", |_| stage.home.network_sets().contains_key("east-shop-api").then_some(()));
    let mut after = stage.home.network_sets();
    after.remove("east-shop-api");
    assert_eq!(after, before);
    assert_eq!(writes(&stage), 1, "it was not tried either");
}

/// A GlobalNetworkSet with the `managed-by` label that several operators use, in the namespace shop.
fn managed_set(name: &str, cluster: &str, exported_by: Option<&str>) -> Value {
    let mut object = json!({
        "apiVersion": V1, "kind": "GlobalNetworkSet", "spec": {"nets": ["10.9.9.9/32"]},
        "metadata": {"name": name, "labels": {
            "managed-by": "calico-global-network-sync-operator", "semaphore.uw.systems/cluster": cluster,
            "semaphore.uw.systems/namespace": "shop", "semaphore.uw.systems/name": "old",
        }},
    });
    if let Some(exporter) = exported_by {
        object["metadata"]["labels"]["ringfence.io/exported-by"] = exporter.into();
    }
    object
}

#[test]
fn export_leaves_other_operators_sets_as_they_are() {
    let stage = stage();
    stage.home.set_network_set(managed_set("west-shop-old", "west", None));
    stage.home.set_network_set(managed_set("north-shop-old", "north", Some("other.ringfence-context")));
    // Another operator's object has the name of a set of this provider.
    stage.home.set_network_set(managed_set("east-shop-api", "west", None));
    let before = stage.home.network_sets();
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    stage.set(offering("api-1", "api", &["10.4.1.9"]));
    let mut provider = stage.start();
    provider.until_logged(&["ERROR", "GlobalNetworkSet east-shop-api belongs to another operator"]);
    provider.until("web is exported", |_| stage.home.network_sets().contains_key("east-shop-web").then_some(()));
    provider.until_status("east has the problem", |status| problems(status).contains("east-shop-api"));
    assert!((provider.metric("ringfence_context_remote_exported", &[("cluster", "east")]) - 1.0).abs() < 0.1);
    stage.write_clusters(&[]);
    provider
        .until("the set of the removed cluster is deleted", |_| (stage.home.network_sets() == before).then_some(()));
    assert_eq!(writes(&stage), 2, "one set created and deleted");
}

#[test]
fn export_takes_over_sets_of_its_clusters() {
    let stage = stage();
    stage.home.set_network_set(managed_set("east-shop-web", "east", None));
    stage.home.set_network_set(managed_set("east-shop-old", "east", None));
    stage.set(offering("web-1", "web", &["10.9.9.9"]));
    let mut provider = stage.start();
    until_nets(&stage, &mut provider, &wanted(&[("east-shop-web", &["10.9.9.9/32"])]));
    provider.until("the object is labelled", |_| {
        let object = stage.home.network_sets().remove("east-shop-web")?;
        (object["metadata"]["labels"]["ringfence.io/exported-by"] == "ringfence.ringfence-context").then_some(())
    });
}

/// The values of `managed-by` that kube-policy-semaphore 0.1.2 and semaphore-policy since 0.1.3 write.
#[test]
fn export_takes_over_sets_of_later_releases() {
    for manager in ["kube-policy-semaphore", "semaphore-policy"] {
        let stage = stage();
        let of_manager = |name: &str, cluster: &str| {
            let mut object = managed_set(name, cluster, None);
            object["metadata"]["labels"]["managed-by"] = manager.into();
            object
        };
        for (name, cluster) in [("east-shop-web", "east"), ("east-shop-old", "east"), ("west-shop-web", "west")] {
            stage.home.set_network_set(of_manager(name, cluster));
        }
        let west = stage.home.network_sets().remove("west-shop-web").unwrap();
        let uid = stage.home.network_sets()["east-shop-web"]["metadata"]["uid"].clone();
        stage.set(offering("web-1", "web", &["10.9.9.9"]));
        let mut provider = stage.start();
        provider.until(&format!("{manager} has no objects of the cluster"), |_| {
            let objects = stage.home.network_sets();
            let labels = &objects.get("east-shop-web")?["metadata"]["labels"];
            let is_ours = labels["managed-by"] == "calico-global-network-sync-operator"
                && labels["ringfence.io/exported-by"] == "ringfence.ringfence-context";
            (is_ours && !objects.contains_key("east-shop-old")).then_some(())
        });
        let mut objects = stage.home.network_sets();
        assert_eq!(objects["east-shop-web"]["metadata"]["uid"], uid, "replaced in place: no moment without it");
        assert_eq!(objects["east-shop-web"]["spec"]["nets"], json!(["10.9.9.9/32"]));
        assert_eq!(objects.remove("west-shop-web"), Some(west), "the cluster is not in the file");
    }
}

#[test]
fn export_leaves_out_sets_beyond_the_limits() {
    let stage = stage();
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    until_nets(&stage, &mut provider, &wanted(&[("east-shop-web", &["10.4.1.1/32"])]));
    let mut cluster = stage.east_by_token();
    cluster["limits"] = json!({"addresses": 2});
    stage.write_clusters(&[cluster]);
    stage.set(offering("web-2", "web", &["10.4.1.2"]));
    stage.set(offering("api-1", "api", &["10.4.1.9"]));
    // A set is exported whole or not at all.
    until_nets(&stage, &mut provider, &wanted(&[("east-shop-api", &["10.4.1.9/32"])]));
    stage.remove("web-2");
    until_nets(
        &stage,
        &mut provider,
        &wanted(&[("east-shop-api", &["10.4.1.9/32"]), ("east-shop-web", &["10.4.1.1/32"])]),
    );
}

#[test]
fn export_deletes_its_sets_of_removed_clusters() {
    let stage = stage();
    stage.home.set_network_set(managed_set("east-shop-old", "east", None));
    // The cluster was removed from the file while no provider was running.
    stage.home.set_network_set(managed_set("gone-shop-old", "gone", Some("ringfence.ringfence-context")));
    stage.cut_off();
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    let away = wanted(&[("east-shop-old", &["10.9.9.9/32"])]);
    until_nets(&stage, &mut provider, &away);
    stage.restore();
    until_nets(&stage, &mut provider, &wanted(&[("east-shop-web", &["10.4.1.1/32"])]));
    // The cluster is unreachable, with its state known: nothing changes.
    stage.cut_off();
    provider.until_status("it is away", |status| east(status)["reachable"] == false);
    let before = writes(&stage);
    assert_eq!(nets(&stage), wanted(&[("east-shop-web", &["10.4.1.1/32"])]));
    assert_eq!(writes(&stage), before);
    stage.write_clusters(&[]);
    until_nets(&stage, &mut provider, &wanted(&[]));
}

#[test]
fn sets_with_colliding_names_have_separate_objects() {
    let stage = stage();
    let in_namespace = |pod: &str, namespace: &str, set: &str, address: &str| {
        let mut offering = offering(pod, set, &[address]);
        offering["metadata"]["namespace"] = namespace.into();
        offering
    };
    stage.set(in_namespace("one", "b", "c-web", "10.4.1.1"));
    stage.set(in_namespace("two", "b-c", "web", "10.4.1.2"));
    let mut provider = stage.start();
    provider.until("both are there", |_| (stage.home.network_sets().len() == 2).then_some(()));
    let objects = stage.home.network_sets();
    assert_eq!(objects["east-b-c-web"]["spec"]["nets"], json!(["10.4.1.1/32"]));
    let (name, other) = objects.iter().find(|(name, _)| *name != "east-b-c-web").unwrap();
    assert!(name.starts_with("east-b-c-web-"), "{name}");
    assert_eq!(other["metadata"]["labels"]["semaphore.uw.systems/namespace"], "b-c");
    assert_eq!(other["spec"]["nets"], json!(["10.4.1.2/32"]));
}

#[test]
fn refused_or_conflicting_exports_are_retried() {
    let stage = stage();
    stage.home.faults(|faults| faults.network_set_refusals = BTreeMap::from([(Verb::Create, 503)]));
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    provider.until_status("it says so", |status| problems(status).contains("503"));
    stage.home.faults(|faults| faults.network_set_refusals.clear());
    until_nets(&stage, &mut provider, &wanted(&[("east-shop-web", &["10.4.1.1/32"])]));
    provider.until_status("it is over", |status| problems(status).is_empty());

    // Another client writes it, so the next change meets a conflict.
    let mut changed = stage.home.network_sets().remove("east-shop-web").unwrap();
    changed["spec"]["nets"] = json!(["0.0.0.0/0"]);
    stage.home.set_network_set(changed);
    stage.set(offering("web-2", "web", &["10.4.1.2"]));
    until_nets(&stage, &mut provider, &wanted(&[("east-shop-web", &["10.4.1.1/32", "10.4.1.2/32"])]));
}

#[test]
fn export_writes_nothing_while_another_provider_leads() {
    let stage = Stage::new().with(&["--leader-elect", "--export", "calico", "--lease-identity", "second"]);
    stage.home.install_network_sets(V1);
    let held = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"namespace": "ringfence", "name": "ringfence-context"},
        "spec": {
            "holderIdentity": "first", "leaseDurationSeconds": 3600, "leaseTransitions": 1,
            "acquireTime": "2026-01-02T03:04:05.000000Z", "renewTime": "2026-01-02T03:04:05.000000Z",
        },
    });
    stage.home.set_lease(held);
    stage.set(offering("web-1", "web", &["10.4.1.1"]));
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[("web", &["10.4.1.1"])]));
    provider.until_ready();
    provider.until("it has looked at the Lease", |_| stage.home.lease_verbs().contains(&Verb::Get).then_some(()));
    assert_eq!((writes(&stage), stage.home.network_sets().len()), (0, 0));
}
