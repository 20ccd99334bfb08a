//! The way to the API server: where it is, who we are, and how long we wait for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// A client of one API server, and its patience.
#[derive(Clone)]
pub struct Connection {
    pub(crate) client: Client,
    pub(crate) timing: Timing,
}

impl Connection {
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
    #[error("not in a cluster ({0}); outside of one, name a kubeconfig file with --kubeconfig")]
    NotInCluster(#[source] kube::config::InClusterError),
    #[error("the connection settings do not work: {0}")]
    Unusable(#[source] kube::Error),
}

/// Prepares a client from a kubeconfig file, or from what a pod finds in its container. Does not talk to the server
/// yet; must be called within a tokio runtime.
pub async fn connect(kubeconfig: Option<&Path>) -> Result<Connection, ConnectError> {
    let mut config = match kubeconfig {
        Some(path) => read_kubeconfig(path).await?,
        None => Config::incluster().map_err(ConnectError::NotInCluster)?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    // The watches wait for themselves, and report what they wait for.
    config.read_timeout = None;
    config.default_retry = false;
    let client = Client::try_from(config).map_err(ConnectError::Unusable)?;
    Ok(Connection { client, timing: Timing::default() })
}

async fn read_kubeconfig(path: &Path) -> Result<Config, ConnectError> {
    let fail = |e: kube::config::KubeconfigError| ConnectError::Kubeconfig {
        path: path.to_owned(),
        reason: match e {
            kube::config::KubeconfigError::ReadConfig(io, _) => io.to_string(),
            // The parser draws the place below its first line, which names it.
            other => other.to_string().lines().next().unwrap_or_default().to_owned(),
        },
    };
    let kubeconfig = Kubeconfig::read_from(path).map_err(fail)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(fail)
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
    async fn outside_of_a_cluster_the_error_says_what_to_do() {
        let error = connect(None).await.err().map(|e| e.to_string()).unwrap();
        assert!(error.starts_with("not in a cluster (") && error.ends_with("--kubeconfig"), "{error}");
    }
}
