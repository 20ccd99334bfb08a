//! Pushes the baselines and deltas of one feed to a relay, in order.
//!
//! Deltas wait in an [`Outbox`] until the relay accepts them, without a time limit, and the first is retried before any
//! later one is sent. Baselines are pushed initially, and at intervals while the table changes; they contain only
//! published deltas, so that a baseline may overtake a delta. If the outbox overflows, or the relay permanently refuses
//! a delta, a baseline replaces the deltas, followed by an empty delta: followers of the relay detect the gap, and
//! pull.

mod confirmation;
mod outbox;

use std::sync::Arc;
use std::time::{Duration, Instant};

use feed::{Access, Position};
use pacing::Backoff;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE};
use reqwest::{RequestBuilder, Response, Url};
use tokio::sync::watch;

use crate::channel::{Baseline, Channel};
use crate::leader_election::Assurance;
use crate::metrics::{FeedDestination, FeedFigures};
use confirmation::{Confirmation, HeldBaseline};
pub(crate) use outbox::{Outbox, QueuedDelta};

/// Initial backoff.
const BACKOFF_FIRST: Duration = Duration::from_millis(500);
/// Longest backoff: a recovered relay is found within it.
const BACKOFF_LAST: Duration = Duration::from_secs(30);

/// Timeout of a delta. A slower relay is considered dead, and retried.
const DELTA_PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of a baseline, which may be tens of megabytes over a slow link.
const BASELINE_PATIENCE: Duration = Duration::from_secs(120);

/// Consecutive refusals of one delta that are treated as permanent. Refusals that mean "not authorized" or "not now" do
/// not count.
const REFUSALS: u32 = 5;

/// Limit of the response body that is quoted in an error.
const SAID_BYTES: usize = 200;

/// URL and credentials of the relay.
#[derive(Clone)]
pub(crate) struct Relay {
    pub(crate) base: Url,
    pub(crate) cluster: String,
    pub(crate) client: reqwest::Client,
    pub(crate) access: Access,
}

/// Pushes one feed.
pub(crate) struct Push {
    pub(crate) relay: Relay,
    pub(crate) channel: Arc<Channel>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) media_type: &'static str,
    /// Baselines are pushed with the cluster's name.
    pub(crate) names_cluster: bool,
    /// Encodes an empty delta.
    pub(crate) nothing: fn(Position) -> Vec<u8>,
    /// Minimum interval between two baselines.
    pub(crate) interval: Duration,
    /// Whether this process leads.
    pub(crate) leads: watch::Receiver<bool>,
    pub(crate) assurance: Assurance,
    pub(crate) figures: FeedFigures,
}

/// Error of a push.
#[derive(Debug)]
enum Failure {
    /// Response of the relay.
    Refused { status: u16, said: String },
    /// No response, or an incomplete one.
    Unreachable(String),
    /// A local error.
    Ours(String),
}

impl Failure {
    /// Whether a retry with the same relay is useless.
    fn is_final(&self) -> bool {
        match self {
            Failure::Refused { status, .. } => {
                (400..500).contains(status) && !matches!(status, 401 | 403 | 408 | 425 | 429)
            }
            Failure::Unreachable(_) | Failure::Ours(_) => false,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Refused { status: status @ (401 | 403), said } => {
                write!(f, "the relay rejected the token ({status}); check --token-file{said}")
            }
            Failure::Refused { status, said } => write!(f, "the relay returned {status}{said}"),
            Failure::Unreachable(why) => write!(f, "cannot connect to the relay: {why}"),
            Failure::Ours(why) => f.write_str(why),
        }
    }
}

impl Push {
    /// Pushes until the leadership channel closes.
    pub(crate) async fn run(mut self) {
        let mut backoff = Backoff::new(BACKOFF_FIRST, BACKOFF_LAST);
        loop {
            if !self.leads.borrow_and_update().to_owned() {
                self.outbox.close();
                self.figures.waiting(0);
                if self.leads.changed().await.is_err() {
                    return;
                }
                continue;
            }
            // Deltas of the last term are obsolete.
            self.outbox.open();
            if !self.lead(&mut backoff).await {
                return;
            }
        }
    }

    /// Pushes while this process leads. Returns whether it may lead again. A push in flight is cancelled when
    /// leadership is lost, so that it cannot follow a push of the new leader.
    async fn lead(&self, backoff: &mut Backoff) -> bool {
        let mut leads = self.leads.clone();
        tokio::select! {
            () = self.push_updates(backoff) => false,
            // The channel closes on shutdown.
            ended = leads.wait_for(|leads| !leads) => ended.is_ok(),
        }
    }

    async fn push_updates(&self, backoff: &mut Backoff) {
        let mut pushed: Option<(Arc<Baseline>, Instant)> = None;
        let mut renewal = Renewal::new();
        let mut confirmation = Confirmation::new(self.interval);
        let (mut refusals, mut refused) = (0, false);
        loop {
            let due = renewal.delay(self.due(pushed.as_ref()));
            let outcome = match (due, self.outbox.first()) {
                // The relay may accept a baseline even if it refuses the pending deltas.
                (Due::Now(baseline), first) if pushed.is_none() || first.is_none() || refused => {
                    let outcome = self.push_baseline(&baseline).await;
                    match &outcome {
                        Ok(()) => {
                            refused = false;
                            renewal = Renewal::new();
                            pushed = Some((baseline, Instant::now()));
                            confirmation.pushed();
                        }
                        // The relay has an older baseline, and can apply deltas meanwhile.
                        Err(failure) if pushed.is_some() => {
                            renewal.failed();
                            self.record_failure(failure);
                            continue;
                        }
                        Err(_) => {}
                    }
                    outcome
                }
                (_, Some(delta)) => {
                    let outcome = self.push_delta(&delta).await;
                    refused = matches!(outcome, Err(Failure::Refused { .. }));
                    match &outcome {
                        Ok(()) => {
                            refusals = 0;
                            self.outbox.acknowledge(&delta);
                            self.figures.waiting(self.outbox.waiting());
                        }
                        // A notice replaces deltas that were given up already.
                        Err(failure) if failure.is_final() && !delta.is_notice => refusals += 1,
                        Err(_) => {}
                    }
                    if refusals >= REFUSALS {
                        tracing::warn!(
                            feed = self.channel.name,
                            "the relay refused a delta permanently; pushing a baseline instead"
                        );
                        refusals = 0;
                        self.outbox.drop_all();
                    }
                    outcome
                }
                (due @ (Due::Now(_) | Due::At(_) | Due::Never), None) => {
                    self.wait(due).await;
                    if let Some((baseline, _)) = &pushed
                        && confirmation.is_due()
                        && self.outbox.first().is_none()
                        && !self.confirm(baseline, &mut confirmation).await
                    {
                        pushed = None;
                    }
                    continue;
                }
            };
            if self.outbox.take_dropped() {
                pushed = None;
                let notice = self.channel.publish_notice(self.nothing);
                let pending = |event: Arc<feed::DeltaEvent>| QueuedDelta {
                    is_notice: true,
                    ..QueuedDelta::delta(event.position, event.json.clone())
                };
                self.outbox.enqueue(notice.map(pending));
                self.figures.waiting(self.outbox.waiting());
            }
            match outcome {
                Ok(()) => {
                    backoff.reset();
                    self.figures.delivered(FeedDestination::Relay);
                }
                Err(failure) => {
                    self.record_failure(&failure);
                    tokio::time::sleep(backoff.wait()).await;
                }
            }
        }
    }

    /// Verifies which baseline the relay has, although nothing has changed. False if the baseline has to be pushed
    /// again.
    async fn confirm(&self, baseline: &Baseline, confirmation: &mut Confirmation) -> bool {
        let held = match self.held_baseline().await {
            Ok(held) => held,
            Err(failure) => {
                self.record_failure(&failure);
                confirmation.failed();
                return true;
            }
        };
        if confirmation.recovers() {
            self.figures.confirmed(FeedDestination::Relay);
        }
        let has_it = confirmation.answered(&held, &baseline.version);
        if !has_it {
            tracing::warn!(feed = self.channel.name, "{held}; pushing the baseline {} again", baseline.version);
            self.figures.reseeded(FeedDestination::Relay);
        }
        has_it
    }

    async fn held_baseline(&self) -> Result<HeldBaseline, Failure> {
        let answer = self.answer(self.relay.client.get(self.url("version")?), DELTA_PATIENCE).await?;
        let status = answer.status();
        if !status.is_success() {
            return match status.as_u16() {
                401 | 403 | 408 | 425 | 429 | 500 | 502..=504 => Err(refusal(answer).await),
                status => Ok(HeldBaseline::Unanswered { status }),
            };
        }
        let text = answer.text().await.map_err(|e| Failure::Unreachable(causes(&e)))?;
        Ok(HeldBaseline::of_answer(&text))
    }

    fn record_failure(&self, failure: &Failure) {
        let message = failure.to_string();
        if self.figures.failed(FeedDestination::Relay, &message) {
            tracing::warn!(feed = self.channel.name, "{message}; retrying with backoff");
        }
    }

    /// When to push a baseline, from the last push and its time.
    fn due(&self, pushed: Option<&(Arc<Baseline>, Instant)>) -> Due {
        match (self.channel.baseline(), pushed) {
            (None, _) => Due::Never,
            (Some(now), None) => Due::Now(now),
            (Some(now), Some((last, _))) if now.position.epoch != last.position.epoch => Due::Now(now),
            (Some(now), Some((last, _))) if now.version == last.version => Due::Never,
            (Some(now), Some((_, at))) => {
                let due = *at + self.interval;
                if due <= Instant::now() { Due::Now(now) } else { Due::At(due) }
            }
        }
    }

    /// Waits until a delta is queued or a baseline is due.
    async fn wait(&self, due: Due) {
        let deadline = match due {
            Due::At(at) => at.saturating_duration_since(Instant::now()),
            Due::Now(_) => Duration::ZERO,
            // The outbox notifies.
            Due::Never => self.interval,
        };
        tokio::select! {
            () = self.outbox.changed() => {}
            () = tokio::time::sleep(deadline) => {}
        }
    }

    async fn push_baseline(&self, baseline: &Baseline) -> Result<(), Failure> {
        let encoded = baseline.encoded().await.map_err(|e| Failure::Ours(e.to_string()))?;
        self.figures.encoded(encoded.bytes.len());
        let mut url = self.url("upload")?;
        url.query_pairs_mut().append_pair("version", &baseline.version);
        if self.names_cluster {
            url.query_pairs_mut().append_pair("cluster", &self.relay.cluster);
        }
        let request = self.relay.client.put(url).header(CONTENT_TYPE, self.media_type);
        // A text has no field for its position; followers of the relay need to know which deltas it contains.
        let request =
            encoded.head.headers().into_iter().fold(request, |request, (name, value)| request.header(name, value));
        self.send(request.body(encoded.bytes.clone()), BASELINE_PATIENCE).await
    }

    async fn push_delta(&self, delta: &QueuedDelta) -> Result<(), Failure> {
        let request = self.relay.client.post(self.url("delta")?).header(CONTENT_TYPE, "application/json");
        self.send(request.body(delta.json.clone()), DELTA_PATIENCE).await
    }

    fn url(&self, what: &str) -> Result<Url, Failure> {
        let mut url = self.relay.base.clone();
        let mut segments = url.path_segments_mut().map_err(|()| Failure::Ours("--push-url has no host".into()))?;
        segments.pop_if_empty().push(self.channel.name).push(what);
        drop(segments);
        Ok(url)
    }

    async fn send(&self, request: RequestBuilder, patience: Duration) -> Result<(), Failure> {
        let answer = self.answer(request, patience).await?;
        if answer.status().is_success() { Ok(()) } else { Err(refusal(answer).await) }
    }

    async fn answer(&self, request: RequestBuilder, patience: Duration) -> Result<Response, Failure> {
        let token = self.relay.access.authorization().await.map_err(|e| Failure::Ours(e.to_string()))?;
        let request = token.into_iter().fold(request, |request, token| request.header(AUTHORIZATION, token));
        self.assurance.wait().await;
        let began = Instant::now();
        let answer = request.timeout(patience).send().await;
        self.figures.took(FeedDestination::Relay, began.elapsed());
        answer.map_err(|e| Failure::Unreachable(causes(&e)))
    }
}

async fn refusal(answer: Response) -> Failure {
    let status = answer.status().as_u16();
    let said = answer.text().await.map(|text| first_line(&text)).unwrap_or_else(|_| String::new());
    Failure::Refused { status, said }
}

enum Due {
    Now(Arc<Baseline>),
    At(Instant),
    /// Not before the table changes.
    Never,
}

/// Backoff of a baseline that replaces another.
struct Renewal {
    backoff: Backoff,
    not_before: Option<Instant>,
}

impl Renewal {
    fn new() -> Renewal {
        Renewal { backoff: Backoff::new(BACKOFF_FIRST, BACKOFF_LAST), not_before: None }
    }

    fn failed(&mut self) {
        self.not_before = Some(Instant::now() + self.backoff.wait());
    }

    fn delay(&self, due: Due) -> Due {
        match (due, self.not_before) {
            (Due::Now(_), Some(at)) if at > Instant::now() => Due::At(at),
            (due, _) => due,
        }
    }
}

fn first_line(text: &str) -> String {
    let line: String = text.lines().next().unwrap_or("").chars().filter(|c| !c.is_control()).take(SAID_BYTES).collect();
    if line.is_empty() { line } else { format!(": {line}") }
}

/// The error and its causes, on one line; without the URL, which may contain a password.
fn causes(error: &reqwest::Error) -> String {
    let mut source = std::error::Error::source(error);
    let mut text = match () {
        () if error.is_timeout() => "timed out".to_owned(),
        () if error.is_connect() => "connection failed".to_owned(),
        () => "connection closed during the request".to_owned(),
    };
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn push_ends_when_leadership_channel_closes() {
        let access = Access::default();
        let client = access.client(false, BACKOFF_FIRST, BACKOFF_FIRST).await.unwrap();
        let base = "http://127.0.0.1:1".parse().unwrap();
        let (leads, receiver) = watch::channel(true);
        let push = Push {
            relay: Relay { base, cluster: "test".into(), client, access },
            channel: Channel::new("identity", 1),
            outbox: Arc::default(),
            media_type: "text/plain",
            names_cluster: false,
            nothing: |_| vec![],
            interval: BACKOFF_LAST,
            leads: receiver,
            assurance: Assurance::always(),
            figures: Metrics::new().of_feed("identity"),
        };
        let task = tokio::spawn(push.run());
        // The push waits for its next attempt, or has not started yet; both end.
        tokio::task::yield_now().await;
        drop(leads);
        tokio::time::timeout(DELTA_PATIENCE, task).await.expect("it ends").unwrap();
    }
}
