//! Converts a joined record to a Hubble flow.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use flow::{ClusterRecord, EndSample, EndpointKind, FlowKey, PolicyAction, PolicyHit, SideTrace, TraceVerdict, Volume};
use prost::Message;
use wire::{StableHasher, Timestamp};

use crate::message::{
    Any, BoolValue, Emitter, Endpoint, EventType, Flow, FlowType, Icmp, Ip, IpVersion, Layer4, ListValue, Policy,
    Ports, Protocol, Service, Struct, TrafficDirection, Value, ValueKind, Verdict, Workload,
};

/// `emitter.name` of flows.
pub const EMITTER: &str = "Ringfence";

/// Event type of a dropped flow; its subtype is the [`DropReason`].
pub const EVENT_DROP: i32 = 1;

/// Event type of a forwarded flow.
pub const EVENT_POLICY_VERDICT: i32 = 5;

/// `policy_match_type` if no policy isolates the pod. Otherwise 0, because the matching part of a rule is unknown.
const MATCH_ALL: u32 = 4;

const STRUCT_URL: &str = "type.googleapis.com/google.protobuf.Struct";

/// Limit of the pod names per end in `extensions`.
const MOST_LISTED: usize = 10;

/// Drop reason, with Cilium's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    InvalidSourceIp,
    PolicyDenied,
    InvalidPacket,
    UnsupportedProtocol,
    Encapsulation,
    /// Drop by a rule of a ClusterNetworkPolicy that denies.
    PolicyDeny,
}

impl DropReason {
    pub fn number(self) -> i32 {
        match self {
            DropReason::InvalidSourceIp => 132,
            DropReason::PolicyDenied => 133,
            DropReason::InvalidPacket => 134,
            DropReason::UnsupportedProtocol => 166,
            DropReason::Encapsulation => 170,
            DropReason::PolicyDeny => 181,
        }
    }

    fn of(key: &FlowKey) -> DropReason {
        match key.drop_cause.as_deref() {
            Some("forged-source" | "unknown-address") => DropReason::InvalidSourceIp,
            Some("tunnel") => DropReason::Encapsulation,
            Some("other-protocol") => DropReason::UnsupportedProtocol,
            // Drop cause of a newer agent.
            Some(_) => DropReason::InvalidPacket,
            None => {
                let mut hits = [&key.egress, &key.ingress].into_iter().flat_map(|side| &side.enforced);
                match hits.any(|hit| hit.action == PolicyAction::Deny && hit.rule.is_some()) {
                    true => DropReason::PolicyDeny,
                    false => DropReason::PolicyDenied,
                }
            }
        }
    }
}

/// Time of a flow: that of the last event of the record. Agents choose it, so it is clamped to the record's window, and
/// flows are ordered by window instead.
pub fn time(record: &ClusterRecord) -> jiff::Timestamp {
    record.record.last.clamp(record.record.window, record.record.window_end())
}

/// Converts a record to a flow. If the record lists several addresses of an end, the flow has the first; if it lists
/// several pods, the flow has the name of their workload.
pub fn convert(joined: &ClusterRecord) -> Flow {
    let record = &joined.record;
    let key = &*record.key;
    let direction = direction(joined);
    let verdict = verdict(key);
    let reason = drop_reason(key);
    let judged = match direction {
        TrafficDirection::Egress => Some(&key.egress),
        TrafficDirection::Ingress => Some(&key.ingress),
        TrafficDirection::Unknown => None,
    };
    let is_isolated = judged.is_none_or(|side| side.verdict != TraceVerdict::NotIsolated);
    let policies = |side: &SideTrace, action| policies(side, verdict, action, record.generation);
    Flow {
        time: Some(timestamp(time(joined))),
        verdict: verdict.into(),
        drop_reason: reason.map_or(0, |reason| reason.number().unsigned_abs()),
        ip: ip(&record.sources, &record.destinations),
        l4: layer4(key),
        source: Some(endpoint(&key.source, &record.sources)),
        destination: Some(endpoint(&key.destination, &record.destinations)),
        r#type: FlowType::L3L4.into(),
        node_name: record.node.to_string(),
        event_type: Some(event_type(reason)),
        destination_service: key
            .service
            .as_ref()
            .map(|service| Service { name: service.name.to_string(), namespace: service.namespace.to_string() }),
        traffic_direction: direction.into(),
        policy_match_type: if reason.is_none() && !is_isolated { MATCH_ALL } else { 0 },
        drop_reason_desc: reason.map_or(0, DropReason::number),
        is_reply: Some(BoolValue { value: false }),
        uuid: uuid(joined),
        emitter: Some(Emitter { name: EMITTER.to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() }),
        egress_allowed_by: policies(&key.egress, PolicyAction::Allow),
        ingress_allowed_by: policies(&key.ingress, PolicyAction::Allow),
        egress_denied_by: policies(&key.egress, PolicyAction::Deny),
        ingress_denied_by: policies(&key.ingress, PolicyAction::Deny),
        extensions: Some(Any { type_url: STRUCT_URL.to_owned(), value: extensions(joined).encode_to_vec() }),
    }
}

pub(crate) fn verdict(key: &FlowKey) -> Verdict {
    match key.verdict {
        flow::FlowVerdict::Allowed => Verdict::Forwarded,
        flow::FlowVerdict::WouldDeny => Verdict::Audit,
        flow::FlowVerdict::Denied => Verdict::Dropped,
    }
}

/// `None` if the flow was not dropped.
pub(crate) fn drop_reason(key: &FlowKey) -> Option<DropReason> {
    (key.verdict == flow::FlowVerdict::Denied).then(|| DropReason::of(key))
}

pub(crate) fn event_type(reason: Option<DropReason>) -> EventType {
    match reason {
        Some(reason) => EventType { r#type: EVENT_DROP, sub_type: reason.number() },
        None => EventType { r#type: EVENT_POLICY_VERDICT, sub_type: 0 },
    }
}

/// Side that decided: the one that denies or would deny; otherwise the destination's, if its node reports.
pub(crate) fn direction(joined: &ClusterRecord) -> TrafficDirection {
    let verdict = joined.record.key.verdict;
    match (joined.source_verdict, joined.destination_verdict) {
        (None, None) => TrafficDirection::Unknown,
        (Some(_), None) => TrafficDirection::Egress,
        // The trace of a side without a report is an evaluation that no node enforced.
        (None, Some(_)) => TrafficDirection::Ingress,
        (Some(source), Some(destination)) if source == verdict && destination != verdict => TrafficDirection::Egress,
        (Some(_), Some(_)) => {
            let denies = |side: &SideTrace| matches!(side.verdict, TraceVerdict::Denied | TraceVerdict::WouldDeny);
            // If one node judged both sides, both have the flow's verdict, and the traces say which side denies.
            let key = &joined.record.key;
            match denies(&key.egress) && !denies(&key.ingress) {
                true => TrafficDirection::Egress,
                false => TrafficDirection::Ingress,
            }
        }
    }
}

/// Policies of one side that decided. If the flow passed and would be denied, these are the audited policies that would
/// deny it.
fn policies(side: &SideTrace, verdict: Verdict, action: PolicyAction, generation: Option<u32>) -> Vec<Policy> {
    let audited = (verdict == Verdict::Audit && action == PolicyAction::Deny).then_some(&side.pending);
    let hits = side.enforced.iter().chain(audited.into_iter().flatten()).filter(|hit| hit.action == action);
    hits.map(|PolicyHit { kind, namespace, name, tier, rule, rule_name, action: _ }| Policy {
        name: name.to_string(),
        namespace: namespace.to_string(),
        labels: [
            tier.map(|tier| format!("ringfence:tier={}", tier.as_str())),
            rule.as_ref().map(|rule| format!("ringfence:rule={rule}")),
            rule_name.as_ref().map(|name| format!("ringfence:rule-name={name}")),
        ]
        .into_iter()
        .flatten()
        .collect(),
        revision: generation.map_or(0, u64::from),
        kind: kind.to_string(),
    })
    .collect()
}

fn ip(sources: &EndSample, destinations: &EndSample) -> Option<Ip> {
    let (source, destination) = addresses(sources, destinations);
    let version = match source.or(destination)? {
        IpAddr::V4(_) => IpVersion::V4,
        IpAddr::V6(_) => IpVersion::V6,
    };
    let text = |address: Option<IpAddr>| address.map_or(String::new(), |address| address.to_string());
    Some(Ip { source: text(source), destination: text(destination), ip_version: version.into() })
}

/// First address of each end, both of the same family if possible.
fn addresses(sources: &EndSample, destinations: &EndSample) -> (Option<IpAddr>, Option<IpAddr>) {
    let source = sources.addresses.first().copied();
    let same = destinations.addresses.iter().find(|address| source.is_some_and(|s| s.is_ipv4() == address.is_ipv4()));
    (source, same.or(destinations.addresses.first()).copied())
}

pub(crate) fn layer4(key: &FlowKey) -> Option<Layer4> {
    let ports = Ports { destination_port: u32::from(key.port.unwrap_or(0)) };
    let icmp = Icmp { r#type: u32::from(key.icmp_type.unwrap_or(0)) };
    let protocol = match key.protocol {
        6 => Protocol::Tcp(ports),
        17 => Protocol::Udp(ports),
        132 => Protocol::Sctp(ports),
        1 => Protocol::IcmpV4(icmp),
        58 => Protocol::IcmpV6(icmp),
        _ => return None,
    };
    Some(Layer4 { protocol: Some(protocol) })
}

fn endpoint(end: &flow::Endpoint, sample: &EndSample) -> Endpoint {
    let text = |value: &Option<std::sync::Arc<str>>| value.as_deref().unwrap_or_default().to_owned();
    let workload = workload(end).map(|name| Workload { name: name.to_owned(), kind: String::new() });
    Endpoint {
        identity: identity(end, sample),
        namespace: text(&end.namespace),
        labels: labels(end, sample),
        pod_name: pod_name(end, sample).to_owned(),
        workloads: workload.into_iter().collect(),
        cluster_name: text(&end.cluster),
    }
}

pub(crate) fn labels(end: &flow::Endpoint, sample: &EndSample) -> Vec<String> {
    let namespace = end.namespace.as_deref().filter(|namespace| !namespace.is_empty());
    let namespace = namespace.map(|namespace| format!("k8s:io.kubernetes.pod.namespace={namespace}"));
    let of_pods = sample.labels.iter().map(|label| format!("k8s:{label}"));
    let reserved = reserved(end.kind).map(|(_, label)| label.to_owned());
    namespace.into_iter().chain(of_pods).chain(reserved).collect()
}

/// Number of the end's first identity, else of the reserved identity of its kind; 0 if it has neither.
pub(crate) fn identity(end: &flow::Endpoint, sample: &EndSample) -> u32 {
    let identity = sample.identities.first().map(|identity| identity.num);
    identity.or(reserved(end.kind).map(|(number, _)| number)).unwrap_or(0)
}

/// Number and label of the reserved identity of ends that are not pods.
fn reserved(kind: EndpointKind) -> Option<(u32, &'static str)> {
    match kind {
        EndpointKind::Pod | EndpointKind::RemoteCluster => None,
        EndpointKind::Node => Some((6, "reserved:remote-node")),
        EndpointKind::KubeApiserver => Some((7, "reserved:kube-apiserver")),
        EndpointKind::UnknownPod => Some((3, "reserved:unmanaged")),
        EndpointKind::World => Some((2, "reserved:world")),
    }
}

pub(crate) fn workload(end: &flow::Endpoint) -> Option<&str> {
    match end.kind {
        EndpointKind::Pod | EndpointKind::RemoteCluster => end.name.as_deref().filter(|name| !name.is_empty()),
        EndpointKind::UnknownPod | EndpointKind::Node | EndpointKind::KubeApiserver | EndpointKind::World => None,
    }
}

/// Name of the pod, or of the workload if there are several pods.
pub(crate) fn pod_name<'a>(end: &'a flow::Endpoint, sample: &'a EndSample) -> &'a str {
    let name = end.name.as_deref().unwrap_or_default();
    match end.kind {
        EndpointKind::Pod | EndpointKind::RemoteCluster => {}
        EndpointKind::UnknownPod => return name,
        EndpointKind::Node | EndpointKind::KubeApiserver | EndpointKind::World => return "",
    }
    let mut pods = sample.pods.iter();
    match (pods.next(), pods.next(), sample.truncated) {
        (Some(only), None, false) => only.split_once('/').map_or(&**only, |(_, name)| name),
        (Some(_), Some(_), _) | (Some(_), None, true) | (None, _, _) => name,
    }
}

/// UUID (version 8, of a custom hash) that is equal for equal records and differs for different ones.
pub(crate) fn uuid(joined: &ClusterRecord) -> String {
    let mut hasher = StableHasher::default();
    let ClusterRecord { record, source_verdict, destination_verdict, seen_by } = joined;
    record.window.as_second().hash(&mut hasher);
    record.key.hash(&mut hasher);
    (source_verdict, destination_verdict).hash(&mut hasher);
    for nodes in [&seen_by.source, &seen_by.destination, &seen_by.other] {
        nodes.len().hash(&mut hasher);
        for node in nodes {
            hasher.write(node.as_bytes());
            hasher.write(b"/");
        }
    }
    let bits = hasher.finish128() & !(0xf << 76) & !(0x3 << 62) | (0x8 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

fn extensions(joined: &ClusterRecord) -> Struct {
    let record = &joined.record;
    let mut fields = BTreeMap::new();
    // Numbers above 2^53 are rounded.
    let number = |value: u64| Value { kind: Some(ValueKind::Number(value as f64)) };
    let mut volume = |name: &str, volume: Option<Volume>| {
        if let Some(Volume { packets, bytes }) = volume {
            fields.insert(format!("{name}Packets"), number(packets));
            fields.insert(format!("{name}Bytes"), number(bytes));
        }
    };
    volume("sent", record.sent);
    volume("received", record.received);
    let connections = record.connections;
    for (name, value) in [
        ("connectionsStarted", connections.started),
        ("connectionsEnded", connections.ended),
        ("connectionsLive", connections.live),
        ("connectionsLost", connections.lost),
        ("unknownVolume", record.unknown_volume),
        ("deniedPackets", record.denied_packets),
    ] {
        fields.insert(name.to_owned(), number(value));
    }
    let text = |text: &str| Value { kind: Some(ValueKind::Text(text.to_owned())) };
    fields.insert("window".to_owned(), text(&record.window.to_string()));
    if let Some(cause) = &record.key.drop_cause {
        fields.insert("dropCause".to_owned(), text(cause));
    }
    for (name, pods) in [("sourcePods", &record.sources.pods), ("destinationPods", &record.destinations.pods)] {
        let values: Vec<Value> = pods.iter().take(MOST_LISTED).map(|pod| text(pod)).collect();
        if values.len() > 1 {
            fields.insert(name.to_owned(), Value { kind: Some(ValueKind::List(ListValue { values })) });
        }
    }
    Struct { fields }
}

fn timestamp(time: jiff::Timestamp) -> Timestamp {
    // The nanoseconds of a protobuf timestamp are not negative, so the seconds are rounded down.
    let nanos = time.as_nanosecond();
    let seconds = nanos.div_euclid(1_000_000_000);
    Timestamp {
        seconds: i64::try_from(seconds).unwrap_or_default(),
        nanos: i32::try_from(nanos.rem_euclid(1_000_000_000)).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests;
