//! Enforcement has no gaps: a prober runs while agents are killed, start, change and fail.

// Agents killed at random moments, and restarted.
mod kills;
// The table of another release.
mod versions;
// An address that is reassigned to another pod.
mod takeover;
// Effects of failures around the agent.
mod failures;
// Traffic of elements omitted from a ruleset is denied.
mod left_out;
// A large ruleset is restored after loss.
mod size;
// Clock changes do not affect enforcement.
mod clocks;

use std::net::IpAddr;
use std::time::Duration;

use kit::agent_process::AgentProcess;
use kit::prober::{Flow, ProbeReport, Probes, Way};
use serde_json::{Value, json};

use crate::stage::{NODE, Stage, ingress, namespace, pod, policy, state_of};

const CLIENT: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
const SERVER: [&str; 2] = ["10.1.0.2", "fd00:1::2"];
const STRANGER: [&str; 2] = ["10.1.0.3", "fd00:1::3"];

/// No live flow is silent for so long. A lost packet is retransmitted after 200 ms, and with doubled delay each further
/// time; a busy machine adds further delays. A cut flow stays silent.
const SILENCE: Duration = Duration::from_secs(15);

const FILE: &str = "all.json";

/// Three pods on one node.
fn stage() -> Stage {
    Stage::with_pods(&[("client", &CLIENT), ("server", &SERVER), ("stranger", &STRANGER)])
}

fn pods() -> Vec<Value> {
    vec![
        namespace("shop", ""),
        pod("client", NODE, "app=client", &CLIENT),
        pod("server", NODE, "app=server", &SERVER),
        pod("stranger", NODE, "app=stranger", &STRANGER),
    ]
}

/// A policy that allows egress from pods with these labels to pods of an app only.
fn egress(name: &str, from: &str, to: &str) -> Value {
    let peers = json!([{"podSelector": {"matchLabels": {"app": to}}}]);
    policy(name, from, json!({"policyTypes": ["Egress"], "egress": [{"to": peers}]}))
}

/// The server allows ingress from the client only, and the client egress to the server only.
fn policies() -> Vec<Value> {
    vec![ingress("server", "app=server", "app=client"), egress("client", "app=client", "server")]
}

fn objects() -> Vec<Value> {
    [pods(), policies()].concat()
}

fn start<'a>(stage: &'a Stage, owner: &str) -> AgentProcess<'a> {
    let mut command = stage.agent_on_manifests();
    command.args(["--table-owner", owner]);
    stage.start(command)
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Flows of the stranger that the current policies allow, and that are cut later.
fn flows_to_cut(stage: &Stage) -> Vec<Flow> {
    let mut flows: Vec<Flow> = STRANGER.iter().zip(SERVER).map(|(c, s)| Flow::udp(&stage.lab, c, s)).collect();
    for flow in &mut flows {
        Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
    }
    flows
}

/// Writes the manifests and starts the flows, one to be cut and the others to live. Any owner of the table is accepted
/// as long as the table enforces.
fn probe<'a>(stage: &'a Stage, mut cut: Vec<Flow>) -> Probes<'a> {
    for flow in &mut cut {
        Way::BOTH.into_iter().for_each(|way| flow.assert_dead(&stage.lab, NODE, way));
    }
    let mut alive = Vec::new();
    for (client, server) in CLIENT.into_iter().zip(SERVER) {
        alive.extend([Flow::tcp(&stage.lab, client, server), Flow::udp(&stage.lab, client, server)]);
    }
    let to_server = STRANGER.into_iter().zip(SERVER);
    let from_client = CLIENT.into_iter().zip(STRANGER);
    let denied: Vec<(IpAddr, IpAddr)> = to_server.chain(from_client).map(|(from, to)| (ip(from), ip(to))).collect();
    Probes::start(&stage.lab, &denied, cut, alive)
}

/// An agent that enforces [`objects`], and a running prober, with flows that were allowed before.
fn probed<'a>(stage: &'a Stage, owner: &str) -> (AgentProcess<'a>, Probes<'a>) {
    let open = ingress("open", "app=server", "app=stranger");
    stage.write_objects(FILE, &[objects(), vec![open]].concat());
    let mut agent = start(stage, owner);
    agent.until_ready();
    let cut = flows_to_cut(stage);
    stage.write_objects(FILE, &objects());
    stage.until_enforced(&mut agent, &state_of(&objects()));
    let probing = probe(stage, cut);
    (agent, probing)
}

/// No denied packet has arrived, and no allowed flow has stopped.
#[track_caller]
fn assert_protected(probing: Probes) -> ProbeReport {
    let seen = probing.end();
    println!("{seen:?}");
    assert_eq!(seen.leaked, Vec::<String>::new());
    assert!(seen.longest_gap < SILENCE, "{seen:?}");
    seen
}
