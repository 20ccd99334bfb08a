//! Denied packets are reported with names, immediately, and counted exactly: a real agent, and real packets.

// Names of both ends, and the deciding policies.
mod named;
// The kernel's log group, next to groups of other programs.
mod groups;
// More denied packets than can be reported.
mod flood;
// `ringfence drops`.
mod verb;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use kit::agent_process::{AgentProcess, ask_socket};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, connect, socket};
use serde_json::{Value, json};

use crate::stage::{NODE, Stage, namespace, pod, policy};

pub(crate) const WEB: [&str; 2] = ["10.1.0.1", "fd00:1::1"];
pub(crate) const DB: [&str; 2] = ["10.1.0.2", "fd00:1::2"];
pub(crate) const OTHER: [&str; 2] = ["10.1.0.3", "fd00:1::3"];
pub(crate) const OUTSIDE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Three pods on one node; only `web` may reach `db`, at one port.
pub(crate) fn stage() -> Stage {
    let stage = Stage::with_pods(&[("shop/web", &WEB), ("shop/db", &DB), ("shop/other", &OTHER)]);
    stage.write_objects("pods.json", &pods());
    stage.write_objects("policies.json", &[db_from_web()]);
    stage
}

pub(crate) fn pods() -> Vec<Value> {
    let named = |name: &str, addresses: &[&str]| pod(name, NODE, &format!("app={name}"), addresses);
    vec![namespace("shop", ""), named("web", &WEB), named("db", &DB), named("other", &OTHER)]
}

pub(crate) fn db_from_web() -> Value {
    let web = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
    policy("db", "app=db", json!({"ingress": [{"from": web, "ports": [{"port": 5432}]}]}))
}

/// Sends this many datagrams from one socket.
pub(crate) fn send_datagrams(stage: &Stage, from: &str, to: &str, port: u16, number: usize) {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    stage.lab.in_namespace_of(from, || {
        let socket = UdpSocket::bind((from, 0)).unwrap();
        (0..number).for_each(|_| assert!(socket.send_to(b"hello", (to, port)).is_ok()));
    });
}

/// Opens this many connections and gives up each after its first packet.
pub(crate) fn send_syns(stage: &Stage, from: &str, to: &str, port: u16, number: usize) {
    let (from, to): (IpAddr, IpAddr) = (from.parse().unwrap(), to.parse().unwrap());
    let family = if to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    stage.lab.in_namespace_of(from, || {
        for _ in 0..number {
            let client = socket(family, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
            let started = connect(client.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(to, port)));
            assert_eq!(started, Err(Errno::EINPROGRESS));
        }
    });
}

/// The agent's drop events for these query parameters.
pub(crate) fn drop_events(stage: &Stage, parameters: &str) -> Vec<Value> {
    let answer = ask_socket(&stage.run_dir(), &format!("/v1/drops{parameters}"));
    assert_eq!(answer.status, 200, "{}", answer.body);
    lines(&answer.body)
}

/// One JSON object per line; in a chunked response (RFC 9112, section 7.1) the lines that begin one.
fn lines(text: &str) -> Vec<Value> {
    text.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The events about traffic to the pod, as soon as the sum of their counts is reached.
#[track_caller]
pub(crate) fn until_reported(
    stage: &Stage,
    agent: &mut AgentProcess,
    to_pod: &str,
    traffic: &str,
    packets: u64,
) -> Vec<Value> {
    agent.until(&format!("{packets} packets of {traffic} to {to_pod} are reported"), |_| {
        let events = events_to(stage, to_pod, traffic);
        (sum(&events) >= packets).then_some(events)
    })
}

pub(crate) fn events_to(stage: &Stage, to_pod: &str, traffic: &str) -> Vec<Value> {
    let mut events = drop_events(stage, "");
    events.retain(|event| event["destination"]["pod"] == to_pod && event["traffic"] == traffic);
    events
}

pub(crate) fn sum(events: &[Value]) -> u64 {
    events.iter().map(|event| event["count"].as_u64().unwrap()).sum()
}

pub(crate) fn status(stage: &Stage) -> Value {
    serde_json::from_str(&ask_socket(&stage.run_dir(), "/v1/status").body).unwrap()
}
