use std::collections::{BTreeMap, BTreeSet};

use cluster::Watchable;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kit::agent_process::{DEPLOYED_WITH, run};
use kit::fake_api::Verb;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{VERSION, at, documents, list, read, root, texts};
use crate::stage::{Stage, namespace, set_all};

/// Rights of the service account that the watches do not use: the gate of the CNI plugin gets a pod that the watch has
/// not delivered yet.
const BESIDE_THE_WATCHES: [(&str, &str); 1] = [("pods", "get")];

pub(super) fn install_yaml() -> Vec<Value> {
    documents(&read("deploy/install.yaml"))
}

fn uninstall_yaml() -> Vec<Value> {
    documents(&read("deploy/uninstall.yaml"))
}

pub(super) fn of_kind<'a>(documents: &'a [Value], kind: &str) -> &'a Value {
    documents.iter().find(|document| document["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

/// Every container of a DaemonSet, init containers first.
fn containers(daemon_set: &Value) -> Vec<&Value> {
    let pod = at(daemon_set, "spec.template.spec");
    list(pod, "initContainers").iter().chain(list(pod, "containers")).collect()
}

#[test]
fn install_yaml_is_concatenation_of_base_files() {
    let base = documents(&read("deploy/base/kustomization.yaml")).remove(0);
    let keys: Vec<&String> = base.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["apiVersion", "kind", "resources"], "anything else would make kustomize's output differ");
    let files = texts(&base["resources"]).into_iter().map(|file| read(&format!("deploy/base/{file}")));
    let head = "# Written by 'make manifests' from deploy/base.\n".to_owned();
    let wanted = [head].into_iter().chain(files).collect::<Vec<_>>().join("---\n");
    let path = root().join("deploy/install.yaml");
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text == wanted, "deploy/install.yaml is not what deploy/base says: run 'make manifests'");
}

/// The help text of a verb's flags, on one line.
fn help(verb: &str) -> String {
    run([verb, "--help"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Fields of a document that Kubernetes' types do not have.
pub(super) fn unknown_to<T: Serialize + DeserializeOwned>(document: &Value) -> Vec<String> {
    let known: T = serde_json::from_value(document.clone()).unwrap_or_else(|e| panic!("{e}: {document}"));
    let mut lost = Vec::new();
    compare("", document, &serde_json::to_value(known).unwrap(), &mut lost);
    lost
}

fn compare(path: &str, document: &Value, known: &Value, lost: &mut Vec<String>) {
    match (document, known) {
        (Value::Object(fields), Value::Object(known)) => {
            for (key, value) in fields {
                compare(&format!("{path}.{key}"), value, known.get(key).unwrap_or(&Value::Null), lost);
            }
        }
        (Value::Array(items), Value::Array(known)) if items.len() == known.len() => {
            for (i, (item, known)) in items.iter().zip(known).enumerate() {
                compare(&format!("{path}[{i}]"), item, known, lost);
            }
        }
        (document, known) if document == known => {}
        (document, _) => lost.push(format!("{path}: {document}")),
    }
}

#[test]
fn every_object_has_only_known_kubernetes_fields() {
    let mut seen = BTreeSet::new();
    for file in ["install.yaml", "uninstall.yaml", "components/service-monitor/service.yaml"] {
        for document in documents(&read(&format!("deploy/{file}"))) {
            let unknown = match (at(&document, "apiVersion").as_str(), at(&document, "kind").as_str()) {
                (Some("v1"), Some("Namespace")) => unknown_to::<Namespace>(&document),
                (Some("v1"), Some("ServiceAccount")) => unknown_to::<ServiceAccount>(&document),
                (Some("v1"), Some("Service")) => unknown_to::<Service>(&document),
                (Some("rbac.authorization.k8s.io/v1"), Some("ClusterRole")) => unknown_to::<ClusterRole>(&document),
                (Some("rbac.authorization.k8s.io/v1"), Some("ClusterRoleBinding")) => {
                    unknown_to::<ClusterRoleBinding>(&document)
                }
                (Some("apps/v1"), Some("DaemonSet")) => unknown_to::<DaemonSet>(&document),
                other => panic!("{file}: {other:?}"),
            };
            assert!(unknown.is_empty(), "{file}: {unknown:#?}");
            seen.insert(document["kind"].as_str().unwrap().to_owned());
        }
    }
    assert_eq!(seen.len(), 6, "{seen:?}");
    let misspelt =
        json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "spec": {"template": {"spec": {"hostNetwrk": true}}}});
    assert_eq!(unknown_to::<DaemonSet>(&misspelt), [".spec.template.spec.hostNetwrk: true"]);
}

#[test]
fn names_in_objects_refer_to_existing_objects() {
    let documents = install_yaml();
    let daemon_set = of_kind(&documents, "DaemonSet");
    let binding = of_kind(&documents, "ClusterRoleBinding");
    let account = at(of_kind(&documents, "ServiceAccount"), "metadata.name");
    assert_eq!(at(daemon_set, "spec.template.spec.serviceAccountName"), account);
    assert_eq!(at(binding, "subjects.0.name"), account);
    assert_eq!(at(binding, "roleRef.name"), at(of_kind(&documents, "ClusterRole"), "metadata.name"));
    let space = at(of_kind(&documents, "Namespace"), "metadata.name");
    for document in &documents {
        if let Some(other) = document.pointer("/metadata/namespace") {
            assert_eq!(other, space);
        }
    }
    assert_eq!(at(binding, "subjects.0.namespace"), space);
    assert_eq!(at(daemon_set, "spec.selector.matchLabels"), at(daemon_set, "spec.template.metadata.labels"));
    for daemon_set in [daemon_set, of_kind(&uninstall_yaml(), "DaemonSet")] {
        let pod = at(daemon_set, "spec.template.spec");
        let volumes: BTreeSet<&str> = list(pod, "volumes").iter().filter_map(|v| v["name"].as_str()).collect();
        for mount in containers(daemon_set).iter().filter_map(|c| c["volumeMounts"].as_array()).flatten() {
            assert!(volumes.contains(mount["name"].as_str().unwrap()), "{mount}");
            // The runtime's configuration contains paths of the node.
            let volume = list(pod, "volumes").iter().find(|v| v["name"] == mount["name"]).unwrap();
            assert_eq!(at(volume, "hostPath.path"), &mount["mountPath"]);
        }
    }
}

/// Deleting install.yaml deletes its namespace with everything in it, and afterwards no pod starts on the nodes.
#[test]
fn uninstall_needs_nothing_of_install() {
    let documents = uninstall_yaml();
    let [space, daemon_set] = &documents[..] else { panic!("{documents:?}") };
    assert_eq!((&space["kind"], &daemon_set["kind"]), (&json!("Namespace"), &json!("DaemonSet")));
    assert_eq!(at(daemon_set, "metadata.namespace"), at(space, "metadata.name"));
    assert_ne!(at(space, "metadata.name"), at(of_kind(&install_yaml(), "Namespace"), "metadata.name"));
    assert_eq!(at(space, "metadata.labels")["pod-security.kubernetes.io/enforce"], "privileged");
    let pod = at(daemon_set, "spec.template.spec");
    assert!(pod.get("serviceAccountName").is_none() && pod["automountServiceAccountToken"] == json!(false));
    // Pods on the host network need no CNI plugin.
    assert_eq!(pod["hostNetwork"], json!(true));
    for manifest in ["deploy/install.yaml", "docs/install.md"] {
        assert!(read(manifest).contains("kubectl apply -f deploy/uninstall.yaml"), "{manifest}");
    }
}

#[test]
fn the_rights_are_those_that_the_code_uses() {
    let stage = Stage::new();
    let api = stage.api();
    // Without streaming lists, the agent needs the verb list besides watch.
    api.faults(|faults| faults.no_streaming = true);
    api.install(policy::Kind::ClusterNetworkPolicy);
    set_all(&api, &[namespace("shop", "")]);
    let mut agent = stage.start_on_api(&api);
    agent.until("it watches everything", |_| {
        policy::Object::KINDS.iter().all(|kind| api.count(Verb::Watch, *kind) > 1).then_some(())
    });
    let mut used: BTreeSet<(String, String)> = BTreeSet::new();
    for request in api.requests() {
        let resource = request.path.rsplit('/').next().expect("a path").to_owned();
        used.insert((resource, request.verb.as_str().to_owned()));
    }
    used.extend(BESIDE_THE_WATCHES.map(|(resource, verb)| (resource.to_owned(), verb.to_owned())));

    let groups = BTreeMap::from([
        ("namespaces", ""),
        ("nodes", ""),
        ("pods", ""),
        ("networkpolicies", "networking.k8s.io"),
        ("clusternetworkpolicies", "policy.networking.k8s.io"),
    ]);
    let mut granted = BTreeSet::new();
    for rule in list(of_kind(&install_yaml(), "ClusterRole"), "rules") {
        for resource in texts(&rule["resources"]) {
            assert_eq!(texts(&rule["apiGroups"]), [groups[resource]]);
            granted.extend(texts(&rule["verbs"]).into_iter().map(|verb| (resource.to_owned(), verb.to_owned())));
        }
        assert_eq!(rule.as_object().unwrap().len(), 3, "{rule}");
    }
    assert_eq!(granted, used);
}

#[test]
fn every_flag_and_variable_exists_in_help() {
    let listen = documents(&read("deploy/components/monitoring/listen.yaml")).remove(0);
    let uninstall = of_kind(&uninstall_yaml(), "DaemonSet").clone();
    let documents = install_yaml();
    let mut all = containers(of_kind(&documents, "DaemonSet"));
    all.extend(list(&listen, "spec.template.spec.containers"));
    all.push(&list(&uninstall, "spec.template.spec.initContainers")[0]);
    let mut verbs = BTreeSet::new();
    for container in all {
        for probe in ["livenessProbe", "readinessProbe"].iter().filter_map(|probe| container.get(*probe)) {
            let [program, "probe", question] = texts(at(probe, "exec.command"))[..] else { panic!("{probe}") };
            assert!(read("Dockerfile").contains(&format!("ENTRYPOINT [\"{program}\"]")), "{program}");
            assert!(help("probe").contains(&format!("- {question}:")), "{question}");
        }
        let arguments = texts(at(container, "args"));
        let help = help(arguments[0]);
        for argument in &arguments[1..] {
            let flag = argument.split('=').next().unwrap();
            assert!(help.split_whitespace().any(|word| word == flag), "{flag} is no flag of {}:\n{help}", arguments[0]);
        }
        for variable in container["env"].as_array().into_iter().flatten() {
            let name = variable["name"].as_str().unwrap();
            if let Some(value) = variable.get("value") {
                assert!(DEPLOYED_WITH.contains(&(name, value.as_str().unwrap())), "no test runs with {variable}");
                continue;
            }
            let is_used_here = arguments.iter().any(|argument| argument.contains(&format!("$({name})")));
            assert!(is_used_here || help.contains(&format!(" [env: {name}=")), "{name} is no variable");
        }
        verbs.insert(arguments[0].to_owned());
    }
    assert_eq!(verbs.into_iter().collect::<Vec<_>>(), ["agent", "install-cni", "uninstall"]);
}

#[test]
fn agent_environment_equals_that_of_tests() {
    let documents = install_yaml();
    let containers = containers(of_kind(&documents, "DaemonSet"));
    let agent = containers.into_iter().find(|container| container["name"] == "agent").unwrap();
    let literal = |variable: &'_ &Value| variable.get("value").is_some();
    let given: Vec<&Value> = list(agent, "env").iter().filter(literal).collect();
    let tested = DEPLOYED_WITH.map(|(name, value)| json!({"name": name, "value": value}));
    assert_eq!(given, tested.iter().collect::<Vec<_>>());
}

#[test]
fn folders_and_port_equal_program_defaults() {
    let documents = install_yaml();
    let daemon_set = of_kind(&documents, "DaemonSet");
    let volumes = list(daemon_set, "spec.template.spec.volumes");
    let path = |name: &str| {
        let volume = volumes.iter().find(|volume| volume["name"] == name).unwrap();
        at(volume, "hostPath.path").as_str().unwrap().to_owned()
    };
    let install = help("install-cni");
    for folder in [path("run"), path("cni-conf"), path("cni-bin")] {
        assert!(install.contains(&format!("[default: {folder}]")), "{folder}:\n{install}");
    }
    let agent = containers(daemon_set).into_iter().find(|container| container["name"] == "agent").unwrap();
    let help = help("agent");
    assert!(help.contains(&format!("[default: {}]", path("run"))));
    let address = format!("127.0.0.1:{}", at(agent, "ports.0.containerPort"));
    assert!(help.contains(&format!("[default: {address}]")), "{address}");
}

#[test]
fn the_images_are_of_this_version() {
    let image = format!("ringfence:{VERSION}");
    for file in ["deploy/install.yaml", "deploy/uninstall.yaml"] {
        for document in documents(&read(file)).iter().filter(|document| document["kind"] == "DaemonSet") {
            for container in containers(document) {
                assert_eq!(at(container, "image"), &json!(image), "{file}");
            }
        }
    }
}

#[test]
fn container_privileges_match_install_docs() {
    let documented = read("docs/install.md");
    let mut files = install_yaml();
    files.extend(documents(&read("deploy/uninstall.yaml")));
    for document in files.iter().filter(|document| document["kind"] == "DaemonSet") {
        for container in containers(document) {
            let name = container["name"].as_str().unwrap();
            let context = at(container, "securityContext");
            assert_eq!(texts(at(context, "capabilities.drop")), ["ALL"], "{name}");
            assert_eq!(
                (at(context, "readOnlyRootFilesystem"), at(context, "allowPrivilegeEscalation")),
                (&json!(true), &json!(false))
            );
            let added = context.pointer("/capabilities/add").map(texts).unwrap_or_default();
            let wanted: &[&str] = if ["agent", "uninstall"].contains(&name) { &["NET_ADMIN"] } else { &[] };
            assert_eq!(added, wanted, "{name}");
            let row = documented.lines().find(|line| line.starts_with(&format!("| `{name}` |")));
            let row = row.unwrap_or_else(|| panic!("docs/install.md does not say what {name} may do"));
            assert!(row.contains(if wanted.is_empty() { "| none |" } else { "| `NET_ADMIN` |" }), "{row}");
        }
        let pod = at(document, "spec.template.spec");
        assert_eq!(at(pod, "securityContext.seccompProfile.type"), "RuntimeDefault");
        for other in ["hostPID", "hostIPC"] {
            assert!(pod.get(other).is_none(), "{other}");
        }
    }
}

#[test]
fn every_file_of_the_components_is_used() {
    for component in [
        "context",
        "context-monitor",
        "flow-goldmane",
        "flow-hubble",
        "flow-monitor",
        "flow-page",
        "flow-policies",
        "flow-remote-sets",
        "flow-server",
        "flow-standby",
        "flow-trail",
        "flows",
        "monitoring",
        "pod-monitor",
        "service-monitor",
    ] {
        let folder = format!("deploy/components/{component}");
        let kustomization = documents(&read(&format!("{folder}/kustomization.yaml"))).remove(0);
        assert_eq!(kustomization["kind"], "Component");
        let resources = kustomization.get("resources").map(texts).unwrap_or_default();
        let mut used: BTreeSet<String> = resources.into_iter().map(String::from).collect();
        let patches = kustomization["patches"].as_array().into_iter().flatten();
        used.extend(patches.map(|patch| patch["path"].as_str().unwrap().to_owned()));
        used.insert("kustomization.yaml".into());
        let there: BTreeSet<String> = std::fs::read_dir(root().join(&folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(there, used, "{folder}");
    }
}
