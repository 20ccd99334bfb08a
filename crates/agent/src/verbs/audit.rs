//! `ringfence audit`: what audited policies would have denied, and policies that would allow it.

use std::process::ExitCode;

use anyhow::bail;

use super::{YES, output, runtime};
use crate::api::audit::{AuditQuery, AuditReport, AuditedPolicy, SuggestionQuery, SuggestionReport};
use crate::api::client;
use crate::cli::{AuditArguments, DOUBTFUL, GOOD, Output};

pub(crate) fn audit(arguments: &AuditArguments) -> anyhow::Result<ExitCode> {
    let runtime = runtime()?;
    let AuditArguments { suggest, namespace, pod, workload, run_dir, output: form } = arguments;
    match (suggest, namespace) {
        (false, _) => {
            let query = AuditQuery { namespace: namespace.clone() };
            let report = runtime.block_on(client::audit(run_dir, &query))?;
            let text = match form {
                Output::Json => output::json(&report)?,
                Output::Text => as_text(&report),
            };
            output::answer(&text, YES)
        }
        (true, Some(namespace)) => {
            let (pod, workload) = (pod.clone(), workload.clone());
            let query = SuggestionQuery { namespace: namespace.clone(), pod, workload };
            let report = runtime.block_on(client::suggestion(run_dir, &query))?;
            let text = match form {
                Output::Json => output::json(&report)?,
                Output::Text => as_yaml(&report)?,
            };
            if report.policies.is_empty() {
                eprintln!(
                    "no policy is suggested: no flow was seen that one of them would deny and a policy can allow"
                );
            }
            output::answer(&text, YES)
        }
        (true, None) => bail!("--suggest needs --namespace"),
    }
}

fn as_text(report: &AuditReport) -> String {
    let AuditReport { node, since, policies } = report;
    let mut text = format!("On {node}, since {since}:\n");
    if policies.is_empty() {
        text.push_str("no policy is audited\n");
    }
    policies.iter().for_each(|policy| text.push_str(&policy_as_text(policy)));
    text
}

fn policy_as_text(audited: &AuditedPolicy) -> String {
    let AuditedPolicy { policy, would_deny, flows, more_flows, first, last, top } = audited;
    let (Some(first), Some(last)) = (first, last) else {
        return format!("{GOOD}{policy}{GOOD:#}  would have denied nothing\n");
    };
    let at_least = if *more_flows { "more than " } else { "" };
    let mut text = format!(
        "{DOUBTFUL}{policy}{DOUBTFUL:#}  would have denied {would_deny} packets of {at_least}{flows} flows, from {first} to {last}\n"
    );
    for flow in top {
        let (direction, source, destination) = (flow.direction.word(), &flow.source, &flow.destination);
        text.push_str(&format!("    {direction}  {source} -> {destination}  {}  x{}\n", flow.traffic, flow.count));
    }
    let shown = u64::try_from(top.len()).unwrap_or(u64::MAX);
    if *flows > shown {
        text.push_str(&format!("    and {} more flows\n", flows - shown));
    }
    text
}

/// Documents that kubectl takes; what they leave out is in comments.
fn as_yaml(report: &SuggestionReport) -> anyhow::Result<String> {
    let SuggestionReport { policies, notes } = report;
    let mut text: String = notes.iter().map(|note| format!("# {}\n", note.replace(char::is_control, " "))).collect();
    for policy in policies {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(policy)?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_printed_is_read_back_as_it_was() {
        let rule = json!({"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": 80}]});
        let policy = |name: &str| {
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"name": name, "namespace": "shop", "annotations": {"ringfence.io/enforcement": "audit"}},
                "spec": {"podSelector": {"matchLabels": {"app": "true", "n": "1"}}, "ingress": [rule.clone(), {}], "egress": []}
            })
        };
        let policies = vec![policy("a"), policy("b")];
        let report = SuggestionReport { policies: policies.clone(), notes: vec!["a note\nof two lines".into()] };
        let read = cluster::manifest::parse(&as_yaml(&report).unwrap()).unwrap();
        assert_eq!(read.into_iter().map(|document| document.value).collect::<Vec<_>>(), policies);
    }
}
