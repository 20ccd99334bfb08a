//! Exact sums of denied packets, out of the counters of the chains that deny.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use nft::{Name, Table};
use policy::{Cause, Judgement};

/// Rates are over so long.
const RATED: Duration = Duration::from_secs(60);

/// What a counter stands for.
pub(crate) type Kind = (Judgement, Cause);

/// A counter as it was read.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pub(super) table: Table,
    pub(super) chain: Name,
    pub(super) kind: Kind,
    pub(super) packets: u64,
}

#[derive(Debug)]
pub(super) struct Totals {
    /// By table and chain, as read last.
    counters: BTreeMap<(Table, Name), u64>,
    sums: BTreeMap<Kind, u64>,
    /// The sums at each read of the last minute, and one before it.
    past: VecDeque<(Instant, BTreeMap<Kind, u64>)>,
}

impl Totals {
    /// Counts from these counters on: what they hold was denied before the agent came.
    pub(super) fn from(readings: &[Reading], now: Instant) -> Totals {
        let counters = readings.iter().map(|r| ((r.table.clone(), r.chain.clone()), r.packets)).collect();
        Totals { counters, sums: BTreeMap::new(), past: VecDeque::from([(now, BTreeMap::new())]) }
    }

    /// Takes the counters in; gives what each kind grew by. A counter that went back was made anew, and counts from
    /// zero.
    pub(super) fn take(&mut self, readings: &[Reading], now: Instant) -> BTreeMap<Kind, u64> {
        let mut grown: BTreeMap<Kind, u64> = BTreeMap::new();
        let before = std::mem::take(&mut self.counters);
        for Reading { table, chain, kind, packets } in readings {
            let key = (table.clone(), chain.clone());
            let known = before.get(&key).copied().filter(|known| known <= packets).unwrap_or(0);
            if *packets > known {
                *grown.entry(*kind).or_insert(0) += packets - known;
            }
            self.counters.insert(key, *packets);
        }
        for (kind, packets) in &grown {
            *self.sums.entry(*kind).or_insert(0) += packets;
        }
        self.past.push_back((now, self.sums.clone()));
        while self.past.get(1).is_some_and(|(at, _)| now.saturating_duration_since(*at) >= RATED) {
            self.past.pop_front();
        }
        grown
    }

    /// Since the agent came.
    pub(super) fn sum(&self, judgement: Judgement) -> u64 {
        sum(&self.sums, judgement)
    }

    /// Packets a minute, over the last minute or since the agent came.
    pub(super) fn per_minute(&self, judgement: Judgement) -> f64 {
        let (Some((from, then)), Some((to, now))) = (self.past.front(), self.past.back()) else { return 0.0 };
        let seconds = to.saturating_duration_since(*from).as_secs_f64();
        let packets = sum(now, judgement) - sum(then, judgement);
        if seconds > 0.0 { packets as f64 * 60.0 / seconds } else { 0.0 }
    }
}

fn sum(sums: &BTreeMap<Kind, u64>, judgement: Judgement) -> u64 {
    sums.iter().filter(|((of, _), _)| *of == judgement).map(|(_, packets)| packets).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = (Judgement::Denied, Cause::Ingress);

    fn reading(packets: u64) -> Reading {
        let name = |text| Name::new(text).unwrap();
        Reading { table: Table::inet(name("ringfence")), chain: name("deny/ingress"), kind: KIND, packets }
    }

    #[test]
    fn counters_that_went_back_or_went_count_from_zero() {
        let now = Instant::now();
        let mut totals = Totals::from(&[reading(100)], now);
        for (readings, sum) in
            [(vec![reading(103)], 3), (vec![reading(2)], 5), (vec![], 5), (vec![reading(4)], 9), (vec![reading(4)], 9)]
        {
            totals.take(&readings, now);
            assert_eq!(totals.sum(Judgement::Denied), sum);
        }
        assert_eq!(totals.sum(Judgement::WouldDeny), 0);
    }

    #[test]
    fn counters_of_the_same_cause_in_both_tables_are_one_sum() {
        let now = Instant::now();
        let mut totals = Totals::from(&[], now);
        let bridge = Reading { table: Table::bridge(Name::new("ringfence").unwrap()), ..reading(4) };
        assert_eq!(totals.take(&[reading(3), bridge], now), BTreeMap::from([(KIND, 7)]));
    }

    #[test]
    fn the_rate_is_that_of_the_last_minute() {
        let start = Instant::now();
        let mut totals = Totals::from(&[], start);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        totals.take(&[reading(10)], at(30));
        assert_eq!(totals.per_minute(Judgement::Denied), 20.0);
        for seconds in (35..=300).step_by(5) {
            totals.take(&[reading(10)], at(seconds));
        }
        assert_eq!(totals.per_minute(Judgement::Denied), 0.0);
        totals.take(&[reading(16)], at(305));
        assert_eq!(totals.per_minute(Judgement::Denied), 6.0);
    }
}
