//! The command line.

use std::path::{Path, PathBuf};

use clap::Parser;

/// A small shop on two nodes: who reaches whom without agents, with them, and after a change of policy.
#[derive(Debug, Parser)]
#[command(name = "demo", max_term_width = 110)]
#[command(after_help = "Exit status: 0 everything is as the example expects; 1 it is not; 2 could not run.")]
pub(super) struct Arguments {
    /// Leave the lab and its agents up at the end, and say how to look around.
    #[arg(long, conflicts_with = "remove")]
    pub(super) keep: bool,

    /// Remove what --keep left.
    #[arg(long)]
    pub(super) remove: bool,

    /// Folder of manifests, with the expected matrix.
    #[arg(long, value_name = "DIR", default_value_os_t = example())]
    pub(super) example: PathBuf,

    /// Answer on the ports of a kept lab's pods, until interrupted.
    #[arg(long, value_name = "DIR", hide = true)]
    pub(super) serve: Option<PathBuf>,
}

/// The folder in the repository of this build or, if that has moved, in the current directory.
pub(crate) fn example() -> PathBuf {
    const EXAMPLE: &str = "examples/shop";
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(EXAMPLE);
    if built_from.is_dir() { built_from } else { EXAMPLE.into() }
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
