//! Metrics of the history of records.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::{Seconds, number};
use crate::history::{Clock, HistoryUsage};

#[derive(Debug, Default)]
pub(super) struct HistoryFigures {
    oldest: Seconds,
    changes: Gauge,
    bytes: Gauge,
    evicted: Counter,
}

impl HistoryFigures {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register_with_unit(
            "history_oldest_timestamp",
            "Oldest moment that a lookup can ask for, since 1970; NaN before the first table and without a history",
            Unit::Seconds,
            self.oldest.clone(),
        );
        registry.register("history_changes", "Changes of records in the history", self.changes.clone());
        registry.register_with_unit(
            "history",
            "Estimated memory of the history of records",
            Unit::Bytes,
            self.bytes.clone(),
        );
        registry.register(
            "history_evictions",
            "Changes evicted from the history before they were too old, because it was full",
            self.evicted.clone(),
        );
    }

    pub(super) fn evicted(&self, changes: usize) {
        self.evicted.inc_by(changes as u64);
    }

    pub(super) fn set(&self, usage: Option<HistoryUsage>, clock: Clock) {
        let seconds = |usage: HistoryUsage| clock.time_of(usage.oldest).as_millisecond() as f64 / 1e3;
        self.oldest.set(usage.map_or(f64::NAN, seconds));
        self.changes.set(number(usage.map_or(0, |usage| usage.changes)));
        self.bytes.set(number(usage.map_or(0, |usage| usage.bytes)));
    }
}
