//! Workloads: the aggregate of their classes.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use nft::Family;

use super::classes::{Class, Classes};
use crate::slab::{Numbers, Slots};
use crate::{Direction, ObjectName};

/// Address families of a workload's pods: bit 0 for IPv4, bit 1 for IPv6.
pub(super) type Families = u8;

/// One more than the greatest value of [`Families`].
pub(super) const FAMILIES: usize = 4;

pub(super) fn bit(family: Family) -> Families {
    match family {
        Family::V4 => 1,
        Family::V6 => 2,
    }
}

#[derive(Debug, Clone)]
pub(super) struct Workload {
    pub(super) name: ObjectName,
    pub(super) classes: Numbers,
    pub(super) nature: Nature,
}

/// The properties of a workload that edges of other workloads depend on. All are unset if it has no classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Nature {
    pub(super) families: Families,
    /// By direction, as the fields below: policies select some class.
    governed: [bool; 2],
    /// Every class is allowed everything with every pod that no peer of its rules selects.
    free: [bool; 2],
    /// Some class is allowed something with every pod of a known namespace.
    open: [bool; 2],
    /// Some class is not covered by a rule for all pods of all namespaces.
    pub(super) odd: bool,
}

impl Nature {
    fn of<'a>(classes: impl Iterator<Item = &'a Class>) -> Nature {
        let mut nature = Nature { free: [true; 2], ..Nature::default() };
        for class in classes {
            nature.families |= bit(class.key.family);
            nature.odd |= !class.ordinary;
            for direction in Direction::BOTH {
                let (at, terms) = (direction as usize, class.terms(direction));
                nature.governed[at] |= terms.is_some();
                nature.free[at] &= terms.is_none_or(|terms| terms.is_free());
                nature.open[at] |= terms.is_none_or(|terms| !terms.by_default().is_none());
            }
        }
        if nature.families == 0 { Nature::default() } else { nature }
    }

    pub(super) fn governed(&self, direction: Direction) -> bool {
        self.governed[direction as usize]
    }

    pub(super) fn free(&self, direction: Direction) -> bool {
        self.free[direction as usize]
    }

    pub(super) fn open(&self, direction: Direction) -> bool {
        self.open[direction as usize]
    }

    pub(super) fn exists(&self) -> bool {
        self.families != 0
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Workloads {
    numbers: HashMap<ObjectName, u32>,
    pub(super) slots: Slots<Workload>,
    /// By direction, as the field below: workloads that are governed, and those of them that are open.
    governed: [BTreeSet<u32>; 2],
    open_governed: [BTreeSet<u32>; 2],
    pub(super) odd: BTreeSet<u32>,
    census: Census,
}

/// Number of workloads that may be at the other end of a governed one, by direction and families.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Census {
    pub(super) free: [[u32; FAMILIES]; 2],
    pub(super) restricted: [[u32; FAMILIES]; 2],
}

impl Census {
    /// By direction, whether the numbers differ.
    pub(super) fn differs(&self, other: &Census) -> [bool; 2] {
        Direction::BOTH
            .map(|d| d as usize)
            .map(|at| (self.free[at], self.restricted[at]) != (other.free[at], other.restricted[at]))
    }
}

impl Workloads {
    pub(super) fn number(&mut self, namespace: &Arc<str>, name: Arc<str>) -> u32 {
        let name = ObjectName { namespace: namespace.clone(), name };
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let workload = Workload { name: name.clone(), classes: Numbers::default(), nature: Nature::default() };
        let number = self.slots.insert(workload);
        self.numbers.insert(name, number);
        number
    }

    /// Recomputes the nature after the workload's classes changed. Returns the previous one.
    pub(super) fn recompute_nature(&mut self, number: u32, classes: &Classes) -> Nature {
        let workload = &mut self.slots[number];
        let nature = Nature::of(workload.classes.iter().map(|class| &classes.slots[*class]));
        let before = std::mem::replace(&mut workload.nature, nature);
        for direction in Direction::BOTH {
            self.count(direction, before, |count| *count -= 1);
            self.count(direction, nature, |count| *count += 1);
            let at = direction as usize;
            keep(&mut self.governed[at], number, nature.governed(direction));
            keep(&mut self.open_governed[at], number, nature.governed(direction) && nature.open(direction));
        }
        keep(&mut self.odd, number, nature.odd);
        before
    }

    /// Changes the census of workloads at the other end of flows in the direction.
    fn count(&mut self, direction: Direction, nature: Nature, change: impl FnOnce(&mut u32)) {
        if nature.exists() && is_partner(direction, nature) {
            let counts = match nature.free(opposite(direction)) {
                true => &mut self.census.free,
                false => &mut self.census.restricted,
            };
            change(&mut counts[direction as usize][usize::from(nature.families)]);
        }
    }

    pub(super) fn remove(&mut self, number: u32) {
        if let Some(workload) = self.slots.remove(number) {
            self.numbers.remove(&workload.name);
        }
    }

    pub(super) fn nature(&self, number: u32) -> Nature {
        self.slots.get(number).map_or_else(Nature::default, |workload| workload.nature)
    }

    pub(super) fn governed(&self, direction: Direction) -> &BTreeSet<u32> {
        &self.governed[direction as usize]
    }

    pub(super) fn open_governed(&self, direction: Direction) -> &BTreeSet<u32> {
        &self.open_governed[direction as usize]
    }

    pub(super) fn census(&self) -> &Census {
        &self.census
    }
}

fn keep(set: &mut BTreeSet<u32>, number: u32, is: bool) {
    if is {
        set.insert(number);
    } else {
        set.remove(&number);
    }
}

pub(super) fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::Egress => Direction::Ingress,
        Direction::Ingress => Direction::Egress,
    }
}

/// Whether edges of a workload governed in the direction with one of this nature belong to the former's group. Edges to
/// a workload governed for ingress belong to that workload's group.
pub(super) fn is_partner(direction: Direction, nature: Nature) -> bool {
    match direction {
        Direction::Ingress => true,
        Direction::Egress => !nature.governed(Direction::Ingress),
    }
}
