//! A client of Goldmane's API, written from the published protocol (goldmane/proto/api.proto of Calico). It must not use
//! `crates/goldmane`.

use std::net::SocketAddr;

use tonic::Status;

use crate::grpc_bytes::{Fields, GrpcClient, Writer};

/// Fields of `goldmane.Filter`: number and name.
pub const FILTER: [(u32, &str); 10] = [
    (1, "source_names"),
    (2, "source_namespaces"),
    (3, "dest_names"),
    (4, "dest_namespaces"),
    (5, "protocols"),
    (6, "dest_ports"),
    (7, "actions"),
    (8, "policies"),
    (9, "reporter"),
    (10, "pending_actions"),
];

/// A connection to `goldmane.Flows`.
pub struct GoldmaneClient(GrpcClient);

/// `goldmane.FlowResult`.
#[derive(Debug, Clone)]
pub struct FlowSum {
    pub id: i64,
    /// `goldmane.Flow`
    pub flow: Vec<u8>,
}

/// `goldmane.FlowListResult`.
#[derive(Debug, Clone)]
pub struct FlowPage {
    pub pages: i64,
    pub results: i64,
    pub flows: Vec<FlowSum>,
}

impl GoldmaneClient {
    /// # Panics
    /// If the connection fails.
    pub fn connect(address: SocketAddr) -> GoldmaneClient {
        GoldmaneClient(GrpcClient::connect(address))
    }

    /// Calls `Flows/List`: a page of the flows whose windows begin from a time and before another, in seconds since
    /// 1970.
    ///
    /// # Errors
    /// The server's error status.
    pub fn list(&self, filter: &Writer, range: (i64, i64), page: i64, page_size: i64) -> Result<FlowPage, Status> {
        let request = Writer::default().number(1, range.0).number(2, range.1).number(3, page).number(4, page_size);
        let request = request.message(6, filter.clone());
        let answer = Fields::read(&self.0.unary("/goldmane.Flows/List", request.finish())?);
        let meta = answer.message(1);
        let flows = answer
            .messages(2)
            .into_iter()
            .map(|result| FlowSum { id: result.number(1), flow: result.all(2).first().expect("a flow").to_vec() });
        Ok(FlowPage { pages: meta.number(1), results: meta.number(2), flows: flows.collect() })
    }
}
