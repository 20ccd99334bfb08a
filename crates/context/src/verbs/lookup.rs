//! `ringfence-context lookup`: the record of an address.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;

use ::identity::ReservedIdentity;
use anyhow::Context;
use bytes::Bytes;
use console::{DOUBTFUL, GOOD, NO, Output, YES, output};
use serde::{Deserialize, Serialize};

use super::runtime;
use crate::cli::LookupArguments;
use crate::consumer;
use crate::history::LookupAnswer;
use crate::identity::{self, RecordFields};
use crate::mmdb::DatabaseType;
use crate::mmdb::read::Database;

#[derive(Serialize)]
struct LookupOutput<R> {
    ip: IpAddr,
    /// `None` for an address without a known owner.
    record: Option<R>,
}

/// A record of a database of numbers.
#[derive(Serialize, Deserialize)]
struct Number {
    num: u32,
}

pub(crate) fn lookup(arguments: &LookupArguments) -> anyhow::Result<ExitCode> {
    if let Some(at) = &arguments.at {
        return lookup_past(arguments, at);
    }
    let bytes = runtime()?.block_on(consumer::read(&arguments.from, identity::FEED, "baseline"))?;
    let database = Database::open(bytes).context("the baseline of identities")?;
    match database.database_type() {
        DatabaseType::Identities => answer(arguments, &database, |who: &RecordFields| (who.num, lines(who))),
        DatabaseType::Numbers => answer(arguments, &database, |number: &Number| (number.num, number.num.to_string())),
    }
}

fn answer<'d, R: Serialize + Deserialize<'d>>(
    arguments: &LookupArguments,
    database: &'d Database<Bytes>,
    shown: impl Fn(&R) -> (u32, String),
) -> anyhow::Result<ExitCode> {
    let mut answers: Vec<LookupOutput<R>> = Vec::new();
    for ip in &arguments.addresses {
        answers.push(LookupOutput { ip: *ip, record: database.lookup(*ip)? });
    }
    let text = |answer: &LookupOutput<R>| headed(answer.ip, answer.record.as_ref().map(&shown)) + "\n";
    let is_known = |answer: &LookupOutput<R>| answer.record.as_ref().is_some_and(|record| is_holder(shown(record).0));
    let text = match arguments.from.output {
        Output::Json => output::json(&answers)?,
        Output::Text => answers.iter().map(text).collect(),
    };
    output::answer(&text, if answers.iter().all(is_known) { YES } else { NO })
}

/// Whether the number means a known owner: `world` does not.
fn is_holder(num: u32) -> bool {
    num != ReservedIdentity::World.num()
}

/// Queries the history of a provider.
fn lookup_past(arguments: &LookupArguments, at: &str) -> anyhow::Result<ExitCode> {
    let runtime = runtime()?;
    let mut bodies = Vec::new();
    for ip in &arguments.addresses {
        let asked = consumer::lookup_past(&arguments.from, identity::FEED, *ip, at);
        bodies.push(runtime.block_on(asked).with_context(|| ip.to_string())?);
    }
    let answers = bodies.iter().map(|body| serde_json::from_slice(body)).collect::<Result<Vec<LookupAnswer>, _>>();
    let answers = answers.context("the provider's answer is no record: expected ringfence-context")?;
    let text = match arguments.from.output {
        Output::Json => output::json(&answers)?,
        Output::Text => answers.iter().map(past_text).collect(),
    };
    let is_known = |answer: &LookupAnswer| answer.record.as_ref().is_some_and(|record| is_holder(record.num));
    output::answer(&text, if answers.iter().all(is_known) { YES } else { NO })
}

/// An address and its record.
fn headed(ip: IpAddr, shown: Option<(u32, String)>) -> String {
    match shown {
        Some((num, lines)) if is_holder(num) => format!("{GOOD}{ip}{GOOD:#}  {lines}"),
        Some((_, lines)) => format!("{DOUBTFUL}{ip}{DOUBTFUL:#}  {lines}"),
        None => format!("{DOUBTFUL}{ip}{DOUBTFUL:#}  not found"),
    }
}

fn past_text(answer: &LookupAnswer) -> String {
    let LookupAnswer { ip, at, record, from, until, oldest, started } = answer;
    let from = from.clone().unwrap_or_else(|| format!("before {oldest}"));
    let until = until.as_deref().unwrap_or("now");
    let lines = [("at", at.clone()), ("valid", format!("{from} to {until}")), ("history", format!("since {started}"))];
    let lines: String = lines.iter().map(|(name, value)| format!("\n  {name:<10} {value}")).collect();
    headed(*ip, record.as_ref().map(|record| (record.num, self::lines(record)))) + &lines + "\n"
}

fn lines(who: &RecordFields) -> String {
    let mut text = name(who);
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
    text
}

/// `namespace/workload`, preceded by the cluster for a pod of another cluster; a node has no namespace.
fn name(who: &RecordFields) -> String {
    let parts = [who.cluster.as_deref().unwrap_or(""), &who.namespace, &who.workload];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(record: serde_json::Value) -> Vec<String> {
        let mut whole = json!({
            "app": "a", "internet_exposed": false, "control_plane": false, "role": "internal", "service": "",
        });
        whole.as_object_mut().unwrap().extend(record.as_object().unwrap().clone());
        let record: RecordFields = serde_json::from_value(whole).unwrap();
        let text = headed("192.0.2.1".parse().unwrap(), Some((record.num, super::lines(&record))));
        let plain = anstream::adapter::strip_str(&text).to_string();
        plain.lines().map(str::trim).map(String::from).collect()
    }

    #[test]
    fn node_is_printed_with_what_it_runs() {
        let workloads = json!(["kube-system/etcd", "kube-system/kube-proxy"]);
        let record = json!({
            "workload": "node-a", "namespace": "", "num": 1, "state": "host", "node": "node-a", "host_workloads": workloads,
        });
        let lines = lines(record);
        assert_eq!(lines[0], "192.0.2.1  node-a");
        for expected in [
            "identity   1",
            "state      host",
            "node       node-a",
            "runs       kube-system/etcd, kube-system/kube-proxy",
        ] {
            assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:?}");
        }
    }

    #[test]
    fn remote_pod_is_printed_with_its_cluster() {
        let lines =
            lines(json!({"workload": "web", "namespace": "shop", "num": 9, "state": "remote", "cluster": "east"}));
        assert_eq!(lines[0], "192.0.2.1  east/shop/web");
        assert!(lines.contains(&"cluster    east".to_owned()), "{lines:?}");
    }
}
