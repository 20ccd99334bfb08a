//! Exact totals of denied packets, from the counters of the chains that deny.

use std::collections::BTreeMap;

use nft::{Name, Table};
use policy::{Cause, Judgement};

/// Verdict and cause of a counter.
pub(crate) type CounterKind = (Judgement, Cause);

/// Value of a counter.
#[derive(Debug, Clone)]
pub(super) struct CounterValue {
    pub(super) table: Table,
    pub(super) chain: Name,
    pub(super) kind: CounterKind,
    pub(super) packets: u64,
}

#[derive(Debug)]
pub(super) struct CounterTotals {
    /// Last values, by table and chain.
    counters: BTreeMap<(Table, Name), u64>,
    sums: BTreeMap<CounterKind, u64>,
}

impl CounterTotals {
    /// Starts from these values: they were denied before the agent started.
    pub(super) fn from(readings: &[CounterValue]) -> CounterTotals {
        let counters = readings.iter().map(|r| ((r.table.clone(), r.chain.clone()), r.packets)).collect();
        CounterTotals { counters, sums: BTreeMap::new() }
    }

    /// Records the counters and returns the growth of each kind. A counter that decreased was recreated and counts from
    /// zero.
    pub(super) fn record(&mut self, readings: &[CounterValue]) -> BTreeMap<CounterKind, u64> {
        let mut grown: BTreeMap<CounterKind, u64> = BTreeMap::new();
        let before = std::mem::take(&mut self.counters);
        for CounterValue { table, chain, kind, packets } in readings {
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
        grown
    }

    /// Packets of the kind since the agent started.
    pub(super) fn sum(&self, kind: CounterKind) -> u64 {
        self.sums.get(&kind).copied().unwrap_or(0)
    }

    /// Packets of all kinds since the agent started.
    pub(super) fn sum_of_all(&self) -> u64 {
        self.sums.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: CounterKind = (Judgement::Denied, Cause::Ingress);

    fn reading(packets: u64) -> CounterValue {
        let name = |text| Name::new(text).unwrap();
        CounterValue { table: Table::inet(name("ringfence")), chain: name("deny/ingress"), kind: KIND, packets }
    }

    #[test]
    fn reset_or_missing_counters_count_from_zero() {
        let mut totals = CounterTotals::from(&[reading(100)]);
        for (readings, sum) in
            [(vec![reading(103)], 3), (vec![reading(2)], 5), (vec![], 5), (vec![reading(4)], 9), (vec![reading(4)], 9)]
        {
            totals.record(&readings);
            assert_eq!(totals.sum(KIND), sum);
        }
        assert_eq!(totals.sum((Judgement::WouldDeny, Cause::Ingress)), 0);
    }

    #[test]
    fn counters_of_both_tables_are_summed_per_cause() {
        let mut totals = CounterTotals::from(&[]);
        let bridge = CounterValue { table: Table::bridge(Name::new("ringfence").unwrap()), ..reading(4) };
        assert_eq!(totals.record(&[reading(3), bridge]), BTreeMap::from([(KIND, 7)]));
        assert_eq!(totals.sum_of_all(), 7);
    }
}
