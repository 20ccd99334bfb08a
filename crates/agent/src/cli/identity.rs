//! Arguments of identities: the scheme by which they are computed, and `ringfence identity`.

use std::path::{Path, PathBuf};

use clap::{ArgMatches, Args};
use console::Output;
use identity::{ClusterName, ClusterScheme, LabelFilter, LabelKeyPattern};

use super::needs_manifests;
use crate::api::identity::IdentitySubject;

/// The cluster name and the label filter of identities. The context provider has the same flags and needs the same values.
#[derive(Debug, Args)]
pub(crate) struct SchemeArguments {
    /// Labels of a security identity: key prefixes separated by commas; `!` excludes; the longest match applies. Added
    /// to the default prefixes. Use the same value as for ringfence-context.
    #[arg(long, env = "RINGFENCE_IDENTITY_LABELS", value_name = "PATTERNS", value_delimiter = ',')]
    identity_labels: Vec<LabelKeyPattern>,

    /// Name of the cluster in the identities. Default: the UID of the namespace kube-system; with --manifests, the empty
    /// name.
    #[arg(long, env = "RINGFENCE_CLUSTER_ID", value_name = "ID")]
    cluster_id: Option<String>,
}

impl SchemeArguments {
    /// The scheme of identities for a folder of manifests or a cluster.
    pub(crate) fn identities(&self, manifests: Option<&Path>) -> ClusterScheme {
        let filter = LabelFilter::with(self.identity_labels.iter().cloned());
        let cluster = ClusterName::of_arguments(self.cluster_id.as_deref(), manifests.is_some());
        ClusterScheme::new(cluster, filter)
    }

    pub(super) fn check_source(&self, given: &ArgMatches, manifests: Option<&Path>) -> Result<(), clap::Error> {
        needs_manifests(given, manifests, "identity_labels", "--identity-labels")?;
        needs_manifests(given, manifests, "cluster_id", "--cluster-id")
    }
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exit status: 0 the pod or address has a security identity; 1 it has a reserved identity (world, host, \
                  init, ...); 2 could not run."
)]
pub(crate) struct IdentityArguments {
    /// A pod as namespace/name, or an address.
    #[arg(value_name = "POD|IP")]
    pub(crate) subject: IdentitySubject,

    /// Folder of manifests to compute the identity from. Default: query the running agent.
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) scheme: SchemeArguments,

    /// Run directory of the agent, with its socket.
    #[arg(long, env = "RINGFENCE_RUN_DIR", value_name = "DIR", default_value = "/run/ringfence")]
    pub(crate) run_dir: PathBuf,

    /// Output format.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    pub(crate) output: Output,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::{Cli, Command, read};

    fn parsed(arguments: &[&str]) -> Result<IdentityArguments, String> {
        let words = ["ringfence", "identity"].iter().chain(arguments);
        let matches = Cli::command().try_get_matches_from(words).map_err(|e| e.to_string())?;
        match read(&matches).map_err(|e| e.to_string())?.command {
            Command::Identity(arguments) => Ok(arguments),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn subject_is_a_pod_or_an_address() {
        for text in ["shop/web-1", "10.1.0.1", "fd00::1"] {
            assert_eq!(parsed(&[text]).unwrap().subject.to_string(), text);
        }
        for text in ["web-1", "east/shop/web", "10.1.0", ""] {
            assert!(parsed(&[text]).unwrap_err().contains("expected NAMESPACE/NAME or an IP address"), "{text}");
        }
    }

    #[test]
    fn settings_of_identities_need_manifests() {
        let error = parsed(&["shop/web-1", "--cluster-id", "x"]).unwrap_err();
        assert!(error.contains("--cluster-id needs --manifests"), "{error}");
        let error = parsed(&["shop/web-1", "--identity-labels", "!team"]).unwrap_err();
        assert!(error.contains("--identity-labels needs --manifests"), "{error}");
        assert!(parsed(&["shop/web-1", "--cluster-id", "x", "--manifests", "/x"]).is_ok());
    }
}
