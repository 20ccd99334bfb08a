//! The context provider, and policies that admit pods of another cluster: two clusters on one network.

use std::fs;
use std::process::Command;

use anyhow::{bail, ensure};
use serde_json::json;

use crate::Stage;
use crate::cluster::{Cluster, PodName, at, run, wait_for};
use crate::images::work_folder;
use crate::lifecycle::{agents, manifest};
use crate::objects::{list, policy, server};
use crate::policies::{IN_FORCE, POD_START};

/// The other cluster's name in policies.
const EAST: &str = "east";
const NAMESPACE: &str = "federated";
/// The provider's Service. Agents use the host network, and this cluster has no DNS, so they get the address.
const PROVIDER: &str = "10.101.200.1";

pub(crate) fn other_cluster() -> Cluster {
    Cluster { number: 2 }
}

pub(crate) fn provider_admits_pods_of_another_cluster(stage: &Stage) -> anyhow::Result<String> {
    let (cluster, east) = (stage.cluster, other_cluster());
    east.up()?;
    stage.images.load_pods(east)?;
    for cluster in [cluster, east] {
        cluster.create_namespaces(&[NAMESPACE])?;
    }
    let offered = [("app", "client"), ("semaphore.uw.systems/name", "web")];
    east.apply(&list(&[server(NAMESPACE, "web", 1, &offered), server(NAMESPACE, "other", 2, &[("app", "client")])]))?;
    let db = PodName::new(NAMESPACE, "db");
    cluster.apply(&list(&[
        server(NAMESPACE, "db", 2, &[("app", "db")]),
        policy(
            NAMESPACE,
            "db",
            &json!({
                "podSelector": {"matchLabels": {"app": "db"}},
                "policyTypes": ["Ingress"],
                "ingress": [{"from": [{
                    "namespaceSelector": {"matchLabels": {
                        "semaphore.uw.systems/cluster": EAST, "semaphore.uw.systems/namespace": NAMESPACE}},
                    "podSelector": {"matchLabels": {"semaphore.uw.systems/name": "web"}},
                }]}],
            }),
        ),
    ]))?;
    east.pods_ready(NAMESPACE, "app=client", POD_START)?;
    cluster.pods_ready(NAMESPACE, "app=db", POD_START)?;

    install_provider(cluster, east)?;
    let refused = strangers_are_refused(stage, &db)?;
    let targets = cluster.addresses(&db)?.map(|address| at(&address, 8080));
    let get = |name: &str, target: &str| {
        east.exec(&PodName::new(NAMESPACE, name), &["/test-cluster", "pod", "get", "tcp", target])
    };
    for target in &targets {
        wait_for("the offered pod is admitted", IN_FORCE, || get("web", target).map(Some))?;
        ensure!(get("other", target).is_err(), "a pod that offers nothing reached {target}");
    }
    // Without its label the pod is no longer admitted.
    east.kubectl(&["--namespace", NAMESPACE, "label", "pod", "web", "semaphore.uw.systems/name-"])?;
    for target in &targets {
        wait_for("the pod is no longer admitted", IN_FORCE, || Ok(get("web", target).err().map(drop)))?;
    }
    remove_provider(cluster)?;
    east.down()?;
    Ok(format!("both families over TLS; {refused} strangers refused"))
}

/// Verifies that the provider's port requires TLS and a token of an agent's account. Returns the number of refused
/// requests.
fn strangers_are_refused(stage: &Stage, pod: &PodName) -> anyhow::Result<usize> {
    let (cluster, work) = (stage.cluster, work_folder().join("provider"));
    let authority = ["--namespace", "ringfence", "get", "configmap", "ringfence-context-ca", "--output"];
    let authority = cluster.kubectl(&[&authority[..], &["jsonpath={.data.ca\\.crt}"]].concat())?;
    fs::write(work.join("ca.crt"), authority)?;
    for (file, namespace, account, audience) in [
        ("agent.token", "ringfence", "ringfence", Some("--audience=ringfence-context")),
        ("stranger.token", NAMESPACE, "default", Some("--audience=ringfence-context")),
        ("api.token", "ringfence", "ringfence", None),
    ] {
        let words = ["--namespace", namespace, "create", "token", account];
        fs::write(work.join(file), cluster.kubectl(&[&words[..], audience.as_slice()].concat())?)?;
    }
    // From a node, whose addresses the provider's NetworkPolicy admits, so that the provider itself refuses.
    let [address, _] = cluster.addresses(pod)?;
    let program = stage.images.context_program();
    let file = |name: &str| work.join(name).display().to_string();
    let lookup = |scheme: &str, authority: &str, token: Option<&str>| {
        let (from, authority) = (format!("{scheme}://{PROVIDER}:9471"), file(authority));
        let token = token.map(|name| format!("--token-file={}", file(name)));
        let mut words = vec![program.as_str(), "lookup", &address, "--from", &from, "--ca-file", &authority];
        words.extend(token.as_deref());
        cluster.on_node(1, &words)
    };
    let answer = lookup("https", "ca.crt", Some("agent.token"))?;
    let name = format!("{}/{}", pod.namespace, pod.name);
    ensure!(answer.contains(&name), "the record of {address} is not that of {name}: {answer}");
    let strangers = [
        ("no token", "https", "ca.crt", None, "401"),
        ("a token for the API server", "https", "ca.crt", Some("api.token"), "401"),
        ("an account without a grant", "https", "ca.crt", Some("stranger.token"), "403"),
        ("a CA that did not sign the certificate", "https", "east.crt", Some("agent.token"), "certificate"),
        ("no TLS", "http", "ca.crt", None, "error"),
    ];
    for (who, scheme, authority, token, says) in strangers {
        match lookup(scheme, authority, token) {
            Ok(answer) => bail!("with {who} the provider answered: {answer}"),
            Err(error) => ensure!(format!("{error:#}").contains(says), "with {who}, expected {says}: {error:#}"),
        }
    }
    // A pod that is not a consumer cannot even connect.
    let port = format!("{PROVIDER}:9471");
    let connect = || cluster.exec(pod, &["/test-cluster", "pod", "get", "tcp", &port]);
    let is_dropped = || connect().is_err_and(|error| format!("{error:#}").contains("timed out"));
    ensure!(is_dropped(), "{name} is no consumer and connects to the provider");
    // The control: with the label of a consumer the pod connects, but does not support TLS.
    cluster.kubectl(&[
        "--namespace",
        &pod.namespace,
        "label",
        "pod",
        &pod.name,
        "ringfence.io/context-consumer=true",
    ])?;
    wait_for("a consumer connects to the provider", IN_FORCE, || Ok((!is_dropped()).then_some(())))?;
    Ok(strangers.len() + 1)
}

/// The components of `deploy/` for the provider, with the remote account of docs/remote-clusters.md.
fn install_provider(cluster: Cluster, east: Cluster) -> anyhow::Result<()> {
    let work = work_folder().join("provider");
    fs::create_dir_all(&work)?;
    east.apply(&account())?;
    let token = east.kubectl(&["--namespace", "kube-system", "create", "token", "ringfence-remote"])?;
    let authority = east.kubectl(&[
        "config",
        "view",
        "--minify",
        "--raw",
        "--output",
        "jsonpath={.clusters[0].cluster.certificate-authority-data}",
    ])?;
    let authority = format!("base64 --decode <<<'{authority}' >'{}'", work.join("east.crt").display());
    run(Command::new("bash").args(["-c", &authority]))?;
    fs::write(work.join("east.token"), token)?;
    let server = east.kubectl(&["config", "view", "--minify", "--output", "jsonpath={.clusters[0].cluster.server}"])?;
    fs::write(
        work.join("clusters.yaml"),
        format!(
            "clusters:\n- name: {EAST}\n  url: {server}\n  caFile: /etc/ringfence/remote/east.crt\n  \
             tokenFile: /etc/ringfence/remote/east.token\n"
        ),
    )?;
    let files: Vec<String> = ["clusters.yaml", "east.token", "east.crt"]
        .iter()
        .map(|file| format!("--from-file={}", work.join(file).display()))
        .collect();
    let mut words = vec!["--namespace", "ringfence", "create", "secret", "generic", "ringfence-remote-clusters"];
    words.extend(files.iter().map(String::as_str));
    cluster.kubectl(&words)?;

    let overlay = work.join("overlay");
    fs::create_dir_all(&overlay)?;
    fs::write(overlay.join("kustomization.yaml"), kustomization())?;
    let manifests = cluster.kubectl(&["kustomize", &overlay.display().to_string()])?;
    cluster.apply(&manifests)?;
    cluster.rollout("ringfence", "deployment/ringfence-context", POD_START)?;
    cluster.rollout("ringfence", "daemonset/ringfence", POD_START)?;
    for agent in agents(cluster)? {
        wait_for("the agent follows the provider", IN_FORCE, || {
            let status = cluster.exec(&agent, &["ringfence", "status"])?;
            ensure!(status.contains(&format!("{EAST}: 1 set, 2 addresses, fresh")), "{status}");
            Ok(Some(()))
        })?;
    }
    Ok(())
}

/// The permissions of docs/remote-clusters.md in the other cluster.
fn account() -> String {
    list(&[
        json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "ringfence-remote", "namespace": "kube-system"}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "ringfence-remote"},
            "rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": "ringfence-remote"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "ringfence-remote"},
            "subjects": [{"kind": "ServiceAccount", "name": "ringfence-remote", "namespace": "kube-system"}]}),
    ])
}

fn kustomization() -> String {
    let deploy = "../../../../deploy";
    let nodes = ["172.31.0.0/16", "fd31::/16"];
    let nodes = nodes.map(|range| json!({"ipBlock": {"cidr": range}}));
    json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [format!("{deploy}/base")],
        "components": [format!("{deploy}/components/context"), format!("{deploy}/components/remote-clusters")],
        "patches": [
            {"target": {"kind": "Service", "name": "ringfence-context"},
             "patch": json!([{"op": "add", "path": "/spec/clusterIP", "value": PROVIDER}]).to_string()},
            {"target": {"kind": "Deployment", "name": "ringfence-context-tls"},
             "patch": json!([{"op": "add", "path": "/spec/template/spec/containers/0/args/-",
                "value": format!("--name={PROVIDER}")}]).to_string()},
            {"target": {"kind": "NetworkPolicy", "name": "ringfence-context-nodes"},
             "patch": json!([{"op": "replace", "path": "/spec/ingress/0/from", "value": nodes}]).to_string()},
            {"patch": json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
                "metadata": {"name": "ringfence", "namespace": "ringfence"},
                "spec": {"template": {"spec": {"containers": [{"name": "agent", "env": [
                    {"name": "RINGFENCE_CONTEXT_URL", "value": format!("https://{PROVIDER}:9471")}]}]}}}}).to_string()},
        ],
    })
    .to_string()
}

/// Restores the state of `deploy/install.yaml`.
fn remove_provider(cluster: Cluster) -> anyhow::Result<()> {
    let component = "app.kubernetes.io/name in (ringfence-context,ringfence-context-tls)";
    for kind in [
        "deployments",
        "services",
        "networkpolicies",
        "poddisruptionbudgets",
        "roles",
        "rolebindings",
        "serviceaccounts",
    ] {
        cluster.kubectl(&["--namespace", "ringfence", "delete", kind, "--selector", component])?;
    }
    cluster.kubectl(&["delete", "clusterroles,clusterrolebindings", "--selector", component])?;
    cluster.kubectl(&["--namespace", "ringfence", "delete", "secret", "ringfence-remote-clusters"])?;
    let certificates = "app.kubernetes.io/managed-by=ringfence-context-init-tls";
    cluster.kubectl(&["--namespace", "ringfence", "delete", "secrets,configmaps", "--selector", certificates])?;
    cluster.apply(&manifest("install.yaml")?)?;
    cluster.rollout("ringfence", "daemonset/ringfence", POD_START)
}
