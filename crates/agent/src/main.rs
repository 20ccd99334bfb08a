//! The `ringfence` binary: `ringfence agent` and the verbs around it.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent::run()
}
