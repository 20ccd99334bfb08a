//! Workloads, which aggregate their classes, and the ports that two workloads may use between each other.

pub(super) mod governance;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use nft::Family;

use super::classes::{Class, Classes};
use super::declared_lines::TierRuleName;
use super::ports::FlowPorts;
use super::terms::OtherEnd;
use crate::slab::{Numbers, Slots};
use crate::{Direction, ObjectName};

/// Address families of a workload's pods: bit 0 for IPv4, bit 1 for IPv6.
pub(super) type FamilyBits = u8;

/// One more than the greatest value of [`FamilyBits`].
pub(super) const FAMILIES: usize = 4;

pub(super) fn bit(family: Family) -> FamilyBits {
    match family {
        Family::V4 => 1,
        Family::V6 => 2,
    }
}

#[derive(Debug, Clone)]
pub(super) struct EdgeWorkload {
    pub(super) name: ObjectName,
    pub(super) classes: Numbers,
    pub(super) nature: Nature,
}

/// The properties of a workload that edges of other workloads depend on. All are unset if it has no classes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Nature {
    pub(super) families: FamilyBits,
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
pub(super) struct WorkloadIndex {
    numbers: HashMap<ObjectName, u32>,
    pub(super) slots: Slots<EdgeWorkload>,
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

impl WorkloadIndex {
    pub(super) fn number(&mut self, namespace: &Arc<str>, name: Arc<str>) -> u32 {
        let name = ObjectName { namespace: namespace.clone(), name };
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let workload = EdgeWorkload { name: name.clone(), classes: Numbers::default(), nature: Nature::default() };
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
            set_member(&mut self.governed[at], number, nature.governed(direction));
            set_member(&mut self.open_governed[at], number, nature.governed(direction) && nature.open(direction));
        }
        set_member(&mut self.odd, number, nature.odd);
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

fn set_member(set: &mut BTreeSet<u32>, number: u32, is: bool) {
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

/// Ports allowed between pairs of pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PairPorts {
    /// Allowed for at least one pair.
    pub(super) some: FlowPorts,
    /// Allowed for every pair.
    pub(super) every: FlowPorts,
}

impl PairPorts {
    pub(super) fn of(pairs: impl IntoIterator<Item = FlowPorts>) -> PairPorts {
        let nothing_said = PairPorts { some: FlowPorts::none(), every: FlowPorts::everything() };
        let mut any = false;
        let joined = pairs.into_iter().fold(nothing_said, |pair, ports| {
            any = true;
            PairPorts { some: pair.some.union(&ports), every: pair.every.intersection(&ports) }
        });
        if any { joined } else { PairPorts::nothing() }
    }

    pub(super) fn nothing() -> PairPorts {
        PairPorts { some: FlowPorts::none(), every: FlowPorts::none() }
    }

    pub(super) fn everything() -> PairPorts {
        PairPorts { some: FlowPorts::everything(), every: FlowPorts::everything() }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.some.is_none()
    }

    /// The ports that both allow.
    pub(super) fn intersection(&self, other: &PairPorts) -> PairPorts {
        PairPorts { some: self.some.intersection(&other.some), every: self.every.intersection(&other.every) }
    }

    /// The ports of the lines, with whether each is partial, beyond those that the wildcard edge already
    /// declares.
    pub(super) fn beyond(&self, wildcard: &PairPorts) -> [(bool, FlowPorts); 2] {
        let partial = self.some.beyond(&self.every).beyond(&wildcard.some);
        // A partial line omits ports that are open to everyone. If the remainder were "everything", it would include
        // those ports again, so then only ports open for every pair are omitted.
        let said = if partial.is_everything() { &wildcard.every } else { &wildcard.some };
        [(false, self.every.beyond(said)), (true, partial)]
    }
}

/// Ports that pods of one class may use to those of another.
fn allowed(source: &Class, destination: &Class) -> FlowPorts {
    let side = |direction, own: &Class, other: &Class| match own.terms(direction) {
        Some(terms) => terms.allow(other.as_other_end()),
        None => FlowPorts::everything(),
    };
    let out = side(Direction::Egress, source, destination);
    if out.is_none() {
        return out;
    }
    out.intersection(&side(Direction::Ingress, destination, source))
}

/// Every pair of pods that can reach each other counts, also two pods of the same class.
pub(super) fn between(source: &EdgeWorkload, destination: &EdgeWorkload, classes: &Classes) -> PairPorts {
    let pairs = source.classes.iter().flat_map(|s| destination.classes.iter().map(|d| (*s, *d)));
    let pairs = pairs.map(|(s, d)| (&classes.slots[s], &classes.slots[d]));
    PairPorts::of(pairs.filter(|(s, d)| s.key.family == d.key.family).map(|(s, d)| allowed(s, d)))
}

/// Rules of cluster policies that accept flows of an edge: sorted, with whether the ports hold for some pairs only.
pub(super) type AcceptingRules = Arc<[(Arc<TierRuleName>, bool, FlowPorts)]>;

/// The rules of both sides that accept flows between the workloads.
pub(super) fn accepting(source: &EdgeWorkload, destination: &EdgeWorkload, classes: &Classes) -> AcceptingRules {
    let accepts = |workload: &EdgeWorkload, direction| {
        let mut own = workload.classes.iter().filter_map(|class| classes.slots[*class].terms(direction));
        own.any(|terms| terms.accepts())
    };
    if !accepts(source, Direction::Egress) && !accepts(destination, Direction::Ingress) {
        return Arc::default();
    }
    let pairs = source.classes.iter().flat_map(|s| destination.classes.iter().map(|d| (*s, *d)));
    let pairs = pairs.map(|(s, d)| (&classes.slots[s], &classes.slots[d]));
    joined(pairs.filter(|(s, d)| s.key.family == d.key.family).map(|(s, d)| {
        let side = |direction, own: &Class, other: &Class| {
            own.terms(direction).map_or_else(Vec::new, |terms| terms.accepting(other.as_other_end()))
        };
        let (egress, ingress) = (side(Direction::Egress, s, d), side(Direction::Ingress, d, s));
        let (both, rules) = (allowed(s, d), egress.into_iter().chain(ingress));
        rules.map(|(rule, ports)| (rule, ports.intersection(&both))).collect()
    }))
}

/// The rules of the workload's side that accept the ports of its wildcard edge.
pub(super) fn accepting_anyone(
    workload: &EdgeWorkload,
    direction: Direction,
    wildcard: &PairPorts,
    classes: &Classes,
) -> AcceptingRules {
    let own = workload.classes.iter().map(|class| &classes.slots[*class]);
    joined(own.map(|class| {
        let anyone = OtherEnd::Unnamed { ordinary: true };
        let rules = class.terms(direction).map_or_else(Vec::new, |terms| terms.accepting(anyone));
        rules.into_iter().map(|(rule, ports)| (rule, ports.intersection(&wildcard.some))).collect()
    }))
}

/// Merges the rules of each pair of pods.
fn joined(pairs: impl Iterator<Item = Vec<(Arc<TierRuleName>, FlowPorts)>>) -> AcceptingRules {
    let mut by_rule: BTreeMap<Arc<TierRuleName>, Vec<FlowPorts>> = BTreeMap::new();
    let mut count = 0;
    for rules in pairs {
        count += 1;
        for (rule, ports) in rules {
            by_rule.entry(rule).or_default().push(ports);
        }
    }
    let of_rule = |(rule, mut ports): (Arc<TierRuleName>, Vec<FlowPorts>)| {
        ports.resize(count, FlowPorts::none());
        let by_partiality = PairPorts::of(ports).beyond(&PairPorts::nothing());
        by_partiality.into_iter().map(move |(partial, ports)| (rule.clone(), partial, ports))
    };
    by_rule.into_iter().flat_map(of_rule).filter(|(.., ports)| !ports.is_none()).collect()
}

/// Ports between a workload and any partner in a known namespace that has these families and whose own side allows
/// everything.
pub(super) fn by_default(
    workload: &EdgeWorkload,
    direction: Direction,
    families: FamilyBits,
    classes: &Classes,
) -> PairPorts {
    let classes = workload.classes.iter().map(|class| &classes.slots[*class]);
    let reachable = classes.filter(|class| bit(class.key.family) & families != 0);
    PairPorts::of(
        reachable
            .map(|class| class.terms(direction).map_or_else(FlowPorts::everything, |terms| terms.by_default().clone())),
    )
}
