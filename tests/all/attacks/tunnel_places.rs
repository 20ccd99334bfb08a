//! Tunnel endpoints: ports and nodes from flags, and Node objects that are added and removed.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use kit::agent_process::{AgentProcess, ringfence};
use kit::fake_api::FakeApi;
use kit::frame::{send_packets, udp_datagram};
use kit::lab::Lab;
use policy::{Kind, TUNNEL_PORTS};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Places, dropped, lab, objects, places, received};
use crate::stage::{NODE, set_all};

const FURTHER_PORT: u16 = 4799;

fn node(name: &str, addresses: [IpAddr; 2]) -> Value {
    let addresses = addresses.map(|address| json!({"type": "InternalIP", "address": address.to_string()}));
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"addresses": addresses}})
}

/// A node that the lab does not have: without any Node object, every address counts as a node's.
fn elsewhere() -> Value {
    node("node-c", ["192.0.2.77", "2001:db8::77"].map(|text| text.parse().expect("an address")))
}

fn agent(run_dir: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = ringfence();
    command.args(["agent", "--node-name", NODE, "--run-dir"]).arg(run_dir).args(arguments);
    command
}

/// Runs an agent on these objects while `work` lasts.
fn enforcing(lab: &Lab, objects: &[Value], arguments: &[&str], work: impl FnOnce()) {
    let folder = TempDir::new().expect("a folder");
    let manifests = folder.path().join("manifests");
    std::fs::create_dir(&manifests).expect("a folder in it");
    let texts: Vec<String> = objects.iter().map(Value::to_string).collect();
    std::fs::write(manifests.join("all.yaml"), texts.join("\n---\n")).expect("a file in it");
    let mut command = agent(&folder.path().join("run"), arguments);
    command.arg("--manifests").arg(&manifests);
    let mut agent = AgentProcess::start(lab, NODE, command);
    agent.until_ready();
    work();
}

/// Whether a datagram of a pod that no policy selects arrives.
fn arrives(lab: &Lab, at: Places, to: IpAddr, port: u16) -> bool {
    let packet = udp_datagram(SocketAddr::new(at.open, 40_000), SocketAddr::new(to, port), b"wrapped");
    received(lab, to, &format!("udp dport {port}"), at.open, &[packet]) == 1
}

#[test]
fn further_tunnel_port_takes_nothing_from_pods() {
    let port = FURTHER_PORT.to_string();
    let lab = lab();
    let mut objects = objects();
    objects.push(node("node-b", places().map(|at| at.router)));
    for (arguments, passes) in [(&[][..], true), (&["--tunnel-port", &port][..], false)] {
        enforcing(&lab, &objects, arguments, || {
            for at in places() {
                assert_eq!(arrives(&lab, at, at.router, FURTHER_PORT), passes, "to a node, {arguments:?}");
                assert!(arrives(&lab, at, at.client, FURTHER_PORT), "to a host, {arguments:?}");
                assert!(!arrives(&lab, at, at.router, TUNNEL_PORTS[0]), "to a usual port, {arguments:?}");
            }
        });
    }
}

#[test]
fn named_range_of_nodes_takes_no_tunnel() {
    let ranges: Vec<String> = places().iter().map(|at| at.router.to_string()).collect();
    let ranges = format!("{}/32,{}/128", ranges[0], ranges[1]);
    let lab = lab();
    let mut objects = objects();
    objects.push(elsewhere());
    for (arguments, passes) in [(&[][..], true), (&["--node-cidr", &ranges][..], false)] {
        enforcing(&lab, &objects, arguments, || {
            for at in places() {
                for port in TUNNEL_PORTS {
                    assert_eq!(arrives(&lab, at, at.router, port), passes, "{port}, {arguments:?}");
                    assert!(arrives(&lab, at, at.client, port), "{port} of a host outside, {arguments:?}");
                }
            }
        });
    }
}

/// All routers of a subnet receive packets to its first address (RFC 4291, section 2.6.1), and nodes are routers.
#[test]
fn anycast_address_of_nodes_takes_no_tunnel() {
    let lab = lab();
    let mut objects = objects();
    let [v4, v6] = ["192.0.2.77", "2001:db8:7::7"].map(|text| text.parse().expect("an address"));
    objects.push(node("node-d", [v4, v6]));
    enforcing(&lab, &objects, &[], || {
        let from = SocketAddr::new(places()[1].open, 40_000);
        for (to, denied) in [("2001:db8:8::", 0), ("2001:db8:7::8", 0), ("2001:db8:7::", 1)] {
            let to = SocketAddr::new(to.parse().expect("an address"), TUNNEL_PORTS[0]);
            lab.in_namespace_of(from.ip(), || send_packets(&[udp_datagram(from, to, b"wrapped")]));
            assert_eq!(dropped(&lab, "deny/tunnel"), denied, "{to}");
        }
    });
}

#[test]
fn node_that_joins_is_guarded_until_it_leaves() {
    let lab = lab();
    let folder = TempDir::new().expect("a folder");
    let api: FakeApi = lab.node_exec(NODE, FakeApi::start);
    set_all(&api, &objects());
    set_all(&api, &[elsewhere()]);
    let mut command = agent(&folder.path().join("run"), &[]);
    command.arg("--kubeconfig").arg(api.kubeconfig());
    let mut agent = AgentProcess::start(&lab, NODE, command);
    agent.until_ready();
    let all = |passes: bool| places().iter().all(|at| arrives(&lab, *at, at.router, 8472) == passes).then_some(());
    // The agent does not wait for nodes, and every address counts as a node's while none is known.
    agent.until("the address is that of a host", |_| all(true));
    api.set(Kind::Node, node("node-b", places().map(|at| at.router)));
    agent.until("the new node takes no tunnel", |_| all(false));
    api.remove(Kind::Node, "", "node-b");
    agent.until("the address is that of a host", |_| all(true));
}
