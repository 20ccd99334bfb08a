//! Connections whose end was counted lately.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use jiff::Timestamp;

use crate::ConnectionId;

/// Ends that are remembered: more than a socket's buffer has room for. They take some 3 MB.
const MOST: usize = 1 << 16;

/// The ends of the last connections, by the hashes of their ids and times: an id may be used again. The kernel sends the end of a connection again to all
/// listeners if one of them, such as another program that logs connections, had no room for it.
#[derive(Debug, Default)]
pub(super) struct RecentEnds {
    hasher: RandomState,
    order: VecDeque<u64>,
    hashes: HashSet<u64>,
}

impl RecentEnds {
    pub(super) fn insert(&mut self, id: &ConnectionId, at: Timestamp) {
        let hash = self.hasher.hash_one((id, at));
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

    pub(super) fn contains(&self, id: &ConnectionId, at: Timestamp) -> bool {
        self.hashes.contains(&self.hasher.hash_one((id, at)))
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
        let at = Timestamp::MIN;
        for number in 0..=MOST {
            ends.insert(&id(number), at);
            ends.insert(&id(number), at);
        }
        assert!(!ends.contains(&id(0), at) && ends.contains(&id(1), at) && ends.contains(&id(MOST), at));
        assert!(!ends.contains(&id(1), Timestamp::MAX));
        assert_eq!((ends.order.len(), ends.hashes.len()), (MOST, MOST));
    }
}
