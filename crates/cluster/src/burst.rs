//! Debounce of file system events: a save, or an update of a ConfigMap, is a burst of them.

use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::time::{Instant, timeout};

/// When a burst of events ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BurstLimits {
    /// The burst ends when no event has arrived for this long.
    pub quiet: Duration,
    /// Upper bound, for a folder that changes continuously.
    pub longest: Duration,
}

/// Waits for a burst of events to end, and returns when it began. Pending forever without a stream, or if the stream
/// fails or ends before an event: the caller's resync timer ends the wait.
pub async fn burst_end<S, T, E>(events: Option<&mut S>, limits: BurstLimits) -> Instant
where
    S: Stream<Item = Result<T, E>> + Unpin,
{
    let Some(events) = events else { return std::future::pending().await };
    if !matches!(events.next().await, Some(Ok(_))) {
        return std::future::pending().await;
    }
    let began = Instant::now();
    let deadline = began + limits.longest;
    while Instant::now() < deadline
        && let Ok(Some(Ok(_))) = timeout(limits.quiet, events.next()).await
    {}
    began
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use tokio::time::sleep;

    use super::*;

    const LIMITS: BurstLimits = BurstLimits { quiet: Duration::from_millis(10), longest: Duration::from_millis(200) };

    /// An event after each of these times.
    fn events(times: Vec<u64>) -> impl Stream<Item = Result<(), ()>> + Unpin {
        Box::pin(stream::iter(times).then(async |millis| {
            sleep(Duration::from_millis(millis)).await;
            Ok(())
        }))
    }

    /// Milliseconds from the start to the burst's begin and to its end.
    async fn burst(times: Vec<u64>) -> (u128, u128) {
        let start = Instant::now();
        let began = burst_end(Some(&mut events(times)), LIMITS).await;
        ((began - start).as_millis(), start.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn burst_ends_when_events_pause() {
        assert_eq!(burst(vec![5, 3, 3, 50, 3]).await, (5, 21));
    }

    #[tokio::test(start_paused = true)]
    async fn continuous_events_end_at_the_bound() {
        let (began, ended) = burst(vec![4; 100]).await;
        assert_eq!((began, ended), (4, 204));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_stream_is_left_to_the_resync() {
        let mut failed = stream::iter([Err::<(), ()>(())]);
        assert!(timeout(Duration::from_secs(60), burst_end(Some(&mut failed), LIMITS)).await.is_err());
    }
}
