//! Metrics of TLS, denied requests and token reviews.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use cluster::TokenReview;
use listener::tls::{RefusalReason, TlsStatus};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::guard::Denial;

/// Counters of denied requests, handshakes and reviews, and gauges of the certificate.
#[derive(Debug, Clone, Default)]
pub struct AccessFigures {
    denied_requests: Family<Labels, Counter>,
    refused_handshakes: Family<Labels, Counter>,
    token_reviews: Family<Labels, Counter>,
    cached_tokens: Gauge,
    revoked_streams: Counter,
    certificate_expiry: Seconds,
    reloads: Counter<u64, AtomicU64>,
    reload_failures: Counter<u64, AtomicU64>,
    reload_failing: Gauge,
}

type Labels = [(&'static str, &'static str); 1];
type Seconds = Gauge<f64, AtomicU64>;

const REASON: &str = "reason";
const RESULT: &str = "result";

const EVICTED: &str = "evicted";
const TIMED_OUT: &str = "timed-out";
const FAILED: &str = "failed";

impl AccessFigures {
    /// Registers them.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "denied_requests",
            "Requests denied because of the client's credentials or grants",
            self.denied_requests.clone(),
        );
        registry.register("refused_handshakes", "TLS handshakes that did not succeed", self.refused_handshakes.clone());
        registry.register("token_reviews", "TokenReview requests to the API server", self.token_reviews.clone());
        registry.register("cached_tokens", "Accepted tokens in the cache", self.cached_tokens.clone());
        registry.register(
            "revoked_streams",
            "Streams closed because the client lost its access",
            self.revoked_streams.clone(),
        );
        registry.register_with_unit(
            "tls_certificate_expiry_timestamp",
            "Expiry of the serving certificate, since 1970; NaN without TLS",
            Unit::Seconds,
            self.certificate_expiry.clone(),
        );
        registry.register("tls_reloads", "Serving certificates loaded after the first", self.reloads.clone());
        registry.register(
            "tls_reload_failures",
            "Changed certificate files that could not be used",
            self.reload_failures.clone(),
        );
        registry.register(
            "tls_reload_failing",
            "1 while the certificate files cannot be used and the previous certificate stays in use",
            self.reload_failing.clone(),
        );
        // Each series exists before its first event.
        for reason in ["unauthenticated", "forbidden", "unavailable"] {
            self.denied_requests.get_or_create(&[(REASON, reason)]).inc_by(0);
        }
        for reason in [EVICTED, TIMED_OUT, FAILED] {
            self.refused_handshakes.get_or_create(&[(REASON, reason)]).inc_by(0);
        }
        for result in ["authenticated", "rejected", FAILED] {
            self.token_reviews.get_or_create(&[(RESULT, result)]).inc_by(0);
        }
        self.certificate_expiry.set(f64::NAN);
    }

    /// A request that was not answered.
    pub fn denied(&self, denial: &Denial) {
        let reason = match denial {
            Denial::Unauthenticated(_) => "unauthenticated",
            Denial::Forbidden { .. } => "forbidden",
            Denial::Unavailable(_) => "unavailable",
        };
        self.denied_requests.get_or_create(&[(REASON, reason)]).inc();
    }

    /// A failed handshake; refused connections are counted elsewhere.
    pub fn refused_handshake(&self, refused: RefusalReason) {
        if let Some(reason) = handshake_reason(refused) {
            self.refused_handshakes.get_or_create(&[(REASON, reason)]).inc();
        }
    }

    /// A review by the API server.
    pub fn reviewed(&self, review: &Result<TokenReview, String>) {
        let result = match review {
            Ok(TokenReview::Authenticated(_)) => "authenticated",
            Ok(TokenReview::Rejected) => "rejected",
            Err(_) => FAILED,
        };
        self.token_reviews.get_or_create(&[(RESULT, result)]).inc();
    }

    /// Number of cached accepted tokens.
    pub fn cached(&self, tokens: usize) {
        self.cached_tokens.set(i64::try_from(tokens).unwrap_or(i64::MAX));
    }

    /// A stream ended because its client lost access.
    pub fn revoked(&self) {
        self.revoked_streams.inc();
    }

    /// Sets the gauges of the certificate, which are read when scraped.
    pub fn set_tls(&self, status: &TlsStatus) {
        let since_1970 = status.expires.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.certificate_expiry.set(since_1970.as_secs_f64());
        self.reloads.inner().store(status.reloads, Ordering::Relaxed);
        self.reload_failures.inner().store(status.failures, Ordering::Relaxed);
        self.reload_failing.set(i64::from(status.failure.is_some()));
    }
}

fn handshake_reason(refused: RefusalReason) -> Option<&'static str> {
    match refused {
        RefusalReason::TooManyConnections => None,
        RefusalReason::HandshakeEvicted => Some(EVICTED),
        RefusalReason::HandshakeTimedOut => Some(TIMED_OUT),
        RefusalReason::HandshakeFailed => Some(FAILED),
    }
}
