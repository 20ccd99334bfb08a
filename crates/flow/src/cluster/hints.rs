//! Values that occur for a filter field, as suggestions for queries.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::ClusterRecord;
use crate::{Endpoint, EndpointKind, FlowFilters, FlowRecord, PolicyHit};

/// Limit of the values of one response.
pub const MOST_HINTS: usize = 1_000;

/// Limit of the values counted for one response. Further values are omitted, and the response is marked as truncated.
const MOST_VALUES: usize = 10_000;

/// Filter field whose values can be listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HintField {
    Namespace,
    Workload,
    Peer,
    Port,
    Protocol,
    Verdict,
    Policy,
}

/// A field whose values cannot be listed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid field '{}': expected namespace, workload, peer, port, protocol, verdict or policy", .0.escape_debug())]
pub struct InvalidHintField(String);

/// Values of a field, ordered by frequency, descending.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hints {
    pub field: HintField,
    pub values: Vec<Hint>,
    /// Whether values were omitted.
    pub truncated: bool,
}

/// Value of a filter field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hint {
    /// In the syntax of the filter.
    pub value: String,
    /// Number of joined records that match the filters with this value.
    pub records: u64,
}

/// Counts the records per value of a field that match all other filters.
#[derive(Debug)]
pub struct HintBuilder {
    field: HintField,
    /// Conditions on the other fields.
    filters: FlowFilters,
    prefix: String,
    counts: HashMap<String, Value>,
    is_truncated: bool,
}

#[derive(Debug)]
struct Value {
    filters: FlowFilters,
    records: u64,
}

impl HintField {
    pub const ALL: [HintField; 7] = [
        HintField::Namespace,
        HintField::Workload,
        HintField::Peer,
        HintField::Port,
        HintField::Protocol,
        HintField::Verdict,
        HintField::Policy,
    ];

    /// Name of the filter field.
    pub fn as_str(self) -> &'static str {
        match self {
            HintField::Namespace => "namespace",
            HintField::Workload => "workload",
            HintField::Peer => "peer",
            HintField::Port => "port",
            HintField::Protocol => "protocol",
            HintField::Verdict => "verdict",
            HintField::Policy => "policy",
        }
    }

    /// Values that may match the record. The field `peer` also matches addresses and pods, which are too many to list.
    fn values(self, record: &FlowRecord) -> BTreeSet<String> {
        let key = &record.key;
        let ends = [&key.source, &key.destination].into_iter();
        match self {
            HintField::Namespace => ends.filter_map(|end| end.namespace.as_deref()).map(str::to_owned).collect(),
            HintField::Workload => ends.filter_map(workload).collect(),
            HintField::Peer => ends.flat_map(peers).collect(),
            HintField::Port => {
                let asked = key.service.as_ref().map(|service| service.port);
                key.port.into_iter().chain(asked).map(|port| port.to_string()).collect()
            }
            HintField::Protocol => [protocol(key.protocol)].into(),
            HintField::Verdict => [key.verdict.as_str().to_owned()].into(),
            HintField::Policy => key.policies().map(PolicyHit::policy).collect(),
        }
    }
}

fn workload(end: &Endpoint) -> Option<String> {
    match (end.kind, &end.namespace, &end.name) {
        (EndpointKind::Pod | EndpointKind::RemoteCluster, Some(namespace), Some(name)) => {
            Some(format!("{namespace}/{name}"))
        }
        _ => None,
    }
}

fn peers(end: &Endpoint) -> Vec<String> {
    let kind = end.kind.as_str().to_owned();
    match end.kind {
        EndpointKind::Pod => end.namespace.as_deref().map(str::to_owned).into_iter().chain(workload(end)).collect(),
        EndpointKind::RemoteCluster => {
            let named = end.namespace.as_deref().map(str::to_owned).into_iter().chain(workload(end));
            named.chain([kind]).collect()
        }
        EndpointKind::Node => end.name.as_deref().map(str::to_owned).into_iter().collect(),
        EndpointKind::KubeApiserver | EndpointKind::UnknownPod | EndpointKind::World => vec![kind],
    }
}

fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmpv6".into(),
        132 => "sctp".into(),
        number => number.to_string(),
    }
}

impl FromStr for HintField {
    type Err = InvalidHintField;

    fn from_str(text: &str) -> Result<HintField, InvalidHintField> {
        HintField::ALL.into_iter().find(|field| field.as_str() == text).ok_or_else(|| InvalidHintField(text.to_owned()))
    }
}

impl fmt::Display for HintField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl HintBuilder {
    /// `filters` must have no condition on the field itself. `prefix` is matched against the value, and against its
    /// part after the `/`.
    pub fn new(field: HintField, filters: FlowFilters, prefix: String) -> HintBuilder {
        HintBuilder { field, filters, prefix, counts: HashMap::new(), is_truncated: false }
    }

    pub fn add(&mut self, joined: &ClusterRecord) {
        self.add_within(joined, MOST_VALUES);
    }

    fn add_within(&mut self, joined: &ClusterRecord, most_values: usize) {
        let record = &joined.record;
        if !self.filters.admits(record) {
            return;
        }
        for value in self.field.values(record) {
            let is_wanted = |text: &str| text.starts_with(self.prefix.as_str());
            if !is_wanted(&value) && !value.split_once('/').is_some_and(|(_, name)| is_wanted(name)) {
                continue;
            }
            if let Some(known) = self.counts.get_mut(&value) {
                known.records += u64::from(known.filters.admits(record));
                continue;
            }
            // Only a sender that is not an agent can send names that the filter rejects.
            let Ok(filters) = self.filters.and(self.field.as_str(), &value, Timestamp::UNIX_EPOCH) else { continue };
            if !filters.admits(record) {
                continue;
            }
            if self.counts.len() >= most_values {
                self.is_truncated = true;
                continue;
            }
            self.counts.insert(value, Value { filters, records: 1 });
        }
    }

    /// Returns at most `most` values.
    pub fn finish(self, most: usize) -> Hints {
        let HintBuilder { field, filters: _, prefix: _, counts, is_truncated } = self;
        let mut values: Vec<Hint> =
            counts.into_iter().map(|(value, Value { filters: _, records })| Hint { value, records }).collect();
        values.sort_by(|a, b| b.records.cmp(&a.records).then_with(|| a.value.cmp(&b.value)));
        let truncated = is_truncated || values.len() > most;
        values.truncate(most);
        Hints { field, values, truncated }
    }
}

#[cfg(test)]
mod tests;
