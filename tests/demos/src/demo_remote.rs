//! `make demo-remote`: two clusters of namespaces on one machine. A policy of one admits labelled pods of the other;
//! the other changes, stops, and returns.
//!
//! The provider, the agent and the packets are real; the two API servers are the test kit's. The printed results are
//! measured. Every deviation from the expected result is a fault, listed at the end.

mod arguments;
mod scenes;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;

use crate::demo::screen::Screen;
use crate::demo::stop::Stop;
use crate::demo::{beside, is_root, outcome};
use arguments::Arguments;
use scenes::Scenes;

/// Runs the demo.
pub fn run() -> ExitCode {
    let Arguments {} = Arguments::parse();
    let shown = Stop::on_signals().and_then(|stop| show(&Screen::new(stop)));
    outcome::exit("demo-remote", shown)
}

/// The whole demo.
fn show(screen: &Screen) -> anyhow::Result<ExitCode> {
    is_root()?;
    for program in ["ringfence", "ringfence-context"] {
        beside(program)?;
    }
    let begun = Instant::now();
    screen.line("Pods of one cluster in the policies of another: two clusters, real programs, real connections.\n");
    // The test kit panics with a description if a wait times out; unwinding removes everything.
    let shown = catch_unwind(AssertUnwindSafe(|| scenes(screen)));
    let faults = shown.map_err(|_| anyhow::anyhow!("it went no further than this"))??;
    Ok(outcome::conclude(screen, &faults, "All as expected.", begun))
}

fn scenes(screen: &Screen) -> anyhow::Result<Vec<String>> {
    let clusters = scenes::two_clusters(screen);
    let mut scenes = Scenes::begin(screen, &clusters);
    screen.check()?;

    screen.heading(2, "A pod over there comes, changes and goes");
    scenes.a_pod_comes_and_goes();
    screen.check()?;

    screen.heading(3, "Who is who");
    scenes.explained();
    screen.check()?;

    screen.heading(4, "An outage: east, the provider and the agent, one after the other");
    scenes.outage();
    screen.check()?;

    screen.heading(5, "The recovery");
    scenes.recovery();
    Ok(scenes.into_faults())
}
