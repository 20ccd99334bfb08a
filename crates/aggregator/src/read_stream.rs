//! Response streams with a stall timeout, because a call holds permits for which other calls wait.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{mpsc, oneshot};

/// Stall timeout: the call of a client that reads nothing for this long is cancelled.
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(30);

/// The client has read nothing for this duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client has read nothing for {} s", .0.as_secs())]
pub(crate) struct StalledReader(Duration);

/// A stream produced by a dedicated task. The task ends, and drops the inner stream, when the client stalls or
/// disconnects.
pub(crate) struct ReadStream<T, E> {
    items: mpsc::Receiver<Result<T, E>>,
    /// Receives the error if the client stalled.
    stalled: Option<oneshot::Receiver<E>>,
}

impl<T: Send + 'static, E: Send + 'static> ReadStream<T, E> {
    /// Queues at most `most_waiting` items for the client. If the client stalls, the stream ends with `error`.
    pub(crate) fn new(
        stream: impl Stream<Item = Result<T, E>> + Send + 'static,
        most_waiting: usize,
        stalled_after: Duration,
        error: impl FnOnce(StalledReader) -> E + Send + 'static,
    ) -> ReadStream<T, E> {
        let (sender, items) = mpsc::channel(most_waiting);
        let (report, stalled) = oneshot::channel();
        tokio::spawn(async move {
            if let Err(why) = forward(stream, &sender, stalled_after).await {
                // The send fails only if the response was dropped.
                drop(report.send(error(why)));
            }
        });
        ReadStream { items, stalled: Some(stalled) }
    }
}

async fn forward<T, E>(
    stream: impl Stream<Item = Result<T, E>>,
    sender: &mpsc::Sender<Result<T, E>>,
    stalled_after: Duration,
) -> Result<(), StalledReader> {
    let mut stream = std::pin::pin!(stream);
    loop {
        let item = tokio::select! {
            item = stream.next() => item,
            () = sender.closed() => return Ok(()),
        };
        let Some(item) = item else { return Ok(()) };
        if let Err(SendTimeoutError::Timeout(_)) = sender.send_timeout(item, stalled_after).await {
            return Err(StalledReader(stalled_after));
        }
    }
}

impl<T, E> Stream for ReadStream<T, E> {
    type Item = Result<T, E>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(item) = ready!(self.items.poll_recv(context)) {
            return Poll::Ready(Some(item));
        }
        let Some(stalled) = &mut self.stalled else { return Poll::Ready(None) };
        let error = ready!(Pin::new(stalled).poll(context));
        self.stalled = None;
        Poll::Ready(error.ok().map(Err))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::stream;
    use tokio::sync::Semaphore;

    use super::*;

    fn read(stream: impl Stream<Item = Result<i32, StalledReader>> + Send + 'static) -> ReadStream<i32, StalledReader> {
        ReadStream::new(stream, 2, Duration::from_millis(20), |why| why)
    }

    #[tokio::test]
    async fn stalled_client_loses_its_call() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = permits.clone().try_acquire_owned().unwrap();
        let endless = stream::repeat(()).map(move |()| {
            let _held = &permit;
            Ok(1)
        });
        let stream = read(endless);
        drop(permits.acquire().await.unwrap());
        let items: Vec<Result<i32, StalledReader>> = stream.collect().await;
        assert_eq!(items, [Ok(1), Ok(1), Err(StalledReader(Duration::from_millis(20)))]);
    }

    #[tokio::test]
    async fn finished_stream_ends_without_error() {
        let items: Vec<Result<i32, StalledReader>> = read(stream::iter([Ok(1), Ok(2), Ok(3)])).collect().await;
        assert_eq!(items, [Ok(1), Ok(2), Ok(3)]);
    }

    #[tokio::test]
    async fn call_ends_when_its_client_disconnects() {
        let permits = Arc::new(Semaphore::new(1));
        let permit = permits.clone().try_acquire_owned().unwrap();
        drop(read(stream::once(async move {
            let _held = permit;
            std::future::pending().await
        })));
        drop(permits.acquire().await.unwrap());
    }
}
