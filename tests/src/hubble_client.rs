//! A client of Hubble's Observer API, written from the published protocol (api/v1/flow/flow.proto and
//! api/v1/observer/observer.proto of Cilium). It must not use `crates/hubble`.

use std::net::SocketAddr;

use tonic::Status;

use crate::grpc_bytes::{Bytes, Fields, GrpcClient, Writer};

/// Fields of `flow.FlowFilter`: number and name.
pub const FLOW_FILTER: [(u32, &str); 41] = [
    (1, "source_ip"),
    (2, "source_pod"),
    (3, "destination_ip"),
    (4, "destination_pod"),
    (5, "verdict"),
    (6, "event_type"),
    (7, "source_fqdn"),
    (8, "destination_fqdn"),
    (9, "http_status_code"),
    (10, "source_label"),
    (11, "destination_label"),
    (12, "protocol"),
    (13, "source_port"),
    (14, "destination_port"),
    (15, "reply"),
    (16, "source_service"),
    (17, "destination_service"),
    (18, "dns_query"),
    (19, "source_identity"),
    (20, "destination_identity"),
    (21, "http_method"),
    (22, "http_path"),
    (23, "tcp_flags"),
    (24, "node_name"),
    (25, "ip_version"),
    (26, "source_workload"),
    (27, "destination_workload"),
    (28, "trace_id"),
    (29, "uuid"),
    (30, "traffic_direction"),
    (31, "http_url"),
    (32, "http_header"),
    (33, "drop_reason_desc"),
    (34, "source_ip_xlated"),
    (35, "interface"),
    (36, "node_labels"),
    (37, "source_cluster_name"),
    (38, "destination_cluster_name"),
    (39, "ip_trace_id"),
    (40, "encrypted"),
    (999, "experimental"),
];

/// A connection to `observer.Observer`.
pub struct HubbleClient(GrpcClient);

/// `observer.GetFlowsRequest`.
#[derive(Debug, Clone, Default)]
pub struct FlowsRequest {
    pub number: u64,
    pub first: bool,
    /// Encoded `flow.FlowFilter`.
    pub whitelist: Vec<Writer>,
    pub blacklist: Vec<Writer>,
    pub since: Option<ProtocolTime>,
    pub until: Option<ProtocolTime>,
}

/// `google.protobuf.Timestamp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProtocolTime {
    pub seconds: i64,
    pub nanos: i64,
}

/// A `flow.Flow` with its time.
#[derive(Debug, Clone)]
pub struct FlowAnswer {
    pub time: ProtocolTime,
    flow: Bytes,
}

impl FlowsRequest {
    pub fn encode(&self) -> Writer {
        let FlowsRequest { number, first, whitelist, blacklist, since, until } = self;
        let mut writer = Writer::default();
        if *number > 0 {
            writer = writer.number(1, number.cast_signed());
        }
        for (field, filters) in [(5, blacklist), (6, whitelist)] {
            writer = filters.iter().fold(writer, |writer, filter| writer.message(field, filter.clone()));
        }
        for (field, time) in [(7, since), (8, until)] {
            if let Some(ProtocolTime { seconds, nanos }) = time {
                writer = writer.message(field, Writer::default().number(1, *seconds).number(2, *nanos));
            }
        }
        if *first { writer.number(9, 1) } else { writer }
    }
}

impl FlowAnswer {
    fn read(response: &Bytes) -> FlowAnswer {
        let response = Fields::read(response);
        let time = response.message(1001);
        let time = ProtocolTime { seconds: time.number(1), nanos: time.number(2) };
        FlowAnswer { time, flow: response.all(1).first().expect("a flow").to_vec() }
    }

    pub fn flow(&self) -> Fields {
        Fields::read(&self.flow)
    }
}

impl HubbleClient {
    /// # Panics
    /// If the connection fails.
    pub fn connect(address: SocketAddr) -> HubbleClient {
        HubbleClient(GrpcClient::connect(address))
    }

    /// Calls `GetFlows` until the stream ends.
    ///
    /// # Errors
    /// The server's error status.
    pub fn flows(&self, request: &Writer) -> Result<Vec<FlowAnswer>, Status> {
        let responses = self.0.all("/observer.Observer/GetFlows", request.clone().finish())?;
        Ok(responses.iter().map(FlowAnswer::read).collect())
    }
}
