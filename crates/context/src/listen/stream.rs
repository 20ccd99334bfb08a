//! The body of a stream of deltas: how it begins, what comes as it comes, and signs of life.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Bytes;
use feed::{Position, sse};
use futures::Stream;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::timeout;

use super::Served;
use crate::channel::Channel;
use crate::metrics::FeedFigures;

/// A stream on its way to one subscriber. Frames are shared by all; a subscriber's own is what it has begun with.
struct Following {
    channel: Arc<Channel>,
    figures: FeedFigures,
    /// What is written before anything new.
    first: VecDeque<Bytes>,
    frames: Receiver<Bytes>,
    ended: bool,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.figures.left();
    }
}

impl Following {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(frame) = self.first.pop_front() {
            return Some(frame);
        }
        if self.ended {
            return None;
        }
        Some(match timeout(sse::STILL_HERE_EVERY, self.frames.recv()).await {
            Err(_) => sse::STILL_HERE,
            Ok(Ok(frame)) => frame,
            Ok(Err(RecvError::Lagged(missed))) => {
                self.ended = true;
                self.figures.dropped();
                let at = self.channel.baseline().map(|baseline| baseline.position)?;
                sse::pull(at, format!("this reader is too slow: {missed} events were not read in time"))
            }
            Ok(Err(RecvError::Closed)) => return None,
        })
    }
}

/// The stream for a subscriber that has everything up to `from`.
pub(super) fn follow(served: &Served, from: Option<Position>) -> impl Stream<Item = Result<Bytes, Infallible>> + use<> {
    let (opening, frames) = served.channel.subscribe(from);
    served.figures.subscribed();
    let following = Following {
        channel: served.channel.clone(),
        figures: served.figures.clone(),
        first: opening.frames().into(),
        frames,
        ended: false,
    };
    futures::stream::unfold(following, async |mut following| {
        let frame = following.next().await?;
        Some((Ok(frame), following))
    })
}
