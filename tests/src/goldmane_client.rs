//! A client of Goldmane's API, written from the published protocol (goldmane/proto/api.proto of Calico). It must not use
//! `crates/goldmane`.

use std::net::SocketAddr;

use std::time::Duration;

use tonic::Status;

use crate::grpc_bytes::{Fields, GrpcClient, Messages, Writer};

/// Longest wait for a flow of a stream.
const PATIENCE: Duration = Duration::from_secs(60);

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

/// A stream of `Flows/Stream`.
pub struct FlowStream<'a>(Messages<'a>);

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

    /// Calls `Flows/FilterHints`: values of a field by the number of its `FilterType`.
    ///
    /// # Errors
    /// The server's error status.
    pub fn hints(&self, kind: i64, filter: &Writer, range: (i64, i64)) -> Result<Vec<String>, Status> {
        let request = Writer::default().number(1, kind).message(2, filter.clone());
        let request = request.number(3, range.0).number(4, range.1);
        let answer = Fields::read(&self.0.unary("/goldmane.Flows/FilterHints", request.finish())?);
        Ok(answer.messages(2).iter().map(|hint| hint.text(1)).collect())
    }

    /// Calls `Flows/Stream`: flows of the windows that begin from a time, in seconds since 1970.
    ///
    /// # Errors
    /// The server's error status.
    pub fn stream(&self, filter: &Writer, start: i64) -> Result<FlowStream<'_>, Status> {
        let request = Writer::default().number(1, start).message(2, filter.clone());
        self.0.stream("/goldmane.Flows/Stream", request.finish()).map(FlowStream)
    }

    /// Calls `Statistics/List`, and returns all `goldmane.StatisticsResult`.
    ///
    /// # Errors
    /// The server's error status.
    pub fn statistics(&self, request: Writer) -> Result<Vec<Fields>, Status> {
        let results = self.0.all("/goldmane.Statistics/List", request.finish())?;
        Ok(results.iter().map(|result| Fields::read(result)).collect())
    }
}

impl FlowStream<'_> {
    /// The next `goldmane.Flow`.
    ///
    /// # Panics
    /// If the stream ends, or no flow arrives in time.
    pub fn next_flow(&mut self) -> Fields {
        let result = self.0.next(PATIENCE).expect("no error").expect("a flow");
        Fields::read(&result).message(2)
    }
}
