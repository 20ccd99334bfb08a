//! Arguments of observed edges and the view of the cluster.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use console::Switch;
use identity::{ClusterName, ClusterScheme, LabelFilter, LabelKeyPattern};
use insight::LedgerLimits;
use jiff::SignedDuration;
use policy::Enforcement;

/// Default mode of policies, with the values of the agents' flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DefaultMode {
    Enforce,
    Audit,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Observed edges")]
pub(crate) struct ObservationArguments {
    /// Observed edges: keep over days which flows were seen, and report those that are seen for the first time.
    #[arg(long, env = "RINGFENCE_FLOWS_EDGES", value_enum, default_value_t = Switch::Off)]
    edges: Switch,

    /// Folder for observed edges and the evidence of audits. Without it they are lost
    /// when the process ends.
    #[arg(long, env = "RINGFENCE_FLOWS_STATE_DIR", value_name = "DIR")]
    pub(super) state_dir: Option<PathBuf>,

    /// Memory for observed edges, in MiB. When it is used up, new edges are left out.
    #[arg(long, env = "RINGFENCE_FLOWS_EDGE_MEMORY_MIB", value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4_096))]
    edge_memory_mib: u16,

    /// Time for which an observed edge is kept after it was last seen.
    #[arg(long, env = "RINGFENCE_FLOWS_EDGE_RETENTION", value_name = "DURATION", default_value = "30d", value_parser = console::duration)]
    edge_retention: Duration,

    /// Time after the first start in which edges that are seen for the first time are learned, and not reported.
    #[arg(long, env = "RINGFENCE_FLOWS_EDGE_LEARNING", value_name = "DURATION", default_value = "24h", value_parser = console::duration)]
    edge_learning: Duration,

    /// Watch pods, namespaces, nodes and policies of the cluster, so that observed edges are compared with policies. Needs
    /// the rights to get, list and watch them.
    #[arg(long, env = "RINGFENCE_FLOWS_WATCH_POLICIES", value_enum, default_value_t = Switch::Off)]
    watch_policies: Switch,

    /// Folder of manifests (YAML or JSON) to compare with instead of the cluster's policies; watched for changes.
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,

    /// Mode of policies if neither the policy nor its namespace has the annotation ringfence.io/enforcement. Use
    /// the agents' value.
    #[arg(long, env = "RINGFENCE_ENFORCEMENT", value_enum, default_value_t = DefaultMode::Enforce)]
    enforcement: DefaultMode,

    /// Labels of a security identity: key prefixes separated by commas; `!` excludes; the longest match applies. Added
    /// to the default prefixes. Use the agents' value.
    #[arg(long, env = "RINGFENCE_IDENTITY_LABELS", value_name = "PATTERNS", value_delimiter = ',')]
    identity_labels: Vec<LabelKeyPattern>,

    /// Name of the cluster in the identities. Default: the UID of the namespace kube-system; with --manifests, the empty
    /// name. Use the agents' value.
    #[arg(long, env = "RINGFENCE_CLUSTER_ID", value_name = "ID")]
    cluster_id: Option<String>,
}

impl ObservationArguments {
    pub(crate) fn has_edges(&self) -> bool {
        self.edges == Switch::On
    }

    pub(crate) fn watches_policies(&self) -> bool {
        self.watch_policies == Switch::On
    }

    pub(crate) fn enforcement(&self) -> Enforcement {
        match self.enforcement {
            DefaultMode::Enforce => Enforcement::Enforce,
            DefaultMode::Audit => Enforcement::Audit,
        }
    }

    /// The scheme of identities in explanations, as agents and `ringfence explain --manifests` compute it.
    pub(crate) fn cluster_scheme(&self) -> ClusterScheme {
        let cluster = ClusterName::of_arguments(self.cluster_id.as_deref(), self.manifests.is_some());
        ClusterScheme::new(cluster, LabelFilter::with(self.identity_labels.iter().cloned()))
    }

    pub(super) fn limits(&self) -> LedgerLimits {
        let seconds = |duration: Duration| SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX);
        LedgerLimits {
            bytes: usize::from(self.edge_memory_mib) << 20,
            retention: seconds(self.edge_retention),
            learning: seconds(self.edge_learning),
        }
    }

    /// Arguments that have no effect without another.
    pub(crate) fn conflict(&self) -> Option<&'static str> {
        if self.state_dir.is_some() && !self.has_edges() {
            return Some("--state-dir needs --edges on: there is nothing else to keep");
        }
        if self.manifests.is_some() && !self.watches_policies() {
            return Some("--manifests needs --watch-policies on");
        }
        None
    }
}
