//! How the binaries speak to people: colours, standard output, the log, exit statuses. What they say is their affair.

mod duration;
pub mod log;
pub mod output;
pub mod source;

use std::process::ExitCode;

use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use clap_complete::Shell;

pub use duration::duration;

/// Done, or the answer is yes.
pub const YES: ExitCode = ExitCode::SUCCESS;
/// The answer is no.
pub const NO: ExitCode = ExitCode::FAILURE;
/// Exit status when a command could not do its work. (1 means that it did, and the answer is no.)
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

/// Prints the script that completes a program's arguments in a shell.
pub fn completions(program: &mut clap::Command, shell: Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    let name = program.get_name().to_owned();
    clap_complete::generate(shell, program, name, &mut script);
    output::answer(&String::from_utf8(script)?, YES)
}

/// The exit status of a program. An error is printed, once, with its causes.
pub fn exit(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        anstream::eprintln!("{BAD}error:{BAD:#} {error:#}");
        ExitCode::from(COULD_NOT_RUN)
    })
}
