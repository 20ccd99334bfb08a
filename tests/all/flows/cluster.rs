use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kit::provider_process::{Provider, free_port};
use nix::sys::signal::Signal;
use serde_json::Value;
use tests::fake_clock::FakeClock;

use super::{PORT, coverage, exchange, records, serve, start_command, sum};
use crate::drops::{DB, OTHER, WEB, send_datagrams, stage};
use crate::stage::NODE;

/// `terminationGracePeriodSeconds` of the DaemonSet.
const TERMINATION_GRACE: Duration = Duration::from_secs(5);

#[test]
fn agent_delivers_its_records_to_the_aggregator() {
    let stage = stage();
    let address: SocketAddr = free_port();
    let mut command = stage.agent_on_manifests();
    command.args(["--flows", "on", "--flow-server", &format!("http://{address}")]);
    let mut agent = stage.start(command);
    agent.until_ready();
    agent.until("the agent follows connection tracking", |_| coverage(&stage)["since"].is_string().then_some(()));
    serve(&stage, DB[0], PORT);
    exchange(&stage, WEB[0], DB[0], PORT, 1000);
    send_datagrams(&stage, OTHER[0], DB[0], 53, 3);
    agent.until("the problem is reported", |_| {
        let problems = coverage(&stage)["problems"].to_string();
        problems.contains("cannot be sent to the aggregator").then_some(())
    });

    let mut aggregator = Provider::start_aggregator_in(&stage.lab, NODE, address);
    aggregator.until_ready();
    let records = aggregator.until("the records of the connection and of the denied packets", |aggregator| {
        let text = aggregator.get("/v1/flows").body;
        let records: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        (sum(&records, "/connections/started") == 1 && sum(&records, "/deniedPackets") == 3).then_some(records)
    });
    let denied = records.iter().find(|record| record["verdict"] == "denied").unwrap();
    assert_eq!(denied["destinationVerdict"], "denied", "{denied:#}");
    agent.until("the problem is gone", |_| coverage(&stage)["problems"].as_array().unwrap().is_empty().then_some(()));
    let metrics = agent.get("/metrics").body;
    assert!(metrics.contains("ringfence_flow_delivery_failing 0"), "{metrics}");
}

#[test]
fn records_of_open_window_arrive_at_sigterm() {
    let stage = stage();
    let address: SocketAddr = free_port();
    let mut aggregator = Provider::start_aggregator_in(&stage.lab, NODE, address);
    aggregator.until_ready();
    let mut command = stage.agent_on_manifests();
    command.args(["--flow-server", &format!("http://{address}")]);
    let mut agent = start_command(&stage, command);
    serve(&stage, DB[0], PORT);
    exchange(&stage, WEB[0], DB[0], PORT, 1000);
    send_datagrams(&stage, OTHER[0], DB[0], 53, 3);
    agent.until("the agent has the records", |_| {
        let records = records(&stage, "");
        (sum(&records, "/connections/started") == 1 && sum(&records, "/deniedPackets") == 3).then_some(())
    });
    let (status, log) = agent.stop();
    assert_eq!(status.code(), Some(0), "{log}");
    assert_eq!(totals(&aggregator), (1, 3), "{log}");
}

#[test]
fn records_lost_with_an_agent_are_counted() {
    let (stage, clock) = (stage(), FakeClock::new());
    let start = || {
        let mut command = stage.agent_on_manifests();
        command.args(["--flow-server", &format!("http://{}", free_port())]);
        clock.apply(&mut command);
        start_command(&stage, command)
    };
    let undelivered = || {
        let text = std::fs::read_to_string(stage.run_dir().join("undelivered-flow-records")).unwrap_or_default();
        text.trim().parse::<u64>().unwrap_or(0)
    };
    let mut agent = start();
    serve(&stage, DB[0], PORT);
    exchange(&stage, WEB[0], DB[0], PORT, 1000);
    agent.until("the connection is recorded", |_| {
        (sum(&records(&stage, ""), "/connections/started") == 1).then_some(())
    });
    clock.set(20);
    let lost = agent.until("its window is closed", |_| Some(undelivered()).filter(|records| *records > 0));
    agent.signal(Signal::SIGKILL);
    agent.until_ended();
    drop(agent);

    let agent = start();
    assert_eq!(agent.metric("ringfence_flow_delivery_dropped_records_total"), lost);
    exchange(&stage, WEB[0], DB[0], PORT, 1000);
    let began = Instant::now();
    let (status, log) = agent.stop();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(began.elapsed() < TERMINATION_GRACE, "the kubelet would have killed it");
    assert!(log.contains("no aggregator acknowledged them before the end"), "{log}");
    assert!(undelivered() > 0, "the next agent counts them");
}

/// Sums of started connections and denied packets in the records of an aggregator.
fn totals(aggregator: &Provider) -> (u64, u64) {
    let text = aggregator.get("/v1/flows").body;
    let records: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    (sum(&records, "/connections/started"), sum(&records, "/deniedPackets"))
}

#[test]
fn replicas_behind_one_name_have_every_record() {
    let stage = stage();
    let port = free_port().port();
    let replicas = [1, 2].map(|host| SocketAddr::from(([127, 0, 0, host], port)));
    let mut command = stage.agent_with_hosts("127.0.0.1 flows.test\n127.0.0.2 flows.test\n");
    command.args(["--flows", "on", "--flow-server", &format!("dns+http://flows.test:{port}")]);
    let mut agent = stage.start(command);
    agent.until_ready();
    agent.until("the agent follows connection tracking", |_| coverage(&stage)["since"].is_string().then_some(()));
    let start = |address| {
        let mut replica = Provider::start_aggregator_in(&stage.lab, NODE, address);
        replica.until_ready();
        replica
    };
    let [mut first, mut second] = replicas.map(start);
    serve(&stage, DB[0], PORT);
    exchange(&stage, WEB[0], DB[0], PORT, 1000);
    for replica in [&mut first, &mut second] {
        replica.until("its records", |replica| (totals(replica) == (1, 0)).then_some(()));
    }
    assert_eq!(agent.metric("ringfence_flow_delivery_servers"), 2);

    first.kill();
    send_datagrams(&stage, OTHER[0], DB[0], 53, 3);
    second.until("records while the other is away", |replica| (totals(replica) == (1, 3)).then_some(()));
    let mut first = start(replicas[0]);
    first.until("all records after its return", |replica| (totals(replica) == (1, 3)).then_some(()));
    assert_eq!(agent.metric("ringfence_flow_delivery_dropped_records_total"), 0);
}
