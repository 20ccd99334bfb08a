//! The way to the API server: where it is, who we are, and how long we wait for it.

mod elsewhere;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};

use crate::watch::failure::Failure;
use elsewhere::Reread;
pub use elsewhere::{Elsewhere, connect_elsewhere};

/// A client of one API server, and its patience.
#[derive(Clone)]
pub struct Connection {
    clients: Clients,
    pub(crate) timing: Timing,
}

#[derive(Clone)]
enum Clients {
    /// Tokens that a pod finds in its container are read again by kube, a minute later at most.
    Fixed(Client),
    /// Made anew whenever the files that it was made from say something else.
    Reread(Arc<Reread>),
}

impl Connection {
    /// The client to ask with now.
    pub(crate) async fn client(&self) -> Result<Client, Failure> {
        match &self.clients {
            Clients::Fixed(client) => Ok(client.clone()),
            Clients::Reread(files) => files.client().await.map_err(Failure::NoWay),
        }
    }

    /// The same connection with other patience.
    pub fn with_timing(self, timing: Timing) -> Connection {
        Connection { timing, ..self }
    }
}

/// How long to wait for what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timing {
    /// For the head of an answer, for a page of a list, and between two objects of a streaming list. An API server
    /// that is healthy and busy ends its own requests after 60 s.
    pub answer: Duration,
    /// After this the server is asked to end a watch; whole seconds. A bit below five minutes, where many load
    /// balancers cut what they take for idle.
    pub watch: Duration,
    /// On top of `watch`, before a watch without a byte is taken for dead.
    pub watch_grace: Duration,
    /// A watch that lasted so long has begun well: its problem is over, and its end is no failure.
    pub steady: Duration,
    /// The wait after a first failure; it doubles with every further one.
    pub backoff_first: Duration,
    /// No wait is longer.
    pub backoff_last: Duration,
    /// After a failed streaming list, lists are read in pages for this long.
    pub streaming_retry: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            answer: Duration::from_secs(60),
            watch: Duration::from_secs(290),
            watch_grace: Duration::from_secs(5),
            steady: Duration::from_secs(1),
            backoff_first: Duration::from_millis(800),
            backoff_last: Duration::from_secs(30),
            // Lists are rare, and one failed request more is cheap: an upgraded server is noticed soon enough.
            streaming_retry: Duration::from_secs(600),
        }
    }
}

/// For the TCP and TLS handshakes. A server that is there answers in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why there is no connection to speak of. The causes are part of the sentence.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("kubeconfig {}: {reason}", path.display())]
    Kubeconfig { path: PathBuf, reason: String },
    #[error("no in-cluster configuration ({0}); outside of a cluster, set --kubeconfig")]
    NotInCluster(#[source] kube::config::InClusterError),
    #[error("invalid connection settings: {0}")]
    Unusable(#[source] kube::Error),
}

/// Prepares a client from a kubeconfig file, or from what a pod finds in its container. Does not talk to the server
/// yet; must be called within a tokio runtime.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Connection, ConnectError> {
    let config = match kubeconfig {
        Some(path) => read_kubeconfig(path).await?,
        None => Config::incluster().map_err(ConnectError::NotInCluster)?,
    };
    let client = client(config).map_err(ConnectError::Unusable)?;
    Ok(Connection { clients: Clients::Fixed(client), timing: Timing::default() })
}

fn client(mut config: Config) -> Result<Client, kube::Error> {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // The watches wait for themselves, and report what they wait for.
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
        // The parser draws the place below its first line, which names it.
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
