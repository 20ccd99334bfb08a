//! The edges of each workload that is governed in a direction, with all those at the other end.
//!
//! Edges to a workload that is governed for ingress are told of with it, whoever the source is; those from a workload that is
//! governed for egress, with that one, as far as the destination is not governed. Partners whose own side allows
//! everything and that no rule names are not looked at one by one: what they may is the same for all of them. So the
//! cost is that of what rules name, and of the lines that come of it.

use std::collections::{BTreeMap, BTreeSet};

use super::FlowPorts;
use super::classes::Classes;
use super::line::{End, Line};
use super::matches::Matches;
use super::pairs::{Entries, Entry, Pair, between, by_default};
use super::stars::{Condition, Stars, met};
use super::told::{ANYONE, Key, Told};
use super::workloads::{FAMILIES, Families, Nature, Workloads, is_partner, opposite};
use crate::{Direction, ObjectName};

/// What the groups are made of.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub(super) classes: &'a Classes,
    pub(super) workloads: &'a Workloads,
    pub(super) matches: &'a Matches,
}

/// There are more edges than there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

#[derive(Debug, Clone, Default)]
pub(super) struct Groups {
    /// By direction, as are the others: of each workload that is governed in it.
    groups: [BTreeMap<u32, Box<Group>>; 2],
    entries: [Entries; 2],
    stars: Stars,
    pub(super) told: Told,
}

/// There are as many as workloads that are governed, so it is small.
#[derive(Debug, Clone)]
struct Group {
    /// What partners of these families may of whom no entry tells and whose own side allows everything. None stands for
    /// nothing with any of them.
    defaults: Option<Box<[Pair; FAMILIES]>>,
    /// Entries with partners whose own side allows everything, by families, and those with others.
    free: [u32; FAMILIES],
    restricted: u32,
    /// What everyone may; none where it is nothing.
    star: Option<Box<Pair>>,
    /// Where its condition stands among the stars.
    condition: Option<Condition>,
    /// Destinations that suffice to keep it from being more than nothing, of a source that has it otherwise.
    blockers: Box<[u32]>,
}

impl Group {
    fn star(&self) -> Pair {
        self.star.as_deref().cloned().unwrap_or_else(Pair::nothing)
    }

    fn default_for(&self, families: usize) -> Pair {
        self.defaults.as_ref().map_or_else(Pair::nothing, |defaults| defaults[families].clone())
    }
}

/// Partners of a workload that have to be looked at again.
type Touched = [BTreeMap<u32, BTreeSet<u32>>; 2];

impl Groups {
    /// Takes in that these workloads are others now, with what they were before. `elsewhere` edges are held beside these
    /// and count towards the limit.
    pub(super) fn settle(
        &mut self,
        dirty: &BTreeMap<u32, Nature>,
        counts_changed: bool,
        known: Known<'_>,
        limit: usize,
        elsewhere: usize,
    ) -> Result<(), TooMany> {
        if dirty.is_empty() {
            return self.check(limit.saturating_sub(elsewhere));
        }
        // What is held of before, within the limit, comes on top as long as it is not replaced. So whatever exceeds this
        // will exceed the limit, by whichever way the state was reached.
        let on_the_way = limit.saturating_mul(2);
        let mut touched = Touched::default();
        for direction in [Direction::Ingress, Direction::Egress] {
            for anchor in dirty.keys() {
                self.rebuild(direction, *anchor, known);
                self.check(on_the_way)?;
            }
            for (partner, before) in dirty {
                for anchor in self.concerned(direction, *partner, *before, known) {
                    if !dirty.contains_key(&anchor) {
                        self.note(direction, anchor, *partner, known);
                        touched[direction as usize].entry(anchor).or_default().insert(*partner);
                    }
                }
                self.check(on_the_way)?;
            }
        }
        for direction in [Direction::Ingress, Direction::Egress] {
            let at = direction as usize;
            let mut anchors: BTreeSet<u32> = touched[at].keys().chain(dirty.keys()).copied().collect();
            for anchor in &anchors {
                self.place(direction, *anchor, known);
            }
            if counts_changed {
                anchors.extend(self.stars.possible(direction, known.workloads.census()));
                anchors.extend(self.stars.shining(direction));
            }
            if direction == Direction::Egress {
                // What a source may send to everyone hangs on all groups of destinations.
                let destinations = touched[Direction::Ingress as usize].keys().chain(dirty.keys());
                anchors.extend(destinations.flat_map(|destination| self.stars.held_back_by(*destination)));
                anchors.extend(self.stars.shining(direction));
            }
            for anchor in anchors {
                self.tell(direction, anchor, dirty.contains_key(&anchor), touched[at].get(&anchor), known);
                self.check(on_the_way)?;
            }
        }
        self.check(limit.saturating_sub(elsewhere))
    }

    /// The stars do not know the group any more.
    fn forget(&mut self, direction: Direction, anchor: u32, group: &Group) {
        self.stars.place(direction, anchor, group.condition, None);
        self.stars.shine(direction, anchor, false);
        self.stars.hold_back(anchor, &group.blockers, &[]);
    }

    /// The stars know under which condition the group has one.
    fn place(&mut self, direction: Direction, anchor: u32, known: Known<'_>) {
        let Some(group) = self.groups[direction as usize].get_mut(&anchor) else { return };
        let own = known.workloads.nature(anchor).families;
        let mut condition = Condition { own, restricted: group.restricted, free: [None; FAMILIES] };
        for families in met(own).filter(|families| group.default_for(*families).is_nothing()) {
            condition.free[families] = Some(group.free[families]);
        }
        let before = group.condition.replace(condition);
        self.stars.place(direction, anchor, before, Some(condition));
    }

    fn check(&self, limit: usize) -> Result<(), TooMany> {
        let held = self.told.len() + self.entries.iter().map(Entries::len).sum::<usize>();
        if held > limit { Err(TooMany) } else { Ok(()) }
    }

    /// Makes the group of the workload anew, or drops it where there is to be none.
    fn rebuild(&mut self, direction: Direction, anchor: u32, known: Known<'_>) {
        let at = direction as usize;
        let partners: Vec<u32> = self.entries[at].of(anchor).map(|(partner, _)| partner).collect();
        for partner in partners {
            self.entries[at].set(anchor, partner, None);
        }
        if !known.workloads.nature(anchor).governed(direction) {
            if let Some(group) = self.groups[at].remove(&anchor) {
                self.forget(direction, anchor, &group);
                self.told.replace(direction, anchor, BTreeMap::new(), known.workloads);
            }
            return;
        }
        let workload = &known.workloads.slots[anchor];
        let of_families = |families: usize| by_default(workload, direction, families as Families, known.classes);
        let defaults: [Pair; FAMILIES] = std::array::from_fn(of_families);
        let group = Group {
            defaults: defaults.iter().any(|pair| !pair.is_nothing()).then(|| Box::new(defaults)),
            free: [0; FAMILIES],
            restricted: 0,
            star: None,
            condition: None,
            blockers: Box::default(),
        };
        if let Some(before) = self.groups[at].insert(anchor, Box::new(group)) {
            self.forget(direction, anchor, &before);
        }
        for partner in candidates(direction, anchor, known) {
            self.note(direction, anchor, partner, known);
        }
    }

    /// Brings the entry of the two up to date.
    fn note(&mut self, direction: Direction, anchor: u32, partner: u32, known: Known<'_>) {
        let at = direction as usize;
        let Some(group) = self.groups[at].get_mut(&anchor) else { return };
        let nature = known.workloads.nature(partner);
        let entry = (nature.exists() && is_partner(direction, nature)).then(|| {
            let (own, other) = (&known.workloads.slots[anchor], &known.workloads.slots[partner]);
            let pair = match direction {
                Direction::Ingress => between(other, own, known.classes),
                Direction::Egress => between(own, other, known.classes),
            };
            Entry { pair, free: nature.free(opposite(direction)), families: nature.families }
        });
        let says_more = |entry: &Entry| match entry.free {
            true => entry.pair != group.default_for(entry.families.into()),
            false => !entry.pair.is_nothing(),
        };
        let entry = entry.filter(says_more);
        let mut count = |entry: &Entry, change: fn(&mut u32)| match entry.free {
            true => change(&mut group.free[usize::from(entry.families)]),
            false => change(&mut group.restricted),
        };
        if let Some(entry) = &entry {
            count(entry, |count| *count += 1);
        }
        if let Some(before) = self.entries[at].set(anchor, partner, entry) {
            count(&before, |count| *count -= 1);
        }
    }

    /// Workloads governed in the direction whose lines may be others since the partner is.
    fn concerned(&self, direction: Direction, partner: u32, before: Nature, known: Known<'_>) -> BTreeSet<u32> {
        let Known { classes, workloads, matches } = known;
        let side = opposite(direction);
        let mut concerned: BTreeSet<u32> = self.entries[direction as usize].with(partner).collect();
        let own = || known.workloads.slots[partner].classes.iter().map(|class| &classes.slots[*class]);
        let peers = own().flat_map(|class| &class.peers);
        concerned.extend(peers.flat_map(|peer| matches.users(*peer, direction)));
        let open = workloads.open_governed(direction);
        if before.open(side) || workloads.nature(partner).open(side) {
            concerned.extend(open);
        } else {
            let mentioned = own().filter_map(|class| class.terms(side)).flat_map(|terms| terms.mentioned());
            let named = mentioned.flat_map(|peer| matches.classes(peer)).map(|class| classes.slots[class].key.workload);
            concerned.extend(named.filter(|workload| open.contains(workload)));
        }
        concerned
    }

    /// Brings the lines of a group up to date: all of them, or those with the partners that were touched, unless what
    /// everyone may is different.
    fn tell(
        &mut self,
        direction: Direction,
        anchor: u32,
        anew: bool,
        touched: Option<&BTreeSet<u32>>,
        known: Known<'_>,
    ) {
        let at = direction as usize;
        let star = self.star(direction, anchor, known);
        let Some(group) = self.groups[at].get_mut(&anchor) else { return };
        let same = group.star() == star;
        self.stars.shine(direction, anchor, !star.is_nothing());
        group.star = (!star.is_nothing()).then(|| Box::new(star.clone()));
        let group = &self.groups[at][&anchor];
        if same && !anew {
            for partner in touched.into_iter().flatten() {
                let lines = self.lines_with(direction, anchor, *partner, group, known);
                for (partial, ports) in lines {
                    self.told.set(direction, anchor, *partner, partial, ports, known.workloads);
                }
            }
            return;
        }
        let mut lines = BTreeMap::new();
        let mut add = |partner: u32, told: [(bool, FlowPorts); 2]| {
            let said = told.into_iter().filter(|(_, ports)| !ports.is_none());
            lines.extend(said.map(|(partial, ports)| ((partner, partial), ports)));
        };
        add(ANYONE, star.beyond(&Pair::nothing()));
        for (partner, _) in self.entries[at].of(anchor) {
            add(partner, self.lines_with(direction, anchor, partner, group, known));
        }
        let told = &star;
        let by_default = |families: usize| group.default_for(families).beyond(told).iter().any(|(_, p)| !p.is_none());
        let named: [bool; FAMILIES] = std::array::from_fn(by_default);
        if named.contains(&true) {
            for (partner, workload) in known.workloads.slots.iter() {
                if named[usize::from(workload.nature.families)] && self.entries[at].get(anchor, partner).is_none() {
                    add(partner, self.lines_with(direction, anchor, partner, group, known));
                }
            }
        }
        self.told.replace(direction, anchor, lines, known.workloads);
    }

    fn lines_with(
        &self,
        direction: Direction,
        anchor: u32,
        partner: u32,
        group: &Group,
        known: Known<'_>,
    ) -> [(bool, FlowPorts); 2] {
        self.pair(direction, anchor, partner, group, known).beyond(&group.star())
    }

    /// What the two may exchange, if their edges are told of with this group.
    fn pair(&self, direction: Direction, anchor: u32, partner: u32, group: &Group, known: Known<'_>) -> Pair {
        let nature = known.workloads.nature(partner);
        if !is_partner(direction, nature) {
            return Pair::nothing();
        }
        match self.entries[direction as usize].get(anchor, partner) {
            Some(entry) => entry.pair.clone(),
            None if nature.free(opposite(direction)) => group.default_for(nature.families.into()),
            None => Pair::nothing(),
        }
    }

    /// What every workload may that there is, as far as it can be reached: a line for all of them would declare nothing
    /// that is denied. It is nothing unless the group's condition holds.
    fn star(&mut self, direction: Direction, anchor: u32, known: Known<'_>) -> Pair {
        let at = direction as usize;
        let Some(group) = self.groups[at].get(&anchor) else { return Pair::nothing() };
        let own = known.workloads.nature(anchor).families;
        let census = known.workloads.census();
        let restricted: u32 = met(own).map(|families| census.restricted[at][families]).sum();
        let implied = met(own).filter(|families| census.free[at][*families] > group.free[*families]);
        let mut star = match group.restricted == restricted {
            true => implied.fold(Pair::everything(), |star, families| star.meet(&group.default_for(families))),
            false => Pair::nothing(),
        };
        for (_, entry) in self.entries[at].of(anchor) {
            if star.is_nothing() {
                break;
            }
            star = star.meet(&entry.pair);
        }
        match direction {
            Direction::Ingress => star,
            Direction::Egress => self.sent_to_all(anchor, star, known),
        }
    }

    /// What of `star` the source may send to every workload that is governed for ingress, too.
    fn sent_to_all(&mut self, source: u32, star: Pair, known: Known<'_>) -> Pair {
        let (ingress, egress) = (Direction::Ingress as usize, Direction::Egress as usize);
        let Some(group) = self.groups[egress].get_mut(&source) else { return Pair::nothing() };
        let before = std::mem::take(&mut group.blockers);
        let own = known.workloads.nature(source).families;
        let (mut left, mut blockers) = (star.clone(), Vec::new());
        // Those that left nothing of it before will do so again, mostly. Each source begins with others, so that none is
        // what all hang on.
        let governed = known.workloads.governed(Direction::Ingress);
        for destination in before.iter().chain(governed.range(source..)).chain(governed.range(..source)) {
            if left.is_nothing() {
                break;
            }
            let Some(group) = self.groups[ingress].get(destination) else { continue };
            if known.workloads.nature(*destination).families & own == 0 {
                continue;
            }
            let pair = self.pair(Direction::Ingress, *destination, source, group, known);
            if star.meet(&pair).is_nothing() {
                blockers.clear();
            }
            let less = left.meet(&pair);
            if less != left {
                blockers.push(*destination);
                left = less;
            }
        }
        if !left.is_nothing() {
            blockers.clear();
        }
        self.stars.hold_back(source, &before, &blockers);
        if let Some(group) = self.groups[egress].get_mut(&source) {
            group.blockers = blockers.into();
        }
        left
    }
}

/// Whoever may have an entry with the workload: whom its rules name; and where they allow something to everyone, those whose
/// own rules do too or name it, and those that a rule for everyone does not mean.
fn candidates(direction: Direction, anchor: u32, known: Known<'_>) -> BTreeSet<u32> {
    let Known { classes, workloads, matches } = known;
    let workload_of = |class: u32| classes.slots[class].key.workload;
    let own = || workloads.slots[anchor].classes.iter().map(|class| &classes.slots[*class]);
    let mentioned: BTreeSet<u32> =
        own().filter_map(|class| class.terms(direction)).flat_map(|terms| terms.mentioned()).collect();
    let mut found: BTreeSet<u32> = mentioned.iter().flat_map(|peer| matches.classes(*peer)).map(workload_of).collect();
    if workloads.nature(anchor).open(direction) {
        let side = opposite(direction);
        found.extend(&workloads.odd);
        let restricted = workloads.open_governed(side).iter().filter(|other| !workloads.nature(**other).free(side));
        found.extend(restricted);
        found.extend(own().flat_map(|class| &class.peers).flat_map(|peer| matches.users(*peer, side)));
    }
    found.retain(|other| is_partner(direction, workloads.nature(*other)));
    found
}

/// The edge between the two of the key, of which one may be everyone.
pub(super) fn edge(key: Key, ports: FlowPorts, name: impl Fn(u32) -> ObjectName) -> Line {
    let (direction, anchor, partner, partial) = key;
    let end = |workload: u32| match workload {
        ANYONE => End::Any,
        number => End::Workload(name(number)),
    };
    let (source, destination) = match direction {
        Direction::Ingress => (end(partner), end(anchor)),
        Direction::Egress => (end(anchor), end(partner)),
    };
    Line::Edge { source, destination, ports, partial }
}
