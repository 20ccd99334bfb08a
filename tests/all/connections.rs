//! Open connections under changing policies (semantics 17), through a real agent that watches an API server.

// What is not allowed any more is dead, in both directions.
mod cut;
// What stays allowed is not disturbed.
mod kept;
// The numbers of generations come again; approvals do not.
mod generations;

use serde_json::Value;
use tests::agent_process::AgentProcess;
use tests::fake_api::FakeApi;

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

/// Whom the server's policy lets in.
fn server_from(app: &str) -> Value {
    ingress("server", "app=server", &format!("app={app}"))
}

/// A server with the pods and these objects.
fn api(stage: &Stage, objects: &[Value]) -> FakeApi {
    let api = stage.api();
    set_all(&api, &pods());
    set_all(&api, objects);
    api
}

/// Makes a change that takes one transaction, and waits until it has taken place.
#[track_caller]
fn commit(agent: &mut AgentProcess, change: impl FnOnce()) {
    let before = agent.metric("ringfence_commits_total");
    change();
    agent.until("a commit", |agent| (agent.metric("ringfence_commits_total") > before).then_some(()));
}

/// Sets an object, which takes one transaction.
#[track_caller]
fn set(agent: &mut AgentProcess, api: &FakeApi, object: Value) {
    commit(agent, || set_all(api, &[object]));
}
