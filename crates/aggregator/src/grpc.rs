//! Unary and server-streaming gRPC methods from functions.

use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures::Stream;
use prost::Message;
use tonic::Status;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic_prost::ProstCodec;

/// Largest request message: filters and times. One with 256 of the longest Kubernetes names is smaller.
const LARGEST_REQUEST: usize = 256 << 10;

/// Messages of a server-streaming response.
pub(crate) struct Answers<A>(Pin<Box<dyn Stream<Item = Result<A, Status>> + Send>>);

impl<A> Answers<A> {
    pub(crate) fn new(stream: impl Stream<Item = Result<A, Status>> + Send + 'static) -> Answers<A> {
        Answers(Box::pin(stream))
    }
}

impl<A> Stream for Answers<A> {
    type Item = Result<A, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        self.0.as_mut().poll_next(context)
    }
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

/// Handles a unary call.
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

struct Streaming<F>(F);

impl<Q, A, F> ServerStreamingService<Q> for Streaming<F>
where
    A: 'static,
    F: FnMut(Q) -> Result<Answers<A>, Status>,
{
    type Response = A;
    type ResponseStream = Answers<A>;
    type Future = Ready<Result<tonic::Response<Answers<A>>, Status>>;

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        ready((self.0)(request.into_inner()).map(tonic::Response::new))
    }
}

/// Handles a server-streaming call.
pub(crate) async fn streaming<Q, A>(request: Request, answer: impl FnMut(Q) -> Result<Answers<A>, Status>) -> Response
where
    Q: Message + Default + 'static,
    A: Message + 'static,
{
    let codec: ProstCodec<A, Q> = ProstCodec::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(LARGEST_REQUEST);
    grpc.server_streaming(Streaming(answer), request).await.map(Body::new)
}
