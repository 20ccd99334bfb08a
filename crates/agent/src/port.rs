//! The agent's TCP port (health, readiness, metrics). Enforcement does not depend on it: another program may have bound
//! it first, so the agent reports the error, retries and continues.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use listener::{ListenerLimits, Protocols};
use pacing::Backoff;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::event_loop::Event;
use crate::metrics::Metrics;
use crate::metrics::labels::Listens;

/// A few Prometheus servers and probes send requests every few seconds, and get responses within milliseconds. A
/// scraper with a persistent connection opens a new one at the end of its lifetime.
pub(crate) const LIMITS: ListenerLimits = ListenerLimits {
    connections: 64,
    request_head: Duration::from_secs(10),
    lifetime: Some(Duration::from_secs(60)),
    protocols: Protocols::Http1,
};

/// Initial backoff while the port is in use; doubles up to the longest.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Serves the routes once the port is free.
pub(crate) async fn serve(
    address: SocketAddr,
    routes: Router,
    events: mpsc::Sender<Event>,
    metrics: impl AsRef<Metrics>,
) -> Infallible {
    let listener = bind(address, &events).await;
    listener::serve(listener, routes, LIMITS, || metrics.as_ref().refuse_connection(Listens::Port)).await
}

async fn bind(address: SocketAddr, events: &mpsc::Sender<Event>) -> TcpListener {
    let mut reported: Option<String> = None;
    let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
    loop {
        let error = match TcpListener::bind(address).await {
            Ok(listener) => {
                if reported.is_some() {
                    report(events, None).await;
                }
                tracing::info!(listen = %address, "serving health checks and metrics");
                return listener;
            }
            Err(error) => error,
        };
        let problem = format!(
            "cannot listen on {address}: {error}. No health checks and metrics are served meanwhile; a response from \
             this address is not of this agent. Policies are enforced all the same. Stop the process that has the \
             port, or choose another address with --listen"
        );
        if reported.as_ref() != Some(&problem) {
            tracing::warn!("{problem}");
            report(events, Some(problem.clone())).await;
            reported = Some(problem);
        }
        tokio::time::sleep(backoff.wait_exactly()).await;
    }
}

async fn report(events: &mpsc::Sender<Event>, problem: Option<String>) {
    if events.send(Event::Port(problem)).await.is_err() {
        tracing::debug!("the event loop has ended");
    }
}
