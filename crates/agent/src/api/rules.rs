//! Route of the committed rules: its query, and the comment above the rules.

use nft::TableFamily;
use serde::de::Error;
use serde::{Deserialize, Deserializer};

use super::TableVerdict;

/// Response header with the word of a [`KernelMatch`].
pub(crate) const KERNEL_HEADER: &str = "ringfence-kernel";

/// Bound on an operation shown in the comment; one operation may contain a hundred thousand elements.
const OPERATION_CHARACTERS: usize = 400;

/// Which of the committed tables to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RulesQuery {
    /// `None` for all.
    #[serde(default, deserialize_with = "family")]
    pub(crate) family: Option<TableFamily>,
}

fn family<'de, D: Deserializer<'de>>(text: D) -> Result<Option<TableFamily>, D::Error> {
    let text = String::deserialize(text)?;
    match TableFamily::ALL.into_iter().find(|family| family.as_str() == text) {
        Some(family) => Ok(Some(family)),
        None => Err(D::Error::custom(format_args!("invalid family '{text}': expected inet, bridge or netdev"))),
    }
}

/// Whether the kernel has the rules that the agent committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KernelMatch {
    Equal,
    Different,
    /// The kernel's rules could not be read.
    Unknown,
}

impl KernelMatch {
    pub(crate) fn of(verdict: &TableVerdict) -> KernelMatch {
        match verdict {
            TableVerdict::Equal => KernelMatch::Equal,
            TableVerdict::Different { .. } | TableVerdict::Missing => KernelMatch::Different,
            TableVerdict::Unknown { .. } => KernelMatch::Unknown,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            KernelMatch::Equal => "equal",
            KernelMatch::Different => "different",
            KernelMatch::Unknown => "unknown",
        }
    }

    pub(crate) fn from_word(word: &str) -> Option<KernelMatch> {
        [KernelMatch::Equal, KernelMatch::Different, KernelMatch::Unknown].into_iter().find(|m| m.as_str() == word)
    }
}

/// Comment lines in nft syntax: the node, whether the kernel has the rules, and why its verdict may differ.
pub(crate) fn head(node: &str, verdict: &TableVerdict, notes: &[String]) -> String {
    let mut text = comment("", &format!("rules of node {node}, as the agent committed them"));
    match verdict {
        TableVerdict::Equal => text += &comment("", "the kernel has the same rules"),
        TableVerdict::Different { operations, more } => {
            text += &comment("", "the kernel has OTHER rules; these operations would restore the rules below:");
            for operation in operations {
                text += &comment("  ", &shortened(operation));
            }
            if *more > 0 {
                text += &comment("  ", &format!("and {more} more operations"));
            }
        }
        TableVerdict::Missing => text += &comment("", "the kernel has NO such table"),
        TableVerdict::Unknown { reason } => {
            text += &comment("", &format!("not compared with the rules of the kernel: {reason}"));
        }
    }
    notes.iter().for_each(|note| text += &comment("", &format!("note: {note}")));
    text
}

/// Turns every line of the text into a comment.
fn comment(indent: &str, text: &str) -> String {
    text.lines().map(|line| format!("# {indent}{line}\n")).collect()
}

fn shortened(operation: &str) -> String {
    match operation.char_indices().nth(OPERATION_CHARACTERS) {
        Some((end, _)) => format!("{} ...", &operation[..end]),
        None => operation.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn head_shows_difference_and_notes_as_comments() {
        let operations = vec!["delete table inet ringfence".into(), "x".repeat(1000)];
        let head = head("node-a", &TableVerdict::Different { operations, more: 2 }, &["one\ntwo".into()]);
        let shown = head.replace(&"x".repeat(OPERATION_CHARACTERS), "xx");
        expect![[r#"
            # rules of node node-a, as the agent committed them
            # the kernel has OTHER rules; these operations would restore the rules below:
            #   delete table inet ringfence
            #   xx ...
            #   and 2 more operations
            # note: one
            # two
        "#]]
        .assert_eq(&shown);
    }

    #[test]
    fn kernel_match_round_trips_through_text() {
        for verdict in [TableVerdict::Equal, TableVerdict::Missing, TableVerdict::Unknown { reason: "x".into() }] {
            let matched = KernelMatch::of(&verdict);
            assert_eq!(KernelMatch::from_word(matched.as_str()), Some(matched));
        }
        assert_eq!(KernelMatch::from_word("other"), None);
    }
}
