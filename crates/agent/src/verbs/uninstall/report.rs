//! Report of the uninstallation: one line per item.

use std::fmt::Display;
use std::io;

use anstyle::Style;
use console::{BAD, DOUBTFUL, GOOD, Output};

use console::output::{self, ReaderState};

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
enum Outcome {
    Removed,
    WouldRemove,
    Absent,
    Kept,
    Failed,
}

#[derive(serde::Serialize)]
struct ReportedItem {
    what: String,
    outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

/// Prints each item immediately, or everything as JSON at the end.
pub(super) struct UninstallReport {
    pub(super) dry_run: bool,
    form: Output,
    items: Vec<ReportedItem>,
    /// Result of printing. The removal continues even if the reader has closed the output.
    printed: io::Result<ReaderState>,
}

impl UninstallReport {
    pub(super) fn new(dry_run: bool, form: Output) -> UninstallReport {
        UninstallReport { dry_run, form, items: vec![], printed: Ok(ReaderState::Reads) }
    }

    /// Removes an existing item, unless this is a dry run.
    pub(super) fn remove<E: Display>(&mut self, what: impl Into<String>, remove: impl FnOnce() -> Result<(), E>) {
        if self.dry_run {
            return self.add(what.into(), Outcome::WouldRemove, None);
        }
        match remove() {
            Ok(()) => self.add(what.into(), Outcome::Removed, None),
            Err(e) => self.failed(what, e),
        }
    }

    pub(super) fn absent(&mut self, what: impl Into<String>) {
        self.add(what.into(), Outcome::Absent, None);
    }

    /// The item is not ours, or must stay.
    pub(super) fn kept(&mut self, what: impl Into<String>, reason: impl Display) {
        self.add(what.into(), Outcome::Kept, Some(reason.to_string()));
    }

    /// The item is ours and could not be removed.
    pub(super) fn failed(&mut self, what: impl Into<String>, reason: impl Display) {
        self.add(what.into(), Outcome::Failed, Some(reason.to_string()));
    }

    fn add(&mut self, what: String, outcome: Outcome, reason: Option<String>) {
        let item = ReportedItem { what, outcome, reason };
        if let (Output::Text, Ok(ReaderState::Reads)) = (self.form, &self.printed) {
            let (style, word) = outcome.shown();
            let reason = item.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
            self.printed = output::print(&format!("{style}{word:<12}{style:#} {}{reason}\n", item.what));
        }
        self.items.push(item);
    }

    /// Whether nothing of Ringfence is left (or would be, in a dry run).
    pub(super) fn finish(self) -> anyhow::Result<bool> {
        match self.form {
            Output::Json => output::print(&output::json(&self.items)?)?,
            Output::Text => self.printed?,
        };
        Ok(self.items.iter().all(|item| item.outcome != Outcome::Failed))
    }
}

impl Outcome {
    fn shown(self) -> (Style, &'static str) {
        match self {
            Outcome::Removed => (GOOD, "removed"),
            Outcome::WouldRemove => (GOOD, "would remove"),
            Outcome::Absent => (Style::new(), "not there"),
            Outcome::Kept => (DOUBTFUL, "kept"),
            Outcome::Failed => (BAD, "failed"),
        }
    }
}
