//! `ringfence-context lookup`: who has an address.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;

use anyhow::Context;
use console::{DOUBTFUL, GOOD, NO, Output, YES, output};
use serde::Serialize;

use super::runtime;
use crate::cli::LookupArguments;
use crate::consumer;
use crate::identity::{self, Who};
use crate::mmdb::read::Database;

#[derive(Serialize)]
struct Answer<'a> {
    ip: IpAddr,
    /// None for an address that nobody is known to have.
    record: Option<Who<'a>>,
}

pub(crate) fn lookup(arguments: &LookupArguments) -> anyhow::Result<ExitCode> {
    let bytes = runtime()?.block_on(consumer::read(&arguments.from.from, identity::FEED, "baseline"))?;
    let database = Database::open(bytes).context("the baseline of identities")?;
    let mut answers = Vec::new();
    for ip in &arguments.addresses {
        answers.push(Answer { ip: *ip, record: database.lookup(*ip)? });
    }
    let text = match arguments.from.output {
        Output::Json => output::json(&answers)?,
        Output::Text => answers.iter().map(text).collect(),
    };
    output::answer(&text, if answers.iter().all(|answer| answer.record.is_some()) { YES } else { NO })
}

fn text(answer: &Answer) -> String {
    let Some(who) = &answer.record else {
        return format!("{DOUBTFUL}{}{DOUBTFUL:#}  not found\n", answer.ip);
    };
    let mut text = format!("{GOOD}{}{GOOD:#}  {}", answer.ip, name(who));
    let mut line = |name: &str, value: &str| {
        if !value.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n  {name:<10} {value}");
        }
    };
    line("app", &who.app);
    line("role", &who.role);
    line("service", &who.service);
    line("identity", &who.sid.map_or_else(|| who.num.to_string(), |sid| format!("{sid} ({})", who.num)));
    line("state", who.state.as_deref().unwrap_or(""));
    line("cluster", who.cluster.as_deref().unwrap_or(""));
    line("pod", who.pod.as_deref().unwrap_or(""));
    line("node", who.node.as_deref().unwrap_or(""));
    line("runs", &who.host_workloads.join(", "));
    let labels: Vec<String> = who.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    line("labels", &labels.join(", "));
    text + "\n"
}

/// `namespace/workload`; a node has no namespace.
pub(super) fn name(who: &Who) -> String {
    if who.namespace.is_empty() { who.workload.to_string() } else { format!("{}/{}", who.namespace, who.workload) }
}
