//! The origin of a measurement: time, commit and machine. Without it figures cannot be compared.

use std::fmt;
use std::process::Command;

use serde::{Deserialize, Serialize};

use super::machine;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunDescription {
    /// The date in UTC.
    pub date: String,
    /// With a trailing `+` if the tree was dirty.
    pub commit: String,
    /// Processors and kernel.
    pub machine: String,
    /// Load average of the minute before the section began.
    pub load: f64,
}

impl RunDescription {
    pub(super) fn now() -> RunDescription {
        let date = jiff::Timestamp::now().strftime("%Y-%m-%d").to_string();
        RunDescription { date, commit: commit(), machine: machine::describe(), load: machine::load() }
    }
}

impl fmt::Display for RunDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, commit {}, {}, load {:.2} at its beginning", self.date, self.commit, self.machine, self.load)
    }
}

/// Commit of the tree that the program is run in, from which `make bench` builds it. Changes of documents, such as new
/// figures, do not count as dirty.
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
