//! Arguments of `ringfence agent`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, CommandFactory, ValueEnum};
use console::Switch;
use console::log::LogArguments;
use ipnet::IpNet;
use nfnetlink::{Features, ProbeError};
use policy::{EdgeHook, Layout, TUNNEL_PORTS};

use super::{
    Cli, DnsArguments, EnforcementArguments, FlowDeliveryArguments, FlowNameArguments, RemoteArguments,
    ReportingArguments, SchemeArguments, TableArguments,
};
use crate::own_subnets::own_subnets;
use crate::protection::protection;

#[derive(Debug, Args)]
pub(crate) struct AgentArguments {
    /// Name of this node, as in `spec.nodeName` of its pods.
    #[arg(long, env = "NODE_NAME", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) node_name: String,

    /// Kubeconfig file of the API server to watch. Default without --manifests: the pod's service account.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Folder of manifests (YAML or JSON) to enforce instead of a cluster; watched for changes.
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) table: TableArguments,

    /// Own the tables, so that other programs cannot change them: auto does so if the kernel supports it (Linux 6.9).
    #[arg(long, env = "RINGFENCE_TABLE_OWNER", value_enum, default_value_t = TableOwner::Auto)]
    pub(crate) table_owner: TableOwner,

    /// Refuse to start on a kernel that lacks required features. Off is for distributions that backport the features to
    /// older kernels; the agent then logs a warning.
    #[arg(long, env = "RINGFENCE_KERNEL_CHECK", value_enum, default_value_t = Switch::On)]
    pub(crate) kernel_check: Switch,

    /// Allow or deny traffic of addresses in --pod-cidr that belong to no known pod.
    #[arg(long, env = "RINGFENCE_UNKNOWN_PODS", value_enum, default_value_t = UnknownPods::Allow)]
    pub(crate) unknown_pods: UnknownPods,

    /// Address range of this node's pods. In reports, an address in the range without a pod is an unknown pod.
    /// Repeatable, or separated by commas.
    #[arg(long, env = "RINGFENCE_POD_CIDR", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) pod_cidr: Vec<IpNet>,

    /// Drop packets with forged source addresses from pods whose interfaces the CNI plugin has reported. With `off`
    /// every pod can forge its source address, which bypasses its own policies and those of other pods.
    #[arg(long, env = "RINGFENCE_SOURCE_CHECK", value_enum, default_value_t = Switch::On)]
    pub(crate) source_check: Switch,

    /// Hook at which source addresses are checked. For tests of the fallback.
    #[arg(long, env = "RINGFENCE_SOURCE_CHECK_HOOK", value_enum, default_value_t = SourceCheckHook::Ingress, hide = true)]
    pub(crate) source_check_hook: SourceCheckHook,

    /// UDP port on which nodes accept tunnels, in addition to 4789, 4790, 6081, 6783, 6784, 8285 and 8472. Repeatable, or
    /// separated by commas.
    #[arg(long, env = "RINGFENCE_TUNNEL_PORT", value_name = "PORT", value_delimiter = ',')]
    pub(crate) tunnel_port: Vec<u16>,

    /// Range of node addresses that no Node object lists; encapsulated packets of pods to them are dropped. Repeatable,
    /// or separated by commas.
    #[arg(long, env = "RINGFENCE_NODE_CIDR", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) node_cidr: Vec<IpNet>,

    #[command(flatten)]
    pub(crate) reporting: ReportingArguments,

    /// Record the connections of this node's pods: both ends by name, Service, volume, verdicts and rules. On sets the
    /// sysctls net.netfilter.nf_conntrack_acct and nf_conntrack_timestamp; off and uninstall restore them.
    #[arg(long, env = "RINGFENCE_FLOWS", value_enum, default_value_t = Switch::Off)]
    pub(crate) flows: Switch,

    #[command(flatten)]
    pub(crate) enforcement: EnforcementArguments,

    #[command(flatten)]
    pub(crate) scheme: SchemeArguments,

    /// Address range of another cluster, with its name in reports. Repeatable, or separated by commas.
    #[arg(long, env = "RINGFENCE_REMOTE_CIDR", value_name = "NAME=CIDR", value_delimiter = ',', value_parser = remote)]
    pub(crate) remote_cidr: Vec<(String, IpNet)>,

    /// Run directory: the agent's sockets and lock, and the attachments that the CNI plugin reports.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Listen address of /healthz, /readyz and /metrics.
    #[arg(long, env = "RINGFENCE_LISTEN", value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9470")]
    pub(crate) listen: SocketAddr,

    /// Resync interval in seconds: how often the rules in the kernel are compared with the computed ones.
    #[arg(long, env = "RINGFENCE_RESYNC_SECS", value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) resync_secs: Duration,

    /// Interval in seconds of the translation check, which compares the incrementally updated rules with a fresh
    /// translation; 0 switches it off.
    #[arg(long, env = "RINGFENCE_TRANSLATION_CHECK_SECS", value_name = "SECONDS", default_value_t = 600)]
    translation_check_secs: u32,

    #[command(flatten)]
    pub(crate) flow_names: FlowNameArguments,

    #[command(flatten)]
    pub(crate) log: LogArguments,

    #[command(flatten)]
    pub(crate) remote: RemoteArguments,

    #[command(flatten)]
    pub(crate) flow_delivery: FlowDeliveryArguments,

    #[command(flatten)]
    pub(crate) dns: DnsArguments,
}

impl AgentArguments {
    /// Interval of the translation checks; `None` if they are off.
    pub(crate) fn translation_check(&self) -> Option<Duration> {
        (self.translation_check_secs > 0).then(|| Duration::from_secs(self.translation_check_secs.into()))
    }

    /// UDP ports of tunnels that pods may not send to; empty if this is not checked.
    pub(crate) fn tunnel_ports(&self) -> Vec<u16> {
        match self.source_check {
            Switch::On => TUNNEL_PORTS.iter().chain(&self.tunnel_port).copied().collect(),
            Switch::Off => vec![],
        }
    }

    pub(super) fn choose_source(&mut self, given: &ArgMatches) -> Result<(), clap::Error> {
        console::source::choose(given, &mut self.kubeconfig, &mut self.manifests)
            .map_err(|message| Cli::command().error(ErrorKind::ArgumentConflict, message))
    }

    /// Unknown addresses can be denied only within the configured ranges of the node's pods.
    pub(super) fn check_ranges(&self) -> Result<(), clap::Error> {
        if self.unknown_pods == UnknownPods::Deny && self.pod_cidr.is_empty() {
            let message = "--unknown-pods deny needs --pod-cidr, the address ranges of this node's pods";
            return Err(Cli::command().error(ErrorKind::MissingRequiredArgument, message));
        }
        Ok(())
    }

    /// Delivery needs flow records.
    pub(super) fn check_flows(&self) -> Result<(), clap::Error> {
        if self.flow_delivery.flow_server.is_some() && self.flows == Switch::Off {
            let message = "--flow-server needs --flows on: without it there are no flow records to send";
            return Err(Cli::command().error(ErrorKind::ArgumentConflict, message));
        }
        Ok(())
    }

    /// The layout of the rules, from the flags, the kernel's features and the node's interfaces; and why the tables are
    /// protected from other programs, or are not.
    pub(crate) fn layout(&self, probed: &Result<Features, ProbeError>) -> anyhow::Result<(Layout, String)> {
        let (protected, words) = match self.table_owner {
            TableOwner::Off => (false, "off (--table-owner off)".into()),
            TableOwner::Auto => protection(probed),
        };
        let denied = match self.unknown_pods {
            UnknownPods::Allow => vec![],
            UnknownPods::Deny => self.pod_cidr.clone(),
        };
        let checks = self.source_check == Switch::On;
        let layout = self.table.layout()?.denying_unknown(denied).checking_sources(checks).protected(protected);
        let layout = layout.with_edge_hook(match self.source_check_hook {
            SourceCheckHook::Ingress => EdgeHook::Ingress,
            SourceCheckHook::Prerouting => EdgeHook::Prerouting,
        });
        let own_subnets = own_subnets().context("cannot read the addresses of this node's interfaces (getifaddrs)")?;
        let layout = layout.with_tunnels(self.tunnel_port.clone(), self.node_cidr.clone()).in_subnets(own_subnets);
        Ok((layout, words))
    }
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
pub(crate) enum SourceCheckHook {
    Ingress,
    Prerouting,
}

/// Parses `east=10.8.0.0/13`.
fn remote(text: &str) -> Result<(String, IpNet), String> {
    match text.split_once('=').map(|(name, range)| (name.trim(), range.trim().parse())) {
        Some((name, Ok(range))) if !name.is_empty() => Ok((name.to_owned(), range)),
        Some(_) | None => Err("expected NAME=CIDR, as in east=10.8.0.0/13".into()),
    }
}

/// Parses an interval from a second to a day: a shorter one would be a busy loop, a longer one would rarely repair.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        _ => Err("expected 1 to 86400 seconds".into()),
    }
}
