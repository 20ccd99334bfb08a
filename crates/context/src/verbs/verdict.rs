//! `ringfence-context verdict`: what the list of declared edges says of a flow.

use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Context, bail};
use bytes::Bytes;
use console::{BAD, DOUBTFUL, GOOD, NO, Output, YES, output};
use policy::ObjectName;
use serde::Serialize;

use super::runtime;
use crate::cli::{FromArguments, VerdictArguments};
use crate::consumer;
use crate::edges::{self, Asked, Party, Statement, Verdict};
use crate::identity::{self, Who};
use crate::mmdb::read::Database;

/// What the list says, and why.
#[derive(Serialize)]
struct Answer {
    source: String,
    destination: String,
    port: String,
    verdict: &'static str,
    /// The line that declares it, or those that say that a policy governs an end of it.
    lines: Vec<String>,
}

pub(crate) fn verdict(arguments: &VerdictArguments) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(judge(arguments))
}

async fn judge(arguments: &VerdictArguments) -> anyhow::Result<ExitCode> {
    let asked: Asked = arguments.port.parse()?;
    let from = &arguments.from;
    let source = party(from, &arguments.source).await?;
    let destination = party(from, &arguments.destination).await?;
    let text = consumer::read(&from.from, crate::declared::FEED, "extended").await?;
    let text = std::str::from_utf8(&text).context("the list of declared edges")?;
    let (form, list) = edges::parse(text).context("the list of declared edges")?;
    for party in [&source, &destination] {
        is_known(from, &list, party).await?;
    }
    let found = edges::verdict(form, &list, &source, &destination, asked);
    let (verdict, lines, status) = match &found {
        Verdict::Declared(line) => ("declared", vec![*line], YES),
        Verdict::Violation(governing) => ("violation", governing.clone(), NO),
        Verdict::NotGoverned => ("not-governed", vec![], YES),
    };
    let answer = Answer {
        source: name(&source),
        destination: name(&destination),
        port: arguments.port.clone(),
        verdict,
        lines: lines.iter().map(ToString::to_string).collect(),
    };
    let text = match from.output {
        Output::Json => output::json(&answer)?,
        Output::Text => words(&answer, &found),
    };
    output::answer(&text, status)
}

/// A workload by its name, or whoever has the address.
async fn party(from: &FromArguments, text: &str) -> anyhow::Result<Party> {
    let Ok(address) = text.parse::<IpAddr>() else {
        return match text.parse::<ObjectName>() {
            Ok(workload) => Ok(Party::Workload(workload)),
            Err(_) => bail!("invalid source or destination '{text}': expected an address or NAMESPACE/WORKLOAD"),
        };
    };
    let bytes: Bytes = consumer::read(&from.from, identity::FEED, "baseline").await?;
    let who = "an address needs the identity database; set --from to the folder, store or provider that has both files";
    let database = Database::open(bytes).context(who)?;
    Ok(match database.lookup::<Who>(address)? {
        // Nodes, API servers and pods of other clusters are none of the workloads that these lines name.
        Some(who) if who.is_workload() => Party::Workload(ObjectName::new(&who.namespace, &who.workload)),
        Some(_) | None => Party::Outside(address),
    })
}

/// Of a workload that nobody has ever heard of, every list would say that no policy governs it.
async fn is_known(from: &FromArguments, list: &[Statement], party: &Party) -> anyhow::Result<()> {
    let Party::Workload(workload) = party else { return Ok(()) };
    if edges::mentions(list, workload) {
        return Ok(());
    }
    // Where there is only the list, it may be a workload without policies.
    if from.from.is_file() {
        return Ok(());
    }
    let Ok(bytes) = consumer::read(&from.from, identity::FEED, "baseline").await else { return Ok(()) };
    let database = Database::open(bytes)?;
    for entry in database.entries::<Who>()? {
        let (_, who) = entry?;
        if who.is_workload() && *who.namespace == *workload.namespace && *who.workload == *workload.name {
            return Ok(());
        }
    }
    bail!(
        "workload '{workload}' not found: it has no pods and no declared edges; 'ringfence-context lookup' shows the \
         workload of an address"
    )
}

fn name(party: &Party) -> String {
    match party {
        Party::Workload(name) => name.to_string(),
        Party::Outside(address) => address.to_string(),
    }
}

fn words(answer: &Answer, verdict: &Verdict) -> String {
    let (style, word, why) = match verdict {
        Verdict::Declared(_) => (GOOD, "DECLARED", "by"),
        Verdict::Violation(_) => (BAD, "VIOLATION", "no line declares the flow, and a policy governs"),
        Verdict::NotGoverned => (DOUBTFUL, "NOT GOVERNED", "no policy governs the source or the destination"),
    };
    let Answer { source, destination, port, lines, .. } = answer;
    let mut text = format!("{style}{word}{style:#}  {source} -> {destination} {port}\n  {why}\n");
    for line in lines {
        text += &format!("    {line}\n");
    }
    text
}
