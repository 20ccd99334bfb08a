//! The aggregator's side of delivery: decodes the call of an agent and encodes the response.

use std::future::{Ready, ready};

use http::{Request, Response};
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Status, codegen::Body as HttpBody};
use tonic_prost::ProstCodec;

use crate::message::{BATCH_BYTES, LARGEST_RECORD, PushReceipt, PushRequest};

/// Path of the call.
pub const PATH: &str = "/ringfence.flows.v1.FlowCollector/Push";

/// Limit of the message size: a batch and the other fields.
const LARGEST_MESSAGE: usize = 2 * BATCH_BYTES + LARGEST_RECORD;

struct Receive<F>(F);

impl<F: FnMut(PushRequest) -> Result<PushReceipt, Status>> UnaryService<PushRequest> for Receive<F> {
    type Response = PushReceipt;
    type Future = Ready<Result<tonic::Response<PushReceipt>, Status>>;

    fn call(&mut self, request: tonic::Request<PushRequest>) -> Self::Future {
        ready((self.0)(request.into_inner()).map(tonic::Response::new))
    }
}

/// Decodes the call, passes the batch to `answer`, and encodes its receipt. Messages above `LARGEST_MESSAGE` are refused.
pub async fn receive<B, F>(request: Request<B>, answer: F) -> Response<Body>
where
    B: HttpBody + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
    F: FnMut(PushRequest) -> Result<PushReceipt, Status>,
{
    let codec: ProstCodec<PushReceipt, PushRequest> = ProstCodec::default();
    Grpc::new(codec).max_decoding_message_size(LARGEST_MESSAGE).unary(Receive(answer), request).await
}
