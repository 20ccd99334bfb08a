//! Metrics of flow records, read at one moment of a scrape: started = ended + live + lost holds in each response.

use std::fmt;
use std::sync::Arc;

use delivery::DeliveryView;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::flows::{FlowFigures, FlowStore};

pub(super) struct FlowCollector(pub(super) Arc<FlowStore>);

impl fmt::Debug for FlowCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FlowCollector")
    }
}

impl Collector for FlowCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let FlowFigures {
            ledger,
            health,
            kept_since: _,
            records,
            ring_bytes,
            evicted_records,
            dropped_observations,
            folded_records,
            dropped_denials,
            delivery,
        } = self.0.figures();
        let counters = [
            ("flow_connections_started", "Connections of this node's pods in flow records", ledger.started),
            ("flow_connections_ended", "Connections whose end was reported", ledger.ended),
            ("flow_connections_lost", "Connections that are gone although no end was reported", ledger.lost),
            ("flow_connections_untracked", "Connections beyond the limit of tracked ones", ledger.untracked),
            ("flow_lost_events", "Conntrack events that the kernel dropped (ENOBUFS)", health.lost_events),
            (
                "flow_reliability_given_up",
                "Times that reliable delivery was given up, since connection tracking was nearly full",
                health.reliability_given_up,
            ),
            (
                "flow_dropped_denials",
                "Packets of drop events that are in no flow record, since the queue was full",
                dropped_denials,
            ),
            ("flow_evicted_records", "Flow records evicted before their hour was over", evicted_records),
            (
                "flow_dropped_observations",
                "Observations in no flow record, since a window has a limit of records",
                dropped_observations,
            ),
            (
                "flow_folded_records",
                "Flow records merged into one without a port, since their ends used many ports",
                folded_records,
            ),
        ];
        for (name, help, value) in counters {
            let metric = ConstCounter::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
        }
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let live = i64::try_from(ledger.live).unwrap_or(i64::MAX);
        let gauges = [
            ("flow_connections_live", "Connections that are open", live),
            ("flow_records", "Flow records of closed windows that are kept", number(records)),
            ("flow_ring_bytes", "Estimated memory of the flow records that are kept", number(ring_bytes)),
            (
                "flow_reliable",
                "1 while the kernel keeps ends of connections until they are delivered",
                i64::from(health.reliable),
            ),
        ];
        for (name, help, value) in gauges {
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        encode_delivery(&mut encoder, &delivery.unwrap_or_default())
    }
}

/// Metrics of the delivery to the aggregators.
fn encode_delivery(encoder: &mut DescriptorEncoder<'_>, delivery: &DeliveryView) -> Result<(), fmt::Error> {
    let DeliveryView { servers, sent, acknowledged, dropped, failures, failure } = delivery;
    let counters = [
        ("flow_delivery_sent_records", "Flow records in calls to aggregators that succeeded", *sent),
        (
            "flow_delivery_dropped_records",
            "Flow records that left the ring before an aggregator had acknowledged them, for each aggregator",
            *dropped,
        ),
        (
            "flow_delivery_failures",
            "Calls to aggregators that failed, and failed lookups of their addresses",
            *failures,
        ),
    ];
    for (name, help, value) in counters {
        ConstCounter::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Counter)?)?;
    }
    let acknowledged = i64::try_from(*acknowledged).unwrap_or(i64::MAX);
    let gauges = [
        (
            "flow_delivery_acknowledged_record",
            "Number of the last flow record of this agent that every aggregator has acknowledged",
            acknowledged,
        ),
        ("flow_delivery_failing", "1 while calls to an aggregator fail", i64::from(failure.is_some())),
        (
            "flow_delivery_servers",
            "Aggregators that flow records are sent to",
            i64::try_from(*servers).unwrap_or(i64::MAX),
        ),
    ];
    for (name, help, value) in gauges {
        ConstGauge::new(value).encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
    }
    Ok(())
}
