use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::time::{Duration, Instant};

use kit::agent_process::AgentProcess;
use kit::connection_load::{ConnectionLoad, send_first_packets};
use kit::netdev_backlog::lost_packets;
use serde_json::{Value, json};

use super::ulogd::Ulogd;
use super::{PORT, balances, conntrack, coverage, records, start, sum, write_setting};
use crate::drops::{DB, OTHER, WEB, stage};
use crate::stage::Stage;

/// Number of connections unless the variable sets it: half of them in each family, and half of them denied.
const CONNECTIONS: u32 = 8_000;
const CONNECTIONS_VARIABLE: &str = "FLOW_CONNECTIONS";

/// Source ports of a family: each connection has its own, so that other programs, too, can distinguish every conntrack
/// entry from all others.
const FIRST_PORT: u16 = 1_100;
const MOST_CONNECTIONS: u32 = 4 * 64_000;

/// How long the agent is stopped, per connection: 60 s for 200,000.
const STANDSTILL: Duration = Duration::from_micros(300);

/// The kernel removes the entry of a closed connection after this time. TCP retransmits earlier.
const FORGOTTEN_AFTER_SECONDS: u64 = 5;

const BETWEEN_LISTINGS: Duration = Duration::from_secs(1);

/// Time limit for reading everything after the stop.
const WITHIN: Duration = Duration::from_secs(240);

const TARGETS: [&str; 2] = ["10.96.0.10", "fd00:96::10"];
const TARGET_PORT: u16 = 15432;

/// Counters in the path of forwarded packets: all before the agent's rules, and after them those of either direction.
fn count_forwarded(stage: &Stage) {
    stage.nft("add table inet observer");
    for counter in ["asked", "sent", "received"] {
        stage.nft(&format!("add counter inet observer {counter}"));
    }
    stage.nft("add chain inet observer before { type filter hook forward priority -300; }");
    stage.nft("add rule inet observer before meta l4proto tcp counter name asked");
    stage.nft("add chain inet observer after { type filter hook forward priority 300; }");
    stage.nft("add rule inet observer after meta l4proto tcp ct direction original counter name sent");
    stage.nft("add rule inet observer after meta l4proto tcp ct direction reply counter name received");
    stage.nft("add chain inet observer nat { type nat hook prerouting priority dstnat; }");
    for ((family, target), to) in ["ip", "ip6"].iter().zip(TARGETS).zip([DB[0].to_owned(), format!("[{}]", DB[1])]) {
        let rule = format!("{family} daddr {target} tcp dport {TARGET_PORT} dnat {family} to {to}:{PORT}");
        stage.nft(&format!("add rule inet observer nat {rule}"));
    }
}

/// Packets and bytes.
fn counted(stage: &Stage, counter: &str) -> [u64; 2] {
    let text = stage.nft(&format!("list counter inet observer {counter}"));
    ["packets ", "bytes "].map(|name| {
        let number = text.split(name).nth(1).and_then(|rest| rest.split_whitespace().next());
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{text}"))
    })
}

fn recorded(found: &[Value], direction: &str) -> [u64; 2] {
    ["packets", "bytes"].map(|name| sum(found, &format!("/{direction}/{name}")))
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn connections() -> u32 {
    let wanted = match std::env::var(CONNECTIONS_VARIABLE) {
        Ok(text) => text.parse().unwrap_or_else(|e| panic!("{CONNECTIONS_VARIABLE}={text}: {e}")),
        Err(_) => CONNECTIONS,
    };
    assert!(wanted <= MOST_CONNECTIONS, "{CONNECTIONS_VARIABLE} is {MOST_CONNECTIONS} at most");
    wanted
}

/// The n-th of three parts of a family's source ports.
fn part(ports: &Range<u16>, n: u16) -> Range<u16> {
    let third = ports.len() as u16 / 3;
    let begin = ports.start + n * third;
    begin..if n == 2 { ports.end } else { begin + third }
}

/// Opens the allowed and the denied connections of both families from a part of the ports.
fn connect(stage: &Stage, loads: &[ConnectionLoad; 2], ports: Range<u16>) {
    std::thread::scope(|scope| {
        for (family, load) in loads.iter().enumerate() {
            let ports = ports.clone();
            scope.spawn(move || {
                let target = SocketAddr::new(address(TARGETS[family]), TARGET_PORT);
                load.exchange(&stage.lab, ports.clone());
                send_first_packets(&stage.lab, address(OTHER[family]), target, ports);
            });
        }
    });
}

/// The number of denied packets, from the records and from the metrics of packets that are not in records.
fn denied(stage: &Stage, agent: &AgentProcess) -> u64 {
    sum(&records(stage, "?verdict=denied"), "/deniedPackets")
        + agent.metric("ringfence_drops_unnamed_packets")
        + agent.metric("ringfence_flow_dropped_denials_total")
}

#[test]
fn sums_of_many_connections_equal_the_counters() {
    let stage = stage();
    count_forwarded(&stage);
    let mut agent = start(&stage);
    write_setting(&stage, "nf_conntrack_tcp_timeout_time_wait", FORGOTTEN_AFTER_SECONDS);
    let ulogd = Ulogd::start(&stage);
    let loads = [0, 1].map(|family| {
        let target = SocketAddr::new(address(TARGETS[family]), TARGET_PORT);
        ConnectionLoad::new(&stage.lab, address(WEB[family]), target, SocketAddr::new(address(DB[family]), PORT))
    });
    let wanted = connections();
    let ports = FIRST_PORT..FIRST_PORT + (wanted / 4) as u16;
    let total = 2 * ports.len() as u64;

    let lost_before = lost_packets();
    let began = Instant::now();
    connect(&stage, &loads, part(&ports, 0));
    agent.hang();
    let standstill = Instant::now();
    connect(&stage, &loads, part(&ports, 1));
    let loaded = standstill.elapsed();
    std::thread::sleep((STANDSTILL * wanted).saturating_sub(standstill.elapsed()));
    conntrack(&stage, &["-L"]);
    agent.resume();
    let stood = standstill.elapsed();
    connect(&stage, &loads, part(&ports, 2));
    println!(
        "{wanted} connections in {:?}; the agent stood still for {stood:?}, with connections for {loaded:?}",
        began.elapsed()
    );

    let began = Instant::now();
    let mut listed = began;
    let figures = agent.until_within(WITHIN, "every connection has ended", |_| {
        if listed.elapsed() > BETWEEN_LISTINGS {
            conntrack(&stage, &["-L"]);
            listed = Instant::now();
        }
        let figures = coverage(&stage);
        let figure = |name: &str| figures[name].as_u64().unwrap();
        assert!(balances(&figures), "{figures}");
        assert!(figure("started") <= total, "{figures}");
        (figure("started") == total && figure("live") == 0).then_some(figures)
    });
    println!("everything was read after {:?}: {figures}", began.elapsed());
    assert_eq!((&figures["ended"], &figures["lost"], &figures["untracked"]), (&json!(total), &json!(0), &json!(0)));

    let found = records(&stage, "?verdict=allowed");
    assert_eq!(recorded(&found, "sent"), counted(&stage, "sent"), "packets and bytes that clients sent");
    assert_eq!(recorded(&found, "received"), counted(&stage, "received"), "packets and bytes that clients received");
    assert_eq!((sum(&found, "/connections/ended"), sum(&found, "/unknownVolume")), (total, 0));
    let is_right = |record: &Value| {
        record["source"]["name"] == "web"
            && record["destination"]["name"] == "db"
            && record["ingress"]["enforced"][0]["name"] == "db"
    };
    assert!(found.iter().all(is_right), "{found:#?}");

    let [asked, sent, received] = ["asked", "sent", "received"].map(|counter| counted(&stage, counter)[0]);
    let dropped = asked - sent - received;
    // The machine's backlog may drop packets before any rule counts them.
    assert!(dropped + (lost_packets() - lost_before) >= total, "{dropped}");
    agent.until("the denied packets", |agent| (denied(&stage, agent) == dropped).then_some(()));
    println!(
        "allowed: {sent} and {received} packets; denied: {dropped}, of which {} are in no record",
        dropped - sum(&records(&stage, "?verdict=denied"), "/deniedPackets"),
    );

    let Some(ulogd) = ulogd else {
        println!("not compared with ulogd2, which is not installed (scripts/packages ulogd)");
        return;
    };
    let theirs = ulogd.until_ended(total);
    assert_eq!(theirs, [counted(&stage, "sent"), counted(&stage, "received")], "what ulogd2 says");
}
