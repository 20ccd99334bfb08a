//! The connection to the API server: address, credentials and timeouts.

mod remote_cluster;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::watch::failure::Failure;
use remote_cluster::Reread;
pub use remote_cluster::{ClusterAccess, connect_to};

/// A client of one API server, and its timeouts.
#[derive(Clone)]
pub struct ApiClient {
    clients: Clients,
    pub(crate) timing: RequestTiming,
}

#[derive(Clone)]
enum Clients {
    /// For in-cluster credentials: kube rereads the service account token within a minute.
    Fixed(Client),
    /// Recreated whenever the contents of its credential files change.
    Reread(Arc<Reread>),
}

impl ApiClient {
    /// The current client.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        match &self.clients {
            Clients::Fixed(client) => Ok(client.clone()),
            Clients::Reread(files) => files.client().await.map_err(Failure::NoWay),
        }
    }

    /// The same connection with other timeouts.
    pub fn with_timing(self, timing: RequestTiming) -> ApiClient {
        ApiClient { timing, ..self }
    }
}

/// Timeouts and backoff of requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestTiming {
    /// Timeout for the head of a response, for a page of a list, and between two objects of a streaming list. A healthy
    /// but busy API server ends its own requests after 60 s.
    pub answer: Duration,
    /// The watch timeout (`timeoutSeconds`) that the server is asked for; whole seconds. A bit below five minutes,
    /// after which many load balancers close connections as idle.
    pub watch: Duration,
    /// Grace period after `watch` before a watch without traffic counts as dead.
    pub watch_grace: Duration,
    /// A watch that lasts this long is healthy: its problem is cleared, and its end is not a failure.
    pub steady: Duration,
    /// The backoff after a first failure; it doubles with every further one.
    pub backoff_first: Duration,
    /// The maximum backoff.
    pub backoff_last: Duration,
    /// After a failed streaming list, lists are paged for this long.
    pub streaming_retry: Duration,
}

impl Default for RequestTiming {
    fn default() -> RequestTiming {
        RequestTiming {
            answer: Duration::from_secs(60),
            watch: Duration::from_secs(290),
            watch_grace: Duration::from_secs(5),
            steady: Duration::from_secs(1),
            backoff_first: Duration::from_millis(800),
            backoff_last: Duration::from_secs(30),
            // Lists are rare, and one more failed request is cheap: this is often enough to notice an upgraded server.
            streaming_retry: Duration::from_secs(600),
        }
    }
}

/// Timeout of the TCP and TLS handshakes. A reachable server responds in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why no client could be created. The message includes the causes.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("kubeconfig {}: {reason}", path.display())]
    Kubeconfig { path: PathBuf, reason: String },
    #[error("no in-cluster configuration ({0}); outside of a cluster, set --kubeconfig")]
    NotInCluster(#[source] kube::config::InClusterError),
    #[error("invalid connection settings: {0}")]
    Unusable(#[source] kube::Error),
}

/// Creates a client from a kubeconfig file, or from the in-cluster configuration of a pod. Does not connect yet; must
/// be called within a tokio runtime.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<ApiClient, ConnectError> {
    let config = match kubeconfig {
        Some(path) => read_kubeconfig(path).await?,
        None => Config::incluster().map_err(ConnectError::NotInCluster)?,
    };
    let client = client(config).map_err(ConnectError::Unusable)?;
    Ok(ApiClient { clients: Clients::Fixed(client), timing: RequestTiming::default() })
}

fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // The watches have read timeouts and report them themselves.
    config.read_timeout = None;
    config.default_retry = false;
    Client::try_from(config)
}

async fn read_kubeconfig(path: &Path) -> Result<Config, ConnectError> {
    let fail = |e| ConnectError::Kubeconfig { path: path.to_owned(), reason: reason(&e) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(fail)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(fail)
}

fn reason(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(io, _) => io.to_string(),
        // The first line of the parser's message names the position, and the rest draws it.
        other => other.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_missing_kubeconfig_is_named_once() {
        let error = connect(Some(Path::new("/nowhere/kubeconfig"))).await.err().map(|e| e.to_string());
        assert_eq!(error.as_deref(), Some("kubeconfig /nowhere/kubeconfig: No such file or directory (os error 2)"));
    }

    #[tokio::test]
    async fn connection_error_outside_cluster_suggests_kubeconfig() {
        let error = connect(None).await.err().map(|e| e.to_string()).unwrap();
        assert!(error.starts_with("no in-cluster configuration (") && error.ends_with("--kubeconfig"), "{error}");
    }
}
