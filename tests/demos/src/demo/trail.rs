//! `make demo-flows`: the shop with agents on both nodes and an aggregator, which exports the trail to a small receiver
//! that behaves as Loki does. The receiver stops and returns.
//!
//! All programs except the receiver are real, and so are the packets.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::Value;
use tempfile::TempDir;

use super::agents::Agents;
use super::conversation::Conversation;
use super::expected::{self, PairTable};
use super::place::{self, Place};
use super::screen::{FAINT, GOOD, STRONG, Screen};
use super::shop::{Party, Shop};
use super::stop::Stop;
use super::{AGENT, beside, example, is_root, outcome};
use kit::fake_loki::{FakeLoki, Fault, StoredLine};
use kit::lab::Lab;
use kit::provider_process::{Provider, free_port};

/// A window of 15 s is final 30 s after its end, and the machine may be busy.
const EXPORTED: Duration = Duration::from_secs(150);

/// An allowed connection succeeds within this; a denied one has not.
const ALLOWED: Duration = Duration::from_secs(2);
const DENIED: Duration = Duration::from_millis(100);

/// The aggregator's address for the agents: on the loopback of their node, from which the demo forwards to it.
const AGGREGATOR: &str = "127.0.0.1:9475";

/// Runs the demo, which has no arguments.
pub fn run() -> ExitCode {
    let shown = Stop::on_signals().and_then(|stop| show(&Screen::new(stop)));
    outcome::exit("demo-flows", shown)
}

fn show(screen: &Screen) -> anyhow::Result<ExitCode> {
    is_root()?;
    for program in [AGENT, "ringfence-flows"] {
        beside(program)?;
    }
    let begun = Instant::now();
    screen.line(
        "Who talked to whom, kept: two nodes, real agents, an aggregator, and a receiver that behaves as Loki does.\n",
    );
    // The test kit panics with a description if a wait times out; unwinding removes everything.
    let shown = catch_unwind(AssertUnwindSafe(|| scenes(screen, begun)));
    let faults = shown.map_err(|_| anyhow::anyhow!("it went no further than this"))??;
    Ok(outcome::conclude(screen, &faults, "All as expected.", begun))
}

fn scenes(screen: &Screen, begun: Instant) -> anyhow::Result<Vec<String>> {
    let shop = Shop::read(&example())?;
    let expected = expected::read(&example(), &shop)?;
    let place = Place::claim()?;
    place.copy_manifests(&example())?;
    let mut faults = Vec::new();

    screen.heading(1, "A shop, agents, an aggregator and a receiver");
    let lab = Lab::named(&shop.lab_spec(), place::PREFIX);
    shop.introduce(screen, begun.elapsed());
    let (loki, spool, address) = (FakeLoki::start(), TempDir::new()?, free_port());
    let folder = spool.path().display().to_string();
    let mut aggregator = Provider::start_aggregator(
        address,
        ["--loki-url", &loki.url(), "--spool-dir", &folder, "--cluster", "shop-cluster"],
    );
    aggregator.until_ready();
    for node in shop.nodes() {
        let listener = lab.node_exec(node, || TcpListener::bind(AGGREGATOR)).context("cannot listen on a node")?;
        std::thread::spawn(move || carry(&listener, address));
    }
    let server = format!("http://{AGGREGATOR}");
    let _agents = Agents::start(&lab, &shop, &place, &["--flow-server", &server], screen)?;
    screen.line("   aggregator   ringfence-flows serve --loki-url URL --spool-dir DIR --cluster shop-cluster");
    screen.check()?;

    screen.heading(2, "An allowed and a denied conversation, each between two nodes");
    let pairs = [true, false].map(|is_allowed| pair(&shop, &expected, is_allowed));
    for (pair, is_allowed) in pairs.iter().zip([true, false]) {
        let (source, destination) = pair.context("the shop has no such pair of pods")?;
        talk(screen, &lab, (source, destination), is_allowed, &mut faults)?;
    }
    let [Some(allowed), Some(denied)] = pairs else { anyhow::bail!("the shop has no such pairs of pods") };

    screen.heading(3, "The trail");
    screen.line(format_args!("   {FAINT}Windows of 15 s are exported 30 s after their end.{FAINT:#}"));
    for (pair, verdict) in [(allowed, "allowed"), (denied, "denied")] {
        let line = aggregator.until_within(EXPORTED, &format!("a line of the {verdict} conversation"), |_| {
            loki.lines().into_iter().find(|line| is_about(line, pair, verdict))
        });
        print(screen, &line);
        screen.check()?;
    }

    screen.heading(4, "The receiver goes away");
    loki.fail(Fault::Refuse { status: 503, retry_after: None });
    let before = started(&loki, allowed);
    talk(screen, &lab, allowed, true, &mut faults)?;
    let problem = aggregator.until_within(EXPORTED, "a batch that waits", |aggregator| {
        let problems = aggregator.try_json("/v1/flows/coverage").ok()?["problems"].clone();
        let problems = problems.as_array()?.iter().filter_map(Value::as_str).map(str::to_owned);
        problems.into_iter().find(|problem| problem.contains("export to loki fails"))
    });
    let waiting = aggregator.metric("ringfence_flows_export_spool_bytes", &[("place", "disk")]);
    screen.line(format_args!("   the aggregator says: {problem}"));
    screen.line(format_args!("   {waiting} bytes wait on disk"));
    screen.check()?;

    screen.heading(5, "It comes back");
    loki.heal();
    aggregator.until_within(EXPORTED, "the catch-up", |aggregator| {
        let waiting = aggregator.metric("ringfence_flows_export_spool_bytes", &[]);
        (started(&loki, allowed) > before && waiting == 0.0).then_some(())
    });
    let now = started(&loki, allowed);
    screen.line(format_args!(
        "   {GOOD}nothing waits{GOOD:#}; connections of the allowed pair in the trail: {before}, now {now}"
    ));
    if now != before + 1 {
        faults.push(format!("{before} connections became {now} after one more"));
    }
    faults.extend(loki.complaints().into_iter().map(|complaint| format!("the receiver complains: {complaint}")));
    let dropped = aggregator.metric("ringfence_flows_export_dropped_records_total", &[]);
    if dropped != 0.0 {
        faults.push(format!("{dropped} records were dropped"));
    }
    Ok(faults)
}

/// The first pods on different nodes between which connections are allowed, or denied.
pub fn pair<'a>(shop: &'a Shop, expected: &PairTable<bool>, is_allowed: bool) -> Option<(&'a Party, &'a Party)> {
    let rows = shop.sources.iter().zip(expected);
    let cells =
        rows.flat_map(|(source, row)| shop.destinations.iter().zip(row).map(move |(to, cell)| (source, to, cell)));
    cells
        .filter(|(source, destination, _)| source.is_pod() && destination.is_pod() && source.node != destination.node)
        .find(|(_, _, cell)| **cell == Some(is_allowed))
        .map(|(source, destination, _)| (source, destination))
}

fn talk(
    screen: &Screen,
    lab: &Lab,
    (source, destination): (&Party, &Party),
    is_allowed: bool,
    faults: &mut Vec<String>,
) -> anyhow::Result<()> {
    let within = if is_allowed { ALLOWED } else { DENIED };
    let conversation = Conversation::open(lab, source, destination, within, screen)?;
    let is_open = match conversation {
        Some(mut conversation) => conversation.exchange()?,
        None => false,
    };
    let (from, to) = (source.full_name(), destination.full_name());
    let word = if is_open { "connected" } else { "not connected" };
    screen.line(format_args!("   {STRONG}{from}{STRONG:#} -> {STRONG}{to}{STRONG:#}   {word}"));
    if is_open != is_allowed {
        faults.push(format!("{from} -> {to} is {word}"));
    }
    Ok(())
}

/// The ends of a line are workloads; the pods are listed in it.
fn is_about(line: &StoredLine, (source, destination): (&Party, &Party), verdict: &str) -> bool {
    let json = line.json();
    let lists = |end: &str, party: &Party| {
        json[end]["pods"].as_array().is_some_and(|pods| pods.contains(&party.full_name().into()))
    };
    line.labels["verdict"] == verdict && lists("sources", source) && lists("destinations", destination)
}

fn started(loki: &FakeLoki, pair: (&Party, &Party)) -> u64 {
    let lines = loki.lines().into_iter().filter(|line| is_about(line, pair, "allowed"));
    lines.filter_map(|line| line.json().pointer("/connections/started").and_then(Value::as_u64)).sum()
}

fn print(screen: &Screen, line: &StoredLine) {
    let json = line.json();
    let labels: Vec<String> = line.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let metadata = |name: &str| line.metadata.get(name).map_or("-", String::as_str);
    screen.line(format_args!("   {FAINT}{{{}}}{FAINT:#}", labels.join(", ")));
    screen.line(format_args!(
        "     {} -> {} port {}: {} by {}; seen by {}",
        metadata("source"),
        metadata("destination"),
        metadata("port"),
        line.labels["verdict"],
        metadata("policies"),
        json["seenBy"],
    ));
}

/// Forwards each connection to the aggregator, as a Service would. Ends with the process.
fn carry(listener: &TcpListener, to: SocketAddr) {
    for client in listener.incoming() {
        let Ok(client) = client else { return };
        let Ok(server) = TcpStream::connect(to) else { continue };
        let (Ok(other_client), Ok(other_server)) = (client.try_clone(), server.try_clone()) else { continue };
        std::thread::spawn(move || copy(client, server));
        std::thread::spawn(move || copy(other_server, other_client));
    }
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 << 10];
    let carried: io::Result<()> = loop {
        match from.read(&mut buffer) {
            Ok(0) => break Ok(()),
            Ok(count) => match to.write_all(&buffer[..count]) {
                Ok(()) => {}
                Err(error) => break Err(error),
            },
            Err(error) => break Err(error),
        }
    };
    // The peer may have closed already.
    drop(carried.and_then(|()| to.shutdown(Shutdown::Write)));
}
