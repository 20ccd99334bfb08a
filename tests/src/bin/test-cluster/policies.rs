//! Policies on the real data path: pods, Services, node ports, named ports, both families.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::ensure;
use serde_json::json;

use crate::Stage;
use crate::cluster::{PodName, at, wait_for};
use crate::objects::{deny_all, list, pod, policy, server, service};
use crate::pod::ANSWERED;

/// The namespace of these tests. Its pods start before the agent is installed.
pub(crate) const SHOP: &str = "shop";
const NODE_PORT: u16 = 30080;
/// A node port that preserves the client's address.
const LOCAL_NODE_PORT: u16 = 30081;
/// Deadline for the start of pods whose image is loaded, on a busy machine.
pub(crate) const POD_START: Duration = Duration::from_secs(180);

/// Deadline for rules and Services to be programmed on a busy machine, including the polling requests.
pub(crate) const IN_FORCE: Duration = Duration::from_secs(120);

/// The sender of a request.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Client {
    Pod(PodName),
    /// The host of the control plane, which is not a node of the cluster.
    Lan,
}

impl Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(pod) => write!(f, "{}/{}", pod.namespace, pod.name),
            Self::Lan => f.write_str("a host of the LAN"),
        }
    }
}

/// A request, and whether an answer is expected.
pub(crate) struct Flow {
    pub(crate) client: Client,
    pub(crate) protocol: &'static str,
    pub(crate) target: String,
    pub(crate) allowed: bool,
}

impl Flow {
    /// The target as `pod probe` expects it.
    fn probe(&self) -> String {
        format!("{}/{}", self.protocol, self.target)
    }
}

pub(crate) fn web(node: u8) -> PodName {
    PodName::new(SHOP, &format!("web-{node}"))
}

pub(crate) fn client(role: &str, node: u8) -> PodName {
    PodName::new(SHOP, &format!("{role}-{node}"))
}

/// Sends the requests of all clients in parallel, and fails with those that did not end as expected.
pub(crate) fn check(stage: &Stage, flows: &[Flow]) -> anyhow::Result<()> {
    let clients: BTreeSet<&Client> = flows.iter().map(|flow| &flow.client).collect();
    let answered: BTreeMap<&Client, BTreeSet<String>> = thread::scope(|scope| {
        let running: Vec<_> = clients
            .into_iter()
            .map(|client| scope.spawn(move || probe(stage, client, flows).map(|answered| (client, answered))))
            .collect();
        running.into_iter().map(|thread| thread.join().expect("no request panics")).collect::<anyhow::Result<_>>()
    })?;
    let mut wrong = Vec::new();
    for flow in flows {
        if answered[&flow.client].contains(&flow.probe()) != flow.allowed {
            let verb = if flow.allowed { "is denied" } else { "reaches" };
            wrong.push(format!("{} {verb} {} {}", flow.client, flow.protocol, flow.target));
        }
    }
    let some = wrong.iter().take(10).cloned().collect::<Vec<_>>().join("; ");
    ensure!(wrong.is_empty(), "{} of {} requests had an unexpected result: {some}", wrong.len(), flows.len());
    Ok(())
}

/// Sends the requests of one client and returns the targets that answered.
fn probe(stage: &Stage, client: &Client, flows: &[Flow]) -> anyhow::Result<BTreeSet<String>> {
    let targets: BTreeSet<String> = flows.iter().filter(|flow| flow.client == *client).map(Flow::probe).collect();
    let words: Vec<&str> = ["pod", "probe"].into_iter().chain(targets.iter().map(String::as_str)).collect();
    let printed = match client {
        Client::Pod(pod) => stage.cluster.exec(pod, &[&["/test-cluster"], &words[..]].concat())?,
        Client::Lan => stage.cluster.on_node(0, &[&[stage.images.pod_program().as_str()], &words[..]].concat())?,
    };
    let results: BTreeMap<&str, &str> = printed.lines().filter_map(|line| line.split_once(' ')).collect();
    ensure!(results.len() == targets.len(), "{client} probed {} targets and printed: {printed}", targets.len());
    Ok(targets.into_iter().filter(|target| results.get(target.as_str()) == Some(&ANSWERED)).collect())
}

/// Requests to the servers on every path: addresses of pods and Services of both families, and node ports.
fn flows(stage: &Stage, may: impl Fn(&Client, &str, u16) -> bool) -> anyhow::Result<Vec<Flow>> {
    let mut flows = Vec::new();
    let mut add = |client: &Client, protocol: &'static str, address: &str, port: u16, meant: u16| {
        let allowed = may(client, protocol, meant);
        flows.push(Flow { client: client.clone(), protocol, target: at(address, port), allowed });
    };
    let services = stage.cluster.service_addresses(SHOP, "web")?;
    let servers = [stage.cluster.addresses(&web(1))?, stage.cluster.addresses(&web(2))?];
    for role in ["friend", "stranger"] {
        for node in [1, 2] {
            let client = Client::Pod(client(role, node));
            for address in servers.iter().flatten() {
                add(&client, "tcp", address, 8080, 8080);
                add(&client, "tcp", address, 9090, 9090);
                add(&client, "udp", address, 8080, 8080);
            }
            for address in &services {
                add(&client, "tcp", address, 80, 8080);
                add(&client, "tcp", address, 81, 9090);
                add(&client, "udp", address, 80, 8080);
            }
        }
    }
    for address in servers.iter().flatten() {
        add(&Client::Lan, "tcp", address, 8080, 8080);
    }
    for node in [1, 2] {
        for address in node_addresses(node) {
            add(&Client::Lan, "tcp", &address, NODE_PORT, 8080);
            add(&Client::Lan, "tcp", &address, LOCAL_NODE_PORT, 8080);
        }
    }
    Ok(flows)
}

fn node_addresses(node: u8) -> [String; 2] {
    [format!("172.31.1.1{node}"), format!("fd31::1:1{node}")]
}

/// Verifies that nothing is denied yet: otherwise the tests of denials could pass on a broken network.
pub(crate) fn pods_reach_each_other_before_install(stage: &Stage) -> anyhow::Result<String> {
    let objects = [
        service(SHOP, "web", "web", &json!({})),
        service(
            SHOP,
            "web-node",
            "web",
            &json!({"type": "NodePort", "ports": [
            {"name": "http", "port": 80, "targetPort": "http", "nodePort": NODE_PORT}]}),
        ),
        service(
            SHOP,
            "web-local",
            "web",
            &json!({"type": "NodePort", "externalTrafficPolicy": "Local", "ports": [
            {"name": "http", "port": 80, "targetPort": "http", "nodePort": LOCAL_NODE_PORT}]}),
        ),
    ];
    stage.cluster.create_namespaces(&[SHOP])?;
    stage.cluster.apply(&list(&objects))?;
    start_pods(stage)?;
    let flows = flows(stage, |_, _, _| true)?;
    wait_for("kube-proxy programs the Services", IN_FORCE, || check(stage, &flows).map(Some))?;
    Ok(format!("{} flows", flows.len()))
}

fn start_pods(stage: &Stage) -> anyhow::Result<()> {
    let mut pods = Vec::new();
    for node in [1, 2] {
        let name = |role: &str| format!("{role}-{node}");
        pods.push(server(SHOP, &name("web"), node, &[("app", "web")]));
        for role in ["friend", "stranger"] {
            pods.push(server(SHOP, &name(role), node, &[("role", role)]));
        }
    }
    stage.cluster.apply(&list(&pods))?;
    stage.cluster.pods_ready(SHOP, "app=web", POD_START)?;
    stage.cluster.pods_ready(SHOP, "role", POD_START)
}

pub(crate) fn policy_holds_for_pods_services_and_node_ports(stage: &Stage) -> anyhow::Result<String> {
    // A cluster kept from an earlier run has the policies of that run.
    stage.cluster.kubectl(&["--namespace", SHOP, "delete", "networkpolicies", "--all"])?;
    let open = flows(stage, |_, _, _| true)?;
    wait_for("nothing is denied without policies", IN_FORCE, || check(stage, &open).map(Some))?;

    // 'http' names a TCP port of the pods; UDP has a number.
    let web = json!({"matchLabels": {"app": "web"}});
    stage.cluster.apply(&list(&[policy(
        SHOP,
        "web",
        &json!({
            "podSelector": web,
            "policyTypes": ["Ingress"],
            "ingress": [{
                "from": [{"podSelector": {"matchLabels": {"role": "friend"}}}],
                "ports": [{"port": "http"}, {"port": 8080, "protocol": "UDP"}],
            }],
        }),
    )]))?;
    policy_is_in_force(stage)?;

    // A host outside of the cluster, by its address, which a node port with externalTrafficPolicy Local preserves.
    stage.cluster.apply(&list(&[policy(
        SHOP,
        "lan",
        &json!({
            "podSelector": web,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"ipBlock": {"cidr": "172.31.1.10/32"}}, {"ipBlock": {"cidr": "fd31::1:10/128"}}]}],
        }),
    )]))?;
    let mut from_lan = Vec::new();
    for node in [1, 2] {
        for target in node_addresses(node) {
            let target = at(&target, LOCAL_NODE_PORT);
            from_lan.push(Flow { client: Client::Lan, protocol: "tcp", target, allowed: true });
        }
    }
    wait_for("the block is in force", IN_FORCE, || check(stage, &from_lan).map(Some))?;
    stage.cluster.kubectl(&["--namespace", SHOP, "delete", "networkpolicy", "lan"])?;

    // These pods are older than the agent. Their successors start through the CNI plugin.
    restart_pods(stage)?;
    let checked = policy_is_in_force(stage)?;

    egress_to_a_named_port(stage)?;
    isolated_pods_reach_themselves(stage)?;
    Ok(format!("{checked} flows with the policy"))
}

/// Deletes the servers and clients, and restarts them through the installed CNI plugin.
pub(crate) fn restart_pods(stage: &Stage) -> anyhow::Result<()> {
    stage.cluster.kubectl(&["--namespace", SHOP, "delete", "pods", "--all", "--timeout=180s"])?;
    start_pods(stage)
}

/// Waits until friends reach the servers' port `http` and all other flows are denied; returns the number of flows.
pub(crate) fn policy_is_in_force(stage: &Stage) -> anyhow::Result<usize> {
    let flows = flows(stage, |client, _, port| {
        port == 8080 && matches!(client, Client::Pod(pod) if pod.name.starts_with("friend"))
    })?;
    wait_for("the policy is in force", IN_FORCE, || check(stage, &flows).map(Some))?;
    Ok(flows.len())
}

/// An egress rule with a named port, which is resolved on the destination pod.
fn egress_to_a_named_port(stage: &Stage) -> anyhow::Result<()> {
    let courier = PodName::new(SHOP, "courier");
    stage.cluster.apply(&list(&[
        policy(SHOP, "courier", &json!({
            "podSelector": {"matchLabels": {"role": "courier"}},
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"podSelector": {"matchLabels": {"role": "friend"}}}], "ports": [{"port": "admin"}]}],
        })),
        pod(SHOP, &courier.name, 1, &[("role", "courier")], &["serve", "courier", "8080"]),
    ]))?;
    stage.cluster.pods_ready(SHOP, "role=courier", POD_START)?;
    let mut flows = Vec::new();
    for friend in [client("friend", 1), client("friend", 2)] {
        for address in stage.cluster.addresses(&friend)? {
            for port in [8080, 9090] {
                let (client, allowed) = (Client::Pod(courier.clone()), port == 9090);
                flows.push(Flow { client, protocol: "tcp", target: at(&address, port), allowed });
            }
        }
    }
    // A pod of the ptp plugin has no IPv6 gateway until duplicate address detection has ended on the node's side.
    wait_for("the egress rule is in force", IN_FORCE, || check(stage, &flows).map(Some))
}

/// A pod that denies everything passes the kubelet's probe and reaches itself through its Service; no other pod reaches
/// it.
fn isolated_pods_reach_themselves(stage: &Stage) -> anyhow::Result<()> {
    const ALONE: &str = "alone";
    let names = ["alone-1", "alone-2"];
    stage.cluster.create_namespaces(&[ALONE])?;
    let mut objects = vec![deny_all(ALONE)];
    for (name, node) in names.into_iter().zip([1, 2]) {
        let mut isolated = server(ALONE, name, node, &[("app", name)]);
        isolated["spec"]["containers"][0]["readinessProbe"] = json!({"tcpSocket": {"port": 8080}, "periodSeconds": 1});
        objects.extend([isolated, service(ALONE, name, name, &json!({}))]);
    }
    stage.cluster.apply(&list(&objects))?;
    stage.cluster.pods_ready(ALONE, "app", POD_START)?;
    let mut flows = Vec::new();
    for client in names {
        for service in names {
            for address in stage.cluster.service_addresses(ALONE, service)? {
                let (client, allowed) = (Client::Pod(PodName::new(ALONE, client)), client == service);
                flows.push(Flow { client, protocol: "tcp", target: at(&address, 80), allowed });
            }
        }
    }
    wait_for("isolated pods reach only themselves", IN_FORCE, || check(stage, &flows).map(Some))
}

/// Repeats requests of friends until `done`; the first one without an answer is an error.
pub(crate) fn allowed_flows_hold(stage: &Stage, done: &AtomicBool) -> anyhow::Result<usize> {
    repeat(stage, done, "friend", true)
}

/// Repeats requests of strangers until `done`; the first one with an answer is an error.
pub(crate) fn denied_flows_hold(stage: &Stage, done: &AtomicBool) -> anyhow::Result<usize> {
    repeat(stage, done, "stranger", false)
}

fn repeat(stage: &Stage, done: &AtomicBool, role: &str, allowed: bool) -> anyhow::Result<usize> {
    let mut requests = 0;
    let mut flows = Vec::new();
    for server in [web(1), web(2)] {
        for (address, node) in stage.cluster.addresses(&server)?.iter().zip([2, 1]) {
            let client = Client::Pod(client(role, node));
            flows.push(Flow { client, protocol: "udp", target: at(address, 8080), allowed });
        }
    }
    while !done.load(Ordering::Relaxed) {
        check(stage, &flows)?;
        requests += flows.len();
    }
    Ok(requests)
}
