//! The process `ringfence agent` and the other verbs of the `ringfence` binary.
//!
//! The agent receives changes from a source (`cluster`), translates them into a ruleset (`policy`) and commits the
//! delta (`nfnetlink`). It contains no translation logic. [`run`] is the whole program.

mod api;
mod attachments;
mod background;
mod bridge_ports;
mod cli;
mod cni_install;
mod cni_socket;
pub mod conflist;
pub mod dns;
pub mod doctor;
mod earlier_flows;
mod enforcer;
mod event_loop;
mod flows;
mod gate;
mod identities;
mod isolation_release;
mod kernel_support;
mod kernel_watch;
mod latency;
mod link_watch;
mod listen;
mod lock_file;
mod memory;
mod metrics;
#[cfg(test)]
mod netns;
mod own_subnets;
mod pod_lookup;
mod port;
mod protection;
mod reconciler;
pub mod remote;
mod reports;
mod rtnetlink;
mod run_dir;
mod tc_redirects;

mod status;
mod transaction;
mod translation_check;
mod verbs;

use std::process::ExitCode;

use clap::CommandFactory;

/// Runs the program on the process's arguments. Errors are printed once, with their causes.
pub fn run() -> ExitCode {
    let command = cli::parse();
    let result = match command {
        cli::Command::Agent(arguments) => verbs::agent(*arguments),
        cli::Command::Render(arguments) => verbs::render(&arguments),
        cli::Command::Check(arguments) => verbs::check(&arguments),
        cli::Command::Explain(arguments) => verbs::explain(&arguments),
        cli::Command::Identity(arguments) => verbs::identity(&arguments),
        cli::Command::Drops(arguments) => verbs::drops(&arguments),
        cli::Command::Flows(arguments) => verbs::flows(&arguments),
        cli::Command::Audit(arguments) => verbs::audit(&arguments),
        cli::Command::Suggest(arguments) => verbs::suggest(&arguments),
        cli::Command::WhatIf(arguments) => verbs::what_if(&arguments),
        cli::Command::InstallCni(arguments) => verbs::install_cni(arguments),
        cli::Command::Probe(arguments) => verbs::probe(&arguments),
        cli::Command::Status(arguments) => verbs::status(&arguments),
        cli::Command::Rules(arguments) => verbs::rules(&arguments),
        cli::Command::Uninstall(arguments) => verbs::uninstall(&arguments),
        cli::Command::Doctor(arguments) => verbs::doctor(&arguments),
        cli::Command::Completions { shell } => console::completions(&mut cli::Cli::command(), shell),
    };
    console::exit(result)
}
