//! Whose lines for everyone may be others now.
//!
//! What a workload may exchange with everyone hangs on how many workloads there are, and what a source may send to
//! everyone on all destinations. Looking at every workload whenever one comes or goes would cost what the cluster has,
//! so those are found of which it can be true at all.

use std::collections::{BTreeMap, BTreeSet};

use super::workloads::{Census, FAMILIES, Families};
use crate::Direction;

/// With how many partners everyone may be allowed something: where there are others of whom no entry tells, they may
/// nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Condition {
    /// Of the workload's own addresses.
    pub(super) own: Families,
    pub(super) restricted: u32,
    /// By families of partners; none where it does not matter: the workload cannot reach them, or any number of them
    /// is allowed something.
    pub(super) free: [Option<u32>; FAMILIES],
}

/// Whether addresses of the families can reach each other at all.
pub(super) fn met(own: Families) -> impl Iterator<Item = usize> + Clone {
    (0..FAMILIES).filter(move |families| *families as Families & own != 0)
}

impl Condition {
    /// All that hold with so many partners.
    fn holding(direction: Direction, census: &Census) -> impl Iterator<Item = Condition> {
        let at = direction as usize;
        let (free, restricted) = (census.free[at], census.restricted[at]);
        (1..FAMILIES as Families).flat_map(move |own| {
            let restricted = met(own).map(|families| restricted[families]).sum();
            // Each choice of families of whom the number matters.
            (0..1_u32 << FAMILIES)
                .filter(move |choice| (0..FAMILIES).all(|f| choice & 1 << f == 0 || f as Families & own != 0))
                .map(move |choice| {
                    let free = std::array::from_fn(|f| (choice & 1 << f != 0).then_some(free[f]));
                    Condition { own, restricted, free }
                })
        })
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Stars {
    /// By direction, as are the others.
    conditions: [BTreeMap<Condition, BTreeSet<u32>>; 2],
    /// Workloads that may exchange something with everyone.
    shining: [BTreeSet<u32>; 2],
    /// Sources that would send something to everyone, by the destinations that keep them from it.
    held_back: BTreeSet<(u32, u32)>,
}

impl Stars {
    /// The workload's condition is another one. None if it is not governed.
    pub(super) fn place(&mut self, direction: Direction, anchor: u32, from: Option<Condition>, to: Option<Condition>) {
        if from == to {
            return;
        }
        let conditions = &mut self.conditions[direction as usize];
        if let Some(from) = from {
            take(conditions, from, anchor);
        }
        if let Some(to) = to {
            conditions.entry(to).or_default().insert(anchor);
        }
    }

    pub(super) fn shine(&mut self, direction: Direction, anchor: u32, shines: bool) {
        match shines {
            true => self.shining[direction as usize].insert(anchor),
            false => self.shining[direction as usize].remove(&anchor),
        };
    }

    /// The destinations that keep the source from sending something to everyone are others.
    pub(super) fn hold_back(&mut self, source: u32, from: &[u32], to: &[u32]) {
        for destination in from {
            self.held_back.remove(&(*destination, source));
        }
        for destination in to {
            self.held_back.insert((*destination, source));
        }
    }

    pub(super) fn shining(&self, direction: Direction) -> &BTreeSet<u32> {
        &self.shining[direction as usize]
    }

    /// The sources that the destination keeps from sending something to everyone.
    pub(super) fn held_back_by(&self, destination: u32) -> impl Iterator<Item = u32> {
        self.held_back.range((destination, 0)..=(destination, u32::MAX)).map(|(_, source)| *source)
    }

    /// Those that may exchange something with everyone now that there are so many workloads.
    pub(super) fn possible(&self, direction: Direction, census: &Census) -> impl Iterator<Item = u32> {
        let conditions = &self.conditions[direction as usize];
        Condition::holding(direction, census).filter_map(|holding| conditions.get(&holding)).flatten().copied()
    }
}

fn take(sets: &mut BTreeMap<Condition, BTreeSet<u32>>, key: Condition, number: u32) {
    if let Some(set) = sets.get_mut(&key) {
        set.remove(&number);
        if set.is_empty() {
            sets.remove(&key);
        }
    }
}
