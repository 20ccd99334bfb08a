//! The `ringfence-cni` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    cni::plugin::run()
}
