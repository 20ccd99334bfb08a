//! The aggregator of flow records: receives those of all agents, joins what both nodes of a connection report, keeps an hour
//! of them in memory, and answers queries.
//!
//! What joining and receiving mean is in the crate `flow`; the protocol is in `delivery`. It reads nothing of the cluster and
//! writes nothing to it: the only request that it makes is TokenReview.

mod aggregate;
mod cli;
mod edge_metrics;
mod export;
mod goldmane;
mod grpc;
mod hubble;
mod interfaces;
mod listen;
mod metrics;
mod read_stream;
mod report;
mod serve;
#[cfg(test)]
mod testing;

use std::process::ExitCode;

use clap::CommandFactory;

use cli::{Cli, Command};

/// Runs the program on the process's arguments. Errors are printed once, with their causes.
pub fn run() -> ExitCode {
    console::exit(match cli::parse() {
        Command::Serve(arguments) => serve::serve(*arguments),
        Command::Completions { shell } => console::completions(&mut Cli::command(), shell),
    })
}
