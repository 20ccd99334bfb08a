//! The body of OTLP/HTTP `POST /v1/metrics`: bytes of each edge as a monotonic sum.
//!
//! As in OpenTelemetry's eBPF instrumentation, `src` sends the bytes and `dst` receives them, so that an edge has two
//! series: the requests of its client and the responses to it.
//!
//! Sums are cumulative. A lost point is contained in the next one, a repeated one changes nothing, and late records
//! are part of the next point, where deltas would need points in the past, which receivers drop.

use std::collections::BTreeMap;

use flow::Endpoint;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{end, number, scope, text, transport};
use crate::loki::{SERVICE_NAME, gzip};
use crate::window_lines::TrailRecord;

/// Request path.
pub const METRICS_PATH: &str = "/v1/metrics";

/// Name of the metric.
pub const METRIC: &str = "ringfence.network.flow.bytes";

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`
const CUMULATIVE: u8 = 2;

/// Attribute of the series of all edges beyond the bound, as in OpenTelemetry's SDKs.
const OVERFLOW: &str = "otel.metric.overflow";

/// Idle time after which a series is removed if another edge needs its place: the time for which records are kept.
const SERIES_IDLE: SignedDuration = SignedDuration::from_hours(1);

/// Whether the client or the server of a connection sends the bytes, as in OpenTelemetry's eBPF instrumentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum FlowDirection {
    Request,
    Response,
}

impl FlowDirection {
    fn as_str(self) -> &'static str {
        match self {
            FlowDirection::Request => "request",
            FlowDirection::Response => "response",
        }
    }
}

/// Attributes of a series: workloads, never pods or addresses.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SeriesKey {
    client: Endpoint,
    server: Endpoint,
    protocol: u8,
    port: Option<u16>,
    direction: FlowDirection,
}

#[derive(Debug, Clone, Copy)]
struct SeriesTotal {
    /// Time before the first byte.
    start: Timestamp,
    bytes: u64,
    /// Time of the last record with bytes.
    last: Timestamp,
}

/// Points of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricBody {
    pub points: u64,
    pub body: Vec<u8>,
}

/// Sums of bytes since the start of the process.
#[derive(Debug)]
pub struct FlowBytes {
    most: usize,
    start: Timestamp,
    /// Time of the last points.
    last: Timestamp,
    series: BTreeMap<SeriesKey, SeriesTotal>,
    /// Bytes of edges without a series.
    overflow: u64,
}

impl FlowBytes {
    /// Sums with at most this many series besides that of the other edges.
    pub fn new(most: usize, start: Timestamp) -> FlowBytes {
        FlowBytes { most, start, last: start, series: BTreeMap::new(), overflow: 0 }
    }

    /// Removes idle series if the bound is reached. A removed series ends; it begins at 0 when its edge has bytes again.
    pub fn expire(&mut self, now: Timestamp) {
        if self.series.len() >= self.most {
            self.series.retain(|_, total| now.duration_since(total.last) < SERIES_IDLE);
        }
    }

    /// Adds the bytes of a line of the trail.
    pub fn add(&mut self, record: &TrailRecord, now: Timestamp) {
        let record = &record.joined.record;
        let volumes = [(FlowDirection::Request, record.sent), (FlowDirection::Response, record.received)];
        for (direction, volume) in volumes {
            let bytes = volume.map_or(0, |volume| volume.bytes);
            if bytes == 0 {
                continue;
            }
            let without_service = |end: &Endpoint| Endpoint { service: None, ..end.clone() };
            let key = SeriesKey {
                client: without_service(&record.key.source),
                server: without_service(&record.key.destination),
                protocol: record.key.protocol,
                port: record.key.port,
                direction,
            };
            let is_full = self.series.len() >= self.most;
            match self.series.get_mut(&key) {
                Some(total) => {
                    total.bytes = total.bytes.saturating_add(bytes);
                    total.last = now;
                }
                None if is_full => self.overflow = self.overflow.saturating_add(bytes),
                None => {
                    self.series.insert(key, SeriesTotal { start: self.last, bytes, last: now });
                }
            }
        }
    }

    /// Encodes the sums as points of this time; `None` while there are none. Times of points increase also if the clock
    /// is set back.
    ///
    /// # Errors
    /// If the points cannot be encoded as JSON.
    pub fn encode(&mut self, cluster: &str, now: Timestamp) -> std::io::Result<Option<MetricBody>> {
        let time = now.max(self.last + SignedDuration::from_nanos(1));
        let mut points: Vec<Value> =
            self.series.iter().map(|(key, total)| point(attributes(key), total.start, time, total.bytes)).collect();
        if self.overflow > 0 {
            let attribute = json!({"key": OVERFLOW, "value": {"boolValue": true}});
            points.push(point(vec![attribute], self.start, time, self.overflow));
        }
        if points.is_empty() {
            return Ok(None);
        }
        self.last = time;
        let count = points.len() as u64;
        let resource = [text("service.name", SERVICE_NAME), text("k8s.cluster.name", cluster)];
        let body = json!({"resourceMetrics": [{
            "resource": {"attributes": resource},
            "scopeMetrics": [{
                "scope": scope(),
                "metrics": [{
                    "name": METRIC,
                    "description": "Bytes of connections, by workloads",
                    "unit": "By",
                    "sum": {"aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": points},
                }],
            }],
        }]});
        Ok(Some(MetricBody { points: count, body: gzip(&serde_json::to_vec(&body)?)? }))
    }
}

fn attributes(key: &SeriesKey) -> Vec<Value> {
    let SeriesKey { client, server, protocol, port, direction } = key;
    let (source, destination) = match direction {
        FlowDirection::Request => (client, server),
        FlowDirection::Response => (server, client),
    };
    let mut attributes = Vec::new();
    end(&mut attributes, "src", source);
    end(&mut attributes, "dst", destination);
    attributes.push(text("transport", &transport(*protocol)));
    attributes.extend(port.map(|port| number("server.port", u64::from(port))));
    attributes.push(text("direction", direction.as_str()));
    attributes
}

fn point(attributes: Vec<Value>, start: Timestamp, time: Timestamp, bytes: u64) -> Value {
    json!({
        "attributes": attributes,
        "startTimeUnixNano": start.as_nanosecond().to_string(),
        "timeUnixNano": time.as_nanosecond().to_string(),
        "asInt": i64::try_from(bytes).unwrap_or(i64::MAX).to_string(),
    })
}

#[cfg(test)]
mod tests;
