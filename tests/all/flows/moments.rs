//! Records of open connections, and their rules, with and without timestamps of conntrack entries.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use kit::agent_process::AgentProcess;
use serde_json::{Value, json};

use super::{PORT, balances, coverage, exchange, records, serve, start, start_command, sum, write_setting};
use crate::drops::{DB, WEB, stage};
use crate::stage::{Stage, policy};

fn connect(stage: &Stage) -> TcpStream {
    let (from, to): (IpAddr, IpAddr) = (WEB[0].parse().unwrap(), DB[0].parse().unwrap());
    let connect = || TcpStream::connect_timeout(&SocketAddr::new(to, PORT), Duration::from_secs(10)).unwrap();
    stage.lab.in_namespace_of(from, connect)
}

fn allowing(name: &str) -> Value {
    policy(name, "app=db", json!({"ingress": [{"ports": [{"port": PORT}]}]}))
}

#[test]
fn reader_gets_connections_that_have_just_begun() {
    let stage = stage();
    let _agent = start(&stage);
    serve(&stage, DB[0], PORT);
    let mut open = Vec::new();
    for count in 1..=3 {
        open.push(connect(&stage));
        // One request suffices: the response has every connection from before it.
        let found = records(&stage, "?protocol=tcp");
        assert_eq!(sum(&found, "/connections/started"), count, "{found:#?}");
    }
}

#[test]
fn open_connection_keeps_the_policy_that_allowed_it() {
    let stage = stage();
    let mut agent = start(&stage);
    serve(&stage, DB[0], PORT);
    let replace_policy = |agent: &mut AgentProcess<'_>, name: &str| {
        let commits = agent.metric("ringfence_commits_total");
        stage.write_objects("policies.json", &[allowing(name)]);
        agent
            .until("the policy is in force", |agent| (agent.metric("ringfence_commits_total") > commits).then_some(()));
    };
    for round in 0..10 {
        let policy = format!("round-{round}");
        replace_policy(&mut agent, &policy);
        let open = connect(&stage);
        // The agent learns of the connection only after another policy is in force.
        replace_policy(&mut agent, &format!("after-{round}"));
        drop(open);
        agent.until("the connection", |_| {
            let found = records(&stage, &format!("?protocol=tcp&policy=shop/{policy}"));
            (sum(&found, "/connections/started") == 1).then_some(())
        });
    }
}

#[test]
fn agent_without_accounting_records_connections_without_volume() {
    let stage = stage();
    let mut agent = start_command(&stage, stage.agent_with_read_only_sysctls());
    serve(&stage, DB[0], PORT);
    exchange(&stage, WEB[0], DB[0], PORT, 1000);
    let found = agent.until("the connection", |_| {
        let found = records(&stage, "?protocol=tcp");
        (sum(&found, "/connections/started") == 1).then_some(found)
    });
    assert_eq!(found[0]["ingress"]["verdict"], "allowed", "{found:#?}");
    assert!(found.iter().all(|r| r["sent"].is_null() && r["received"].is_null()), "{found:#?}");
    assert!(sum(&found, "/unknownVolume") > 0, "{found:#?}");
}

#[test]
fn agent_without_conntrack_events_records_listed_connections() {
    let stage = stage();
    write_setting(&stage, "nf_conntrack_events", 0);
    let mut agent = start(&stage);
    serve(&stage, DB[0], PORT);
    let mut open = connect(&stage);
    open.write_all(&[7; 5_000]).unwrap();
    let found = agent.until("the open connection with its volume", |_| {
        let found = records(&stage, "?protocol=tcp");
        (sum(&found, "/sent/bytes") > 5_000).then_some(found)
    });
    assert_eq!(sum(&found, "/connections/started"), 1, "{found:#?}");
    assert_eq!(found[0]["ingress"]["verdict"], "allowed", "{found:#?}");
    let figures = coverage(&stage);
    assert!(figures["problems"].to_string().contains("net.netfilter.nf_conntrack_events is 0"), "{figures}");
    assert!(balances(&figures) && figures["live"] == 1, "{figures}");
    agent.until_logged(&["net.netfilter.nf_conntrack_events is 0", "sysctl -w"]);
}
