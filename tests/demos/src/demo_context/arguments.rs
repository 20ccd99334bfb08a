//! The command line.

use std::path::PathBuf;

use clap::Parser;

use crate::demo::example;

/// The provider of context on the manifests of a small shop: its tables, a pod that moves, a policy that changes.
#[derive(Debug, Parser)]
#[command(name = "demo-context", max_term_width = 110)]
#[command(after_help = "Exit status: 0 everything is as expected; 1 it is not; 2 could not run.")]
pub(super) struct Arguments {
    /// Folder of manifests. It is copied; what is changed is the copy.
    #[arg(long, value_name = "DIR", default_value_os_t = example())]
    pub(super) example: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
