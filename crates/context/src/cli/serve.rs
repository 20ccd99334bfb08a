//! Arguments of `ringfence-context serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use access::{GrantSubject, Grants, PortSettings, Risks};
use clap::error::ErrorKind;
use clap::{ArgMatches, Args, CommandFactory, ValueEnum};
use console::log::LogArguments;
use policy::remote::LabelPrefix;

use super::access::{AccessArguments, SCOPES};
use super::{Cli, TableArguments};
use crate::history::HistoryBounds;

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Kubeconfig file of the API server to watch. Default without --manifests: the pod's service account.
    #[arg(long, env = "KUBECONFIG", value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// Folder of manifests (YAML or JSON) to watch instead of a cluster.
    #[arg(long, env = "RINGFENCE_MANIFESTS", value_name = "DIR")]
    pub(crate) manifests: Option<PathBuf>,

    /// Listen address of identities, edges, /healthz, /readyz, /status and /metrics.
    #[arg(long, env = "RINGFENCE_CONTEXT_LISTEN", value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9471")]
    pub(crate) listen: SocketAddr,

    /// URL of the relay to push baselines and deltas to, as http(s)://HOST/PATH.
    #[arg(long, env = "RINGFENCE_PUSH_URL", value_name = "URL", value_parser = relay)]
    pub(crate) push_url: Option<reqwest::Url>,

    /// File with the bearer token for the relay; reread when it changes.
    #[arg(long, env = "RINGFENCE_TOKEN_FILE", value_name = "FILE", requires = "push_url")]
    pub(crate) token_file: Option<PathBuf>,

    /// File with the CA certificates (PEM) for the relay. Default: the CA certificates of the system.
    #[arg(long, env = "RINGFENCE_PUSH_CA_FILE", value_name = "FILE", requires = "push_url")]
    pub(crate) push_ca_file: Option<PathBuf>,

    /// Store for baselines: file:///DIR or s3://BUCKET/PREFIX (with AWS_* variables).
    #[arg(long, env = "RINGFENCE_STORE", value_name = "URL")]
    pub(crate) store: Option<StoreUrl>,

    /// Minimum interval in seconds between two baselines that are pushed or stored. Deltas are not delayed.
    #[arg(long, env = "RINGFENCE_BASELINE_SECS", value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) baseline_secs: Duration,

    /// Name of the cluster. Default: the UID of the namespace kube-system.
    #[arg(long, env = "RINGFENCE_CLUSTER_ID", value_name = "ID")]
    pub(crate) cluster_id: Option<String>,

    /// Enable leader election between replicas: all serve, and the holder of the Lease pushes and stores.
    #[arg(long, env = "RINGFENCE_LEADER_ELECT")]
    pub(crate) leader_elect: bool,

    /// Namespace of the Lease. Default: the namespace of the pod.
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = "ringfence")]
    pub(crate) lease_namespace: String,

    /// Name of the Lease.
    #[arg(long, env = "RINGFENCE_LEASE_NAME", value_name = "NAME", default_value = "ringfence-context")]
    pub(crate) lease_name: String,

    /// Holder identity of this process in the Lease. Default: the host name and a random number.
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub(crate) lease_identity: Option<String>,

    /// File (YAML) with the other clusters; the addresses of their labelled pods are served as remote-sets. Reread when
    /// it changes.
    #[arg(long, env = "RINGFENCE_REMOTE_CLUSTERS", value_name = "FILE")]
    pub(crate) remote_clusters: Option<PathBuf>,

    /// Prefix of the labels (PREFIX/cluster, PREFIX/namespace, PREFIX/name) with which policies select pods of other
    /// clusters, for the declared edges; the same as the agents'. Repeatable, or separated by commas.
    #[arg(long, env = "RINGFENCE_REMOTE_LABEL_PREFIX", value_name = "PREFIX", value_delimiter = ',',
        default_values = policy::remote::DEFAULT_PREFIXES)]
    pub(crate) remote_label_prefix: Vec<LabelPrefix>,

    /// Folder for the state of other clusters, so that it survives a restart while they are unreachable.
    #[arg(long, env = "RINGFENCE_CONTEXT_STATE_DIR", value_name = "DIR", requires = "remote_clusters")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Time after which the stale sets of an unreachable cluster expire, as in 90m, 36h or 7d. Default: they never
    /// expire.
    #[arg(long, env = "RINGFENCE_REMOTE_MAX_STALE", value_name = "DURATION", requires = "remote_clusters", value_parser = console::duration)]
    pub(crate) remote_max_stale: Option<Duration>,

    /// Export the sets of other clusters to the enforcer of this cluster: calico creates a GlobalNetworkSet for each.
    #[arg(long, env = "RINGFENCE_EXPORT", value_name = "FORM", value_enum, requires = "remote_clusters")]
    pub(crate) export: Option<ExportForm>,

    #[command(flatten)]
    pub(crate) history: HistoryArguments,

    #[command(flatten)]
    pub(crate) access: AccessArguments,

    #[command(flatten)]
    pub(crate) table: TableArguments,

    #[command(flatten)]
    pub(crate) log: LogArguments,
}

/// How much of the past `lookup --at` can ask for.
#[derive(Debug, Args)]
pub(crate) struct HistoryArguments {
    /// Time for which past records of addresses are kept in memory for 'lookup --at', as in 90m, 1h or 1d; off keeps
    /// none.
    #[arg(long = "history", env = "RINGFENCE_HISTORY", value_name = "DURATION", default_value = "1h", value_parser = history)]
    length: HistoryLength,

    /// Memory for past records, in MiB. The oldest are evicted beyond it.
    #[arg(long, env = "RINGFENCE_HISTORY_MIB", value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=4096))]
    history_mib: u16,
}

impl HistoryArguments {
    /// `None` if no history is kept.
    pub(crate) fn bounds(&self) -> Option<HistoryBounds> {
        let bytes = usize::from(self.history_mib) << 20;
        self.length.0.map(|age| HistoryBounds { age, bytes })
    }
}

/// `None` for `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HistoryLength(Option<Duration>);

/// Upper limit, so that the ring stays of bounded size.
const LONGEST_HISTORY: Duration = Duration::from_secs(7 * 86_400);

fn history(text: &str) -> Result<HistoryLength, String> {
    if text == "off" {
        return Ok(HistoryLength(None));
    }
    match console::duration(text) {
        Ok(length) if length <= LONGEST_HISTORY => Ok(HistoryLength(Some(length))),
        Ok(_) | Err(_) => Err("expected off or a duration of at most 7d, as in 90m, 1h or 1d".into()),
    }
}

/// As what remote sets are written into the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportForm {
    Calico,
}

impl ServeArguments {
    /// TLS, authentication and authorization of the port.
    pub(crate) fn port_settings(&self) -> PortSettings {
        let access = &self.access;
        let own_namespace = GrantSubject::Group(format!("system:serviceaccounts:{}", self.lease_namespace));
        PortSettings {
            listen: self.listen,
            tls: access.tls(),
            tokens: access.port.tokens(),
            token_ttl: access.port.auth_token_cache_ttl,
            scopes: SCOPES,
            grants: Grants::new(&access.allow, SCOPES, own_namespace),
            risks: Risks {
                without_tls: "change which addresses policies admit for other clusters",
                without_authentication: "read all identities and declared flows",
            },
        }
    }

    pub(super) fn choose_source(&mut self, given: &ArgMatches) -> Result<(), clap::Error> {
        let conflict = |message| Cli::command().error(ErrorKind::ArgumentConflict, message);
        console::source::choose(given, &mut self.kubeconfig, &mut self.manifests).map_err(conflict)?;
        if let Some(message) = self.access.conflict(self.manifests.is_none()) {
            return Err(conflict(message));
        }
        match (&self.manifests, self.leader_elect, self.export) {
            (Some(_), true, _) => Err(conflict("--leader-elect needs a cluster and cannot be used with --manifests")),
            (Some(_), _, Some(ExportForm::Calico)) => {
                Err(conflict("--export needs a cluster and cannot be used with --manifests"))
            }
            (Some(_), false, None) | (None, ..) => Ok(()),
        }
    }
}

/// A URL with credentials is refused: the token is sent in a header, and arguments are visible to every user who lists
/// processes.
fn relay(text: &str) -> Result<reqwest::Url, String> {
    let url: reqwest::Url = text.parse().map_err(|e| format!("{e}; expected http(s)://HOST/PATH"))?;
    match (url.scheme(), url.username(), url.password()) {
        ("http" | "https", "", None) => Ok(url),
        ("http" | "https", ..) => Err("a URL must not contain a user name or password; use --token-file".into()),
        _ => Err("expected http(s)://HOST/PATH".into()),
    }
}

/// `file:///dir` or `s3://bucket/prefix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoreUrl(pub(crate) reqwest::Url);

impl StoreUrl {
    /// `None` for a bucket.
    pub(crate) fn folder(&self) -> Option<PathBuf> {
        (self.0.scheme() == "file").then(|| self.0.to_file_path().ok()).flatten()
    }
}

impl std::str::FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<StoreUrl, String> {
        let url: reqwest::Url = text.parse().map_err(|e| format!("{e}; expected file:///DIR or s3://BUCKET/PREFIX"))?;
        match url.scheme() {
            "file" if url.path().len() > 1 && url.to_file_path().is_ok() => Ok(StoreUrl(url)),
            "file" if url.has_host() => {
                Err("expected file:///DIR, with three slashes, for a folder of this machine".into())
            }
            "s3" if url.host_str().is_some_and(|bucket| !bucket.is_empty()) => Ok(StoreUrl(url)),
            _ => Err("expected file:///DIR or s3://BUCKET/PREFIX".into()),
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        Ok(_) => Err("expected a number of seconds from 1 to 86400".into()),
        Err(e) => Err(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_is_a_duration_or_off() {
        let hour = HistoryLength(Some(Duration::from_secs(3600)));
        for (text, length) in [("off", HistoryLength(None)), ("1h", hour), ("60m", hour)] {
            assert_eq!(history(text), Ok(length));
        }
        for bad in ["", "0s", "8d", "on", "1"] {
            assert!(history(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_relay_is_named_without_secrets() {
        assert!(relay("https://relay.example/v1").is_ok());
        for bad in ["ftp://x", "http://user:pw@x", "https://user@x", "relay"] {
            assert!(relay(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_store_is_a_folder_or_a_bucket() {
        for good in ["file:///var/lib/x", "s3://bucket", "s3://bucket/a/b"] {
            assert!(good.parse::<StoreUrl>().is_ok(), "{good}");
        }
        for bad in ["", "/var/lib/x", "file:///", "file://var/lib/x", "s3://", "http://x", "gs://bucket"] {
            assert!(bad.parse::<StoreUrl>().is_err(), "{bad}");
        }
    }
}
