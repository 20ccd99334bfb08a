//! Arguments of the subcommands that manage or inspect a node: install-cni, uninstall, doctor, status, rules, probe.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use console::Output;
use console::log::LogArguments;
use nft::{Name, TableFamily};

#[derive(Debug, Args)]
pub(crate) struct CniFolders {
    /// Folder of the container runtime's network configurations.
    #[arg(long, env = "RINGFENCE_CNI_CONF_DIR", value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(crate) cni_conf_dir: PathBuf,

    /// Folder of the container runtime's CNI plugins.
    #[arg(long, env = "RINGFENCE_CNI_BIN_DIR", value_name = "DIR", default_value = "/opt/cni/bin")]
    pub(crate) cni_bin_dir: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct InstallCniArguments {
    #[command(flatten)]
    pub(crate) folders: CniFolders,

    /// Binary of the plugin to install. Default: ringfence-cni in the folder of this program.
    #[arg(long, env = "RINGFENCE_CNI_PLUGIN", value_name = "FILE")]
    pub(crate) plugin: Option<PathBuf>,

    /// Run directory of the agent, as a path on the node.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Socket of the agent for the plugin. Default: cni.sock in the run directory.
    #[arg(long, env = "RINGFENCE_CNI_AGENT_SOCKET", value_name = "FILE")]
    pub(crate) agent_socket: Option<PathBuf>,

    /// Folder of the plugin's attachment files. Default: cni in the run directory.
    #[arg(long, env = "RINGFENCE_CNI_STATE_DIR", value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Timeout in seconds of a CNI ADD, which waits for the rules of its pod.
    #[arg(long, env = "RINGFENCE_CNI_TIMEOUT_SECONDS", value_name = "SECONDS", default_value = "10",
        value_parser = clap::value_parser!(u64).range(1..=120))]
    pub(crate) timeout_seconds: u64,

    /// Action if the rules of a pod are not in force within the timeout.
    #[arg(long, env = "RINGFENCE_CNI_ON_TIMEOUT", value_enum, default_value_t = OnTimeout::Fail)]
    pub(crate) on_timeout: OnTimeout,

    /// Transmit checksum offload of pods' interfaces. Off prevents pods with CAP_NET_RAW from changing a packet after
    /// its verdict, and halves the TCP throughput of all pods.
    #[arg(long, env = "RINGFENCE_CNI_TX_CHECKSUM_OFFLOAD", value_enum, default_value_t = ChecksumOffload::On)]
    pub(crate) tx_checksum_offload: ChecksumOffload,

    /// Keep running, and restore the entry when another program rewrites the configuration.
    #[arg(long, env = "RINGFENCE_CNI_WATCH")]
    pub(crate) watch: bool,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

#[derive(Debug, Args)]
pub(crate) struct UninstallArguments {
    #[command(flatten)]
    pub(crate) folders: CniFolders,

    /// Folder of the agent.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Folder of the agent's state of other clusters.
    #[arg(long, env = "RINGFENCE_STATE_DIR", value_name = "DIR", default_value = "/var/lib/ringfence")]
    pub(crate) state_dir: PathBuf,

    /// Name of the agent's nftables table.
    #[arg(long, env = "RINGFENCE_TABLE", value_name = "NAME", default_value = "ringfence")]
    pub(crate) table: Name,

    /// Keep the binary of the plugin: CRI-O runs it once more for each pod that was started with it.
    #[arg(long)]
    pub(crate) keep_plugin: bool,

    /// Continue although an agent is running, which may restore what is removed.
    #[arg(long)]
    pub(crate) force: bool,

    /// Print what would be removed without removing anything.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 ready; 1 not ready; 2 cannot connect to the agent.")]
pub(crate) struct StatusArguments {
    /// Folder of the running agent's socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 the kernel has the same rules; 1 it has other rules, and the first lines show the \
                  difference; 2 cannot connect to the agent, or cannot compare the rules."
)]
pub(crate) struct RulesArguments {
    /// Print only the table of this family: inet has the policies, netdev and bridge the checks of packets that pods send.
    #[arg(long, value_enum)]
    family: Option<Family>,

    /// Folder of the running agent's socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,
}

impl RulesArguments {
    pub(crate) fn family(&self) -> Option<TableFamily> {
        self.family.map(|family| match family {
            Family::Inet => TableFamily::Inet,
            Family::Bridge => TableFamily::Bridge,
            Family::Netdev => TableFamily::Netdev,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Family {
    Inet,
    Bridge,
    Netdev,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 yes; 1 no, with the reason; 2 cannot connect to the agent.")]
pub(crate) struct ProbeArguments {
    /// The probe.
    #[arg(value_enum)]
    pub(crate) question: Probe,

    /// Folder of the running agent's socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
    /// Liveness: the agent's event loop runs.
    Live,
    /// Readiness: the rules of all policies are in force.
    Ready,
}

impl Probe {
    pub(crate) fn route(self) -> &'static str {
        match self {
            Probe::Live => crate::api::LIVE,
            Probe::Ready => crate::api::READY,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Skip the self-test, which sends packets through real rules in network namespaces of its own.
    #[arg(long)]
    pub(crate) no_self_test: bool,

    /// Run directory of the agent, with its sockets.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Folder of the node's CNI configuration.
    #[arg(long, env = "RINGFENCE_CNI_CONF_DIR", value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(crate) cni_conf_dir: PathBuf,

    /// Folder of the node's CNI plugins.
    #[arg(long, env = "RINGFENCE_CNI_BIN_DIR", value_name = "DIR", default_value = "/opt/cni/bin")]
    pub(crate) cni_bin_dir: PathBuf,

    /// Name of the nftables table (family inet), if no agent answers.
    #[arg(long, env = "RINGFENCE_TABLE", value_name = "NAME", default_value = "ringfence")]
    pub(crate) table: Name,

    /// Output format of the findings.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChecksumOffload {
    /// Unchanged: as the network plugin sets it.
    On,
    /// Disabled: the checksum is complete before a packet leaves its pod.
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnTimeout {
    /// The ADD fails, and the container runtime retries it later.
    Fail,
    /// The pod starts isolated: all its traffic is denied until its rules are in force.
    Isolate,
}
