use std::collections::BTreeSet;
use std::process::Command;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Service, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kit::agent_process::{DEPLOYED_WITH, ended, run};
use kit::fake_api::{FakeApi, IssuedToken};
use kit::provider_process::{Provider, aggregator, free_port, provider};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::certificates::{HttpsClient, TestCa, Validity, mount};

use super::manifests::{install_yaml, of_kind, unknown_to};
use super::{VERSION, at, documents, list, read, texts};

const FOLDER: &str = "deploy/components/flow-server";
const NAME: &str = "ringfence-flow-server";
/// The headless Service, whose name agents resolve.
const REPLICAS: &str = "ringfence-flow-server-replicas";

/// The objects of the component.
pub(super) fn component() -> Vec<Value> {
    let kustomization = documents(&read(&format!("{FOLDER}/kustomization.yaml"))).remove(0);
    let files = texts(&kustomization["resources"]).into_iter();
    files.flat_map(|file| documents(&read(&format!("{FOLDER}/{file}")))).collect()
}

/// The objects with one name.
fn named(name: &str) -> Vec<Value> {
    let mut documents = component();
    documents.retain(|document| at(document, "metadata.name") == name);
    documents
}

fn container(name: &str) -> Value {
    let container = at(of_kind(&named(name), "Deployment"), "spec.template.spec.containers.0").clone();
    assert_eq!(at(&container, "image"), &json!(format!("ringfence:{VERSION}")));
    container
}

pub(super) fn agents() -> Value {
    documents(&read(&format!("{FOLDER}/agents.yaml"))).remove(0)
}

fn words_of(command: &mut Command) -> String {
    ended(command).stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn objects_of_the_aggregator_are_known_to_kubernetes() {
    for document in component() {
        let unknown = match document["kind"].as_str().unwrap() {
            "ServiceAccount" => unknown_to::<ServiceAccount>(&document),
            "Service" => unknown_to::<Service>(&document),
            "ClusterRole" => unknown_to::<ClusterRole>(&document),
            "ClusterRoleBinding" => unknown_to::<ClusterRoleBinding>(&document),
            "Role" => unknown_to::<Role>(&document),
            "RoleBinding" => unknown_to::<RoleBinding>(&document),
            "Deployment" => unknown_to::<Deployment>(&document),
            "NetworkPolicy" => unknown_to::<NetworkPolicy>(&document),
            other => panic!("{other}"),
        };
        assert!(unknown.is_empty(), "{unknown:#?}");
    }
    let counts = [NAME, "ringfence-flow-server-nodes", "ringfence-flow-server-tls"].map(|name| named(name).len());
    assert_eq!((counts, named(REPLICAS).len(), component().len()), ([6, 1, 5], 1, 13));
}

/// Records take as much as --memory-mib says; queries, the process and waiting batches of the trail take less than that again.
#[test]
fn memory_limit_is_twice_the_record_budget() {
    let mebibytes = |resources: &Value, path: &str| -> u64 {
        let quantity = at(resources, path).as_str().unwrap();
        quantity.strip_suffix("Mi").unwrap().parse().unwrap()
    };
    let help = words_of(aggregator().args(["serve", "--help"]));
    let of_flag = help.split_once("--memory-mib <MIB>").expect("the flag").1;
    let budget: u64 = of_flag.split_once("[default: ").unwrap().1.split_once(']').unwrap().0.parse().unwrap();
    let resources = at(&container(NAME), "resources").clone();
    assert_eq!((mebibytes(&resources, "requests.memory"), mebibytes(&resources, "limits.memory")), (256, 2 * budget));
    let values = documents(&read("deploy/helm/ringfence/values.yaml")).remove(0);
    assert_eq!(at(&values, "flows.server.resources"), &resources);
    let words = read("docs/flows-cluster.md");
    assert!(
        words.contains("requests 256 MiB") && words.contains("limit is 512 MiB, twice the default of `--memory-mib`")
    );
}

#[test]
fn objects_of_the_aggregator_agree() {
    let documents = named(NAME);
    let deployment = of_kind(&documents, "Deployment");
    let labels = at(deployment, "spec.template.metadata.labels");
    let port = at(&container(NAME), "ports.0").clone();
    for (kind, selector) in [
        ("Deployment", "spec.selector.matchLabels"),
        ("Service", "spec.selector"),
        ("NetworkPolicy", "spec.podSelector.matchLabels"),
    ] {
        assert_eq!(at(of_kind(&documents, kind), selector), labels, "{kind}");
    }
    let nodes = named("ringfence-flow-server-nodes").remove(0);
    assert_eq!(at(&nodes, "spec.podSelector.matchLabels"), labels);
    assert_eq!(
        at(&nodes, "spec.ingress.0.from"),
        &json!([{"ipBlock": {"cidr": "192.0.2.0/24"}}]),
        "no node has this range"
    );
    for policy in [&nodes, of_kind(&documents, "NetworkPolicy")] {
        assert_eq!(at(policy, "spec.ingress.0.ports.0.port"), at(&port, "containerPort"));
    }
    let replicas = named(REPLICAS).remove(0);
    assert_eq!((at(&replicas, "spec.clusterIP"), at(&replicas, "spec.selector")), (&json!("None"), labels));
    for service in [of_kind(&documents, "Service"), &replicas] {
        assert_eq!(at(service, "spec.ports.0.targetPort"), at(&port, "name"));
        assert_eq!(at(service, "spec.ports.0.port"), at(&port, "containerPort"));
    }
    assert_eq!(at(deployment, "spec.template.spec.serviceAccountName"), NAME);
    let binding = of_kind(&documents, "ClusterRoleBinding");
    assert_eq!((at(binding, "roleRef.name"), at(binding, "subjects.0.name")), (&json!(NAME), &json!(NAME)));
    // The right to read is unnecessary: the only request is a TokenReview.
    let rule = json!({"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]});
    assert_eq!(list(of_kind(&documents, "ClusterRole"), "rules"), [rule]);
}

#[test]
fn flags_of_the_aggregator_exist() {
    let container = container(NAME);
    assert_eq!(texts(at(&container, "command")), ["/usr/local/bin/ringfence-flows"]);
    let help = words_of(aggregator().args(["serve", "--help"]));
    let arguments = texts(at(&container, "args"));
    for argument in &arguments[1..] {
        let flag = argument.split('=').next().unwrap();
        assert!(help.split_whitespace().any(|word| word == flag), "{flag} is no flag:\n{help}");
    }
    for variable in list(&container, "env") {
        let name = at(variable, "name").as_str().unwrap();
        let is_tested = DEPLOYED_WITH.iter().any(|(known, value)| *known == name && variable["value"] == *value);
        assert!(is_tested || help.contains(&format!("[env: {name}=")), "{name}:\n{help}");
    }
    let port = at(&container, "ports.0.containerPort");
    assert!(arguments.contains(&format!("--listen=0.0.0.0:{port}").as_str()));
    assert!(help.contains(&format!("[default: 127.0.0.1:{port}]")), "{help}");
}

#[test]
fn deployed_agents_reach_the_aggregator() {
    let patch = agents();
    let container = at(&patch, "spec.template.spec.containers.0");
    let help = run(["agent", "--help"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let value = |name: &str| {
        assert!(help.contains(&format!("[env: {name}=")), "{name}:\n{help}");
        let variable = list(container, "env").iter().find(|variable| variable["name"] == name).unwrap();
        at(variable, "value").as_str().unwrap().to_owned()
    };
    assert_eq!(list(container, "env").len(), 3);
    let service = named(NAME);
    let port = at(of_kind(&service, "Service"), "spec.ports.0.port");
    assert_eq!(value("RINGFENCE_FLOW_SERVER"), format!("dns+https://{REPLICAS}.ringfence:{port}"));
    let folder = at(container, "volumeMounts.0.mountPath").as_str().unwrap();
    assert_eq!(value("RINGFENCE_FLOW_SERVER_CA_FILE"), format!("{folder}/ca.crt"));
    assert_eq!(value("RINGFENCE_FLOW_SERVER_TOKEN_FILE"), format!("{folder}/token"));
    let sources = at(&patch, "spec.template.spec.volumes.0.projected.sources");
    let role = of_kind(&named("ringfence-flow-server-tls"), "Role").clone();
    assert_eq!(at(sources, "0.configMap.name"), at(&role, "rules.1.resourceNames.0"));
    assert_eq!(at(sources, "0.configMap.optional"), &json!(true), "an agent enforces without an aggregator");

    // The deployed aggregator accepts records only from the agents' account with that audience.
    let (api, ca, files) = (FakeApi::start(), TestCa::new("ca"), TempDir::new().unwrap());
    mount(files.path(), "first", &ca.server(Validity::Valid));
    let data = files.path().join("data");
    std::fs::write(data.join("ca.crt"), &HttpsClient::new(&ca).ca).unwrap();
    let deployed = self::container(NAME);
    let arguments = texts(at(&deployed, "args")).into_iter().skip(1).filter(|one| !one.starts_with("--listen"));
    let arguments = arguments.map(|one| one.replace("/etc/ringfence/tls", &data.display().to_string()));
    let kubeconfig = ["--kubeconfig".to_owned(), api.kubeconfig().display().to_string()];
    let address = free_port();
    let mut server = Provider::start_aggregator(address, arguments.chain(kubeconfig));
    let client = HttpsClient::new(&ca);
    server.until("it is ready", |_| client.get(address, "/readyz").ok().filter(|(status, _)| *status == 200));
    let audience = at(sources, "1.serviceAccountToken.audience").as_str().unwrap();
    let installed = install_yaml();
    let account = at(of_kind(&installed, "DaemonSet"), "spec.template.spec.serviceAccountName").as_str().unwrap();
    for (name, namespace) in [(account, "ringfence"), ("reader", "ringfence"), ("default", "shop")] {
        api.issue_token(&format!("{name}-token"), IssuedToken::of_service_account(namespace, name, audience));
    }
    // The call is a POST: a client that may make it gets 405 for GET.
    let statuses = |name: &str| {
        let client = client.with_token(&format!("{name}-token"));
        [delivery::PATH, "/v1/flows", "/metrics"].map(|path| client.status(address, path))
    };
    assert_eq!(statuses(account), [405, 200, 403]);
    assert_eq!(statuses("reader"), [403, 200, 403]);
    assert_eq!(statuses("default"), [403, 403, 403]);
}

#[test]
fn certificate_keeper_of_the_aggregator_has_its_rights() {
    let api = FakeApi::start();
    let name = "ringfence-flow-server-tls";
    let container = container(name);
    assert_eq!(texts(at(&container, "command")), ["/usr/local/bin/ringfence-context"]);
    let arguments = texts(at(&container, "args")).into_iter().filter(|argument| *argument != "--watch");
    let issued = ended(provider().args(arguments).arg("--kubeconfig").arg(api.kubeconfig()));
    assert_eq!(issued.code, Some(0), "{}", issued.stderr);
    let role = of_kind(&named(name), "Role").clone();
    let granted: BTreeSet<&str> = texts(at(&role, "rules.0.resourceNames")).into_iter().collect();
    for secret in &granted {
        assert!(api.credential("secrets", "ringfence", secret).is_some(), "{secret}");
    }
    assert_eq!(granted.len(), 3);
    let deployment = named(NAME);
    let volume = at(of_kind(&deployment, "Deployment"), "spec.template.spec.volumes.0").clone();
    assert!(granted.contains(at(&volume, "secret.secretName").as_str().unwrap()));
    assert!(api.credential("configmaps", "ringfence", "ringfence-flow-server-ca").is_some());
}
