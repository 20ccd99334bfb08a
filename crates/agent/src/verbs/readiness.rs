//! `ringfence audit --cluster`: whether audited policies can be enforced, by the evidence of all nodes.

use std::process::ExitCode;

use anyhow::bail;
use console::{BAD, DOUBTFUL, GOOD, NO, Output, YES, output};
use flow::Endpoint;
use insight::{NodeGap, PolicyReadiness, WouldDeny, span};

use super::runtime;
use crate::api::readiness::{ReadinessReport, readiness};
use crate::cli::AuditArguments;
use crate::flows::traffic_to;

/// Limit of the nodes named in the text.
const LISTED_NODES: usize = 5;

pub(super) fn audit_cluster(arguments: &AuditArguments) -> anyhow::Result<ExitCode> {
    let Some(server) = arguments.server.server()? else {
        bail!("--cluster needs --server: the aggregator has the records of all nodes")
    };
    let asked = readiness(&server, arguments.days, arguments.namespace.as_ref());
    let report = runtime()?.block_on(asked)?;
    let is_ready = report.policies.iter().all(|policy| policy.ready);
    let text = match arguments.output {
        Output::Json => output::json(&report)?,
        Output::Text => as_text(&report),
    };
    output::answer(&text, if is_ready { YES } else { NO })
}

fn as_text(report: &ReadinessReport) -> String {
    let ReadinessReport {
        kept: _,
        policies_known: _,
        namespace_known: _,
        days,
        now,
        nodes,
        unreported,
        policies,
        problems,
    } = report;
    let mut text =
        format!("At {now:.0}, required: {days} days without a flow that the policy would deny, {nodes} nodes:\n");
    for problem in problems {
        text.push_str(&format!("{DOUBTFUL}note:{DOUBTFUL:#} {problem}\n"));
    }
    if !unreported.is_empty() {
        let list: Vec<String> = unreported.iter().take(LISTED_NODES).map(gap_text).collect();
        let more = unreported.len().saturating_sub(LISTED_NODES);
        let more = if more > 0 { format!(", and {more} more") } else { String::new() };
        text.push_str(&format!("nodes that did not report for some of the time: {}{more}\n", list.join(", ")));
    }
    if policies.is_empty() {
        text.push_str("no audited policies\n");
    }
    policies.iter().for_each(|policy| text.push_str(&policy_text(policy)));
    text
}

fn policy_text(readiness: &PolicyReadiness) -> String {
    let PolicyReadiness {
        policy,
        since,
        observed_seconds,
        clean_seconds,
        records: _,
        connections,
        packets,
        last,
        unreported: _,
        ready,
        reasons,
        steps,
    } = readiness;
    let (style, word) = if *ready { (GOOD, "ready") } else { (BAD, "not ready") };
    let (clean, observed) = (span(*clean_seconds), span(*observed_seconds));
    let mut text = format!(
        "{style}{policy}{style:#}  {word}: {clean} without a would-deny, observed for {observed}, since {since:.0}\n"
    );
    if let Some(last) = last {
        let packets = if *packets > 0 { format!(", {packets} packets") } else { String::new() };
        text.push_str(&format!("    would have denied {connections} connections{packets}; the last flow:\n"));
        text.push_str(&format!("    {}\n", flow_text(last)));
    }
    for reason in reasons {
        text.push_str(&format!("    {DOUBTFUL}not ready:{DOUBTFUL:#} {reason}\n"));
    }
    match steps {
        Some(steps) => {
            text.push_str(&format!("    enforce it:   {}\n    audit again:  {}\n", steps.enforce, steps.undo));
        }
        None => text.push_str("    (no commands: the API server does not accept this name)\n"),
    }
    text
}

fn flow_text(last: &WouldDeny) -> String {
    let WouldDeny { at, direction, source, destination, protocol, port, service, node, source_pods, destination_pods } =
        last;
    let end = |end: &Endpoint, pods: &[std::sync::Arc<str>]| match pods.first() {
        Some(pod) => format!("{end} ({pod})"),
        None => end.to_string(),
    };
    let via = service.as_ref().map_or(String::new(), |service| format!(" via {service}"));
    let direction = match direction {
        flow::PolicySide::Egress => "egress",
        flow::PolicySide::Ingress => "ingress",
    };
    format!(
        "{at:.0}  {direction}  {} -> {}{via}  {}  reported by {node}",
        end(source, source_pods),
        end(destination, destination_pods),
        traffic_to(*protocol, *port)
    )
}

fn gap_text(gap: &NodeGap) -> String {
    let NodeGap { node, seconds, last_reported, is_silent } = gap;
    match (is_silent, last_reported) {
        (true, None) => format!("{node} (never)"),
        (true, Some(last_reported)) => format!("{node} (silent since {last_reported:.0})"),
        (false, _) => format!("{node} ({})", span(*seconds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_reasons_and_commands() {
        let end = |name: &str| {
            format!(
                r#"{{"kind":"pod","namespace":"shop","name":"{name}","service":null,"cluster":null,"network":null}}"#
            )
        };
        let text = format!(
            r#"{{"kept":true,"policiesKnown":true,"namespaceKnown":true,"days":7,"now":"2026-05-11T12:00:00Z","nodes":2,"problems":[],
            "unreported":[{{"node":"n2","seconds":600,"lastReported":null,"isSilent":true}}],
            "policies":[{{"policy":{{"namespace":"shop","name":"api","kind":"NetworkPolicy"}},"since":"2026-05-04T12:00:00Z",
            "observedSeconds":604800,"cleanSeconds":90000,"records":1,"connections":2,"packets":3,
            "last":{{"at":"2026-05-10T11:00:00Z","direction":"ingress","source":{},"destination":{},"protocol":6,"port":81,
            "service":null,"node":"n1","sourcePods":["shop/web-1"],"destinationPods":[]}},"unreported":[],"ready":false,
            "reasons":["it would have denied a flow"],"steps":{{"enforce":"kubectl annotate x","undo":"kubectl annotate y"}}}}]}}"#,
            end("web"),
            end("api")
        );
        let report: ReadinessReport = serde_json::from_str(&text).unwrap();
        let text = as_text(&report);
        for part in [
            "7 days without",
            "n2 (never)",
            "not ready: ",
            "25 hours without a would-deny, observed for 7 days",
            "ingress  shop/web (shop/web-1) -> shop/api  81/tcp  reported by n1",
            "it would have denied a flow",
            "enforce it:   kubectl annotate x",
            "audit again:  kubectl annotate y",
        ] {
            assert!(text.contains(part), "{part:?} is missing in:\n{text}");
        }
    }
}
