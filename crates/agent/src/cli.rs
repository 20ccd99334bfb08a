//! The command line: flags, environment variables, help.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::protection::protection;
use anstyle::{AnsiColor, Style};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use ipnet::IpNet;
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
    /// Make the container runtime call the CNI plugin at each pod's start, so that no pod sends before its rules.
    InstallCni(InstallCniArguments),
    /// Remove everything of ours from this node: CNI entry and plugin, tables, run directory.
    Uninstall(UninstallArguments),
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
        arguments.check_ranges()?;
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

impl AgentArguments {
    /// Unknown addresses cannot be denied without saying which addresses are the node's pods'.
    fn check_ranges(&self) -> Result<(), clap::Error> {
        if self.unknown_pods == UnknownPods::Deny && self.pod_cidr.is_empty() {
            let message = "--unknown-pods deny needs the ranges of this node's pods: --pod-cidr";
            return Err(Cli::command().error(ErrorKind::MissingRequiredArgument, message));
        }
        Ok(())
    }

    /// What the rules depend on beside the cluster, and whether other programs can change them, in words.
    pub(crate) fn layout(&self) -> anyhow::Result<(Layout, String)> {
        let (protected, words) = match self.table_owner {
            TableOwner::Off => (false, "off, as asked for by --table-owner off".into()),
            TableOwner::Auto => protection(),
        };
        let denied = match self.unknown_pods {
            UnknownPods::Allow => vec![],
            UnknownPods::Deny => self.pod_cidr.clone(),
        };
        let checks = self.source_check == Switch::On;
        let layout = self.table.layout()?.denying_unknown(denied).checking_sources(checks).protected(protected);
        Ok((layout, words))
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

    /// Whether other programs are kept from changing the rules: auto protects the tables where the kernel can (Linux 6.9).
    #[arg(long, env = "RINGFENCE_TABLE_OWNER", value_enum, default_value_t = TableOwner::Auto)]
    pub(crate) table_owner: TableOwner,

    /// What happens to traffic of addresses of this node's pods (--pod-cidr) that no pod is known to have.
    #[arg(long, env = "RINGFENCE_UNKNOWN_PODS", value_enum, default_value_t = UnknownPods::Allow)]
    pub(crate) unknown_pods: UnknownPods,

    /// Range of this node's pods; repeat it, or separate by commas.
    #[arg(long, env = "RINGFENCE_POD_CIDR", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) pod_cidr: Vec<IpNet>,

    /// Whether pods are held to their own source addresses, where the CNI plugin has told their interfaces.
    #[arg(long, env = "RINGFENCE_SOURCE_CHECK", value_enum, default_value_t = Switch::On)]
    pub(crate) source_check: Switch,

    /// Folder for the agent's sockets, its lock, and what the CNI plugin reports.
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
pub(crate) struct CniFolders {
    /// Folder of the runtime's network configurations.
    #[arg(long, env = "RINGFENCE_CNI_CONF_DIR", value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(crate) cni_conf_dir: PathBuf,

    /// Folder of the runtime's CNI plugins.
    #[arg(long, env = "RINGFENCE_CNI_BIN_DIR", value_name = "DIR", default_value = "/opt/cni/bin")]
    pub(crate) cni_bin_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct InstallCniArguments {
    #[command(flatten)]
    pub(crate) folders: CniFolders,

    /// The plugin to copy there. Without it, ringfence-cni beside this program.
    #[arg(long, env = "RINGFENCE_CNI_PLUGIN", value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,

    /// Folder of the agent, as the node sees it.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Socket on which the plugin finds the agent. Without it, cni.sock in the folder of the agent.
    #[arg(long, env = "RINGFENCE_CNI_AGENT_SOCKET", value_name = "FILE")]
    pub(crate) agent_socket: Option<PathBuf>,

    /// Folder in which the plugin notes the pods that it has seen. Without it, cni in the folder of the agent.
    #[arg(long, env = "RINGFENCE_CNI_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Seconds that the start of a pod waits for its rules.
    #[arg(long, env = "RINGFENCE_CNI_TIMEOUT_SECONDS", value_name = "SECONDS", default_value = "10",
        value_parser = clap::value_parser!(u64).range(1..=120))]
    pub(crate) timeout_seconds: u64,

    /// What happens to a pod whose rules do not come in time.
    #[arg(long, env = "RINGFENCE_CNI_ON_TIMEOUT", value_enum, default_value_t = OnTimeout::Fail)]
    pub(crate) on_timeout: OnTimeout,

    /// Stay, and put the entry back when another program rewrites the configuration.
    #[arg(long, env = "RINGFENCE_CNI_WATCH")]
    pub(crate) watch: bool,

    /// Form of the log, which goes to standard error. RUST_LOG filters it.
    #[arg(long, env = "RINGFENCE_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Args)]
pub(crate) struct UninstallArguments {
    #[command(flatten)]
    pub(crate) folders: CniFolders,

    /// Folder of the agent.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Name of the agent's nftables table.
    #[arg(long, env = "RINGFENCE_TABLE", value_name = "NAME", default_value = "ringfence")]
    pub(crate) table: Name,

    /// Leave the plugin's program: CRI-O calls it once more for each pod that was started with it.
    #[arg(long)]
    pub(crate) keep_plugin: bool,

    /// Go on although an agent is running, which may put things back.
    #[arg(long)]
    pub(crate) force: bool,

    /// Remove nothing, and say what would be removed.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Form of the report.
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
pub(crate) enum OnTimeout {
    /// The runtime tries again later.
    Fail,
    /// It starts, and everything from and to it is denied until its rules are there.
    Isolate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableOwner {
    Auto,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnknownPods {
    Allow,
    Deny,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
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
