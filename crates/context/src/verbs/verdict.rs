//! `ringfence-context verdict`: the verdict of the list of declared edges on a flow.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::{Context, bail};
use bytes::Bytes;
use console::{BAD, DOUBTFUL, GOOD, NO, Output, YES, output};
use policy::ObjectName;
use policy::remote::RemoteSet;
use policy::remote::wire::{self, SetRow};
use serde::Serialize;

use super::runtime;
use crate::cli::{FromArguments, VerdictArguments};
use crate::consumer;
use crate::edges::{self, EdgeVerdict, Party, PortQuery, RemotePods, Statement};
use crate::identity::{self, RecordFields};
use crate::mmdb::read::Database;

/// The verdict, with its lines.
#[derive(Serialize)]
struct VerdictOutput {
    source: String,
    destination: String,
    port: String,
    verdict: &'static str,
    /// The line that declares the flow, or does so if the destination has its domain name; otherwise those that show
    /// that a policy governs an end of it.
    lines: Vec<String>,
}

pub(crate) fn verdict(arguments: &VerdictArguments) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(judge(arguments))
}

async fn judge(arguments: &VerdictArguments) -> anyhow::Result<ExitCode> {
    let asked: PortQuery = arguments.port.parse()?;
    let from = &arguments.from;
    let source = party(from, &arguments.source).await?;
    let destination = party(from, &arguments.destination).await?;
    let text = consumer::read(from, crate::edge_publication::FEED, "extended").await?;
    let text = std::str::from_utf8(&text).context("the list of declared edges")?;
    let (form, list) = edges::parse(text).context("the list of declared edges")?;
    for party in [&source, &destination] {
        is_known(from, &list, party).await?;
    }
    let found = edges::verdict(form, &list, &source, &destination, asked);
    let (verdict, lines, status) = match &found {
        EdgeVerdict::Declared(line) => ("declared", vec![*line], YES),
        EdgeVerdict::Violation(governing) => ("violation", governing.clone(), NO),
        EdgeVerdict::OfName(line) => ("of-domain-name", vec![*line], YES),
        EdgeVerdict::NotGoverned => ("not-governed", vec![], YES),
    };
    let answer = VerdictOutput {
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

/// A workload or a remote set by name, or the owner of an address.
async fn party(from: &FromArguments, text: &str) -> anyhow::Result<Party> {
    let Ok(address) = text.parse::<IpAddr>() else {
        if let Some(set) = remote_set(text) {
            let rows = remote_rows(from).await?;
            let row = rows.into_iter().flatten().find(|row| row.set == set);
            let addresses = row.map(|row| row.addresses).unwrap_or_default();
            return Ok(Party::Remote(RemotePods { sets: vec![set], addresses }));
        }
        return match text.parse::<ObjectName>() {
            Ok(workload) => Ok(Party::Workload(workload)),
            Err(_) => bail!(
                "invalid source or destination '{text}': expected an address, NAMESPACE/WORKLOAD or \
                 CLUSTER/NAMESPACE/NAME"
            ),
        };
    };
    let bytes: Bytes = consumer::read(from, identity::FEED, "baseline").await?;
    let who = "an address needs the identity database; set --from to the folder, store or provider that has both files";
    let database = Database::open(bytes).context(who)?;
    Ok(match database.lookup::<RecordFields>(address)? {
        // The lines do not cover nodes and API servers.
        Some(who) if who.is_workload() => Party::Workload(ObjectName::new(&who.namespace, &who.workload)),
        record => outside(from, address, record.and_then(|who| who.remote_set())).await?,
    })
}

/// Pods of another cluster if the identity record of the address names a remote set; otherwise a host outside. The
/// record names one set of the address, a provider all of them.
async fn outside(from: &FromArguments, address: IpAddr, recorded: Option<RemoteSet>) -> anyhow::Result<Party> {
    let Some(recorded) = recorded else { return Ok(Party::Outside(address)) };
    let rows = remote_rows(from).await?.into_iter().flatten();
    let served = rows.filter(|row| row.addresses.contains(&address)).map(|row| row.set);
    let sets: BTreeSet<RemoteSet> = served.chain([recorded]).collect();
    Ok(Party::Remote(RemotePods { sets: sets.into_iter().collect(), addresses: vec![address] }))
}

/// `cluster/namespace/name`, or as in lists, `cluster:namespace/name`.
fn remote_set(text: &str) -> Option<RemoteSet> {
    text.parse().ok().or_else(|| edges::remote_set(text).ok())
}

/// The remote sets of the source; `None` if it has no such feed: it is not a provider, or has no other clusters.
async fn remote_rows(from: &FromArguments) -> anyhow::Result<Option<Vec<SetRow>>> {
    let Some(bytes) = consumer::read_if_served(from, wire::FEED).await? else { return Ok(None) };
    let baseline: wire::RemoteBaseline = serde_json::from_slice(&bytes).context("the remote sets")?;
    Ok(Some(baseline.sets))
}

/// Fails for an unknown workload, which every list would show as not governed.
async fn is_known(from: &FromArguments, list: &[Statement], party: &Party) -> anyhow::Result<()> {
    let workload = match party {
        Party::Workload(workload) => workload,
        Party::Remote(pods) => return are_known(from, list, pods).await,
        Party::Outside(_) => return Ok(()),
    };
    if edges::mentions(list, workload) {
        return Ok(());
    }
    // With the list alone, it may be a workload without policies.
    if from.from.is_file() {
        return Ok(());
    }
    let Ok(bytes) = consumer::read(from, identity::FEED, "baseline").await else { return Ok(()) };
    let database = Database::open(bytes)?;
    for entry in database.entries::<RecordFields>()? {
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

/// The same for remote sets, which only a provider has: otherwise they are assumed to exist.
async fn are_known(from: &FromArguments, list: &[Statement], pods: &RemotePods) -> anyhow::Result<()> {
    let is_unknown = |set: &&RemoteSet| pods.addresses.is_empty() && !edges::mentions_remote(list, set);
    let Some(set) = pods.sets.iter().find(is_unknown).filter(|_| from.from.is_provider()) else { return Ok(()) };
    bail!("remote set '{set}' not found: the provider has no pods of it; GET /remote-sets/download lists the sets")
}

fn name(party: &Party) -> String {
    match party {
        Party::Workload(name) => name.to_string(),
        Party::Remote(pods) => pods.sets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        Party::Outside(address) => address.to_string(),
    }
}

fn words(answer: &VerdictOutput, verdict: &EdgeVerdict) -> String {
    let (style, word, why) = match verdict {
        EdgeVerdict::Declared(_) => (GOOD, "DECLARED", "by"),
        EdgeVerdict::Violation(_) => (BAD, "VIOLATION", "no line declares the flow, and a policy governs"),
        EdgeVerdict::OfName(_) => (DOUBTFUL, "NOT KNOWN", "it is declared if the destination has the domain name"),
        EdgeVerdict::NotGoverned => (DOUBTFUL, "NOT GOVERNED", "no policy governs the source or the destination"),
    };
    let VerdictOutput { source, destination, port, lines, .. } = answer;
    let mut text = format!("{style}{word}{style:#}  {source} -> {destination} {port}\n  {why}\n");
    for line in lines {
        text += &format!("    {line}\n");
    }
    text
}
