//! `ringfence-context ids`: the table of identities, and the labels in which two of them differ.

use std::process::ExitCode;

use anyhow::Context;
use console::{DOUBTFUL, NO, Output, YES, output};
use policy::plain;
use serde::Serialize;

use super::runtime;
use crate::cli::{IdentityName, IdsArguments};
use crate::consumer;
use crate::identity::difference::{IdentityDifference, differences};
use crate::identity::{self, Identities, Row};

pub(crate) fn ids(arguments: &IdsArguments) -> anyhow::Result<ExitCode> {
    let bytes = runtime()?.block_on(consumer::read(&arguments.from, identity::FEED, "ids"))?;
    let table: Identities = serde_json::from_slice(&bytes)
        .context("not an identity table: expected the file .ids.json beside the database")?;
    match arguments.diff.as_deref() {
        Some([a, b]) => diff(&table, [*a, *b], arguments.from.output),
        Some(_) | None => {
            let text = match arguments.from.output {
                Output::Json => output::json(&table)?,
                Output::Text => text(&table),
            };
            output::answer(&text, YES)
        }
    }
}

/// JSON output of `ids --diff`.
#[derive(Serialize)]
struct Comparison<'a> {
    /// Null for an identity that is not in the table.
    a: Option<&'a Row>,
    b: Option<&'a Row>,
    differences: Vec<IdentityDifference>,
}

fn diff(table: &Identities, names: [IdentityName; 2], form: Output) -> anyhow::Result<ExitCode> {
    let row = |name: IdentityName| {
        table.identities.iter().find(|row| match name {
            IdentityName::Sid(sid) => row.sid == sid,
            IdentityName::Number(number) => row.num == number,
        })
    };
    let rows = names.map(row);
    let differences = match rows {
        [Some(a), Some(b)] => differences(a, b),
        [_, _] => vec![],
    };
    let text = match form {
        Output::Json => output::json(&Comparison { a: rows[0], b: rows[1], differences })?,
        Output::Text => comparison(names, rows, &differences),
    };
    output::answer(&text, if rows.iter().all(Option::is_some) { YES } else { NO })
}

fn comparison(names: [IdentityName; 2], rows: [Option<&Row>; 2], differences: &[IdentityDifference]) -> String {
    let mut text = String::new();
    for (name, row) in names.into_iter().zip(rows) {
        text += &match row {
            Some(row) => format!("{} ({})  {}\n", row.sid, row.num, plain(&row.namespace)),
            None => format!("{DOUBTFUL}{name}{DOUBTFUL:#}  not found: no address has the identity\n"),
        };
    }
    let [Some(a), Some(b)] = rows else { return text };
    match (differences, a.sid == b.sid) {
        (_, true) => text += "  the same identity\n",
        ([], false) => {
            text += "  no difference in the table, which leaves out labels that are too long, or the identities are of \
                     different clusters\n";
        }
        (_, false) => {}
    }
    let value =
        |value: &Option<String>| value.as_deref().map_or("(none)".into(), |value| format!("'{}'", plain(value)));
    for difference in differences {
        text += &format!("  {}: {} -> {}\n", difference.part, value(&difference.a), value(&difference.b));
    }
    text
}

fn text(table: &Identities) -> String {
    let mut text = format!("{:<13}  {:>8}  {:>9}  {}\n", "IDENTITY", "NUMBER", "ADDRESSES", "NAMESPACE AND LABELS");
    for row in &table.identities {
        let labels: Vec<String> = row.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let is_exception = table.exceptions.iter().any(|exception| exception.sid == row.sid);
        let mark = if is_exception { " (exception)" } else { "" };
        let line =
            format!("{}  {:>8}  {:>9}  {} {}{mark}", row.sid, row.num, row.references, row.namespace, labels.join(","));
        text += line.trim_end();
        text.push('\n');
    }
    text
}
