//! TLS handshakes in progress, and the eviction of one when there are too many.
//!
//! Any peer that can reach the port can open connections and send nothing. So the number of handshakes is bounded, and
//! above the bound the oldest handshake of the source with the most handshakes is evicted: a source that floods the
//! port evicts its own.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The handshakes in progress of one listener.
#[derive(Debug, Clone)]
pub(crate) struct Handshakes {
    limit: usize,
    registry: Arc<Mutex<Registry>>,
}

#[derive(Debug, Default)]
struct Registry {
    next: u64,
    /// Sorted by start.
    open: BTreeMap<u64, Open>,
}

#[derive(Debug)]
struct Open {
    source: HandshakeSource,
    /// Dropped to evict the handshake.
    keep: oneshot::Sender<()>,
}

/// The source by which handshakes are counted. An IPv6 host usually has all addresses of a /64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct HandshakeSource(IpAddr);

impl HandshakeSource {
    fn of(address: IpAddr) -> HandshakeSource {
        match address.to_canonical() {
            IpAddr::V4(address) => HandshakeSource(address.into()),
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                HandshakeSource(std::net::Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
        }
    }
}

/// A handshake in progress. It is counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Handshake {
    number: u64,
    registry: Arc<Mutex<Registry>>,
    kept: oneshot::Receiver<()>,
}

impl Handshakes {
    pub(crate) fn new(limit: usize) -> Handshakes {
        Handshakes { limit, registry: Arc::default() }
    }

    /// Counts a handshake, and evicts another one if there are too many.
    pub(crate) fn begin(&self, peer: IpAddr) -> Handshake {
        let (keep, kept) = oneshot::channel();
        let mut registry = lock(&self.registry);
        let number = registry.next;
        registry.next += 1;
        registry.open.insert(number, Open { source: HandshakeSource::of(peer), keep });
        if registry.open.len() > self.limit
            && let Some(evicted) = registry.to_evict()
        {
            registry.open.remove(&evicted);
        }
        Handshake { number, registry: self.registry.clone(), kept }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        lock(&self.registry).open.len()
    }
}

impl Registry {
    fn to_evict(&self) -> Option<u64> {
        let mut counts: HashMap<HandshakeSource, usize> = HashMap::new();
        for open in self.open.values() {
            *counts.entry(open.source).or_default() += 1;
        }
        let most = counts.values().copied().max()?;
        self.open.iter().find(|(_, open)| counts[&open.source] == most).map(|(number, _)| *number)
    }
}

impl Handshake {
    /// Waits until this handshake is evicted.
    pub(crate) async fn evicted(&mut self) {
        // The sender is never used, only dropped.
        drop((&mut self.kept).await);
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        if let Some(open) = lock(&self.registry).open.remove(&self.number) {
            drop(open.keep);
        }
    }
}

fn lock(registry: &Mutex<Registry>) -> MutexGuard<'_, Registry> {
    registry.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evicted(handshake: &mut Handshake) -> bool {
        handshake.kept.try_recv() == Err(oneshot::error::TryRecvError::Closed)
    }

    #[test]
    fn flooding_source_evicts_its_own_handshakes() {
        let handshakes = Handshakes::new(3);
        let flooder = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, last]);
        let mut other = handshakes.begin("192.0.2.1".parse().unwrap());
        let mut flood: Vec<Handshake> = (0..10).map(|last| handshakes.begin(flooder(last))).collect();
        assert!(!is_evicted(&mut other));
        assert_eq!(flood.iter_mut().map(is_evicted).filter(|evicted| *evicted).count(), 8);
        assert!(flood.iter_mut().rev().take(2).all(|handshake| !is_evicted(handshake)), "the oldest are evicted");
        assert_eq!(handshakes.len(), 3);
    }

    #[test]
    fn handshake_that_ends_makes_room() {
        let handshakes = Handshakes::new(2);
        let mut first = handshakes.begin("192.0.2.1".parse().unwrap());
        drop(handshakes.begin("192.0.2.1".parse().unwrap()));
        let second = handshakes.begin("192.0.2.1".parse().unwrap());
        assert!(!is_evicted(&mut first));
        drop((first, second));
        assert_eq!(handshakes.len(), 0);
    }
}
