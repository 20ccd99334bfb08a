//! `ringfence flows`: prints the flows of a node or cluster, and which rule decided.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::Arc;

use console::output::{self, ReaderState};
use console::{BAD, DOUBTFUL, GOOD, YES};
use flow::{
    ClusterRecord, Endpoint, EndpointKind, FlowGroup, FlowRecord, GroupValue, InvalidGroupField, Network, SeenBy,
};
use flow::{FlowVerdict, TraceVerdict, Volume, group};
use flow::{ServicePort, SideTrace};
use nft::Protocol;
use serde::Serialize;

use super::until_interrupted;
use crate::api::client;
use crate::api::flow_server::FlowServer;
use crate::api::flow_stream::{StreamGap, StreamItem};
use crate::api::flows::{FlowCoverage, FlowLine, SeenFlows};
use crate::cli::{FlowOutput, FlowsArguments};
use crate::flows::traffic;

pub(crate) fn flows(arguments: &FlowsArguments) -> anyhow::Result<ExitCode> {
    until_interrupted(show(arguments))
}

async fn show(arguments: &FlowsArguments) -> anyhow::Result<ExitCode> {
    let repeated = arguments.by.iter().enumerate().find(|(place, field)| arguments.by[..*place].contains(field));
    if let Some((_, field)) = repeated {
        return Err(InvalidGroupField::Repeated(*field).into());
    }
    if let Some(server) = arguments.server.server()? {
        return show_cluster(arguments, &server).await;
    }
    let query = arguments.query()?;
    let run_dir = &arguments.run_dir;
    let coverage = client::flow_coverage(run_dir).await?;
    for problem in &coverage.problems {
        anstream::eprintln!("{DOUBTFUL}note:{DOUBTFUL:#} {problem}");
    }
    let mut lines = client::flows(run_dir, &query).await?;
    let mut records = Vec::new();
    let mut printed = 0;
    while let Some(line) = lines.next::<FlowLine>().await? {
        match line {
            FlowLine::Record(record) if !arguments.by.is_empty() => records.push(*record),
            line => {
                printed += 1;
                if output::print(&as_text(&line, arguments.output)?)? == ReaderState::Gone {
                    return Ok(YES);
                }
            }
        }
    }
    match print_groups(&records, arguments)? {
        None => return Ok(YES),
        Some(groups) => printed += groups,
    }
    if printed == 0 {
        eprintln!("{}", none_found(&coverage));
    }
    Ok(YES)
}

/// Prints the flows of the cluster from the aggregator.
async fn show_cluster(arguments: &FlowsArguments, server: &FlowServer) -> anyhow::Result<ExitCode> {
    let filters = arguments.alternatives()?;
    let coverage = server.coverage().await?;
    for problem in &coverage.problems {
        anstream::eprintln!("{DOUBTFUL}note:{DOUBTFUL:#} {problem}");
    }
    if arguments.follow {
        return follow_cluster(arguments, server, &filters).await;
    }
    let mut records = Vec::new();
    let mut printed = 0;
    let mut is_gone = false;
    let each = |joined: ClusterRecord| {
        if !arguments.by.is_empty() {
            records.push(joined.record);
            return Ok(true);
        }
        printed += 1;
        is_gone = output::print(&of_joined(&joined, arguments.output)?)? == ReaderState::Gone;
        Ok(!is_gone)
    };
    server.flows(&filters, each).await?;
    if is_gone {
        return Ok(YES);
    }
    let Some(groups) = print_groups(&records, arguments)? else { return Ok(YES) };
    if printed + groups == 0 {
        match coverage.kept_since {
            Some(kept) => eprintln!("no matching flow in the records since {kept}"),
            None => eprintln!("the aggregator has no records yet"),
        }
    }
    Ok(YES)
}

/// Prints the flows of the cluster as their windows are completed.
async fn follow_cluster(
    arguments: &FlowsArguments,
    server: &FlowServer,
    filters: &[(&'static str, String)],
) -> anyhow::Result<ExitCode> {
    let each = |item: StreamItem| {
        let text = match (item, arguments.output) {
            (StreamItem::Record(joined), output) => of_joined(&joined, output)?,
            (StreamItem::Gap(gap), FlowOutput::Json) => serde_json::to_string(&GapLine { gap })? + "\n",
            (StreamItem::Gap(StreamGap { from, until, reason }), FlowOutput::Table) => {
                format!("(records from {from} to {until} are missing: {reason})\n")
            }
            (StreamItem::Interrupted(why), _) => {
                anstream::eprintln!("{DOUBTFUL}note:{DOUBTFUL:#} {why}; reconnecting");
                return Ok(true);
            }
        };
        Ok(output::print(&text)? == ReaderState::Reads)
    };
    server.follow(filters, each).await?;
    Ok(YES)
}

/// A gap in the stream of records, as a line of JSON.
#[derive(Debug, Serialize)]
struct GapLine {
    gap: StreamGap,
}

fn of_joined(joined: &ClusterRecord, output: FlowOutput) -> anyhow::Result<String> {
    Ok(match output {
        FlowOutput::Json => serde_json::to_string(joined)? + "\n",
        FlowOutput::Table => of_cluster_record(joined),
    })
}

/// Prints groups and returns their number; `None` if the reader has closed the output.
fn print_groups(records: &[FlowRecord], arguments: &FlowsArguments) -> anyhow::Result<Option<u64>> {
    let mut printed = 0;
    for group in group(records, &arguments.by) {
        printed += 1;
        let text = match arguments.output {
            FlowOutput::Json => serde_json::to_string(&group)? + "\n",
            FlowOutput::Table => of_group(&group),
        };
        if output::print(&text)? == ReaderState::Gone {
            return Ok(None);
        }
    }
    Ok(Some(printed))
}

/// A line for the record, with the nodes that report it.
fn of_cluster_record(joined: &ClusterRecord) -> String {
    let names = |nodes: &BTreeSet<Arc<str>>| match nodes.len() {
        0 => "-".to_owned(),
        _ => nodes.iter().map(|node| policy::plain(node)).collect::<Vec<_>>().join(","),
    };
    let SeenBy { source, destination, other } = &*joined.seen_by;
    let seen = match other.is_empty() {
        true => format!("{} -> {}", names(source), names(destination)),
        false => names(other),
    };
    let line = of_record(&joined.record);
    format!("{}  seen by {seen}\n", line.trim_end_matches('\n'))
}

/// Message for an empty result: the records do not cover earlier flows.
fn none_found(coverage: &FlowCoverage) -> String {
    match (&coverage.since, &coverage.kept_since) {
        (None, _) => "the agent does not follow connection tracking yet".into(),
        (Some(since), None) => format!("no matching flow since {since}"),
        (Some(_), Some(kept)) => format!("no matching flow in the records since {kept}"),
    }
}

fn as_text(line: &FlowLine, output: FlowOutput) -> anyhow::Result<String> {
    Ok(match (line, output) {
        (line, FlowOutput::Json) => serde_json::to_string(line)? + "\n",
        (FlowLine::Record(record), FlowOutput::Table) => of_record(record),
        (FlowLine::Lost { lost }, FlowOutput::Table) => {
            format!("(up to {lost} matching records skipped: this client reads too slowly)\n")
        }
    })
}

/// A line for the record.
fn of_record(record: &FlowRecord) -> String {
    let key = &record.key;
    let service = key.service.as_ref().map_or(String::new(), |service| format!(" via {}", of_service(service)));
    let cause = key.drop_cause.as_ref().map_or(String::new(), |cause| format!(" ({cause})"));
    let verdict = key.verdict.as_str();
    let style = match key.verdict {
        FlowVerdict::Allowed => GOOD,
        FlowVerdict::WouldDeny => DOUBTFUL,
        FlowVerdict::Denied => BAD,
    };
    let amounts = match key.verdict {
        FlowVerdict::Denied => format!("{} packets", record.denied_packets),
        FlowVerdict::Allowed | FlowVerdict::WouldDeny => {
            let connections = record.connections;
            let [sent, received] = [record.sent, record.received].map(|volume| amount(volume, record.unknown_volume));
            format!(
                "+{} -{} ={}  {sent} sent  {received} received",
                connections.started, connections.ended, connections.live
            )
        }
    };
    format!(
        "{}  {} -> {}{service}  {}  {style}{verdict}{style:#}{cause}  {amounts}{}\n",
        record.window.strftime("%H:%M:%S"),
        name(&key.source, record.sources.addresses.iter().next()),
        name(&key.destination, record.destinations.addresses.iter().next()),
        traffic(key),
        by(&key.egress, &key.ingress),
    )
}

fn of_group(group: &FlowGroup) -> String {
    let values: Vec<String> = group.by.iter().map(of_value).collect();
    format!(
        "{}  {} connections  {} sent  {} received  {} packets denied\n",
        values.join("  "),
        group.connections.started,
        amount(group.sent, group.unknown_volume),
        amount(group.received, group.unknown_volume),
        group.denied_packets,
    )
}

fn of_value(value: &GroupValue) -> String {
    match value {
        GroupValue::Source(endpoint) => format!("src={}", name(endpoint, None)),
        GroupValue::Destination(endpoint) => format!("dst={}", name(endpoint, None)),
        GroupValue::Port(port) => port.map_or("port=-".into(), |port| format!("port={port}")),
        GroupValue::Protocol(number) => match Protocol::from_number(*number) {
            Some(protocol) => format!("protocol={protocol}"),
            None => format!("protocol={number}"),
        },
        GroupValue::Service(service) => match service {
            Some(service) => format!("service={}", of_service(service)),
            None => "service=-".into(),
        },
        GroupValue::Verdict(verdict) => format!("verdict={}", verdict.as_str()),
        GroupValue::Policy(policies) if policies.is_empty() => "policy=-".into(),
        GroupValue::Policy(policies) => {
            format!("policy={}", policies.iter().map(|p| policy::plain(p)).collect::<Vec<_>>().join(","))
        }
        GroupValue::Node(node) => format!("node={}", policy::plain(node)),
    }
}

fn of_service(service: &ServicePort) -> String {
    policy::plain(&service.to_string())
}

/// The rules that decided, by side.
fn by(egress: &SideTrace, ingress: &SideTrace) -> String {
    let side = |word: &str, trace: &SideTrace| {
        let (word, hits) = match trace.verdict {
            TraceVerdict::WouldAllow => (format!("{word} in audit"), &trace.pending),
            TraceVerdict::WouldDeny => (format!("{word} in audit, would deny"), &trace.pending),
            TraceVerdict::NotAPod
            | TraceVerdict::NotIsolated
            | TraceVerdict::Itself
            | TraceVerdict::OwnNode
            | TraceVerdict::Allowed
            | TraceVerdict::Denied
            | TraceVerdict::Unreadable
            | TraceVerdict::Unknown => (word.to_owned(), &trace.enforced),
        };
        let named: Vec<String> = hits
            .iter()
            .map(|hit| {
                let policy = policy::plain(&hit.policy());
                let tier = hit.tier.map(|tier| format!("({})", tier.as_str()));
                let name = hit.rule_name.as_deref().map(|name| format!("'{}'", policy::plain(name)));
                let rule = hit.rule.as_deref().map(policy::plain);
                [Some(policy), rule, name, tier].into_iter().flatten().collect::<Vec<String>>().join(" ")
            })
            .collect();
        match (named.is_empty(), trace.verdict) {
            (false, _) if !trace.enforced_here => Some(format!("{word} on another node: {}", named.join(", "))),
            (false, _) => Some(format!("{word}: {}", named.join(", "))),
            (true, TraceVerdict::Unknown) => Some(format!("{word}: rules of an earlier generation")),
            (true, _) => None,
        }
    };
    let sides: Vec<String> = [side("egress", egress), side("ingress", ingress)].into_iter().flatten().collect();
    if sides.is_empty() { String::new() } else { format!("  by {}", sides.join("; ")) }
}

fn name(endpoint: &Endpoint, address: Option<&std::net::IpAddr>) -> String {
    let Endpoint { kind, namespace, name, service: _, cluster, network } = endpoint;
    let plain = |text: &Option<std::sync::Arc<str>>| text.as_deref().map(policy::plain);
    let (namespace, name, cluster) = (plain(namespace), plain(name), plain(cluster));
    let named = [namespace, name].into_iter().flatten().collect::<Vec<String>>().join("/");
    let address = address.map_or(String::new(), |address| format!(" ({address})"));
    match kind {
        EndpointKind::Pod => named,
        EndpointKind::Node => format!("node {named}"),
        EndpointKind::KubeApiserver => "kube-apiserver".into(),
        EndpointKind::RemoteCluster => format!("cluster {} {named}", cluster.unwrap_or_default()).trim_end().to_owned(),
        EndpointKind::UnknownPod => format!("unknown pod {named}").trim_end().to_owned() + &address,
        EndpointKind::World => match network {
            Some(Network::Private) => format!("private{address}"),
            Some(Network::Public) | None => format!("world{address}"),
        },
    }
}

/// Bytes with a decimal prefix; `?` if they are unknown, prefixed with `>=` if a part is unknown.
fn amount(volume: Option<Volume>, unknown: u64) -> String {
    let Some(volume) = volume else { return "?".into() };
    let bytes = bytes(volume);
    if unknown > 0 { format!(">={bytes}") } else { bytes }
}

fn bytes(Volume { packets: _, bytes }: Volume) -> String {
    let units = [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match units.into_iter().find(|(size, _)| bytes >= *size) {
        Some((size, unit)) => format!("{}.{} {unit}", bytes / size, bytes % size * 10 / size),
        None => format!("{bytes} B"),
    }
}

/// The records of an explained flow, in one line.
pub(super) fn seen(seen: &SeenFlows) -> String {
    let since = seen.kept_since.as_ref().map_or(String::new(), |since| format!(" since {since}"));
    match &seen.last {
        None if seen.complete => format!("seen: never{since}"),
        None => {
            format!("seen: perhaps{since}: records that may have the flow list only a part of its addresses or ports")
        }
        Some(last) => format!(
            "seen between their workloads: {}{} connections{since}, {} open, {} sent, {} received, {} packets denied; last at {last}",
            if seen.complete { "" } else { "at least " },
            seen.started,
            seen.live,
            amount(seen.sent, seen.unknown_volume),
            amount(seen.received, seen.unknown_volume),
            seen.denied_packets,
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_have_one_decimal_and_unknown_ones_none() {
        for (bytes, expected) in
            [(0, "0 B"), (999, "999 B"), (1_000, "1.0 kB"), (1_950, "1.9 kB"), (12_345_678, "12.3 MB")]
        {
            assert_eq!(amount(Some(Volume { packets: 1, bytes }), 0), expected);
        }
        assert_eq!(amount(None, 0), "?");
        assert_eq!(amount(Some(Volume { packets: 1, bytes: 10 }), 2), ">=10 B");
    }
}
