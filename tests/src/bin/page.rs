//! The `page` binary, which `make page` runs: an aggregator with its page, and generated flows.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use jiff::Timestamp;
use tests::fake_agent::{Agent, plain};
use tests::flow_generator::{GeneratedCluster, NODES};
use tests::provider_process::{Provider, free_port};

const WINDOW: i64 = 15;

/// Windows that are there at the start.
const PAST_WINDOWS: i64 = 20;

/// Arguments: the address of the page, the number of workloads (0: the shop), and a folder of manifests with which observed
/// edges are compared.
fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let page: SocketAddr = arguments.next().as_deref().unwrap_or("127.0.0.1:9476").parse().context("ADDRESS:PORT")?;
    let workloads: usize = arguments.next().as_deref().unwrap_or("300").parse().context("number of workloads")?;
    let cluster = match workloads {
        0 => GeneratedCluster::shop(),
        workloads => GeneratedCluster::with_workloads(workloads),
    };
    let address = free_port();
    let mut options = vec!["--ui-listen".to_owned(), page.to_string(), "--edges".into(), "on".into()];
    if let Some(folder) = arguments.next() {
        options.extend(["--watch-policies".into(), "on".into(), "--manifests".into(), folder]);
    }
    let mut aggregator = Provider::start_aggregator(address, options);
    aggregator.until_ready();
    let agents = NODES.map(|node| (node, Agent::start(node, 1, plain(address))));
    let push = |window: i64| -> anyhow::Result<()> {
        let window = Timestamp::from_second(window)?;
        for (node, agent) in &agents {
            agent.push(cluster.records(node, window));
        }
        Ok(())
    };
    let current = || {
        let now = Timestamp::now().as_second();
        now - now % WINDOW
    };
    let mut next = current() - PAST_WINDOWS * WINDOW;
    println!("http://{page}/ shows {} nodes; Ctrl-C ends it", NODES.len());
    loop {
        while next < current() {
            push(next)?;
            next += WINDOW;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
