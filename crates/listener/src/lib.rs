//! HTTP and HTTPS listeners with bounds on connections and time, the process's limit of open files, and the exposition of
//! metrics.
//!
//! A peer that opens connections and sends nothing, or sends its request byte by byte, costs descriptors, which the process
//! needs for its work. Each listener has a share of them and refuses what exceeds it. Neither the served resources nor who
//! may read them is decided here: over TLS a request carries the [`PeerCertificate`] of its connection.

mod activity;
mod certificate;
mod exposition;
mod handshakes;
pub mod tls;

use std::fmt::Display;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use activity::Activity;
use axum::Router;
use axum::http::Request;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

pub use certificate::PeerCertificate;
pub use exposition::{exposition, program_registry, scrape_response};

/// Limits on the connections of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Maximum number of open connections. Further ones are accepted and closed, so that they do not fill the kernel's
    /// accept queue.
    pub connections: usize,
    /// Timeout for the head of a request, from the start of the connection or the end of the previous response. It is
    /// also the idle timeout.
    pub request_head: Duration,
    /// Longest lifetime of a connection; `None` if responses have no end.
    pub lifetime: Option<Duration>,
    pub protocols: Protocols,
}

/// Supported versions of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocols {
    Http1,
    /// Also HTTP/2, which gRPC needs. A connection may be idle for a minute after its first request, since clients such as
    /// the agents keep it between requests.
    Http1AndHttp2,
}

/// Maximum number of concurrent requests of an HTTP/2 connection.
const MOST_STREAMS: u32 = 32;

/// Serves the routes and never returns. `refused` is called for each connection above the limit. Accept errors, which
/// are caused by a lack of descriptors or memory, are retried after a second.
pub async fn serve<L>(
    mut listener: L,
    routes: Router,
    limits: ListenerLimits,
    refused: impl Fn(),
) -> std::convert::Infallible
where
    L: Listener,
{
    let slots = Arc::new(Semaphore::new(limits.connections));
    loop {
        let (stream, _) = listener.accept().await;
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            refused();
            continue;
        };
        let routes = routes.clone();
        tokio::spawn(async move {
            serve_connection(stream, routes, None, limits).await;
            drop(slot);
        });
    }
}

/// Serves one connection. Each of its requests carries the client's certificate, if it presented one.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    routes: Router,
    peer: Option<Arc<PeerCertificate>>,
    limits: ListenerLimits,
) {
    let routes = TowerToHyperService::new(routes);
    let activity = Activity::default();
    let requests = activity.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        if let Some(peer) = &peer {
            request.extensions_mut().insert(peer.clone());
        }
        requests.track(routes.call(request))
    });
    match limits.protocols {
        Protocols::Http1 => {
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(limits.request_head);
            let connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
            // The header timeout ends an idle connection.
            run_connection(connection, http1::Connection::graceful_shutdown, pending(), limits).await;
        }
        Protocols::Http1AndHttp2 => {
            let mut builder = auto::Builder::new(TokioExecutor::new());
            builder.http1().timer(TokioTimer::new()).header_read_timeout(limits.request_head);
            builder.http2().timer(TokioTimer::new()).max_concurrent_streams(MOST_STREAMS);
            let connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
            run_connection(connection, auto::Connection::graceful_shutdown, activity.idle(limits.request_head), limits)
                .await;
        }
    }
}

/// Runs a connection to its end, to the end of its lifetime, or until it is idle.
async fn run_connection<C, E>(
    mut connection: Pin<&mut C>,
    graceful_shutdown: impl Fn(Pin<&mut C>),
    idle: impl Future<Output = ()>,
    limits: ListenerLimits,
) where
    C: Future<Output = Result<(), E>>,
    E: Display,
{
    let lifetime = async {
        match limits.lifetime {
            Some(lifetime) => sleep(lifetime).await,
            None => pending().await,
        }
    };
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = async { tokio::select! { () = lifetime => {}, () = idle => {} } } => {
            // The current response may finish; later requests are not read.
            graceful_shutdown(connection.as_mut());
            match timeout(limits.request_head, connection).await {
                Ok(served) => served,
                Err(_) => return tracing::debug!("a connection timed out and was closed"),
            }
        }
    };
    if let Err(error) = served {
        // Caused by the peer: it disconnected, was too slow, or does not speak HTTP.
        tracing::debug!("a connection ended: {error}");
    }
}

/// Raises the soft limit of open files to the hard one (the usual soft limit is 1,024), and returns it; `None` if there is
/// no limit.
pub fn raise_file_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::warn!(
                "cannot raise the limit of open files (RLIMIT_NOFILE), which stays at {:?}: {error}",
                limit.current
            );
            limit.current
        }
    }
}

#[cfg(test)]
mod tests;
