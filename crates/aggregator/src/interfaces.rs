//! Interfaces for clients of other projects (Hubble, Goldmane): addresses, security and limits.
//!
//! Hubble and Goldmane clients in the aggregator's pod or behind `kubectl port-forward` use plain gRPC over the
//! loopback or a Unix socket. Every other address has the TLS and the authentication of the main port.

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use access::{PortSecurity, Session, check};
use anyhow::{Context, bail};
use axum::Router;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use flow::{ClusterRecord, FlowFilters};
use jiff::Timestamp;
use listener::{ListenerLimits, Protocols};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

use crate::aggregate::Aggregate;
use crate::listen;
use crate::metrics::Metrics;

/// Limit of connections per interface, which serve command-line clients and one or two web interfaces.
const MOST_CONNECTIONS: usize = 64;

/// Limit of concurrent calls that read past records, over all interfaces: each holds the joined records of one window.
const MOST_QUERIES: usize = 8;

/// Limit of streams that wait for new records, over all interfaces.
const MOST_STREAMS: usize = 32;

/// Longest lifetime of a connection. Neither streams nor idle HTTP/2 peers end by themselves; clients reconnect.
const LIFETIME: Duration = Duration::from_secs(3600);

const REQUEST_HEAD: Duration = Duration::from_secs(10);

/// Mode of a Unix socket. Records reveal who connects to whom, so only the owner may read them.
const SOCKET_MODE: u32 = 0o600;

/// Listen address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum InterfaceAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl InterfaceAddress {
    /// # Errors
    /// If the text is not an address.
    pub(crate) fn parse(text: &str) -> Result<InterfaceAddress, String> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(InterfaceAddress::Unix(path.into())),
            Some(_) => Err("expected unix: and an absolute path".to_owned()),
            None => {
                let address = text.parse().map_err(|_| "expected ADDRESS:PORT or unix:PATH".to_owned())?;
                Ok(InterfaceAddress::Tcp(address))
            }
        }
    }

    /// Whether only this host can reach the address.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            InterfaceAddress::Tcp(address) => address.ip().is_loopback(),
            InterfaceAddress::Unix(_) => true,
        }
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InterfaceAddress::Tcp(address) => address.fmt(f),
            InterfaceAddress::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Data source of the Hubble and Goldmane interfaces, with limits of concurrent calls.
#[derive(Clone)]
pub(crate) struct Archive {
    pub(crate) aggregate: Arc<Aggregate>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) started: Timestamp,
    queries: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl Archive {
    pub(crate) fn new(aggregate: Arc<Aggregate>, metrics: Arc<Metrics>, started: Timestamp) -> Archive {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Archive { aggregate, metrics, started, queries: semaphore(MOST_QUERIES), streams: semaphore(MOST_STREAMS) }
    }

    /// A permit to read past records.
    pub(crate) fn admit_query(&self) -> Result<OwnedSemaphorePermit, Status> {
        self.admit(&self.queries, "queries")
    }

    /// A permit to wait for new records.
    pub(crate) fn admit_stream(&self) -> Result<OwnedSemaphorePermit, Status> {
        self.admit(&self.streams, "streams")
    }

    fn admit(&self, permits: &Arc<Semaphore>, what: &str) -> Result<OwnedSemaphorePermit, Status> {
        match permits.clone().try_acquire_owned() {
            Ok(permit) => {
                self.metrics.query();
                Ok(permit)
            }
            Err(_) => {
                self.metrics.refuse_query();
                Err(Status::resource_exhausted(format!("too many {what} are under way; try again later")))
            }
        }
    }

    /// Starts of the stored windows, oldest first.
    pub(crate) fn windows(&self) -> Vec<Timestamp> {
        self.aggregate.windows(&FlowFilters::default())
    }

    /// Joined records of a window. The join runs on a blocking thread, since it needs some milliseconds.
    pub(crate) async fn read(&self, window: Timestamp) -> Result<Vec<ClusterRecord>, Status> {
        let aggregate = self.aggregate.clone();
        let read = tokio::task::spawn_blocking(move || aggregate.read(window, &FlowFilters::default()));
        read.await.map_err(|error| Status::internal(format!("cannot read records: {error}")))
    }
}

/// Waits until the access of a client is revoked; forever without authentication.
pub(crate) async fn revoked(session: Option<Session>) {
    match session {
        Some(session) => session.revoked().await,
        None => std::future::pending().await,
    }
}

/// An interface whose address is bound, not yet serving.
pub(crate) enum BoundInterface {
    Local(TcpListener),
    Unix(UnixListener),
    Protected(TcpListener),
}

impl BoundInterface {
    /// # Errors
    /// If the address is in use, or the path exists and is not a socket.
    pub(crate) async fn bind(address: &InterfaceAddress, flag: &str) -> anyhow::Result<BoundInterface> {
        let cannot_listen = || format!("cannot listen on {address}; choose another address with {flag}");
        Ok(match address {
            InterfaceAddress::Tcp(socket) => {
                let listener = TcpListener::bind(socket).await.with_context(cannot_listen)?;
                match address.is_local() {
                    true => BoundInterface::Local(listener),
                    false => BoundInterface::Protected(listener),
                }
            }
            InterfaceAddress::Unix(path) => BoundInterface::Unix(bind_socket(path).with_context(cannot_listen)?),
        })
    }

    /// Serves routes and never returns.
    pub(crate) async fn serve(self, routes: Router, security: PortSecurity, metrics: Arc<Metrics>) -> Infallible {
        let limits = ListenerLimits {
            connections: MOST_CONNECTIONS,
            request_head: REQUEST_HEAD,
            lifetime: Some(LIFETIME),
            protocols: Protocols::Http1AndHttp2,
        };
        let refused = {
            let metrics = metrics.clone();
            move || metrics.refuse_connection()
        };
        let routes = |guard| {
            let routes = routes.fallback(async || (StatusCode::NOT_FOUND, "this call is not served"));
            let guarded = routes.layer(from_fn_with_state(guard, check));
            guarded.layer(from_fn(listen::as_grpc_status))
        };
        match self {
            BoundInterface::Local(listener) => listener::serve(listener, routes(None), limits, refused).await,
            BoundInterface::Unix(listener) => listener::serve(listener, routes(None), limits, refused).await,
            BoundInterface::Protected(listener) => {
                let routes = routes(security.guard.clone());
                listen::serve_protected(listener, routes, limits, security, metrics).await
            }
        }
    }
}

/// Binds a socket for its owner only. The mode is set before the socket is visible under its name.
fn bind_socket(path: &Path) -> anyhow::Result<UnixListener> {
    if let Ok(metadata) = std::fs::symlink_metadata(path)
        && !metadata.file_type().is_socket()
    {
        bail!("{} exists and is not a socket; choose another path", path.display());
    }
    let mut unnamed = path.as_os_str().to_owned();
    unnamed.push(format!(".{}", std::process::id()));
    let unnamed = PathBuf::from(unnamed);
    let listener = UnixListener::bind(&unnamed)?;
    let named = std::fs::set_permissions(&unnamed, std::fs::Permissions::from_mode(SOCKET_MODE))
        .and_then(|()| std::fs::rename(&unnamed, path));
    if let Err(error) = named {
        std::fs::remove_file(&unnamed)?;
        return Err(error.into());
    }
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_ports_or_sockets() {
        let parse = InterfaceAddress::parse;
        assert_eq!(parse("unix:/run/hubble.sock"), Ok(InterfaceAddress::Unix("/run/hubble.sock".into())));
        assert!(parse("127.0.0.1:4245").unwrap().is_local() && parse("[::1]:4245").unwrap().is_local());
        assert!(!parse("0.0.0.0:4245").unwrap().is_local());
        for text in ["unix:run/hubble.sock", "4245", "localhost", "/run/hubble.sock"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn socket_is_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("hubble.sock");
        let first = bind_socket(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        // The socket of an earlier process is replaced, without a leftover temporary file.
        drop(first);
        let _second = bind_socket(&path).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "something else").unwrap();
        assert!(bind_socket(&path).unwrap_err().to_string().contains("is not a socket"));
        assert_eq!(std::fs::read(&path).unwrap(), b"something else");
    }
}
