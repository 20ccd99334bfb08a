//! Messages of `observer.Observer`, `grpc.health.v1.Health`, and their parts. Field numbers and enum values are those
//! of the protocols. Messages contain only the supported fields.

use std::collections::BTreeMap;

use wire::{KnownFields, Strict, Timestamp};

/// Verdict on a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Verdict {
    Unknown = 0,
    Forwarded = 1,
    Dropped = 2,
    Audit = 4,
}

/// Side whose policies an event reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum TrafficDirection {
    Unknown = 0,
    Ingress = 1,
    Egress = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum IpVersion {
    NotUsed = 0,
    V4 = 1,
    V6 = 2,
}

/// Only `L3_L4` is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum FlowType {
    Unknown = 0,
    L3L4 = 1,
}

/// Buffer that lost events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum LostEventSource {
    Unknown = 0,
    PerfEventRingBuffer = 1,
    /// Records that were never received, or received too late.
    ObserverEventsQueue = 2,
    /// Records evicted before they were read.
    HubbleRingBuffer = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum NodeState {
    Unknown = 0,
    Connected = 1,
    Unavailable = 2,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Flow {
    #[prost(message, optional, tag = "1")]
    pub time: Option<Timestamp>,
    #[prost(enumeration = "Verdict", tag = "2")]
    pub verdict: i32,
    /// Same as [`Flow::drop_reason_desc`], for older clients.
    #[prost(uint32, tag = "3")]
    pub drop_reason: u32,
    #[prost(message, optional, tag = "5")]
    pub ip: Option<Ip>,
    #[prost(message, optional, tag = "6")]
    pub l4: Option<Layer4>,
    #[prost(message, optional, tag = "8")]
    pub source: Option<Endpoint>,
    #[prost(message, optional, tag = "9")]
    pub destination: Option<Endpoint>,
    #[prost(enumeration = "FlowType", tag = "10")]
    pub r#type: i32,
    #[prost(string, tag = "11")]
    pub node_name: String,
    #[prost(message, optional, tag = "19")]
    pub event_type: Option<EventType>,
    #[prost(message, optional, tag = "21")]
    pub destination_service: Option<Service>,
    #[prost(enumeration = "TrafficDirection", tag = "22")]
    pub traffic_direction: i32,
    #[prost(uint32, tag = "23")]
    pub policy_match_type: u32,
    /// A number of Cilium's `DropReason`.
    #[prost(int32, tag = "25")]
    pub drop_reason_desc: i32,
    #[prost(message, optional, tag = "26")]
    pub is_reply: Option<BoolValue>,
    #[prost(string, tag = "34")]
    pub uuid: String,
    #[prost(message, optional, tag = "41")]
    pub emitter: Option<Emitter>,
    #[prost(message, repeated, tag = "21001")]
    pub egress_allowed_by: Vec<Policy>,
    #[prost(message, repeated, tag = "21002")]
    pub ingress_allowed_by: Vec<Policy>,
    #[prost(message, repeated, tag = "21004")]
    pub egress_denied_by: Vec<Policy>,
    #[prost(message, repeated, tag = "21005")]
    pub ingress_denied_by: Vec<Policy>,
    #[prost(message, optional, tag = "150000")]
    pub extensions: Option<Any>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Ip {
    #[prost(string, tag = "1")]
    pub source: String,
    #[prost(string, tag = "2")]
    pub destination: String,
    #[prost(enumeration = "IpVersion", tag = "3")]
    pub ip_version: i32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Layer4 {
    #[prost(oneof = "Protocol", tags = "1, 2, 3, 4, 5")]
    pub protocol: Option<Protocol>,
}

#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum Protocol {
    #[prost(message, tag = "1")]
    Tcp(Ports),
    #[prost(message, tag = "2")]
    Udp(Ports),
    #[prost(message, tag = "3")]
    IcmpV4(Icmp),
    #[prost(message, tag = "4")]
    IcmpV6(Icmp),
    #[prost(message, tag = "5")]
    Sctp(Ports),
}

/// Ports of TCP, UDP and SCTP. The source port (field 1) is absent, since a flow has many connections.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Ports {
    #[prost(uint32, tag = "2")]
    pub destination_port: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Icmp {
    #[prost(uint32, tag = "1")]
    pub r#type: u32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Endpoint {
    #[prost(uint32, tag = "2")]
    pub identity: u32,
    #[prost(string, tag = "3")]
    pub namespace: String,
    /// `k8s:key=value` or `reserved:name`
    #[prost(string, repeated, tag = "4")]
    pub labels: Vec<String>,
    #[prost(string, tag = "5")]
    pub pod_name: String,
    #[prost(message, repeated, tag = "6")]
    pub workloads: Vec<Workload>,
    #[prost(string, tag = "7")]
    pub cluster_name: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Workload {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub kind: String,
}

impl KnownFields for Workload {
    const FIELDS: &'static [u32] = &[1, 2];
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EventType {
    #[prost(int32, tag = "1")]
    pub r#type: i32,
    #[prost(int32, tag = "2")]
    pub sub_type: i32,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Service {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Emitter {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Policy {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(string, repeated, tag = "3")]
    pub labels: Vec<String>,
    #[prost(uint64, tag = "4")]
    pub revision: u64,
    #[prost(string, tag = "5")]
    pub kind: String,
}

/// `google.protobuf.BoolValue`
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BoolValue {
    #[prost(bool, tag = "1")]
    pub value: bool,
}

/// `google.protobuf.UInt32Value`
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct UInt32Value {
    #[prost(uint32, tag = "1")]
    pub value: u32,
}

/// `google.protobuf.Any`
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// `google.protobuf.Struct`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Struct {
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, Value>,
}

/// `google.protobuf.Value`
#[derive(Clone, PartialEq, prost::Message)]
pub struct Value {
    #[prost(oneof = "ValueKind", tags = "2, 3, 6")]
    pub kind: Option<ValueKind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ValueKind {
    #[prost(double, tag = "2")]
    Number(f64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(message, tag = "6")]
    List(ListValue),
}

/// `google.protobuf.ListValue`
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListValue {
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// Supported fields of `flow.FlowFilter`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FlowFilter {
    #[prost(string, repeated, tag = "1")]
    pub source_ip: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub source_pod: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    pub destination_ip: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    pub destination_pod: Vec<String>,
    #[prost(int32, repeated, tag = "5")]
    pub verdict: Vec<i32>,
    #[prost(message, repeated, tag = "6")]
    pub event_type: Vec<Strict<EventTypeFilter>>,
    #[prost(string, repeated, tag = "10")]
    pub source_label: Vec<String>,
    #[prost(string, repeated, tag = "11")]
    pub destination_label: Vec<String>,
    #[prost(string, repeated, tag = "12")]
    pub protocol: Vec<String>,
    #[prost(string, repeated, tag = "14")]
    pub destination_port: Vec<String>,
    #[prost(bool, repeated, tag = "15")]
    pub reply: Vec<bool>,
    #[prost(string, repeated, tag = "16")]
    pub source_service: Vec<String>,
    #[prost(string, repeated, tag = "17")]
    pub destination_service: Vec<String>,
    #[prost(uint32, repeated, tag = "19")]
    pub source_identity: Vec<u32>,
    #[prost(uint32, repeated, tag = "20")]
    pub destination_identity: Vec<u32>,
    #[prost(string, repeated, tag = "24")]
    pub node_name: Vec<String>,
    #[prost(int32, repeated, tag = "25")]
    pub ip_version: Vec<i32>,
    #[prost(message, repeated, tag = "26")]
    pub source_workload: Vec<Strict<Workload>>,
    #[prost(message, repeated, tag = "27")]
    pub destination_workload: Vec<Strict<Workload>>,
    #[prost(string, repeated, tag = "29")]
    pub uuid: Vec<String>,
    #[prost(int32, repeated, tag = "30")]
    pub traffic_direction: Vec<i32>,
    #[prost(int32, repeated, tag = "33")]
    pub drop_reason_desc: Vec<i32>,
    #[prost(string, repeated, tag = "37")]
    pub source_cluster_name: Vec<String>,
    #[prost(string, repeated, tag = "38")]
    pub destination_cluster_name: Vec<String>,
}

impl KnownFields for FlowFilter {
    const FIELDS: &'static [u32] =
        &[1, 2, 3, 4, 5, 6, 10, 11, 12, 14, 15, 16, 17, 19, 20, 24, 25, 26, 27, 29, 30, 33, 37, 38];
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EventTypeFilter {
    #[prost(int32, tag = "1")]
    pub r#type: i32,
    #[prost(bool, tag = "2")]
    pub match_sub_type: bool,
    #[prost(int32, tag = "3")]
    pub sub_type: i32,
}

impl KnownFields for EventTypeFilter {
    const FIELDS: &'static [u32] = &[1, 2, 3];
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetFlowsRequest {
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(bool, tag = "3")]
    pub follow: bool,
    #[prost(message, repeated, tag = "5")]
    pub blacklist: Vec<Strict<FlowFilter>>,
    #[prost(message, repeated, tag = "6")]
    pub whitelist: Vec<Strict<FlowFilter>>,
    #[prost(message, optional, tag = "7")]
    pub since: Option<Timestamp>,
    #[prost(message, optional, tag = "8")]
    pub until: Option<Timestamp>,
    #[prost(bool, tag = "9")]
    pub first: bool,
    /// `google.protobuf.FieldMask`: names of the fields that the client requests. It is ignored: all are sent.
    #[prost(bytes = "vec", optional, tag = "10")]
    pub field_mask: Option<Vec<u8>>,
}

impl KnownFields for GetFlowsRequest {
    const FIELDS: &'static [u32] = &[1, 3, 5, 6, 7, 8, 9, 10];
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct GetFlowsResponse {
    #[prost(oneof = "ResponseType", tags = "1, 3")]
    pub response_type: Option<ResponseType>,
    #[prost(string, tag = "1000")]
    pub node_name: String,
    #[prost(message, optional, tag = "1001")]
    pub time: Option<Timestamp>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub enum ResponseType {
    #[prost(message, tag = "1")]
    Flow(Box<Flow>),
    #[prost(message, tag = "3")]
    LostEvents(LostEvent),
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct LostEvent {
    #[prost(enumeration = "LostEventSource", tag = "1")]
    pub source: i32,
    #[prost(uint64, tag = "2")]
    pub num_events_lost: u64,
}

/// A request without fields.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct EmptyRequest {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerStatusResponse {
    #[prost(uint64, tag = "1")]
    pub num_flows: u64,
    #[prost(uint64, tag = "2")]
    pub max_flows: u64,
    #[prost(uint64, tag = "3")]
    pub seen_flows: u64,
    #[prost(uint64, tag = "4")]
    pub uptime_ns: u64,
    #[prost(message, optional, tag = "5")]
    pub num_connected_nodes: Option<UInt32Value>,
    #[prost(message, optional, tag = "6")]
    pub num_unavailable_nodes: Option<UInt32Value>,
    #[prost(string, repeated, tag = "7")]
    pub unavailable_nodes: Vec<String>,
    #[prost(string, tag = "8")]
    pub version: String,
    #[prost(double, tag = "9")]
    pub flows_rate: f64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetNodesResponse {
    #[prost(message, repeated, tag = "1")]
    pub nodes: Vec<Node>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Node {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(enumeration = "NodeState", tag = "4")]
    pub state: i32,
    #[prost(uint64, tag = "9")]
    pub seen_flows: u64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct GetNamespacesResponse {
    #[prost(message, repeated, tag = "1")]
    pub namespaces: Vec<Namespace>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, prost::Message)]
pub struct Namespace {
    #[prost(string, tag = "1")]
    pub cluster: String,
    #[prost(string, tag = "2")]
    pub namespace: String,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    Unknown = 0,
    Serving = 1,
}
