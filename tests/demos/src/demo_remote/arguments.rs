//! The command line.

use clap::Parser;

/// Two clusters on this machine: pods of one are admitted by a policy of the other, through a change, an outage and a
/// recovery.
#[derive(Debug, Parser)]
#[command(name = "demo-remote", max_term_width = 110)]
#[command(after_help = "Exit status: 0 everything is as expected; 1 it is not; 2 could not run.")]
pub(super) struct Arguments {}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }
}
