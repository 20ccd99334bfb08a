//! The known state of the kernel: the tables of our last commit, and the foreign commits since.

use std::collections::BTreeSet;

use nfnetlink::Foreign;

use super::tables::Tables;

/// Maximum number of foreign commits with outstanding notifications. Above it, the commits are not tracked
/// individually, and our tables are suspect.
const MOST_UNEXPLAINED: u32 = 1024;

pub(super) struct Live {
    pub(super) tables: Tables,
    /// Newest known generation of the kernel's ruleset.
    pub(super) generation: u32,
    /// Generations of foreign commits whose notification is outstanding: they may have touched our tables.
    unexplained: BTreeSet<u32>,
    /// True if a foreign commit changed our tables, or may have changed them.
    suspect: bool,
}

impl Live {
    /// State after our commit, or after a comparison with the kernel that found no differences.
    pub(super) fn new(tables: Tables, generation: u32) -> Live {
        Live { tables, generation, unexplained: BTreeSet::new(), suspect: false }
    }

    /// Records our own commit.
    pub(super) fn committed(&mut self, tables: Tables, generation: u32) {
        self.tables = tables;
        self.generation = generation;
    }

    /// Records a generation that the kernel has reached.
    pub(super) fn record_generation(&mut self, generation: u32) {
        match generation.checked_sub(self.generation) {
            Some(0) => {}
            Some(ahead) if ahead <= MOST_UNEXPLAINED => {
                self.unexplained.extend(self.generation + 1..=generation);
                self.suspect |= self.unexplained.len() > MOST_UNEXPLAINED as usize;
            }
            // There are too many foreign commits to track, or the counter has wrapped.
            Some(_) | None => self.suspect = true,
        }
        self.generation = generation;
    }

    /// Records the notification of a foreign commit.
    pub(super) fn explain(&mut self, foreign: &Foreign) {
        if foreign.generation > self.generation {
            self.record_generation(foreign.generation);
        }
        self.unexplained.remove(&foreign.generation);
        self.suspect |= foreign.touches;
    }

    pub(super) fn is_doubtful(&self) -> bool {
        self.suspect || !self.unexplained.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use nft::{Comment, Name, Ruleset, Table, ValidatedRuleset};

    use super::*;

    fn live() -> Live {
        let policy = Ruleset::new(Table::inet(Name::new("ringfence").unwrap()), Comment::new(""));
        let policy = ValidatedRuleset::new(policy).expect("an empty table is valid");
        Live::new(Tables { policy, bridge: None, edge: None }, 10)
    }

    fn foreign(generation: u32, touches: bool) -> Foreign {
        Foreign { generation, program: "nft".into(), process: 1, touches }
    }

    #[test]
    fn foreign_commit_is_doubtful_until_its_notification() {
        let mut live = live();
        live.record_generation(12);
        assert!(live.is_doubtful());
        live.explain(&foreign(11, false));
        assert!(live.is_doubtful());
        live.explain(&foreign(12, false));
        assert!(!live.is_doubtful());
        live.explain(&foreign(13, false));
        live.record_generation(13);
        assert!(!live.is_doubtful());
    }

    #[test]
    fn foreign_change_to_our_tables_stays_doubtful() {
        let mut live = live();
        live.explain(&foreign(11, true));
        let tables = live.tables.clone();
        live.committed(tables, 12);
        live.record_generation(12);
        assert!(live.is_doubtful());
    }

    #[test]
    fn late_notification_of_earlier_foreign_commit_is_harmless() {
        let mut live = live();
        live.record_generation(11);
        let tables = live.tables.clone();
        live.committed(tables, 12);
        live.explain(&foreign(11, false));
        assert!(!live.is_doubtful());
    }

    #[test]
    fn a_count_that_began_again_is_doubtful() {
        let mut live = live();
        live.record_generation(3);
        assert!(live.is_doubtful());
    }
}
