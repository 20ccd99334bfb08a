//! Arguments of `ringfence-context serve` on TLS, authentication and authorization.

use access::{Grant, GrantScope, PortArguments};
use clap::Args;
use listener::Protocols;
use listener::tls::TlsFiles;

use crate::{edge_publication, identity, remote};

const fn scope(name: &'static str) -> GrantScope {
    GrantScope { name, segment: name }
}

/// Scopes of grants: each feed, the metrics and the status.
pub(crate) const SCOPES: &[GrantScope] =
    &[scope(identity::FEED), scope(edge_publication::FEED), scope(remote::FEED), scope("metrics"), scope("status")];

/// The provider has streams, which the help of the shared argument does not mention.
const TTL_HELP: &str = "Time for which a reviewed token stays accepted without another review, from 1s to 10m. Open streams are \
                        authenticated again after five times as long";

#[derive(Debug, Args)]
#[command(
    mut_arg("tls_cert", |argument| argument.alias("tls-cert-file")),
    mut_arg("tls_key", |argument| argument.alias("tls-private-key-file")),
    mut_arg("client_ca", |argument| argument.alias("client-ca-file")),
    mut_arg("auth_token_audiences", |argument| argument.default_value("ringfence-context")),
    mut_arg("auth_token_cache_ttl", |argument| argument.help(TTL_HELP)),
)]
pub(crate) struct AccessArguments {
    #[command(flatten)]
    pub(crate) port: PortArguments,

    /// Grant a scope to a user or group, as SCOPE=user:NAME or SCOPE=group:NAME; repeatable, or separated by commas. The
    /// scopes are identity, policy-edges, remote-sets, metrics, status, and * for all. Default of a scope without a
    /// grant: the service accounts of the provider's own namespace (--lease-namespace).
    #[arg(long, env = "RINGFENCE_ALLOW", value_name = "SCOPE=SUBJECT", value_delimiter = ',', value_parser = grant)]
    pub(crate) allow: Vec<Grant>,
}

impl AccessArguments {
    /// `None` without TLS.
    pub(crate) fn tls(&self) -> Option<TlsFiles> {
        self.port.tls(Protocols::Http1)
    }

    /// Conflicts between arguments.
    pub(super) fn conflict(&self, has_cluster: bool) -> Option<&'static str> {
        if self.port.auth_token_review && !has_cluster {
            return Some("--auth-token-review needs a cluster and cannot be used with --manifests");
        }
        self.port.conflict_of_grants(&self.allow)
    }
}

fn grant(text: &str) -> Result<Grant, String> {
    Grant::parse(text, SCOPES)
}
