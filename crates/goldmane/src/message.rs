//! Messages of `goldmane.Flows`, `goldmane.Statistics` and `goldmane.FlowCollector`. Field numbers and enum values are those of the protocol.

use wire::{KnownFields, Strict};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Action {
    Unspecified = 0,
    Allow = 1,
    Deny = 2,
    /// Pass to the next tier, which NetworkPolicy does not have.
    Pass = 3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum EndpointType {
    Unspecified = 0,
    WorkloadEndpoint = 1,
    HostEndpoint = 2,
    NetworkSet = 3,
    Network = 4,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Reporter {
    Unspecified = 0,
    Source = 1,
    Destination = 2,
}

/// Kinds that flows use for Kubernetes policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum PolicyKind {
    Unspecified = 0,
    StagedGlobalNetworkPolicy = 4,
    StagedKubernetesNetworkPolicy = 5,
    NetworkPolicy = 6,
    Profile = 9,
    EndOfTier = 10,
    ClusterNetworkPolicy = 11,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum SortBy {
    Time = 0,
    DestName = 1,
    DestNamespace = 2,
    DestType = 3,
    SourceName = 4,
    SourceNamespace = 5,
    SourceType = 6,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum MatchType {
    Exact = 0,
    Fuzzy = 1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum FilterType {
    Unspecified = 0,
    DestName = 1,
    SourceName = 2,
    DestNamespace = 3,
    SourceNamespace = 4,
    PolicyTier = 5,
    PolicyName = 6,
    PolicyKind = 7,
    PolicyNamespace = 8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum StatisticType {
    PacketCount = 0,
    ByteCount = 1,
    LiveConnectionCount = 2,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum StatisticsGroupBy {
    Policy = 0,
    PolicyRule = 1,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum RuleDirection {
    Any = 0,
    Ingress = 1,
    Egress = 2,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FlowListRequest {
    #[prost(int64, tag = "1")]
    pub start_time_gte: i64,
    #[prost(int64, tag = "2")]
    pub start_time_lt: i64,
    #[prost(int64, tag = "3")]
    pub page: i64,
    #[prost(int64, tag = "4")]
    pub page_size: i64,
    #[prost(message, repeated, tag = "5")]
    pub sort_by: Vec<Strict<SortOption>>,
    #[prost(message, optional, tag = "6")]
    pub filter: Option<Strict<Filter>>,
    /// Ignored, as in Goldmane: flows are sums over the whole range.
    #[prost(int64, tag = "7")]
    pub aggregation_interval: i64,
}

impl KnownFields for FlowListRequest {
    const FIELDS: &'static [u32] = &[1, 2, 3, 4, 5, 6, 7];
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FlowListResult {
    #[prost(message, optional, tag = "1")]
    pub meta: Option<ListMetadata>,
    #[prost(message, repeated, tag = "2")]
    pub flows: Vec<FlowResult>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FlowResult {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(message, optional, tag = "2")]
    pub flow: Option<Flow>,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ListMetadata {
    #[prost(int64, tag = "1")]
    pub total_pages: i64,
    #[prost(int64, tag = "2")]
    pub total_results: i64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FlowStreamRequest {
    #[prost(int64, tag = "1")]
    pub start_time_gte: i64,
    #[prost(message, optional, tag = "2")]
    pub filter: Option<Strict<Filter>>,
    /// 15 or 0.
    #[prost(int64, tag = "3")]
    pub aggregation_interval: i64,
}

impl KnownFields for FlowStreamRequest {
    const FIELDS: &'static [u32] = &[1, 2, 3];
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FilterHintsRequest {
    #[prost(enumeration = "FilterType", tag = "1")]
    pub r#type: i32,
    #[prost(message, optional, tag = "2")]
    pub filter: Option<Strict<Filter>>,
    #[prost(int64, tag = "3")]
    pub start_time_gte: i64,
    #[prost(int64, tag = "4")]
    pub start_time_lt: i64,
    #[prost(int64, tag = "5")]
    pub page: i64,
    #[prost(int64, tag = "6")]
    pub page_size: i64,
}

impl KnownFields for FilterHintsRequest {
    const FIELDS: &'static [u32] = &[1, 2, 3, 4, 5, 6];
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FilterHintsResult {
    #[prost(message, optional, tag = "1")]
    pub meta: Option<ListMetadata>,
    #[prost(message, repeated, tag = "2")]
    pub hints: Vec<FilterHint>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FilterHint {
    #[prost(string, tag = "1")]
    pub value: String,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct SortOption {
    #[prost(enumeration = "SortBy", tag = "1")]
    pub sort_by: i32,
}

impl KnownFields for SortOption {
    const FIELDS: &'static [u32] = &[1];
}

/// Values of a field are alternatives, and all fields must match.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Filter {
    #[prost(message, repeated, tag = "1")]
    pub source_names: Vec<Strict<StringMatch>>,
    #[prost(message, repeated, tag = "2")]
    pub source_namespaces: Vec<Strict<StringMatch>>,
    #[prost(message, repeated, tag = "3")]
    pub dest_names: Vec<Strict<StringMatch>>,
    #[prost(message, repeated, tag = "4")]
    pub dest_namespaces: Vec<Strict<StringMatch>>,
    #[prost(message, repeated, tag = "5")]
    pub protocols: Vec<Strict<StringMatch>>,
    #[prost(message, repeated, tag = "6")]
    pub dest_ports: Vec<Strict<PortMatch>>,
    #[prost(enumeration = "Action", repeated, tag = "7")]
    pub actions: Vec<i32>,
    #[prost(message, repeated, tag = "8")]
    pub policies: Vec<Strict<PolicyMatch>>,
    #[prost(enumeration = "Reporter", tag = "9")]
    pub reporter: i32,
    #[prost(enumeration = "Action", repeated, tag = "10")]
    pub pending_actions: Vec<i32>,
}

impl KnownFields for Filter {
    const FIELDS: &'static [u32] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StringMatch {
    #[prost(string, tag = "1")]
    pub value: String,
    #[prost(enumeration = "MatchType", tag = "2")]
    pub r#type: i32,
}

impl KnownFields for StringMatch {
    const FIELDS: &'static [u32] = &[1, 2];
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PortMatch {
    #[prost(int64, tag = "1")]
    pub port: i64,
}

impl KnownFields for PortMatch {
    const FIELDS: &'static [u32] = &[1];
}

/// Criteria for policies. A text is a string up to Calico 3.31 and a [`StringMatch`] since 3.32, under the same number
/// and with the same wire type; both are served.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PolicyMatch {
    /// May be a kind that flows never have here.
    #[prost(int32, tag = "1")]
    pub kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub tier: Vec<u8>,
    #[prost(bytes = "vec", tag = "3")]
    pub namespace: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    pub name: Vec<u8>,
    #[prost(enumeration = "Action", tag = "5")]
    pub action: i32,
}

impl KnownFields for PolicyMatch {
    const FIELDS: &'static [u32] = &[1, 2, 3, 4, 5];
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct FlowKey {
    #[prost(string, tag = "1")]
    pub source_name: String,
    #[prost(string, tag = "2")]
    pub source_namespace: String,
    #[prost(enumeration = "EndpointType", tag = "3")]
    pub source_type: i32,
    #[prost(string, tag = "4")]
    pub dest_name: String,
    #[prost(string, tag = "5")]
    pub dest_namespace: String,
    #[prost(enumeration = "EndpointType", tag = "6")]
    pub dest_type: i32,
    #[prost(int64, tag = "7")]
    pub dest_port: i64,
    #[prost(string, tag = "8")]
    pub dest_service_name: String,
    #[prost(string, tag = "9")]
    pub dest_service_namespace: String,
    #[prost(string, tag = "10")]
    pub dest_service_port_name: String,
    #[prost(int64, tag = "11")]
    pub dest_service_port: i64,
    #[prost(string, tag = "12")]
    pub proto: String,
    #[prost(enumeration = "Reporter", tag = "13")]
    pub reporter: i32,
    #[prost(enumeration = "Action", tag = "14")]
    pub action: i32,
    #[prost(message, optional, tag = "15")]
    pub policies: Option<PolicyTrace>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Flow {
    #[prost(message, optional, tag = "1")]
    pub key: Option<FlowKey>,
    /// Seconds since 1970.
    #[prost(int64, tag = "2")]
    pub start_time: i64,
    #[prost(int64, tag = "3")]
    pub end_time: i64,
    #[prost(string, repeated, tag = "4")]
    pub source_labels: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub dest_labels: Vec<String>,
    #[prost(int64, tag = "6")]
    pub packets_in: i64,
    #[prost(int64, tag = "7")]
    pub packets_out: i64,
    #[prost(int64, tag = "8")]
    pub bytes_in: i64,
    #[prost(int64, tag = "9")]
    pub bytes_out: i64,
    #[prost(int64, tag = "10")]
    pub num_connections_started: i64,
    #[prost(int64, tag = "11")]
    pub num_connections_completed: i64,
    #[prost(int64, tag = "12")]
    pub num_connections_live: i64,
}

/// Message of a client of the collector.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FlowUpdate {
    #[prost(message, optional, tag = "1")]
    pub flow: Option<Flow>,
}

/// Answer of the collector to each [`FlowUpdate`], in their order. It has no fields.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct FlowReceipt {}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct PolicyTrace {
    #[prost(message, repeated, tag = "1")]
    pub enforced_policies: Vec<PolicyHit>,
    #[prost(message, repeated, tag = "2")]
    pub pending_policies: Vec<PolicyHit>,
}

#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct PolicyHit {
    #[prost(enumeration = "PolicyKind", tag = "1")]
    pub kind: i32,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub tier: String,
    #[prost(enumeration = "Action", tag = "5")]
    pub action: i32,
    #[prost(int64, tag = "6")]
    pub policy_index: i64,
    /// -1 if no rule matched.
    #[prost(int64, tag = "7")]
    pub rule_index: i64,
    /// The policy that isolates the pod; only for the kind `EndOfTier`.
    #[prost(message, optional, boxed, tag = "8")]
    pub trigger: Option<Box<PolicyHit>>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StatisticsRequest {
    #[prost(int64, tag = "1")]
    pub start_time_gte: i64,
    #[prost(int64, tag = "2")]
    pub start_time_lt: i64,
    #[prost(enumeration = "StatisticType", tag = "3")]
    pub r#type: i32,
    #[prost(enumeration = "StatisticsGroupBy", tag = "4")]
    pub group_by: i32,
    #[prost(message, optional, tag = "5")]
    pub policy_match: Option<Strict<PolicyMatch>>,
    #[prost(bool, tag = "6")]
    pub time_series: bool,
}

impl KnownFields for StatisticsRequest {
    const FIELDS: &'static [u32] = &[1, 2, 3, 4, 5, 6];
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct StatisticsResult {
    #[prost(message, optional, tag = "1")]
    pub policy: Option<PolicyHit>,
    #[prost(enumeration = "RuleDirection", tag = "2")]
    pub direction: i32,
    #[prost(enumeration = "StatisticsGroupBy", tag = "3")]
    pub group_by: i32,
    #[prost(enumeration = "StatisticType", tag = "4")]
    pub r#type: i32,
    #[prost(int64, repeated, tag = "5")]
    pub allowed_in: Vec<i64>,
    #[prost(int64, repeated, tag = "6")]
    pub allowed_out: Vec<i64>,
    #[prost(int64, repeated, tag = "7")]
    pub denied_in: Vec<i64>,
    #[prost(int64, repeated, tag = "8")]
    pub denied_out: Vec<i64>,
    #[prost(int64, repeated, tag = "9")]
    pub passed_in: Vec<i64>,
    #[prost(int64, repeated, tag = "10")]
    pub passed_out: Vec<i64>,
    /// Begins of windows, in seconds since 1970; empty if the values are sums.
    #[prost(int64, repeated, tag = "11")]
    pub x: Vec<i64>,
}
