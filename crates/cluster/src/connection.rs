//! The connection to the API server: address, credentials and timeouts.

mod remote_cluster;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hyper_timeout::TimeoutConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt as _};
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

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
    /// Created once. kube itself rereads an in-cluster service account token within a minute after it changes.
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
    /// Timeout for the head of a response, for a page of a list, and between two objects of a streaming list. It should
    /// not be shorter than the API server's own request timeout (60 s), which a busy but healthy server may need.
    pub answer: Duration,
    /// The watch timeout in requests (`timeoutSeconds`), in whole seconds. The default is slightly less than five
    /// minutes, after which many load balancers close idle connections.
    pub watch: Duration,
    /// Grace period after `watch` before a watch without traffic counts as dead.
    pub watch_grace: Duration,
    /// A watch that has lasted this long counts as healthy: its problem is cleared, and its end is not a failure.
    pub steady: Duration,
    /// The backoff after the first failure; it doubles with every further failure.
    pub backoff_first: Duration,
    /// The maximum backoff.
    pub backoff_last: Duration,
    /// How long lists are paged after a failed streaming list.
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
            // An upgraded server may support streaming lists. Lists are rare, so that a failed one per interval costs
            // little.
            streaming_retry: Duration::from_secs(600),
        }
    }
}

/// Timeout of the TCP and TLS handshakes. A reachable server responds in milliseconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// TCP keepalive (SO_KEEPALIVE): the idle time before the first probe, the interval of the probes, and their number. A
/// watch whose server or load balancer vanished without a RST ends after 45 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_RETRIES: u32 = 3;

/// Time without an acknowledgement of sent data or probes after which the kernel closes a connection (tcp(7),
/// TCP_USER_TIMEOUT). It equals the time after which keepalive closes an idle connection.
const USER_TIMEOUT: Duration = KEEPALIVE_IDLE.saturating_add(KEEPALIVE_INTERVAL.saturating_mul(KEEPALIVE_RETRIES));

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

/// Creates kube's client with TCP keepalive, which kube's own connector lacks. The client neither retries requests nor
/// has read timeouts: the watches implement both, and report failures.
fn client(config: Config) -> Result<Client, kube::Error> {
    if config.proxy_url.is_some() {
        // Proxies are not supported: kube returns an error that names the proxy.
        return Client::try_from(config);
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_keepalive(Some(KEEPALIVE_IDLE));
    tcp.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    tcp.set_tcp_user_timeout(Some(USER_TIMEOUT));
    let mut connector = TimeoutConnector::new(config.rustls_https_connector_with_connector(tcp)?);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

async fn read_kubeconfig(path: &Path) -> Result<Config, ConnectError> {
    let fail = |e| ConnectError::Kubeconfig { path: path.to_owned(), reason: reason(&e) };
    let kubeconfig = Kubeconfig::read_from(path).map_err(fail)?;
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(fail)
}

fn reason(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(io, _) => io.to_string(),
        // The first line of the parser's message contains the position; the other lines show an excerpt of the file.
        other => other.to_string().lines().next().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time until the keepalive timer of the connection to this port expires; `None` if none is armed.
    fn keepalive_timer(port: u16) -> Option<Duration> {
        let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let peer = format!("0100007F:{port:04X}");
        let row: Vec<&str> =
            table.lines().map(|line| line.split_whitespace().collect()).find(|row: &Vec<&str>| row[2] == peer)?;
        // In /proc/net/tcp, timer 2 is the keepalive timer; its value is in hundredths of a second.
        let hundredths = row[5].strip_prefix("02:")?;
        Some(Duration::from_millis(u64::from_str_radix(hundredths, 16).unwrap() * 10))
    }

    #[tokio::test]
    async fn idle_connection_is_probed() {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let client = client(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
        let request = tokio::spawn(async move { client.apiserver_version().await });
        let (connection, _) = server.accept().await.unwrap();
        let mut timer = None;
        for _ in 0..1000 {
            timer = keepalive_timer(address.port());
            if timer.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let timer = timer.expect("an armed keepalive timer");
        assert!(timer <= KEEPALIVE_IDLE, "{timer:?}");
        drop(connection);
        assert!(request.await.unwrap().is_err());
    }

    #[tokio::test]
    async fn missing_kubeconfig_is_named_once() {
        let error = connect(Some(Path::new("/nowhere/kubeconfig"))).await.err().map(|e| e.to_string());
        assert_eq!(error.as_deref(), Some("kubeconfig /nowhere/kubeconfig: No such file or directory (os error 2)"));
    }

    #[tokio::test]
    async fn connection_error_outside_cluster_suggests_kubeconfig() {
        let error = connect(None).await.err().map(|e| e.to_string()).unwrap();
        assert!(error.starts_with("no in-cluster configuration (") && error.ends_with("--kubeconfig"), "{error}");
    }
}
