//! The context provider: identities of addresses, and the flows that policies declare.
//!
//! The informers of `cluster` deliver objects ([`object`]); identities ([`directory`]) and declared edges ([`edges`])
//! are derived from them; one task owns both and publishes changes (`publisher`) as baselines and deltas (`feed`),
//! which are served, pushed and stored. Sets of pods of other clusters ([`remote`]) are published in the same way by a
//! separate task. This crate enforces nothing, and writes nothing to the Kubernetes API except the Lease of the leader
//! election and, if configured, GlobalNetworkSets.

mod channel;
mod cli;
mod consumer;
pub mod directory;
mod edge_publication;
pub mod edges;
mod epoch;
mod exposure;
mod frame;
mod history;
pub mod identity;
pub mod labels;
mod leader_election;
mod listen;
mod metrics;
pub mod mmdb;
pub mod numbers;
pub mod object;
mod pki;
pub mod published_tables;
mod publisher;
mod push;
pub mod ranges;
pub mod record;
pub mod remote;
mod status;
mod store;
mod template;
#[cfg(test)]
mod testing;
mod verbs;
pub mod version;

use std::process::ExitCode;

use clap::CommandFactory;

use cli::{Cli, Command};

/// Runs the program with the arguments of the process. Errors are printed once, with their causes.
pub fn run() -> ExitCode {
    console::exit(match cli::parse() {
        Command::Serve(arguments) => verbs::serve(*arguments),
        Command::Build(arguments) => verbs::build(&arguments),
        Command::InitTls(arguments) => verbs::init_tls(*arguments),
        Command::Lookup(arguments) => verbs::lookup(&arguments),
        Command::Ids(arguments) => verbs::ids(&arguments),
        Command::Verdict(arguments) => verbs::verdict(&arguments),
        Command::Completions { shell } => console::completions(&mut Cli::command(), shell),
    })
}
