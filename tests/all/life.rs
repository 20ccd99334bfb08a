//! No moment of a node's life is unprotected: a prober runs while agents die, begin, change and fail.

// Killed at any moment, and begun again.
mod kills;
// The table of another release.
mod versions;
// An address that another pod takes over.
mod takeover;
// What a failure around the agent does, and does not.
mod failures;
// What is left out of a ruleset is denied.
mod left_out;
// The rules come back, however many they are.
mod size;
// No clock that jumps.
mod clocks;

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};
use tests::agent_process::AgentProcess;
use tests::prober::{Flow, Probing, Seen, Way};

use crate::stage::{NODE, Stage, ingress, namespace, pod, policy, state_of};

const CLIENT: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
const SERVER: [&str; 2] = ["10.1.0.2", "fd00:1::2"];
const STRANGER: [&str; 2] = ["10.1.0.3", "fd00:1::3"];

/// No flow that lives is silent for so long. A packet that is lost comes again after 200 ms, and twice as late each
/// time; a machine that has other things to do takes its time as well. A flow that is cut is silent for good.
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

/// A policy that lets pods with these labels reach pods of an app, and nothing else.
fn egress(name: &str, from: &str, to: &str) -> Value {
    let peers = json!([{"podSelector": {"matchLabels": {"app": to}}}]);
    policy(name, from, json!({"policyTypes": ["Egress"], "egress": [{"to": peers}]}))
}

/// The server answers the client only, and the client asks the server only.
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

/// Flows of the stranger that the present policies allow: to be cut.
fn flows_to_cut(stage: &Stage) -> Vec<Flow> {
    let mut flows: Vec<Flow> = STRANGER.iter().zip(SERVER).map(|(c, s)| Flow::udp(&stage.lab, c, s)).collect();
    for flow in &mut flows {
        Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
    }
    flows
}

/// Writes the manifests and lets the flows go, one to be cut and the others to live. The table may be anybody's, as
/// long as it enforces.
fn probe<'a>(stage: &'a Stage, mut cut: Vec<Flow>) -> Probing<'a> {
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
    Probing::start(&stage.lab, &denied, cut, alive)
}

/// An agent that enforces [`objects`], and a prober at work, with flows that were allowed before.
fn probed<'a>(stage: &'a Stage, owner: &str) -> (AgentProcess<'a>, Probing<'a>) {
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

/// Nothing that is denied has arrived, and nothing that is allowed has stopped.
#[track_caller]
fn assert_protected(probing: Probing) -> Seen {
    let seen = probing.end();
    println!("{seen:?}");
    assert_eq!(seen.leaked, Vec::<String>::new());
    assert!(seen.longest_gap < SILENCE, "{seen:?}");
    seen
}
