//! Arguments of the verbs that compare observed flows with policies: `suggest` and `what-if`.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, ValueEnum};
use console::Output;
use feed::Access;
use feed::client::Url;
use flow::parse_label;
use insight::{EXCLUDED_NAMESPACES, NamespaceChoice, PolicyId, SuggestionScope};
use jiff::{SignedDuration, Timestamp};
use policy::Direction;

use super::EnforcementArguments;
use super::flows::{FlowServerArguments, base_url, is_loopback};
use crate::api::loki::Loki;

/// Default of `--days`.
const DAYS: u32 = 7;

/// The sources of observed flows and of the cluster's objects.
#[derive(Debug, Args)]
pub(crate) struct ObservationArguments {
    #[command(flatten)]
    pub(crate) server: FlowServerArguments,

    /// Read the flows from Loki at this URL, to which an aggregator exports them. Needs --manifests.
    #[arg(long, value_name = "URL", value_parser = base_url, conflicts_with = "server", requires = "manifests")]
    loki: Option<Url>,

    /// Tenant of Loki, sent as X-Scope-OrgID.
    #[arg(long, value_name = "TENANT", requires = "loki")]
    loki_tenant: Option<String>,

    /// File with a bearer token for Loki.
    #[arg(long, value_name = "FILE", requires = "loki")]
    loki_token_file: Option<PathBuf>,

    /// File with USER:PASSWORD for Loki.
    #[arg(long, value_name = "FILE", requires = "loki", conflicts_with = "loki_token_file")]
    loki_basic_auth_file: Option<PathBuf>,

    /// File with the CA certificates (PEM) of Loki. Default: the CA certificates of the system.
    #[arg(long, value_name = "FILE", requires = "loki")]
    loki_ca_file: Option<PathBuf>,

    /// Name of the cluster in the exported flows, if Loki has the flows of several clusters.
    #[arg(long, value_name = "NAME", requires = "loki")]
    loki_cluster: Option<String>,

    /// Maximum number of lines in a response of Loki (its limit max_entries_limit_per_query).
    #[arg(long, value_name = "LINES", requires = "loki", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..))]
    loki_limit: u32,

    /// Folder or file with the cluster's namespaces, pods, nodes and policies, as of
    /// kubectl get namespaces,pods,nodes,networkpolicies,clusternetworkpolicies --all-namespaces --output yaml.
    /// Default: those of the aggregator, which must watch the cluster.
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "PATH")]
    pub(crate) manifests: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) enforcement: EnforcementArguments,

    /// Consider edges with a flow in the last DAYS days. An aggregator with --edges on has the edges of its retention
    /// period, one without it has those of the last hour.
    #[arg(long, value_name = "DAYS", default_value_t = DAYS, value_parser = clap::value_parser!(u32).range(1..=3_650))]
    pub(crate) days: u32,
}

impl ObservationArguments {
    pub(crate) fn since(&self, now: Timestamp) -> Timestamp {
        now.checked_sub(SignedDuration::from_hours(24 * i64::from(self.days))).unwrap_or(Timestamp::MIN)
    }

    /// # Errors
    /// If credentials would be sent without TLS to another host.
    pub(crate) fn loki(&self) -> anyhow::Result<Option<Loki>> {
        let Some(url) = self.loki.clone() else { return Ok(None) };
        let has_credentials = self.loki_token_file.is_some() || self.loki_basic_auth_file.is_some();
        if has_credentials && url.scheme() != "https" && !is_loopback(&url) {
            bail!("refusing to send credentials to {url} without TLS; use an https:// URL");
        }
        let access = Access { token_file: self.loki_token_file.clone(), ca_file: self.loki_ca_file.clone() };
        let (tenant, cluster) = (self.loki_tenant.clone(), self.loki_cluster.clone());
        let basic_auth_file = self.loki_basic_auth_file.clone();
        Ok(Some(Loki { url, access, basic_auth_file, tenant, cluster, limit: self.loki_limit as usize }))
    }
}

#[derive(Debug, Args)]
pub(crate) struct WhatIfArguments {
    /// File with policies (YAML or JSON) to apply, with any number of documents; - for standard input. Repeatable.
    #[arg(long, short, value_name = "FILE|-", required_unless_present = "delete")]
    pub(crate) filename: Vec<PathBuf>,

    /// Policy to delete. Repeatable.
    #[arg(long, value_name = "KIND/[NAMESPACE/]NAME")]
    pub(crate) delete: Vec<PolicyId>,

    #[command(flatten)]
    pub(crate) observation: ObservationArguments,

    /// Exit with status 1 also if a policy has an error, a policy to delete does not exist, or edges could not be
    /// evaluated.
    #[arg(long)]
    pub(crate) strict: bool,

    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct SuggestArguments {
    /// Suggest policies for the workloads of this namespace. Repeatable; --all-namespaces (-A) selects all.
    #[arg(long, short, value_name = "NAMESPACE", required_unless_present = "all_namespaces", value_parser = namespace_name)]
    pub(crate) namespace: Vec<String>,

    /// Suggest policies for all namespaces except kube-system, or except those of --exclude-namespace.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,

    /// Namespace to leave out with --all-namespaces, instead of kube-system. Repeatable.
    #[arg(long, value_name = "NAMESPACE", requires = "all_namespaces", value_parser = namespace_name)]
    exclude_namespace: Vec<String>,

    /// Suggest rules for this direction only.
    #[arg(long, value_enum)]
    direction: Option<OneDirection>,

    /// Annotate the policies for audit: they deny nothing until they are enforced.
    #[arg(long)]
    audit: bool,

    #[command(flatten)]
    pub(crate) observation: ObservationArguments,

    /// Output format; diff compares with the policies that exist.
    #[arg(long, short, value_enum, default_value_t = SuggestionOutput::Yaml)]
    pub(crate) output: SuggestionOutput,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum SuggestionOutput {
    Yaml,
    Diff,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OneDirection {
    Egress,
    Ingress,
}

impl SuggestArguments {
    pub(crate) fn scope(&self) -> SuggestionScope {
        let excluded: BTreeSet<String> = match self.exclude_namespace.is_empty() {
            true => EXCLUDED_NAMESPACES.iter().map(|name| (*name).to_owned()).collect(),
            false => self.exclude_namespace.iter().cloned().collect(),
        };
        let namespaces = match self.all_namespaces {
            true => NamespaceChoice::AllBut(excluded),
            false => NamespaceChoice::Named(self.namespace.iter().cloned().collect()),
        };
        let directions = match self.direction {
            None => Direction::BOTH.into(),
            Some(OneDirection::Egress) => [Direction::Egress].into(),
            Some(OneDirection::Ingress) => [Direction::Ingress].into(),
        };
        SuggestionScope { namespaces, directions, audit: self.audit }
    }
}

fn namespace_name(text: &str) -> Result<String, String> {
    match parse_label(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(
            "expected the name of a namespace (lowercase letters, digits and '-'); --all-namespaces (-A) selects all"
                .into(),
        ),
    }
}
