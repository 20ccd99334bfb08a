//! The task that follows the providers, keeps what is known, and tells the loop.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use feed::Backoff;
use feed::client::{FollowError, Source, Update, follow};
use jiff::Timestamp;
use policy::remote::RemoteChange;
use policy::remote::wire::{Baseline, Delta};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::{Kept, Mirror, News, RemoteStanding};
use crate::state_loop::Event;

/// Updates between a provider's stream and this task: one that does not take them makes the provider close the stream.
const UPDATES_QUEUED: usize = 16;

/// Wait before the providers are asked again after one was not understood.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// What is known is written to disk as often as this, or four times as long as it takes.
const WRITTEN_APART: Duration = Duration::from_millis(200);

/// Reasons that are in the log for one time without a provider.
const MOST_SAID: usize = 16;

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
    /// Reasons that were logged since a provider was followed last.
    said: BTreeSet<String>,
    writing: Writing,
}

/// What is to be written to disk, beside everything else: a disk that hangs holds nothing up.
#[derive(Debug)]
struct Writing {
    /// What is on disk is not what is known.
    due: bool,
    running: Option<JoinHandle<(Duration, anyhow::Result<()>)>>,
    not_before: Instant,
    written: Instant,
}

/// What came cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot decode the provider's {what}: {error}")]
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
        let problem = Some(("no context provider has answered yet".to_owned(), Instant::now()));
        let following =
            Following { source, kept, mirror, problem, unkept, said: BTreeSet::new(), writing: Writing::new() };
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
            self.writing.begin(&self.kept, &self.mirror);
            let idle = self.idle();
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
                problem = self.writing.ended() => match self.note_written(problem) {
                    Some(news) => news,
                    None => continue,
                },
                () = tokio::time::sleep(idle) => {
                    let now = Timestamp::now();
                    let changes = self.mirror.settle(now);
                    self.news(changes, now)
                }
            };
            if events.send(Event::Remote(news)).await.is_err() {
                return None;
            }
        }
    }

    /// How long nothing has to be done if nothing comes.
    fn idle(&self) -> Duration {
        let until_written = self.writing.idle();
        let until_drop = self.mirror.next_drop().map(|at| {
            // Past the moment, so that it is too old then.
            Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default() + Duration::from_millis(1)
        });
        until_drop.map_or(until_written, |until_drop| until_written.min(until_drop))
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
            tracing::info!("pods of other clusters: subscribed to a context provider");
        }
        self.said.clear();
        self.writing.due = true;
        Ok((self.news(changes, now), true))
    }

    fn note_lost(&mut self, why: String, now: Timestamp) -> News {
        let changes = self.mirror.lost(now);
        // Several providers may fail in turn, each in its own way.
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
        let news = self.note_lost(why, Timestamp::now());
        // An error means that nobody takes the news any more, which is seen next.
        drop(events.send(Event::Remote(news)).await);
    }

    fn news(&self, changes: Vec<RemoteChange>, now: Timestamp) -> News {
        let standing = RemoteStanding {
            problem: self.problem.clone(),
            unkept: self.unkept.clone(),
            clusters: RemoteStanding::clusters_of(&self.mirror, now),
        };
        News { changes, standing, at: Instant::now() }
    }

    /// Something was written, or could not be; the news where that is otherwise than before.
    fn note_written(&mut self, problem: Option<String>) -> Option<News> {
        if problem == self.unkept {
            return None;
        }
        if let Some(problem) = &problem {
            tracing::error!("{problem}");
        }
        self.unkept = problem;
        Some(self.news(vec![], Timestamp::now()))
    }
}

impl Writing {
    fn new() -> Writing {
        let now = Instant::now();
        Writing { due: false, running: None, not_before: now, written: now }
    }

    /// Writes what is known if that is due, one after the other.
    fn begin(&mut self, kept: &Kept, mirror: &Mirror) {
        let now = Instant::now();
        let is_due = (self.due && self.not_before <= now) || self.written + KEPT_APART <= now;
        if self.running.is_some() || !is_due {
            return;
        }
        (self.due, self.written) = (false, now);
        let (kept, known) = (kept.clone(), mirror.to_keep());
        self.running = Some(tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let written = kept.write(&known);
            (begun.elapsed(), written)
        }));
    }

    /// Until what is being written is; gives why it is not.
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
        // A disk that is full is asked again with less haste.
        let apart = if problem.is_some() { FIRST_RETRY } else { WRITTEN_APART };
        self.not_before = Instant::now() + apart.max(took * 4);
        self.due |= problem.is_some();
        problem
    }

    /// How long nothing has to be written if nothing comes.
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
