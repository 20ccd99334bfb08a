//! The aggregator's report on whether audited policies can be enforced.

use std::time::Duration;

use anyhow::{Context, bail};
use insight::{NodeGap, PolicyReadiness};
use jiff::Timestamp;
use policy::plain;
use serde::{Deserialize, Serialize};

use super::flow_server::{FlowServer, UNDECODABLE};

/// Timeout between two parts of the response.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum size of a response: 10,000 policies, the aggregator's bound.
const LARGEST_BYTES: usize = 64 << 20;

/// `GET /v1/readiness` of the aggregator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReadinessReport {
    pub(crate) kept: bool,
    pub(crate) policies_known: bool,
    pub(crate) namespace_known: bool,
    pub(crate) days: u64,
    pub(crate) now: Timestamp,
    pub(crate) nodes: u64,
    pub(crate) unreported: Vec<NodeGap>,
    pub(crate) policies: Vec<PolicyReadiness>,
    pub(crate) problems: Vec<String>,
}

/// Requests the report from the aggregator.
///
/// # Errors
/// If the aggregator cannot be reached, its response cannot be decoded, it does not observe audited policies, or the
/// namespace does not exist.
pub(crate) async fn readiness(
    server: &FlowServer,
    days: u16,
    namespace: Option<&String>,
) -> anyhow::Result<ReadinessReport> {
    let mut parameters = vec![("days", days.to_string())];
    parameters.extend(namespace.map(|namespace| ("namespace", namespace.clone())));
    let mut response = server.open("/v1/readiness", &parameters, (READ_TIMEOUT, None)).await?;
    let mut body = Vec::new();
    while let Some(part) =
        response.chunk().await.map_err(|error| error.without_url()).context("the aggregator's response ended early")?
    {
        body.extend_from_slice(&part);
        if body.len() > LARGEST_BYTES {
            bail!("the aggregator's response is longer than {LARGEST_BYTES} bytes; choose a --namespace");
        }
    }
    let report: ReadinessReport = serde_json::from_slice(&body).context(UNDECODABLE)?;
    if !report.kept {
        bail!("the aggregator does not observe audited policies; start it with --edges on and --watch-policies on");
    }
    if !report.policies_known {
        bail!("the aggregator has no policies yet; start it with --watch-policies on, or wait for its initial sync");
    }
    if let Some(namespace) = namespace.filter(|_| !report.namespace_known) {
        bail!("unknown namespace '{}': it does not exist", plain(namespace));
    }
    Ok(report)
}
