//! Keys of the cluster that have series: a bound on them, and which one is evicted for a new one.

use std::collections::BTreeMap;

/// The keys with series, with the number of the last event of each.
#[derive(Debug)]
pub(super) struct RecentKeys<K> {
    most: usize,
    last: BTreeMap<K, u64>,
    events: u64,
}

impl<K: Ord + Clone> RecentKeys<K> {
    pub(super) fn at_most(most: usize) -> RecentKeys<K> {
        RecentKeys { most, last: BTreeMap::new(), events: 0 }
    }

    /// Records an event; returns the evicted key, whose last event is the oldest.
    pub(super) fn record(&mut self, key: &K) -> Option<K> {
        self.events += 1;
        if let Some(last) = self.last.get_mut(key) {
            *last = self.events;
            return None;
        }
        let oldest = self.last.iter().min_by_key(|(_, last)| **last).map(|(key, _)| key.clone());
        let evicted = oldest.filter(|_| self.last.len() >= self.most);
        if let Some(evicted) = &evicted {
            self.last.remove(evicted);
        }
        self.last.insert(key.clone(), self.events);
        evicted
    }
}
