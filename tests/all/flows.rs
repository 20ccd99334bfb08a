//! Flow records of a real agent with real packets: every connection with both ends by name, the rule that decided at
//! that time, and exact volumes.

// The aggregator of the cluster.
mod cluster;
// Policies that change while connections are opened.
mod changes;
// Lost events and restarts.
mod complete;
// Nodes, Services, API servers, other clusters and the world as ends.
mod ends;
// Every protocol.
mod protocols;
// The watch of Services, and a failing API server.
mod services;
// Many connections: their sums equal the counters of the rules, and the totals of another program.
mod totals;
// ulogd2, which logs connections too.
mod ulogd;
// Open connections.
mod moments;
// `ringfence flows --follow`.
mod follow;
// Filters and sums of `ringfence flows`, compared with the same records filtered here.
mod filters;
// Labels and service identities of pods in records.
mod labels;
// A pod that fills connection tracking, and events that overflow the agent's socket.
mod flood;
// A wall clock that is set back and forward.
mod clock;
// Rules of cluster policies, enforced and audited.
mod cluster_policies;
// `ringfence flows`, and the flows in the output of `explain`.
mod verb;

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use kit::agent_process::{AgentProcess, WITHIN, ask_socket};
use serde_json::{Value, json};
use tests::fake_clock::FakeClock;

use crate::drops::{DB, OTHER, OUTSIDE, WEB, send_datagrams, stage};
use crate::stage::{NODE, Stage, pod, policy};

/// Port that the policy of `db` allows.
const PORT: u16 = 5432;

const WINDOW_SECONDS: i64 = 15;

fn start(stage: &Stage) -> AgentProcess<'_> {
    start_command(stage, stage.agent_on_manifests())
}

/// Uses a fake clock, so that no test waits for the end of a window.
fn start_with_clock<'stage>(stage: &'stage Stage, clock: &FakeClock) -> AgentProcess<'stage> {
    let mut command = stage.agent_on_manifests();
    clock.apply(&mut command);
    start_command(stage, command)
}

/// Starts this agent with flow records, and waits until it records flows.
fn start_command(stage: &Stage, mut command: Command) -> AgentProcess<'_> {
    command.args(["--flows", "on"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    agent.until("the agent follows connection tracking", |_| records_flows(&stage.run_dir()).then_some(()));
    agent
}

fn coverage(stage: &Stage) -> Value {
    coverage_of(&stage.run_dir())
}

fn coverage_of(run_dir: &Path) -> Value {
    serde_json::from_str(&ask_socket(run_dir, "/v1/flows/coverage").body).unwrap()
}

/// Whether the agent records flows yet.
pub(crate) fn records_flows(run_dir: &Path) -> bool {
    coverage_of(run_dir)["since"].is_string()
}

/// The agent's records for these query parameters.
fn records(stage: &Stage, parameters: &str) -> Vec<Value> {
    listed(&stage.run_dir(), parameters)
}

/// The records of the agent with this run directory.
pub(crate) fn listed(run_dir: &Path, parameters: &str) -> Vec<Value> {
    let answer = ask_socket(run_dir, &format!("/v1/flows{parameters}"));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let lines = answer.body.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Whether each started connection is live, ended or lost.
fn balances(coverage: &Value) -> bool {
    let figure = |name: &str| coverage[name].as_u64().unwrap();
    figure("started") == figure("ended") + figure("live") + figure("lost")
}

/// Writes a sysctl of the node's connection tracking.
fn write_setting(stage: &Stage, key: &str, value: u64) {
    let path = format!("/proc/sys/net/netfilter/{key}");
    stage.lab.node_exec(NODE, || std::fs::write(&path, value.to_string())).unwrap();
}

/// Runs `conntrack` on the node. Listing with `-L` makes the kernel remove expired entries.
fn conntrack(stage: &Stage, arguments: &[&str]) {
    let ended = stage
        .lab
        .node_exec(NODE, || Command::new("conntrack").args(arguments).output().expect("conntrack is installed"));
    assert!(ended.status.success(), "{ended:?}");
}

fn sum(records: &[Value], pointer: &str) -> u64 {
    records.iter().map(|record| record.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)).sum()
}

/// Starts a server thread that reads each client's bytes and answers with as many.
fn serve(stage: &Stage, address: &str, port: u16) {
    let address: IpAddr = address.parse().unwrap();
    let listener = stage.lab.in_namespace_of(address, || TcpListener::bind((address, port)).unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let Ok(mut client) = client else { return };
            let mut received = Vec::new();
            if client.read_to_end(&mut received).is_ok() {
                // A client that has closed the connection has read enough.
                drop(client.write_all(&received));
            }
        }
    });
}

/// Exchanges the bytes with the server over one connection.
fn exchange(stage: &Stage, from: &str, to: &str, port: u16, bytes: usize) {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    stage.lab.in_namespace_of(from, || {
        let mut client = TcpStream::connect_timeout(&SocketAddr::new(to, port), Duration::from_secs(10)).unwrap();
        client.set_read_timeout(Some(WITHIN)).unwrap();
        client.write_all(&vec![7; bytes]).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer.len(), bytes);
    });
}

#[test]
fn connections_have_both_ends_and_their_rule() {
    let stage = stage();
    let mut agent = start(&stage);
    for family in [0, 1] {
        serve(&stage, DB[family], PORT);
        serve(&stage, OTHER[family], 80);
        exchange(&stage, WEB[family], DB[family], PORT, 1000);
        exchange(&stage, OUTSIDE[family], OTHER[family], 80, 10);
        send_datagrams(&stage, OTHER[family], DB[family], 53, 3);
    }

    let allowed = agent.until("the allowed connections", |_| {
        let found = records(&stage, "?peer=shop/db&workload=shop/web");
        (sum(&found, "/connections/started") == 2).then_some(found)
    });
    let first = &allowed[0];
    let end = |name: &str| json!({"kind": "pod", "namespace": "shop", "name": name, "service": "shop", "cluster": null, "network": null});
    assert_eq!((&first["source"], &first["destination"]), (&end("web"), &end("db")));
    assert_eq!((&first["protocol"], &first["port"], &first["verdict"]), (&json!(6), &json!(PORT), &json!("allowed")));
    let rule = json!([{
        "kind": "NetworkPolicy", "namespace": "shop", "name": "db", "rule": "spec.ingress[0]", "action": "allow",
    }]);
    let ingress = json!({"verdict": "allowed", "enforcedHere": true, "enforced": rule, "pending": []});
    assert_eq!(first["ingress"], ingress, "{first:#}");
    assert_eq!((&first["egress"]["verdict"], &first["node"]), (&json!("not-isolated"), &json!(NODE)));
    assert!(first["generation"].is_u64(), "{first:#}");
    assert_eq!(allowed.iter().filter(|r| r["sources"]["pods"] == json!(["shop/web"])).count(), allowed.len());

    for sample in ["sources", "destinations"] {
        let identities = first[sample]["identities"].as_array().unwrap();
        assert_eq!(identities.len(), 1, "{first:#}");
        assert!(identities[0]["service"] == "shop" && identities[0]["sid"].is_string(), "{first:#}");
    }

    // No policy selects `other` for ingress.
    let unselected = agent.until("connections to a pod without policies", |_| {
        let found = records(&stage, "?peer=world&workload=other");
        (sum(&found, "/connections/started") == 2).then_some(found)
    });
    let from = |record: &Value| (record["source"]["kind"].clone(), record["source"]["network"].clone());
    assert!(unselected.iter().all(|r| from(r) == (json!("world"), json!("public"))), "{unselected:#?}");
    assert!(unselected.iter().all(|r| r["ingress"]["verdict"] == "not-isolated" && r["generation"].is_null()));

    let denied = agent.until("the denied packets", |_| {
        let found = records(&stage, "?verdict=denied");
        (sum(&found, "/deniedPackets") == 6).then_some(found)
    });
    for record in &denied {
        assert_eq!((&record["source"], &record["destination"]), (&end("other"), &end("db")));
        assert_eq!((&record["ingress"]["verdict"], &record["sent"]), (&json!("denied"), &Value::Null));
        assert_eq!(record["ingress"]["enforced"][0]["name"], "db", "{record:#}");
    }
}

#[test]
fn volumes_equal_the_counters_of_the_rules() {
    let stage = stage();
    stage.nft("add table inet observer");
    stage.nft("add chain inet observer forward { type filter hook forward priority 300; policy accept; }");
    stage.nft("add rule inet observer forward ip protocol tcp counter");
    let mut agent = start(&stage);
    serve(&stage, DB[0], PORT);
    for bytes in [1, 1_000, 200_000] {
        exchange(&stage, WEB[0], DB[0], PORT, bytes);
    }
    // The counter is read when no packet is in flight.
    let counted = agent.until("the last packets are counted", |_| {
        let text = stage.nft("list chain inet observer forward");
        let bytes: u64 = text.split("bytes ").nth(1)?.split_whitespace().next()?.parse().ok()?;
        let found = records(&stage, "?protocol=tcp");
        (sum(&found, "/sent/bytes") + sum(&found, "/received/bytes") == bytes).then_some(bytes)
    });
    assert!(counted > 400_000, "{counted}");
}

#[test]
fn service_connections_have_the_service_and_its_backend() {
    let stage = stage();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "shop", "name": "database"},
        "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
                 "ports": [{"name": "postgres", "port": 15432, "protocol": "TCP", "targetPort": 5432}]},
    });
    stage.write_objects("services.json", &[service]);
    stage.nft("add table ip services");
    stage.nft("add chain ip services prerouting { type nat hook prerouting priority -100; }");
    stage.nft(&format!("add rule ip services prerouting ip daddr 10.96.0.10 tcp dport 15432 dnat to {}:{PORT}", DB[0]));
    let mut agent = start(&stage);
    serve(&stage, DB[0], PORT);
    exchange(&stage, WEB[0], "10.96.0.10", 15432, 10);
    let found = agent.until("the connection through the Service", |_| {
        let found = records(&stage, "?port=15432");
        (!found.is_empty()).then_some(found)
    });
    let expected = json!({"namespace": "shop", "name": "database", "portName": "postgres", "port": 15432});
    assert_eq!((&found[0]["service"], &found[0]["port"]), (&expected, &json!(PORT)));
    assert_eq!(found[0]["destination"]["name"], "db");
}

#[test]
fn audited_policies_are_pending_in_traces() {
    let stage = stage();
    let mut audited = policy("nobody", "app=other", json!({"policyTypes": ["Ingress"]}));
    audited["metadata"]["annotations"] = json!({"ringfence.io/enforcement": "audit"});
    stage.write_objects("audited.json", &[audited]);
    let mut agent = start(&stage);
    serve(&stage, OTHER[0], 80);
    exchange(&stage, WEB[0], OTHER[0], 80, 10);
    let found = agent.until("the connection that would be denied", |_| {
        let found = records(&stage, "?verdict=would-deny");
        (!found.is_empty()).then_some(found)
    });
    assert_eq!(sum(&found, "/connections/started"), 1);
    let ingress = &found[0]["ingress"];
    assert_eq!((&ingress["verdict"], &ingress["pending"][0]["name"]), (&json!("would-deny"), &json!("nobody")));
    assert_eq!(ingress["enforced"], json!([]));
}

#[test]
fn agent_without_flows_names_the_flag() {
    let stage = stage();
    let _agent = stage.start_on_manifests();
    let answer = ask_socket(&stage.run_dir(), "/v1/flows");
    assert_eq!(answer.status, 404);
    assert!(answer.body.contains("--flows on"), "{}", answer.body);
}

#[test]
fn pods_on_the_host_network_are_their_node() {
    let stage = stage();
    let mut proxy = pod("proxy", "node-b", "app=proxy", &[OUTSIDE[0]]);
    proxy["spec"]["hostNetwork"] = json!(true);
    stage.write_objects("proxy.json", &[proxy]);
    let mut agent = start(&stage);
    serve(&stage, OTHER[0], 80);
    exchange(&stage, OUTSIDE[0], OTHER[0], 80, 10);
    let found = agent.until("the connection of the node", |_| {
        let found = records(&stage, "?peer=node-b");
        (!found.is_empty()).then_some(found)
    });
    assert_eq!((&found[0]["source"]["kind"], &found[0]["source"]["name"]), (&json!("node"), &json!("node-b")));
}
