//! The `demo-remote` binary, which `make demo-remote` runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    demos::demo_remote::run()
}
