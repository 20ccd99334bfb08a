//! `ringfence suggest`: policies that allow the flows of the whole cluster over days.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use console::{YES, output};
use insight::{EdgeWithoutRule, NamespaceChoice, SuggestedPolicy, Suggestions, suggest};
use jiff::Timestamp;
use policy::plain;

use super::what_if::name;
use super::{manifests, runtime};
use crate::api::flow_server::FlowServer;
use crate::api::observed::FlowSource;
use crate::cli::{ObservationArguments, SuggestArguments, SuggestionOutput};

/// Where observed flows are compared with policies.
pub(super) enum SuggestSource {
    /// At the aggregator, which watches the cluster.
    AtAggregator(FlowServer),
    /// Here, with the objects of this folder.
    Here(FlowSource, PathBuf),
}

pub(super) fn observed(arguments: &ObservationArguments) -> anyhow::Result<SuggestSource> {
    match (arguments.server.server()?, arguments.loki()?, &arguments.manifests) {
        (Some(server), None, None) => Ok(SuggestSource::AtAggregator(server)),
        (Some(server), None, Some(folder)) => Ok(SuggestSource::Here(FlowSource::Aggregator(server), folder.clone())),
        (None, Some(loki), Some(folder)) => Ok(SuggestSource::Here(FlowSource::Loki(loki), folder.clone())),
        (_, Some(_), _) => bail!("give either --server, or --loki with --manifests"),
        (None, None, _) => bail!("no flows given: choose an aggregator with --server, or Loki with --loki"),
    }
}

pub(crate) fn suggest_verb(arguments: &SuggestArguments) -> anyhow::Result<ExitCode> {
    let suggestions = runtime()?.block_on(found(arguments))?;
    if let Some(name) = suggestions.unknown_namespaces.first() {
        bail!(
            "unknown namespace '{}': it does not exist, and no flow of it was seen; --all-namespaces (-A) selects all",
            plain(name)
        );
    }
    let text = match arguments.output {
        SuggestionOutput::Json => output::json(&suggestions)?,
        SuggestionOutput::Yaml => as_yaml(&suggestions),
        SuggestionOutput::Diff => as_diff(&suggestions),
    };
    if suggestions.policies.is_empty() {
        match suggestions.edges {
            0 => eprintln!(
                "no policy suggested: no flow of these namespaces was seen in {} days",
                arguments.observation.days
            ),
            1 => eprintln!("no policy suggested: no rule can be written for the only edge of these namespaces"),
            edges => eprintln!("no policy suggested: no rule can be written for the {edges} edges of these namespaces"),
        }
    }
    output::answer(&text, YES)
}

async fn found(arguments: &SuggestArguments) -> anyhow::Result<Suggestions> {
    let (observation, scope) = (&arguments.observation, arguments.scope());
    let since = observation.since(Timestamp::now());
    match observed(observation)? {
        SuggestSource::AtAggregator(server) => server.suggestions(&scope, since).await,
        SuggestSource::Here(source, folder) => {
            let manifests = manifests::read(&folder, observation.enforcement.by_default())?;
            manifests.report_problems();
            manifests.require_pods(&folder)?;
            let namespaces = match &scope.namespaces {
                NamespaceChoice::Named(names) => names.clone(),
                NamespaceChoice::AllBut(_) => Default::default(),
            };
            let edges = source.edges(&namespaces, since, true).await?;
            Ok(suggest(&manifests.state, &scope, &edges))
        }
    }
}

fn as_yaml(suggestions: &Suggestions) -> String {
    let mut text = comments(suggestions);
    for SuggestedPolicy { yaml, .. } in &suggestions.policies {
        text.push_str("---\n");
        text.push_str(yaml);
    }
    text
}

fn as_diff(suggestions: &Suggestions) -> String {
    let mut text = comments(suggestions);
    for SuggestedPolicy { namespace, name, comments, existing, diff, .. } in &suggestions.policies {
        comments.iter().for_each(|comment| text.push_str(&comment_line(comment)));
        let existing = existing.as_ref().map_or("(none)".into(), |existing| plain(existing));
        text.push_str(&format!("--- {existing}\n+++ {}/{}\n{diff}", plain(namespace), plain(name)));
    }
    text
}

/// Remarks that the policies do not contain, as comments of YAML.
fn comments(
    Suggestions { policies: _, without_rule, notes, edges: _, denied, unknown_namespaces: _ }: &Suggestions,
) -> String {
    let mut text: String = notes.iter().map(|note| comment_line(note)).collect();
    if *denied > 0 {
        let were = if *denied == 1 {
            "edge of these namespaces was denied and gets"
        } else {
            "edges of these namespaces were denied and get"
        };
        text.push_str(&comment_line(&format!("{denied} {were} no rule")));
    }
    for EdgeWithoutRule { edge, direction, reason } in without_rule {
        text.push_str(&comment_line(&format!("no {} rule: {}: {reason}", direction.as_str(), name(edge))));
    }
    text
}

fn comment_line(text: &str) -> String {
    format!("# {}\n", text.replace(char::is_control, " "))
}
