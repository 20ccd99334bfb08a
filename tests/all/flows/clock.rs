//! A wall clock that is set back and forward while there are connections: each counts once, and windows stay in order.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kit::agent_process::{AgentProcess, WITHIN, ended, ringfence};
use serde_json::Value;
use tests::fake_clock::FakeClock;

use super::filters::window_end;
use super::{PORT, balances, conntrack, coverage, exchange, records, serve, start_with_clock, sum, write_setting};
use crate::drops::{DB, WEB, stage};
use crate::stage::Stage;

/// Connections in each phase: before the clock is set back, until it is set forward, and afterwards.
const CONNECTIONS: u64 = 5;

/// Much more than a window, and less than the retention of records.
const BACK_SECONDS: i64 = -1_000;
const FORWARD_SECONDS: i64 = 100;

/// The kernel removes the entry of a closed connection after this time.
const FORGOTTEN_AFTER_SECONDS: u64 = 5;

const BETWEEN_LISTINGS: Duration = Duration::from_secs(1);

fn connect_and_count(stage: &Stage, agent: &mut AgentProcess, total: u64) {
    for _ in 0..CONNECTIONS {
        exchange(stage, WEB[0], DB[0], PORT, 1000);
    }
    agent.until("the connections are recorded", |_| {
        let started = sum(&records(stage, "?protocol=tcp"), "/connections/started");
        let figures = coverage(stage);
        assert!(started <= total && balances(&figures), "{started} {figures}");
        (started == total && figures["started"] == total).then_some(())
    });
}

fn problems(stage: &Stage) -> String {
    coverage(stage)["problems"].to_string()
}

/// Number of TCP bytes that the node has forwarded.
fn forwarded(stage: &Stage) -> u64 {
    let text = stage.nft("list chain inet observer forward");
    text.split("bytes ").nth(1).and_then(|rest| rest.split_whitespace().next()?.parse().ok()).expect("a counter")
}

#[test]
fn explain_counts_open_connection_once_after_jumps() {
    let (stage, clock) = (stage(), FakeClock::new());
    let mut agent = start_with_clock(&stage, &clock);
    serve(&stage, DB[0], PORT);
    let (from, to): (IpAddr, IpAddr) = (WEB[0].parse().unwrap(), DB[0].parse().unwrap());
    let open = stage.lab.in_namespace_of(from, || TcpStream::connect(SocketAddr::new(to, PORT)).unwrap());
    clock.set(FORWARD_SECONDS);
    agent.until("windows are closed", |agent| (agent.metric("ringfence_flow_records") >= 3).then_some(()));
    // The closed windows are now ahead of the clock.
    clock.set(0);
    agent.until("the problem is said", |_| problems(&stage).contains("the clock was set back").then_some(()));
    let explain = ["explain", "shop/web", "shop/db", "5432", "--run-dir"];
    let explained = ended(ringfence().args(explain).arg(stage.run_dir())).stdout;
    assert!(explained.contains("1 connections") && explained.contains(" 1 open,"), "{explained}");
    drop(open);
}

#[test]
fn clock_jumps_count_each_connection_once() {
    let stage = stage();
    stage.nft("add table inet observer");
    stage.nft("add chain inet observer forward { type filter hook forward priority 300; policy accept; }");
    stage.nft("add rule inet observer forward meta l4proto tcp counter");
    let clock = FakeClock::new();
    let mut agent = start_with_clock(&stage, &clock);
    write_setting(&stage, "nf_conntrack_tcp_timeout_time_wait", FORGOTTEN_AFTER_SECONDS);
    let mut follower = UnixStream::connect(stage.run_dir().join("agent.sock")).unwrap();
    follower.set_read_timeout(Some(WITHIN)).unwrap();
    follower.write_all(b"GET /v1/flows?follow=true HTTP/1.0\r\nhost: ringfence\r\n\r\n").unwrap();
    // A server serves one client at a time.
    DB.into_iter().for_each(|db| serve(&stage, db, PORT));
    let (from, to): (IpAddr, IpAddr) = (WEB[1].parse().unwrap(), DB[1].parse().unwrap());
    let connect = || TcpStream::connect(SocketAddr::new(to, PORT)).unwrap();
    let mut open = stage.lab.in_namespace_of(from, connect);
    open.write_all(&[7; 5_000]).unwrap();
    connect_and_count(&stage, &mut agent, 1 + CONNECTIONS);

    clock.set(BACK_SECONDS);
    agent.until("the problem is said", |_| problems(&stage).contains("the clock was set back").then_some(()));
    open.write_all(&[7; 5_000]).unwrap();
    connect_and_count(&stage, &mut agent, 1 + 2 * CONNECTIONS);

    clock.set(FORWARD_SECONDS);
    agent.until("there is no problem", |_| (problems(&stage) == "[]").then_some(()));
    open.write_all(&[7; 5_000]).unwrap();
    connect_and_count(&stage, &mut agent, 1 + 3 * CONNECTIONS);
    open.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    open.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), 15_000);
    drop(open);

    let total = 1 + 3 * CONNECTIONS;
    let mut listed = Instant::now();
    let found = agent.until("every connection has ended", |_| {
        if listed.elapsed() > BETWEEN_LISTINGS {
            conntrack(&stage, &["-L"]);
            listed = Instant::now();
        }
        let figures = coverage(&stage);
        assert!(balances(&figures) && figures["lost"] == 0, "{figures}");
        (figures["ended"] == total).then(|| records(&stage, "?protocol=tcp"))
    });
    let is_in_order = |found: &[Value]| found.iter().map(window_end).collect::<Vec<Timestamp>>().is_sorted();
    assert!(is_in_order(&found), "{found:#?}");
    assert_eq!((sum(&found, "/connections/started"), sum(&found, "/connections/ended")), (total, total));
    assert_eq!(sum(&found, "/sent/bytes") + sum(&found, "/received/bytes"), forwarded(&stage), "{found:#?}");

    // Closes the window with the last ended connections.
    clock.set(2 * FORWARD_SECONDS);
    let mut followed = Vec::new();
    for line in BufReader::new(follower).lines().map(Result::unwrap).filter(|line| line.starts_with('{')) {
        followed.push(serde_json::from_str::<Value>(&line).unwrap());
        if sum(&followed, "/connections/ended") == total {
            break;
        }
    }
    assert!(is_in_order(&followed), "{followed:#?}");
    assert_eq!(sum(&followed, "/connections/started"), total);
}
