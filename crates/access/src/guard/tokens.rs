//! Bearer tokens, which the API server reviews.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::{ApiClient, ReviewedUser, TokenReview, review_token};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::Principal;
use super::cache::{AccessDecision, DecisionCache, key};
use crate::AccessFigures;

/// Maximum length of a token that is reviewed: those of service accounts have about 1 KiB.
const TOKEN_BYTES: usize = 16 << 10;

/// Maximum number of concurrent reviews: forged tokens must not overload the API server.
const REVIEWS: usize = 16;

/// Timeout of a review, including the time in the queue.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// A bearer token. `Debug` does not show it, which keeps it out of logs.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Token(Arc<str>);

impl Token {
    /// `None` if the text is empty, too long, or not printable ASCII.
    pub(super) fn new(text: &str) -> Option<Token> {
        let is_token =
            !text.is_empty() && text.len() <= TOKEN_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic());
        is_token.then(|| Token(text.into()))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Reason for which a token does not authenticate its client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TokenError {
    Rejected,
    /// The token review failed or timed out; the reason.
    Unavailable(String),
}

/// Audiences of accepted tokens, and the time for which a decision is cached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSettings {
    pub audiences: Vec<String>,
    pub ttl: Duration,
}

/// Bounds on the time for which a decision is cached: a shorter time would review each request, a longer one would
/// accept revoked tokens for too long.
const TTLS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(600);

impl TokenSettings {
    /// Checks the bounds on [`TokenSettings::ttl`].
    ///
    /// # Errors
    /// If the duration is out of bounds; the error names the bounds.
    pub fn check_ttl(ttl: Duration) -> Result<Duration, String> {
        if TTLS.contains(&ttl) { Ok(ttl) } else { Err("expected a duration from 1s to 10m".into()) }
    }
}

/// Reviews tokens and caches the decisions.
pub struct TokenAuthenticator {
    connection: ApiClient,
    audiences: Vec<String>,
    cache: Mutex<DecisionCache>,
    reviews: Semaphore,
    failure: Mutex<Option<String>>,
    figures: AccessFigures,
}

impl TokenAuthenticator {
    pub fn new(connection: &ApiClient, settings: TokenSettings, figures: AccessFigures) -> TokenAuthenticator {
        let timing = cluster::RequestTiming { answer: REQUEST_TIMEOUT, ..cluster::RequestTiming::default() };
        TokenAuthenticator {
            connection: connection.clone().with_timing(timing),
            audiences: settings.audiences,
            cache: Mutex::new(DecisionCache::new(settings.ttl)),
            reviews: Semaphore::new(REVIEWS),
            failure: Mutex::new(None),
            figures,
        }
    }

    /// Why the last review failed; `None` after a successful one.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) async fn authenticate(&self, token: &Token) -> Result<Arc<Principal>, TokenError> {
        let key = key(&token.0);
        let known = self.cache().get(&key, Instant::now());
        let decision = match known {
            Some(decision) => decision,
            None => {
                let decision = self.review(token).await?;
                let mut cache = self.cache();
                cache.insert(key, &decision, Instant::now());
                self.figures.cached(cache.len());
                decision
            }
        };
        match decision {
            AccessDecision::Accepted(principal) => Ok(principal),
            AccessDecision::Rejected => Err(TokenError::Rejected),
        }
    }

    async fn review(&self, token: &Token) -> Result<AccessDecision, TokenError> {
        let reviewed = timeout(REQUEST_TIMEOUT, async {
            let permit = self.reviews.acquire().await;
            let reviewed = review_token(&self.connection, &token.0, &self.audiences).await;
            drop(permit);
            reviewed
        });
        let reviewed = match reviewed.await {
            Ok(reviewed) => reviewed,
            Err(_) => Err(format!("the API server did not review the token within {REQUEST_TIMEOUT:?}")),
        };
        self.figures.reviewed(&reviewed);
        self.record_outcome(reviewed.as_ref().err());
        match reviewed {
            Ok(TokenReview::Authenticated(ReviewedUser { name, groups, node })) => {
                Ok(AccessDecision::Accepted(Arc::new(Principal { user: name, groups, node })))
            }
            Ok(TokenReview::Rejected) => Ok(AccessDecision::Rejected),
            Err(why) => Err(TokenError::Unavailable(why)),
        }
    }

    fn record_outcome(&self, failure: Option<&String>) {
        let mut known = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref() == failure {
            return;
        }
        match failure {
            Some(why) => tracing::warn!("TokenReview failed; tokens without a cached decision are refused: {why}"),
            None => tracing::info!("TokenReview succeeds again"),
        }
        *known = failure.cloned();
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, DecisionCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ttl_has_bounds() {
        for (milliseconds, is_valid) in [(999, false), (1_000, true), (600_000, true), (600_001, false)] {
            let ttl = TokenSettings::check_ttl(Duration::from_millis(milliseconds));
            assert_eq!(ttl.is_ok(), is_valid, "{milliseconds} ms");
        }
    }
}
