//! The context provider: who an address is, and which flows policies declare.
//!
//! Objects come in as the informers of `cluster` tell of them ([`object`]); identities ([`directory`]) and declared edges
//! ([`edges`]) are views of what is known; one task owns them and publishes what differs (`publisher`) as baselines and
//! deltas (`feed`), which are served, pushed and stored. What pods of other clusters offer ([`remote`]) is published the same
//! way, by a task of its own. Nothing here enforces anything, and nothing is written to the Kubernetes API but the Lease
//! that says who pushes and, where it is asked for, GlobalNetworkSets.

mod channel;
mod cli;
mod consumer;
mod declared;
pub mod directory;
pub mod edges;
mod epoch;
mod exposure;
mod frame;
mod history;
pub mod identity;
pub mod labels;
mod leading;
mod listen;
mod metrics;
pub mod mmdb;
pub mod numbers;
pub mod object;
mod pki;
mod publisher;
mod push;
pub mod ranges;
pub mod record;
pub mod remote;
mod status;
mod store;
pub mod tables;
mod template;
#[cfg(test)]
mod testing;
mod verbs;
pub mod version;

use std::process::ExitCode;

use clap::CommandFactory;

use cli::{Cli, Command};

/// Runs the program on the process's arguments. Errors are printed once, with their causes.
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
