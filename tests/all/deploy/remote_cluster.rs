//! The kustomize base for a remote cluster, and the example of a Calico policy about its pods.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kit::fake_api::{FakeApi, Verb};
use kit::provider_process::{Provider, free_port};
use policy::remote::LabelPrefix;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::manifests::{of_kind, unknown_to};
use super::{at, documents, list, read, texts};
use crate::stage::namespace;

const FOLDER: &str = "deploy/remote-cluster";

fn base() -> Vec<Value> {
    let kustomization = documents(&read(&format!("{FOLDER}/kustomization.yaml"))).remove(0);
    assert_eq!(kustomization["kind"], "Kustomization", "a base, for kubectl apply -k");
    let files = texts(&kustomization["resources"]).into_iter();
    files.flat_map(|file| documents(&read(&format!("{FOLDER}/{file}")))).collect()
}

#[test]
fn every_object_is_known_to_its_last_field() {
    let mut kinds = BTreeSet::new();
    for document in base() {
        let unknown = match at(&document, "kind").as_str() {
            Some("ServiceAccount") => unknown_to::<ServiceAccount>(&document),
            Some("ClusterRole") => unknown_to::<ClusterRole>(&document),
            Some("ClusterRoleBinding") => unknown_to::<ClusterRoleBinding>(&document),
            Some("Secret") => unknown_to::<Secret>(&document),
            other => panic!("{other:?}"),
        };
        assert!(unknown.is_empty(), "{unknown:?}");
        kinds.insert(document["kind"].to_string());
    }
    assert_eq!(kinds.len(), 4, "{kinds:?}");
}

#[test]
fn objects_refer_to_one_service_account() {
    let documents = base();
    let account = of_kind(&documents, "ServiceAccount");
    let (name, space) = (at(account, "metadata.name"), at(account, "metadata.namespace"));
    let binding = of_kind(&documents, "ClusterRoleBinding");
    assert_eq!((at(binding, "subjects.0.name"), at(binding, "subjects.0.namespace")), (name, space));
    assert_eq!(at(binding, "roleRef.name"), at(of_kind(&documents, "ClusterRole"), "metadata.name"));
    let secret = of_kind(&documents, "Secret");
    assert_eq!(&secret["metadata"]["annotations"]["kubernetes.io/service-account.name"], name);
    assert_eq!(
        (at(secret, "metadata.namespace"), &secret["type"]),
        (space, &json!("kubernetes.io/service-account-token"))
    );
    let page = read("docs/remote-clusters.md");
    for used in [
        format!("apply -k {FOLDER}"),
        format!("get secret {}", at(secret, "metadata.name").as_str().unwrap()),
        format!("create token {}", name.as_str().unwrap()),
    ] {
        assert!(page.contains(&used), "docs/remote-clusters.md does not say {used}");
    }
}

#[test]
fn rights_are_those_that_the_provider_uses() {
    let (home, east) = (FakeApi::start(), FakeApi::start());
    home.set(policy::Kind::Namespace, namespace("kube-system", ""));
    // Without streaming lists, the provider needs the verb list besides watch.
    east.faults(|faults| faults.no_streaming = true);
    let folder = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let cluster = json!({
        "name": "east", "url": format!("http://{}", east.address()), "tokenFile": file("token", "a-token"),
    });
    let clusters = file("clusters.yaml", &json!({"clusters": [cluster]}).to_string());
    let kubeconfig = home.kubeconfig().display().to_string();
    let mut provider = Provider::start(free_port(), ["--kubeconfig", &kubeconfig, "--remote-clusters", &clusters]);
    provider.until("it lists and watches", |_| {
        [Verb::List, Verb::Watch].iter().all(|verb| east.count(*verb, policy::Kind::Pod) > 0).then_some(())
    });
    let mut used = BTreeSet::new();
    for request in east.requests() {
        assert!(request.path.ends_with("/pods"), "{}", request.path);
        used.insert(request.verb.as_str());
    }
    let documents = base();
    let [rule] = list(of_kind(&documents, "ClusterRole"), "rules") else { panic!("one rule") };
    assert_eq!((texts(&rule["apiGroups"]), texts(&rule["resources"])), (vec![""], vec!["pods"]));
    assert_eq!(texts(&rule["verbs"]).into_iter().collect::<BTreeSet<_>>(), used);
    assert_eq!(rule.as_object().unwrap().len(), 3, "{rule}");
}

#[test]
fn calico_example_selects_exported_sets_alone() {
    let text = read("examples/calico/allow-from-remote-cluster.yaml");
    let example = documents(&text).remove(0);
    let source = at(&example, "spec.ingress.0.source");
    assert_eq!(source["namespaceSelector"], "global()");
    let parts: BTreeSet<&str> = source["selector"].as_str().unwrap().split(" && ").map(str::trim).collect();
    let family = &LabelPrefix::defaults()[0];
    let wanted = [
        format!("{} == 'my-cluster'", family.cluster_label()),
        format!("{} == 'my-ns'", family.namespace_label()),
        format!("{} == 'my-app'", family.name_label()),
    ];
    assert_eq!(parts, wanted.iter().map(String::as_str).collect());
    assert_eq!(at(&example, "spec.ingress.0.action"), "Allow", "a set may lose addresses, which no denial survives");
    assert!(read("docs/remote-clusters.md").contains(&text), "the page shows another example");
}
