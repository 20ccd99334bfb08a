//! Serving over TLS: handshakes with bounds on their number and time, and certificates that are reloaded.

mod files;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

pub use files::{ConfigReceiver, Reloader, TlsError, TlsFiles, TlsStatus};

use crate::handshakes::Handshakes;
use crate::{ListenerLimits, PeerCertificate, serve_connection};

/// Maximum number of concurrent TLS handshakes of a listener.
const MOST_HANDSHAKES: usize = 1_024;

/// Timeout of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Bounds on handshakes, besides those on connections: a handshake is a connection from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakeLimits {
    /// Maximum number of concurrent handshakes. Above it the oldest handshake of the source with the most handshakes is
    /// evicted.
    pub count: usize,
    /// Timeout of a handshake.
    pub duration: Duration,
}

impl HandshakeLimits {
    /// Limits for a listener with this limit of connections. A handshake takes some milliseconds, so that a quarter of the
    /// connections suffices.
    pub fn of_connections(connections: usize) -> HandshakeLimits {
        HandshakeLimits { count: (connections / 4).clamp(1, MOST_HANDSHAKES), duration: HANDSHAKE }
    }
}

/// Reason for which a connection ended before its first request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefusalReason {
    /// The limit of connections was reached.
    TooManyConnections,
    /// Evicted for a newer handshake.
    HandshakeEvicted,
    HandshakeTimedOut,
    /// The peer closed the connection, does not speak TLS, does not trust the certificate, or has an invalid one.
    HandshakeFailed,
}

/// Serves the routes over TLS and never returns. Each handshake uses the certificate that was loaded last. `refused` is
/// called for each connection that ends before its first request.
pub async fn serve<L>(
    mut listener: L,
    routes: Router,
    (limits, handshake_limits): (ListenerLimits, HandshakeLimits),
    tls: ConfigReceiver,
    refused: Arc<dyn Fn(RefusalReason) + Send + Sync>,
) -> std::convert::Infallible
where
    L: Listener<Addr = SocketAddr>,
{
    let slots = Arc::new(Semaphore::new(limits.connections));
    let handshakes = Handshakes::new(handshake_limits.count);
    loop {
        let (stream, peer) = listener.accept().await;
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            refused(RefusalReason::TooManyConnections);
            continue;
        };
        let mut handshake = handshakes.begin(peer.ip());
        let (routes, refused) = (routes.clone(), refused.clone());
        let acceptor = TlsAcceptor::from(tls.borrow().clone());
        tokio::spawn(async move {
            let accepted = tokio::select! {
                accepted = timeout(handshake_limits.duration, acceptor.accept(stream)) => match accepted {
                    Ok(Ok(stream)) => Ok(stream),
                    Ok(Err(error)) => {
                        tracing::debug!(%peer, "TLS handshake failed: {error}");
                        Err(RefusalReason::HandshakeFailed)
                    }
                    Err(_) => Err(RefusalReason::HandshakeTimedOut),
                },
                () = handshake.evicted() => Err(RefusalReason::HandshakeEvicted),
            };
            drop(handshake);
            match accepted {
                Ok(stream) => {
                    let chain = stream.get_ref().1.peer_certificates();
                    let certificate = chain.and_then(|chain| PeerCertificate::of_der(chain.first()?));
                    serve_connection(stream, routes, certificate.map(Arc::new), limits).await;
                }
                Err(why) => refused(why),
            }
            drop(slot);
        });
    }
}

#[cfg(test)]
mod tests;
