//! When a section was measured, of which commit and on what: without it a figure cannot be compared with another one.

use std::fmt;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::machine;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Taken {
    /// Of the calendar, in UTC.
    pub date: String,
    /// With a `+` behind it if the tree had changes.
    pub commit: String,
    /// Processors and kernel.
    pub machine: String,
    /// When the section began: how many threads wanted a processor within the minute before.
    pub load: f64,
}

impl Taken {
    pub(super) fn now() -> Taken {
        let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        Taken { date, commit: commit(), machine: machine::describe(), load: machine::load() }
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, commit {}, {}, load {:.2} at its beginning", self.date, self.commit, self.machine, self.load)
    }
}

/// Of the tree that the program is run in, from which `make bench` builds it. What is written in documents meanwhile,
/// as figures are, is no change of the program.
fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short", "HEAD"]) else { return "unknown".into() };
    match git(&["status", "--porcelain", "--untracked-files=no", "--", ":/", ":/!docs"]) {
        Some(changes) if changes.is_empty() => commit,
        Some(_) | None => commit + "+",
    }
}
