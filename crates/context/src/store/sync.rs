//! Keeps a store up to date with a feed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pacing::Backoff;
use tokio::sync::watch;
use tokio::time::{sleep, sleep_until};

use super::{Store, StoreError};
use crate::channel::Channel;
use crate::leader_election::Assurance;
use crate::metrics::{FeedDestination, FeedFigures};

/// Initial backoff.
const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// Longest backoff: a disk with free space again is found within it.
const BACKOFF_LAST: Duration = Duration::from_secs(60);

pub(crate) struct StoreSync {
    pub(crate) store: Store,
    pub(crate) channel: Arc<Channel>,
    /// Minimum interval between two baselines.
    pub(crate) interval: Duration,
    pub(crate) leads: watch::Receiver<bool>,
    pub(crate) assurance: Assurance,
    pub(crate) figures: FeedFigures,
}

impl StoreSync {
    /// Stores the newest baseline while this process leads, forever.
    pub(crate) async fn run(mut self) {
        let mut baselines = self.channel.baselines();
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_LAST);
        let (mut kept, mut left) = (None, Vec::new());
        // The last check whether the store has its baseline failed.
        let mut unchecked = false;
        loop {
            // Another leader may have written another baseline meanwhile.
            if self.leads.has_changed().unwrap_or(true) {
                kept = None;
            }
            if self.leads.wait_for(|leads| *leads).await.is_err() {
                return;
            }
            baselines.borrow_and_update();
            let Some(baseline) = self.channel.baseline().filter(|baseline| kept.as_ref() != Some(&baseline.version))
            else {
                tokio::select! {
                    changed = baselines.changed() => if changed.is_err() {
                        return;
                    },
                    () = sleep(self.interval) => kept = self.confirm(kept, &mut unchecked).await,
                }
                continue;
            };
            let began = Instant::now();
            // A write in flight is cancelled when leadership is lost, so that it cannot overwrite the new leader's
            // objects.
            let outcome = tokio::select! {
                outcome = self.store.write_baseline(self.channel.name, &baseline, &mut left, &self.assurance) => outcome,
                ended = self.leads.wait_for(|leads| !leads) => {
                    if ended.is_err() {
                        return;
                    }
                    kept = None;
                    continue;
                }
            };
            self.figures.took(FeedDestination::Store, began.elapsed());
            match outcome {
                Ok(untidy) => {
                    backoff.reset();
                    self.figures.delivered(FeedDestination::Store);
                    if let Some(error) = untidy {
                        self.record_failure(&error, "old baselines are kept; retrying the removal");
                    }
                    kept = Some(baseline.version.clone());
                    sleep_until((began + self.interval).into()).await;
                }
                Err(error) => {
                    self.record_failure(&error, "retrying to write the baseline");
                    sleep(backoff.wait()).await;
                }
            }
        }
    }

    /// The version that the store still has; `None` if the store has lost it, so that it is written again.
    async fn confirm(&self, kept: Option<String>, unchecked: &mut bool) -> Option<String> {
        let version = kept?;
        match self.store.has_baseline(self.channel.name, &version).await {
            Ok(true) => {
                // Other failures, as of removing old objects, are not resolved by it.
                if std::mem::take(unchecked) {
                    self.figures.confirmed(FeedDestination::Store);
                }
            }
            Ok(false) => {
                tracing::warn!(
                    feed = self.channel.name,
                    "the store does not have the baseline {version}; writing it again"
                );
                self.figures.reseeded(FeedDestination::Store);
                return None;
            }
            Err(error) => {
                *unchecked = true;
                self.record_failure(&error, "retrying to check whether the store has the baseline");
            }
        }
        Some(version)
    }

    fn record_failure(&self, error: &StoreError, follows: &str) {
        let message = error.to_string();
        if self.figures.failed(FeedDestination::Store, &message) {
            tracing::warn!(feed = self.channel.name, "{message}; {follows}");
        }
    }
}
