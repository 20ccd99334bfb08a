//! `ringfence drops`: prints the agent's drop events as they occur.

use std::process::ExitCode;

use ::identity::identities_of_flow;
use console::{BAD, DOUBTFUL, Output, YES};
use policy::Judgement;

use super::until_interrupted;
use crate::api::client;
use crate::api::drops::{Coverage, DropLine, DropsQuery, NamedDrop};
use crate::cli::DropsArguments;
use console::output::{self, ReaderState};

pub(crate) fn drops(arguments: &DropsArguments) -> anyhow::Result<ExitCode> {
    until_interrupted(show(arguments))
}

async fn show(arguments: &DropsArguments) -> anyhow::Result<ExitCode> {
    let DropsArguments { follow, namespace, pod, run_dir, output, .. } = arguments;
    let query =
        DropsQuery { follow: *follow, namespace: namespace.clone(), pod: pod.clone(), verdict: arguments.verdict() };
    let covered = client::coverage(run_dir).await?;
    if !covered.reporting {
        eprintln!("{}", unreported(&covered));
    }
    let mut lines = client::drops(run_dir, &query).await?;
    let mut any = false;
    while let Some(line) = lines.next::<DropLine>().await? {
        any = true;
        let text = match output {
            Output::Json => serde_json::to_string(&line)? + "\n",
            Output::Text => as_text(&line),
        };
        match output::print(&text)? {
            ReaderState::Reads => {}
            ReaderState::Gone => return Ok(YES),
        }
    }
    if !any && covered.reporting {
        eprintln!("{}", none_found(&covered));
    }
    Ok(YES)
}

/// Figures that are known without drop logging.
pub(super) fn unreported(covered: &Coverage) -> String {
    let reason = &covered.reporting_reason;
    let counted = match (covered.denied, covered.would_deny) {
        (Some(denied), Some(would_deny)) => format!("{denied} packets were denied and {would_deny} would have been"),
        (_, _) => "packets are not counted yet".into(),
    };
    format!("denied packets are not reported ({reason}); counters since the agent's start: {counted}")
}

/// Nothing was denied only if every denied packet has a drop event.
fn none_found(covered: &Coverage) -> String {
    let Coverage { kept_since, forgotten_events, unnamed, .. } = covered;
    match (forgotten_events, unnamed) {
        (0, Some(0)) => "no matching packet was denied since the agent's start".into(),
        (_, Some(unnamed)) => {
            format!(
                "no matching event since {kept_since} (older events are evicted); {unnamed} packets are not in any \
                 event"
            )
        }
        (_, None) => {
            format!("no matching event since {kept_since} (older events are evicted); packets are not counted yet")
        }
    }
}

/// A line for the event, and indented lines that help to interpret it.
fn as_text(line: &DropLine) -> String {
    let denial = match line {
        DropLine::Drop(denial) => denial,
        DropLine::Lost { lost } => return format!("({lost} events skipped: this client reads too slowly)\n"),
    };
    let NamedDrop { source, destination, source_identity, destination_identity, traffic, .. } = &**denial;
    let NamedDrop { policies, more_policies, rule, passed_by, closest, would_allow, note, count, .. } = &**denial;
    let (style, verdict) = match denial.verdict {
        Judgement::Denied => (BAD, "denied"),
        Judgement::WouldDeny => (DOUBTFUL, "would-deny"),
    };
    let (time, cause) = (&denial.time, denial.cause.as_str());
    let by = match (rule, policies.is_empty(), more_policies) {
        (Some(rule), ..) => format!("  by {rule}"),
        (None, true, _) => String::new(),
        (None, false, 0) => format!("  by {}", policies.join(", ")),
        (None, false, more) => format!("  by {} and {more} more", policies.join(", ")),
    };
    let mut text =
        format!("{time}  {style}{verdict}{style:#}  {cause}  {source} -> {destination}  {traffic}  x{count}{by}\n");
    let mut add = |words: String| text.push_str(&format!("    {words}\n"));
    passed_by.iter().for_each(|rule| add(format!("passed to the next tier by {rule}")));
    if let Some(near) = closest {
        add(format!("closest rule: {}; it lacks {}", near.rule, near.lacks.join(" and ")));
    }
    would_allow.iter().for_each(|rule| add(format!("{rule} would allow it, but is only audited")));
    identities_of_flow(source_identity.as_ref(), destination_identity.as_ref()).into_iter().for_each(&mut add);
    note.iter().for_each(|note| add(format!("note: {note}")));
    text
}
