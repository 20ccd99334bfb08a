//! `ringfence-context init-tls`: the objects that it writes or leaves alone, and a provider that uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use kit::agent_process::{ProgramExit, until};
use kit::fake_api::FakeApi;
use kit::provider_process::{Provider, free_port, provider, run};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::certificates::{HttpsClient, TestCertificate, mount, mounted};

use super::{Kind, namespace};

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The written objects: resource and name.
const OBJECTS: [(&str, &str); 4] = [
    ("secrets", "ringfence-context-ca"),
    ("secrets", "ringfence-context-tls"),
    ("secrets", "ringfence-context-metrics"),
    ("configmaps", "ringfence-context-ca"),
];

fn init_tls(api: &FakeApi, more: &[&str]) -> ProgramExit {
    let kubeconfig = api.kubeconfig().display().to_string();
    run([&["init-tls", "--kubeconfig", &kubeconfig], more].concat())
}

fn objects(api: &FakeApi) -> BTreeMap<(&'static str, &'static str), Value> {
    let object = |(resource, name)| Some(((resource, name), api.credential(resource, "ringfence", name)?));
    OBJECTS.into_iter().filter_map(object).collect()
}

/// A value of an object, decoded.
fn text(object: &Value, key: &str) -> String {
    let value = object["data"][key].as_str().unwrap_or_else(|| panic!("no {key}: {object}"));
    if object["kind"] == "ConfigMap" {
        return value.to_owned();
    }
    String::from_utf8(data_encoding::BASE64.decode(value.as_bytes()).unwrap()).unwrap()
}

fn pair(object: &Value) -> TestCertificate {
    TestCertificate { certificate: text(object, "tls.crt"), key: text(object, "tls.key") }
}

#[test]
fn certificates_are_written_once_and_served() {
    let api = FakeApi::start();
    api.set(Kind::Namespace, namespace("kube-system", json!({})));
    let ended = init_tls(&api, &[]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let written = objects(&api);
    assert_eq!(written.len(), OBJECTS.len());
    for (name, object) in &written {
        assert_eq!(object["metadata"]["labels"][MANAGED_BY], "ringfence-context-init-tls", "{name:?}");
    }
    let again = init_tls(&api, &[]);
    assert_eq!((again.code, objects(&api)), (Some(0), written.clone()), "nothing is written twice: {again:?}");
    assert_eq!(api.writes(), BTreeMap::from([("secrets".to_owned(), 3), ("configmaps".to_owned(), 1)]));

    let bundle = text(&written[&OBJECTS[3]], "ca.crt");
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 1);
    assert!(!bundle.contains("PRIVATE"));
    let folder = TempDir::new().unwrap();
    mount(folder.path(), "first", &pair(&written[&OBJECTS[1]]));
    let client_ca = folder.path().join("ca.crt");
    std::fs::write(&client_ca, &bundle).unwrap();
    let mut arguments = vec!["--kubeconfig".to_owned(), api.kubeconfig().display().to_string()];
    arguments.extend(mounted(folder.path()));
    arguments.extend(["--client-ca".to_owned(), client_ca.display().to_string()]);
    arguments.extend(["--allow", "metrics=user:ringfence-context-metrics"].map(str::to_owned));
    let mut provider = Provider::start(free_port(), arguments);
    let anyone = HttpsClient { ca: bundle, ..HttpsClient::default() };
    provider.until("it is ready", |provider| {
        anyone.get(provider.address(), "/readyz").ok().filter(|(status, _)| *status == 200)
    });
    let scraper = anyone.with_certificate(pair(&written[&OBJECTS[2]]));
    let address = provider.address();
    assert_eq!([anyone.status(address, "/metrics"), scraper.status(address, "/metrics")], [401, 200]);
    assert_eq!(scraper.status(address, "/identity/version"), 403);
}

#[test]
fn other_names_replace_only_the_serving_certificate() {
    let api = FakeApi::start();
    assert_eq!(init_tls(&api, &[]).code, Some(0));
    let before = objects(&api);
    let ended = init_tls(&api, &["--name", "context.example,192.0.2.7"]);
    assert!(ended.code == Some(0) && ended.stderr.contains("other names"), "{ended:?}");
    let after = objects(&api);
    let changed: Vec<_> = OBJECTS.into_iter().filter(|name| before[name] != after[name]).collect();
    assert_eq!(changed, [("secrets", "ringfence-context-tls")]);
}

#[test]
fn objects_of_others_are_left_unchanged() {
    let api = FakeApi::start();
    let metadata = json!({"namespace": "ringfence", "name": "ringfence-context-tls"});
    api.set_credential("secrets", json!({"kind": "Secret", "metadata": metadata, "data": {"tls.crt": "eA=="}}));
    let before = objects(&api);
    let ended = init_tls(&api, &[]);
    assert!(ended.code == Some(2) && ended.stderr.contains("left unchanged"), "{ended:?}");
    assert_eq!(objects(&api), before);
}

#[test]
fn two_at_once_agree_on_one_ca() {
    let api = FakeApi::start();
    let kubeconfig = api.kubeconfig().display().to_string();
    let start = || {
        let mut command = provider();
        command.args(["init-tls", "--kubeconfig", &kubeconfig]).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let both: Vec<_> = (0..4).map(|_| start()).collect();
    let codes: BTreeSet<_> = both.into_iter().map(|mut child| child.wait().unwrap().code()).collect();
    assert_eq!(codes, BTreeSet::from([Some(0)]));
    let written = objects(&api);
    assert_eq!(written.len(), OBJECTS.len());
    let ca = text(&written[&OBJECTS[0]], "tls.crt");
    for name in &OBJECTS[1..] {
        assert_eq!(text(&written[name], "ca.crt"), ca, "{name:?}");
    }
}

#[test]
fn watch_restores_deleted_objects_at_its_start() {
    let api = FakeApi::start();
    assert_eq!(init_tls(&api, &[]).code, Some(0));
    let ca = objects(&api)[&OBJECTS[0]].clone();
    api.remove_credential("secrets", "ringfence", "ringfence-context-tls");
    api.remove_credential("configmaps", "ringfence", "ringfence-context-ca");
    let mut command = provider();
    command.args(["init-tls", "--watch", "--kubeconfig"]).arg(api.kubeconfig());
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("the objects are there again", || (objects(&api).len() == OBJECTS.len()).then_some(()));
    assert_eq!(objects(&api)[&OBJECTS[0]], ca, "the CA stays");
    assert_eq!(running.try_wait().unwrap(), None, "it keeps running");
    running.kill().and_then(|()| running.wait()).unwrap();
}
