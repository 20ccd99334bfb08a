//! When a connection is idle: no request begins, and no response is in progress.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use tokio::time::sleep;

/// Idle timeout after the first request. Agents send records every 15 s over a connection that they keep.
const IDLE: Duration = Duration::from_secs(60);

/// Requests of one connection.
#[derive(Debug, Clone, Default)]
pub(crate) struct Activity {
    requests: Arc<AtomicU64>,
    /// Responses in progress.
    responses: Arc<AtomicU64>,
}

/// A response in progress, until it is dropped.
struct ResponseGuard(Arc<AtomicU64>);

impl ResponseGuard {
    fn new(responses: &Arc<AtomicU64>) -> ResponseGuard {
        responses.fetch_add(1, Ordering::Relaxed);
        ResponseGuard(responses.clone())
    }
}

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Activity {
    /// Counts the request, and its response until the end of the body.
    pub(crate) fn track<E, F: Future<Output = Result<Response<Body>, E>>>(
        &self,
        response: F,
    ) -> impl Future<Output = Result<Response<Body>, E>> + use<E, F> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let guard = ResponseGuard::new(&self.responses);
        async { Ok(response.await?.map(|body| Body::new(TrackedBody { body, _guard: guard }))) }
    }

    /// Waits until no request has begun within `first` of the start, or none in [`IDLE`] after the first.
    pub(crate) async fn idle(self, first: Duration) {
        sleep(first).await;
        let mut before = 0;
        loop {
            let requests = self.requests.load(Ordering::Relaxed);
            let is_responding = self.responses.load(Ordering::Relaxed) > 0;
            if requests == before && !is_responding {
                return;
            }
            before = requests;
            sleep(IDLE).await;
        }
    }
}

/// A body that holds its guard until it ends.
struct TrackedBody {
    body: Body,
    _guard: ResponseGuard,
}

impl HttpBody for TrackedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
