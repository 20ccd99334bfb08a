//! The `page` binary, which `make page` runs: an aggregator with its page, and generated flows.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use anyhow::Context;
use generator::flows::{GeneratedCluster, NODES};
use jiff::Timestamp;
use kit::fake_agent::{Agent, plain};
use kit::provider_process::{Provider, free_port};
use tokio::signal::unix::{SignalKind, signal};

const WINDOW: i64 = 15;

/// Windows that are there at the start.
const PAST_WINDOWS: i64 = 20;

/// Windows after the start until flows are seen for the first time.
const LATE_WINDOWS: i64 = 3;

const USAGE: &str = "\
Usage: page [ADDRESS:PORT [WORKLOADS [MANIFESTS]]]

An aggregator with its page and generated flows.

  ADDRESS:PORT  of the page [default: 127.0.0.1:9476]
  WORKLOADS     number of generated workloads; 0: those of examples/shop [default: 300]
  MANIFESTS     folder with which observed edges are compared [default: generated]
";

/// Handles the signals that ask a program to end: the default action would leave the aggregator and its folder behind.
fn signals() -> anyhow::Result<Receiver<()>> {
    let (sender, arrivals) = mpsc::sync_channel(1);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        let context = runtime.enter();
        let mut stream = signal(kind).context("cannot handle signals")?;
        drop(context);
        let sender = sender.clone();
        runtime.spawn(async move {
            // Refused if another signal waits.
            while stream.recv().await.is_some() && sender.try_send(()).is_ok() {}
        });
    }
    std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
    Ok(arrivals)
}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|argument| argument.starts_with('-')) {
        print!("{USAGE}");
        return Ok(());
    }
    let page: SocketAddr = arguments.next().as_deref().unwrap_or("127.0.0.1:9476").parse().context("ADDRESS:PORT")?;
    let workloads: usize = arguments.next().as_deref().unwrap_or("300").parse().context("number of workloads")?;
    let cluster = match workloads {
        0 => GeneratedCluster::shop(),
        workloads => GeneratedCluster::with_workloads(workloads),
    };
    let signals = signals()?;
    let address = free_port();
    let folder = tempfile::tempdir()?;
    let manifests = arguments.next().map_or_else(|| folder.path().join("manifests"), PathBuf::from);
    if manifests.starts_with(folder.path()) {
        std::fs::create_dir(&manifests)?;
        std::fs::write(manifests.join("cluster.json"), cluster.manifests().to_string())?;
    }
    let text = |path: &Path| path.display().to_string();
    let options = [
        ["--ui-listen", &page.to_string()],
        ["--edges", "on"],
        ["--edge-learning", "1s"],
        ["--state-dir", &text(&folder.path().join("state"))],
        ["--watch-policies", "on"],
        ["--manifests", &text(&manifests)],
    ];
    let options: Vec<String> = options.concat().into_iter().map(String::from).collect();
    let mut aggregator = Provider::start_aggregator(address, options);
    aggregator.until_ready();
    let agents = NODES.map(|node| (node, Agent::start(node, 1, plain(address))));
    let current = || {
        let now = Timestamp::now().as_second();
        now - now % WINDOW
    };
    let late = current() + LATE_WINDOWS * WINDOW;
    let push = |window: i64| -> anyhow::Result<()> {
        let time = Timestamp::from_second(window)?;
        for (node, agent) in &agents {
            let mut records = cluster.records(node, time);
            if window >= late {
                records.extend(cluster.late_records(node, time));
            }
            agent.push(records);
        }
        Ok(())
    };
    let mut next = current() - PAST_WINDOWS * WINDOW;
    println!("http://{page}/ shows {} nodes; Ctrl-C ends it", NODES.len());
    loop {
        while next < current() {
            push(next)?;
            // Pushed all at once, some records of the past windows were never received.
            agents.iter().for_each(|(_, agent)| agent.until_acknowledged());
            next += WINDOW;
            if signals.try_recv().is_ok() {
                return Ok(());
            }
        }
        match signals.recv_timeout(Duration::from_millis(200)) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}
