//! Follows a feed over HTTP: opens the stream, downloads the baseline when [`Follower`] needs one, passes updates on,
//! and reconnects when the stream ends.

mod exchange;
mod server_url;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

pub use reqwest::{Response, StatusCode, Url};
pub use server_url::{is_exposed, parse_server_url};

use self::exchange::{BodyStream, Exchange};
use crate::sse::{self, ParsedEvent, PullData, TooLong};
use pacing::Backoff;

use crate::{Access, AccessError, Follower, Head, HeadError, Next, Position, Pull};

/// Connection timeout. Servers are in the cluster.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Read timeout of a response: three keepalive intervals of the producer (15 s), so that two may be lost.
const READ_TIMEOUT: Duration = Duration::from_secs(45);
/// Initial backoff once every server has failed: all followers reconnect within this time after a restart.
const RETRY_FIRST: Duration = Duration::from_secs(1);
/// Longest backoff, and so the longest time for which a recovered server goes unnoticed.
const RETRY_LONGEST: Duration = Duration::from_secs(30);
/// Size limit of a baseline: more than the largest database with 28-bit offsets.
const BASELINE_BYTES: u64 = 1 << 30;

/// A feed and its servers.
#[derive(Debug, Clone)]
pub struct FeedSource {
    /// Base URLs, tried in turn when one fails. The feed's resources are below them.
    pub urls: Vec<Url>,
    /// `identity`.
    pub feed: String,
    /// The form of the feed if it has several, as `numbers` of `identity`. `None` is the default form.
    pub form: Option<String>,
    /// CA certificates and bearer token, the same for all servers.
    pub access: Access,
    /// Timeouts and backoff, the same for all servers.
    pub timing: FollowerTiming,
    /// Size limit of a baseline, uncompressed.
    pub baseline_bytes: u64,
}

impl FeedSource {
    /// The default form, without credentials, with default timing and a limit of 1 GiB.
    pub fn new(urls: Vec<Url>, feed: impl Into<String>) -> FeedSource {
        FeedSource {
            urls,
            feed: feed.into(),
            form: None,
            access: Access::default(),
            timing: FollowerTiming::default(),
            baseline_bytes: BASELINE_BYTES,
        }
    }
}

/// Timeouts and backoff of a follower.
#[derive(Debug, Clone, Copy)]
pub struct FollowerTiming {
    /// Connection timeout.
    pub connect: Duration,
    /// Read timeout: a stream or download without data for this long is dead.
    pub read_timeout: Duration,
    /// The initial backoff once every server has failed. See [`Backoff`].
    pub retry_first: Duration,
    /// Upper bound of the backoff, and so the longest time for which a recovered server goes unnoticed.
    pub retry_longest: Duration,
}

impl Default for FollowerTiming {
    fn default() -> FollowerTiming {
        FollowerTiming {
            connect: CONNECT_TIMEOUT,
            read_timeout: READ_TIMEOUT,
            retry_first: RETRY_FIRST,
            retry_longest: RETRY_LONGEST,
        }
    }
}

/// An update for the follower's table; updates are applied in order.
#[derive(Debug)]
pub enum Update {
    /// Replace the table.
    Baseline {
        /// Version, position, count and digest, from the response headers; the digest was verified.
        head: Head,
        /// The table in the format of the feed.
        bytes: Bytes,
    },
    /// The stream is open again and resumes at the table's position.
    Resumed {
        /// The position of the follower's table, which is unchanged.
        position: Position,
    },
    /// Apply the delta. Its position is the one after the previous update's.
    Delta {
        /// The position of the table with this delta.
        position: Position,
        /// The delta in the format of the feed.
        json: Bytes,
    },
    /// Keep the table, which may be stale. The client retries.
    Lost(ConnectionLoss),
}

/// Reason why the feed is interrupted.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionLoss {
    /// The credentials cannot be read; no request was sent.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The connection failed, timed out or broke.
    #[error("{url}: {}", with_causes(source))]
    Transport {
        /// The resource requested.
        url: Url,
        /// Error of the HTTP client, without the URL.
        source: reqwest::Error,
    },
    /// The server returned a status other than 200.
    #[error("{url} returned {status}: {says}")]
    Refused {
        /// The resource requested.
        url: Url,
        /// The HTTP status.
        status: StatusCode,
        /// The start of the response body, at most 256 bytes, without control characters.
        says: String,
    },
    /// The URL is of another server: its response to `deltas` has another content type.
    #[error("{url} did not return an event stream (text/event-stream)")]
    NoStream {
        /// The resource requested.
        url: Url,
    },
    /// The server ended the response, such as for a slow consumer or at its own shutdown.
    #[error("{url} closed the stream")]
    Ended {
        /// The resource requested.
        url: Url,
    },
    /// An event exceeds the limit of the parser.
    #[error(transparent)]
    Event(#[from] TooLong),
    /// Invalid JSON, an invalid position or an event out of place.
    #[error("cannot decode the stream event {event:?}: {why}")]
    NotUnderstood {
        /// Type of the event, at most 32 characters.
        event: String,
        /// The reason, for people.
        why: String,
    },
    /// The headers of the baseline are invalid, or the digest does not match.
    #[error(transparent)]
    Head(#[from] HeadError),
    /// The download was aborted at the limit.
    #[error("the baseline is larger than {limit} bytes")]
    BaselineTooLong {
        /// [`FeedSource::baseline_bytes`].
        limit: u64,
    },
    /// The two are of different producers, or the baseline is stale.
    #[error("the baseline does not join the stream: {0}")]
    Apart(Pull),
}

impl ConnectionLoss {
    fn transport(url: &Url, source: reqwest::Error) -> ConnectionLoss {
        ConnectionLoss::Transport { url: url.clone(), source: source.without_url() }
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

/// Error that prevents following a feed at all.
#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    /// [`FeedSource::urls`] is empty.
    #[error("no server to subscribe to")]
    NoUrl,
    /// A URL of another scheme in [`FeedSource::urls`].
    #[error("{0} is not an http or https URL")]
    Scheme(Url),
}

/// Follows the feed until the receiver of the updates is dropped. The channel applies backpressure: the producer closes
/// the stream of a slow consumer, which then reconnects.
///
/// # Errors
/// If it cannot start. A failing server is reported as an update, and retried.
pub async fn follow(source: FeedSource, updates: mpsc::Sender<Update>) -> Result<(), FollowError> {
    if source.urls.is_empty() {
        return Err(FollowError::NoUrl);
    }
    if let Some(url) = source.urls.iter().find(|url| !matches!(url.scheme(), "http" | "https")) {
        return Err(FollowError::Scheme(url.clone()));
    }
    tokio::select! {
        () = updates.closed() => Ok(()),
        Gone = follow_urls(&source, &updates) => Ok(()),
    }
}

/// The HTTP client, rebuilt when the file of CA certificates has changed: certificates are rotated while the process
/// runs, and the file may appear after its start.
struct HttpClient<'a> {
    source: &'a FeedSource,
    current: Option<(Option<Vec<u8>>, reqwest::Client)>,
}

impl HttpClient<'_> {
    async fn get(&mut self) -> Result<reqwest::Client, AccessError> {
        let FeedSource { access, timing, urls, .. } = self.source;
        let certificates = access.ca_certificates().await?;
        match &self.current {
            Some((known, client)) if *known == certificates => Ok(client.clone()),
            Some(_) | None => {
                let is_https = urls.iter().any(|url| url.scheme() == "https");
                let client =
                    access.client_with(certificates.as_deref(), is_https, timing.connect, timing.read_timeout)?;
                self.current = Some((certificates, client.clone()));
                Ok(client)
            }
        }
    }
}

/// The receiver of the updates was dropped.
struct Gone;

async fn follow_urls(source: &FeedSource, updates: &mpsc::Sender<Update>) -> Gone {
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
                SessionEnd::Gone => return Gone,
                SessionEnd::Lost(lost) => lost,
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

/// One stream, from opening to end.
struct Session<'a> {
    exchange: Exchange<'a>,
    follower: &'a mut Follower,
    updates: &'a mpsc::Sender<Update>,
    /// Whether the table has joined the stream.
    joined: bool,
}

enum SessionEnd {
    Gone,
    Lost(ConnectionLoss),
}

impl<E: Into<ConnectionLoss>> From<E> for SessionEnd {
    fn from(lost: E) -> SessionEnd {
        SessionEnd::Lost(lost.into())
    }
}

impl Session<'_> {
    async fn run(&mut self) -> SessionEnd {
        let Err(end) = self.follow_stream().await;
        end
    }

    async fn follow_stream(&mut self) -> Result<std::convert::Infallible, SessionEnd> {
        let mut stream = self.exchange.open_stream(self.follower.position()).await?;
        self.begin(&mut stream).await?;
        loop {
            let event = stream.next().await?;
            match event.event.as_str() {
                sse::DELTA => self.delta(event).await?,
                sse::PULL => {
                    let request: PullData = understood(&event)?;
                    let next = self.follower.pull_requested(request.position, &request.reason);
                    self.pull_if_needed(next).await?;
                }
                sse::POSITION => {
                    return Err(not_understood(&event, "a stream begins once").into());
                }
                // Unknown events are ignored, so that producers may add some.
                _ => {}
            }
        }
    }

    async fn begin(&mut self, stream: &mut BodyStream) -> Result<(), SessionEnd> {
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

    async fn delta(&mut self, event: ParsedEvent) -> Result<(), SessionEnd> {
        let position: Position = event.id.parse().map_err(|e| not_understood(&event, e))?;
        match self.follower.delta(position) {
            Next::Apply => self.hand_on(Update::Delta { position, json: event.data.into() }).await,
            next @ (Next::Known | Next::Pull(_)) => self.pull_if_needed(next).await,
        }
    }

    /// The stream is not read during the download: its pending deltas are in the baseline already or follow it.
    async fn pull_if_needed(&mut self, next: Next) -> Result<(), SessionEnd> {
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
            Next::Pull(why) => Err(ConnectionLoss::Apart(why).into()),
        }
    }

    async fn hand_on(&self, update: Update) -> Result<(), SessionEnd> {
        self.updates.send(update).await.map_err(|_| SessionEnd::Gone)
    }
}

fn understood<T: serde::de::DeserializeOwned>(event: &ParsedEvent) -> Result<T, ConnectionLoss> {
    serde_json::from_slice(&event.data).map_err(|e| not_understood(event, e))
}

fn not_understood(event: &ParsedEvent, why: impl ToString) -> ConnectionLoss {
    ConnectionLoss::NotUnderstood { event: event.event.chars().take(32).collect(), why: why.to_string() }
}
