//! The command line: flags, environment variables, help.

mod agent;
mod dns;
mod flow_delivery;
mod flows;
mod identity;
mod insight;
mod node;
mod remote;
mod reports;

use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use console::Output;
use nft::Name;
use policy::{Layout, NamedTraffic, PartyName};

pub(crate) use self::identity::{IdentityArguments, SchemeArguments};
pub(crate) use self::insight::{ObservationArguments, SuggestArguments, SuggestionOutput, WhatIfArguments};
pub(crate) use agent::AgentArguments;
pub(crate) use console::Switch;
pub(crate) use dns::DnsArguments;
pub(crate) use flow_delivery::FlowDeliveryArguments;
pub(crate) use flows::{FlowNameArguments, FlowOutput, FlowsArguments};
pub(crate) use node::{
    ChecksumOffload, DoctorArguments, InstallCniArguments, OnTimeout, ProbeArguments, RulesArguments, StatusArguments,
    UninstallArguments,
};
pub(crate) use remote::RemoteArguments;
pub(crate) use reports::{AuditArguments, DropsArguments, EnforcementArguments, ReportingArguments};

/// Kubernetes NetworkPolicy on one node, enforced with nftables.
#[derive(Debug, Parser)]
#[command(name = "ringfence", version, arg_required_else_help = true, max_term_width = 110)]
#[command(after_help = "Exit status: 0 yes or done; 1 no (a flow is denied, a check found errors); 2 could not run.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Enforce the policies for the pods of this node until SIGTERM or SIGINT; the rules stay in place afterwards.
    Agent(Box<AgentArguments>),
    /// Print the nftables ruleset of a node: with --run-dir all of its tables, else the one of family inet.
    Render(RenderArguments),
    /// Check policies for mistakes: invalid or unsupported fields, selectors and ports without a match.
    Check(CheckArguments),
    /// Explain whether a flow is allowed: by which rule, or what the closest rule lacks.
    Explain(ExplainArguments),
    /// Compute the identity of a pod or an address: security identity, number, and the labels it is computed from.
    Identity(IdentityArguments),
    /// Show the status of the agent of this node: readiness, rules, commits, policies, pods, other clusters.
    Status(StatusArguments),
    /// Print the rules that the agent of this node has committed, as nft text, and whether the kernel has the same.
    Rules(RulesArguments),
    /// Answer the kubelet's probes for the agent of this node.
    Probe(ProbeArguments),
    /// Show denied packets and the policies that denied them, and packets that audited policies would deny.
    Drops(DropsArguments),
    /// Show flow records: connections of this node's pods, with both ends and the rules that decided.
    Flows(FlowsArguments),
    /// Summarise the flows that audited policies would have denied, or suggest policies that allow them.
    Audit(AuditArguments),
    /// Suggest policies that allow the flows of the whole cluster, observed over days, as YAML or as a diff.
    Suggest(SuggestArguments),
    /// Show which observed flows a change of policies would deny or allow. Exit status 1: it would deny some.
    WhatIf(WhatIfArguments),
    /// Add the CNI plugin to the runtime's network configuration, so that no pod sends before its rules are in force.
    InstallCni(InstallCniArguments),
    /// Remove Ringfence from this node: CNI entry and plugin, nftables tables, run directory, state.
    Uninstall(UninstallArguments),
    /// Check whether policies are enforced on this node, and how to repair what prevents it.
    Doctor(DoctorArguments),
    /// Print a completion script for a shell.
    Completions { shell: clap_complete::Shell },
}

/// Parses the arguments of the process. Exits after `--help`, or if they are invalid.
pub(crate) fn parse() -> Command {
    console::parse(read).command
}

fn read(matches: &ArgMatches) -> Result<Cli, clap::Error> {
    let mut cli = Cli::from_arg_matches(matches)?;
    if let (Command::Agent(arguments), Some((_, given))) = (&mut cli.command, matches.subcommand()) {
        arguments.choose_source(given)?;
        arguments.check_ranges()?;
        arguments.check_flows()?;
    }
    if let (Command::Explain(arguments), Some((_, given))) = (&cli.command, matches.subcommand()) {
        arguments.check_enforcement(given)?;
        arguments.scheme.check_source(given, arguments.manifests.as_deref())?;
    }
    if let (Command::Identity(arguments), Some((_, given))) = (&cli.command, matches.subcommand()) {
        arguments.scheme.check_source(given, arguments.manifests.as_deref())?;
    }
    Ok(cli)
}

#[derive(Debug, Args)]
pub(crate) struct TableArguments {
    /// Name of the nftables table (family inet).
    #[arg(long, env = "RINGFENCE_TABLE", value_name = "NAME", default_value = "ringfence")]
    table: Name,

    /// Bits of the connection mark to use: one run of at least 4 bits that ends at the top.
    #[arg(long, env = "RINGFENCE_CT_MARK_MASK", value_name = "MASK", default_value = "0xffff0000", value_parser = mask)]
    ct_mark_mask: u32,
}

impl TableArguments {
    pub(crate) fn layout(&self) -> anyhow::Result<Layout> {
        Ok(Layout::new(self.table.clone(), self.ct_mark_mask)?)
    }
}

#[derive(Debug, Args)]
pub(crate) struct RenderArguments {
    /// Folder of manifests (YAML or JSON).
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: PathBuf,

    /// Name of the node, as in `spec.nodeName` of its pods.
    #[arg(long, env = "NODE_NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) node_name: String,

    /// Run directory of the agent on this node. With it, the output includes the tables of families netdev and bridge,
    /// which check source addresses at the interfaces that the CNI plugin has reported.
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) table: TableArguments,

    #[command(flatten)]
    pub(crate) reporting: ReportingArguments,

    #[command(flatten)]
    pub(crate) enforcement: EnforcementArguments,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// Folder of manifests (YAML or JSON).
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: PathBuf,

    #[command(flatten)]
    pub(crate) enforcement: EnforcementArguments,

    /// Output format of the findings.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,

    /// Exit with status 1 on warnings too.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// Source of the flow: a pod as namespace/name, a remote set as cluster/namespace/name, or an address.
    #[arg(value_name = "SRC")]
    pub(crate) source: PartyName,

    /// Destination of the flow after DNAT of any Service, in the same notation.
    #[arg(value_name = "DST")]
    pub(crate) destination: PartyName,

    /// Port: 80, 53/udp, a named port of the destination pod, or icmp.
    #[arg(value_name = "PORT[/PROTO]")]
    pub(crate) traffic: NamedTraffic,

    /// Folder of manifests to explain. Default: query the running agent.
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) enforcement: EnforcementArguments,

    #[command(flatten)]
    pub(crate) scheme: SchemeArguments,

    /// Run directory of the agent, with its socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

impl ExplainArguments {
    fn check_enforcement(&self, given: &ArgMatches) -> Result<(), clap::Error> {
        needs_manifests(given, self.manifests.as_deref(), "enforcement", "--enforcement")
    }
}

/// Rejects a flag without `--manifests`, since a running agent has its own setting. (The environment variable may be
/// set for the agent, if both are in one container.)
fn needs_manifests(given: &ArgMatches, manifests: Option<&Path>, id: &str, flag: &str) -> Result<(), clap::Error> {
    if manifests.is_none() && given.value_source(id) == Some(ValueSource::CommandLine) {
        let message = format!("{flag} needs --manifests; a running agent has its own setting");
        return Err(Cli::command().error(ErrorKind::MissingRequiredArgument, message));
    }
    Ok(())
}

fn mask(text: &str) -> Result<u32, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let mask = parsed.map_err(|e| e.to_string())?;
    let any_table = Name::new("ringfence").map_err(|e| e.to_string())?;
    Layout::new(any_table, mask).map(|_| mask).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn agent_flags_have_help_and_environment_variable() {
        let command = Cli::command();
        let agent = command.find_subcommand("agent").unwrap();
        for argument in agent.get_arguments().filter(|a| a.get_id() != "help" && a.get_id() != "version") {
            assert!(argument.get_help().is_some(), "{} has no help", argument.get_id());
            assert!(argument.get_env().is_some(), "{} has no variable", argument.get_id());
        }
    }

    #[test]
    fn a_mask_that_cannot_hold_generations_is_refused() {
        assert_eq!(mask("0xff000000"), Ok(0xff00_0000));
        for bad in ["0", "0x00ff0000", "0xffffffff", "0xe0000000", "x"] {
            assert!(mask(bad).is_err(), "{bad}");
        }
    }
}
