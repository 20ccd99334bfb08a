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
use crate::window_cursor::WindowCursor;

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
        let Ok(start) = settled.wait_for(|settled| *settled > Timestamp::MIN).await.map(|settled| *settled) else {
            return;
        };
        let mut cursor = WindowCursor::new(start, None);
        loop {
            let until = *settled.borrow_and_update();
            let windows = cursor.advance(until, aggregate.windows(&FlowFilters::default()));
            let (totals, source) = (self.clone(), aggregate.clone());
            let added = tokio::task::spawn_blocking(move || totals.add(&source, &windows)).await;
            if let Err(error) = added {
                tracing::error!("windows before {until} are not in the metrics of edges: {error}");
            }
            if settled.changed().await.is_err() {
                return;
            }
        }
    }

    fn add(&self, aggregate: &Aggregate, windows: &[Timestamp]) {
        for window in windows {
            let records = aggregate.read(*window, &FlowFilters::default());
            self.totals().add_window(*window, &records);
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
            ("edge_connections", "Connections started, by namespaces of source and destination", None, |total| {
                total.connections
            }),
            (
                "edge",
                "Bytes of connections in both directions, by namespaces of source and destination",
                Some(Unit::Bytes),
                |total| total.bytes,
            ),
            (
                "edge_denied_packets",
                "Packets that were denied or that audited policies would deny, by namespaces of source and destination",
                None,
                |total| total.denied_packets,
            ),
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

    #[tokio::test]
    async fn settled_windows_are_added_once() {
        let aggregate = Arc::new(Aggregate::new(1 << 20));
        let now = |seconds| begin() + SignedDuration::from_secs(seconds);
        aggregate.advance_watermark(begin());
        let metrics = EdgeMetrics::new(1);
        let running = tokio::spawn(metrics.clone().run(aggregate.clone()));
        // The task begins with the windows that are settled now.
        tokio::task::yield_now().await;
        let counted = || {
            let totals = metrics.totals();
            let shown: u64 = totals.shown().iter().map(|(_, total)| total.connections).sum();
            shown + totals.other().connections
        };
        let added = async |connections: u64| {
            while counted() < connections {
                tokio::task::yield_now().await;
            }
        };
        push(&aggregate, 1, &[(0, 80, 3), (1, 80, 5)], now(20));
        aggregate.advance_watermark(now(75));
        added(8).await;
        // Windows before 45 s are settled. The clock is ahead, and is set back.
        push(&aggregate, 3, &[(3, 80, 7)], now(50));
        aggregate.advance_watermark(now(86_400));
        added(15).await;
        aggregate.advance_watermark(now(50));
        push(&aggregate, 4, &[(4, 80, 1)], now(65));
        aggregate.advance_watermark(now(105));
        added(16).await;
        running.abort();
        assert_eq!(counted(), 16);
    }

    #[test]
    fn pairs_beyond_the_bound_are_summed_up() {
        let aggregate = Aggregate::new(1 << 20);
        push(&aggregate, 1, &[(0, 80, 3), (1, 80, 5)], begin() + SignedDuration::from_secs(20));
        let metrics = EdgeMetrics::new(1);
        metrics.add(&aggregate, &[window(0)]);
        metrics.add(&aggregate, &[window(1)]);
        let totals = metrics.totals();
        let [(pair, total)] = &*totals.shown() else { panic!("one pair") };
        assert_eq!((&*pair.source, &*pair.destination, total.connections), ("shop", "shop", 5));
        assert_eq!(totals.other().connections, 3, "what it had before it had a series");
    }
}
