use std::collections::BTreeMap;
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use kit::agent_process::{AgentProcess, until};
use kit::fake_api::Kind as ContextKind;
use kit::fake_api::{FakeApi, Verb};
use kit::netns::in_new_namespace;
use nfnetlink::PacketLog;
use serde_json::{Value, json};

use super::{PORT, coverage, exchange, records, serve, start_command, sum};
use crate::drops::{DB, OTHER, WEB, db_from_web, pods, stage};
use crate::stage::{Stage, set_all};

const CLUSTER_ADDRESS: &str = "10.96.0.10";

/// A second port of the Service, with the same target port.
const KEPT_PORT: u16 = 15433;

/// Resource versions of a server that replaces another continue after that one's last.
const LATER_VERSION: u64 = 1_000_000;

fn service(name: &str) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"clusterIP": CLUSTER_ADDRESS, "clusterIPs": [CLUSTER_ADDRESS],
                 "ports": [{"name": "postgres", "port": 15432, "protocol": "TCP"},
                           {"name": "kept", "port": KEPT_PORT, "protocol": "TCP"}]},
    })
}

fn fill(api: &FakeApi, service_name: &str) {
    set_all(api, &pods());
    api.set(ContextKind::Service, service(service_name));
}

/// The pods of [`stage`] and the Service `database`, which leads to `db`.
fn scene() -> (Stage, FakeApi) {
    let stage = stage();
    let api = stage.api();
    fill(&api, "database");
    stage.nft("add table ip services");
    stage.nft("add chain ip services prerouting { type nat hook prerouting priority dstnat; }");
    let ports = format!("{{ 15432, {KEPT_PORT} }}");
    let rule = format!("ip daddr {CLUSTER_ADDRESS} tcp dport {ports} dnat to {}:{PORT}", DB[0]);
    stage.nft(&format!("add rule ip services prerouting {rule}"));
    serve(&stage, DB[0], PORT);
    (stage, api)
}

fn start<'a>(stage: &'a Stage, api: &FakeApi) -> AgentProcess<'a> {
    start_command(stage, stage.agent_on_api(api))
}

/// Numbers of connections by their Service; `None` without one.
fn connections(stage: &Stage) -> BTreeMap<Option<String>, u64> {
    let mut counts = BTreeMap::new();
    for record in records(stage, "?protocol=tcp") {
        assert_eq!((&record["source"]["name"], &record["destination"]["name"]), (&json!("web"), &json!("db")));
        let name = record["service"]["name"].as_str().map(String::from);
        *counts.entry(name).or_default() += record["connections"]["started"].as_u64().unwrap();
    }
    counts
}

/// Connects to the Service, and returns its recorded name.
#[track_caller]
fn connect(stage: &Stage) -> Option<String> {
    let before = connections(stage);
    exchange(stage, WEB[0], CLUSTER_ADDRESS, 15432, 10);
    until("the connection is recorded", || {
        let (name, _) = connections(stage).into_iter().find(|(name, count)| before.get(name).unwrap_or(&0) < count)?;
        Some(name)
    })
}

#[track_caller]
fn until_named(stage: &Stage, agent: &mut AgentProcess, name: &str) {
    agent.until(name, |_| (connect(stage).as_deref() == Some(name)).then_some(()));
}

fn problems(stage: &Stage) -> String {
    coverage(stage)["problems"].to_string()
}

#[test]
fn missing_rights_leave_flows_without_services() {
    let (stage, api) = scene();
    api.faults(|faults| {
        for kind in [ContextKind::Service, ContextKind::EndpointSlice] {
            faults.refuse(kind, &[Verb::List, Verb::Watch], 403);
        }
    });
    let mut agent = start(&stage, &api);
    for resource in ["services", "endpointslices"] {
        agent.until_logged(&["flow records may lack Services", "RBAC", resource]);
        agent.until("the problem is said", |_| problems(&stage).contains(resource).then_some(()));
    }
    assert_eq!(connect(&stage), None);
    assert_eq!(agent.get("/readyz").status, 200, "enforcement needs no Services");
    api.faults(|faults| faults.refusals.clear());
    until_named(&stage, &mut agent, "database");
    agent.until("there is no problem", |_| (problems(&stage) == "[]").then_some(()));
}

#[test]
fn denied_connection_has_the_service_that_was_asked() {
    let (stage, api) = scene();
    set_all(&api, &[db_from_web()]);
    let mut agent = start(&stage, &api);
    until_named(&stage, &mut agent, "database");
    stage.lab.in_namespace_of(OTHER[0].parse().unwrap(), || {
        let service = (CLUSTER_ADDRESS.parse::<IpAddr>().unwrap(), KEPT_PORT).into();
        assert!(TcpStream::connect_timeout(&service, Duration::from_millis(200)).is_err());
    });
    let denied = agent.until("the denied packet is recorded", |_| records(&stage, "?verdict=denied").pop());
    assert_eq!((&denied["source"]["name"], &denied["destination"]["name"]), (&json!("other"), &json!("db")));
    // Only the conntrack entry has the original destination of a denied packet, and not every kernel shows it.
    let shows_connections = in_new_namespace(|| PacketLog::open(1, 128).unwrap().shows_connections());
    let expected = match shows_connections {
        true => json!({"namespace": "shop", "name": "database", "portName": "kept", "port": KEPT_PORT}),
        false => Value::Null,
    };
    assert_eq!((&denied["service"], &denied["port"]), (&expected, &json!(PORT)), "{denied:#}");
    assert_eq!((&denied["egress"]["enforcedHere"], &denied["ingress"]["enforcedHere"]), (&json!(true), &json!(true)));
}

#[test]
fn expired_versions_of_services_are_listed_again() {
    for gone_as_status in [false, true] {
        let (stage, api) = scene();
        api.faults(|faults| faults.gone_as_status = gone_as_status);
        let mut agent = start(&stage, &api);
        until_named(&stage, &mut agent, "database");
        api.faults(|faults| faults.refuse(ContextKind::Service, &[Verb::Watch], 503));
        api.cut_connections();
        agent.until_logged(&["flow records may lack Services", "503"]);
        api.remove(ContextKind::Service, "shop", "database");
        api.set(ContextKind::Service, service("renamed"));
        api.compact();
        assert_eq!(connect(&stage).as_deref(), Some("database"), "what is known stays");
        api.faults(|faults| faults.refusals.clear());
        until_named(&stage, &mut agent, "renamed");
    }
}

#[test]
fn restarted_api_server_renews_services() {
    let (stage, api) = scene();
    let mut agent = start(&stage, &api);
    until_named(&stage, &mut agent, "database");
    let address = api.address();
    drop(api);
    assert_eq!(connect(&stage).as_deref(), Some("database"), "what is known stays");
    let api = stage.lab.node_exec(crate::stage::NODE, || FakeApi::start_again(address, LATER_VERSION));
    fill(&api, "renamed");
    until_named(&stage, &mut agent, "renamed");
}

#[test]
fn connection_keeps_the_service_of_its_beginning() {
    let (stage, api) = scene();
    let mut agent = start(&stage, &api);
    let mut name = "database".to_owned();
    until_named(&stage, &mut agent, &name);
    for round in 0..10 {
        exchange(&stage, WEB[0], CLUSTER_ADDRESS, KEPT_PORT, 10);
        // The agent learns of the connection after the Service was renamed.
        api.remove(ContextKind::Service, "shop", &name);
        let renamed = format!("renamed-{round}");
        api.set(ContextKind::Service, service(&renamed));
        until_named(&stage, &mut agent, &renamed);
        let kept = records(&stage, "?protocol=tcp").into_iter().filter(|r| r["service"]["portName"] == "kept");
        let kept: Vec<Value> = kept.filter(|record| record["service"]["name"] == name).collect();
        assert_eq!(sum(&kept, "/connections/started"), 1, "{name}: {kept:#?}");
        name = renamed;
    }
}

#[test]
fn slow_api_server_delays_names_and_no_flow() {
    let (stage, api) = scene();
    api.faults(|faults| faults.delay = Duration::from_secs(1));
    let mut agent = start(&stage, &api);
    until_named(&stage, &mut agent, "database");
    // The server accepts requests and does not answer.
    api.faults(|faults| faults.silent = true);
    api.cut_connections();
    api.set(ContextKind::Service, service("another"));
    assert_eq!(connect(&stage).as_deref(), Some("database"));
    api.faults(|faults| (faults.silent, faults.delay) = (false, Duration::ZERO));
    api.remove(ContextKind::Service, "shop", "database");
    until_named(&stage, &mut agent, "another");
}
