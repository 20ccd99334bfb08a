//! The addresses of names until they expire.
//!
//! Sans-I/O: callers pass the present time, and sleep until [`LearnedTable::next_expiry`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limit of the addresses of one name. The API asks implementations for 100.
pub(crate) const MOST_ADDRESSES_OF_NAME: usize = 256;

/// Limit of the addresses of all names: 2 MB of memory, and sets that the kernel copies within a few milliseconds.
pub(crate) const MOST_ADDRESSES: usize = 16_384;

/// Limit of the addresses of all names at which an address of a name that only a wildcard matches is refused. A pod can
/// query any number of such names; the rest of [`MOST_ADDRESSES`] is reserved for names that a policy contains in full.
pub(crate) const MOST_ADDRESSES_BELOW_WILDCARDS: usize = MOST_ADDRESSES / 4 * 3;

/// How a policy matches a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameMatch {
    InFull,
    ByWildcard,
}

impl NameMatch {
    /// Limit of the addresses of all names at which a new address of a name with this match is refused.
    fn room(self) -> usize {
        match self {
            NameMatch::InFull => MOST_ADDRESSES,
            NameMatch::ByWildcard => MOST_ADDRESSES_BELOW_WILDCARDS,
        }
    }
}

/// Bounds of the lifetime of a learned address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetimes {
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
}

impl Lifetimes {
    /// The lifetime of an address with this time to live.
    pub(crate) fn of(&self, ttl: u32) -> Duration {
        Duration::from_secs(ttl.into()).max(self.shortest).min(self.longest)
    }
}

/// Result of learning an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LearnOutcome {
    New,
    /// The address was known; its expiry is the later of the two.
    Known,
    /// A limit is reached; the address was not learned.
    NoRoom,
}

/// Each name's addresses, with the time at which they expire.
#[derive(Debug, Default)]
pub(crate) struct LearnedTable {
    names: BTreeMap<Arc<str>, BTreeMap<IpAddr, Instant>>,
    expiries: BTreeSet<(Instant, Arc<str>, IpAddr)>,
}

impl LearnedTable {
    pub(crate) fn learn(&mut self, name: &Arc<str>, address: IpAddr, until: Instant, of: NameMatch) -> LearnOutcome {
        if let Some(known) = self.names.get_mut(name).and_then(|addresses| addresses.get_mut(&address)) {
            let before = std::mem::replace(known, until.max(*known));
            let after = *known;
            if before != after {
                self.expiries.remove(&(before, name.clone(), address));
                self.expiries.insert((after, name.clone(), address));
            }
            return LearnOutcome::Known;
        }
        let of_name = self.names.get(name).map_or(0, BTreeMap::len);
        if of_name >= MOST_ADDRESSES_OF_NAME || self.expiries.len() >= of.room() {
            return LearnOutcome::NoRoom;
        }
        self.names.entry(name.clone()).or_default().insert(address, until);
        self.expiries.insert((until, name.clone(), address));
        LearnOutcome::New
    }

    /// Removes the addresses that have expired by now, and returns them.
    pub(crate) fn expire(&mut self, now: Instant) -> Vec<(Arc<str>, IpAddr)> {
        let mut expired = Vec::new();
        while let Some((until, ..)) = self.expiries.first()
            && *until <= now
            && let Some((_, name, address)) = self.expiries.pop_first()
        {
            self.remove(&name, address);
            expired.push((name, address));
        }
        expired
    }

    /// Removes the names for which `counts` returns false, and returns their addresses.
    pub(crate) fn retain(&mut self, counts: impl Fn(&str) -> bool) -> Vec<(Arc<str>, IpAddr)> {
        let gone = self.names.iter().filter(|(name, _)| !counts(name));
        let gone: Vec<(Arc<str>, IpAddr, Instant)> =
            gone.flat_map(|(name, of)| of.iter().map(|(address, until)| (name.clone(), *address, *until))).collect();
        for (name, address, until) in &gone {
            self.expiries.remove(&(*until, name.clone(), *address));
            self.remove(name, *address);
        }
        gone.into_iter().map(|(name, address, _)| (name, address)).collect()
    }

    fn remove(&mut self, name: &Arc<str>, address: IpAddr) {
        if let Some(addresses) = self.names.get_mut(name) {
            addresses.remove(&address);
            if addresses.is_empty() {
                self.names.remove(name);
            }
        }
    }

    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(until, ..)| *until)
    }

    pub(crate) fn names(&self) -> usize {
        self.names.len()
    }

    #[cfg(test)]
    pub(crate) fn addresses(&self) -> usize {
        self.expiries.len()
    }

    /// The addresses by name, with the time at which they expire.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, IpAddr, Instant)> {
        self.names.iter().flat_map(|(name, of)| of.iter().map(move |(address, until)| (name, *address, *until)))
    }
}

#[cfg(test)]
mod tests {
    use super::NameMatch::{ByWildcard, InFull};
    use super::*;

    fn address(number: usize) -> IpAddr {
        IpAddr::from([192, 0, (number / 256) as u8, (number % 256) as u8])
    }

    #[test]
    fn repeated_answer_extends_and_never_shortens() {
        let (mut table, now, name) = (LearnedTable::default(), Instant::now(), Arc::from("a.b"));
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(table.learn(&name, address(1), at(60), InFull), LearnOutcome::New);
        assert_eq!(table.learn(&name, address(1), at(30), InFull), LearnOutcome::Known);
        assert_eq!(table.next_expiry(), Some(at(60)));
        assert_eq!(table.learn(&name, address(1), at(90), InFull), LearnOutcome::Known);
        assert_eq!((table.next_expiry(), table.addresses()), (Some(at(90)), 1));
        assert_eq!(table.expire(at(89)), []);
        assert_eq!(table.expire(at(90)), [(name, address(1))]);
        assert_eq!((table.next_expiry(), table.names(), table.addresses()), (None, 0, 0));
    }

    #[test]
    fn addresses_are_bounded_per_name_and_in_total() {
        let (mut table, until) = (LearnedTable::default(), Instant::now());
        let mut learned = 0;
        for name in 0..100 {
            let name: Arc<str> = format!("n{name}.example.org").into();
            let mut learn = |number, of| table.learn(&name, address(number), until, of) == LearnOutcome::New;
            let new = (0..300).filter(|number| learn(*number, ByWildcard)).count();
            assert!(new <= MOST_ADDRESSES_OF_NAME);
            learned += new;
        }
        assert_eq!((learned, table.addresses()), (MOST_ADDRESSES_BELOW_WILDCARDS, MOST_ADDRESSES_BELOW_WILDCARDS));
        for name in 100..200 {
            let name: Arc<str> = format!("n{name}.example.org").into();
            let mut learn = |number| table.learn(&name, address(number), until, InFull) == LearnOutcome::New;
            learned += (0..300).filter(|number| learn(*number)).count();
        }
        assert_eq!((learned, table.addresses()), (MOST_ADDRESSES, MOST_ADDRESSES));
        assert_eq!(table.iter().count(), MOST_ADDRESSES);
        let gone = table.retain(|name| name == "n0.example.org").len();
        assert_eq!((gone, table.addresses()), (MOST_ADDRESSES - MOST_ADDRESSES_OF_NAME, MOST_ADDRESSES_OF_NAME));
    }

    #[test]
    fn lifetimes_have_floor_and_ceiling() {
        let lifetimes = Lifetimes { shortest: Duration::from_secs(60), longest: Duration::from_secs(3600) };
        let seconds = |ttl| lifetimes.of(ttl).as_secs();
        assert_eq!([0, 60, 61, 3600, u32::MAX].map(seconds), [60, 60, 61, 3600, 3600]);
    }
}
