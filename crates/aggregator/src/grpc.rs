//! Adapters that serve functions as gRPC methods of the Hubble and Goldmane interfaces.

use std::future::{Future, Ready};
use std::pin::Pin;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures::Stream;
use prost::Message;
use tonic::Status;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic_prost::ProstCodec;

use crate::read_stream::{ReadStream, STALLED_AFTER};

/// Size limit of a request, which consists of filters and times: more than 256 of the longest Kubernetes names.
const LARGEST_REQUEST: usize = 256 << 10;

/// Queued messages per client, of some kB each.
const MOST_WAITING: usize = 64;

/// The response messages of a server-streaming call.
pub(crate) type Answers<A> = ReadStream<A, Status>;

/// Response messages that end with an error when the client stalls.
pub(crate) fn answers<A: Send + 'static>(stream: impl Stream<Item = Result<A, Status>> + Send + 'static) -> Answers<A> {
    ReadStream::new(stream, MOST_WAITING, STALLED_AFTER, |why| Status::deadline_exceeded(why.to_string()))
}

struct Unary<F>(F);

impl<Q, A, F, R> UnaryService<Q> for Unary<F>
where
    F: FnMut(Q) -> R,
    R: Future<Output = Result<A, Status>> + Send + 'static,
{
    type Response = A;
    type Future = Pin<Box<dyn Future<Output = Result<tonic::Response<A>, Status>> + Send>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async { answer.await.map(tonic::Response::new) })
    }
}

/// Serves a unary call.
pub(crate) async fn unary<Q, A, R>(request: Request, answer: impl FnMut(Q) -> R) -> Response
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    R: Future<Output = Result<A, Status>> + Send + 'static,
{
    let codec: ProstCodec<A, Q> = ProstCodec::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(LARGEST_REQUEST);
    grpc.unary(Unary(answer), request).await.map(Body::new)
}

struct StreamingHandler<F>(F);

impl<Q, A, F> ServerStreamingService<Q> for StreamingHandler<F>
where
    A: 'static,
    F: FnMut(Q) -> Result<Answers<A>, Status>,
{
    type Response = A;
    type ResponseStream = Answers<A>;
    type Future = Ready<Result<tonic::Response<Answers<A>>, Status>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        std::future::ready((self.0)(request.into_inner()).map(tonic::Response::new))
    }
}

/// Serves a server-streaming call.
pub(crate) async fn streaming<Q, A>(request: Request, answer: impl FnMut(Q) -> Result<Answers<A>, Status>) -> Response
where
    Q: Message + Default + 'static,
    A: Message + 'static,
{
    let codec: ProstCodec<A, Q> = ProstCodec::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(LARGEST_REQUEST);
    grpc.server_streaming(StreamingHandler(answer), request).await.map(Body::new)
}
