//! The `ringfence-flows` binary: one view of the flow records of all nodes.

use std::process::ExitCode;

fn main() -> ExitCode {
    aggregator::run()
}
