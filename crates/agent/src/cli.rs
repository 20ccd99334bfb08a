//! The command line: flags, environment variables, help.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use nft::Name;
use policy::{Layout, Named, NamedTraffic};

/// Exit status when a command could not do its work. (1 means that it did, and the answer is no.)
pub(crate) const COULD_NOT_RUN: u8 = 2;

pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const DOUBTFUL: Style = AnsiColor::Yellow.on_default().bold();

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
    /// Enforce the policies for the pods of this node, until told to stop; the rules stay in place then.
    Agent(AgentArguments),
    /// Print the nftables ruleset of a node.
    Render(RenderArguments),
    /// Tell what a policy author should know: what was not understood, what matches nothing.
    Check(CheckArguments),
    /// Say whether a flow is allowed, by which rule, or what the closest rule lacks.
    Explain(ExplainArguments),
    /// Tell whether this node really enforces, and what to do where it does not.
    Doctor(DoctorArguments),
    /// Print a completion script for a shell.
    Completions { shell: clap_complete::Shell },
}

/// Reads the process's arguments; on an error, or to help, it prints and ends the process.
pub(crate) fn parse() -> Command {
    let matches = Cli::command().get_matches();
    read(&matches).unwrap_or_else(|error| error.exit()).command
}

fn read(matches: &ArgMatches) -> Result<Cli, clap::Error> {
    let mut cli = Cli::from_arg_matches(matches)?;
    if let (Command::Agent(arguments), Some((_, given))) = (&mut cli.command, matches.subcommand()) {
        arguments.choose_source(given)?;
    }
    Ok(cli)
}

impl AgentArguments {
    /// A flag counts more than a variable, since a shell may have KUBECONFIG for other reasons. Of two variables, ours
    /// counts.
    fn choose_source(&mut self, given: &ArgMatches) -> Result<(), clap::Error> {
        let is_flag = |id| given.value_source(id) == Some(ValueSource::CommandLine);
        match (is_flag("kubeconfig"), is_flag("manifests")) {
            (true, true) => {
                let message = "--kubeconfig and --manifests cannot be used together";
                return Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
            }
            (true, false) => self.manifests = None,
            (false, _) if self.manifests.is_some() => self.kubeconfig = None,
            (false, _) => {}
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    /// Name of this node, as in `spec.nodeName` of its pods.
    #[arg(long, env = "NODE_NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) node_name: String,

    /// Kubeconfig file of the API server to watch. Without it and --manifests, the pod's own service account is used.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Folder of manifests (YAML or JSON) to enforce instead of a cluster; watched for changes.
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) table: TableArguments,

    /// Folder for the agent's socket and lock.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Address that serves /healthz, /readyz and /metrics.
    #[arg(long, env = "RINGFENCE_LISTEN", value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9470")]
    pub(crate) listen: SocketAddr,

    /// Seconds between two comparisons of the kernel's rules with the wanted ones.
    #[arg(long, env = "RINGFENCE_RESYNC_SECS", value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) resync_secs: Duration,

    /// Form of the log, which goes to standard error. RUST_LOG filters it, as in `RUST_LOG=debug`.
    #[arg(long, env = "RINGFENCE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
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

    #[command(flatten)]
    pub(crate) table: TableArguments,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// Folder of manifests (YAML or JSON).
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: PathBuf,

    /// Form of the findings.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,

    /// Exit with 1 on warnings too.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArguments {
    /// Who opens the flow: a pod as namespace/name, or an address.
    #[arg(value_name = "SRC")]
    pub(crate) source: Named,

    /// Whom it reaches, after any Service: a pod as namespace/name, or an address.
    #[arg(value_name = "DST")]
    pub(crate) destination: Named,

    /// 80, 53/udp, a named port of the destination pod, or icmp.
    #[arg(value_name = "PORT[/PROTO]")]
    pub(crate) traffic: NamedTraffic,

    /// Folder of manifests to explain. Without it the running agent is asked.
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,

    /// Folder of the running agent's socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Form of the answer.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Leave out the self-test, which sends packets through real rules in network namespaces of its own.
    #[arg(long)]
    pub(crate) no_self_test: bool,

    /// Folder of the running agent's sockets.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Folder of the node's CNI configuration.
    #[arg(long, env = "RINGFENCE_CNI_CONF_DIR", value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(crate) cni_conf_dir: PathBuf,

    /// Folder of the node's CNI plugins.
    #[arg(long, env = "RINGFENCE_CNI_BIN_DIR", value_name = "DIR", default_value = "/opt/cni/bin")]
    pub(crate) cni_bin_dir: PathBuf,

    /// Name of the nftables table (family inet), where no agent says it.
    #[arg(long, env = "RINGFENCE_TABLE", value_name = "NAME", default_value = "ringfence")]
    pub(crate) table: Name,

    /// Form of the findings.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    Text,
    Json,
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

/// Between a second and a day: shorter would be a busy loop, longer no repair.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err("must be 1 to 86400 seconds".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_of_the_agent_has_help_and_a_variable() {
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
