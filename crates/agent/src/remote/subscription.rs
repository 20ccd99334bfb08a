//! The task that follows the providers, persists their state and sends events to the event loop.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use feed::client::{FeedSource, FollowError, Update, follow};
use jiff::Timestamp;
use pacing::Backoff;
use policy::remote::RemoteChange;
use policy::remote::wire::{RemoteBaseline, RemoteDelta};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Mirror, RemoteCache, RemoteFreshness, RemoteUpdate};
use crate::event_loop::Event;

/// Updates queued between a provider's stream and this task. When the queue is full, the provider closes the stream.
const UPDATES_QUEUED: usize = 16;

/// Backoff before reconnecting after an update that cannot be decoded.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Minimum interval between writes to disk; if larger, four times the duration of a write.
const WRITTEN_APART: Duration = Duration::from_millis(200);

/// Distinct reasons logged during one outage of all providers.
const MOST_SAID: usize = 16;

/// Maximum age of the `as_of` times in the file.
const KEPT_APART: Duration = Duration::from_secs(60);

/// Providers to follow, and where to persist their state.
#[derive(Debug)]
pub(crate) struct RemoteSource {
    pub(crate) source: FeedSource,
    pub(crate) cache: RemoteCache,
    pub(crate) max_stale: Option<Duration>,
}

/// State of the task.
#[derive(Debug)]
pub(crate) struct RemoteSubscription {
    source: FeedSource,
    cache: RemoteCache,
    mirror: Mirror,
    problem: Option<(String, Instant)>,
    persist_problem: Option<String>,
    /// Reasons logged since a provider was last followed.
    said: BTreeSet<String>,
    writing: CacheWriter,
}

/// Writes to disk, in a blocking task so that a disk that hangs does not block the updates.
#[derive(Debug)]
struct CacheWriter {
    /// The file is stale.
    due: bool,
    running: Option<JoinHandle<(Duration, anyhow::Result<()>)>>,
    not_before: Instant,
    written: Instant,
}

/// An update cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("cannot decode the provider's {what}: {error}")]
struct NotUnderstood {
    what: &'static str,
    error: serde_json::Error,
}

impl RemoteSubscription {
    /// Restores the persisted state, so that the first commit already has it.
    pub(crate) fn recall(
        RemoteSource { source, cache, max_stale }: RemoteSource,
    ) -> (RemoteSubscription, RemoteUpdate) {
        let now = Timestamp::now();
        let mut mirror = Mirror::new(max_stale);
        let (changes, persist_problem) = match cache.read() {
            Ok(baseline) => (baseline.map_or_else(Vec::new, |known| mirror.recall(&known, now)), None),
            Err(error) => {
                tracing::error!("{error:#}");
                (vec![], Some(format!("{error:#}")))
            }
        };
        let problem = Some(("no context provider has answered yet".to_owned(), Instant::now()));
        let following = RemoteSubscription {
            source,
            cache,
            mirror,
            problem,
            persist_problem,
            said: BTreeSet::new(),
            writing: CacheWriter::new(),
        };
        let news = following.news(changes, now);
        (following, news)
    }

    /// Runs until the receiver of events is closed.
    ///
    /// # Errors
    /// If the providers cannot be followed at all: a URL or a file of the command line is invalid.
    pub(crate) async fn run(mut self, events: mpsc::Sender<Event>) -> Result<(), FollowError> {
        let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
        loop {
            let (sender, mut updates) = mpsc::channel(UPDATES_QUEUED);
            let stream = follow(self.source.clone(), sender);
            let taking = self.process_updates(&mut updates, &events, &mut backoff);
            tokio::select! {
                followed = stream => followed?,
                taken = taking => match taken {
                    Some(error) => self.lost(error.to_string(), &events).await,
                    None => return Ok(()),
                }
            }
            if events.is_closed() {
                return Ok(());
            }
            tokio::time::sleep(backoff.wait()).await;
        }
    }

    /// Processes updates until one cannot be decoded, or until the receiver of events is closed.
    async fn process_updates(
        &mut self,
        updates: &mut mpsc::Receiver<Update>,
        events: &mpsc::Sender<Event>,
        backoff: &mut Backoff,
    ) -> Option<NotUnderstood> {
        loop {
            self.writing.begin(&self.cache, &self.mirror);
            let idle = self.idle();
            let news = tokio::select! {
                update = updates.recv() => match self.apply(update?) {
                    Ok((news, went_well)) => {
                        if went_well {
                            backoff.reset();
                        }
                        news
                    }
                    Err(error) => return Some(error),
                },
                problem = self.writing.ended() => match self.record_write(problem) {
                    Some(news) => news,
                    None => continue,
                },
                () = tokio::time::sleep(idle) => {
                    let now = Timestamp::now();
                    let changes = self.mirror.reconcile(now);
                    self.news(changes, now)
                }
            };
            if events.send(Event::Remote(news)).await.is_err() {
                return None;
            }
        }
    }

    /// Time until the next write or drop is due, without further updates.
    fn idle(&self) -> Duration {
        let until_written = self.writing.idle();
        let until_drop = self.mirror.next_drop().map(|at| {
            // One millisecond later, so that the set is already stale.
            Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default() + Duration::from_millis(1)
        });
        until_drop.map_or(until_written, |until_drop| until_written.min(until_drop))
    }

    /// Applies an update; the flag is true if the provider is followed.
    fn apply(&mut self, update: Update) -> Result<(RemoteUpdate, bool), NotUnderstood> {
        let now = Timestamp::now();
        let changes = match update {
            Update::Baseline { bytes, .. } => {
                let baseline: RemoteBaseline = understood("baseline", &bytes)?;
                self.mirror.baseline(&baseline, now)
            }
            Update::Delta { json, .. } => {
                let delta: RemoteDelta = understood("delta", &json)?;
                self.mirror.delta(&delta, now)
            }
            Update::Resumed { .. } => self.mirror.resumed(now),
            Update::Lost(lost) => return Ok((self.record_lost(lost.to_string(), now), false)),
        };
        if self.problem.take().is_some() {
            tracing::info!("pods of other clusters: subscribed to a context provider");
        }
        self.said.clear();
        self.writing.due = true;
        Ok((self.news(changes, now), true))
    }

    fn record_lost(&mut self, why: String, now: Timestamp) -> RemoteUpdate {
        let changes = self.mirror.lost(now);
        // Several providers may fail in turn, each for a different reason.
        if self.said.len() < MOST_SAID && self.said.insert(why.clone()) {
            tracing::warn!("pods of other clusters: no context provider available, keeping the last known sets: {why}");
        }
        match &mut self.problem {
            Some((known, _)) => *known = why,
            None => {
                self.problem = Some((why, Instant::now()));
                self.writing.due = true;
            }
        }
        self.news(changes, now)
    }

    async fn lost(&mut self, why: String, events: &mpsc::Sender<Event>) {
        let news = self.record_lost(why, Timestamp::now());
        // A send error means that the receiver is closed, which the caller checks.
        drop(events.send(Event::Remote(news)).await);
    }

    fn news(&self, changes: Vec<RemoteChange>, now: Timestamp) -> RemoteUpdate {
        let freshness = RemoteFreshness {
            problem: self.problem.clone(),
            persist_problem: self.persist_problem.clone(),
            clusters: RemoteFreshness::clusters_of(&self.mirror, now),
        };
        RemoteUpdate { changes, freshness, at: Instant::now() }
    }

    /// Records the outcome of a write; returns news if the problem changed.
    fn record_write(&mut self, problem: Option<String>) -> Option<RemoteUpdate> {
        if problem == self.persist_problem {
            return None;
        }
        if let Some(problem) = &problem {
            tracing::error!("{problem}");
        }
        self.persist_problem = problem;
        Some(self.news(vec![], Timestamp::now()))
    }
}

impl CacheWriter {
    fn new() -> CacheWriter {
        let now = Instant::now();
        CacheWriter { due: false, running: None, not_before: now, written: now }
    }

    /// Starts a write if one is due and none is running.
    fn begin(&mut self, cache: &RemoteCache, mirror: &Mirror) {
        let now = Instant::now();
        let is_due = (self.due && self.not_before <= now) || self.written + KEPT_APART <= now;
        if self.running.is_some() || !is_due {
            return;
        }
        (self.due, self.written) = (false, now);
        let (cache, known) = (cache.clone(), mirror.to_keep());
        self.running = Some(tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let written = cache.write(&known);
            (begun.elapsed(), written)
        }));
    }

    /// Waits for the running write; returns why it failed.
    async fn ended(&mut self) -> Option<String> {
        let ended = match &mut self.running {
            Some(running) => running.await,
            None => std::future::pending().await,
        };
        self.running = None;
        let (took, problem) = match ended {
            Ok((took, written)) => (took, written.err().map(|error| format!("{error:#}"))),
            Err(panic) => (Duration::ZERO, Some(panic.to_string())),
        };
        // Retry less often on a full disk.
        let apart = if problem.is_some() { FIRST_RETRY } else { WRITTEN_APART };
        self.not_before = Instant::now() + apart.max(took * 4);
        self.due |= problem.is_some();
        problem
    }

    /// Time until the next write is due, without further updates.
    fn idle(&self) -> Duration {
        match (&self.running, self.due) {
            (Some(_), _) => KEPT_APART,
            (None, true) => self.not_before.saturating_duration_since(Instant::now()),
            (None, false) => KEPT_APART.saturating_sub(self.written.elapsed()),
        }
    }
}

fn understood<T: serde::de::DeserializeOwned>(what: &'static str, json: &[u8]) -> Result<T, NotUnderstood> {
    serde_json::from_slice(json).map_err(|error| NotUnderstood { what, error })
}
