//! A pod that fills the conntrack table: enforcement is unaffected, and lost flow records are counted.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kit::agent_process::AgentProcess;
use kit::connection_load::send_datagrams;
use kit::openmetrics;
use nfnetlink::list_flows;
use serde_json::{Value, json};
use tests::fake_clock::FakeClock;

use super::{
    PORT, WINDOW_SECONDS, balances, conntrack, coverage, exchange, records, serve, start_with_clock, sum, write_setting,
};
use crate::drops::{DB, OTHER, WEB, stage};
use crate::stage::{NODE, Stage, policy};

/// Fill level of the conntrack table in percent: above the 70 at which the agent gives up reliable delivery.
const FILL: u32 = 75;

/// A larger table takes minutes and a gigabyte to fill.
const LARGEST_TABLE: u32 = 1 << 20;

const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 2_000..=65_000;

/// The entries of the flood live as long as the test.
const UDP_TIMEOUT_SECONDS: u64 = 600;

/// A response takes milliseconds; this long means that the flood delays it.
const AT_ONCE: Duration = Duration::from_secs(20);

/// Query for the records of the flood.
const FLOOD: &str = "?workload=shop/web&peer=shop/other&protocol=udp";

/// Short windows, by advancing the agent's clock: each has its own listing, while listings for readers wait ten times
/// as long as the previous one took.
struct Windows {
    clock: FakeClock,
    ahead_seconds: i64,
    set: Instant,
}

impl Windows {
    const LENGTH: Duration = Duration::from_secs(1);

    /// Ends the window if its time is over.
    fn pass(&mut self) {
        if self.set.elapsed() >= Windows::LENGTH {
            self.ahead_seconds += WINDOW_SECONDS;
            self.clock.set(self.ahead_seconds);
            self.set = Instant::now();
        }
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The maximum number of entries, which is set for the machine: a network namespace cannot change it.
fn table_size() -> u32 {
    std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap().trim().parse().unwrap()
}

/// Fills the table from one pod.
fn flood(stage: &Stage, flows: u32) {
    let ports = flows.div_ceil(SOURCE_PORTS.len() as u32) as u16;
    let sources = flows.div_ceil(u32::from(ports)) as u16;
    let sources = *SOURCE_PORTS.start()..=SOURCE_PORTS.start() + sources - 1;
    send_datagrams(&stage.lab, address(WEB[0]), address(OTHER[0]), sources, &(1..=ports));
}

/// Number of conntrack entries of the flood.
fn entries(stage: &Stage) -> u64 {
    stage.lab.node_exec(NODE, || {
        let mut count = 0;
        let is_one = |source, protocol| source == address(WEB[0]) && protocol == 17;
        list_flows(|flow| count += u64::from(is_one(flow.original.source, flow.original.protocol))).unwrap();
        count
    })
}

fn connects(stage: &Stage, from: &str, to: &str) -> bool {
    let target = SocketAddr::new(address(to), PORT);
    let within = Duration::from_millis(300);
    stage.lab.in_namespace_of(address(from), || TcpStream::connect_timeout(&target, within).is_ok())
}

/// The connection metrics of one scrape, which must balance: [started, untracked].
fn scrape(agent: &AgentProcess) -> [u64; 2] {
    let text = agent.get("/metrics").body;
    let families = openmetrics::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let figure = |name: &str| {
        let samples = families.iter().flat_map(|family| &family.samples);
        samples.filter(|sample| sample.name == name).map(|sample| sample.value).sum::<f64>() as u64
    };
    let [started, ended, live, lost, untracked] =
        ["started_total", "ended_total", "live", "lost_total", "untracked_total"]
            .map(|name| figure(&format!("ringfence_flow_connections_{name}")));
    assert_eq!(started, ended + live + lost);
    [started, untracked]
}

/// Checks enforcement during a flood: denied connections stay denied, and policy changes are applied.
fn check_enforcement(stage: &Stage, agent: &mut AgentProcess, is_over: impl Fn() -> bool) {
    let ingress = json!({"ingress": [{"ports": [{"port": PORT}]}]});
    let mut slowest = [Duration::ZERO; 2];
    for (round, is_allowed) in [true, false].into_iter().cycle().enumerate() {
        let began = Instant::now();
        let selects = if is_allowed { "app=db" } else { "app=nobody" };
        stage.write_objects("round.json", &[policy("round", selects, ingress.clone())]);
        agent.until("the policy is in force", |_| (connects(stage, OTHER[0], DB[0]) == is_allowed).then_some(()));
        let changed = began.elapsed();
        assert_eq!(agent.get("/readyz").status, 200);
        scrape(agent);
        let answered = began.elapsed() - changed;
        assert!(changed < AT_ONCE && answered < AT_ONCE, "{changed:?} {answered:?}");
        slowest = [slowest[0].max(changed), slowest[1].max(answered)];
        if !is_allowed && is_over() {
            println!("policies changed {} times; slowest change and scrape: {slowest:?}", round + 1);
            return;
        }
    }
}

#[test]
fn flood_of_connections_loses_ends_and_counts_them() {
    let (stage, size) = (stage(), table_size());
    if size > LARGEST_TABLE {
        println!("not tried: the connection tracking table has room for {size} entries");
        return;
    }
    let mut windows = Windows { clock: FakeClock::new(), ahead_seconds: 0, set: Instant::now() };
    let mut agent = start_with_clock(&stage, &windows.clock);
    agent.until("ends are kept", |_| (coverage(&stage)["reliable"] == true).then_some(()));
    write_setting(&stage, "nf_conntrack_udp_timeout", UDP_TIMEOUT_SECONDS);
    // Clients that a policy cuts off never close their connections, and the other kind of server would wait for them.
    let listener = stage.lab.in_namespace_of(address(DB[0]), || TcpListener::bind((DB[0], PORT)).unwrap());
    std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(drop));
    serve(&stage, DB[1], PORT);
    let began = Instant::now();
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&stage, size / 100 * FILL));
        check_enforcement(&stage, &mut agent, || flood.is_finished());
    });
    println!("{:?}: the flood is over", began.elapsed());

    agent.until("reliable delivery is given up", |agent| {
        scrape(agent);
        (coverage(&stage)["reliable"] == false).then_some(())
    });
    agent.until_logged(&["connection tracking is more than 70% full", "nf_conntrack_max"]);
    assert!(agent.metric("ringfence_flow_reliability_given_up_total") > 0);
    assert_eq!(agent.metric("ringfence_flow_reliable"), 0);
    let flows = entries(&stage);
    assert!(flows * 100 >= u64::from(size) * 70, "{flows} of {size}");
    agent.until("all flows of the flood are recorded", |agent| {
        windows.pass();
        assert_eq!(scrape(agent)[1], 0, "all are tracked");
        (sum(&records(&stage, FLOOD), "/connections/started") == flows).then_some(())
    });
    println!("{:?}: {flows} flows are recorded", began.elapsed());

    agent.hang();
    conntrack(&stage, &["-F"]);
    agent.resume();
    let figures = agent.until("events are lost", |_| {
        let figures = coverage(&stage);
        assert!(balances(&figures), "{figures}");
        (figures["lostEvents"].as_u64() > Some(0) && figures["reliable"] == true).then_some(figures)
    });
    println!("{:?}: {figures}", began.elapsed());
    let connected = |stage: &Stage| sum(&records(stage, "?workload=shop/web&peer=shop/db"), "/connections/started");
    let before = connected(&stage);
    exchange(&stage, WEB[1], DB[1], PORT, 100);
    agent.until("a new connection is recorded", |_| {
        windows.pass();
        (connected(&stage) == before + 1).then_some(())
    });

    // Two listings in a row detect them, and each window has one listing.
    let found = agent.until("connections without an end are lost", |agent| {
        scrape(agent);
        windows.pass();
        let found = records(&stage, FLOOD);
        let gone = sum(&found, "/connections/ended") + sum(&found, "/connections/lost");
        (gone == flows).then_some(found)
    });
    let lost = sum(&found, "/connections/lost");
    let lost_events = agent.metric("ringfence_flow_lost_events_total");
    println!("{:?}: {lost} connections and {lost_events} events are lost", began.elapsed());
    assert!(lost > 0 && lost <= lost_events, "{lost} connections, {lost_events} events");
    assert_eq!(sum(&found, "/connections/started"), flows);
    let lost_by_metric = agent.metric("ringfence_flow_connections_lost_total");
    assert!(lost_by_metric >= lost, "{lost_by_metric}");
    assert_eq!(coverage(&stage)["problems"], Value::Array(vec![]));
}
