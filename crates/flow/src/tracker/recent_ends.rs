//! Recently ended connections, to detect repeated end events.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};

use jiff::Timestamp;

use crate::ConnectionId;

/// Limit of remembered ends: more than a socket buffer can hold. They need about 3 MB.
const MOST: usize = 1 << 16;

/// The most recent ends, by hashes of the connections' IDs and creation times, since IDs are reused. The kernel repeats
/// an end event to all listeners if one of them, such as another program that logs connections, had no buffer space for
/// it.
#[derive(Debug, Default)]
pub(super) struct RecentEnds {
    hasher: RandomState,
    order: VecDeque<u64>,
    hashes: HashSet<u64>,
}

impl RecentEnds {
    pub(super) fn insert(&mut self, id: &ConnectionId, made: Option<Timestamp>) {
        let hash = self.hasher.hash_one((id, made));
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

    pub(super) fn contains(&self, id: &ConnectionId, made: Option<Timestamp>) -> bool {
        self.hashes.contains(&self.hasher.hash_one((id, made)))
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
        let made = Some(Timestamp::MIN);
        for number in 0..=MOST {
            ends.insert(&id(number), made);
            ends.insert(&id(number), made);
        }
        assert!(!ends.contains(&id(0), made) && ends.contains(&id(1), made) && ends.contains(&id(MOST), made));
        assert!(!ends.contains(&id(1), None));
        assert_eq!((ends.order.len(), ends.hashes.len()), (MOST, MOST));
    }
}
