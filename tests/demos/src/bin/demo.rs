//! The `demo` binary, which `make demo` runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    demos::demo::run()
}
