//! The `ringfence-context` binary: `ringfence-context serve` and the verbs around it.

use std::process::ExitCode;

fn main() -> ExitCode {
    context::run()
}
