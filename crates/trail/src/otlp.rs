//! Bodies of OTLP/HTTP: JSON, compressed with gzip. Records are logs (`POST /v1/logs`), and their bytes are a metric
//! ([`FlowBytes`]).
//!
//! Attributes use the names of the network flow metrics of OpenTelemetry's eBPF instrumentation
//! (`obi.network.flow.bytes`: `k8s.src.owner.name`, `dst.port`, `transport`, …); others have the prefix `ringfence.`.
//! 64-bit integers are strings in the JSON encoding of protocol buffers.

mod flow_bytes;

use std::collections::BTreeSet;

use flow::{Endpoint, FlowVerdict, PolicyHit, Volume};
use serde_json::{Value, json};

use crate::entry::Entry;
use crate::loki::{SERVICE_NAME, gzip};

pub use flow_bytes::{FlowBytes, METRIC, METRICS_PATH, MetricBody};

/// Request path of logs.
pub const PATH: &str = "/v1/logs";

/// `SEVERITY_NUMBER_INFO` and `SEVERITY_NUMBER_WARN`.
const INFO: u8 = 9;
const WARN: u8 = 13;

/// Encodes entries. Equal entries yield equal bytes.
///
/// # Errors
/// If the entries cannot be encoded as JSON.
pub fn encode(cluster: &str, entries: &[Entry]) -> std::io::Result<Vec<u8>> {
    let records: Vec<Value> = entries.iter().map(log_record).collect();
    let resource = [text("service.name", SERVICE_NAME), text("k8s.cluster.name", cluster)];
    let body = json!({"resourceLogs": [{
        "resource": {"attributes": resource},
        "scopeLogs": [{
            "scope": scope(),
            "logRecords": records,
        }],
    }]});
    gzip(&serde_json::to_vec(&body)?)
}

fn scope() -> Value {
    json!({"name": "ringfence.flows", "version": env!("CARGO_PKG_VERSION")})
}

/// Number of log records or points rejected by a receiver that responded with success, and the reason.
pub fn rejected(answer: &[u8]) -> Option<(u64, String)> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let partial = answer.get("partialSuccess")?;
    let count = partial.get("rejectedLogRecords").or_else(|| partial.get("rejectedDataPoints"))?;
    let count = count.as_u64().or_else(|| count.as_str()?.parse().ok()).filter(|count| *count > 0)?;
    Some((count, partial.get("errorMessage").and_then(Value::as_str).unwrap_or_default().to_owned()))
}

fn log_record(entry: &Entry) -> Value {
    let joined = &entry.record.joined;
    let (record, key) = (&joined.record, &*joined.record.key);
    let (severity, severity_text) = match key.verdict {
        FlowVerdict::Allowed => (INFO, "INFO"),
        FlowVerdict::WouldDeny | FlowVerdict::Denied => (WARN, "WARN"),
    };
    let mut attributes = Vec::new();
    end(&mut attributes, "src", &key.source);
    end(&mut attributes, "dst", &key.destination);
    attributes.push(text("transport", &transport(key.protocol)));
    attributes.extend(key.port.map(|port| number("dst.port", u64::from(port))));
    attributes.push(text("direction", entry.stream.direction.as_str()));
    attributes.push(text("ringfence.verdict", key.verdict.as_str()));
    let verdicts =
        [("ringfence.src.verdict", joined.source_verdict), ("ringfence.dst.verdict", joined.destination_verdict)];
    attributes.extend(verdicts.into_iter().filter_map(|(name, verdict)| Some(text(name, verdict?.as_str()))));
    attributes.extend(key.service.as_ref().map(|service| text("ringfence.dst.service", &service.to_string())));
    attributes.extend(key.drop_cause.as_ref().map(|cause| text("ringfence.drop.cause", cause)));
    attributes.extend(policies("ringfence.policies", key.policies()));
    attributes.extend(policies("ringfence.denied_by", key.denying_policies()));
    attributes.push(number("ringfence.connections.started", record.connections.started));
    attributes.push(number("ringfence.denied.packets", record.denied_packets));
    for (name, volume) in [("sent", record.sent), ("received", record.received)] {
        let Some(Volume { packets, bytes }) = volume else { continue };
        attributes.push(number(&format!("ringfence.{name}.bytes"), bytes));
        attributes.push(number(&format!("ringfence.{name}.packets"), packets));
    }
    attributes.push(json!({"key": "ringfence.late", "value": {"boolValue": entry.record.late}}));
    if entry.record.first_seen {
        attributes.push(json!({"key": "ringfence.first_seen", "value": {"boolValue": true}}));
    }
    let nanoseconds = entry.time.as_nanosecond().to_string();
    json!({
        "timeUnixNano": nanoseconds,
        "observedTimeUnixNano": nanoseconds,
        "severityNumber": severity,
        "severityText": severity_text,
        "eventName": "ringfence.network.flow",
        "body": {"stringValue": entry.line},
        "attributes": attributes,
    })
}

/// Names of the policies, each once; `None` without any.
fn policies<'a>(key: &str, hits: impl Iterator<Item = &'a PolicyHit>) -> Option<Value> {
    let names: BTreeSet<String> = hits.map(PolicyHit::policy).collect();
    let values: Vec<Value> = names.into_iter().map(|name| json!({"stringValue": name})).collect();
    (!values.is_empty()).then(|| json!({"key": key, "value": {"arrayValue": {"values": values}}}))
}

fn end(attributes: &mut Vec<Value>, side: &str, end: &Endpoint) {
    attributes.push(text(&format!("ringfence.{side}.kind"), end.kind.as_str()));
    attributes.push(text(&format!("{side}.name"), &end.to_string()));
    attributes.extend(end.namespace.as_ref().map(|name| text(&format!("k8s.{side}.namespace"), name)));
    if end.namespace.is_some() {
        attributes.extend(end.name.as_ref().map(|name| text(&format!("k8s.{side}.owner.name"), name)));
    }
}

fn transport(protocol: u8) -> String {
    match protocol {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmpv6".into(),
        132 => "sctp".into(),
        number => number.to_string(),
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

#[cfg(test)]
mod tests;
