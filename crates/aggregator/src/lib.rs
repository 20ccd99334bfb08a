//! The aggregator of flow records: receives the records of all agents, joins the reports of both nodes of a connection,
//! stores one hour in memory, and answers queries.
//!
//! The crate `flow` implements receipt and join, `delivery` the protocol, and `insight` compares flows with policies. The
//! aggregator never writes cluster objects. It reads them only with `--watch-policies`; otherwise its only request to the
//! API server is TokenReview.

mod aggregate;
mod cli;
mod cluster_view;
mod edge_metrics;
mod export;
mod goldmane;
mod grpc;
mod hubble;
mod interfaces;
mod listen;
mod metrics;
mod observation;
mod read_stream;
mod remote_sets;
mod report;
mod serve;
#[cfg(test)]
mod testing;
mod ui;
mod window_cursor;

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
