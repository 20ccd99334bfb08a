//! Implementations of the verbs.

mod agent;
mod audit;
mod doctor;
mod drops;
mod flows;
mod identity;
mod install_cni;
mod manifests;
mod probe;
mod readiness;
mod rules;
mod status;
mod suggest;
mod uninstall;
mod what_if;

use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

use ::identity::identities_of_flow;
use anyhow::bail;
use console::{BAD, DOUBTFUL, GOOD, NO, Output, YES, output};
use policy::{Severity, explain_ambient, explain_domain_names, explain_named, translate};

use crate::api::client::{self, RequestError};
use crate::api::{ExplainQuery, ExplainResponse};
use crate::cli::{CheckArguments, ExplainArguments, RenderArguments};
use crate::identities::explained;
use crate::reports::{AddressContext, DENIED_PACKETS, DNS_ANSWERS, Ends};

pub(crate) use self::identity::identity;
pub(crate) use agent::agent;
pub(crate) use audit::audit;
pub(crate) use doctor::doctor;
pub(crate) use drops::drops;
pub(crate) use flows::flows;
pub(crate) use install_cni::install_cni;
pub(crate) use probe::probe;
pub(crate) use rules::rules;
pub(crate) use status::status;
pub(crate) use suggest::suggest_verb as suggest;
pub(crate) use uninstall::uninstall;
pub(crate) use what_if::what_if_verb as what_if;

pub(crate) fn render(arguments: &RenderArguments) -> anyhow::Result<ExitCode> {
    let mut manifests = manifests::read(&arguments.manifests, arguments.enforcement.by_default())?;
    manifests.require_node(&arguments.node_name)?;
    if let Some(run_dir) = &arguments.run_dir {
        manifests.attach(run_dir)?;
    }
    manifests.report_problems();
    let reporting = &arguments.reporting;
    let layout = arguments.table.layout()?.logging_to(reporting.nflog_group.group(&DENIED_PACKETS));
    let layout = layout.copying_dns_answers_to(reporting.dns_nflog_group.group(&DNS_ANSWERS));
    let translation = translate(&manifests.state, &arguments.node_name, &layout);
    for diagnostic in translation.diagnostics.iter() {
        anstream::eprintln!("{BAD}not understood:{BAD:#} {diagnostic}");
    }
    let ruleset = translation.ruleset.in_first_generation();
    let tables = [Some(&ruleset), translation.bridge.as_ref(), translation.edge.as_ref()];
    let mut text = String::new();
    for table in tables.into_iter().flatten() {
        if let Some(defect) = table.validate().first() {
            bail!("invalid ruleset, please report this: {defect}");
        }
        write!(text, "{table}")?;
    }
    let status = if manifests.problems.is_empty() { YES } else { NO };
    output::answer(&text, status)
}

/// JSON output of `check`.
#[derive(serde::Serialize)]
struct Findings {
    /// Files and documents that could not be read.
    problems: Vec<cluster::Problem>,
    findings: Vec<policy::Diagnostic>,
}

pub(crate) fn check(arguments: &CheckArguments) -> anyhow::Result<ExitCode> {
    let manifests = manifests::read(&arguments.manifests, arguments.enforcement.by_default())?;
    let findings = Findings { findings: policy::check(&manifests.state), problems: manifests.problems };
    let errors = findings.problems.len() + count(&findings, Severity::Error);
    let warnings = count(&findings, Severity::Warning);
    let text = match arguments.output {
        Output::Json => output::json(&findings)?,
        Output::Text => {
            let mut text = as_text(&findings)?;
            let policies = manifests.state.policy_count() + manifests.state.cluster_policy_count();
            writeln!(text, "{policies} policies checked: {errors} errors, {warnings} warnings")?;
            if manifests.ignored > 0 {
                writeln!(text, "{} objects of other kinds ignored", manifests.ignored)?;
            }
            text
        }
    };
    output::answer(&text, if errors > 0 || (arguments.strict && warnings > 0) { NO } else { YES })
}

fn as_text(findings: &Findings) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for problem in &findings.problems {
        writeln!(text, "{BAD}error{BAD:#}: {problem}")?;
    }
    for finding in &findings.findings {
        let style = match finding.severity {
            Severity::Error => BAD,
            Severity::Warning => DOUBTFUL,
        };
        writeln!(text, "{style}{}{style:#}: {finding}", finding.severity)?;
    }
    Ok(text)
}

fn count(findings: &Findings, severity: Severity) -> usize {
    findings.findings.iter().filter(|f| f.severity == severity).count()
}

pub(crate) fn explain(arguments: &ExplainArguments) -> anyhow::Result<ExitCode> {
    let explanations = match &arguments.manifests {
        Some(folder) => {
            let manifests = manifests::read(folder, arguments.enforcement.by_default())?;
            manifests.report_problems();
            let found = explain_named(&manifests.state, &arguments.source, &arguments.destination, &arguments.traffic)?;
            let (identities, place) = (arguments.scheme.identities(Some(folder)), AddressContext::default());
            let ends = Ends { state: &manifests.state, place: &place, scheme: identities.scheme() };
            let explained = |explanation| {
                let ambient = explain_ambient(&manifests.state, &explanation);
                let names = explain_domain_names(&manifests.state, &explanation);
                explained(&ends, explanation, ambient.into_iter().chain(names).collect())
            };
            found.into_iter().map(explained).collect()
        }
        None => ask_agent(arguments)?,
    };
    let text = match arguments.output {
        Output::Json => output::json(&explanations)?,
        Output::Text => explanations.iter().map(in_colour).collect(),
    };
    output::answer(&text, if explanations.iter().all(|e| e.explanation.allowed) { YES } else { NO })
}

fn in_colour(explained: &ExplainResponse) -> String {
    let ExplainResponse { explanation, source_identity, destination_identity, notes, seen } = explained;
    let text = explanation.to_string();
    let (style, verdict) = if explanation.allowed { (GOOD, "ALLOWED") } else { (BAD, "DENIED") };
    let notes: String = notes.iter().map(|note| format!("  {DOUBTFUL}note:{DOUBTFUL:#} {note}\n")).collect();
    let identities = identities_of_flow(source_identity.as_ref(), destination_identity.as_ref());
    let identities: String = identities.into_iter().map(|words| format!("  {words}\n")).collect();
    let seen = seen.as_ref().map_or(String::new(), |seen| format!("  {}\n", flows::seen(seen)));
    format!("{style}{verdict}{style:#}{}\n{identities}{seen}{notes}", text.strip_prefix(verdict).unwrap_or(&text))
}

/// Queries the running agent.
fn ask_agent(arguments: &ExplainArguments) -> anyhow::Result<Vec<ExplainResponse>> {
    let query = ExplainQuery {
        source: arguments.source.clone(),
        destination: arguments.destination.clone(),
        traffic: arguments.traffic.clone(),
    };
    runtime()?.block_on(client::explain(&arguments.run_dir, &query)).map_err(or_manifests)
}

/// The error of a verb that can also work on manifests.
fn or_manifests(error: RequestError) -> anyhow::Error {
    match &error {
        RequestError::Unreachable { .. } => anyhow::Error::new(error).context("without an agent, use --manifests DIR"),
        RequestError::Refused(_)
        | RequestError::BrokeOff(_)
        | RequestError::TimedOut
        | RequestError::Closed
        | RequestError::NotUnderstood(_) => error.into(),
    }
}

/// Runs a verb that prints until it ends. An interrupt (SIGINT) counts as success.
fn until_interrupted(verb: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(async {
        tokio::select! {
            outcome = verb => outcome,
            interrupted = tokio::signal::ctrl_c() => Ok(interrupted.map(|()| YES)?),
        }
    })
}

/// Runtime of verbs that are single-threaded.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
