//! Aggregation of records by fields.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{Connections, Endpoint, FlowRecord, FlowVerdict, ServicePort, Volume};

/// A field by which records are grouped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GroupField {
    Source,
    Destination,
    Port,
    Protocol,
    Service,
    Verdict,
    Policy,
    Node,
}

/// Value of a field, shared by the records of a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GroupValue {
    Source(Endpoint),
    Destination(Endpoint),
    Port(Option<u16>),
    /// IANA number.
    Protocol(u8),
    Service(Option<ServicePort>),
    Verdict(FlowVerdict),
    /// `namespace/name` of all policies that decided or would have decided, on either side, so that each record is in
    /// one group.
    Policy(BTreeSet<Arc<str>>),
    Node(Arc<str>),
}

/// Sums over the records that have equal values in the requested fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FlowGroup {
    /// In the order of the requested fields.
    pub by: Vec<GroupValue>,
    pub records: u64,
    /// `live` counts the newest window of each node only: a sum over windows would count a connection once per window.
    pub connections: Connections,
    /// `None` if it is `None` in all records of the group.
    pub sent: Option<Volume>,
    pub received: Option<Volume>,
    /// Sum over windows: a connection of unknown volume counts once per window in which it was reported.
    pub unknown_volume: u64,
    pub denied_packets: u64,
    pub first: Timestamp,
    pub last: Timestamp,
}

/// Invalid field to group by.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGroupField {
    #[error("invalid field '{}': expected src, dst, port, protocol, service, verdict, policy or node", .0.escape_debug())]
    Unknown(String),
    #[error("field '{0}' appears twice")]
    Repeated(GroupField),
}

/// Groups records by fields: the one with most bytes first, then the one with most connections that started or live, then by
/// the fields' values.
///
/// ```
/// use flow::{FlowRecord, GroupField, GroupValue, group};
///
/// # fn example(records: &[FlowRecord]) -> Result<(), flow::InvalidGroupField> {
/// for edge in group(records, &GroupField::parse_list("src,dst")?) {
///     let ends: Vec<String> = edge.by.iter().map(GroupValue::to_string).collect();
///     println!("{}: {} connections", ends.join(" -> "), edge.connections.started);
/// }
/// # Ok(())
/// # }
/// ```
pub fn group<'a>(records: impl IntoIterator<Item = &'a FlowRecord>, by: &[GroupField]) -> Vec<FlowGroup> {
    let records: Vec<&FlowRecord> = records.into_iter().collect();
    let mut newest: HashMap<&str, Timestamp> = HashMap::new();
    for record in &records {
        let window = newest.entry(&record.node).or_insert(record.window);
        *window = record.window.max(*window);
    }
    let mut groups: BTreeMap<Vec<GroupValue>, FlowGroup> = BTreeMap::new();
    for record in records {
        let values: Vec<GroupValue> = by.iter().map(|field| field.value(record)).collect();
        let group = groups.entry(values).or_insert_with_key(|values| FlowGroup {
            by: values.clone(),
            records: 0,
            connections: Connections::default(),
            sent: None,
            received: None,
            unknown_volume: 0,
            denied_packets: 0,
            first: record.first,
            last: record.last,
        });
        let is_newest = newest.get(&*record.node) == Some(&record.window);
        let live = if is_newest { record.connections.live } else { 0 };
        group.records += 1;
        group.connections += Connections { live, ..record.connections };
        add(&mut group.sent, record.sent);
        add(&mut group.received, record.received);
        group.unknown_volume = group.unknown_volume.saturating_add(record.unknown_volume);
        group.denied_packets = group.denied_packets.saturating_add(record.denied_packets);
        group.first = group.first.min(record.first);
        group.last = group.last.max(record.last);
    }
    let mut groups: Vec<FlowGroup> = groups.into_values().collect();
    // The sort is stable, and the groups are in the order of their values.
    groups.sort_by_key(|group| std::cmp::Reverse((group.bytes(), group.connection_count())));
    groups
}

impl FlowGroup {
    /// Bytes of both directions; 0 if unknown.
    fn bytes(&self) -> u64 {
        [self.sent, self.received].into_iter().flatten().sum::<Volume>().bytes
    }

    fn connection_count(&self) -> u64 {
        self.connections.started.max(self.connections.live)
    }
}

fn add(sum: &mut Option<Volume>, volume: Option<Volume>) {
    if let Some(volume) = volume {
        *sum.get_or_insert_default() += volume;
    }
}

impl GroupField {
    /// Fields separated by commas: `src,dst,port`.
    pub fn parse_list(text: &str) -> Result<Vec<GroupField>, InvalidGroupField> {
        let mut fields = Vec::new();
        for word in text.split(',') {
            let field = word.parse()?;
            if fields.contains(&field) {
                return Err(InvalidGroupField::Repeated(field));
            }
            fields.push(field);
        }
        Ok(fields)
    }

    fn value(self, record: &FlowRecord) -> GroupValue {
        let key = &record.key;
        match self {
            GroupField::Source => GroupValue::Source(key.source.clone()),
            GroupField::Destination => GroupValue::Destination(key.destination.clone()),
            GroupField::Port => GroupValue::Port(key.port),
            GroupField::Protocol => GroupValue::Protocol(key.protocol),
            GroupField::Service => GroupValue::Service(key.service.clone()),
            GroupField::Verdict => GroupValue::Verdict(key.verdict),
            GroupField::Policy => GroupValue::Policy(key.policies().map(|hit| hit.policy().into()).collect()),
            GroupField::Node => GroupValue::Node(Arc::clone(&record.node)),
        }
    }
}

impl FromStr for GroupField {
    type Err = InvalidGroupField;

    fn from_str(text: &str) -> Result<GroupField, InvalidGroupField> {
        match text {
            "src" => Ok(GroupField::Source),
            "dst" => Ok(GroupField::Destination),
            "port" => Ok(GroupField::Port),
            "protocol" => Ok(GroupField::Protocol),
            "service" => Ok(GroupField::Service),
            "verdict" => Ok(GroupField::Verdict),
            "policy" => Ok(GroupField::Policy),
            "node" => Ok(GroupField::Node),
            _ => Err(InvalidGroupField::Unknown(text.to_owned())),
        }
    }
}

/// The word that `parse_list` reads.
impl fmt::Display for GroupField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GroupField::Source => "src",
            GroupField::Destination => "dst",
            GroupField::Port => "port",
            GroupField::Protocol => "protocol",
            GroupField::Service => "service",
            GroupField::Verdict => "verdict",
            GroupField::Policy => "policy",
            GroupField::Node => "node",
        })
    }
}

/// Text of a table cell; `-` if there is no value.
impl fmt::Display for GroupValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupValue::Source(endpoint) | GroupValue::Destination(endpoint) => endpoint.fmt(f),
            GroupValue::Port(Some(port)) => port.fmt(f),
            GroupValue::Protocol(1) => f.write_str("icmp"),
            GroupValue::Protocol(6) => f.write_str("tcp"),
            GroupValue::Protocol(17) => f.write_str("udp"),
            GroupValue::Protocol(58) => f.write_str("icmpv6"),
            GroupValue::Protocol(132) => f.write_str("sctp"),
            GroupValue::Protocol(number) => number.fmt(f),
            GroupValue::Service(Some(service)) => service.fmt(f),
            GroupValue::Verdict(verdict) => verdict.fmt(f),
            GroupValue::Policy(policies) if policies.is_empty() => f.write_str("-"),
            GroupValue::Policy(policies) => {
                f.write_str(&policies.iter().map(|policy| &**policy).collect::<Vec<_>>().join(","))
            }
            GroupValue::Node(node) => f.write_str(node),
            GroupValue::Port(None) | GroupValue::Service(None) => f.write_str("-"),
        }
    }
}

#[cfg(test)]
mod tests;
