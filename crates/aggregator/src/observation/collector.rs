//! Metrics of observed edges.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use insight::FirstSeen;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use super::Observation;

/// Limit of namespaces with their own series; events of other namespaces are counted as `_other`.
const MOST_NAMESPACES: usize = 1_000;

/// Label of an event without a namespace at either end.
const NO_NAMESPACE: &str = "-";

/// First-seen events since the start, by namespace.
#[derive(Debug)]
pub(super) struct EventCounts(Mutex<BTreeMap<Arc<str>, u64>>);

/// Contains the series without a namespace from the start, so that the metric exists before the first event.
impl Default for EventCounts {
    fn default() -> EventCounts {
        EventCounts(Mutex::new([(NO_NAMESPACE.into(), 0)].into()))
    }
}

impl EventCounts {
    /// Counts an event for the namespace of its source, or that of its destination.
    pub(super) fn count(&self, event: &FirstSeen) {
        let key = &event.joined.record.key;
        let namespace = key.source.namespace.as_ref().or(key.destination.namespace.as_ref());
        let namespace = namespace.map_or_else(|| NO_NAMESPACE.into(), Arc::clone);
        let mut counts = self.counts();
        let is_full = counts.len() >= MOST_NAMESPACES && !counts.contains_key(&namespace);
        *counts.entry(if is_full { "_other".into() } else { namespace }).or_insert(0) += 1;
    }

    fn counts(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct ObservationCollector(pub(crate) Arc<Observation>);

impl fmt::Debug for ObservationCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObservationCollector")
    }
}

impl Collector for ObservationCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let counts = self.0.core().ledger.counts();
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let gauges = [
            ("observed_edges", "Edges that were observed within the retention", None, number(counts.edges)),
            (
                "observed_edges_memory",
                "Estimated memory of the observed edges",
                Some(Unit::Bytes),
                number(counts.bytes),
            ),
        ];
        for (name, help, unit, value) in gauges {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?)?;
        }
        let counters = [
            (
                "observed_edges_left_out_records",
                "Flow records of new edges that were left out for lack of memory",
                counts.left_out_records,
            ),
            (
                "first_seen_left_out",
                "First-seen events that were not reported, because too many occurred at once",
                counts.left_out_events,
            ),
        ];
        for (name, help, value) in counters {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        let help = "Edges that were seen for the first time after the learning period, by namespace of the source";
        let mut first_seen = encoder.encode_descriptor("first_seen_edges", help, None, MetricType::Counter)?;
        for (namespace, count) in &*self.0.events.counts() {
            let labels = [("namespace", &**namespace)];
            ConstCounter::new(*count).encode(first_seen.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
