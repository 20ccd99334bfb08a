//! The command line: flags, environment variables, help.

mod access;
mod init_tls;
mod serve;
mod source;

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use ::identity::{LabelFilter, LabelKeyPattern, ReservedIdentity, Sid, Space, UNNUMBERED};
use clap::builder::NonEmptyStringValueParser;
use clap::{ArgMatches, Args, FromArgMatches, Parser, Subcommand, ValueEnum};
use console::Output;
use feed::Access;
use ipnet::IpNet;

use crate::directory::{AgentSelector, Settings};
use crate::edges::Form;
use crate::history::{PastTime, PastTimeError};
use crate::ranges::{MOST_RANGES, RangeRecords, parse_range};
pub(crate) use init_tls::InitTlsArguments;
pub(crate) use serve::{ExportForm, ServeArguments, StoreUrl};
pub(crate) use source::DataSource;

/// Publish workload identities by address, and the flows that policies declare, for consumers that see only packets.
#[derive(Debug, Parser)]
#[command(name = "ringfence-context", version, arg_required_else_help = true, max_term_width = 110)]
#[command(after_help = "Exit status: 0 yes or done; 1 no (unknown address, violation); 2 could not run.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Parses the arguments of the process. Exits after `--help`, or if they are invalid.
pub(crate) fn parse() -> Command {
    console::parse(read).command
}

fn read(matches: &ArgMatches) -> Result<Cli, clap::Error> {
    let mut cli = Cli::from_arg_matches(matches)?;
    if let (Command::Serve(arguments), Some((_, given))) = (&mut cli.command, matches.subcommand()) {
        arguments.choose_source(given)?;
    }
    Ok(cli)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Watch a cluster or a folder of manifests, and publish identities and declared edges until SIGTERM or SIGINT.
    Serve(Box<ServeArguments>),
    /// Write the files for a folder of manifests once: identity database, identity table, declared edges.
    Build(BuildArguments),
    /// Create and renew the provider's certificates: a CA, a serving certificate and a client certificate for scraping, in
    /// Secrets. Certificates that are valid stay as they are.
    InitTls(Box<InitTlsArguments>),
    /// Look up the identity of an address.
    Lookup(LookupArguments),
    /// Print the identity table: number, namespace, labels, and number of addresses of each identity; or compare two.
    Ids(IdsArguments),
    /// Classify a flow: declared, violation, or not governed by any policy.
    Verdict(VerdictArguments),
    /// Print a completion script for a shell.
    Completions { shell: clap_complete::Shell },
}

/// Options of identities and edges; the same for `serve` and `build`.
#[derive(Debug, Args)]
pub(crate) struct TableArguments {
    /// Labels of a security identity: key prefixes separated by commas; `!` excludes; the longest match applies. Added
    /// to the default ones.
    #[arg(long, env = "RINGFENCE_IDENTITY_LABELS", value_name = "PATTERNS", value_delimiter = ',')]
    pub(crate) identity_labels: Vec<LabelKeyPattern>,

    /// Include the pod and its node in each record. Replicas then do not share a record, and the database is larger.
    #[arg(long, env = "RINGFENCE_POD_DETAIL")]
    pub(crate) pod_detail: bool,

    /// Label of the agents' pods, as NAMESPACE/KEY=VALUE: a pod on a node without an agent is unmanaged. Default: all
    /// nodes have an agent.
    #[arg(long, env = "RINGFENCE_AGENTS", value_name = "NAMESPACE/KEY=VALUE", value_parser = agents)]
    pub(crate) agents: Option<AgentSelector>,

    /// Name of the node whose view the records are: addresses of other nodes get the state remote-node instead of host.
    /// Default: every node is a host.
    #[arg(long, env = "RINGFENCE_OWN_NODE", value_name = "NODE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) own_node: Option<String>,

    /// Add records of the world: an address without a known owner is found, with the number 2. Consumers must not take
    /// every address that is found for one of the cluster. Default: such an address is not found.
    #[arg(long, env = "RINGFENCE_WORLD_RECORDS")]
    pub(crate) world_records: bool,

    /// Range without a record of the world, as that of the cluster's pods: an address in it is not found until an object has
    /// it. Repeatable, or separated by commas.
    #[arg(long, env = "RINGFENCE_WORLD_EXCEPT", value_name = "CIDR", value_delimiter = ',', value_parser = parse_range,
        requires = "world_records")]
    pub(crate) world_except: Vec<IpNet>,

    /// Source range of health checks, such as those of load balancers in a cloud: an address in it without a known owner
    /// is found, with the number 4. Repeatable, or separated by commas.
    #[arg(long, env = "RINGFENCE_HEALTH_CIDR", value_name = "CIDR", value_delimiter = ',', value_parser = parse_range)]
    pub(crate) health_cidr: Vec<IpNet>,

    /// Format of the declared edges: compatible has plain ports; extended has protocols, ranges and blocks.
    #[arg(long, env = "RINGFENCE_EDGES", value_enum, default_value_t = EdgesForm::Compatible)]
    pub(crate) edges: EdgesForm,
}

impl TableArguments {
    /// Settings of identities, in a cluster of that name.
    pub(crate) fn settings(&self, cluster: &str) -> Settings {
        Settings {
            cluster_id: cluster.into(),
            filter: LabelFilter::with(self.identity_labels.iter().cloned()),
            pod_detail: self.pod_detail,
            agent: self.agents.clone(),
            node: self.own_node.as_deref().map(Arc::from),
            numbers: Space::STANDARD,
        }
    }

    /// Records of address ranges.
    ///
    /// # Errors
    /// If there are more ranges than a provider supports.
    pub(crate) fn ranges(&self) -> anyhow::Result<Arc<RangeRecords>> {
        for (flag, ranges) in [("--world-except", &self.world_except), ("--health-cidr", &self.health_cidr)] {
            let given = ranges.len();
            anyhow::ensure!(given <= MOST_RANGES, "{flag}: expected at most {MOST_RANGES} ranges, got {given}");
        }
        let world = self.world_records.then_some(self.world_except.as_slice());
        Ok(Arc::new(RangeRecords::new(world, &self.health_cidr)))
    }
}

/// Validates a time, which is sent to the provider unchanged, since the provider's clock counts.
fn past_time(text: &str) -> Result<String, PastTimeError> {
    text.parse().map(|_: PastTime| text.to_owned())
}

/// `NAMESPACE/KEY=VALUE`.
fn agents(text: &str) -> Result<AgentSelector, String> {
    let parts = text.split_once('/').and_then(|(namespace, label)| Some((namespace, label.split_once('=')?)));
    match parts {
        Some((namespace, (key, value))) if !namespace.is_empty() && !key.is_empty() => Ok(AgentSelector {
            namespace: namespace.into(),
            labels: [(Arc::from(key), Arc::from(value))].into_iter().collect(),
        }),
        Some(_) | None => Err("expected NAMESPACE/KEY=VALUE, as in ringfence/app.kubernetes.io/name=ringfence".into()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EdgesForm {
    Compatible,
    Extended,
}

impl From<EdgesForm> for Form {
    fn from(form: EdgesForm) -> Form {
        match form {
            EdgesForm::Compatible => Form::Compatible,
            EdgesForm::Extended => Form::Extended,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct BuildArguments {
    /// Folder of manifests (YAML or JSON).
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: PathBuf,

    /// Output folder; created if missing.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Name of the cluster in the identities.
    #[arg(long, env = "RINGFENCE_CLUSTER_ID", value_name = "ID", default_value = "")]
    pub(crate) cluster_id: String,

    #[command(flatten)]
    pub(crate) table: TableArguments,
}

/// Where a consumer reads from.
#[derive(Debug, Args)]
pub(crate) struct FromArguments {
    /// Source of the data: a provider (https://HOST:PORT, or http://), a folder or store (DIR, file:///DIR,
    /// s3://BUCKET/PREFIX), or a file.
    #[arg(long, env = "RINGFENCE_CONTEXT_FROM", value_name = "SOURCE", default_value = "http://127.0.0.1:9471")]
    pub(crate) from: DataSource,

    /// File with the CA certificates (PEM) of an https:// provider. Default: the CA certificates of the system.
    #[arg(long, env = "RINGFENCE_CONTEXT_CA_FILE", value_name = "FILE")]
    pub(crate) ca_file: Option<PathBuf>,

    /// File with the bearer token for a provider.
    #[arg(long, env = "RINGFENCE_CONTEXT_TOKEN_FILE", value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,

    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

impl FromArguments {
    /// Credentials for a provider.
    pub(crate) fn access(&self) -> Access {
        Access { token_file: self.token_file.clone(), ca_file: self.ca_file.clone() }
    }
}

#[derive(Debug, Args)]
pub(crate) struct LookupArguments {
    #[arg(value_name = "IP", required = true)]
    pub(crate) addresses: Vec<IpAddr>,

    /// Time for which to look up the addresses: RFC 3339, as in 2026-11-22T10:00:00Z, or a duration ago, as in 10m. Needs a
    /// provider as the source (--from), which keeps the records of the last hour (serve --history).
    #[arg(long, value_name = "TIME", value_parser = past_time)]
    pub(crate) at: Option<String>,

    #[command(flatten)]
    pub(crate) from: FromArguments,
}

#[derive(Debug, Args)]
pub(crate) struct IdsArguments {
    /// Compare two identities, each by its text or its number: print the labels in which they differ. Exit status 1 if
    /// one of them is not in the table.
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    pub(crate) diff: Option<Vec<IdentityName>>,

    #[command(flatten)]
    pub(crate) from: FromArguments,
}

/// An identity as the user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IdentityName {
    Sid(Sid),
    Number(u32),
}

impl FromStr for IdentityName {
    type Err = String;

    fn from_str(text: &str) -> Result<IdentityName, String> {
        if let Ok(sid) = text.parse() {
            return Ok(IdentityName::Sid(sid));
        }
        let reserved = |number: &u32| ReservedIdentity::ALL.into_iter().find(|reserved| reserved.num() == *number);
        match text.parse::<u32>() {
            Ok(UNNUMBERED) => Err("0 is the number of all identities for which no number is left; use the text".into()),
            Ok(number) => match reserved(&number) {
                Some(reserved) => Err(format!("{number} is the reserved identity {reserved}, which has no labels")),
                None => Ok(IdentityName::Number(number)),
            },
            Err(_) => {
                Err("expected 13 characters a-z and 2-7, or a number, as 'ringfence-context ids' prints them".into())
            }
        }
    }
}

impl fmt::Display for IdentityName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentityName::Sid(sid) => sid.fmt(f),
            IdentityName::Number(number) => number.fmt(f),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct VerdictArguments {
    /// Source of the flow: a workload as namespace/name, pods of another cluster as cluster/namespace/name, or an address.
    #[arg(value_name = "SRC")]
    pub(crate) source: String,

    /// Destination of the flow: a workload as namespace/name, pods of another cluster as cluster/namespace/name, or an
    /// address.
    #[arg(value_name = "DST")]
    pub(crate) destination: String,

    /// Port: 80, or 53/udp.
    #[arg(value_name = "PORT[/PROTO]")]
    pub(crate) port: String,

    #[command(flatten)]
    pub(crate) from: FromArguments,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn provider_flags_have_help_and_environment_variable() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for argument in serve.get_arguments().filter(|a| a.get_id() != "help" && a.get_id() != "version") {
            assert!(argument.get_help().is_some(), "{} has no help", argument.get_id());
            assert!(argument.get_env().is_some(), "{} has no variable", argument.get_id());
        }
    }

    #[test]
    fn identities_are_named_by_text_or_number() {
        for text in ["rdsrexpux6y4o", "213703"] {
            assert_eq!(text.parse::<IdentityName>().unwrap().to_string(), text);
        }
        for (text, reason) in [("5", "reserved identity init"), ("0", "no number is left"), ("shop", "13 characters")] {
            let error = text.parse::<IdentityName>().unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn agents_are_named_by_namespace_and_label() {
        let selector = agents("ringfence/app.kubernetes.io/name=ringfence").unwrap();
        assert_eq!(&*selector.namespace, "ringfence");
        assert!(selector.labels.iter().eq([(&Arc::from("app.kubernetes.io/name"), &Arc::from("ringfence"))]));
        for bad in ["", "ringfence", "ringfence/x", "/a=b", "a/=b"] {
            assert!(agents(bad).is_err(), "{bad}");
        }
    }
}
