//! The `ringfence` binary: `ringfence agent` and the other verbs.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent::run()
}
