//! Cache of recent decisions on tokens, by the hash of the token.
//!
//! Accepted and rejected tokens have separate bounds: forged tokens evict no accepted ones.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use super::Principal;

/// One per connection: each agent has its own token.
const ACCEPTED: usize = 16_384;

/// Enough for consumers that retry with a bad token.
const REJECTED: usize = 4_096;

/// A rejected token may become valid, for example once the API server knows its service account.
const REJECTED_TTL: Duration = Duration::from_secs(10);

/// Hash of a token. The token itself is not stored.
pub(super) type Key = [u8; 32];

pub(super) fn key(token: &str) -> Key {
    Sha256::digest(token.as_bytes()).into()
}

/// The API server's decision on a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AccessDecision {
    Accepted(Arc<Principal>),
    Rejected,
}

#[derive(Debug)]
pub(super) struct DecisionCache {
    accepted: Entries<Arc<Principal>>,
    rejected: Entries<()>,
}

impl DecisionCache {
    pub(super) fn new(ttl: Duration) -> DecisionCache {
        DecisionCache { accepted: Entries::new(ACCEPTED, ttl), rejected: Entries::new(REJECTED, ttl.min(REJECTED_TTL)) }
    }

    pub(super) fn get(&self, key: &Key, now: Instant) -> Option<AccessDecision> {
        match self.accepted.get(key, now) {
            Some(principal) => Some(AccessDecision::Accepted(principal.clone())),
            None => self.rejected.get(key, now).map(|()| AccessDecision::Rejected),
        }
    }

    pub(super) fn insert(&mut self, key: Key, decision: &AccessDecision, now: Instant) {
        match decision {
            AccessDecision::Accepted(principal) => self.accepted.insert(key, principal.clone(), now),
            AccessDecision::Rejected => self.rejected.insert(key, (), now),
        }
    }

    /// Number of accepted tokens, including those that have expired since the last insertion.
    pub(super) fn len(&self) -> usize {
        self.accepted.values.len()
    }
}

/// Entries with the same lifetime, of which the oldest is evicted for a new one.
#[derive(Debug)]
struct Entries<V> {
    most: usize,
    ttl: Duration,
    values: HashMap<Key, (V, Instant)>,
    /// The keys in the order of expiry, each once.
    order: VecDeque<Key>,
}

impl<V> Entries<V> {
    fn new(most: usize, ttl: Duration) -> Entries<V> {
        Entries { most, ttl, values: HashMap::new(), order: VecDeque::new() }
    }

    fn get(&self, key: &Key, now: Instant) -> Option<&V> {
        self.values.get(key).filter(|(_, expires)| *expires > now).map(|(value, _)| value)
    }

    fn insert(&mut self, key: Key, value: V, now: Instant) {
        while let Some(oldest) = self.order.front() {
            let has_expired = self.values.get(oldest).is_none_or(|(_, expires)| *expires <= now);
            if !has_expired && self.values.len() < self.most {
                break;
            }
            self.values.remove(oldest);
            self.order.pop_front();
        }
        // An existing entry keeps its expiry: two reviews of the token were in flight.
        if let std::collections::hash_map::Entry::Vacant(entry) = self.values.entry(key) {
            entry.insert((value, now + self.ttl));
            self.order.push_back(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(60);

    fn accepted(user: &str) -> AccessDecision {
        AccessDecision::Accepted(Arc::new(Principal { user: user.into(), groups: vec![], node: None }))
    }

    #[test]
    fn decisions_expire() {
        let (mut cache, now) = (DecisionCache::new(TTL), Instant::now());
        cache.insert(key("good"), &accepted("u"), now);
        cache.insert(key("bad"), &AccessDecision::Rejected, now);
        assert_eq!(cache.get(&key("good"), now), Some(accepted("u")));
        assert_eq!(cache.get(&key("bad"), now), Some(AccessDecision::Rejected));
        assert_eq!(cache.get(&key("other"), now), None);
        assert_eq!(cache.get(&key("bad"), now + REJECTED_TTL), None);
        assert_eq!(cache.get(&key("good"), now + REJECTED_TTL), Some(accepted("u")));
        assert_eq!(cache.get(&key("good"), now + TTL), None);
        // A second review does not prolong the first.
        cache.insert(key("good"), &accepted("u"), now + TTL / 2);
        assert_eq!(cache.get(&key("good"), now + TTL), None);
        cache.insert(key("good"), &accepted("u"), now + TTL);
        assert_eq!(cache.get(&key("good"), now + TTL), Some(accepted("u")));
    }

    #[test]
    fn rejected_tokens_evict_no_accepted_one() {
        let (mut cache, now) = (DecisionCache::new(TTL), Instant::now());
        cache.insert(key("good"), &accepted("u"), now);
        for n in 0..2 * REJECTED {
            cache.insert(key(&format!("bad-{n}")), &AccessDecision::Rejected, now);
        }
        assert_eq!((cache.len(), cache.rejected.values.len(), cache.rejected.order.len()), (1, REJECTED, REJECTED));
        assert_eq!(cache.get(&key("good"), now), Some(accepted("u")));
        assert_eq!(cache.get(&key("bad-0"), now), None, "the oldest is evicted");
    }

    #[test]
    fn full_cache_evicts_the_oldest_acceptance() {
        let (mut entries, now) = (Entries::new(2, TTL), Instant::now());
        for (n, name) in ["a", "b", "c"].into_iter().enumerate() {
            entries.insert(key(name), name, now + Duration::from_secs(n as u64));
        }
        assert_eq!(["a", "b", "c"].map(|name| entries.get(&key(name), now).is_some()), [false, true, true]);
        assert_eq!(entries.order.len(), 2);
    }
}
