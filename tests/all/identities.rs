//! The agent and the provider of context compute the same identities.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Instant;

use cluster::Watchable;
use context::directory::{Directory, Settings};
use context::object::{WatchedKind, WatchedObject};
use expect_test::{Expect, expect};
use identity::{EndIdentity, LabelFilter, ReservedIdentity, Scheme, Space};
use kit::agent_process::{ProgramExit, ask_socket, run};
use kit::provider_process;
use policy::{Change, ClusterState, Holder, Interner, lower};
use proptest::prelude::*;
use proptest::sample::subsequence;
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::generate::{connected_world, world};
use tests::objects::kind_of;

use crate::drops::{DB, OUTSIDE, WEB, pods, send_datagrams, stage, until_reported};
use crate::stage::{NODE, Stage, namespace, pod, set_all};

const CLUSTER: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

/// Labels of each kind that the label filter distinguishes.
const LABELS: [(&str, &str); 7] = [
    ("app.kubernetes.io/name", "web"),
    ("topology.kubernetes.io/zone", "a"),
    ("pod-template-hash", "5d8f"),
    ("team", "blue"),
    ("team.example.com/stage", "beta"),
    ("service-identity", "front"),
    ("node.k8s.io/x", "y"),
];

const PATTERNS: [&str; 5] = ["!", "!team", "team.example.com/", "*.kubernetes.io/", "!*.example.com/"];

/// Objects of a generated cluster, some with further labels, and patterns of labels.
fn clusters() -> impl Strategy<Value = (Vec<Value>, Vec<&'static str>)> {
    let worlds = prop_oneof![world(), connected_world()].prop_map(|world| world.documents());
    let labels = prop::collection::vec(subsequence(&LABELS[..], 0..=LABELS.len()), 16);
    (worlds, labels, subsequence(&PATTERNS[..], 0..=PATTERNS.len())).prop_map(|(mut documents, labels, patterns)| {
        let labelled =
            documents.iter_mut().filter(|document| document["kind"] == "Pod" || document["kind"] == "Namespace");
        for (document, labels) in labelled.zip(labels.iter().cycle()) {
            // Malformed labels of an object stay unchanged.
            if document["metadata"]["labels"].is_null() {
                document["metadata"]["labels"] = json!({});
            }
            if let Some(of_object) = document["metadata"]["labels"].as_object_mut() {
                of_object.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), json!(value))));
            }
        }
        (documents, patterns)
    })
}

fn filter(patterns: &[&str]) -> LabelFilter {
    LabelFilter::with(patterns.iter().map(|text| text.parse().expect("a pattern")))
}

/// The cluster state of the agent.
fn state_of(documents: &[Value]) -> ClusterState {
    let mut state = ClusterState::new();
    for document in documents {
        state.apply(Change::Set(lower(kind_of(document), document).expect("it has a name")));
    }
    state
}

/// The directory of the provider.
fn directory_of(documents: &[Value], filter: LabelFilter) -> Directory {
    let numbers = Space::STANDARD;
    let mut directory = Directory::new(Settings {
        cluster_id: CLUSTER.into(),
        filter,
        pod_detail: false,
        agent: None,
        node: None,
        numbers,
    });
    for document in documents {
        let kind = WatchedKind::from(kind_of(document));
        let object = WatchedObject::lower(&mut Interner::new(), kind, document).expect("it has a name");
        directory.apply(Change::Set(object), Instant::now());
    }
    directory
}

fn addresses(state: &ClusterState) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = state.pods().flat_map(|pod| pod.addresses.iter().collect::<Vec<_>>()).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

proptest! {
    #[test]
    fn agent_and_provider_compute_the_same_identities((documents, patterns) in clusters()) {
        let filter = filter(&patterns);
        let (state, directory) = (state_of(&documents), directory_of(&documents, filter.clone()));
        let scheme = Scheme { cluster: CLUSTER.into(), filter };
        for address in addresses(&state) {
            // The provider prefers ready pods, and the agent does not know the readiness.
            if state.claimants(address).count() > 1 {
                continue;
            }
            let record = directory.record(address);
            let of_record = record.map(|record| (record.sid, record.state.map(|state| state.text())));
            match state.holder(address) {
                Some(Holder::Pod(pod)) => {
                    let EndIdentity { service, sid, state: reserved, .. } = scheme.of_pod(&state, pod);
                    prop_assert_eq!(of_record, Some((sid, reserved.map(ReservedIdentity::text))), "{}", pod.name);
                    let of_record = record.map(|record| record.service().into_owned());
                    prop_assert_eq!(of_record, service, "{}", pod.name);
                }
                Some(Holder::Unknown(_)) => unreachable!("nothing is attached"),
                None if state.nodes_with(address).next().is_some() => {
                    prop_assert_eq!(of_record, Some((None, Some("host"))), "{}", address);
                }
                // The provider identifies nodes by their objects, too.
                None => prop_assert_eq!(record.and_then(|record| record.sid), None, "{}", address),
            }
        }
    }
}

/// A folder with the documents in one file.
fn folder(documents: &[Value]) -> TempDir {
    let folder = TempDir::new().expect("a folder");
    let texts: Vec<String> = documents.iter().map(Value::to_string).collect();
    std::fs::write(folder.path().join("objects.json"), texts.join("\n---\n")).expect("a file in it");
    folder
}

#[test]
fn programs_agree_on_identities_of_manifests() {
    let objects = [
        namespace("shop", "team=shop"),
        pod("web", NODE, "app=web,pod-template-hash=5d8f", &["10.1.0.1"]),
        pod("api", NODE, "app=api,service-identity=back", &["10.1.0.2", "fd00:1::2"]),
    ];
    let folder = folder(&objects);
    let (manifests, out) = (folder.path().to_str().unwrap(), TempDir::new().unwrap());
    let settings = ["--manifests", manifests, "--cluster-id", CLUSTER, "--identity-labels", "!team"];
    let built = provider_process::run([&["build", "--out", out.path().to_str().unwrap()], &settings[..]].concat());
    assert_eq!(built.code, Some(0), "{}", built.stderr);
    for address in ["10.1.0.1", "10.1.0.2", "fd00:1::2"] {
        let looked_up =
            provider_process::run(["lookup", address, "-o", "json", "--from", out.path().to_str().unwrap()]);
        let record: Value = serde_json::from_str(&looked_up.stdout).unwrap();
        let computed = run([&["identity", address, "-o", "json"], &settings[..]].concat());
        assert_eq!((computed.code, computed.stderr.as_str()), (Some(0), ""));
        let computed: Value = serde_json::from_str(&computed.stdout).unwrap();
        for field in ["sid", "num", "service"] {
            let published = &record[0]["record"][field];
            assert!(!published.is_null(), "{field} of {record}");
            assert_eq!(&computed["identity"][field], published, "{field} of {address}");
        }
    }
}

#[track_caller]
fn check(objects: &[Value], arguments: &[&str], expected: Expect) {
    let folder = folder(objects);
    let manifests = folder.path().to_str().unwrap();
    let ProgramExit { code, stdout, stderr } = run([&["identity", "--manifests", manifests], arguments].concat());
    expected.assert_eq(&format!("{stdout}{stderr}exit status {}\n", code.expect("no signal ended it")));
}

#[test]
fn identity_verb_prints_included_and_excluded_labels() {
    let objects = [
        namespace("shop", "team=shop"),
        pod("web", NODE, "app=web,tier=front,pod-template-hash=5d8f,node.k8s.io/x=y", &["10.1.0.1"]),
    ];
    check(
        &objects,
        &["shop/web", "--cluster-id", CLUSTER, "--identity-labels", "!team"],
        expect![[r#"
        shop/web (10.1.0.1)
          identity          qrmnxlaxo5ppa
          home number       8181488
          service           shop
          cluster           0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9
          namespace         shop
          labels            app=web, tier=front
          namespace labels  kubernetes.io/metadata.name=shop
          excluded          node.k8s.io/x=y of the pod (pattern !*.k8s.io/)
          excluded          pod-template-hash=5d8f of the pod (differs between the pods of a workload)
          excluded          team=shop of the namespace (pattern !team)
        exit status 0
    "#]],
    );
}

#[test]
fn identity_verb_says_why_an_identity_is_reserved() {
    let mut on_host = pod("proxy", NODE, "app=proxy", &["192.168.0.1"]);
    on_host["spec"]["hostNetwork"] = json!(true);
    let mut unreadable = pod("odd", NODE, "", &["10.1.0.3"]);
    unreadable["metadata"]["labels"] = json!({"app": 7});
    let objects = [namespace("shop", ""), on_host, unreadable];
    check(
        &objects,
        &["192.0.2.1"],
        expect![[r#"
        192.0.2.1
          identity          world (2)
          reason            no known pod, node or remote set has the address
        exit status 1
    "#]],
    );
    check(
        &objects,
        &["192.168.0.1"],
        expect![[r#"
        192.168.0.1
          identity          host (1)
          reason            the address belongs to node node-a
        exit status 1
    "#]],
    );
    check(
        &objects,
        &["shop/proxy"],
        expect![[r#"
        shop/proxy (192.168.0.1)
          identity          host (1)
          reason            the pod is on the host network: its addresses are those of its node
          namespace         shop
        exit status 1
    "#]],
    );
    check(
        &objects,
        &["shop/odd"],
        expect![[r#"
        shop/odd (10.1.0.3)
          identity          init (5)
          reason            the pod's object was not understood, so its labels are not known
          service           shop
          namespace         shop
        exit status 1
    "#]],
    );
}

#[test]
fn identity_verb_refuses_unknown_pods() {
    check(
        &[namespace("shop", "")],
        &["shop/gone"],
        expect![[r#"
        error: pod shop/gone not found; expected NAMESPACE/NAME of a pod, or an address
        exit status 2
    "#]],
    );
    let nobody = TempDir::new().unwrap();
    let unreachable = run(["identity", "shop/web", "--run-dir", nobody.path().to_str().unwrap()]);
    assert_eq!(unreachable.code, Some(2));
    assert!(unreachable.stderr.contains("without an agent, use --manifests DIR"), "{}", unreachable.stderr);
}

fn kube_system() -> Value {
    let mut kube_system = namespace("kube-system", "");
    kube_system["metadata"]["uid"] = json!(CLUSTER);
    kube_system
}

fn identity_of(stage: &Stage, subject: &str) -> (u16, Value) {
    let answer = ask_socket(&stage.run_dir(), &format!("/v1/identity?of={subject}"));
    (answer.status, serde_json::from_str(&answer.body).unwrap_or_else(|e| panic!("{e}: {}", answer.body)))
}

#[test]
fn agent_derives_cluster_id_from_kube_system_uid() {
    let stage = Stage::new();
    let api = stage.api();
    set_all(&api, &[namespace("shop", ""), pod("web", NODE, "app=web", &["10.1.0.1"])]);
    let mut agent = stage.start_on_api(&api);
    agent.until_logged(&["WARN", "security identities are not computed", "set the name with --cluster-id"]);
    let (status, body) = identity_of(&stage, "shop/web");
    assert!(status == 503 && body["error"].as_str().unwrap().contains("kube-system"), "{status} {body}");

    set_all(&api, &[kube_system()]);
    let report = agent.until("the cluster has a name", |_| {
        let (status, body) = identity_of(&stage, "shop/web");
        (status == 200).then_some(body)
    });
    // A test vector of docs/identity.md.
    let expected = json!({"service": "shop", "sid": "rdsrexpux6y4o", "num": 213_703, "state": null});
    assert_eq!((&report["identity"], &report["cluster"]), (&expected, &json!(CLUSTER)));
    let verb = run(["identity", "10.1.0.1", "-o", "json", "--run-dir", stage.run_dir().to_str().unwrap()]);
    let by_address: Value = serde_json::from_str(&verb.stdout).unwrap();
    assert_eq!((verb.code, &by_address), (Some(0), &report));
    assert_eq!(identity_of(&stage, "shop/gone").0, 404);
    assert_eq!(identity_of(&stage, "web").0, 422);
}

#[test]
fn drop_events_and_explanations_have_identities() {
    let stage = stage();
    let mut objects = pods();
    objects.push(kube_system());
    stage.write_objects("pods.json", &objects);
    let mut command = stage.agent_on_manifests();
    command.args(["--cluster-id", CLUSTER, "--log-format", "json"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    send_datagrams(&stage, WEB[0], DB[0], 53, 2);
    send_datagrams(&stage, OUTSIDE[0], DB[0], 54, 1);
    let from_pod = until_reported(&stage, &mut agent, "shop/db", "53/udp", 2);
    let from_world = until_reported(&stage, &mut agent, "shop/db", "54/udp", 1);
    let identity = |subject: &str| identity_of(&stage, subject).1["identity"].clone();
    let (web, db) = (identity("shop/web"), identity("shop/db"));
    assert_eq!(web["sid"], json!("rdsrexpux6y4o"), "a vector of docs/identity.md");
    assert_eq!((&from_pod[0]["sourceIdentity"], &from_pod[0]["destinationIdentity"]), (&web, &db));
    let world = json!({"service": null, "sid": null, "num": 2, "state": "world"});
    assert_eq!((&from_world[0]["sourceIdentity"], &from_world[0]["destinationIdentity"]), (&world, &db));

    let line: Value = serde_json::from_str(&agent.until_logged(&["packets denied", "53/udp"])).unwrap();
    let fields: BTreeMap<&str, &Value> =
        ["source_identity", "source_service", "destination_identity", "destination_service"]
            .into_iter()
            .map(|field| (field, &line[field]))
            .collect();
    let expected = BTreeMap::from([
        ("source_identity", &web["sid"]),
        ("source_service", &web["service"]),
        ("destination_identity", &db["sid"]),
        ("destination_service", &db["service"]),
    ]);
    assert_eq!(fields, expected, "{line}");

    let run_dir = stage.run_dir();
    let shown = run(["drops", "--run-dir", run_dir.to_str().unwrap()]);
    let words =
        format!("    identities: shop {} -> shop {}\n", web["sid"].as_str().unwrap(), db["sid"].as_str().unwrap());
    assert!(shown.stdout.contains(&words), "{}", shown.stdout);
    let explained = run(["explain", WEB[0], OUTSIDE[0], "53/udp", "--run-dir", run_dir.to_str().unwrap()]);
    let words = format!("  identities: shop {} -> world\n", web["sid"].as_str().unwrap());
    assert!(explained.stdout.contains(&words), "{}", explained.stdout);
    let answer = ask_socket(&run_dir, &format!("/v1/explain?source={}&destination=shop/db&traffic=53/udp", WEB[0]));
    let explained: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((&explained[0]["sourceIdentity"], &explained[0]["destinationIdentity"]), (&web, &db));

    let packets = agent.metric("ringfence_drop_event_packets_total");
    assert!(packets >= 3, "{packets}");
}
