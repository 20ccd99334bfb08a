//! An exported line, and the Loki stream to which it belongs.

use std::collections::BTreeSet;
use std::sync::Arc;

use flow::{EndSample, Endpoint, FlowVerdict, PolicyHit, SeenBy};
use jiff::Timestamp;
use serde::Serialize;

use crate::window_lines::TrailRecord;

/// Upper bound of a line in bytes: Loki refuses lines above 256 kB by default. The samples of a longer record are
/// omitted.
pub const LARGEST_LINE: usize = 200_000;

/// Upper bound of a value of the structured metadata in bytes: names in Kubernetes are shorter. Loki refuses a whole
/// request if the metadata of one line exceed 64 KiB, and the names of a record are those that its sender chose.
const LARGEST_VALUE: usize = 1 << 10;

/// Upper bound of a list of policies in the structured metadata in bytes. The line lists all of them.
const LARGEST_LIST: usize = 16 << 10;

/// Nodes that a shortened line lists: for a workload on all nodes of a large cluster their names alone are too long.
const NODES_OF_LONG_LINE: usize = 20;

/// Namespaces that become stream labels. Bounds the streams that a sender of records can create: further namespaces
/// share `_other`. Loki's default limit is 5,000 streams, and each namespace has up to six.
pub const MOST_NAMESPACES: usize = 800;

/// Label of a reporting side without a namespace, such as a node. Not a valid namespace name.
const NO_NAMESPACE: &str = "-";

const OTHER_NAMESPACE: &str = "_other";

/// The side of a flow that denied or reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JudgingSide {
    Egress,
    Ingress,
}

impl JudgingSide {
    pub fn as_str(self) -> &'static str {
        match self {
            JudgingSide::Egress => "egress",
            JudgingSide::Ingress => "ingress",
        }
    }
}

/// Labels that differ between lines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelStream {
    /// Namespace of the reporting side.
    pub namespace: Arc<str>,
    pub direction: JudgingSide,
    pub verdict: FlowVerdict,
}

/// A record with its line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub stream: LabelStream,
    /// Start of the window, so that encoding a record again yields the same time.
    pub time: Timestamp,
    pub line: String,
    pub record: TrailRecord,
}

/// Namespaces that have become labels.
#[derive(Debug, Default)]
pub struct Namespaces(BTreeSet<Arc<str>>);

#[derive(Serialize)]
struct Line<'a> {
    cluster: &'a str,
    #[serde(flatten)]
    record: &'a TrailRecord,
}

impl Namespaces {
    fn label(&mut self, namespace: Option<&Arc<str>>) -> Arc<str> {
        let Some(namespace) = namespace.filter(|name| is_dns_label(name)) else { return NO_NAMESPACE.into() };
        if let Some(known) = self.0.get(namespace) {
            return Arc::clone(known);
        }
        if self.0.len() >= MOST_NAMESPACES {
            return OTHER_NAMESPACE.into();
        }
        self.0.insert(Arc::clone(namespace));
        Arc::clone(namespace)
    }
}

/// Whether a name is an RFC 1123 label, as namespace names must be.
fn is_dns_label(name: &str) -> bool {
    let is_inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=63).contains(&name.len()) && name.bytes().all(is_inner) && !name.starts_with('-') && !name.ends_with('-')
}

impl Entry {
    /// # Errors
    /// If the record has no JSON form.
    pub fn new(
        cluster: &str,
        mut record: TrailRecord,
        namespaces: &mut Namespaces,
    ) -> Result<Entry, serde_json::Error> {
        let mut line = serde_json::to_string(&Line { cluster, record: &record })?;
        if line.len() > LARGEST_LINE {
            let shortened = |sample: &EndSample| {
                let nodes = sample.nodes.iter().take(NODES_OF_LONG_LINE).cloned().collect();
                Arc::new(EndSample { nodes, truncated: true, ..EndSample::default() })
            };
            let flow = &mut record.joined.record;
            flow.sources = shortened(&flow.sources);
            flow.destinations = shortened(&flow.destinations);
            let SeenBy { source, destination, other } = &*record.joined.seen_by;
            let [source, destination, other] =
                [source, destination, other].map(|nodes| nodes.iter().take(NODES_OF_LONG_LINE).cloned().collect());
            record.joined.seen_by = Arc::new(SeenBy { source, destination, other });
            line = serde_json::to_string(&Line { cluster, record: &record })?;
        }
        let (direction, end) = reporting_side(&record);
        let namespace = namespaces.label(end.namespace.as_ref());
        let stream = LabelStream { namespace, direction, verdict: record.joined.record.key.verdict };
        Ok(Entry { stream, time: record.joined.record.window, line, record })
    }

    /// Structured metadata of the line (a term of Loki), at most 64 KiB. Inapplicable fields are absent.
    pub fn metadata(&self) -> Vec<(&'static str, String)> {
        let joined = &self.record.joined;
        let (record, key) = (&joined.record, &*joined.record.key);
        let text = |text: &Option<Arc<str>>| text.as_ref().map(|text| text.to_string());
        let bytes = |volume: Option<flow::Volume>| volume.map(|volume| volume.bytes.to_string());
        let (policies, are_all) = names(key.policies());
        let (denied_by, are_all_denying) = names(key.denying_policies());
        let verdict = |verdict: Option<FlowVerdict>| verdict.map(|verdict| verdict.as_str().to_owned());
        [
            ("source", Some(key.source.to_string())),
            ("source_kind", Some(key.source.kind.as_str().to_owned())),
            ("source_namespace", text(&key.source.namespace)),
            ("source_workload", text(&key.source.name)),
            ("destination", Some(key.destination.to_string())),
            ("destination_kind", Some(key.destination.kind.as_str().to_owned())),
            ("destination_namespace", text(&key.destination.namespace)),
            ("destination_workload", text(&key.destination.name)),
            ("protocol", Some(key.protocol.to_string())),
            ("port", key.port.map(|port| port.to_string())),
            ("service", key.service.as_ref().map(|service| service.to_string())),
            ("source_verdict", verdict(joined.source_verdict)),
            ("destination_verdict", verdict(joined.destination_verdict)),
            ("drop_cause", text(&key.drop_cause)),
            ("policies", policies),
            ("denied_by", denied_by),
            ("policies_truncated", (!are_all || !are_all_denying).then(|| "true".to_owned())),
            ("node", Some(record.node.to_string())),
            ("started", Some(record.connections.started.to_string())),
            ("denied_packets", Some(record.denied_packets.to_string())),
            ("sent_bytes", bytes(record.sent)),
            ("received_bytes", bytes(record.received)),
            ("late", self.record.late.then(|| "true".to_owned())),
            ("first_seen", self.record.first_seen.then(|| "true".to_owned())),
        ]
        .into_iter()
        .filter_map(|(name, value)| {
            let most = if matches!(name, "policies" | "denied_by") { LARGEST_LIST } else { LARGEST_VALUE };
            Some((name, cut(value?, most)))
        })
        .collect()
    }
}

/// The first `most` bytes of a text, in whole characters.
fn cut(mut text: String, most: usize) -> String {
    if text.len() > most {
        text.truncate((0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0));
    }
    text
}

/// Names of the policies, each once, separated by commas; `None` without any. False if some are left out.
fn names<'a>(hits: impl Iterator<Item = &'a PolicyHit>) -> (Option<String>, bool) {
    let policies: BTreeSet<String> = hits.map(PolicyHit::policy).collect();
    let (mut list, mut are_all) = (String::new(), true);
    for policy in &policies {
        if list.len() + 1 + policy.len() > LARGEST_LIST {
            are_all = false;
            break;
        }
        if !list.is_empty() {
            list.push(',');
        }
        list.push_str(policy);
    }
    (Some(list).filter(|list| !list.is_empty()), are_all)
}

/// The side that denied the flow; otherwise the source if its node reports, or else the destination. If neither node
/// reports, as for forged sources, the source if it has a namespace.
fn reporting_side(record: &TrailRecord) -> (JudgingSide, &Endpoint) {
    let joined = &record.joined;
    let key = &joined.record.key;
    let egress = (JudgingSide::Egress, &key.source);
    let ingress = (JudgingSide::Ingress, &key.destination);
    match (joined.source_verdict, joined.destination_verdict) {
        (Some(source), Some(destination)) if destination > source => ingress,
        (Some(_), Some(_) | None) => egress,
        (None, Some(_)) => ingress,
        (None, None) if key.source.namespace.is_some() => egress,
        (None, None) => ingress,
    }
}

#[cfg(test)]
mod tests;
