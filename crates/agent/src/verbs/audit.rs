//! `ringfence audit`: flows that audited policies would have denied, and policies that would allow them.

use std::process::ExitCode;

use anyhow::bail;
use console::{DOUBTFUL, GOOD, Output, YES, output};

use super::drops::unreported;
use super::readiness::audit_cluster;
use super::runtime;
use crate::api::audit::{AuditQuery, AuditReport, AuditedPolicy, SuggestionQuery, SuggestionReport};
use crate::api::client;
use crate::cli::AuditArguments;

pub(crate) fn audit(arguments: &AuditArguments) -> anyhow::Result<ExitCode> {
    if arguments.cluster {
        return audit_cluster(arguments);
    }
    let runtime = runtime()?;
    let AuditArguments { suggest, namespace, pod, workload, cluster: _, days: _, server: _, run_dir, output: form } =
        arguments;
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
            if !report.coverage.reporting {
                eprintln!("{}", unreported(&report.coverage));
            } else if report.policies.is_empty() {
                eprintln!("no policy suggested: no recorded flow is still denied and can be allowed by a policy");
            }
            output::answer(&text, YES)
        }
        (true, None) => bail!("--suggest needs --namespace"),
    }
}

fn as_text(report: &AuditReport) -> String {
    let AuditReport { node, since, policies, coverage } = report;
    let mut text = format!("On {node}, since {since}:\n");
    if !coverage.reporting {
        text.push_str(&format!("{DOUBTFUL}{}{DOUBTFUL:#}\n", unreported(coverage)));
    }
    if let Some(unnamed @ 1..) = coverage.unnamed {
        text.push_str(&format!(
            "{unnamed} packets that were denied, or would have been, are not in any event or policy listed here\n"
        ));
    }
    if policies.is_empty() {
        text.push_str("no audited policies\n");
    }
    policies.iter().for_each(|policy| text.push_str(&policy_as_text(policy, coverage.reporting)));
    text
}

fn policy_as_text(audited: &AuditedPolicy, reporting: bool) -> String {
    let AuditedPolicy { policy, would_deny, flows, more_flows, first, last, remaining, top } = audited;
    let (Some(first), Some(last)) = (first, last) else {
        if !reporting {
            return format!("{DOUBTFUL}{policy}{DOUBTFUL:#}  is audited; the packets it would deny are unknown\n");
        }
        return format!("{GOOD}{policy}{GOOD:#}  would have denied nothing\n");
    };
    let at_least = if *more_flows { "more than " } else { "" };
    let mut text = format!(
        "{DOUBTFUL}{policy}{DOUBTFUL:#}  would have denied {would_deny} packets of {at_least}{flows} flows, from \
         {first} to {last}\n"
    );
    for flow in top {
        let (direction, source, destination) = (flow.direction.as_str(), &flow.source, &flow.destination);
        let (traffic, count, last) = (&flow.traffic, flow.count, &flow.last);
        text.push_str(&format!("    {direction}  {source} -> {destination}  {traffic}  x{count}  last {last}\n"));
    }
    let shown = u64::try_from(top.len()).unwrap_or(u64::MAX);
    if *remaining > shown {
        text.push_str(&format!("    and {} more flows\n", remaining - shown));
    }
    if *remaining == 0 {
        text.push_str("    none of the recorded flows would still be denied\n");
    }
    text
}

/// YAML documents for kubectl; comments list what they omit.
fn as_yaml(report: &SuggestionReport) -> anyhow::Result<String> {
    let SuggestionReport { policies, notes, coverage: _ } = report;
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
    use crate::api::drops::Coverage;

    #[test]
    fn printed_policies_parse_back_unchanged() {
        let rule = json!({"from": [{"podSelector": {}}], "ports": [{"protocol": "TCP", "port": 80}]});
        let policy = |name: &str| {
            json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"name": name, "namespace": "shop", "annotations": {"ringfence.io/enforcement": "audit"}},
                "spec": {"podSelector": {"matchLabels": {"app": "true", "n": "1"}}, "ingress": [rule.clone(), {}], "egress": []}
            })
        };
        let policies = vec![policy("a"), policy("b")];
        let coverage = Coverage { reporting: true, ..Coverage::default() };
        let notes = vec!["a note\nof two lines".into()];
        let report = SuggestionReport { policies: policies.clone(), notes, coverage };
        let read = cluster::manifest::parse(&as_yaml(&report).unwrap()).unwrap();
        assert_eq!(read.into_iter().map(|document| document.value).collect::<Vec<_>>(), policies);
    }
}
