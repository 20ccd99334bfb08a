//! Dense numbers of security identities: a function of the set of identities, so that no coordination between replicas
//! is needed (docs/identity.md).
//!
//! Nearly every identity has its home number, which follows from the identity alone. This module tracks the exceptions:
//! identities whose home belongs to another.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ::identity::{Sid, Space};

/// How long a removed identity reserves its number if another could get it: longer than the lag of any consumer.
pub const REST: Duration = Duration::from_secs(30 * 60);

/// Present and resting identities, and the exceptions among them.
#[derive(Debug, Clone)]
pub struct Numbers {
    space: Space,
    /// Present and resting identities by home. The first of a home has it.
    homes: BTreeSet<(u32, Sid)>,
    /// Homes of several identities.
    contested: BTreeSet<u32>,
    /// The ledger: numbers of the identities without their home, `None` if no number is free.
    exceptions: BTreeMap<Sid, Option<u32>>,
    /// Number of changes of the ledger.
    revision: u64,
    /// Numbers that were tried for exceptions, whether free or not.
    wanted: BTreeSet<u32>,
    resting: BTreeMap<Sid, Instant>,
    ends: BTreeSet<(Instant, Sid)>,
}

impl Numbers {
    pub fn new(space: Space) -> Numbers {
        Numbers {
            space,
            homes: BTreeSet::new(),
            contested: BTreeSet::new(),
            exceptions: BTreeMap::new(),
            revision: 0,
            wanted: BTreeSet::new(),
            resting: BTreeMap::new(),
            ends: BTreeSet::new(),
        }
    }

    /// Adds an identity. Returns the other identities whose number has changed.
    pub fn add(&mut self, sid: Sid) -> Vec<Sid> {
        if let Some(end) = self.resting.remove(&sid) {
            self.ends.remove(&(end, sid));
        }
        let home = self.space.home(sid);
        if !self.homes.insert((home, sid)) || !self.matters(home, sid) {
            return vec![];
        }
        if self.at(home).nth(1).is_some() {
            self.contested.insert(home);
        }
        let mut changed = self.decide();
        changed.retain(|other| *other != sid);
        changed
    }

    /// Removes an identity. Its number rests for a while if another identity could get it.
    pub fn remove(&mut self, sid: Sid, now: Instant) {
        let home = self.space.home(sid);
        if self.matters(home, sid) {
            let end = now + REST;
            if let Some(before) = self.resting.insert(sid, end) {
                self.ends.remove(&(before, sid));
            }
            self.ends.insert((end, sid));
        } else {
            self.homes.remove(&(home, sid));
        }
    }

    /// Releases the numbers whose rest has expired. Returns the identities whose number has changed.
    pub fn expire(&mut self, now: Instant) -> Vec<Sid> {
        let mut over = Vec::new();
        while let Some((_, sid)) = self.ends.first().filter(|(end, _)| *end <= now).copied() {
            self.ends.pop_first();
            self.resting.remove(&sid);
            let home = self.space.home(sid);
            self.homes.remove(&(home, sid));
            if self.at(home).nth(1).is_none() {
                self.contested.remove(&home);
            }
            over.push(sid);
        }
        if over.is_empty() {
            return vec![];
        }
        let mut changed = self.decide();
        changed.retain(|sid| !over.contains(sid));
        changed
    }

    /// The time of the next expiry.
    pub fn next_expiry(&self) -> Option<Instant> {
        self.ends.first().map(|(end, _)| *end)
    }

    /// The number of a present identity. `None` if there are more identities than numbers.
    pub fn number(&self, sid: Sid) -> Option<u32> {
        self.exceptions.get(&sid).copied().unwrap_or_else(|| Some(self.space.home(sid)))
    }

    /// Every identity, present or resting, whose number is not its home.
    pub fn exceptions(&self) -> impl Iterator<Item = (Sid, Option<u32>)> {
        self.exceptions.iter().map(|(sid, number)| (*sid, *number))
    }

    /// Changes whenever the exceptions change.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    pub fn is_resting(&self, sid: Sid) -> bool {
        self.resting.contains_key(&sid)
    }

    /// Whether the number of another identity could depend on the presence of this one.
    fn matters(&self, home: u32, sid: Sid) -> bool {
        self.exceptions.contains_key(&sid) || self.wanted.contains(&home) || self.at(home).any(|other| other != sid)
    }

    /// The identities with this home.
    fn at(&self, home: u32) -> impl Iterator<Item = Sid> {
        self.homes.range((home, Sid(0))..=(home, Sid(u64::MAX))).map(|(_, sid)| *sid)
    }

    /// Recomputes all exceptions: they are few (0.7 at 5,000 identities, 300 at 100,000), and each number depends on
    /// those before it. Returns the identities whose number has changed.
    fn decide(&mut self) -> Vec<Sid> {
        let displaced: BTreeSet<Sid> = self.contested.iter().flat_map(|home| self.at(*home).skip(1)).collect();
        let before = std::mem::take(&mut self.exceptions);
        self.wanted.clear();
        let mut taken = BTreeSet::new();
        for sid in &displaced {
            let number = self.space.attempts(*sid).find(|number| {
                self.wanted.insert(*number);
                !taken.contains(number) && self.at(*number).next().is_none()
            });
            taken.extend(number);
            self.exceptions.insert(*sid, number);
        }
        self.revision += u64::from(before != self.exceptions);
        let concerned: BTreeSet<Sid> = before.keys().chain(&displaced).copied().collect();
        concerned.into_iter().filter(|sid| before.get(sid) != self.exceptions.get(sid)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The algorithm of the document, step by step, for a whole set.
    fn from_scratch(space: Space, sids: &BTreeSet<Sid>) -> BTreeMap<Sid, Option<u32>> {
        let mut numbers: BTreeMap<u32, Sid> = BTreeMap::new();
        for sid in sids {
            numbers.entry(space.home(*sid)).or_insert(*sid);
        }
        for sid in sids {
            if numbers[&space.home(*sid)] != *sid
                && let Some(number) = space.attempts(*sid).find(|number| !numbers.contains_key(number))
            {
                numbers.insert(number, *sid);
            }
        }
        let of: BTreeMap<Sid, u32> = numbers.into_iter().map(|(number, sid)| (sid, number)).collect();
        sids.iter().map(|sid| (*sid, of.get(sid).copied())).collect()
    }

    #[derive(Debug, Clone)]
    enum Event {
        Add(u64),
        Remove(u64),
        Minutes(u64),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let event = prop_oneof![
            4 => (0..40u64).prop_map(Event::Add),
            3 => (0..40u64).prop_map(Event::Remove),
            1 => (0..40u64).prop_map(Event::Minutes),
        ];
        prop::collection::vec(event, 0..60)
    }

    proptest! {
        #[test]
        fn numbers_depend_on_identity_set_not_event_order(
            events in events(), size in 1..60u32, spread in prop_oneof![Just(1u64), Just(0x9e37_79b9_7f4a_7c15)]
        ) {
            let space = Space::small(size);
            let sid = |n: u64| Sid(n.wrapping_mul(spread));
            let mut now = Instant::now();
            let mut numbers = Numbers::new(space);
            let mut present = BTreeSet::new();
            let mut published: BTreeMap<Sid, Option<u32>> = BTreeMap::new();
            for event in events {
                let mut changed = match event {
                    Event::Add(n) => {
                        let changed = numbers.add(sid(n));
                        if present.insert(sid(n)) { [vec![sid(n)], changed].concat() } else { changed }
                    }
                    Event::Remove(n) => {
                        if present.remove(&sid(n)) {
                            numbers.remove(sid(n), now);
                        }
                        vec![]
                    }
                    Event::Minutes(n) => {
                        now += Duration::from_secs(n * 60);
                        numbers.expire(now)
                    }
                };
                changed.retain(|sid| present.contains(sid));
                published.retain(|sid, _| present.contains(sid));
                published.extend(changed.iter().map(|sid| (*sid, numbers.number(*sid))));

                let counted: BTreeSet<Sid> = present.iter().chain(numbers.resting.keys()).copied().collect();
                let mut expected = from_scratch(space, &counted);
                let given: BTreeSet<u32> = expected.values().flatten().copied().collect();
                prop_assert_eq!(given.len(), expected.values().flatten().count(), "numbers are distinct");
                prop_assert_eq!(given.len(), counted.len().min(size as usize), "and given as far as there are any");
                prop_assert!(given.iter().all(|number| (256..256 + size).contains(number)), "and none is reserved");
                expected.retain(|sid, _| present.contains(sid));
                prop_assert_eq!(&published, &expected, "the published changes yield all numbers");
            }
            numbers.expire(now + REST);
            prop_assert_eq!(numbers.next_expiry(), None);
            let now_there: BTreeMap<Sid, Option<u32>> = present.iter().map(|s| (*s, numbers.number(*s))).collect();
            prop_assert_eq!(now_there, from_scratch(space, &present));
            let mut fresh = Numbers::new(space);
            for sid in present.iter().rev() {
                fresh.add(*sid);
            }
            prop_assert!(fresh.exceptions().eq(numbers.exceptions()));
            prop_assert_eq!((&fresh.homes, &fresh.contested), (&numbers.homes, &numbers.contested));
        }
    }

    /// Three with the same home in a space of ten, in order.
    const RIVALS: [Sid; 3] = [Sid(3), Sid(13), Sid(23)];

    #[test]
    fn smallest_sid_takes_home_and_rivals_are_exceptions() {
        let space = Space::small(10);
        let mut numbers = Numbers::new(space);
        assert_eq!(numbers.add(RIVALS[1]), []);
        assert_eq!((numbers.number(RIVALS[1]), numbers.exceptions().count()), (Some(259), 0));
        assert_eq!(numbers.add(RIVALS[0]), [RIVALS[1]]);
        assert_eq!(numbers.number(RIVALS[0]), Some(259));
        numbers.add(RIVALS[2]);
        assert_eq!(numbers.exceptions().map(|(sid, _)| sid).collect::<Vec<_>>(), RIVALS[1..]);
    }

    #[test]
    fn freed_contested_number_rests_before_reuse() {
        for gone in RIVALS {
            let mut numbers = Numbers::new(Space::small(10));
            RIVALS.iter().for_each(|sid| drop(numbers.add(*sid)));
            let before = RIVALS.map(|sid| numbers.number(sid));
            let start = Instant::now();
            numbers.remove(gone, start);
            assert!(numbers.is_resting(gone));
            assert_eq!(numbers.next_expiry(), Some(start + REST));
            assert_eq!(numbers.expire(start + REST - Duration::from_secs(1)), []);
            assert_eq!(RIVALS.map(|sid| numbers.number(sid)), before, "while {gone} rests");
            // It gets its old number again.
            assert_eq!(numbers.add(gone), []);
            assert_eq!(numbers.number(gone), before[(gone.0 / 10) as usize]);
            numbers.remove(gone, start);
            numbers.expire(start + REST);
            assert!(!numbers.is_resting(gone));
            let left: BTreeSet<Sid> = RIVALS.into_iter().filter(|sid| *sid != gone).collect();
            let now_there: BTreeMap<Sid, Option<u32>> = left.iter().map(|s| (*s, numbers.number(*s))).collect();
            assert_eq!(now_there, from_scratch(Space::small(10), &left));
        }
    }

    #[test]
    fn uncontested_identity_leaves_no_state_after_removal() {
        let mut numbers = Numbers::new(Space::STANDARD);
        for n in 0..10_000 {
            numbers.add(Sid(n << 40));
            numbers.remove(Sid(n << 40), Instant::now());
        }
        assert!(numbers.homes.is_empty() && numbers.next_expiry().is_none());
    }

    #[test]
    fn identity_without_free_number_has_none() {
        let mut numbers = Numbers::new(Space::small(2));
        RIVALS.iter().for_each(|sid| drop(numbers.add(*sid)));
        let given = RIVALS.map(|sid| numbers.number(sid));
        assert_eq!((given[0], given[2]), (Some(257), None), "{given:?}");
    }
}
