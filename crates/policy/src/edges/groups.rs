//! The edges of each workload that is governed in a direction, with all those at the other end.
//!
//! Edges to a workload that is governed for ingress are in its group, whoever the source is. Edges from a workload that
//! is governed for egress are in its group if the destination is not governed. Partners whose own side allows
//! everything and that no rule names are not visited one by one: all of them have the same edges. So the cost depends
//! on what rules name and on the resulting lines.

mod published;
mod wildcard_index;

use std::collections::{BTreeMap, BTreeSet};

use super::classes::Classes;
use super::classes::peer_index::Matches;
use super::declared_lines::Withheld;
use super::ports::FlowPorts;
use super::workloads::{
    AcceptingRules, FAMILIES, FamilyBits, Nature, PairPorts, WorkloadIndex, accepting, accepting_anyone, between,
    by_default, is_partner, opposite,
};
use crate::Direction;
use published::{ANYONE, PublishedEdges};
pub(super) use published::{Key, RulesKey, edge, rule_lines};
use wildcard_index::{Condition, WildcardIndex, reachable};

/// The inputs from which groups are computed.
#[derive(Clone, Copy)]
pub(super) struct GroupInputs<'a> {
    pub(super) classes: &'a Classes,
    pub(super) workloads: &'a WorkloadIndex,
    pub(super) matches: &'a Matches,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Groups {
    /// By direction, as the fields below: the group of each workload that is governed in it.
    groups: [BTreeMap<u32, Box<Group>>; 2],
    entries: [Entries; 2],
    wildcards: WildcardIndex,
    pub(super) published: PublishedEdges,
}

/// There is one for each governed workload, so it is kept small.
#[derive(Debug, Clone)]
struct Group {
    /// Edges with partners of these families that have no entry and whose own side allows everything. `None` if no
    /// partner has any.
    defaults: Option<Box<[PairPorts; FAMILIES]>>,
    /// Number of entries with partners whose own side allows everything, by families, and of the other entries.
    free: [u32; FAMILIES],
    restricted: u32,
    /// The wildcard edge: ports open to every workload; `None` if there are none.
    wildcard: Option<Box<PairPorts>>,
    /// The group's condition, as registered in the wildcard index.
    condition: Option<Condition>,
    /// Some destination limits the wildcard edge to a part of the ports that the source may send to all of its own
    /// partners.
    is_limited: bool,
    /// Destinations that suffice to keep the wildcard edge empty, if the source would otherwise have one.
    blockers: Box<[u32]>,
}

impl Group {
    fn wildcard(&self) -> PairPorts {
        self.wildcard.as_deref().cloned().unwrap_or_else(PairPorts::nothing)
    }

    fn default_for(&self, families: usize) -> PairPorts {
        self.defaults.as_ref().map_or_else(PairPorts::nothing, |defaults| defaults[families].clone())
    }
}

/// Partners of a workload whose lines must be recomputed.
type TouchedPartners = [BTreeMap<u32, BTreeSet<u32>>; 2];

impl Groups {
    /// Applies the changes of these workloads, given with their previous nature. `elsewhere` is the number of edges
    /// held outside of the groups; they count towards the limit.
    pub(super) fn reconcile(
        &mut self,
        dirty: &BTreeMap<u32, Nature>,
        counts_changed: [bool; 2],
        known: GroupInputs<'_>,
        limit: usize,
        elsewhere: usize,
    ) -> Result<(), Withheld> {
        if dirty.is_empty() {
            return self.check(limit.saturating_sub(elsewhere));
        }
        // Until replaced, old edges within the limit add to the new ones. Exceeding twice the limit therefore means
        // that the final state exceeds it, by whichever order of changes it was reached.
        let on_the_way = limit.saturating_mul(2);
        let mut touched = TouchedPartners::default();
        for direction in [Direction::Ingress, Direction::Egress] {
            for anchor in dirty.keys() {
                self.rebuild(direction, *anchor, known);
                self.check(on_the_way)?;
            }
            for (partner, before) in dirty {
                for anchor in self.concerned(direction, *partner, *before, known) {
                    if !dirty.contains_key(&anchor) {
                        self.record(direction, anchor, *partner, known);
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
            if counts_changed[at] {
                anchors.extend(self.wildcards.possible(direction, known.workloads.census()));
                anchors.extend(self.wildcards.with_wildcard(direction));
            }
            if direction == Direction::Egress {
                // The wildcard edge of an egress source depends on all groups of destinations.
                let destinations = touched[Direction::Ingress as usize].keys().chain(dirty.keys());
                anchors.extend(destinations.flat_map(|destination| self.wildcards.blocked_by(*destination)));
                let may_narrow = |source: &&u32| self.may_narrow(**source, dirty.keys(), known);
                anchors.extend(self.wildcards.with_wildcard(direction).iter().filter(may_narrow));
            }
            for anchor in anchors {
                self.publish(direction, anchor, dirty.contains_key(&anchor), touched[at].get(&anchor), known);
                self.check(on_the_way)?;
            }
        }
        self.check(limit.saturating_sub(elsewhere))
    }

    /// Whether the wildcard edge of the source may change with these destinations. Groups of other destinations changed
    /// for the sources in question alone, which are among these workloads, too.
    fn may_narrow<'a>(
        &self,
        source: u32,
        destinations: impl IntoIterator<Item = &'a u32>,
        known: GroupInputs<'_>,
    ) -> bool {
        let Some(group) = self.groups[Direction::Egress as usize].get(&source) else { return true };
        let wildcard = group.wildcard();
        let own = known.workloads.nature(source).families;
        let is_narrowed = |destination: &u32| {
            let ingress = self.groups[Direction::Ingress as usize].get(destination);
            let reachable = ingress.filter(|_| known.workloads.nature(*destination).families & own != 0);
            let pair = reachable.map(|group| self.pair(Direction::Ingress, *destination, source, group, known));
            pair.is_some_and(|pair| wildcard.intersection(&pair) != wildcard)
        };
        group.is_limited || destinations.into_iter().any(is_narrowed)
    }

    /// Removes the group from the wildcard index.
    fn discard(&mut self, direction: Direction, anchor: u32, group: &Group) {
        self.wildcards.place(direction, anchor, group.condition, None);
        self.wildcards.set_wildcard(direction, anchor, false);
        self.wildcards.set_blockers(anchor, &group.blockers, &[]);
    }

    /// Registers the group's condition in the wildcard index.
    fn place(&mut self, direction: Direction, anchor: u32, known: GroupInputs<'_>) {
        let Some(group) = self.groups[direction as usize].get_mut(&anchor) else { return };
        let own = known.workloads.nature(anchor).families;
        let mut condition = Condition { own, restricted: group.restricted, free: [None; FAMILIES] };
        for families in reachable(own).filter(|families| group.default_for(*families).is_nothing()) {
            condition.free[families] = Some(group.free[families]);
        }
        let before = group.condition.replace(condition);
        self.wildcards.place(direction, anchor, before, Some(condition));
    }

    fn check(&self, limit: usize) -> Result<(), Withheld> {
        let held = self.published.len() + self.entries.iter().map(Entries::len).sum::<usize>();
        if held > limit { Err(Withheld::TooMany) } else { Ok(()) }
    }

    /// Rebuilds the group of the workload, or removes it if the workload is no longer governed.
    fn rebuild(&mut self, direction: Direction, anchor: u32, known: GroupInputs<'_>) {
        let at = direction as usize;
        let partners: Vec<u32> = self.entries[at].of(anchor).map(|(partner, _)| partner).collect();
        for partner in partners {
            self.entries[at].set(anchor, partner, None);
        }
        if !known.workloads.nature(anchor).governed(direction) {
            if let Some(group) = self.groups[at].remove(&anchor) {
                self.discard(direction, anchor, &group);
                self.published.replace(direction, anchor, BTreeMap::new(), known.workloads);
                self.published.replace_rules(direction, anchor, BTreeMap::new(), known.workloads);
            }
            return;
        }
        let workload = &known.workloads.slots[anchor];
        let of_families = |families: usize| by_default(workload, direction, families as FamilyBits, known.classes);
        let defaults: [PairPorts; FAMILIES] = std::array::from_fn(of_families);
        let group = Group {
            defaults: defaults.iter().any(|pair| !pair.is_nothing()).then(|| Box::new(defaults)),
            free: [0; FAMILIES],
            restricted: 0,
            wildcard: None,
            condition: None,
            is_limited: false,
            blockers: Box::default(),
        };
        if let Some(before) = self.groups[at].insert(anchor, Box::new(group)) {
            self.discard(direction, anchor, &before);
        }
        for partner in candidates(direction, anchor, known) {
            self.record(direction, anchor, partner, known);
        }
    }

    /// Updates the entry of the pair.
    fn record(&mut self, direction: Direction, anchor: u32, partner: u32, known: GroupInputs<'_>) {
        let at = direction as usize;
        let Some(group) = self.groups[at].get_mut(&anchor) else { return };
        let nature = known.workloads.nature(partner);
        let entry = (nature.exists() && is_partner(direction, nature)).then(|| {
            let (own, other) = (&known.workloads.slots[anchor], &known.workloads.slots[partner]);
            let pair = match direction {
                Direction::Ingress => between(other, own, known.classes),
                Direction::Egress => between(own, other, known.classes),
            };
            GroupEntry { pair, free: nature.free(opposite(direction)), families: nature.families }
        });
        let says_more = |entry: &GroupEntry| match entry.free {
            true => entry.pair != group.default_for(entry.families.into()),
            false => !entry.pair.is_nothing(),
        };
        let entry = entry.filter(says_more);
        let mut count = |entry: &GroupEntry, change: fn(&mut u32)| match entry.free {
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

    /// Workloads governed in the direction whose lines may have changed because the partner did.
    fn concerned(&self, direction: Direction, partner: u32, before: Nature, known: GroupInputs<'_>) -> BTreeSet<u32> {
        let GroupInputs { classes, workloads, matches } = known;
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

    /// Updates the lines of a group: only those with the touched partners, or all of them if the wildcard edge changed.
    fn publish(
        &mut self,
        direction: Direction,
        anchor: u32,
        anew: bool,
        touched: Option<&BTreeSet<u32>>,
        known: GroupInputs<'_>,
    ) {
        let at = direction as usize;
        let wildcard = self.wildcard(direction, anchor, known);
        let Some(group) = self.groups[at].get_mut(&anchor) else { return };
        let same = group.wildcard() == wildcard;
        self.wildcards.set_wildcard(direction, anchor, !wildcard.is_nothing());
        group.wildcard = (!wildcard.is_nothing()).then(|| Box::new(wildcard.clone()));
        let group = &self.groups[at][&anchor];
        if same && !anew {
            for partner in touched.into_iter().flatten() {
                let lines = self.lines_with(direction, anchor, *partner, group, known);
                let is_declared = lines.iter().any(|(_, ports)| !ports.is_none());
                let rules = match is_declared {
                    true => rules_with(direction, anchor, *partner, known),
                    false => AcceptingRules::default(),
                };
                self.published.set_rules((direction, anchor, *partner), rules, known.workloads);
                for (partial, ports) in lines {
                    self.published.set(direction, anchor, *partner, partial, ports, known.workloads);
                }
            }
            return;
        }
        let mut lines = BTreeMap::new();
        let mut add = |partner: u32, by_partiality: [(bool, FlowPorts); 2]| {
            let said = by_partiality.into_iter().filter(|(_, ports)| !ports.is_none());
            lines.extend(said.map(|(partial, ports)| ((partner, partial), ports)));
        };
        add(ANYONE, wildcard.beyond(&PairPorts::nothing()));
        for (partner, _) in self.entries[at].of(anchor) {
            add(partner, self.lines_with(direction, anchor, partner, group, known));
        }
        let by_default =
            |families: usize| group.default_for(families).beyond(&wildcard).iter().any(|(_, p)| !p.is_none());
        let named: [bool; FAMILIES] = std::array::from_fn(by_default);
        if named.contains(&true) {
            for (partner, workload) in known.workloads.slots.iter() {
                if named[usize::from(workload.nature.families)] && self.entries[at].get(anchor, partner).is_none() {
                    add(partner, self.lines_with(direction, anchor, partner, group, known));
                }
            }
        }
        let mut rules: BTreeMap<u32, AcceptingRules> = BTreeMap::new();
        for (partner, _) in lines.keys() {
            rules.entry(*partner).or_insert_with(|| match *partner {
                ANYONE => accepting_anyone(&known.workloads.slots[anchor], direction, &wildcard, known.classes),
                partner => rules_with(direction, anchor, partner, known),
            });
        }
        rules.retain(|_, rules| !rules.is_empty());
        self.published.replace_rules(direction, anchor, rules, known.workloads);
        self.published.replace(direction, anchor, lines, known.workloads);
    }

    fn lines_with(
        &self,
        direction: Direction,
        anchor: u32,
        partner: u32,
        group: &Group,
        known: GroupInputs<'_>,
    ) -> [(bool, FlowPorts); 2] {
        self.pair(direction, anchor, partner, group, known).beyond(&group.wildcard())
    }

    /// The edges of the pair, if they belong to this group.
    fn pair(
        &self,
        direction: Direction,
        anchor: u32,
        partner: u32,
        group: &Group,
        known: GroupInputs<'_>,
    ) -> PairPorts {
        let nature = known.workloads.nature(partner);
        if !is_partner(direction, nature) {
            return PairPorts::nothing();
        }
        match self.entries[direction as usize].get(anchor, partner) {
            Some(entry) => entry.pair.clone(),
            None if nature.free(opposite(direction)) => group.default_for(nature.families.into()),
            None => PairPorts::nothing(),
        }
    }

    /// The ports open to every existing workload that can be reached, so that a line for all of them does not claim a
    /// denied flow. Empty unless the group's condition holds.
    fn wildcard(&mut self, direction: Direction, anchor: u32, known: GroupInputs<'_>) -> PairPorts {
        let at = direction as usize;
        let Some(group) = self.groups[at].get(&anchor) else { return PairPorts::nothing() };
        let own = known.workloads.nature(anchor).families;
        let census = known.workloads.census();
        let restricted: u32 = reachable(own).map(|families| census.restricted[at][families]).sum();
        let implied = reachable(own).filter(|families| census.free[at][*families] > group.free[*families]);
        let mut wildcard = match group.restricted == restricted {
            true => implied.fold(PairPorts::everything(), |wildcard, families| {
                wildcard.intersection(&group.default_for(families))
            }),
            false => PairPorts::nothing(),
        };
        for (_, entry) in self.entries[at].of(anchor) {
            if wildcard.is_nothing() {
                break;
            }
            wildcard = wildcard.intersection(&entry.pair);
        }
        match direction {
            Direction::Ingress => wildcard,
            Direction::Egress => self.sent_to_all(anchor, wildcard, known),
        }
    }

    /// The part of `wildcard` that the source may also send to every workload governed for ingress.
    fn sent_to_all(&mut self, source: u32, wildcard: PairPorts, known: GroupInputs<'_>) -> PairPorts {
        let (ingress, egress) = (Direction::Ingress as usize, Direction::Egress as usize);
        let Some(group) = self.groups[egress].get_mut(&source) else { return PairPorts::nothing() };
        let before = std::mem::take(&mut group.blockers);
        let own = known.workloads.nature(source).families;
        let (mut left, mut blockers) = (wildcard.clone(), Vec::new());
        // Start with the previous blockers, which usually still suffice. Each source then begins at a different
        // destination, so that sources do not all depend on the same one.
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
            if wildcard.intersection(&pair).is_nothing() {
                blockers.clear();
            }
            let less = left.intersection(&pair);
            if less != left {
                blockers.push(*destination);
                left = less;
            }
        }
        if !left.is_nothing() {
            blockers.clear();
        }
        self.wildcards.set_blockers(source, &before, &blockers);
        if let Some(group) = self.groups[egress].get_mut(&source) {
            group.blockers = blockers.into();
            group.is_limited = left != wildcard;
        }
        left
    }
}

/// The rules that accept flows between the two.
fn rules_with(direction: Direction, anchor: u32, partner: u32, known: GroupInputs<'_>) -> AcceptingRules {
    let (own, other) = (&known.workloads.slots[anchor], &known.workloads.slots[partner]);
    match direction {
        Direction::Ingress => accepting(other, own, known.classes),
        Direction::Egress => accepting(own, other, known.classes),
    }
}

/// Partners that may have an entry with the workload: those its rules name and, if rules allow something to everyone,
/// those whose own rules do too or name it, and those that a rule for everyone does not cover.
fn candidates(direction: Direction, anchor: u32, known: GroupInputs<'_>) -> BTreeSet<u32> {
    let GroupInputs { classes, workloads, matches } = known;
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

/// The ports between each governed workload and its partners. A partner whose own side allows everything has an entry
/// if its ports differ from the group's default, any other partner if there are ports at all.
#[derive(Debug, Clone, Default)]
struct Entries {
    entries: BTreeMap<(u32, u32), GroupEntry>,
    reverse: BTreeSet<(u32, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct GroupEntry {
    pair: PairPorts,
    /// The partner's nature when the entry was recorded: its own side allows everything, and its families.
    free: bool,
    families: FamilyBits,
}

impl Entries {
    fn get(&self, anchor: u32, partner: u32) -> Option<&GroupEntry> {
        self.entries.get(&(anchor, partner))
    }

    /// Returns the previous entry.
    fn set(&mut self, anchor: u32, partner: u32, entry: Option<GroupEntry>) -> Option<GroupEntry> {
        match entry {
            Some(entry) => {
                self.reverse.insert((partner, anchor));
                self.entries.insert((anchor, partner), entry)
            }
            None => {
                self.reverse.remove(&(partner, anchor));
                self.entries.remove(&(anchor, partner))
            }
        }
    }

    fn of(&self, anchor: u32) -> impl Iterator<Item = (u32, &GroupEntry)> {
        self.entries.range((anchor, 0)..=(anchor, u32::MAX)).map(|((_, partner), entry)| (*partner, entry))
    }

    /// The anchors that have an entry with the partner.
    fn with(&self, partner: u32) -> impl Iterator<Item = u32> {
        self.reverse.range((partner, 0)..=(partner, u32::MAX)).map(|(_, anchor)| *anchor)
    }

    fn len(&self) -> usize {
        self.entries.len()
    }
}
