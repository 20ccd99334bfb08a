//! The `bench` binary, which `make bench` runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    bench::run()
}
