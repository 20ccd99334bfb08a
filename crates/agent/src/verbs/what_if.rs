//! `ringfence what-if`: effects of a policy change on observed flows.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use console::{BAD, DOUBTFUL, GOOD, NO, Output, YES, output};
use insight::{ChangedEdge, EdgeName, Effect, PolicyChanges, PolicyOutcome, UnevaluatedEdge, WhatIf, what_if};
use jiff::Timestamp;
use policy::{Direction, Explanation, SideVerdict, Traffic, plain};

use super::suggest::{SuggestSource, observed};
use super::{manifests, runtime};
use crate::cli::WhatIfArguments;

/// Limit of all policy files together: many times the policies of a cluster.
const LARGEST_INPUT_BYTES: u64 = 8 << 20;

/// Edges that are listed under each effect as text.
const MOST_LISTED: usize = 100;

pub(crate) fn what_if_verb(arguments: &WhatIfArguments) -> anyhow::Result<ExitCode> {
    let given = arguments.filename.iter().map(|path| read(path)).collect::<anyhow::Result<Vec<String>>>()?;
    let report = runtime()?.block_on(compare(arguments, &given))?;
    let text = match arguments.output {
        Output::Json => output::json(&report)?,
        Output::Text => as_text(&report),
    };
    let is_doubtful =
        arguments.strict && (report.has_errors() || report.misses_policy() || !report.not_evaluated.is_empty());
    output::answer(&text, if report.denies() || is_doubtful { NO } else { YES })
}

async fn compare(arguments: &WhatIfArguments, given: &[String]) -> anyhow::Result<WhatIf> {
    let observation = &arguments.observation;
    let since = observation.since(Timestamp::now());
    let mut objects = Vec::new();
    for (path, text) in arguments.filename.iter().zip(given) {
        let name = path.display().to_string();
        let folder = cluster::read_text::<policy::Object>(&name, text).with_context(|| name.clone())?;
        if let Some(problem) = folder.problems.first() {
            bail!("{problem}");
        }
        if folder.ignored > 0 {
            bail!("{name} has objects that are not policies; give NetworkPolicy and ClusterNetworkPolicy only");
        }
        if folder.objects.is_empty() {
            bail!("{name} has no policies; give NetworkPolicy and ClusterNetworkPolicy");
        }
        objects.extend(folder.objects.into_iter().map(|located| located.object));
    }
    let changes = PolicyChanges::new(objects, arguments.delete.iter().cloned())?;
    match observed(observation)? {
        SuggestSource::AtAggregator(server) => {
            // Documents of several files are one text.
            server.what_if(&given.join("\n---\n"), &arguments.delete, since).await
        }
        SuggestSource::Here(source, folder) => {
            let manifests = manifests::read(&folder, observation.enforcement.by_default())?;
            manifests.report_problems();
            manifests.require_pods(&folder)?;
            let edges = source.edges(&changes.namespaces().unwrap_or_default(), since, false).await?;
            Ok(what_if(&manifests.state, &changes, &edges))
        }
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => std::io::stdin().take(LARGEST_INPUT_BYTES + 1).read_to_string(&mut text),
        false => {
            std::fs::File::open(path).and_then(|file| file.take(LARGEST_INPUT_BYTES + 1).read_to_string(&mut text))
        }
    };
    read.with_context(|| format!("cannot read {}", path.display()))?;
    if text.len() as u64 > LARGEST_INPUT_BYTES {
        bail!("{} is larger than {} MiB", path.display(), LARGEST_INPUT_BYTES >> 20);
    }
    Ok(text)
}

fn as_text(report: &WhatIf) -> String {
    let WhatIf { policies, findings, edges, unchanged, changed, not_evaluated } = report;
    let mut text = String::new();
    for policy in policies {
        let action = match policy.action {
            PolicyOutcome::Created => "would be created",
            PolicyOutcome::Changed => "would be changed",
            PolicyOutcome::Deleted => "would be deleted",
            PolicyOutcome::Unchanged => "exists as given",
            PolicyOutcome::NotFound => "does not exist",
        };
        let _ = writeln!(text, "{} {action}", policy.policy);
    }
    for finding in findings {
        let style = if finding.severity == "error" { BAD } else { DOUBTFUL };
        let _ = writeln!(text, "{style}{}{style:#}: {}", finding.severity, finding.message);
    }
    for effect in Effect::ALL {
        let of_effect: Vec<&ChangedEdge> = changed.iter().filter(|edge| edge.effect == effect).collect();
        of_effect.iter().take(MOST_LISTED).for_each(|edge| text.push_str(&changed_as_text(edge)));
        if of_effect.len() > MOST_LISTED {
            let _ = writeln!(text, "and {} more edges: {}", of_effect.len() - MOST_LISTED, words(effect).1);
        }
    }
    for UnevaluatedEdge { edge, reason } in not_evaluated.iter().take(MOST_LISTED) {
        let _ = writeln!(text, "{DOUBTFUL}not evaluated{DOUBTFUL:#}  {}: {reason}", name(edge));
    }
    let counted = Effect::ALL.into_iter().filter_map(|effect| {
        let count = changed.iter().filter(|edge| edge.effect == effect).count();
        (count > 0).then(|| format!("{count} {}", words(effect).1))
    });
    let mut counts: Vec<String> = counted.collect();
    counts.push(format!("{unchanged} unchanged"));
    if !not_evaluated.is_empty() {
        counts.push(format!("{} not evaluated", not_evaluated.len()));
    }
    let _ = writeln!(text, "{edges} observed edges: {}", counts.join(", "));
    text
}

fn words(effect: Effect) -> (anstyle::Style, &'static str) {
    match effect {
        Effect::NewlyDenied => (BAD, "newly denied"),
        Effect::NewlyWouldDeny => (DOUBTFUL, "newly denied if enforced"),
        Effect::NewlyAllowed => (GOOD, "newly allowed"),
        Effect::NoLongerWouldDeny => (GOOD, "no longer denied if enforced"),
        Effect::OtherRule => (anstyle::Style::new(), "decided by another rule"),
    }
}

fn changed_as_text(changed: &ChangedEdge) -> String {
    let ChangedEdge { edge, effect, flows, judged, before, after } = changed;
    let (style, words) = words(*effect);
    let part = if flows == judged { String::new() } else { format!("  {flows} of {judged} flows") };
    let (connections, last) = (edge.connections, edge.last);
    let mut text = format!("{style}{words}{style:#}  {}{part}  ({connections} connections, last {last})\n", name(edge));
    let _ = writeln!(text, "  {} -> {}", before.source, before.destination);
    for direction in Direction::BOTH {
        let [old, new] = [side(before, direction), side(after, direction)];
        if old != new {
            let _ = writeln!(text, "  {} now: {}", direction.as_str(), indented(old));
            let _ = writeln!(text, "  {} then: {}", direction.as_str(), indented(new));
        }
    }
    text
}

fn side(explanation: &Explanation, direction: Direction) -> &SideVerdict {
    match direction {
        Direction::Egress => &explanation.egress,
        Direction::Ingress => &explanation.ingress,
    }
}

fn indented(side: &SideVerdict) -> String {
    side.to_string().replace('\n', "\n  ")
}

/// `shop/web -> shop/api 8080/tcp`
pub(super) fn name(edge: &EdgeName) -> String {
    let traffic = match (nft::Protocol::from_number(edge.protocol), edge.port) {
        (Some(protocol), Some(port)) => Traffic::Port(protocol, port).to_string(),
        (Some(protocol), None) => format!("many ports/{protocol}"),
        (None, _) => Traffic::Portless.to_string(),
    };
    let end = |end: &flow::Endpoint| plain(&end.to_string());
    format!("{} -> {} {traffic}", end(&edge.source), end(&edge.destination))
}
