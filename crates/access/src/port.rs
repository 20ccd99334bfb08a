//! Protection of a port: TLS, the guard of its routes, and warnings where either is missing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use jiff::Timestamp;
use listener::ListenerLimits;
use listener::tls::{HandshakeLimits, RefusalReason, TlsFiles, TlsStatus};
use serde::Serialize;
use tokio::sync::watch;

use crate::AccessFigures;
use crate::guard::{GrantScope, Grants, Guard, TokenAuthenticator, TokenSettings, recheck_interval};

/// Protection of a port, loaded from its [`PortSettings`].
#[derive(Clone)]
pub struct PortSecurity {
    /// `None` for plain HTTP.
    tls: Option<PortTls>,
    /// `None` if clients are not authenticated.
    pub guard: Option<Arc<Guard>>,
    pub figures: AccessFigures,
    warnings: Arc<[String]>,
}

/// Configuration of a port's protection.
pub struct PortSettings {
    pub listen: SocketAddr,
    /// `None` for plain HTTP.
    pub tls: Option<TlsFiles>,
    /// `None` if bearer tokens are not accepted.
    pub tokens: Option<TokenSettings>,
    /// Time for which the decision on a token is cached.
    pub token_ttl: Duration,
    /// Scopes of all routes.
    pub scopes: &'static [GrantScope],
    pub grants: Grants,
    pub risks: Risks,
}

/// Consequences of missing protection, for the warnings about a port that other hosts can reach.
#[derive(Debug, Clone, Copy)]
pub struct Risks {
    /// Abilities of an attacker who intercepts the traffic.
    pub without_tls: &'static str,
    /// Abilities of every client that reaches the port.
    pub without_authentication: &'static str,
}

/// The certificate that is served.
#[derive(Clone)]
struct PortTls {
    config: listener::tls::ConfigReceiver,
    status: watch::Receiver<TlsStatus>,
}

/// Section of `/status` on the port.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PortReport {
    #[serde(skip_serializing_if = "Option::is_none")]
    tls: Option<TlsReport>,
    authentication: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_review_failure: Option<String>,
    warnings: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TlsReport {
    certificate_expires: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<String>,
}

impl PortSecurity {
    /// Loads the certificate and prepares authentication. `connection` is `None` if no cluster is watched.
    ///
    /// # Errors
    /// If the certificate cannot be loaded.
    pub fn load(
        settings: PortSettings,
        connection: Option<&cluster::ApiClient>,
        figures: AccessFigures,
    ) -> Result<PortSecurity, listener::tls::TlsError> {
        let PortSettings { listen, tls, tokens, token_ttl, scopes, grants, risks } = settings;
        let certificates = tls.as_ref().is_some_and(|files| files.client_ca.is_some());
        let tls = match tls {
            Some(files) => {
                let (config, status, reloader) = files.load()?;
                tokio::spawn(reloader.run());
                Some(PortTls { config, status })
            }
            None => None,
        };
        let reviews_tokens = tokens.is_some();
        let tokens = tokens.zip(connection);
        let tokens =
            tokens.map(|(settings, connection)| TokenAuthenticator::new(connection, settings, figures.clone()));
        let guard = (certificates || reviews_tokens).then(|| Guard {
            certificates,
            tokens,
            grants,
            scopes,
            recheck: recheck_interval(token_ttl),
            figures: figures.clone(),
        });
        let warnings = warnings(listen, tls.is_some(), guard.is_some(), reviews_tokens, risks);
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        Ok(PortSecurity { tls, guard: guard.map(Arc::new), figures, warnings: warnings.into() })
    }

    /// Serves the routes with the certificate of the port, if it has one, and never returns. `refuse_connection` is called
    /// for each connection above the limit; handshakes that fail are counted here.
    pub async fn serve<L>(
        &self,
        listener: L,
        routes: Router,
        limits: ListenerLimits,
        refuse_connection: impl Fn() + Send + Sync + 'static,
    ) -> Infallible
    where
        L: Listener<Addr = SocketAddr>,
    {
        let Some(tls) = self.tls.clone() else {
            return listener::serve(listener, routes, limits, refuse_connection).await;
        };
        let figures = self.figures.clone();
        let refused = Arc::new(move |refused| match refused {
            RefusalReason::TooManyConnections => refuse_connection(),
            RefusalReason::HandshakeEvicted | RefusalReason::HandshakeTimedOut | RefusalReason::HandshakeFailed => {
                figures.refused_handshake(refused);
            }
        });
        let handshakes = HandshakeLimits::of_connections(limits.connections);
        listener::tls::serve(listener, routes, (limits, handshakes), tls.config, refused).await
    }

    /// Updates the gauges for a scrape.
    pub fn set_figures(&self) {
        if let Some(tls) = &self.tls {
            self.figures.set_tls(&tls.status.borrow());
        }
    }

    /// The section of `/status`.
    pub fn report(&self) -> PortReport {
        let tls = self.tls.as_ref().map(|tls| {
            let status = tls.status.borrow();
            let expires = Timestamp::try_from(status.expires);
            TlsReport {
                certificate_expires: expires.map_or_else(|error| error.to_string(), |at| at.to_string()),
                failure: status.failure.clone(),
            }
        });
        PortReport {
            tls,
            authentication: self.guard.as_ref().map_or_else(Vec::new, |guard| guard.methods()),
            token_review_failure: self.guard.as_ref().and_then(|guard| guard.token_review_failure()),
            warnings: self.warnings.to_vec(),
        }
    }
}

/// Warnings about missing protection of a port that other hosts can reach.
fn warnings(listen: SocketAddr, has_tls: bool, authenticates: bool, reviews_tokens: bool, risks: Risks) -> Vec<String> {
    let Risks { without_tls, without_authentication } = risks;
    if listen.ip().is_loopback() {
        return vec![];
    }
    let mut warnings = vec![];
    if !has_tls {
        warnings.push(format!(
            "{listen} is served without TLS: an attacker on the network can {without_tls}; set --tls-cert and --tls-key"
        ));
    }
    if !authenticates {
        warnings.push(format!(
            "{listen} is served without authentication: everyone who reaches the port can {without_authentication}; set \
             --auth-token-review or --client-ca"
        ));
    }
    if reviews_tokens && !has_tls {
        warnings.push("bearer tokens are received without TLS: an attacker on the network can use them".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposed_port_warns_of_missing_protection() {
        let count = |listen: &str, tls, authenticates, tokens| {
            let risks = Risks { without_tls: "change sets", without_authentication: "read identities" };
            warnings(listen.parse().unwrap(), tls, authenticates, tokens, risks).len()
        };
        assert_eq!(count("0.0.0.0:9471", false, false, false), 2);
        assert_eq!(count("[::]:9471", true, false, false), 1);
        assert_eq!(count("192.0.2.1:9471", false, true, true), 2);
        assert_eq!(count("0.0.0.0:9471", true, true, true), 0);
        assert_eq!(count("127.0.0.1:9471", false, false, false), 0);
        assert_eq!(count("[::1]:9471", false, true, true), 0);
    }
}
