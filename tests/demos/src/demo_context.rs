//! `make demo-context`: the context provider on the manifests of the shop. It needs neither root nor a cluster.
//!
//! The provider and its subcommands are the real programs, the subscribers use the client library, and the printed
//! results are measured. Every deviation from the expected result is a fault, listed at the end.

mod arguments;
mod feed_reader;
mod provider;
mod scenes;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use crate::demo::outcome;
use crate::demo::screen::Screen;
use crate::demo::stop::Stop;
use arguments::Arguments;
use feed_reader::FeedReader;
use provider::Provider;
use scenes::Scenes;

/// Runs the demo as the command line selects.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let shown = Stop::on_signals().and_then(|stop| show(&arguments, &Screen::new(stop)));
    outcome::exit("demo-context", shown)
}

/// The whole demo.
fn show(arguments: &Arguments, screen: &Screen) -> anyhow::Result<ExitCode> {
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    screen.line("Who an address is, and which flows are declared, for those who see only packets.\n");

    screen.heading(1, "A provider");
    let provider = Provider::start(&arguments.example, screen)?;
    let mut scenes = Scenes::new(screen, &provider);
    scenes.baselines()?;
    scenes.lookups()?;
    screen.check()?;

    screen.heading(2, "A subscriber follows the feeds");
    let identities = FeedReader::begin(&runtime, provider.url(), "identity")?;
    let edges = FeedReader::begin(&runtime, provider.url(), "policy-edges")?;
    let mut scenes = scenes.followed_by(identities, edges)?;
    screen.check()?;

    screen.heading(3, "A pod moves");
    scenes.a_pod_moves()?;
    screen.check()?;

    screen.heading(4, "A policy is added and removed");
    scenes.a_policy_comes_and_goes()?;
    screen.check()?;

    screen.heading(5, "Flows that were seen");
    scenes.verdicts()?;
    screen.check()?;

    screen.heading(6, "Nothing was lost");
    scenes.fresh_start()?;
    Ok(outcome::conclude(screen, &scenes.into_faults(), "All as expected.", begun))
}
