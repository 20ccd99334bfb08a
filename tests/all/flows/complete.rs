use std::io::Write as _;

use super::{PORT, balances, coverage, exchange, records, serve, start, sum};
use crate::drops::{DB, WEB, stage};

#[test]
fn connections_during_a_standstill_are_recorded() {
    let stage = stage();
    let mut agent = start(&stage);
    serve(&stage, DB[0], PORT);
    exchange(&stage, WEB[0], DB[0], PORT, 100);
    agent.hang();
    for _ in 0..200 {
        exchange(&stage, WEB[0], DB[0], PORT, 100);
    }
    agent.resume();
    agent.until("all connections are recorded", |_| {
        let figures = coverage(&stage);
        assert!(balances(&figures), "{figures}");
        (figures["started"] == 201).then_some(())
    });
    let found = records(&stage, "?protocol=tcp");
    assert_eq!(sum(&found, "/connections/started"), 201);
    assert!(found.iter().all(|record| record["ingress"]["enforced"][0]["name"] == "db"), "{found:#?}");
}

#[test]
fn restarted_agent_follows_open_connections() {
    let stage = stage();
    let agent = start(&stage);
    serve(&stage, DB[0], PORT);
    let (from, to) = (WEB[0].parse().unwrap(), (DB[0], PORT));
    let mut client = stage.lab.in_namespace_of(from, || std::net::TcpStream::connect(to).unwrap());
    client.write_all(&[7; 5_000]).unwrap();
    agent.stop();
    let mut agent = start(&stage);
    agent.until("the open connection is found", |_| (coverage(&stage)["live"] == 1).then_some(()));
    // No agent has measured the bytes sent so far.
    let found = records(&stage, "?protocol=tcp");
    assert_eq!(sum(&found, "/unknownVolume"), 1, "{found:#?}");
    client.write_all(&[7; 3_000]).unwrap();
    drop(client);
    // Bytes sent before the restart are not counted again.
    let bytes = agent.until("what was sent since is recorded", |_| {
        let bytes = sum(&records(&stage, ""), "/sent/bytes");
        (bytes >= 3_000).then_some(bytes)
    });
    assert!(bytes < 5_000, "{bytes}");
    assert!(balances(&coverage(&stage)));
}

#[test]
fn metrics_balance_in_every_scrape() {
    let stage = stage();
    let mut agent = start(&stage);
    serve(&stage, DB[0], PORT);
    for _ in 0..20 {
        exchange(&stage, WEB[0], DB[0], PORT, 100);
        let text = agent.get("/metrics").body;
        let figure = |name: &str| -> u64 {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}"));
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        let started = figure("ringfence_flow_connections_started_total");
        let ended = figure("ringfence_flow_connections_ended_total");
        let (live, lost) = (figure("ringfence_flow_connections_live"), figure("ringfence_flow_connections_lost_total"));
        assert_eq!(started, ended + live + lost);
    }
    agent.until("all are counted", |agent| {
        (agent.metric("ringfence_flow_connections_started_total") == 20).then_some(())
    });
}
