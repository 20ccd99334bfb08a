//! Metrics of namespace pairs: connections, bytes and denied packets of settled windows.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flow::{EdgeTotal, EdgeTotals, FlowFilters};
use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Unit;

use crate::aggregate::Aggregate;

/// Label value of the series that sums up all other pairs. Names of namespaces have no parentheses.
const OTHER: &str = "(other)";

/// Totals of the windows settled since the start.
pub(crate) struct EdgeMetrics(Mutex<EdgeTotals>);

impl EdgeMetrics {
    pub(crate) fn new(most: usize) -> Arc<EdgeMetrics> {
        Arc::new(EdgeMetrics(Mutex::new(EdgeTotals::new(most))))
    }

    fn totals(&self) -> MutexGuard<'_, EdgeTotals> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds each window once, when it is settled. Windows settled before the start are skipped: an earlier process
    /// counted them, and agents resend their records. Runs until the aggregate is dropped.
    pub(crate) async fn run(self: Arc<EdgeMetrics>, aggregate: Arc<Aggregate>) {
        let mut settled = aggregate.settled();
        let Ok(mut from) = settled.wait_for(|settled| *settled > Timestamp::MIN).await.map(|settled| *settled) else {
            return;
        };
        loop {
            let until = *settled.borrow_and_update();
            let (totals, source) = (self.clone(), aggregate.clone());
            let added = tokio::task::spawn_blocking(move || totals.add(&source, from, until)).await;
            if let Err(error) = added {
                tracing::error!("windows from {from} to {until} are not in the metrics of edges: {error}");
            }
            from = until;
            if settled.changed().await.is_err() {
                return;
            }
        }
    }

    fn add(&self, aggregate: &Aggregate, from: Timestamp, until: Timestamp) {
        let filters = FlowFilters::default();
        for window in aggregate.windows(&filters).into_iter().filter(|window| (from..until).contains(window)) {
            let records = aggregate.read(window, &filters);
            self.totals().add_window(window, &records);
        }
    }
}

/// One amount of a total.
type Amount = fn(&EdgeTotal) -> u64;

/// Collector of the series, which are encoded when scraped.
pub(crate) struct EdgeCollector(pub(crate) Arc<EdgeMetrics>);

impl fmt::Debug for EdgeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EdgeCollector")
    }
}

impl Collector for EdgeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let (shown, other) = {
            let totals = self.0.totals();
            (totals.shown(), totals.other())
        };
        let families: [(&str, &str, Option<Unit>, Amount); 3] = [
            ("edge_connections", "Connections that began, by namespaces", None, |total| total.connections),
            ("edge", "Bytes of connections both ways, by namespaces", Some(Unit::Bytes), |total| total.bytes),
            ("edge_denied_packets", "Packets denied, or would be, by namespaces", None, |total| total.denied_packets),
        ];
        for (name, help, unit, of) in families {
            let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Counter)?;
            for (pair, total) in &shown {
                let labels = [("source", &*pair.source), ("destination", &*pair.destination)];
                ConstCounter::new(of(total)).encode(family.encode_family(&labels)?)?;
            }
            let labels = [("source", OTHER), ("destination", OTHER)];
            ConstCounter::new(of(&other)).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::testing::{begin, push, window};

    #[test]
    fn settled_windows_are_added_once() {
        let aggregate = Aggregate::new(1 << 20);
        push(&aggregate, 1, &[(0, 80, 3), (1, 80, 5)], begin() + SignedDuration::from_secs(20));
        let metrics = EdgeMetrics::new(1);
        metrics.add(&aggregate, Timestamp::MIN, window(1));
        metrics.add(&aggregate, window(1), window(2));
        metrics.add(&aggregate, window(2), window(3));
        let totals = metrics.totals();
        let [(pair, total)] = &*totals.shown() else { panic!("one pair") };
        assert_eq!((&*pair.source, &*pair.destination, total.connections), ("shop", "shop", 5));
        assert_eq!(totals.other().connections, 3, "what it had before it had a series");
    }
}
