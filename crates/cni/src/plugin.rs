//! The CNI plugin: commands of the container runtime and their results (CNI specification 0.3.0 to 1.1.0).
//!
//! Only the result is written to standard output; messages for users are written to standard error, which runtimes log.

mod add;
mod agent;
mod bridge_learning;
mod check;
mod checksum_offload;
mod config;
mod delete;
mod environment;
mod failure;
mod gc;
mod host_interface;
mod link_down;
mod link_header;
mod neighbours;
mod pod_interface;
mod prev_result;
mod sandbox;
mod status;
mod version;

use std::io::{self, IsTerminal, Read, Write};
use std::process::ExitCode;

use config::Config;
use environment::{Command, Environment};
use failure::{Code, Failure};
use prev_result::PrevResult;

pub use version::SUPPORTED;

/// Maximum size of the input. Configurations have a few hundred bytes, and results a few kilobytes.
const INPUT_BYTES: u64 = 4 * 1024 * 1024;

/// True if the plugin can parse the input: its configuration, and the result of the previous plugins if there is one.
pub fn accepts(input: &[u8]) -> bool {
    Config::parse(input)
        .is_ok_and(|config| config.prev_result.as_deref().is_none_or(|result| PrevResult::parse(result).is_ok()))
}

/// Runs the command of the environment on the configuration of standard input.
pub fn run() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == "--version") {
        let versions = version::SUPPORTED.join(", ");
        return print(&format!("ringfence-cni {} (CNI {versions})\n", env!("CARGO_PKG_VERSION")).into_bytes());
    }
    let input = read_input();
    // An error uses the version that the configuration requests, if it can be read.
    let version = input.as_deref().ok().and_then(version::asked_for).unwrap_or(version::NEWEST);
    match answer(&Environment::of_process(), input) {
        Ok(output) => print(&output),
        Err(failure) => {
            print(&failure.to_json(version));
            ExitCode::FAILURE
        }
    }
}

fn answer(environment: &Environment, input: io::Result<Vec<u8>>) -> Result<Vec<u8>, Failure> {
    let command = environment.command()?;
    if command == Command::Version {
        // A user who runs the command has no input.
        return Ok(version::answer(input.as_deref().ok().and_then(version::asked_for)));
    }
    let config = input
        .map_err(|error| Failure::new(Code::Io, "cannot read the configuration").because(error))
        .and_then(|input| Config::parse(&input));
    match command {
        Command::Add => add::add(environment, &config?),
        Command::Delete => {
            delete::delete(environment, config);
            Ok(Vec::new())
        }
        Command::Check => check::check(environment, &config?).map(|()| Vec::new()),
        Command::Gc => gc::gc(&config?).map(|()| Vec::new()),
        Command::Status => status::status(&config?).map(|()| Vec::new()),
        Command::Version => unreachable!("it is answered above"),
    }
}

fn read_input() -> io::Result<Vec<u8>> {
    let mut input = Vec::new();
    if io::stdin().is_terminal() {
        return Ok(input);
    }
    io::stdin().lock().take(INPUT_BYTES + 1).read_to_end(&mut input)?;
    if input.len() as u64 > INPUT_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it is larger than {INPUT_BYTES} bytes")));
    }
    Ok(input)
}

fn print(output: &[u8]) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(output).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(format_args!("cannot write the result: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line to standard error.
fn print_error(line: std::fmt::Arguments<'_>) {
    // An error of standard error cannot be reported anywhere.
    writeln!(io::stderr(), "ringfence-cni: {line}").ok();
}
