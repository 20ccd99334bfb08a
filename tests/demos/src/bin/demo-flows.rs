//! The `demo-flows` binary, which `make demo-flows` runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    demos::demo::trail::run()
}
