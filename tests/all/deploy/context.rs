//! The kustomize component of the context provider.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use cluster::Watchable;
use context::object::WatchedObject;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kit::agent_process::{DEPLOYED_WITH, built, until, without_variables};
use kit::fake_api::Kind as ServedKind;
use kit::fake_api::{FakeApi, IssuedToken, Verb};
use kit::openmetrics::{self, Family};
use kit::provider_process::free_port;
use policy::lower;
use serde_json::{Value, json};
use tests::certificates::{HttpsClient, TestCa, Validity, mount};

use super::manifests::{install_yaml, of_kind, unknown_to};
use super::monitoring::assert_documented;
use super::{VERSION, at, documents, list, read, root, texts};
use crate::stage::namespace;

const FOLDER: &str = "deploy/components/context";

/// The objects of the component.
pub(super) fn component() -> Vec<Value> {
    let kustomization = documents(&read(&format!("{FOLDER}/kustomization.yaml"))).remove(0);
    let files = texts(&kustomization["resources"]).into_iter();
    files.flat_map(|file| documents(&read(&format!("{FOLDER}/{file}")))).collect()
}

/// The objects of the provider itself, without those of its certificates.
fn provider() -> Vec<Value> {
    let mut documents = component();
    documents.retain(|document| at(document, "metadata.name") != "ringfence-context-tls");
    documents
}

/// The objects that manage its certificates.
fn certificates() -> Vec<Value> {
    let mut documents = component();
    documents.retain(|document| at(document, "metadata.name") == "ringfence-context-tls");
    documents
}

fn program() -> Command {
    let mut command = Command::new(built("ringfence-context"));
    without_variables(&mut command);
    for variable in ["POD_NAME", "POD_NAMESPACE"] {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

/// The help text of a verb's flags, on one line.
fn help() -> String {
    help_of("serve")
}

fn help_of(verb: &str) -> String {
    let output = program().args([verb, "--help"]).output().expect("the program starts");
    String::from_utf8(output.stdout).expect("UTF-8").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn container() -> Value {
    at(of_kind(&provider(), "Deployment"), "spec.template.spec.containers.0").clone()
}

#[test]
fn every_object_has_only_known_kubernetes_fields() {
    let mut seen = BTreeSet::new();
    for document in component() {
        let unknown = match (at(&document, "apiVersion").as_str(), at(&document, "kind").as_str()) {
            (Some("v1"), Some("ServiceAccount")) => unknown_to::<ServiceAccount>(&document),
            (Some("v1"), Some("Service")) => unknown_to::<Service>(&document),
            (Some("rbac.authorization.k8s.io/v1"), Some("ClusterRole")) => unknown_to::<ClusterRole>(&document),
            (Some("rbac.authorization.k8s.io/v1"), Some("ClusterRoleBinding")) => {
                unknown_to::<ClusterRoleBinding>(&document)
            }
            (Some("rbac.authorization.k8s.io/v1"), Some("Role")) => unknown_to::<Role>(&document),
            (Some("rbac.authorization.k8s.io/v1"), Some("RoleBinding")) => unknown_to::<RoleBinding>(&document),
            (Some("apps/v1"), Some("Deployment")) => unknown_to::<Deployment>(&document),
            (Some("policy/v1"), Some("PodDisruptionBudget")) => unknown_to::<PodDisruptionBudget>(&document),
            (Some("networking.k8s.io/v1"), Some("NetworkPolicy")) => unknown_to::<NetworkPolicy>(&document),
            other => panic!("{other:?}"),
        };
        assert!(unknown.is_empty(), "{unknown:#?}");
        let name = (document["kind"].clone(), at(&document, "metadata.name").clone());
        assert!(seen.insert([name.0, name.1].map(|part| part.as_str().unwrap().to_owned())), "twice: {document}");
    }
    assert_eq!((provider().len(), certificates().len(), seen.len()), (9, 5, 14), "{seen:?}");
}

#[test]
fn names_in_objects_refer_to_existing_objects() {
    let documents = provider();
    let name = json!("ringfence-context");
    let space = at(of_kind(&install_yaml(), "Namespace"), "metadata.name").clone();
    for document in &documents {
        assert_eq!(at(document, "metadata.name"), &name);
        let is_of_the_cluster = document["kind"].as_str().unwrap().starts_with("ClusterRole");
        assert_eq!(document.pointer("/metadata/namespace"), (!is_of_the_cluster).then_some(&space));
    }
    let deployment = of_kind(&documents, "Deployment");
    let labels = at(deployment, "spec.template.metadata.labels");
    assert_eq!(at(deployment, "spec.template.spec.serviceAccountName"), &name);
    for (kind, selector) in [
        ("Deployment", "spec.selector.matchLabels"),
        ("Deployment", "spec.template.spec.topologySpreadConstraints.0.labelSelector.matchLabels"),
        ("Service", "spec.selector"),
        ("PodDisruptionBudget", "spec.selector.matchLabels"),
        ("NetworkPolicy", "spec.podSelector.matchLabels"),
    ] {
        assert_eq!(at(of_kind(&documents, kind), selector), labels, "{kind}");
    }
    let agents = at(of_kind(&install_yaml(), "DaemonSet"), "spec.template.metadata.labels").clone();
    assert_ne!(&agents, labels, "a provider is no agent, and its Service does not lead to one");
    let variable = list(&container(), "env").iter().find(|v| v["name"] == "RINGFENCE_AGENTS").unwrap().clone();
    let (key, value) = agents.as_object().unwrap().iter().next().unwrap();
    let selector = format!("{}/{key}={}", space.as_str().unwrap(), value.as_str().unwrap());
    assert_eq!(at(&variable, "value"), &json!(selector));
    for (binding, role) in [("ClusterRoleBinding", "ClusterRole"), ("RoleBinding", "Role")] {
        let binding = of_kind(&documents, binding);
        assert_eq!((at(binding, "roleRef.name"), at(binding, "roleRef.kind")), (&name, &json!(role)));
        assert_eq!((at(binding, "subjects.0.name"), at(binding, "subjects.0.namespace")), (&name, &space));
    }
    let port = at(&container(), "ports.0").clone();
    assert_eq!(at(of_kind(&documents, "Service"), "spec.ports.0.targetPort"), at(&port, "name"));
    let ingress = at(of_kind(&documents, "NetworkPolicy"), "spec.ingress.0.ports.0.port").clone();
    assert_eq!(&ingress, at(&port, "containerPort"));
    assert_eq!(at(of_kind(&documents, "Service"), "spec.ports.0.port"), at(&port, "containerPort"));
}

#[test]
fn every_flag_and_variable_exists_in_help() {
    let (container, help) = (container(), help());
    assert_eq!(texts(at(&container, "command")), ["/usr/local/bin/ringfence-context"]);
    let arguments = texts(at(&container, "args"));
    assert_eq!(arguments[0], "serve");
    for argument in &arguments[1..] {
        let flag = argument.split('=').next().unwrap();
        assert!(help.split_whitespace().any(|word| word == flag), "{flag} is no flag:\n{help}");
    }
    for variable in list(&container, "env") {
        let name = at(variable, "name").as_str().unwrap();
        let is_tested = DEPLOYED_WITH.iter().any(|(known, value)| *known == name && variable["value"] == *value);
        assert!(
            is_tested || help.contains(&format!(" [env: {name}=")),
            "{name} is no variable, and no test runs with it:\n{help}"
        );
    }
    let port = at(&container, "ports.0.containerPort");
    assert!(arguments.contains(&format!("--listen=0.0.0.0:{port}").as_str()));
    assert!(help.contains(&format!("[default: 127.0.0.1:{port}]")), "{help}");
    let lease = at(of_kind(&provider(), "Role"), "rules.0.resourceNames.0").as_str().unwrap().to_owned();
    assert!(help.contains(&format!("[env: RINGFENCE_LEASE_NAME=] [default: {lease}]")), "{help}");
}

#[test]
fn image_has_this_version_and_no_node_privileges() {
    let documents = provider();
    let pod = at(of_kind(&documents, "Deployment"), "spec.template.spec");
    let container = at(pod, "containers.0");
    assert_eq!(list(pod, "containers").len(), 1);
    assert_eq!(at(container, "image"), &json!(format!("ringfence:{VERSION}")));
    let context = at(container, "securityContext");
    assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(
        (&context["readOnlyRootFilesystem"], &context["allowPrivilegeEscalation"]),
        (&json!(true), &json!(false))
    );
    let of_pod = at(pod, "securityContext");
    assert_eq!((&of_pod["runAsNonRoot"], at(of_pod, "seccompProfile.type")), (&json!(true), &json!("RuntimeDefault")));
    assert!(at(of_pod, "runAsUser").as_u64().unwrap() > 0 && at(of_pod, "runAsGroup").as_u64().unwrap() > 0);
    for other in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pod.get(other).is_none(), "{other}");
    }
    let [volume] = list(pod, "volumes") else { panic!("one volume: {pod}") };
    assert_eq!(at(volume, "secret.secretName"), "ringfence-context-tls");
    let documented = read("docs/install.md");
    let row = documented.lines().find(|line| line.starts_with("| `context` |")).expect("a row of docs/install.md");
    assert!(row.contains("| none |"), "{row}");
}

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).expect("cannot kill the process");
    }
}

/// API group, resource, resource name if the rule is restricted to one, and verb.
type Right = (String, String, Option<String>, String);

fn granted(role: &Value) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in list(role, "rules") {
        let names = match rule.get("resourceNames") {
            Some(names) => texts(names).into_iter().map(|name| Some(name.to_owned())).collect(),
            None => vec![None],
        };
        assert_eq!(rule.as_object().unwrap().len(), if names == [None] { 3 } else { 4 }, "{rule}");
        let [group] = texts(&rule["apiGroups"])[..] else { panic!("one group: {rule}") };
        for resource in texts(&rule["resources"]) {
            for verb in texts(&rule["verbs"]) {
                for name in &names {
                    assert!(rights.insert((group.into(), resource.into(), name.clone(), verb.into())), "twice: {rule}");
                }
            }
        }
    }
    rights
}

#[test]
fn the_rights_are_those_that_the_code_uses() {
    let api = FakeApi::start();
    // Without streaming lists, the provider needs the verb list besides watch.
    api.faults(|faults| faults.no_streaming = true);
    for kind in ServedKind::ALL {
        api.install(kind);
    }
    let mut kube_system = namespace("kube-system", "");
    kube_system["metadata"]["uid"] = json!("0a1b2c3d");
    api.set(ServedKind::Namespace, kube_system);
    let folder = tempfile::tempdir().expect("a folder");
    let ca = TestCa::new("ca");
    mount(folder.path(), "first", &ca.server(Validity::Valid));
    let data = folder.path().join("data");
    std::fs::write(data.join("ca.crt"), &ca.pem).expect("a folder of ours");
    let arguments = container();
    let arguments = texts(at(&arguments, "args")).into_iter().filter(|argument| !argument.starts_with("--listen"));
    let arguments = arguments.map(|argument| argument.replace("/etc/ringfence/tls", &data.display().to_string()));
    let address = free_port();
    let mut command = program();
    command.args(arguments).args(["--listen", &address.to_string(), "--kubeconfig"]).arg(api.kubeconfig());
    let running = Running(command.stderr(Stdio::null()).spawn().expect("the program starts"));
    until("it watches everything and renews its Lease", || {
        let watches =
            WatchedObject::KINDS.iter().all(|kind| api.count(Verb::Watch, ServedKind::named(&kind.to_string())) > 1);
        (watches && api.lease_verbs().contains(&Verb::Update)).then_some(())
    });
    let consumer = IssuedToken::of_service_account("ringfence", "consumer", "ringfence-context");
    api.issue_token("consumer", consumer);
    assert_eq!(HttpsClient::new(&ca).with_token("consumer").status(address, "/identity/version"), 200);
    drop(running);

    let mut used: BTreeSet<Right> = BTreeSet::new();
    if api.token_reviews() > 0 {
        used.insert(("authentication.k8s.io".into(), "tokenreviews".into(), None, Verb::Create.as_str().into()));
    }
    for request in api.requests() {
        let path = request.path.trim_start_matches("/apis/").trim_start_matches("/api/");
        let (group, rest) = match path.strip_prefix("v1/") {
            Some(rest) => ("", rest),
            None => {
                let (group, versioned) = path.split_once('/').expect("a group");
                (group, versioned.split_once('/').expect("a version").1)
            }
        };
        // RBAC treats the name of a field selector as the resource name.
        let selected = request.query.get("fieldSelector").and_then(|text| text.strip_prefix("metadata.name="));
        let (resource, name) = match rest.split('/').collect::<Vec<_>>()[..] {
            ["namespaces", _, resource] => (resource, selected),
            [resource, name] => (resource, Some(name)),
            [resource] => (resource, None),
            _ => panic!("an unknown path: {path}"),
        };
        used.insert((group.into(), resource.into(), name.map(str::to_owned), request.verb.as_str().into()));
    }
    let documents = provider();
    assert_eq!(granted(of_kind(&documents, "ClusterRole")), used);

    let used = api.lease_verbs().into_iter().map(|verb| {
        // RBAC cannot restrict create by resource name.
        let name = (verb != Verb::Create).then(|| "ringfence-context".to_owned());
        ("coordination.k8s.io".to_owned(), "leases".to_owned(), name, verb.as_str().to_owned())
    });
    assert_eq!(granted(of_kind(&documents, "Role")), used.collect());
    assert!(api.writes().keys().eq(["leases", "tokenreviews"]), "{:?}", api.writes());
    assert!(api.lease("ringfence", "ringfence-context").is_some());
}

#[test]
fn certificate_rights_are_those_that_are_used() {
    let (api, documents) = (FakeApi::start(), certificates());
    let container = at(of_kind(&documents, "Deployment"), "spec.template.spec.containers.0");
    let arguments = texts(at(container, "args"));
    assert_eq!(arguments, ["init-tls", "--watch"]);
    assert!(help_of("init-tls").contains("--watch"));
    let run = |more: &[&str]| {
        let mut command = program();
        command.arg(arguments[0]).arg("--kubeconfig").arg(api.kubeconfig()).args(more);
        let ended = command.output().expect("the program starts");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    };
    run(&[]);
    // Every object that may be updated: another CA replaces all of them.
    let ca = api.credential("secrets", "ringfence", "ringfence-context-ca").expect("a Secret");
    let damaged = json!({"kind": "Secret", "metadata": ca["metadata"], "data": {}});
    api.set_credential("secrets", damaged);
    run(&[]);
    let used = api.credential_requests().into_iter();
    let used = used.map(|(resource, name, verb)| (String::new(), resource, name, verb.as_str().to_owned()));
    assert_eq!(granted(of_kind(&documents, "Role")), used.collect());
}

#[test]
fn certificates_are_mounted_where_they_are_written() {
    let documents = certificates();
    let role = of_kind(&documents, "Role");
    let secrets = texts(at(role, "rules.0.resourceNames"));
    let deployment = provider();
    let pod = at(of_kind(&deployment, "Deployment"), "spec.template.spec");
    assert!(secrets.contains(&at(pod, "volumes.0.secret.secretName").as_str().unwrap()));
    let agents = super::documents(&read("deploy/components/remote-clusters/agents.yaml")).remove(0);
    let sources = at(&agents, "spec.template.spec.volumes.1.projected.sources");
    assert_eq!(at(sources, "0.configMap.name"), at(role, "rules.1.resourceNames.0"));
    assert_eq!(at(sources, "0.configMap.optional"), &json!(true), "an agent enforces without a provider");
    let help = help();
    let audience = at(sources, "1.serviceAccountToken.audience").as_str().unwrap();
    assert!(help.contains(&format!("[default: {audience}]")), "{help}");
    let monitor = super::documents(&read("deploy/components/context-monitor/podmonitor.yaml")).remove(0);
    let tls = at(&monitor, "spec.podMetricsEndpoints.0.tlsConfig");
    assert_eq!(at(tls, "ca.configMap.name"), at(role, "rules.1.resourceNames.0"));
    for reference in ["cert.secret.name", "keySecret.name"] {
        assert!(secrets.contains(&at(tls, reference).as_str().unwrap()), "{reference}");
    }
    let scraper = format!("--allow=metrics=user:{}", at(tls, "keySecret.name").as_str().unwrap());
    assert!(texts(at(&container(), "args")).contains(&scraper.as_str()));
}

/// Addresses of no host (RFC 5737).
const NOBODY: &str = "192.0.2.0/24";

#[test]
fn shipped_policies_admit_named_peers_only() {
    let mut policies = component();
    for file in ["remote-clusters/nodes.yaml", "context-monitor/networkpolicy.yaml"] {
        policies.extend(documents(&read(&format!("deploy/components/{file}"))));
    }
    policies.retain(|document| document["kind"] == "NetworkPolicy");
    assert_eq!(policies.len(), 4);
    for policy in &policies {
        assert!(texts(at(policy, "spec.policyTypes")).contains(&"Ingress"), "{policy}");
        for rule in policy["spec"]["ingress"].as_array().into_iter().flatten() {
            let sources = list(rule, "from");
            assert!(!sources.is_empty(), "a rule without a source admits everyone: {rule}");
            for source in sources {
                let is_nobody = source.pointer("/ipBlock/cidr").is_some_and(|cidr| cidr == NOBODY);
                let selects = source.get("podSelector").is_some();
                assert!(is_nobody || selects, "{source}");
                let of_all_namespaces = source.get("namespaceSelector").is_some_and(|selector| selector == &json!({}));
                let of_all_pods = source.get("podSelector").is_some_and(|selector| selector == &json!({}));
                assert!(!(of_all_namespaces && of_all_pods), "{source}");
            }
        }
    }
}

/// A GET request to a port on the loopback.
fn get(port: u16, target: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    write!(stream, "GET {target} HTTP/1.0\r\nhost: ringfence\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer.split_once("\r\n\r\n").map_or_else(String::new, |(_, body)| body.to_owned()))
}

/// The metrics of a provider of two clusters, one of which is unreachable.
pub(super) fn figures() -> Vec<Family> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|l| l.local_addr()).expect("a port").port();
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = program();
    command.args(["serve", "--manifests"]).arg(root().join("examples/shop"));
    command.args(["--listen", &format!("127.0.0.1:{port}"), "--cluster-id", "demo"]);
    // Another cluster, which is unreachable as well.
    let remote = json!({"clusters": [{"name": "east", "url": "http://127.0.0.1:1", "tokenFile": "/nowhere"}]});
    let clusters = folder.path().join("clusters.yaml");
    std::fs::write(&clusters, remote.to_string()).expect("a folder of ours");
    command.arg("--remote-clusters").arg(&clusters);
    // A store that accepts every write, and an unreachable relay: some metrics appear only once there is something to
    // count.
    command.args(["--store", &format!("file://{}", folder.path().display()), "--push-url", "http://127.0.0.1:1"]);
    let running = Running(command.stderr(Stdio::null()).spawn().expect("the program starts"));
    let figures = until("deliveries and failures are counted", || {
        let text = get(port, "/metrics").ok()?;
        let counted = |name: &str, outlet: &str| {
            ["identity", "policy-edges"].iter().all(|feed| {
                let sample = format!("ringfence_context_{name}_total{{feed=\"{feed}\",outlet=\"{outlet}\"}} ");
                text.lines().any(|line| line.strip_prefix(&sample).is_some_and(|count| count != "0"))
            })
        };
        let remote = text.contains("ringfence_context_remote_reachable{cluster=\"east\"}");
        (remote && counted("deliveries", "store") && counted("delivery_failures", "relay"))
            .then(|| openmetrics::parse(&text))
    });
    drop(running);
    figures.expect("OpenMetrics")
}

#[test]
fn every_figure_is_documented_and_no_other() {
    assert_documented(&figures(), "docs/context.md", "ringfence_context_");
}

#[test]
fn its_own_policy_is_understood() {
    let documents = provider();
    let lowered = lower(policy::Kind::NetworkPolicy, of_kind(&documents, "NetworkPolicy")).unwrap();
    let policy::Object::Policy(policy) = lowered else { panic!("a policy is lowered to {lowered:?}") };
    assert_eq!(policy.problems, []);
    let rules = |side: &Option<Vec<_>>| side.as_ref().map(Vec::len);
    assert_eq!((rules(&policy.ingress), rules(&policy.egress)), (Some(1), Some(2)));
}
