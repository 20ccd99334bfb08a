//! The body of a stream of deltas: opening frames, live frames, and keepalives.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Bytes;
use feed::{Position, sse};
use futures::Stream;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

use super::ServedFeed;
use crate::channel::{Channel, FeedForm, UnknownForm};
use crate::frame::{ContentCoding, EventFrame};
use crate::metrics::FeedFigures;

/// The stream of one subscriber. All subscribers share the frames, except for the opening ones.
struct SubscriberStream {
    channel: Arc<Channel>,
    figures: FeedFigures,
    /// Opening frames, sent before live ones.
    first: VecDeque<Bytes>,
    frames: Receiver<EventFrame>,
    coding: ContentCoding,
    ended: bool,
}

impl Drop for SubscriberStream {
    fn drop(&mut self) {
        let unread = self.first.len() + self.frames.len();
        if unread > 0 && !self.ended {
            tracing::info!(feed = self.channel.name, unread, "a subscriber disconnected or timed out");
        }
        self.figures.left();
    }
}

impl SubscriberStream {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(frame) = self.first.pop_front() {
            return Some(frame);
        }
        if self.ended {
            return None;
        }
        Some(match timeout(sse::STILL_HERE_EVERY, self.frames.recv()).await {
            Err(_) => self.coding.single(sse::STILL_HERE),
            Ok(Ok(frame)) => frame.bytes(self.coding),
            Ok(Err(RecvError::Lagged(missed))) => {
                self.ended = true;
                self.figures.dropped();
                let at = self.channel.baseline().map(|baseline| baseline.position)?;
                let reason = format!("subscriber too slow: {missed} events were not read in time");
                self.coding.single(sse::pull(at, reason))
            }
            Ok(Err(RecvError::Closed)) => return None,
        })
    }
}

/// The stream of a subscriber with a table at `from`.
///
/// # Errors
/// If the feed has no such form.
pub(super) fn subscribe(
    served: &ServedFeed,
    form: FeedForm,
    from: Option<Position>,
    coding: ContentCoding,
) -> Result<impl Stream<Item = Result<Bytes, Infallible>> + use<>, UnknownForm> {
    let (opening, frames) = served.channel.subscribe(form, from)?;
    served.figures.subscribed();
    let following = SubscriberStream {
        channel: served.channel.clone(),
        figures: served.figures.clone(),
        first: coding.opening(opening.frames()).into(),
        frames,
        coding,
        ended: false,
    };
    Ok(futures::stream::unfold(following, async |mut following| {
        let frame = following.next().await?;
        Some((Ok(frame), following))
    }))
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;
    use crate::channel::{Baseline, DeltaEncoder};
    use crate::metrics::Metrics;

    #[tokio::test]
    async fn slow_reader_is_disconnected_with_pull() {
        let channel = Channel::new("identity", 1);
        let publish =
            |deltas: Vec<DeltaEncoder>| channel.publish(deltas, |at| Baseline::new("v".into(), at, 0, vec![]));
        publish(vec![]);
        let served = ServedFeed { channel: channel.clone(), figures: Metrics::new().of_feed("identity") };
        let stream = subscribe(&served, FeedForm::Whole, None, ContentCoding::Plain).unwrap();
        for _ in 0..1_000 {
            publish(vec![Box::new(|_| b"{}".to_vec())]);
        }
        let frames: Vec<String> =
            stream.map(|Ok(frame)| String::from_utf8(frame.to_vec()).unwrap()).collect::<Vec<_>>().await;
        let last = frames.last().unwrap();
        assert!(last.contains("event: pull") && last.contains("too slow") && last.contains("\"seq\":1000"), "{last}");
        assert!(frames.len() < 10, "nothing of what it can no longer join: {frames:?}");
    }
}
