//! `ringfence identity`: the identity of a pod or an address, computed on this node, and the labels that make it.

use std::fmt::Write as _;
use std::process::ExitCode;

use ::identity::EndIdentity;
use console::{DOUBTFUL, GOOD, NO, Output, YES, output};
use policy::plain;

use super::{manifests, or_manifests, runtime};
use crate::api::client;
use crate::api::identity::{ExcludedLabel, IdentityQuery, IdentityReport};
use crate::cli::IdentityArguments;
use crate::identities::identify;
use crate::reports::{AddressContext, Ends};

pub(crate) fn identity(arguments: &IdentityArguments) -> anyhow::Result<ExitCode> {
    let report = match &arguments.manifests {
        Some(folder) => {
            let manifests = manifests::read(folder, policy::Enforcement::Enforce)?;
            manifests.report_problems();
            let (identities, place) = (arguments.scheme.identities(Some(folder)), AddressContext::default());
            let ends = Ends { state: &manifests.state, place: &place, scheme: identities.scheme() };
            identify(&ends, &arguments.subject)?
        }
        None => {
            let query = IdentityQuery { subject: arguments.subject.clone() };
            runtime()?.block_on(client::identity(&arguments.run_dir, &query)).map_err(or_manifests)?
        }
    };
    let text = match arguments.output {
        Output::Json => output::json(&report)?,
        Output::Text => text(&report)?,
    };
    output::answer(&text, if report.identity.sid.is_some() { YES } else { NO })
}

fn text(report: &IdentityReport) -> Result<String, std::fmt::Error> {
    let IdentityReport { pod, addresses, identity, reason, cluster, namespace, labels, namespace_labels, excluded } =
        report;
    let EndIdentity { service, sid, num, state } = identity;
    let style = if sid.is_some() { GOOD } else { DOUBTFUL };
    let addresses = addresses.iter().map(ToString::to_string).collect::<Vec<String>>().join(", ");
    let mut text = match (pod, addresses.is_empty()) {
        (Some(pod), true) => format!("{style}{pod}{style:#} (no address)\n"),
        (Some(pod), false) => format!("{style}{pod}{style:#} ({addresses})\n"),
        (None, _) => format!("{style}{addresses}{style:#}\n"),
    };
    let mut line = |name: &str, value: &str| match value.is_empty() {
        true => Ok(()),
        false => writeln!(text, "  {name:<16}  {value}"),
    };
    let pairs = |labels: &std::collections::BTreeMap<String, String>| {
        labels.iter().map(|(key, value)| format!("{}={}", plain(key), plain(value))).collect::<Vec<String>>().join(", ")
    };
    match (sid, state) {
        (Some(sid), _) => {
            line("identity", &sid.to_string())?;
            line("home number", &num.to_string())?;
        }
        (None, Some(state)) => line("identity", &format!("{state} ({num})"))?,
        (None, None) => line("identity", &num.to_string())?,
    }
    line("reason", reason.as_deref().unwrap_or(""))?;
    line("service", &service.as_deref().map(plain).unwrap_or_default())?;
    line("cluster", &plain(cluster))?;
    line("namespace", &namespace.as_deref().map(plain).unwrap_or_default())?;
    line("labels", &pairs(labels))?;
    line("namespace labels", &pairs(namespace_labels))?;
    for ExcludedLabel { object, key, value, reason } in excluded {
        line("excluded", &format!("{}={} of the {object} ({reason})", plain(key), plain(value)))?;
    }
    Ok(text)
}
