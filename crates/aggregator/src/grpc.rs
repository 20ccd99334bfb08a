//! gRPC methods from functions, as far as interfaces need them.

use std::future::{Future, Ready};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use futures::{Stream, StreamExt};
use prost::Message;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic_prost::ProstCodec;

/// Requests are filters and times. One with 256 of the longest names that Kubernetes has is smaller.
const LARGEST_REQUEST: usize = 256 << 10;

/// A client that reads nothing for so long loses its call: calls hold permits that others wait for.
const STALLED_AFTER: Duration = Duration::from_secs(60);

/// Messages that wait for a client, of some kB each.
const MOST_WAITING: usize = 64;

/// The response messages of a server-streaming call. A task of its own makes them, and ends when the client stalls.
pub(crate) struct Answers<A> {
    messages: mpsc::Receiver<Result<A, Status>>,
    /// The status of a call that the client lost.
    stalled: Option<oneshot::Receiver<Status>>,
}

impl<A: Send + 'static> Answers<A> {
    pub(crate) fn new(stream: impl Stream<Item = Result<A, Status>> + Send + 'static) -> Answers<A> {
        Answers::with_patience(stream, STALLED_AFTER)
    }

    fn with_patience(
        stream: impl Stream<Item = Result<A, Status>> + Send + 'static,
        stalled_after: Duration,
    ) -> Answers<A> {
        let (sender, messages) = mpsc::channel(MOST_WAITING);
        let (lost, stalled) = oneshot::channel();
        tokio::spawn(async move {
            let forwarded = forward(stream, &sender, stalled_after).await;
            if let Err(status) = forwarded {
                // Without a receiver, nobody reads the call any more.
                drop(lost.send(status));
            }
        });
        Answers { messages, stalled: Some(stalled) }
    }
}

/// # Errors
/// If the client has read nothing for `stalled_after`.
async fn forward<A>(
    stream: impl Stream<Item = Result<A, Status>>,
    sender: &mpsc::Sender<Result<A, Status>>,
    stalled_after: Duration,
) -> Result<(), Status> {
    let mut stream = std::pin::pin!(stream);
    loop {
        let message = tokio::select! {
            message = stream.next() => message,
            () = sender.closed() => return Ok(()),
        };
        let Some(message) = message else { return Ok(()) };
        if let Err(SendTimeoutError::Timeout(_)) = sender.send_timeout(message, stalled_after).await {
            let why = format!("the client has read nothing for {} s", stalled_after.as_secs());
            return Err(Status::deadline_exceeded(why));
        }
    }
}

impl<A> Stream for Answers<A> {
    type Item = Result<A, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        if let Some(message) = ready!(self.messages.poll_recv(context)) {
            return Poll::Ready(Some(message));
        }
        let Some(stalled) = &mut self.stalled else { return Poll::Ready(None) };
        let status = ready!(Pin::new(stalled).poll(context));
        self.stalled = None;
        Poll::Ready(status.ok().map(Err))
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

/// Answers a call of one message with one message.
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
        std::future::ready((self.0)(request.into_inner()).map(tonic::Response::new))
    }
}

/// Answers a call of one message with a stream.
pub(crate) async fn streaming<Q, A>(request: Request, answer: impl FnMut(Q) -> Result<Answers<A>, Status>) -> Response
where
    Q: Message + Default + 'static,
    A: Message + 'static,
{
    let codec: ProstCodec<A, Q> = ProstCodec::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(LARGEST_REQUEST);
    grpc.server_streaming(Streaming(answer), request).await.map(Body::new)
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[tokio::test]
    async fn stalled_client_loses_its_call() {
        let permits = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
        let permit = permits.clone().try_acquire_owned().unwrap();
        let endless = stream::repeat(()).map(move |()| {
            let _held = &permit;
            Ok(1)
        });
        let answers = Answers::with_patience(endless, Duration::from_millis(20));
        drop(permits.acquire().await.unwrap());
        let messages: Vec<Result<i32, Status>> = answers.collect().await;
        let (last, sent) = messages.split_last().unwrap();
        assert_eq!(last.as_ref().unwrap_err().code(), tonic::Code::DeadlineExceeded);
        assert_eq!(sent.iter().filter(|message| message.is_ok()).count(), MOST_WAITING);
    }

    #[tokio::test]
    async fn finished_stream_ends_without_error() {
        let answers = Answers::new(stream::iter([Ok(1), Err(Status::not_found("2")), Ok(3)]));
        let messages: Vec<Result<i32, Status>> = answers.collect().await;
        assert_eq!(messages.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true]);
    }

    #[tokio::test]
    async fn call_ends_when_the_client_has_gone() {
        let permits = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
        let permit = permits.clone().try_acquire_owned().unwrap();
        let waiting = stream::once(async move {
            let _held = permit;
            std::future::pending::<Result<i32, Status>>().await
        });
        drop(Answers::new(waiting));
        drop(permits.acquire().await.unwrap());
    }
}
