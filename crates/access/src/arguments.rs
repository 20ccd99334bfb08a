//! Arguments of a binary on TLS and on the authentication of clients. The binary adds its scopes, its default audience and
//! its aliases, with `mut_arg` where clap allows it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use listener::Protocols;
use listener::tls::TlsFiles;

use crate::guard::{Grant, TokenSettings};

#[derive(Debug, Args)]
pub struct PortArguments {
    /// File with the serving certificate and its chain (PEM); reloaded when it changes. Without it the port serves plain
    /// HTTP.
    #[arg(long, env = "RINGFENCE_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,

    /// File with the private key of the serving certificate (PEM); reloaded when it changes.
    #[arg(long, env = "RINGFENCE_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,

    /// File with the CA certificates (PEM) of client certificates, which authenticate clients: the common name is the
    /// user, the organizations are its groups. Reloaded when it changes.
    #[arg(long, env = "RINGFENCE_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    client_ca: Option<PathBuf>,

    /// Authenticate clients by bearer tokens, which the API server reviews (TokenReview).
    #[arg(long, env = "RINGFENCE_AUTH_TOKEN_REVIEW")]
    pub auth_token_review: bool,

    /// Audiences of accepted tokens, separated by commas: a token has to be issued for one of them.
    #[arg(long, env = "RINGFENCE_AUTH_TOKEN_AUDIENCES", value_name = "AUDIENCE", value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new())]
    auth_token_audiences: Vec<String>,

    /// Time for which a reviewed token stays accepted without another review, from 1s to 10m.
    #[arg(long, env = "RINGFENCE_AUTH_TOKEN_CACHE_TTL", value_name = "DURATION", default_value = "1m", value_parser = ttl)]
    pub auth_token_cache_ttl: Duration,
}

impl PortArguments {
    /// The files of a port with these protocols; `None` without TLS.
    pub fn tls(&self, protocols: Protocols) -> Option<TlsFiles> {
        let (certificate, key) = (self.tls_cert.clone()?, self.tls_key.clone()?);
        Some(TlsFiles { certificate, key, client_ca: self.client_ca.clone(), protocols })
    }

    /// `None` if tokens are not accepted.
    pub fn tokens(&self) -> Option<TokenSettings> {
        self.auth_token_review
            .then(|| TokenSettings { audiences: self.auth_token_audiences.clone(), ttl: self.auth_token_cache_ttl })
    }

    /// Whether clients are authenticated.
    pub fn authenticates(&self) -> bool {
        self.client_ca.is_some() || self.auth_token_review
    }

    /// Grants have no effect without authentication.
    pub fn conflict_of_grants(&self, grants: &[Grant]) -> Option<&'static str> {
        let is_unused = !grants.is_empty() && !self.authenticates();
        is_unused
            .then_some("--allow needs --client-ca or --auth-token-review: without authentication everyone may read")
    }
}

fn ttl(text: &str) -> Result<Duration, String> {
    TokenSettings::check_ttl(console::duration(text)?)
}
