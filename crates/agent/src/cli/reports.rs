//! Command-line arguments for denied packets and audits, of the agent and of the subcommands that query it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use console::Output;
use policy::{Enforcement, Judgement};

use super::flows::FlowServerArguments;
use crate::reports::GroupChoice;

#[derive(Debug, Args)]
pub(crate) struct ReportingArguments {
    /// NFLOG group in which the kernel logs denied packets: auto (9470, or the next unused one), off, or a number.
    #[arg(long, env = "RINGFENCE_NFLOG_GROUP", value_name = "GROUP", default_value_t = GroupChoice::Auto)]
    pub(crate) nflog_group: GroupChoice,

    /// NFLOG group to which the kernel copies DNS answers for the domain names of cluster policies: auto (9486, or the next
    /// unused one), off (no address is learned), or a number.
    #[arg(long, env = "RINGFENCE_DNS_NFLOG_GROUP", value_name = "GROUP", default_value_t = GroupChoice::Auto)]
    pub(crate) dns_nflog_group: GroupChoice,
}

#[derive(Debug, Args)]
pub(crate) struct EnforcementArguments {
    /// Mode of policies if neither the policy nor its namespace has the annotation ringfence.io/enforcement.
    #[arg(long, env = "RINGFENCE_ENFORCEMENT", value_enum, default_value_t = DefaultMode::Enforce)]
    enforcement: DefaultMode,
}

impl EnforcementArguments {
    pub(crate) fn by_default(&self) -> Enforcement {
        match self.enforcement {
            DefaultMode::Enforce => Enforcement::Enforce,
            DefaultMode::Audit => Enforcement::Audit,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DefaultMode {
    /// Traffic that the policies do not allow is denied.
    Enforce,
    /// Traffic that the policies do not allow passes and is reported.
    Audit,
}

#[derive(Debug, Args)]
pub(crate) struct DropsArguments {
    /// Follow: print events as they occur, until interrupted.
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Print only flows from or to pods of this namespace.
    #[arg(long, short, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Print only flows from or to this pod.
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    pub(crate) pod: Option<String>,

    /// Print only denied packets, or only packets that audited policies would deny.
    #[arg(long, value_enum)]
    verdict: Option<Verdict>,

    /// Run directory of the agent, with its socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Output format; json prints one object per line.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

impl DropsArguments {
    pub(crate) fn verdict(&self) -> Option<Judgement> {
        self.verdict.map(|verdict| match verdict {
            Verdict::Denied => Judgement::Denied,
            Verdict::WouldDeny => Judgement::WouldDeny,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Verdict {
    Denied,
    WouldDeny,
}

#[derive(Debug, Args)]
pub(crate) struct AuditArguments {
    /// Print policies (YAML for kubectl) that allow the flows that would have been denied.
    #[arg(long, requires = "namespace")]
    pub(crate) suggest: bool,

    /// Print only policies of this namespace.
    #[arg(long, short, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Suggest a policy only for the workload of this pod.
    #[arg(long, value_name = "NAME", requires = "suggest", conflicts_with = "workload")]
    pub(crate) pod: Option<String>,

    /// Suggest a policy only for this workload: NAME of ringfence-suggested-NAME.
    #[arg(long, value_name = "NAME", requires = "suggest")]
    pub(crate) workload: Option<String>,

    /// Query the aggregator (--server) whether audited policies can be enforced, according to the flows of all nodes,
    /// and print the commands that enforce them. The exit status is 1 if a policy is not ready.
    #[arg(long, conflicts_with_all = ["suggest", "run_dir"])]
    pub(crate) cluster: bool,

    /// A policy is ready after this number of days without a flow that it would deny.
    #[arg(long, value_name = "DAYS", default_value_t = 7, requires = "cluster", value_parser = clap::value_parser!(u16).range(1..=365))]
    pub(crate) days: u16,

    #[command(flatten)]
    pub(crate) server: FlowServerArguments,

    /// Run directory of the agent, with its socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}
