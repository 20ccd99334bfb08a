//! The result of a demo: its faults, and the exit status.

use std::fmt::Display;
use std::process::ExitCode;
use std::time::Instant;

use super::screen::{BAD, FAINT, GOOD, Screen, seconds};
use super::stop::Interruption;

/// Exit status if a demo could not run. (1 means that it ran, and something is not as expected.)
const COULD_NOT_RUN: u8 = 2;

/// The exit status of the demo of this name; prints an error.
pub(crate) fn exit(name: &str, shown: anyhow::Result<ExitCode>) -> ExitCode {
    shown.unwrap_or_else(|error| {
        if let Some(interrupted) = error.downcast_ref::<Interruption>() {
            anstream::eprintln!("stopped by {interrupted}");
            return ExitCode::from(interrupted.status());
        }
        anstream::eprintln!("{BAD}{name}:{BAD:#} {error:#}");
        ExitCode::from(COULD_NOT_RUN)
    })
}

/// Prints the faults, or the success message.
pub(crate) fn conclude(screen: &Screen, faults: &[String], well: impl Display, begun: Instant) -> ExitCode {
    let elapsed = seconds(begun.elapsed());
    screen.line("");
    if faults.is_empty() {
        screen.line(format_args!("{GOOD}{well}{GOOD:#} {FAINT}{elapsed}{FAINT:#}"));
        return ExitCode::SUCCESS;
    }
    screen.line(format_args!("{BAD}Not as expected:{BAD:#} {FAINT}{elapsed}{FAINT:#}"));
    for fault in faults {
        screen.line(format_args!("   {fault}"));
    }
    ExitCode::FAILURE
}
