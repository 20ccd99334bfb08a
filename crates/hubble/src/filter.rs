//! Filters of flows. Values of a field are alternatives, and all fields of a filter must match. Unsupported filters are
//! refused: ignoring one would return flows that the client excludes.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;

use flow::{ClusterRecord, EndSample, Endpoint};
use ipnet::IpNet;
use wire::Strict;

use crate::convert::{direction, drop_reason, event_type, identity, labels, layer4, pod_name, uuid, verdict, workload};
use crate::message::{EventTypeFilter, FlowFilter, GetFlowsRequest, IpVersion, Protocol, Workload};
use crate::selector::Selector;

/// Limit of the filters of one request, and of the values in all of their fields: each is compared with each flow.
pub const MOST_VALUES: usize = 256;

/// Cluster of names without a cluster, as in Cilium.
const OWN_CLUSTER: &str = "default";

/// Unsupported fields of `FlowFilter`.
const NOT_SERVED: &[(u32, &str)] = &[
    (7, "source_fqdn"),
    (8, "destination_fqdn"),
    (9, "http_status_code"),
    (13, "source_port"),
    (18, "dns_query"),
    (21, "http_method"),
    (22, "http_path"),
    (23, "tcp_flags"),
    (28, "trace_id"),
    (31, "http_url"),
    (32, "http_header"),
    (34, "source_ip_xlated"),
    (35, "interface"),
    (36, "node_labels"),
    (39, "ip_trace_id"),
    (40, "encrypted"),
    (999, "experimental"),
];

/// Reason for which a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("filter field '{0}' is not served: flow records lack its data")]
    NotServed(&'static str),
    #[error("field {0} of a filter is not known")]
    Unknown(u32),
    #[error("field {number} of {field} is not known")]
    UnknownInValue { field: &'static str, number: u32 },
    #[error("field {0} of the request is not known")]
    UnknownInRequest(u32),
    #[error("invalid {field} {problem}")]
    Invalid { field: &'static str, problem: String },
    #[error("more than {MOST_VALUES} filters or values of filters")]
    TooMany,
    #[error("'first' and 'follow' are mutually exclusive")]
    FirstAndFollow,
}

/// Validated filters of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    /// One of them must match, if there are any.
    whitelist: Vec<Filter>,
    /// A flow that one of them matches is excluded.
    blacklist: Vec<Filter>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Filter {
    fields: Vec<Field>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Source,
    Destination,
}

/// One field with its alternative values.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Field {
    Address(End, Vec<IpNet>),
    Pod(End, Vec<NamePrefix>),
    Label(End, Vec<Selector>),
    Service(End, Vec<NamePrefix>),
    Workload(End, Vec<String>),
    Identity(End, Vec<u32>),
    Cluster(End, Vec<String>),
    Verdict(Vec<i32>),
    EventType(Vec<EventTypeFilter>),
    Protocol(Vec<ProtocolName>),
    DestinationPort(Vec<u16>),
    Reply(Vec<bool>),
    Node(Vec<NodePattern>),
    IpVersion(Vec<i32>),
    Uuid(Vec<String>),
    Direction(Vec<i32>),
    DropReason(Vec<i32>),
}

/// `NAMESPACE/PREFIX`; as in Cilium, a name without a namespace is in `default`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NamePrefix {
    /// Empty for every namespace.
    namespace: String,
    prefix: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProtocolName {
    Tcp,
    Udp,
    Sctp,
    Icmp,
    IcmpV4,
    IcmpV6,
    /// VRRP and IGMP, which flows never have.
    Other,
}

/// `CLUSTER/NODE`; both may contain `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NodePattern {
    cluster: String,
    node: String,
}

impl Filters {
    /// Parses the filters of a request.
    ///
    /// # Errors
    /// If a field is unsupported or a value is invalid.
    pub fn parse(request: &Strict<GetFlowsRequest>) -> Result<Filters, FilterError> {
        if let Some(field) = request.unknown {
            return Err(FilterError::UnknownInRequest(field));
        }
        let request = &request.message;
        if request.first && request.follow {
            return Err(FilterError::FirstAndFollow);
        }
        let parse = |filters: &[Strict<FlowFilter>]| filters.iter().map(Filter::parse).collect::<Result<Vec<_>, _>>();
        let (whitelist, blacklist) = (parse(&request.whitelist)?, parse(&request.blacklist)?);
        let values = whitelist.iter().chain(&blacklist).map(|filter| filter.values() + 1);
        if values.sum::<usize>() > MOST_VALUES {
            return Err(FilterError::TooMany);
        }
        Ok(Filters { whitelist, blacklist })
    }

    /// Whether the filters match the flow of the record. Addresses, pods and identities match if one that the record
    /// lists matches; nodes match if one of the reporting nodes does.
    pub fn admits(&self, joined: &ClusterRecord) -> bool {
        let flow = FlowView::new(joined);
        (self.whitelist.is_empty() || self.whitelist.iter().any(|filter| filter.matches(&flow)))
            && !self.blacklist.iter().any(|filter| filter.matches(&flow))
    }
}

impl Filter {
    fn parse(given: &Strict<FlowFilter>) -> Result<Filter, FilterError> {
        if let Some(number) = given.unknown {
            let known = NOT_SERVED.iter().find(|(field, _)| *field == number);
            return Err(known.map_or(FilterError::Unknown(number), |(_, name)| FilterError::NotServed(name)));
        }
        let FlowFilter {
            source_ip,
            source_pod,
            destination_ip,
            destination_pod,
            verdict,
            event_type,
            source_label,
            destination_label,
            protocol,
            destination_port,
            reply,
            source_service,
            destination_service,
            source_identity,
            destination_identity,
            node_name,
            ip_version,
            source_workload,
            destination_workload,
            uuid,
            traffic_direction,
            drop_reason_desc,
            source_cluster_name,
            destination_cluster_name,
        } = &given.message;
        let mut fields = Vec::new();
        let ends = [(End::Source, source_ip, "source_ip"), (End::Destination, destination_ip, "destination_ip")];
        for (end, texts, name) in ends {
            add(&mut fields, texts, |texts| Ok(Field::Address(end, parse_all(name, texts, network)?)))?;
        }
        let ends = [(End::Source, source_pod, "source_pod"), (End::Destination, destination_pod, "destination_pod")];
        for (end, texts, name) in ends {
            add(&mut fields, texts, |texts| Ok(Field::Pod(end, parse_all(name, texts, name_prefix)?)))?;
        }
        let ends =
            [(End::Source, source_label, "source_label"), (End::Destination, destination_label, "destination_label")];
        for (end, texts, name) in ends {
            add(&mut fields, texts, |texts| Ok(Field::Label(end, parse_all(name, texts, Selector::parse)?)))?;
        }
        let ends = [
            (End::Source, source_service, "source_service"),
            (End::Destination, destination_service, "destination_service"),
        ];
        for (end, texts, name) in ends {
            add(&mut fields, texts, |texts| Ok(Field::Service(end, parse_all(name, texts, name_prefix)?)))?;
        }
        let ends = [
            (End::Source, source_cluster_name, "source_cluster_name"),
            (End::Destination, destination_cluster_name, "destination_cluster_name"),
        ];
        for (end, texts, name) in ends {
            add(&mut fields, texts, |texts| Ok(Field::Cluster(end, parse_all(name, texts, cluster_name)?)))?;
        }
        let ends = [
            (End::Source, source_workload, "source_workload"),
            (End::Destination, destination_workload, "destination_workload"),
        ];
        for (end, workloads, name) in ends {
            add(&mut fields, workloads, |workloads| Ok(Field::Workload(end, parse_workloads(name, workloads)?)))?;
        }
        add(&mut fields, source_identity, |numbers| Ok(Field::Identity(End::Source, numbers.to_vec())))?;
        add(&mut fields, destination_identity, |numbers| Ok(Field::Identity(End::Destination, numbers.to_vec())))?;
        add(&mut fields, verdict, |verdicts| Ok(Field::Verdict(verdicts.to_vec())))?;
        add(&mut fields, event_type, |types| Ok(Field::EventType(parse_event_types(types)?)))?;
        add(&mut fields, protocol, |texts| Ok(Field::Protocol(parse_all("protocol", texts, protocol_name)?)))?;
        add(&mut fields, destination_port, |texts| {
            Ok(Field::DestinationPort(parse_all("destination_port", texts, port)?))
        })?;
        add(&mut fields, reply, |replies| Ok(Field::Reply(replies.to_vec())))?;
        add(&mut fields, node_name, |texts| Ok(Field::Node(parse_all("node_name", texts, node_pattern)?)))?;
        add(&mut fields, ip_version, |versions| Ok(Field::IpVersion(versions.to_vec())))?;
        add(&mut fields, uuid, |texts| Ok(Field::Uuid(texts.to_vec())))?;
        add(&mut fields, traffic_direction, |directions| Ok(Field::Direction(directions.to_vec())))?;
        add(&mut fields, drop_reason_desc, |reasons| Ok(Field::DropReason(reasons.to_vec())))?;
        Ok(Filter { fields })
    }

    fn values(&self) -> usize {
        self.fields.iter().map(Field::values).sum()
    }

    fn matches(&self, flow: &FlowView<'_>) -> bool {
        self.fields.iter().all(|field| field.matches(flow))
    }
}

/// A record, and the parts of its flow that filters have compared: most flows of a query match no filter, and are never
/// converted as a whole.
struct FlowView<'a> {
    joined: &'a ClusterRecord,
    source_labels: OnceCell<Vec<String>>,
    destination_labels: OnceCell<Vec<String>>,
    uuid: OnceCell<String>,
}

impl<'a> FlowView<'a> {
    fn new(joined: &'a ClusterRecord) -> FlowView<'a> {
        let (source_labels, destination_labels) = (OnceCell::new(), OnceCell::new());
        FlowView { joined, source_labels, destination_labels, uuid: OnceCell::new() }
    }

    fn end(&self, end: End) -> (&'a Endpoint, &'a EndSample) {
        let record = &self.joined.record;
        match end {
            End::Source => (&record.key.source, &record.sources),
            End::Destination => (&record.key.destination, &record.destinations),
        }
    }

    fn labels(&self, end: End) -> &[String] {
        let cell = match end {
            End::Source => &self.source_labels,
            End::Destination => &self.destination_labels,
        };
        let (end, sample) = self.end(end);
        cell.get_or_init(|| labels(end, sample))
    }

    fn uuid(&self) -> &str {
        self.uuid.get_or_init(|| uuid(self.joined))
    }
}

fn add<T>(
    fields: &mut Vec<Field>,
    values: &[T],
    parse: impl FnOnce(&[T]) -> Result<Field, FilterError>,
) -> Result<(), FilterError> {
    if !values.is_empty() {
        fields.push(parse(values)?);
    }
    Ok(())
}

fn parse_all<T>(
    field: &'static str,
    texts: &[String],
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, FilterError> {
    let invalid = |problem| FilterError::Invalid { field, problem };
    texts.iter().map(|text| parse(text).map_err(invalid)).collect()
}

fn network(text: &str) -> Result<IpNet, String> {
    let parsed = match text.contains('/') {
        true => text.parse().ok(),
        false => text.parse::<IpAddr>().ok().map(IpNet::from),
    };
    parsed.ok_or_else(|| format!("'{}': expected an address or a CIDR", text.escape_debug()))
}

fn name_prefix(text: &str) -> Result<NamePrefix, String> {
    let (namespace, prefix) = match text.split_once('/') {
        Some(names) => names,
        None if text.is_empty() => return Err("'': expected [NAMESPACE/]NAME".to_owned()),
        None => ("default", text),
    };
    Ok(NamePrefix { namespace: namespace.to_owned(), prefix: prefix.to_owned() })
}

fn cluster_name(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("'': expected the name of a cluster".to_owned()) } else { Ok(text.to_owned()) }
}

/// A value of a filter that is a message.
fn known<'a, M>(field: &'static str, given: &'a Strict<M>) -> Result<&'a M, FilterError> {
    match given.unknown {
        Some(number) => Err(FilterError::UnknownInValue { field, number }),
        None => Ok(&given.message),
    }
}

fn parse_event_types(types: &[Strict<EventTypeFilter>]) -> Result<Vec<EventTypeFilter>, FilterError> {
    types.iter().map(|given| known("event_type", given).copied()).collect()
}

fn parse_workloads(field: &'static str, workloads: &[Strict<Workload>]) -> Result<Vec<String>, FilterError> {
    let name = |given: &Strict<Workload>| {
        let Workload { name, kind } = known(field, given)?;
        if !kind.is_empty() {
            let problem = format!("kind '{}': flow records do not have kinds of workloads", kind.escape_debug());
            return Err(FilterError::Invalid { field, problem });
        }
        Ok(name.clone())
    };
    workloads.iter().map(name).collect()
}

fn protocol_name(text: &str) -> Result<ProtocolName, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "tcp" => ProtocolName::Tcp,
        "udp" => ProtocolName::Udp,
        "sctp" => ProtocolName::Sctp,
        "icmp" => ProtocolName::Icmp,
        "icmpv4" => ProtocolName::IcmpV4,
        "icmpv6" => ProtocolName::IcmpV6,
        "vrrp" | "igmp" => ProtocolName::Other,
        _ => return Err(format!("'{}': expected tcp, udp, sctp, icmp, icmpv4 or icmpv6", text.escape_debug())),
    })
}

fn port(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("'{}': expected a number from 0 to 65535", text.escape_debug()))
}

fn node_pattern(text: &str) -> Result<NodePattern, String> {
    let (cluster, node) = text.split_once('/').unwrap_or(("", text));
    // As in Cilium, one trailing dot of a name is ignored.
    let [cluster, node] =
        [cluster, node].map(|name| name.strip_suffix('.').filter(|name| !name.is_empty()).unwrap_or(name));
    let is_pattern =
        |text: &str| !text.ends_with('.') && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.*".contains(c));
    if text.is_empty() || !is_pattern(cluster) || !is_pattern(node) {
        return Err(format!("'{}': expected [CLUSTER/]NODE, with * for any text", text.escape_debug()));
    }
    let or_any = |text: &str| if text.is_empty() { "*".to_owned() } else { text.to_ascii_lowercase() };
    Ok(NodePattern { cluster: or_any(cluster), node: or_any(node) })
}

impl Field {
    fn values(&self) -> usize {
        match self {
            Field::Address(_, values) => values.len(),
            Field::Pod(_, values) | Field::Service(_, values) => values.len(),
            Field::Label(_, values) => values.len(),
            Field::Workload(_, values) | Field::Cluster(_, values) | Field::Uuid(values) => values.len(),
            Field::Identity(_, values) => values.len(),
            Field::Verdict(values)
            | Field::IpVersion(values)
            | Field::Direction(values)
            | Field::DropReason(values) => values.len(),
            Field::EventType(values) => values.len(),
            Field::Protocol(values) => values.len(),
            Field::DestinationPort(values) => values.len(),
            Field::Reply(values) => values.len(),
            Field::Node(values) => values.len(),
        }
    }

    fn matches(&self, flow: &FlowView<'_>) -> bool {
        let joined = flow.joined;
        let key = &joined.record.key;
        match self {
            Field::Address(end, networks) => {
                let addresses = &flow.end(*end).1.addresses;
                addresses.iter().any(|address| networks.iter().any(|network| network.contains(address)))
            }
            Field::Pod(end, names) => {
                let (end, sample) = flow.end(*end);
                names.iter().any(|name| name.names_pod(end, sample))
            }
            Field::Label(end, selectors) => {
                let labels = flow.labels(*end);
                selectors.iter().any(|selector| selector.matches(labels))
            }
            // The client end has no Service.
            Field::Service(End::Source, _) => false,
            Field::Service(End::Destination, names) => key
                .service
                .as_ref()
                .is_some_and(|service| names.iter().any(|wanted| wanted.names(&service.namespace, &service.name))),
            Field::Workload(end, names) => workload(flow.end(*end).0)
                .is_some_and(|name| names.iter().any(|wanted| wanted.is_empty() || wanted == name)),
            Field::Identity(end, numbers) => {
                let (end, sample) = flow.end(*end);
                numbers.contains(&identity(end, sample))
                    || sample.identities.iter().any(|identity| numbers.contains(&identity.num))
            }
            Field::Cluster(end, names) => {
                let name = flow.end(*end).0.cluster.as_deref().filter(|name| !name.is_empty()).unwrap_or(OWN_CLUSTER);
                names.iter().any(|wanted| wanted == name)
            }
            Field::Verdict(verdicts) => verdicts.contains(&verdict(key).into()),
            Field::EventType(types) => {
                let event = event_type(drop_reason(key));
                types.iter().any(|EventTypeFilter { r#type, match_sub_type, sub_type }| {
                    (*r#type == 0 || *r#type == event.r#type) && (!match_sub_type || *sub_type == event.sub_type)
                })
            }
            Field::Protocol(names) => {
                let protocol = layer4(key).and_then(|l4| l4.protocol);
                protocol.is_some_and(|protocol| names.iter().any(|name| name.is(&protocol)))
            }
            Field::DestinationPort(ports) => {
                let protocol = layer4(key).and_then(|l4| l4.protocol);
                let port = protocol.as_ref().and_then(destination_port);
                port.is_some_and(|port| ports.iter().any(|wanted| u32::from(*wanted) == port))
            }
            // In Hubble an unknown reply flag matches only drops. Here it is always known: a record has both directions.
            Field::Reply(replies) => replies.contains(&false),
            Field::Node(patterns) => {
                let seen_by = &joined.seen_by;
                let nodes = seen_by.source.iter().chain(&seen_by.destination).chain(&seen_by.other);
                nodes.chain([&joined.record.node]).any(|node| patterns.iter().any(|pattern| pattern.names(node)))
            }
            Field::IpVersion(versions) => {
                let addresses = || joined.record.sources.addresses.iter().chain(&joined.record.destinations.addresses);
                let version = |address: &IpAddr| if address.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 };
                match addresses().next() {
                    Some(_) => addresses().any(|address| versions.contains(&version(address).into())),
                    None => versions.contains(&IpVersion::NotUsed.into()),
                }
            }
            Field::Uuid(uuids) => uuids.iter().any(|wanted| wanted == flow.uuid()),
            Field::Direction(directions) => directions.contains(&direction(joined).into()),
            Field::DropReason(reasons) => drop_reason(key).is_some_and(|reason| reasons.contains(&reason.number())),
        }
    }
}

fn destination_port(protocol: &Protocol) -> Option<u32> {
    match protocol {
        Protocol::Tcp(ports) | Protocol::Udp(ports) | Protocol::Sctp(ports) => Some(ports.destination_port),
        Protocol::IcmpV4(_) | Protocol::IcmpV6(_) => None,
    }
}

impl ProtocolName {
    fn is(self, protocol: &Protocol) -> bool {
        match protocol {
            Protocol::Tcp(_) => self == ProtocolName::Tcp,
            Protocol::Udp(_) => self == ProtocolName::Udp,
            Protocol::Sctp(_) => self == ProtocolName::Sctp,
            Protocol::IcmpV4(_) => matches!(self, ProtocolName::Icmp | ProtocolName::IcmpV4),
            Protocol::IcmpV6(_) => matches!(self, ProtocolName::Icmp | ProtocolName::IcmpV6),
        }
    }
}

impl NamePrefix {
    fn names(&self, namespace: &str, name: &str) -> bool {
        let NamePrefix { namespace: wanted, prefix } = self;
        !(namespace.is_empty() && name.is_empty())
            && (wanted.is_empty() || wanted == namespace)
            && name.starts_with(prefix.as_str())
    }

    /// Pod of the flow, or one that its record lists.
    fn names_pod(&self, end: &Endpoint, sample: &EndSample) -> bool {
        let names = |pod: &Arc<str>| pod.split_once('/').is_some_and(|(namespace, name)| self.names(namespace, name));
        let namespace = end.namespace.as_deref().unwrap_or_default();
        self.names(namespace, pod_name(end, sample)) || sample.pods.iter().any(names)
    }
}

impl NodePattern {
    fn names(&self, node: &str) -> bool {
        let (cluster, node) = node.split_once('/').unwrap_or((OWN_CLUSTER, node));
        matches_pattern(&self.cluster, cluster) && matches_pattern(&self.node, node)
    }
}

/// `*` matches any text. The time is bounded by the product of the lengths.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| text.strip_prefix(first)) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests;
