//! Arguments of what is denied and told of: by the agent's rules, and by the verbs that ask it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use console::Output;
use policy::{Enforcement, Judgement};

use crate::reports::GroupChoice;

#[derive(Debug, Args)]
pub(crate) struct ReportingArguments {
    /// Log group of the kernel in which denied packets are reported: auto (9470, or the next that nobody else listens
    /// to), off, or a number.
    #[arg(long, env = "RINGFENCE_NFLOG_GROUP", value_name = "GROUP", default_value_t = GroupChoice::Auto)]
    pub(crate) nflog_group: GroupChoice,
}

#[derive(Debug, Args)]
pub(crate) struct EnforcementArguments {
    /// What becomes of policies that neither they nor their namespaces (annotation ringfence.io/enforcement) say
    /// anything of.
    #[arg(long, env = "RINGFENCE_ENFORCEMENT", value_enum, default_value_t = Enforcing::Enforce)]
    enforcement: Enforcing,
}

impl EnforcementArguments {
    pub(crate) fn by_default(&self) -> Enforcement {
        match self.enforcement {
            Enforcing::Enforce => Enforcement::Enforce,
            Enforcing::Audit => Enforcement::Audit,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Enforcing {
    /// What they do not allow is denied.
    Enforce,
    /// What they do not allow passes, and is reported.
    Audit,
}

#[derive(Debug, Args)]
pub(crate) struct DropsArguments {
    /// Go on with what comes, until stopped.
    #[arg(long, short)]
    pub(crate) follow: bool,

    /// Only flows from or to pods of this namespace.
    #[arg(long, short, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Only flows from or to this pod.
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    pub(crate) pod: Option<String>,

    /// Only what was denied, or only what would have been.
    #[arg(long, value_enum)]
    verdict: Option<Verdict>,

    /// Folder of the running agent's socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Form of the report: with json an object on each line.
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
    /// Print policies that allow the flows that would have been denied, as YAML for kubectl.
    #[arg(long, requires = "namespace")]
    pub(crate) suggest: bool,

    /// Only policies of this namespace.
    #[arg(long, short, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,

    /// Suggest a policy for the workload of this pod alone.
    #[arg(long, value_name = "NAME", requires = "suggest", conflicts_with = "workload")]
    pub(crate) pod: Option<String>,

    /// Suggest a policy for this workload alone, as a suggestion names it.
    #[arg(long, value_name = "NAME", requires = "suggest")]
    pub(crate) workload: Option<String>,

    /// Folder of the running agent's socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Form of the report.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}
