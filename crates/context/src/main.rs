//! The `ringfence-context` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    context::run()
}
