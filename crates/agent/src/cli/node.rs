//! Arguments of the verbs that look after a node: install-cni, uninstall, doctor, status, probe.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use console::{LogFormat, Output};
use nft::Name;

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

    /// Transmit checksum offload of pods' interfaces. Without it, pods with CAP_NET_RAW cannot change a packet after it
    /// was judged, and the TCP throughput of all pods is about half.
    #[arg(long, env = "RINGFENCE_CNI_TX_CHECKSUM_OFFLOAD", value_enum, default_value_t = ChecksumOffload::On)]
    pub(crate) tx_checksum_offload: ChecksumOffload,

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

    /// Folder in which the agent keeps what it knows of other clusters.
    #[arg(long, env = "RINGFENCE_STATE_DIR", value_name = "DIR", default_value = "/var/lib/ringfence")]
    pub(crate) state_dir: PathBuf,

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
#[command(after_help = "Exit status: 0 ready; 1 not ready; 2 the agent could not be asked.")]
pub(crate) struct StatusArguments {
    /// Folder of the running agent's socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Form of the status.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 yes; 1 no, with the reason; 2 the agent could not be asked.")]
pub(crate) struct ProbeArguments {
    /// What to ask.
    #[arg(value_enum)]
    pub(crate) question: Probe,

    /// Folder of the running agent's socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Probe {
    /// Does the agent's event loop run?
    Live,
    /// Are the rules that the policies ask for in force?
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
pub(crate) enum ChecksumOffload {
    /// As the network plugin leaves it.
    On,
    /// Every checksum is complete before a packet leaves its pod.
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnTimeout {
    /// The runtime tries again later.
    Fail,
    /// It starts, and everything from and to it is denied until its rules are there.
    Isolate,
}
