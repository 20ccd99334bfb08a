//! Index of the workloads whose wildcard edges a change may affect.
//!
//! The wildcard edge of a workload depends on the number of workloads, and for a source also on all destinations.
//! Recomputing every workload whenever one is added or removed would cost as much as the cluster is large, so this
//! index finds those that can have a wildcard edge at all.

use std::collections::{BTreeMap, BTreeSet};

use crate::Direction;
use crate::edges::workloads::{Census, FAMILIES, FamilyBits};

/// The numbers of partners for which a workload can have a wildcard edge. Any further partner would have no entry, and
/// would be allowed nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Condition {
    /// The families of the workload's own addresses.
    pub(super) own: FamilyBits,
    pub(super) restricted: u32,
    /// By families of partners; `None` if their number does not matter: the workload cannot reach them, or any number
    /// of them is allowed something.
    pub(super) free: [Option<u32>; FAMILIES],
}

/// The families (as index) that can be reached from addresses of the own families.
pub(super) fn reachable(own: FamilyBits) -> impl Iterator<Item = usize> + Clone {
    (0..FAMILIES).filter(move |families| *families as FamilyBits & own != 0)
}

impl Condition {
    /// All conditions that hold for this census.
    fn holding(direction: Direction, census: &Census) -> impl Iterator<Item = Condition> {
        let at = direction as usize;
        let (free, restricted) = (census.free[at], census.restricted[at]);
        (1..FAMILIES as FamilyBits).flat_map(move |own| {
            let restricted = reachable(own).map(|families| restricted[families]).sum();
            // Each choice of families whose number matters.
            (0..1_u32 << FAMILIES)
                .filter(move |choice| (0..FAMILIES).all(|f| choice & 1 << f == 0 || f as FamilyBits & own != 0))
                .map(move |choice| {
                    let free = std::array::from_fn(|f| (choice & 1 << f != 0).then_some(free[f]));
                    Condition { own, restricted, free }
                })
        })
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct WildcardIndex {
    /// By direction, as the field below.
    conditions: [BTreeMap<Condition, BTreeSet<u32>>; 2],
    /// Workloads with a wildcard edge.
    with_wildcard: [BTreeSet<u32>; 2],
    /// Sources that would have a wildcard edge, by the destinations that prevent it.
    blocked: BTreeSet<(u32, u32)>,
}

impl WildcardIndex {
    /// Moves the workload to another condition; `None` if it is not governed.
    pub(super) fn place(&mut self, direction: Direction, anchor: u32, from: Option<Condition>, to: Option<Condition>) {
        if from == to {
            return;
        }
        let conditions = &mut self.conditions[direction as usize];
        if let Some(from) = from {
            remove(conditions, from, anchor);
        }
        if let Some(to) = to {
            conditions.entry(to).or_default().insert(anchor);
        }
    }

    pub(super) fn set_wildcard(&mut self, direction: Direction, anchor: u32, has_wildcard: bool) {
        match has_wildcard {
            true => self.with_wildcard[direction as usize].insert(anchor),
            false => self.with_wildcard[direction as usize].remove(&anchor),
        };
    }

    /// Replaces the destinations that prevent the source's wildcard edge.
    pub(super) fn set_blockers(&mut self, source: u32, from: &[u32], to: &[u32]) {
        for destination in from {
            self.blocked.remove(&(*destination, source));
        }
        for destination in to {
            self.blocked.insert((*destination, source));
        }
    }

    pub(super) fn with_wildcard(&self, direction: Direction) -> &BTreeSet<u32> {
        &self.with_wildcard[direction as usize]
    }

    /// The sources whose wildcard edge the destination prevents.
    pub(super) fn blocked_by(&self, destination: u32) -> impl Iterator<Item = u32> {
        self.blocked.range((destination, 0)..=(destination, u32::MAX)).map(|(_, source)| *source)
    }

    /// Workloads that can have a wildcard edge with this census.
    pub(super) fn possible(&self, direction: Direction, census: &Census) -> impl Iterator<Item = u32> {
        let conditions = &self.conditions[direction as usize];
        Condition::holding(direction, census).filter_map(|holding| conditions.get(&holding)).flatten().copied()
    }
}

fn remove(sets: &mut BTreeMap<Condition, BTreeSet<u32>>, key: Condition, number: u32) {
    if let Some(set) = sets.get_mut(&key) {
        set.remove(&number);
        if set.is_empty() {
            sets.remove(&key);
        }
    }
}
