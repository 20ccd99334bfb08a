//! Records of small clusters, case by case.

use std::time::Duration;

use ::identity::ReservedIdentity;
use serde_json::{Value, json};

use crate::numbers::REST;
use crate::object::{Exposure, Service};
use crate::record::{Detail, Role};
use crate::testing::{labels, pod};

use super::*;

pub(super) fn settings() -> Settings {
    Settings {
        cluster_id: "test".into(),
        filter: LabelFilter::default(),
        pod_detail: false,
        agent: None,
        node: None,
        numbers: Space::STANDARD,
    }
}

pub(super) fn namespace(name: &str, labels: Value) -> WatchedObject {
    let object = json!({"metadata": {"name": name, "labels": labels}});
    let Ok(policy::Object::Namespace(namespace)) = policy::lower(policy::Kind::Namespace, &object) else { panic!() };
    WatchedObject::Namespace(namespace)
}

/// A pod as a test describes it.
#[derive(Debug, Clone)]
pub(super) struct PodFixture<'a> {
    pub(super) name: &'a str,
    pub(super) owner: &'a str,
    pub(super) labels: &'a [(&'a str, &'a str)],
    pub(super) addresses: &'a [&'a str],
    pub(super) node: &'a str,
    pub(super) phase: &'a str,
    pub(super) host_network: bool,
    pub(super) host_port: bool,
    pub(super) ready: bool,
    pub(super) failing: bool,
    pub(super) terminating: bool,
    pub(super) started: u32,
    pub(super) created: u32,
    pub(super) uid: &'a str,
}

pub(super) const WEB: PodFixture<'static> = PodFixture {
    name: "shop/web-1",
    owner: "ReplicaSet web-5d8f",
    labels: &[("app", "web"), ("pod-template-hash", "5d8f")],
    addresses: &["10.0.0.1"],
    node: "node-a",
    phase: "Running",
    host_network: false,
    host_port: false,
    ready: true,
    failing: false,
    terminating: false,
    started: 0,
    created: 0,
    uid: "1",
};

impl PodFixture<'_> {
    pub(super) fn object(&self) -> WatchedObject {
        let name: ObjectName = self.name.parse().unwrap();
        let pairs: serde_json::Map<String, Value> = self.labels.iter().map(|(k, v)| ((*k).into(), json!(v))).collect();
        let time = |minute: u32| format!("2026-01-01T{:02}:{:02}:00Z", minute / 60, minute % 60);
        let ips: Vec<Value> = self.addresses.iter().map(|ip| json!({"ip": ip})).collect();
        let mut object = json!({
            "metadata": {
                "namespace": &*name.namespace, "name": &*name.name, "labels": pairs, "uid": self.uid,
                "creationTimestamp": time(self.created)
            },
            "spec": {"nodeName": self.node, "hostNetwork": self.host_network},
            "status": {"phase": self.phase, "podIPs": ips, "startTime": time(self.started)}
        });
        if self.terminating {
            object["metadata"]["deletionTimestamp"] = time(0).into();
        }
        let (ready, failing, host_port) = (self.ready, self.failing, self.host_port);
        WatchedObject::Pod(Arc::new(IdentityPod { ready, failing, host_port, ..pod(object, self.owner) }))
    }
}

fn unreadable(object: WatchedObject) -> WatchedObject {
    match object {
        WatchedObject::Pod(pod) => {
            let base = policy::Pod { unreadable: true, ..(*pod.base).clone() };
            WatchedObject::Pod(Arc::new(IdentityPod { base: Arc::new(base), ..(*pod).clone() }))
        }
        WatchedObject::Namespace(namespace) => {
            WatchedObject::Namespace(Arc::new(policy::Namespace { unreadable: true, ..(*namespace).clone() }))
        }
        WatchedObject::Policy(_)
        | WatchedObject::Node(_)
        | WatchedObject::ClusterPolicy(_)
        | WatchedObject::Service(_)
        | WatchedObject::EndpointSlice(_)
        | WatchedObject::Exposure(_) => object,
    }
}

pub(super) fn service(name: &str, selector: &[(&str, &str)], exposed: bool) -> WatchedObject {
    WatchedObject::Service(Arc::new(Service {
        name: name.parse().unwrap(),
        selector: labels(selector),
        exposed,
        addresses: Box::default(),
        ports: Box::default(),
        problems: Box::default(),
    }))
}

pub(super) fn directory_with(settings: Settings, objects: &[WatchedObject]) -> Directory {
    let mut directory = Directory::new(settings);
    for object in objects {
        directory.apply(Change::Set(object.clone()), Instant::now());
    }
    directory
}

pub(super) fn directory(objects: &[WatchedObject]) -> Directory {
    directory_with(settings(), objects)
}

pub(super) fn record<'a>(directory: &'a Directory, address: &str) -> Option<&'a Record> {
    directory.record(address.parse().unwrap()).map(|record| &**record)
}

pub(super) fn workload(directory: &Directory, address: &str) -> String {
    record(directory, address).map_or("nobody".into(), |r| format!("{}/{}", r.namespace, r.workload))
}

pub(super) fn shop() -> WatchedObject {
    namespace("shop", json!({"team": "blue"}))
}

#[test]
fn record_describes_workload_of_address() {
    let labelled = [("app", "web"), ("pod-template-hash", "5d8f"), ("service-identity", "front")];
    let web = PodFixture { labels: &labelled, addresses: &["10.0.0.1", "fd00::1"], ..WEB };
    let directory = directory(&[shop(), web.object()]);
    let carried = labels(&[("app", "web"), ("service-identity", "front")]);
    let of_namespace = labels(&[("kubernetes.io/metadata.name", "shop"), ("team", "blue")]);
    let sid = Sid::of("test", "shop", &carried, &of_namespace);
    let found = record(&directory, "10.0.0.1").unwrap();
    assert_eq!(
        [&*found.workload, &*found.namespace, &*found.app, &*found.service()],
        ["web", "shop", "web", "shop/front"]
    );
    assert_eq!((found.internet_exposed, found.control_plane, found.state, &found.detail), (false, false, None, &None));
    assert!(found.labels().eq(carried.iter()));
    assert_eq!((found.sid, found.num), (Some(sid), Space::STANDARD.home(sid)));
    let [v4, v6] = ["10.0.0.1", "fd00::1"].map(|a| directory.record(a.parse().unwrap()).unwrap());
    assert!(Arc::ptr_eq(v4, v6));
    let identity = directory.current().ids.get(&sid).cloned().unwrap();
    assert_eq!((identity.references, &identity.labels), (2, &carried));
    assert_eq!((identity.namespace_labels, &*identity.namespace), (of_namespace, "shop"));
    assert_eq!(record(&directory, "10.0.0.2"), None);
}

#[test]
fn address_claim_goes_to_pod_likeliest_to_send() {
    // From the most likely to the least likely.
    let order = [
        PodFixture { name: "shop/e", ready: true, uid: "2", ..WEB },
        PodFixture { name: "shop/d", ready: true, uid: "2", ..WEB },
        PodFixture { name: "shop/z", ready: true, created: 0, uid: "1", ..WEB },
        PodFixture { name: "shop/c", ready: false, started: 9, created: 1, uid: "8", ..WEB },
        PodFixture { name: "shop/f", ready: false, started: 9, created: 0, uid: "9", ..WEB },
        PodFixture { name: "shop/g", ready: false, started: 8, created: 9, uid: "9", ..WEB },
        PodFixture { name: "shop/h", terminating: true, started: 59, created: 59, uid: "9", ..WEB },
        PodFixture { name: "shop/n", terminating: true, started: 58, host_network: true, ready: true, uid: "9", ..WEB },
    ];
    for (i, first) in order.iter().enumerate() {
        for second in &order[i + 1..] {
            for pair in [[first, second], [second, first]] {
                let plain = pair.map(|written| PodFixture { owner: "", labels: &[], ..written.clone() }.object());
                assert_eq!(workload(&directory(&plain), "10.0.0.1"), first.name, "{pair:?}");
            }
        }
    }
}

#[test]
fn finished_pod_releases_address_to_next_claimant() {
    let other = PodFixture { name: "shop/other", owner: "", labels: &[], ready: false, ..WEB };
    let mut directory = directory(&[shop(), WEB.object(), other.object()]);
    assert_eq!(workload(&directory, "10.0.0.1"), "shop/web");
    directory.apply(Change::Set(PodFixture { phase: "Succeeded", ..WEB }.object()), Instant::now());
    assert_eq!(workload(&directory, "10.0.0.1"), "shop/other");
    directory.apply(Change::Remove(WatchedKind::Pod, "shop/other".parse().unwrap()), Instant::now());
    assert_eq!(record(&directory, "10.0.0.1"), None);
    assert!(directory.current().ids.is_empty());
}

#[test]
fn node_record_includes_host_network_pods() {
    let host = PodFixture { host_network: true, addresses: &["192.0.2.1", "fd00::a"], node: "node-a", ..WEB };
    let proxy =
        PodFixture { name: "kube-system/proxy", owner: "DaemonSet proxy", host_port: true, labels: &[], ..host };
    let mut directory = directory(&[proxy.object()]);
    let node = record(&directory, "fd00::a").unwrap();
    assert_eq!((&*node.workload, &*node.namespace, &*node.app, &*node.service()), ("node-a", "", "node-a", ""));
    assert_eq!((node.state, node.num, node.sid), (Some(ReservedIdentity::Host), ReservedIdentity::Host.num(), None));
    assert_eq!(node.role(), Role::Internal, "every port on the host network is a hostPort");
    assert!(directory.current().ids.is_empty());

    let api = PodFixture { name: "kube-system/kube-apiserver-node-a", owner: "Node node-a", labels: &[], ..host };
    directory.apply(Change::Set(api.object()), Instant::now());
    assert_eq!(record(&directory, "192.0.2.1").unwrap().role(), Role::ControlPlane);
    directory.apply(Change::Remove(WatchedKind::Pod, api.name.parse().unwrap()), Instant::now());
    assert_eq!(record(&directory, "192.0.2.1").unwrap().role(), Role::Internal);

    let door = PodFixture { name: "shop/door", labels: &[("app", "door")], ..host };
    directory.apply(Change::Set(door.object()), Instant::now());
    directory.apply(Change::Set(service("shop/door", &[("app", "door")], true)), Instant::now());
    assert_eq!(record(&directory, "192.0.2.1").unwrap().role(), Role::InternetExposed);
    directory.apply(Change::Set(PodFixture { node: "", ..proxy }.object()), Instant::now());
    directory.apply(Change::Remove(WatchedKind::Pod, door.name.parse().unwrap()), Instant::now());
    assert_eq!(record(&directory, "192.0.2.1"), None, "a pod on no node says nothing of any");
}

#[test]
fn identity_is_init_without_readable_labels() {
    let init = |directory: &Directory| {
        let record = record(directory, "10.0.0.1").unwrap();
        assert_eq!(&*record.workload, "web");
        (record.state, record.num, record.sid.is_some(), directory.current().ids.len())
    };
    let yes = (Some(ReservedIdentity::Init), ReservedIdentity::Init.num(), false, 0);
    assert_eq!(init(&directory(&[WEB.object()])), yes);
    assert_eq!(init(&directory(&[WEB.object(), unreadable(shop())])), yes);
    assert_eq!(init(&directory(&[unreadable(WEB.object()), shop()])), yes);
    let mut directory = directory(&[WEB.object(), shop()]);
    assert_eq!(record(&directory, "10.0.0.1").unwrap().state, None);
    directory.apply(Change::Remove(WatchedKind::Namespace, ObjectName::new("", "shop")), Instant::now());
    assert_eq!(init(&directory), yes);
}

#[test]
fn pods_where_no_agent_runs_are_unmanaged() {
    let selector = AgentSelector { namespace: "ringfence".into(), labels: labels(&[("app", "agent")]) };
    let with_agents = Settings { agent: Some(selector), ..settings() };
    let elsewhere = PodFixture { name: "shop/web-2", node: "node-b", addresses: &["10.0.0.2"], ..WEB };
    let nowhere = PodFixture { name: "shop/web-3", node: "", addresses: &["10.0.0.3"], ..WEB };
    let agent = PodFixture {
        name: "ringfence/agent",
        labels: &[("app", "agent"), ("x", "y")],
        host_network: true,
        addresses: &["192.0.2.1"],
        ..WEB
    };
    let objects = [shop(), WEB.object(), elsewhere.object(), nowhere.object()];
    let mut directory = directory_with(with_agents, &objects);
    let states = |directory: &Directory| {
        let records = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(|a| record(directory, a).unwrap().clone());
        for record in &records {
            let expected = (record.state.is_none(), if record.state.is_none() { 1 } else { 0 });
            assert_eq!((record.sid.is_some(), directory.current().ids.len().min(expected.1)), expected);
        }
        records.map(|record| (record.state, record.num).0.map(ReservedIdentity::text))
    };
    let none = [Some("unmanaged"); 3];
    assert_eq!(states(&directory), none);
    for (change, expected) in [
        (agent.object(), [None, none[1], none[2]]),
        (PodFixture { ready: false, failing: true, ..agent.clone() }.object(), none),
        // Its first start, as in an upgrade; the rules of the previous agent are still in the kernel.
        (PodFixture { ready: false, ..agent.clone() }.object(), [None, none[1], none[2]]),
        (PodFixture { phase: "Failed", ..agent.clone() }.object(), none),
        (PodFixture { node: "node-b", ..agent.clone() }.object(), [none[0], None, none[2]]),
        (PodFixture { labels: &[("app", "other")], node: "node-b", ..agent.clone() }.object(), none),
    ] {
        directory.apply(Change::Set(change), Instant::now());
        assert_eq!(states(&directory), expected);
    }
    assert_eq!(record(&directory, "10.0.0.1").unwrap().num, ReservedIdentity::Unmanaged.num());
}

#[test]
fn workload_is_exposed_if_any_pod_is() {
    let old = PodFixture { name: "shop/web-0", owner: "ReplicaSet web-77", addresses: &["10.0.0.2"], ..WEB };
    let old = PodFixture { labels: &[("app", "old"), ("pod-template-hash", "77")], ..old };
    let exposed =
        |directory: &Directory| ["10.0.0.1", "10.0.0.2"].map(|a| record(directory, a).unwrap().internet_exposed);
    let mut directory = directory(&[shop(), WEB.object(), old.object()]);
    assert_eq!(exposed(&directory), [false; 2]);
    let mut expect = |change: Change<WatchedObject>, expected: bool| {
        directory.apply(change, Instant::now());
        assert_eq!(exposed(&directory), [expected; 2]);
    };
    let remove = |kind: WatchedKind, name: &str| Change::<WatchedObject>::Remove(kind, name.parse().unwrap());
    expect(Change::Set(service("shop/old", &[("app", "old")], true)), true);
    expect(Change::Set(service("shop/old", &[("app", "old")], false)), false);
    expect(Change::Set(service("other/old", &[("app", "old")], true)), false);
    expect(Change::Set(service("shop/all", &[], true)), false);
    let services = vec!["shop/old".parse().unwrap()];
    let (kind, name) = (WatchedKind::Ingress, "shop/front".parse().unwrap());
    let ingress = Exposure { kind, name, services, addresses: vec![], problems: Box::default() };
    expect(Change::Set(WatchedObject::Exposure(Arc::new(ingress))), true);
    expect(remove(WatchedKind::Service, "shop/old"), false);
    expect(Change::Replace(WatchedKind::Service, vec![service("shop/old", &[("app", "old")], false)]), true);
    expect(Change::Replace(WatchedKind::HttpRoute, vec![]), true);
    expect(Change::Replace(WatchedKind::Ingress, vec![]), false);
    expect(Change::Set(PodFixture { host_port: true, ..old.clone() }.object()), true);
    expect(Change::Set(old.object()), false);
}

#[test]
fn pod_details_are_included_with_pod_detail_setting() {
    let second = PodFixture { name: "shop/web-2", node: "", addresses: &["10.0.0.2"], ..WEB };
    let directory =
        directory_with(Settings { pod_detail: true, ..settings() }, &[shop(), WEB.object(), second.object()]);
    let detail = |address: &str| record(&directory, address).unwrap().detail.clone().unwrap();
    let of = |pod: &str, node: Option<&str>| Detail {
        pod: Some(pod.into()),
        node: node.map(Arc::from),
        ..Detail::default()
    };
    assert_eq!(*detail("10.0.0.1"), of("web-1", Some("node-a")));
    assert_eq!(*detail("10.0.0.2"), of("web-2", None));
}

#[test]
fn too_long_labels_are_problems_but_affect_identity() {
    let long = ["x", "y"].map(|c| c.repeat(crate::labels::LONGEST_VALUE_BYTES + 1));
    let [x, y] = [[("note", long[0].as_str())], [("note", long[1].as_str())]];
    let first = PodFixture { labels: &x, owner: "", ..WEB };
    let second = PodFixture { name: "shop/web-2", labels: &y, owner: "", addresses: &["10.0.0.2"], ..WEB };
    let mut directory = directory(&[shop(), first.object(), second.object()]);
    assert!(record(&directory, "10.0.0.1").unwrap().labels().next().is_none());
    assert_eq!(directory.current().ids.len(), 2);
    let problems: Vec<&str> = directory.problems().map(|problem| problem.origin.as_str()).collect();
    assert_eq!(problems, ["Pod shop/web-1 metadata.labels[note]", "Pod shop/web-2 metadata.labels[note]"]);
    directory.apply(Change::Set(PodFixture { labels: &[], ..first.clone() }.object()), Instant::now());
    directory.apply(Change::Remove(WatchedKind::Pod, second.name.parse().unwrap()), Instant::now());
    assert_eq!(directory.problems().count(), 0);
}

#[test]
fn owner_change_marks_pod_as_renamed() {
    let mut directory = directory(&[shop(), WEB.object()]);
    assert_eq!(directory.apply(Change::Set(WEB.object()), Instant::now()), StateEffects::default());
    let adopted = directory.apply(Change::Set(PodFixture { owner: "ReplicaSet api", ..WEB }.object()), Instant::now());
    assert!(adopted.renamed.iter().eq([&WEB.name.parse().unwrap()]));
    let pod = directory.state().pods().next().unwrap().clone();
    assert_eq!(&*directory.workload_of(&pod), "api");
}

#[test]
fn relabelled_namespace_creates_one_identity_for_5000_pods() {
    let names: Vec<(String, String)> =
        (0..5000).map(|n| (format!("shop/web-{n}"), format!("10.0.{}.{}", n / 250, n % 250))).collect();
    let pods = names.iter().map(|(name, ip)| PodFixture { name, addresses: &[ip], ..WEB }.object());
    let mut directory = Directory::new(settings());
    directory.apply(Change::Set(shop()), Instant::now());
    directory.apply(Change::Replace(WatchedKind::Pod, pods.collect()), Instant::now());
    let before = directory.take_changes();
    assert_eq!((before.upserts.len(), before.id_upserts.len()), (5000, 1));
    directory.apply(Change::Set(namespace("shop", json!({"team": "red"}))), Instant::now());
    let changes = directory.take_changes();
    assert_eq!((changes.upserts.len(), changes.removes.len()), (5000, 0));
    assert_eq!((changes.id_upserts.len(), changes.id_upserts[0].1.references), (1, 5000));
    assert_eq!(changes.id_removes, [before.id_upserts[0].0]);
    assert!(changes.upserts.iter().all(|(_, record)| Arc::ptr_eq(record, &changes.upserts[0].1)));
}

#[test]
fn job_churn_leaves_identities_and_table_unchanged() {
    let mut directory = directory(&[shop(), WEB.object()]);
    directory.take_changes();
    let (before, templates) = (directory.current(), directory.templates.held().0);
    let mut seen = BTreeSet::new();
    for n in 0..10_000 {
        let job = format!("backup-{}", 28_000_000 + n);
        let (name, owner) = (format!("shop/{job}-x2x4z"), format!("Job {job}"));
        let labels = [("app", "backup"), ("job-name", job.as_str()), ("controller-uid", job.as_str())];
        let pod = PodFixture { name: &name, owner: &owner, labels: &labels, addresses: &["10.0.9.9"], ..WEB };
        directory.apply(Change::Set(pod.object()), Instant::now());
        assert_eq!(workload(&directory, "10.0.9.9"), "shop/backup");
        seen.extend(record(&directory, "10.0.9.9").unwrap().sid);
        directory.apply(Change::Set(PodFixture { phase: "Succeeded", ..pod }.object()), Instant::now());
        directory.apply(Change::Remove(WatchedKind::Pod, name.parse().unwrap()), Instant::now());
    }
    assert_eq!(seen.len(), 1);
    assert!(directory.take_changes().is_empty());
    let after = directory.current();
    assert_eq!((after.ids, after.table, after.sum), (before.ids, before.table, before.sum));
    assert_eq!((directory.templates.held().0, directory.next_expiry()), (templates, None));
}

#[test]
fn event_resolves_only_affected_addresses() {
    let names: Vec<(String, String, String)> = (0..2000)
        .map(|n| (format!("shop/web-{n}"), format!("10.0.{}.{}", n / 250, n % 250), format!("node-{}", n % 20)))
        .collect();
    let pods = names.iter().map(|(name, ip, node)| PodFixture { name, addresses: &[ip], node, ..WEB }.object());
    let host = PodFixture { name: "shop/host", host_network: true, addresses: &["192.0.2.1"], node: "node-1", ..WEB };
    let mut directory = directory(&[shop(), namespace("other", json!({})), host.object()]);
    directory.apply(Change::Replace(WatchedKind::Pod, pods.chain([host.object()]).collect()), Instant::now());
    let mut cost = |change: Change<WatchedObject>| {
        let before = directory.resolved();
        directory.apply(change, Instant::now());
        directory.resolved() - before
    };
    let mut set = |object: WatchedObject| cost(Change::Set(object));
    assert_eq!(
        set(PodFixture { ready: false, node: "node-0", name: "shop/web-0", addresses: &["10.0.0.0"], ..WEB }.object()),
        1
    );
    assert_eq!(set(PodFixture { name: "shop/new", addresses: &["10.9.0.1", "fd00::1"], ..WEB }.object()), 2);
    assert_eq!(set(PodFixture { name: "shop/new", addresses: &["10.9.0.2"], ..WEB }.object()), 3);
    assert_eq!(set(PodFixture { ready: false, ..host }.object()), 1);
    assert_eq!(set(service("shop/none", &[("app", "none")], true)), 0);
    assert_eq!(set(service("other/web", &[("app", "web")], true)), 0);
    assert_eq!(set(namespace("other", json!({"a": "b"}))), 0);
    assert_eq!(set(shop()), 0);
    assert_eq!(set(service("shop/web", &[("app", "web")], true)), 2002);
    assert_eq!(set(service("shop/web-too", &[("app", "web")], true)), 0, "it is exposed already");
    assert_eq!(cost(Change::Remove(WatchedKind::Pod, "shop/new".parse().unwrap())), 1);
}

#[test]
fn contested_number_rests_before_reassignment() {
    let start = Instant::now();
    let mut directory = Directory::new(Settings { numbers: Space::small(1), ..settings() });
    let other = PodFixture { name: "shop/other", owner: "", labels: &[], addresses: &["10.0.0.2"], ..WEB };
    for object in [shop(), WEB.object(), other.object()] {
        directory.apply(Change::Set(object), start);
    }
    let nums = |directory: &Directory| ["10.0.0.1", "10.0.0.2"].map(|a| record(directory, a).map(|r| r.num));
    let before = nums(&directory);
    assert!(before == [Some(256), Some(0)] || before == [Some(0), Some(256)], "{before:?}");
    assert_eq!(directory.exceptions().map(|(_, num)| num).collect::<Vec<_>>(), [None]);
    let (first, left) = if before[0] == Some(256) { ("shop/web-1", 1) } else { ("shop/other", 0) };
    directory.take_changes();
    directory.apply(Change::Remove(WatchedKind::Pod, first.parse().unwrap()), start);
    assert_eq!(nums(&directory)[left], Some(0));
    assert_eq!(directory.next_expiry(), Some(start + REST));
    directory.take_changes();
    directory.expire(start + REST - Duration::from_millis(1));
    assert!(directory.take_changes().is_empty());
    directory.expire(start + REST);
    assert_eq!(nums(&directory)[left], Some(256));
    let changes = directory.take_changes();
    assert_eq!((changes.upserts.len(), changes.id_upserts.len()), (1, 1));
}
