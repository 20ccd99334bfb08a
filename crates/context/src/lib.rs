//! The context provider: who an address is, and which flows policies declare.
//!
//! Objects come in as the informers of `cluster` tell of them ([`object`]); identities and declared edges are views of
//! what is known; they go out as baselines and deltas (`feed`). Nothing here enforces anything, and nothing is written
//! to the Kubernetes API but the Lease that says who pushes.

pub mod mmdb;
pub mod object;

use std::process::ExitCode;

/// Runs the program on the process's arguments.
pub fn run() -> ExitCode {
    ExitCode::SUCCESS
}
