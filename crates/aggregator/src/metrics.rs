//! Metrics in OpenMetrics text (docs/metrics.md). Metrics of records are read from one snapshot at each scrape.

use std::fmt;
use std::sync::Arc;

use access::AccessFigures;
use flow::RefusedRecord;
use jiff::Timestamp;
use listener::{exposition, program_registry};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::{Registry, Unit};

use crate::aggregate::Aggregate;
use crate::export::{ExportCollector, Exports};
use crate::report::CoverageReport;

pub(crate) struct Metrics {
    registry: Registry,
    access: AccessFigures,
    refused_connections: Counter,
    queries: Counter,
    refused_queries: Counter,
    streams: Gauge,
    refused_streams: Counter,
    cut_streams: Counter,
}

impl Metrics {
    pub(crate) fn new(aggregate: Arc<Aggregate>, exports: Arc<Exports>) -> Metrics {
        let mut root = Registry::default();
        let registry = program_registry(&mut root, "ringfence_flows", "aggregator", env!("CARGO_PKG_VERSION"));
        let (refused_connections, queries, refused_queries) =
            (Counter::default(), Counter::default(), Counter::default());
        registry.register(
            "refused_connections",
            "Connections closed because too many were open",
            refused_connections.clone(),
        );
        registry.register("queries", "Queries of flow records", queries.clone());
        registry.register(
            "refused_queries",
            "Queries refused because too many were under way",
            refused_queries.clone(),
        );
        let (streams, refused_streams, cut_streams) = (Gauge::default(), Counter::default(), Counter::default());
        registry.register("streams", "Streams of flow records that are open", streams.clone());
        registry.register("refused_streams", "Streams refused because too many were open", refused_streams.clone());
        registry.register("cut_streams", "Streams closed because their reader was too slow", cut_streams.clone());
        let access = AccessFigures::default();
        access.register(registry);
        registry.register_collector(Box::new(RecordCollector(aggregate)));
        registry.register_collector(Box::new(ExportCollector(exports)));
        Metrics {
            registry: root,
            access,
            refused_connections,
            queries,
            refused_queries,
            streams,
            refused_streams,
            cut_streams,
        }
    }

    /// Registers a collector, which is read at each scrape.
    pub(crate) fn add_collector(&mut self, collector: Box<dyn Collector>) {
        self.registry.sub_registry_with_prefix("ringfence_flows").register_collector(collector);
    }

    pub(crate) fn access_figures(&self) -> AccessFigures {
        self.access.clone()
    }

    pub(crate) fn refuse_connection(&self) {
        self.refused_connections.inc();
    }

    pub(crate) fn query(&self) {
        self.queries.inc();
    }

    pub(crate) fn refuse_query(&self) {
        self.refused_queries.inc();
    }

    /// Counts a stream until the value is dropped.
    pub(crate) fn open_stream(&self) -> OpenStream {
        self.streams.inc();
        OpenStream(self.streams.clone())
    }

    pub(crate) fn refuse_stream(&self) {
        self.refused_streams.inc();
    }

    pub(crate) fn cut_stream(&self) {
        self.cut_streams.inc();
    }

    pub(crate) fn text(&self) -> Result<String, fmt::Error> {
        exposition(&self.registry)
    }
}

/// A stream that is open.
pub(crate) struct OpenStream(Gauge);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct RecordCollector(Arc<Aggregate>);

impl fmt::Debug for RecordCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordCollector")
    }
}

impl Collector for RecordCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let figures = self.0.figures();
        let now = Timestamp::now();
        let silent = CoverageReport::new(&figures, now, now).silent_nodes();
        let counters = [
            ("received_records", "Flow records received from agents, each once", figures.inbox.received),
            ("repeated_records", "Flow records received again, which are ignored", figures.inbox.repeated),
            (
                "missed_records",
                "Flow records never received: they left the agent's ring, or the agent ended before it sent them",
                figures.inbox.missed,
            ),
            (
                "evicted_records",
                "Flow records evicted before their hour was over, for lack of memory",
                figures.store.left_by_bytes,
            ),
            ("late_records", "Flow records received after their window had settled", figures.late),
            (
                "refused_batches",
                "Batches refused: of another node than the sender's, or of too many nodes",
                figures.refused_batches,
            ),
        ];
        for (name, help, value) in counters {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        let help = "Flow records received and not stored, by reason";
        let mut refused = encoder.encode_descriptor("refused_records", help, None, MetricType::Counter)?;
        let reasons = RefusedRecord::ALL.map(|why| (why.as_str(), figures.refused.get(&why).copied().unwrap_or(0)));
        for (reason, value) in reasons.into_iter().chain([("undecodable", figures.undecodable)]) {
            ConstCounter::new(value).encode(refused.encode_family(&[("reason", reason)])?)?;
        }
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let behind = figures.nodes.iter().map(|node| node.behind).sum::<u64>();
        let gauges = [
            ("records", "Flow records in memory", None, number(figures.records)),
            ("windows", "Windows of 15 s with flow records", None, number(figures.windows)),
            ("memory", "Estimated memory of the flow records", Some(Unit::Bytes), number(figures.bytes)),
            (
                "joined_memory",
                "Estimated memory of joined records that queries have cached",
                Some(Unit::Bytes),
                number(figures.joined_bytes),
            ),
            ("nodes", "Nodes that have sent records in the last two hours", None, number(figures.nodes.len())),
            ("silent_nodes", "Nodes of ringfence_flows_nodes that have sent no records for 90 s", None, number(silent)),
            (
                "unsent_records",
                "Flow records that agents had still to send at the time of their last batch",
                None,
                i64::try_from(behind).unwrap_or(i64::MAX),
            ),
        ];
        for (name, help, unit, value) in gauges {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, unit.as_ref(), MetricType::Gauge)?)?;
        }
        Ok(())
    }
}
