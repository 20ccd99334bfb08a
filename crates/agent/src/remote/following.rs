//! The task that follows the providers, keeps what is known, and tells the loop.

use std::time::{Duration, Instant};

use feed::Backoff;
use feed::client::{FollowError, Source, Update, follow};
use jiff::Timestamp;
use policy::remote::RemoteChange;
use policy::remote::wire::{Baseline, Delta};
use tokio::sync::mpsc;

use super::{Kept, Mirror, News, RemoteStanding};
use crate::state_loop::Event;

/// Where the providers serve it.
pub(crate) const FEED: &str = "remote-sets";

/// Updates between a provider's stream and this task: one that does not take them makes the provider close the stream.
const UPDATES_QUEUED: usize = 16;

/// Wait before the providers are asked again after one was not understood.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// How old the file may be that says until when what is known was right.
const KEPT_APART: Duration = Duration::from_secs(60);

/// Whom to follow, and where to keep what they tell.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) source: Source,
    pub(crate) kept: Kept,
    pub(crate) max_stale: Option<Duration>,
}

/// What the task works with.
#[derive(Debug)]
pub(crate) struct Following {
    source: Source,
    kept: Kept,
    mirror: Mirror,
    problem: Option<(String, Instant)>,
    unkept: Option<String>,
    /// What is on disk is not what is known.
    unwritten: bool,
    written: Instant,
}

/// What came cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("the provider's {what} is not understood: {error}")]
struct NotUnderstood {
    what: &'static str,
    error: serde_json::Error,
}

impl Following {
    /// Recalls what was kept, so that it is in force from the first commit on.
    pub(crate) fn recall(Followed { source, kept, max_stale }: Followed) -> (Following, News) {
        let now = Timestamp::now();
        let mut mirror = Mirror::new(max_stale);
        let (changes, unkept) = match kept.read() {
            Ok(baseline) => (baseline.map_or_else(Vec::new, |known| mirror.recall(&known, now)), None),
            Err(error) => {
                tracing::error!("{error:#}");
                (vec![], Some(format!("{error:#}")))
            }
        };
        let problem = Some(("no provider has answered yet".to_owned(), Instant::now()));
        let following = Following { source, kept, mirror, problem, unkept, unwritten: false, written: Instant::now() };
        let news = following.news(changes, now);
        (following, news)
    }

    /// Runs until nobody takes the news.
    ///
    /// # Errors
    /// If the providers cannot be followed at all: a URL or a file of the command line is wrong.
    pub(crate) async fn run(mut self, events: mpsc::Sender<Event>) -> Result<(), FollowError> {
        let mut backoff = Backoff::new(FIRST_RETRY, LONGEST_RETRY);
        loop {
            let (sender, mut updates) = mpsc::channel(UPDATES_QUEUED);
            let stream = follow(self.source.clone(), sender);
            let taking = self.take_all(&mut updates, &events, &mut backoff);
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

    /// Takes updates until one is not understood, or until nobody takes the news.
    async fn take_all(
        &mut self,
        updates: &mut mpsc::Receiver<Update>,
        events: &mpsc::Sender<Event>,
        backoff: &mut Backoff,
    ) -> Option<NotUnderstood> {
        loop {
            let news = tokio::select! {
                update = updates.recv() => match self.take(update?) {
                    Ok((news, went_well)) => {
                        if went_well {
                            backoff.reset();
                        }
                        news
                    }
                    Err(error) => return Some(error),
                },
                () = tokio::time::sleep(self.idle()) => {
                    let now = Timestamp::now();
                    let changes = self.mirror.settle(now);
                    self.news(changes, now)
                }
            };
            if !self.tell(news, events).await {
                return None;
            }
        }
    }

    /// How long nothing has to be done if nothing comes.
    fn idle(&self) -> Duration {
        let until_kept = KEPT_APART.saturating_sub(self.written.elapsed());
        let until_drop = self.mirror.next_drop().map(|at| {
            // Past the moment, so that it is too old then.
            Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default() + Duration::from_millis(1)
        });
        until_drop.map_or(until_kept, |until_drop| until_kept.min(until_drop))
    }

    /// Says also whether the provider is followed.
    fn take(&mut self, update: Update) -> Result<(News, bool), NotUnderstood> {
        let now = Timestamp::now();
        let changes = match update {
            Update::Baseline { bytes, .. } => {
                let baseline: Baseline = understood("baseline", &bytes)?;
                self.mirror.baseline(&baseline, now)
            }
            Update::Delta { json, .. } => {
                let delta: Delta = understood("delta", &json)?;
                self.mirror.delta(&delta, now)
            }
            Update::Resumed { .. } => self.mirror.resumed(now),
            Update::Lost(lost) => return Ok((self.note_lost(lost.to_string(), now), false)),
        };
        if self.problem.take().is_some() {
            tracing::info!("pods of other clusters: a provider is followed");
        }
        self.unwritten = true;
        Ok((self.news(changes, now), true))
    }

    fn note_lost(&mut self, why: String, now: Timestamp) -> News {
        let changes = self.mirror.lost(now);
        match &mut self.problem {
            Some((known, _)) => {
                if *known != why {
                    tracing::warn!("pods of other clusters: no provider is followed: {why}");
                }
                *known = why;
            }
            None => {
                tracing::warn!("pods of other clusters: no provider is followed, and what is known stays: {why}");
                self.problem = Some((why, Instant::now()));
                self.unwritten = true;
            }
        }
        self.news(changes, now)
    }

    async fn lost(&mut self, why: String, events: &mpsc::Sender<Event>) {
        let news = self.note_lost(why, Timestamp::now());
        self.tell(news, events).await;
    }

    fn news(&self, changes: Vec<RemoteChange>, now: Timestamp) -> News {
        let standing = RemoteStanding {
            problem: self.problem.clone(),
            unkept: self.unkept.clone(),
            clusters: RemoteStanding::clusters_of(&self.mirror, now),
        };
        News { changes, standing, at: Instant::now() }
    }

    /// The loop is told first: an address that has left is denied before it is forgotten on disk. Says whether anybody
    /// takes the news.
    async fn tell(&mut self, news: News, events: &mpsc::Sender<Event>) -> bool {
        if events.send(Event::Remote(news)).await.is_err() {
            return false;
        }
        let is_due = self.written.elapsed() >= KEPT_APART;
        if !self.unwritten && !is_due {
            return true;
        }
        let before = self.unkept.clone();
        self.write().await;
        self.unkept == before || events.send(Event::Remote(self.news(vec![], Timestamp::now()))).await.is_ok()
    }

    async fn write(&mut self) {
        let (kept, known) = (self.kept.clone(), self.mirror.to_keep());
        let written = tokio::task::spawn_blocking(move || kept.write(&known)).await;
        let problem = match written {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(format!("{error:#}")),
            Err(panic) => Some(panic.to_string()),
        };
        if let Some(problem) = problem.as_ref().filter(|problem| self.unkept.as_ref() != Some(problem)) {
            tracing::error!("{problem}");
        }
        (self.unwritten, self.unkept, self.written) = (problem.is_some(), problem, Instant::now());
    }
}

fn understood<T: serde::de::DeserializeOwned>(what: &'static str, json: &[u8]) -> Result<T, NotUnderstood> {
    serde_json::from_slice(json).map_err(|error| NotUnderstood { what, error })
}
