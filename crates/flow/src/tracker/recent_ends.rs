//! Connections whose end was counted lately.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use crate::ConnectionId;

/// Ends that are remembered: more than a socket's buffer has room for. They take some 3 MB.
const MOST: usize = 1 << 16;

/// The ends of the last connections, by the hashes of their ids. The kernel sends the end of a connection again to all
/// listeners if one of them, such as another program that logs connections, had no room for it.
#[derive(Debug, Default)]
pub(super) struct RecentEnds {
    hasher: RandomState,
    order: VecDeque<u64>,
    hashes: HashSet<u64>,
}

impl RecentEnds {
    pub(super) fn insert(&mut self, id: &ConnectionId) {
        let hash = self.hasher.hash_one(id);
        if !self.hashes.insert(hash) {
            return;
        }
        self.order.push_back(hash);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.hashes.remove(&oldest);
        }
    }

    pub(super) fn contains(&self, id: &ConnectionId) -> bool {
        self.hashes.contains(&self.hasher.hash_one(id))
    }

    /// The id is that of a new connection. Its place stays taken.
    pub(super) fn remove(&mut self, id: &ConnectionId) {
        if !self.hashes.is_empty() {
            self.hashes.remove(&self.hasher.hash_one(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::connection;

    #[test]
    fn recent_ends_are_bounded() {
        let mut ends = RecentEnds::default();
        let id = |number: usize| ConnectionId { id: number as u32, ..connection(1, None).id };
        for number in 0..=MOST {
            ends.insert(&id(number));
            ends.insert(&id(number));
        }
        assert!(!ends.contains(&id(0)) && ends.contains(&id(1)) && ends.contains(&id(MOST)));
        ends.remove(&id(1));
        assert!(!ends.contains(&id(1)));
        assert_eq!((ends.order.len(), ends.hashes.len()), (MOST, MOST - 1));
    }
}
