//! Follows a feed over HTTP: opens its stream, gets the baseline where one is needed, hands on what joins, and comes
//! back whenever that ends. Decides nothing of its own: [`Follower`] does.

mod exchange;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

pub use reqwest::{Response, StatusCode, Url};

use self::exchange::{Exchange, Stream};
use crate::sse::{self, Parsed, PullData, TooLong};
use crate::{Access, AccessError, Backoff, Follower, Head, HeadError, Next, Position, Pull};

/// How long a server may take to accept a connection. They are in the cluster.
const CONNECT: Duration = Duration::from_secs(5);
/// How long nothing may come of an answer. The producer says something every 15 s, so that two of three were lost.
const SILENCE: Duration = Duration::from_secs(45);
/// Waits begin here once every server has failed: all followers come back within this after a restart.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// How long a server that is back stays unnoticed at most.
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// More than the largest table that its format can hold with 28 bits for an offset.
const BASELINE_BYTES: u64 = 1 << 30;

/// Which feed is followed, and where.
#[derive(Debug, Clone)]
pub struct Source {
    /// One after the other when one fails. A feed's resources are below.
    pub urls: Vec<Url>,
    /// `identity`.
    pub feed: String,
    /// The form of the feed, where it has several: `numbers` of `identity`. `None` is the usual one.
    pub form: Option<String>,
    pub access: Access,
    pub timing: Timing,
    /// A baseline that is longer, not compressed, is refused.
    pub baseline_bytes: u64,
}

impl Source {
    pub fn new(urls: Vec<Url>, feed: impl Into<String>) -> Source {
        Source {
            urls,
            feed: feed.into(),
            form: None,
            access: Access::default(),
            timing: Timing::default(),
            baseline_bytes: BASELINE_BYTES,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Within which a connection is made.
    pub connect: Duration,
    /// After which a stream or a download of which nothing comes is dead.
    pub silence: Duration,
    /// The first wait once every server has failed. See [`Backoff`].
    pub retry_first: Duration,
    pub retry_longest: Duration,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing { connect: CONNECT, silence: SILENCE, retry_first: RETRY_FIRST, retry_longest: RETRY_LONGEST }
    }
}

/// What a follower is to do with its table, in order.
#[derive(Debug)]
pub enum Update {
    /// Replace it.
    Baseline { head: Head, bytes: Bytes },
    /// There is a stream again, and it goes on where the table is.
    Resumed { position: Position },
    /// Change it. The position is one behind the last.
    Delta { position: Position, json: Bytes },
    /// Keep it: it is no longer known to be up to date. Trying goes on.
    Lost(Lost),
}

/// Why a feed is not followed for the moment.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("{url}: {}", with_causes(source))]
    Transport { url: Url, source: reqwest::Error },
    #[error("{url} returned {status}: {says}")]
    Refused { url: Url, status: StatusCode, says: String },
    #[error("{url} did not return an event stream (text/event-stream)")]
    NoStream { url: Url },
    #[error("{url} closed the stream")]
    Ended { url: Url },
    #[error(transparent)]
    Event(#[from] TooLong),
    #[error("cannot decode the stream event {event:?}: {why}")]
    NotUnderstood { event: String, why: String },
    #[error(transparent)]
    Head(#[from] HeadError),
    #[error("the baseline is larger than {limit} bytes")]
    BaselineTooLong { limit: u64 },
    /// They come from different producers, or the baseline is out of date.
    #[error("the baseline does not join the stream: {0}")]
    Apart(Pull),
}

impl Lost {
    fn transport(url: &Url, source: reqwest::Error) -> Lost {
        Lost::Transport { url: url.clone(), source: source.without_url() }
    }
}

/// The error and its sources, separated by colons. HTTP clients name the reason only in the innermost source.
///
/// ```
/// #[derive(Debug, thiserror::Error)]
/// #[error("cannot connect")]
/// struct Unreachable(#[source] std::net::AddrParseError);
///
/// let error = Unreachable("x".parse::<std::net::IpAddr>().unwrap_err());
/// assert_eq!(feed::client::with_causes(&error), "cannot connect: invalid IP address syntax");
/// ```
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// Why a feed cannot be followed at all.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error("no server to subscribe to")]
    NoUrl,
    #[error("{0} is not an http or https URL")]
    Scheme(Url),
}

/// Follows the feed for as long as somebody takes the updates. They wait for room in the channel: a consumer that is
/// slow has the producer close its stream, and comes back.
///
/// # Errors
/// If it cannot begin. A server that fails is an update, and is tried again.
pub async fn follow(source: Source, updates: mpsc::Sender<Update>) -> Result<(), FollowError> {
    if source.urls.is_empty() {
        return Err(FollowError::NoUrl);
    }
    if let Some(url) = source.urls.iter().find(|url| !matches!(url.scheme(), "http" | "https")) {
        return Err(FollowError::Scheme(url.clone()));
    }
    tokio::select! {
        () = updates.closed() => Ok(()),
        Gone = follow_in_turn(&source, &updates) => Ok(()),
    }
}

/// The HTTP client, made again when the file of CA certificates has changed: certificates are rotated while the process runs,
/// and the file may appear after its start.
struct HttpClient<'a> {
    source: &'a Source,
    current: Option<(Option<Vec<u8>>, reqwest::Client)>,
}

impl HttpClient<'_> {
    async fn get(&mut self) -> Result<reqwest::Client, AccessError> {
        let Source { access, timing, urls, .. } = self.source;
        let certificates = access.ca_certificates().await?;
        match &self.current {
            Some((known, client)) if *known == certificates => Ok(client.clone()),
            Some(_) | None => {
                let is_https = urls.iter().any(|url| url.scheme() == "https");
                let client = access.client_with(certificates.as_deref(), is_https, timing.connect, timing.silence)?;
                self.current = Some((certificates, client.clone()));
                Ok(client)
            }
        }
    }
}

/// Nobody takes the updates any more.
struct Gone;

async fn follow_in_turn(source: &Source, updates: &mpsc::Sender<Update>) -> Gone {
    let mut http = HttpClient { source, current: None };
    let mut backoff = Backoff::new(source.timing.retry_first, source.timing.retry_longest);
    let mut follower = Follower::new();
    loop {
        for url in &source.urls {
            let http = match http.get().await {
                Ok(http) => http,
                Err(error) => {
                    if updates.send(Update::Lost(error.into())).await.is_err() {
                        return Gone;
                    }
                    continue;
                }
            };
            let exchange = Exchange { http: &http, source, url };
            let mut session = Session { exchange, follower: &mut follower, updates, joined: false };
            let lost = match session.run().await {
                End::Gone => return Gone,
                End::Lost(lost) => lost,
            };
            if session.joined {
                backoff.reset();
            }
            if updates.send(Update::Lost(lost)).await.is_err() {
                return Gone;
            }
        }
        tokio::time::sleep(backoff.wait()).await;
    }
}

/// One stream, from its opening to its end.
struct Session<'a> {
    exchange: Exchange<'a>,
    follower: &'a mut Follower,
    updates: &'a mpsc::Sender<Update>,
    /// The table was where the stream is.
    joined: bool,
}

enum End {
    Gone,
    Lost(Lost),
}

impl<E: Into<Lost>> From<E> for End {
    fn from(lost: E) -> End {
        End::Lost(lost.into())
    }
}

impl Session<'_> {
    async fn run(&mut self) -> End {
        let Err(end) = self.follow_stream().await;
        end
    }

    async fn follow_stream(&mut self) -> Result<std::convert::Infallible, End> {
        let mut stream = self.exchange.open_stream(self.follower.position()).await?;
        self.begin(&mut stream).await?;
        loop {
            let event = stream.next().await?;
            match event.event.as_str() {
                sse::DELTA => self.delta(event).await?,
                sse::PULL => {
                    let told: PullData = understood(&event)?;
                    let next = self.follower.told_to_pull(told.position, &told.reason);
                    self.pull_if_needed(next).await?;
                }
                sse::POSITION => {
                    return Err(not_understood(&event, "a stream begins once").into());
                }
                // Producers may come to say more.
                _ => {}
            }
        }
    }

    async fn begin(&mut self, stream: &mut Stream) -> Result<(), End> {
        let event = stream.next().await?;
        if event.event != sse::POSITION {
            return Err(not_understood(&event, "a stream begins with its position").into());
        }
        let next = self.follower.begins(understood(&event)?);
        match (next, self.follower.position()) {
            (Next::Known, Some(position)) => {
                self.joined = true;
                self.hand_on(Update::Resumed { position }).await
            }
            (next, _) => self.pull_if_needed(next).await,
        }
    }

    async fn delta(&mut self, event: Parsed) -> Result<(), End> {
        let position: Position = event.id.parse().map_err(|e| not_understood(&event, e))?;
        match self.follower.delta(position) {
            Next::Apply => self.hand_on(Update::Delta { position, json: event.data.into() }).await,
            next @ (Next::Known | Next::Pull(_)) => self.pull_if_needed(next).await,
        }
    }

    /// The stream is not read meanwhile: what waits there is known or next once the baseline is here.
    async fn pull_if_needed(&mut self, next: Next) -> Result<(), End> {
        match next {
            Next::Apply | Next::Known => return Ok(()),
            Next::Pull(why) => tracing::debug!(url = %self.exchange.url, %why, "a baseline is needed"),
        }
        let (head, bytes) = self.exchange.download().await?;
        let joins = self.follower.baseline(head.position);
        self.hand_on(Update::Baseline { head, bytes }).await?;
        match joins {
            Next::Apply | Next::Known => {
                self.joined = true;
                Ok(())
            }
            Next::Pull(why) => Err(Lost::Apart(why).into()),
        }
    }

    async fn hand_on(&self, update: Update) -> Result<(), End> {
        self.updates.send(update).await.map_err(|_| End::Gone)
    }
}

fn understood<T: serde::de::DeserializeOwned>(event: &Parsed) -> Result<T, Lost> {
    serde_json::from_slice(&event.data).map_err(|e| not_understood(event, e))
}

fn not_understood(event: &Parsed, why: impl ToString) -> Lost {
    Lost::NotUnderstood { event: event.event.chars().take(32).collect(), why: why.to_string() }
}
