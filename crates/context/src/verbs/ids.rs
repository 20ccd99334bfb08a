//! `ringfence-context ids`: the table of identities.

use std::process::ExitCode;

use anyhow::Context;
use console::{Output, YES, output};

use super::runtime;
use crate::cli::IdsArguments;
use crate::consumer;
use crate::identity::{self, Identities};

pub(crate) fn ids(arguments: &IdsArguments) -> anyhow::Result<ExitCode> {
    let bytes = runtime()?.block_on(consumer::read(&arguments.from.from, identity::FEED, "ids"))?;
    let table: Identities = serde_json::from_slice(&bytes)
        .context("not an identity table: expected the file .ids.json beside the database")?;
    let text = match arguments.from.output {
        Output::Json => output::json(&table)?,
        Output::Text => text(&table),
    };
    output::answer(&text, YES)
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
