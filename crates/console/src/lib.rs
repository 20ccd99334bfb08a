//! Console conventions of the binaries: colours, standard output, the log, exit statuses. The messages are theirs.

mod duration;
pub mod log;
pub mod output;
pub mod source;

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::{ArgMatches, CommandFactory, ValueEnum};
use clap_complete::Shell;

pub use duration::duration;

/// Exit status of success, or of the answer yes.
pub const YES: ExitCode = ExitCode::SUCCESS;
/// Exit status of the answer no.
pub const NO: ExitCode = ExitCode::FAILURE;
/// Exit status of a command that failed. (1 means that it succeeded and the answer is no.)
pub const COULD_NOT_RUN: u8 = 2;

pub const GOOD: Style = AnsiColor::Green.on_default().bold();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const DOUBTFUL: Style = AnsiColor::Yellow.on_default().bold();

/// Form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

/// Value of an argument that switches a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// Parses the arguments of the process with `read`, which also checks what clap cannot express. Exits after `--help`, or
/// if they are invalid.
pub fn parse<C: CommandFactory>(read: impl FnOnce(&ArgMatches) -> Result<C, clap::Error>) -> C {
    read(&C::command().get_matches()).unwrap_or_else(|error| error.exit())
}

/// Prints the completion script of a program for a shell.
pub fn completions(program: &mut clap::Command, shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    let name = program.get_name().to_owned();
    clap_complete::generate(shell, program, name, &mut script);
    output::answer(&String::from_utf8(script)?, YES)
}

/// Exit status of a program. Prints an error once, with its causes.
pub fn exit(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        anstream::eprintln!("{BAD}error:{BAD:#} {error:#}");
        ExitCode::from(COULD_NOT_RUN)
    })
}
