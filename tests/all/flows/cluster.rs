use std::net::SocketAddr;

use serde_json::Value;
use tests::provider_process::{Provider, free_port};

use super::{PORT, coverage, exchange, serve, sum};
use crate::drops::{DB, OTHER, WEB, send_datagrams, stage};
use crate::stage::NODE;

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
