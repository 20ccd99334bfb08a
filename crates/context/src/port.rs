//! How the port is protected: TLS, the guard of its routes, and warnings where either is missing.

use std::net::SocketAddr;
use std::sync::Arc;

use jiff::Timestamp;
use listener::tls::TlsStatus;
use serde::Serialize;
use tokio::sync::watch;

use crate::cli::ServeArguments;
use crate::guard::{Grants, Guard, Subject, TokenAuthenticator, recheck_interval};
use crate::metrics::AccessFigures;

/// What protects the port.
#[derive(Clone)]
pub(crate) struct PortSecurity {
    /// `None` for plain HTTP.
    pub(crate) tls: Option<PortTls>,
    /// `None` where everyone may read.
    pub(crate) guard: Option<Arc<Guard>>,
    pub(crate) figures: AccessFigures,
    warnings: Arc<[String]>,
}

/// The certificate that is served.
#[derive(Clone)]
pub(crate) struct PortTls {
    pub(crate) config: listener::tls::ConfigReceiver,
    status: watch::Receiver<TlsStatus>,
}

/// In `/status`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PortReport {
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
    /// Loads the certificate and prepares authentication. `connection` is there where a cluster is watched.
    ///
    /// # Errors
    /// If the certificate cannot be loaded.
    pub(crate) fn of_arguments(
        arguments: &ServeArguments,
        connection: Option<&cluster::Connection>,
        figures: AccessFigures,
    ) -> anyhow::Result<PortSecurity> {
        let access = &arguments.access;
        let tls = match access.tls() {
            Some(files) => {
                let (config, status, reloader) = files.load()?;
                tokio::spawn(reloader.run());
                Some(PortTls { config, status })
            }
            None => None,
        };
        let tokens = access.tokens().zip(connection);
        let tokens =
            tokens.map(|(settings, connection)| TokenAuthenticator::new(connection, settings, figures.clone()));
        let own_namespace = Subject::Group(format!("system:serviceaccounts:{}", arguments.lease_namespace));
        let guard = access.authenticates().then(|| Guard {
            certificates: access.client_ca.is_some(),
            tokens,
            grants: Grants::new(&access.allow, own_namespace),
            recheck: recheck_interval(access.auth_token_cache_ttl),
            figures: figures.clone(),
        });
        let warnings = warnings(arguments.listen, tls.is_some(), guard.is_some(), access.auth_token_review);
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        Ok(PortSecurity { tls, guard: guard.map(Arc::new), figures, warnings: warnings.into() })
    }

    /// Sets the figures that are read when scraped.
    pub(crate) fn set_figures(&self) {
        if let Some(tls) = &self.tls {
            self.figures.set_tls(&tls.status.borrow());
        }
    }

    pub(crate) fn report(&self) -> PortReport {
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

/// What is dangerous about a port that others than this host reach.
fn warnings(listen: SocketAddr, has_tls: bool, authenticates: bool, reviews_tokens: bool) -> Vec<String> {
    if listen.ip().is_loopback() {
        return vec![];
    }
    let mut warnings = vec![];
    if !has_tls {
        warnings.push(format!(
            "{listen} is served without TLS: who intercepts the traffic can change which addresses policies admit for other \
             clusters; set --tls-cert and --tls-key"
        ));
    }
    if !authenticates {
        warnings.push(format!(
            "{listen} is served without authentication: everyone who reaches the port can read all identities and declared \
             flows; set --auth-token-review or --client-ca"
        ));
    }
    if reviews_tokens && !has_tls {
        warnings.push("bearer tokens are received without TLS: who intercepts the traffic can use them".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposed_port_warns_of_missing_protection() {
        let count = |listen: &str, tls, authenticates, tokens| {
            warnings(listen.parse().unwrap(), tls, authenticates, tokens).len()
        };
        assert_eq!(count("0.0.0.0:9471", false, false, false), 2);
        assert_eq!(count("[::]:9471", true, false, false), 1);
        assert_eq!(count("192.0.2.1:9471", false, true, true), 2);
        assert_eq!(count("0.0.0.0:9471", true, true, true), 0);
        assert_eq!(count("127.0.0.1:9471", false, false, false), 0);
        assert_eq!(count("[::1]:9471", false, true, true), 0);
    }
}
