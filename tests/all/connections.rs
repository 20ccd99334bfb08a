//! Open connections when policies change (semantics 17), through a real agent that watches an API server.

// Connections that are not allowed any more are cut in both directions.
mod cut;
// Connections that stay allowed are not disturbed.
mod uninterrupted;
// Generation numbers are reused; approvals are not.
mod generations;

use kit::agent_process::AgentProcess;
use kit::fake_api::FakeApi;
use serde_json::Value;

use crate::stage::{NODE, Stage, ingress, namespace, pod, set_all};

const CLIENT: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
const SERVER: [&str; 2] = ["10.1.0.2", "fd00:1::2"];
const OTHER: [&str; 2] = ["10.1.0.3", "fd00:1::3"];

/// Three pods on one node.
fn stage() -> Stage {
    Stage::with_pods(&[("client", &CLIENT), ("server", &SERVER), ("other", &OTHER)])
}

fn pods() -> [Value; 4] {
    [
        namespace("shop", ""),
        pod("client", NODE, "app=client", &CLIENT),
        pod("server", NODE, "app=server", &SERVER),
        pod("other", NODE, "app=other", &OTHER),
    ]
}

/// A policy that allows ingress to the server from these pods.
fn server_from(app: &str) -> Value {
    ingress("server", "app=server", &format!("app={app}"))
}

/// An API server with the pods and these objects.
fn api(stage: &Stage, objects: &[Value]) -> FakeApi {
    let api = stage.api();
    set_all(&api, &pods());
    set_all(&api, objects);
    api
}

/// Makes a change that takes one transaction, and waits for its commit.
#[track_caller]
fn commit(agent: &mut AgentProcess, change: impl FnOnce()) {
    let before = agent.metric("ringfence_commits_total");
    change();
    agent.until("a commit", |agent| (agent.metric("ringfence_commits_total") > before).then_some(()));
}

/// Upserts an object, which takes one transaction.
#[track_caller]
fn set(agent: &mut AgentProcess, api: &FakeApi, object: Value) {
    commit(agent, || set_all(api, &[object]));
}
