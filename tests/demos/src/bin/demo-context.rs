//! The `demo-context` binary, which `make demo-context` runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    demos::demo_context::run()
}
