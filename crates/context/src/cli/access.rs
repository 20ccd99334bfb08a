//! Arguments of `ringfence-context serve` on TLS, authentication and authorization.

use std::path::PathBuf;
use std::time::Duration;

use access::{Grant, GrantScope, TokenSettings};
use clap::Args;
use listener::Protocols;
use listener::tls::TlsFiles;

use crate::{declared, identity, remote};

const fn scope(name: &'static str) -> GrantScope {
    GrantScope { name, segment: name }
}

/// Scopes of grants: each feed, the metrics and the status.
pub(crate) const SCOPES: &[GrantScope] =
    &[scope(identity::FEED), scope(declared::FEED), scope(remote::FEED), scope("metrics"), scope("status")];

#[derive(Debug, Args)]
pub(crate) struct AccessArguments {
    /// File with the serving certificate and its chain (PEM); reloaded when it changes. Without it the port serves plain
    /// HTTP.
    #[arg(long, env = "RINGFENCE_TLS_CERT", value_name = "FILE", alias = "tls-cert-file", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// File with the private key of the serving certificate (PEM); reloaded when it changes.
    #[arg(long, env = "RINGFENCE_TLS_KEY", value_name = "FILE", alias = "tls-private-key-file", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,

    /// File with the CA certificates (PEM) of client certificates, which authenticate clients: the common name is the
    /// user, the organizations are its groups. Reloaded when it changes.
    #[arg(long, env = "RINGFENCE_CLIENT_CA", value_name = "FILE", alias = "client-ca-file", requires = "tls_cert")]
    pub(crate) client_ca: Option<PathBuf>,

    /// Authenticate clients by bearer tokens, which the API server reviews (TokenReview).
    #[arg(long, env = "RINGFENCE_AUTH_TOKEN_REVIEW")]
    pub(crate) auth_token_review: bool,

    /// Audiences of accepted tokens, separated by commas: a token has to be issued for one of them.
    #[arg(long, env = "RINGFENCE_AUTH_TOKEN_AUDIENCES", value_name = "AUDIENCE", value_delimiter = ',',
        default_value = "ringfence-context", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) auth_token_audiences: Vec<String>,

    /// Time for which a reviewed token stays accepted without another review, from 1s to 10m. Open streams are
    /// authenticated again after five times as long.
    #[arg(long, env = "RINGFENCE_AUTH_TOKEN_CACHE_TTL", value_name = "DURATION", default_value = "1m", value_parser = ttl)]
    pub(crate) auth_token_cache_ttl: Duration,

    /// Grant a scope to a user or group, as SCOPE=user:NAME or SCOPE=group:NAME; repeatable, or separated by commas. The
    /// scopes are identity, policy-edges, remote-sets, metrics, status, and * for all. Default of a scope without a
    /// grant: the service accounts of the provider's own namespace (--lease-namespace).
    #[arg(long, env = "RINGFENCE_ALLOW", value_name = "SCOPE=SUBJECT", value_delimiter = ',', value_parser = grant)]
    pub(crate) allow: Vec<Grant>,
}

impl AccessArguments {
    /// `None` without TLS.
    pub(crate) fn tls(&self) -> Option<TlsFiles> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(TlsFiles { certificate, key, client_ca: self.client_ca.clone(), protocols: Protocols::Http1 })
    }

    /// `None` where tokens are not accepted.
    pub(crate) fn tokens(&self) -> Option<TokenSettings> {
        self.auth_token_review
            .then(|| TokenSettings { audiences: self.auth_token_audiences.clone(), ttl: self.auth_token_cache_ttl })
    }

    pub(crate) fn authenticates(&self) -> bool {
        self.client_ca.is_some() || self.auth_token_review
    }

    /// Conflicts between arguments.
    pub(super) fn conflict(&self, has_cluster: bool) -> Option<&'static str> {
        if self.auth_token_review && !has_cluster {
            return Some("--auth-token-review needs a cluster and cannot be used with --manifests");
        }
        if !self.allow.is_empty() && !self.authenticates() {
            return Some("--allow needs --client-ca or --auth-token-review: without authentication everyone may read");
        }
        None
    }
}

fn grant(text: &str) -> Result<Grant, String> {
    Grant::parse(text, SCOPES)
}

fn ttl(text: &str) -> Result<Duration, String> {
    TokenSettings::check_ttl(console::duration(text)?)
}
