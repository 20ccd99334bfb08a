//! Authentication of clients by certificate or bearer token, and authorization by grants per scope.
//!
//! As in Kubernetes, a client is a user with groups: the common name and the organizations of a certificate, or the
//! user and the groups of a TokenReview. Requests without a grant are denied. `/healthz` and `/readyz` stay open, for
//! the kubelet's probes.

mod cache;
mod grant;
mod tokens;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use listener::PeerCertificate;

pub use grant::{Grant, GrantScope, GrantSubject, Grants};
pub use tokens::{TokenAuthenticator, TokenSettings};

use crate::AccessFigures;
use tokens::{Token, TokenError};

/// Longest interval at which the client of an open stream is authenticated again, in TTLs of a cached decision: short
/// enough for a revoked token, and long enough for thousands of agents.
const TTLS_BETWEEN_RECHECKS: u32 = 5;

/// An open stream stays open for this long while the API server cannot review its token.
const UNCONFIRMED: Duration = Duration::from_secs(3600);

/// A user with its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub user: String,
    pub groups: Vec<String>,
    /// The node that the token of a pod is bound to; `None` for a certificate, or if the API server reports no node.
    pub node: Option<String>,
}

/// Methods of authentication, and grants.
pub struct Guard {
    /// Whether client certificates authenticate. The TLS handshake verifies them against the client CA.
    pub certificates: bool,
    pub tokens: Option<TokenAuthenticator>,
    pub grants: Grants,
    /// Scopes of all routes.
    pub scopes: &'static [GrantScope],
    pub recheck: Duration,
    pub figures: AccessFigures,
}

/// Credentials that a client presented.
#[derive(Debug, Clone)]
pub struct ClientCredentials {
    certificate: Option<Arc<PeerCertificate>>,
    token: Option<Token>,
}

/// Reason for which a request is denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Denial {
    Unauthenticated(&'static str),
    Forbidden {
        user: String,
        scope: GrantScope,
    },
    /// The API server cannot review the token at present.
    Unavailable(String),
}

impl Guard {
    /// Names of the enabled methods of authentication.
    pub fn methods(&self) -> Vec<&'static str> {
        let certificates = self.certificates.then_some("certificates");
        certificates.into_iter().chain(self.tokens.as_ref().map(|_| "tokens")).collect()
    }

    /// Failure of the last token review; `None` once a later one succeeded.
    pub fn token_review_failure(&self) -> Option<String> {
        self.tokens.as_ref().and_then(TokenAuthenticator::failure)
    }

    /// Authenticates the client and checks that it may use the scope.
    ///
    /// # Errors
    /// If the client cannot be authenticated or has no grant.
    pub async fn admit(&self, client: &ClientCredentials, scope: GrantScope) -> Result<Arc<Principal>, Denial> {
        let principal = self.authenticate(client).await?;
        if self.grants.allows(scope, &principal) {
            Ok(principal)
        } else {
            Err(Denial::Forbidden { user: principal.user.clone(), scope })
        }
    }

    /// A certificate takes precedence over a token, as in kube-apiserver.
    async fn authenticate(&self, client: &ClientCredentials) -> Result<Arc<Principal>, Denial> {
        if let Some(certificate) = client.certificate.as_ref().filter(|_| self.certificates)
            && let Some(user) = &certificate.common_name
        {
            if certificate.not_after <= SystemTime::now() {
                return Err(Denial::Unauthenticated("the client certificate has expired"));
            }
            return Ok(Arc::new(Principal {
                user: user.clone(),
                groups: certificate.organizations.clone(),
                node: None,
            }));
        }
        match (&self.tokens, &client.token) {
            (Some(tokens), Some(token)) => tokens.authenticate(token).await.map_err(|error| match error {
                TokenError::Rejected => Denial::Unauthenticated(
                    "the bearer token is invalid, expired, or of another audience (--auth-token-audiences)",
                ),
                TokenError::Unavailable(why) => Denial::Unavailable(why),
            }),
            (Some(_), None) => {
                Err(Denial::Unauthenticated("a bearer token or a client certificate with a common name is needed"))
            }
            (None, _) => Err(Denial::Unauthenticated("a client certificate with a common name is needed")),
        }
    }
}

impl ClientCredentials {
    fn of_request(request: &Request) -> ClientCredentials {
        ClientCredentials {
            certificate: request.extensions().get::<Arc<PeerCertificate>>().cloned(),
            token: bearer(request.headers()),
        }
    }
}

/// The token of `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<Token> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| Token::new(token.trim())).flatten()
}

/// An admitted client with an open response, whose access may be revoked before the response ends.
#[derive(Clone)]
pub struct Session {
    guard: Arc<Guard>,
    client: ClientCredentials,
    scope: GrantScope,
}

impl Session {
    /// Waits until the client has lost its access: its certificate expired, or its token is no longer valid.
    pub async fn revoked(self) {
        let mut confirmed = Instant::now();
        loop {
            tokio::time::sleep(between_half_and_whole(self.guard.recheck)).await;
            match self.guard.admit(&self.client, self.scope).await {
                Ok(_) => confirmed = Instant::now(),
                Err(Denial::Unavailable(_)) if confirmed.elapsed() < UNCONFIRMED => {}
                Err(denial) => {
                    tracing::info!(scope = self.scope.name, "stream closed: {}", denial.message());
                    self.guard.figures.revoked();
                    return;
                }
            }
        }
    }
}

/// Random duration from half of the duration to the whole, so that the clients of streams that were opened at the same
/// time are not authenticated again at the same time.
fn between_half_and_whole(duration: Duration) -> Duration {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let random = RandomState::new().build_hasher().finish() % 1024;
    duration.mul_f64(0.5 + random as f64 / 2048.0)
}

/// Middleware of all routes. Without a guard all requests are admitted.
pub async fn check(State(guard): State<Option<Arc<Guard>>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let Some(guard) = guard.filter(|_| !GrantScope::is_open(path)) else { return next.run(request).await };
    let Some(scope) = GrantScope::of_path(guard.scopes, path) else {
        return (StatusCode::NOT_FOUND, "resource not found\n").into_response();
    };
    let client = ClientCredentials::of_request(&request);
    match guard.admit(&client, scope).await {
        Ok(principal) => {
            request.extensions_mut().insert(principal);
            request.extensions_mut().insert(Session { guard, client, scope });
            next.run(request).await
        }
        Err(denial) => {
            guard.figures.denied(&denial);
            tracing::debug!(path = request.uri().path(), "request denied: {}", denial.message());
            denial.into_response()
        }
    }
}

impl Denial {
    fn message(&self) -> String {
        match self {
            Denial::Unauthenticated(why) => format!("unauthenticated: {why}"),
            Denial::Forbidden { user, scope } => {
                let scope = scope.name;
                format!("forbidden: user '{user}' may not use {scope}; the server needs --allow {scope}=user:{user}")
            }
            Denial::Unavailable(why) => format!("cannot authenticate at present: {why}"),
        }
    }
}

impl IntoResponse for Denial {
    fn into_response(self) -> Response {
        let message = match &self {
            Denial::Unauthenticated(_) | Denial::Forbidden { .. } => self.message() + "\n",
            // The reason is only for the log and the status: the client is not authenticated.
            Denial::Unavailable(_) => "cannot authenticate at present: the token cannot be reviewed\n".to_owned(),
        };
        match self {
            Denial::Unauthenticated(_) => {
                (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], message).into_response()
            }
            Denial::Forbidden { .. } => (StatusCode::FORBIDDEN, message).into_response(),
            Denial::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, [(RETRY_AFTER, "5")], message).into_response(),
        }
    }
}

/// Longest interval at which clients of open streams are authenticated again, from the TTL of a cached decision.
pub fn recheck_interval(ttl: Duration) -> Duration {
    ttl.saturating_mul(TTLS_BETWEEN_RECHECKS)
}

#[cfg(test)]
mod tests {
    use super::*;
    const METRICS: GrantScope = GrantScope { name: "metrics", segment: "metrics" };
    const IDENTITY: GrantScope = GrantScope { name: "identity", segment: "identity" };
    const REMOTE_SETS: GrantScope = GrantScope { name: "remote-sets", segment: "remote-sets" };
    const SCOPES: &[GrantScope] = &[METRICS, IDENTITY, REMOTE_SETS];

    fn guard(grants: &[&str]) -> Guard {
        let grants: Vec<Grant> = grants.iter().map(|grant| Grant::parse(grant, SCOPES).unwrap()).collect();
        Guard {
            certificates: true,
            tokens: None,
            grants: Grants::new(&grants, SCOPES, GrantSubject::Group("system:serviceaccounts:ringfence".into())),
            scopes: SCOPES,
            recheck: Duration::from_secs(1),
            figures: AccessFigures::default(),
        }
    }

    fn client(name: Option<&str>, groups: &[&str], expires_in: i64) -> ClientCredentials {
        let now = SystemTime::now();
        let far = Duration::from_secs(expires_in.unsigned_abs());
        let certificate = PeerCertificate {
            common_name: name.map(str::to_owned),
            organizations: groups.iter().map(|group| (*group).to_owned()).collect(),
            not_after: if expires_in < 0 { now - far } else { now + far },
        };
        ClientCredentials { certificate: Some(Arc::new(certificate)), token: None }
    }

    #[tokio::test]
    async fn certificate_admits_its_user_and_groups() {
        let guard = guard(&["metrics=user:scraper", "identity=group:readers"]);
        let scraper = client(Some("scraper"), &["readers"], 60);
        assert_eq!(guard.admit(&scraper, METRICS).await.unwrap().user, "scraper");
        assert!(guard.admit(&scraper, IDENTITY).await.is_ok());
        let forbidden = Denial::Forbidden { user: "scraper".into(), scope: REMOTE_SETS };
        assert_eq!(guard.admit(&scraper, REMOTE_SETS).await, Err(forbidden));
    }

    #[tokio::test]
    async fn expired_and_nameless_certificates_are_unauthenticated() {
        let guard = guard(&["*=user:scraper"]);
        for client in [
            client(Some("scraper"), &[], -1),
            client(None, &["readers"], 60),
            ClientCredentials { certificate: None, token: Token::new("a-token") },
        ] {
            let admitted = guard.admit(&client, METRICS).await;
            assert!(matches!(admitted, Err(Denial::Unauthenticated(_))), "{admitted:?}");
        }
    }

    #[test]
    fn bearer_token_is_read_from_its_header() {
        let headers = |value: &'static str| HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
        for value in ["Bearer abc", "bearer abc", "BEARER  abc "] {
            assert_eq!(bearer(&headers(value)), Token::new("abc"), "{value}");
        }
        for value in ["Basic abc", "Bearer", "Bearer  ", "abc"] {
            assert_eq!(bearer(&headers(value)), None, "{value}");
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
        assert!(!format!("{:?}", Token::new("abc")).contains("abc"), "not for logs");
    }

    #[test]
    fn rechecks_of_streams_are_spread() {
        let second = Duration::from_secs(1);
        for _ in 0..100 {
            let wait = between_half_and_whole(second);
            assert!((second / 2..=second).contains(&wait), "{wait:?}");
        }
    }
}
