//! A feed as its subscribers receive it: the baseline, then deltas.

use std::time::Duration;

use anyhow::{Context, bail};
use feed::client::{FeedSource, Update, follow};
use feed::{Head, Position};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Deadline of every wait.
const WITHIN: Duration = Duration::from_secs(10);

/// Updates between the client and the demo, which reads them at once.
const UPDATES: usize = 16;

pub(super) struct FeedReader {
    runtime: Handle,
    updates: mpsc::Receiver<Update>,
    pub(super) head: Head,
    pub(super) baseline: Vec<u8>,
}

pub(super) struct Delta {
    pub(super) position: Position,
    pub(super) json: String,
}

impl FeedReader {
    /// Opens the stream, and waits for the baseline.
    pub(super) fn begin(runtime: &Runtime, provider: String, feed: &str) -> anyhow::Result<FeedReader> {
        let (sender, mut updates) = mpsc::channel(UPDATES);
        let source = FeedSource::new(vec![provider.parse()?], feed);
        runtime.spawn(async move {
            if let Err(error) = follow(source, sender).await {
                eprintln!("nothing can be followed: {error}");
            }
        });
        match next(runtime.handle(), &mut updates)? {
            Update::Baseline { head, bytes } => {
                Ok(FeedReader { runtime: runtime.handle().clone(), updates, head, baseline: bytes.to_vec() })
            }
            other => bail!("{feed} begins with {other:?}"),
        }
    }

    /// Waits for the next delta.
    pub(super) fn delta(&mut self) -> anyhow::Result<Delta> {
        match next(&self.runtime, &mut self.updates)? {
            Update::Delta { position, json } => {
                Ok(Delta { position, json: String::from_utf8(json.to_vec()).context("a delta is text")? })
            }
            other => bail!("instead of a delta came {other:?}"),
        }
    }
}

fn next(runtime: &Handle, updates: &mut mpsc::Receiver<Update>) -> anyhow::Result<Update> {
    let update = runtime.block_on(async { timeout(WITHIN, updates.recv()).await });
    update.with_context(|| format!("no delta arrived within {WITHIN:?}"))?.context("the subscription has ended")
}
