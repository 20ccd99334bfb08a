//! The informer of one kind: lists, watches, and resumes from the last resource version after a failure.

use kube::core::Status;
use pacing::Backoff;
use policy::{Change, Interner, ObjectName};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::InformerReport;
use super::api::{self, ObjectQuery, Start};
use super::decode::{Bookmark, Page, WatchLine, WatchLineKind, decode, decode_item, decode_name};
use super::discovery::{Discovery, discover};
use super::failure::{Failure, StreamFallback, Verb};
use super::last_reported::LastReported;
use super::lines::{LINE_BYTES, Read, WatchLines};
use crate::event::watch_origin;
use crate::{ApiClient, MissingName, Need, Problem, Resource, TimedChange, Watchable};

/// Page size of lists, the same as client-go's.
const PAGE_OBJECTS: u32 = 500;

/// Streaming lists that may break off or be rejected (429) in a row before paged lists are tried: a proxy may pass the
/// request but never the bookmark that ends the list, and a busy server may only serve pages.
const FAILED_STREAMS: u32 = 3;

/// Failures in a row, possibly caused by the resource version, before it is dropped and everything is relisted, which
/// may succeed.
const VERSION_FAILURES: u32 = 4;

/// Answers in a row that a kind with known objects is not served, before they are removed.
const UNSERVED_ANSWERS: u32 = 4;

/// Why an informer stopped a request.
enum Stop {
    Failed(Failure),
    /// The receiver was dropped.
    Unheard,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

pub(super) struct Informer<O: Watchable> {
    connection: ApiClient,
    kind: O::Kind,
    asked: ObjectQuery,
    /// More objects than this are a failure, which keeps the last reported state.
    most_objects: usize,
    report: mpsc::Sender<(O::Kind, InformerReport<O>)>,
    /// Resource version up to which everything has been reported; `None` before the first list, or after it expired.
    version: Option<String>,
    /// An open watch, positioned at `version`.
    open: Option<WatchLines>,
    /// Until then lists are paged, since a streaming list has failed.
    paged_until: Option<Instant>,
    /// Number of streaming lists that failed in a row.
    failed_streams: u32,
    /// Page size; `None` (a single page) once a list expired before its last page.
    page_objects: Option<u32>,
    version_failures: u32,
    backoff: Backoff,
    /// The current failure as a message.
    failure: Option<String>,
    /// The server does not serve this optional kind.
    unserved: bool,
    /// Answers in a row that the kind is not served.
    unserved_answers: u32,
    /// Number of objects without a name since the last list began.
    nameless: usize,
    /// Strings shared by the objects.
    interner: Interner,
    last_reported: LastReported<O>,
}

/// An entry of a list, in the order received. The last one of a name counts.
enum WatchActivity<O> {
    Is(O),
    Gone(Box<ObjectName>),
}

impl<O: Watchable> WatchActivity<O> {
    fn name(&self) -> &ObjectName {
        match self {
            WatchActivity::Is(object) => object.name(),
            WatchActivity::Gone(name) => name,
        }
    }
}

impl<O: Watchable> Informer<O> {
    pub(super) fn new(
        connection: &ApiClient,
        kind: O::Kind,
        report: mpsc::Sender<(O::Kind, InformerReport<O>)>,
    ) -> Informer<O> {
        Informer {
            backoff: Backoff::new(connection.timing.backoff_first, connection.timing.backoff_last),
            connection: connection.clone(),
            kind,
            asked: ObjectQuery { resource: O::resource(kind), labels: None },
            most_objects: usize::MAX,
            report,
            version: None,
            open: None,
            paged_until: None,
            failed_streams: 0,
            page_objects: Some(PAGE_OBJECTS),
            version_failures: 0,
            failure: None,
            unserved: false,
            unserved_answers: 0,
            nameless: 0,
            interner: Interner::new(),
            last_reported: LastReported::new(),
        }
    }

    /// Restricts the informer to a label selector; the informer reports nothing while there are more than `most`
    /// objects.
    pub(super) fn labelled(mut self, selector: String, most: usize) -> Informer<O> {
        self.asked.labels = Some(selector);
        self.most_objects = most;
        self
    }

    fn require_room(&self, objects: usize) -> Result<(), Failure> {
        if objects > self.most_objects { Err(Failure::TooMany(self.most_objects)) } else { Ok(()) }
    }

    fn resource(&self) -> Resource {
        self.asked.resource
    }

    /// Runs until the receiver is dropped.
    pub(super) async fn run(mut self) {
        loop {
            let streamed = self.version.is_none() && self.streams();
            let outcome = match self.version.clone() {
                None if streamed => self.list_as_stream().await,
                None => self.list_in_pages().await,
                Some(version) => self.watch(version).await,
            };
            let outcome = match outcome {
                Ok(()) => Ok(()),
                Err(Stop::Failed(failure)) => self.recover(streamed, failure).await,
                Err(Stop::Unheard) => Err(Stop::Unheard),
            };
            if outcome.is_err() {
                return;
            }
        }
    }

    /// Whether the next list is a streaming list.
    fn streams(&self) -> bool {
        self.paged_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Records a failed streaming list. Returns whether to fall back to paged lists, without backoff.
    fn fall_back(&mut self, failure: &Failure) -> bool {
        self.failed_streams += 1;
        let falls_back = match failure.stream_fallback() {
            StreamFallback::AtOnce => true,
            StreamFallback::AfterRepeats => self.failed_streams >= FAILED_STREAMS,
            StreamFallback::Never => false,
        };
        if falls_back {
            // If the server does not serve the kind, the paged list fails too and reports that.
            if !failure.means_none() {
                let reason = failure.explain(self.resource());
                tracing::info!(kind = %self.kind, reason, "streaming list failed; falling back to paged lists");
            }
            self.failed_streams = 0;
            self.paged_until = Some(Instant::now() + self.connection.timing.streaming_retry);
        }
        falls_back
    }

    /// Decides whether to resume or relist, reports the failure, and waits for the backoff.
    async fn recover(&mut self, streamed: bool, failure: Failure) -> Result<(), Stop> {
        self.open = None;
        let listing = self.version.is_none();
        if streamed && self.fall_back(&failure) {
            return Ok(());
        }
        self.report(InformerReport::Restarts).await?;
        match failure {
            Failure::Expired if streamed => {}
            Failure::Expired if listing => self.page_objects = None,
            // Further objects may follow the one beyond the limit.
            Failure::Expired | Failure::TooMany(_) => self.version = None,
            Failure::TooLarge(Verb::List, _) => {
                self.page_objects = Some((self.page_objects.unwrap_or(PAGE_OBJECTS) / 2).max(1));
            }
            Failure::TooLarge(..)
            | Failure::Refused(..)
            | Failure::NoWay(_)
            | Failure::Unreachable(_)
            | Failure::Silent(..)
            | Failure::Unreadable(..)
            | Failure::EndedAtOnce
            | Failure::StreamUnfinished => {}
        }
        if failure.may_lie_in_version() {
            self.version_failures += 1;
            if self.version_failures >= VERSION_FAILURES {
                self.version_failures = 0;
                self.version = None;
            }
        }
        let mut message = failure.explain(self.resource());
        let may_be_unserved = self.resource().need != Need::Needed && failure.means_none();
        let discovery = match may_be_unserved {
            true => discover(&self.connection, self.resource()).await,
            false => Discovery::Unconfirmed,
        };
        if let Discovery::Failed(reason) = &discovery {
            message += &format!("; the API server's discovery, which has to confirm that, failed: {reason}");
        }
        tracing::debug!(kind = %self.kind, "{message}");
        let unserved = matches!(discovery, Discovery::Unserved);
        if unserved && self.request_alternative() {
            return Ok(());
        }
        let unserved = unserved && self.is_confirmed();
        if unserved {
            self.report_unserved().await?;
        } else if listing || !matches!(failure, Failure::Expired) {
            // An expired version is normal and not reported; a failure of the relist will be.
            self.failure = Some(message);
            self.report_problems().await?;
        }
        // The kind may be installed later, which is not urgent.
        let wait = if unserved { self.backoff.wait_longest() } else { self.backoff.wait() };
        let wait = wait.max(failure.retry_after()).min(self.connection.timing.backoff_last);
        tokio::select! {
            () = sleep(wait) => Ok(()),
            () = self.report.closed() => Err(Stop::Unheard),
        }
    }

    /// Moves on to the next version of the kind. Returns false after the last one, and starts over with the first.
    fn request_alternative(&mut self) -> bool {
        let Resource { version, alternatives, .. } = O::resource(self.kind);
        let position = alternatives.iter().position(|alternative| *alternative == self.asked.resource.version);
        let next = alternatives.get(position.map_or(0, |position| position + 1));
        self.asked.resource.version = next.copied().unwrap_or(version);
        self.paged_until = None;
        next.is_some()
    }

    /// Records an answer that the kind is not served. While objects of it are known, one is not enough: the watch reports
    /// them as deleted when a CustomResourceDefinition is removed.
    fn is_confirmed(&mut self) -> bool {
        self.unserved_answers += 1;
        self.last_reported.len() == 0 || self.unserved_answers >= UNSERVED_ANSWERS
    }

    /// Reports that the server does not serve the kind, and so has no objects of it.
    async fn report_unserved(&mut self) -> Result<(), Stop> {
        self.failure = None;
        self.report_problems().await?;
        if self.unserved {
            return Ok(());
        }
        self.unserved = true;
        self.last_reported.replace(&[]);
        let change = Change::Replace(self.kind, Vec::new());
        self.report(InformerReport::Change(Box::new(TimedChange { change, at: Instant::now().into_std() }))).await?;
        self.report(InformerReport::Unserved(true)).await
    }

    async fn list_as_stream(&mut self) -> Result<(), Stop> {
        self.nameless = 0;
        let mut lines = api::watch(&self.connection, &self.asked, Start::List).await?;
        let mut received = Vec::new();
        loop {
            let line = match lines.next(self.connection.timing.answer).await {
                Read::Line(line) => line,
                Read::End => return Err(Failure::StreamUnfinished.into()),
                other => return Err(failure_of(other, self.connection.timing.answer).into()),
            };
            let line = read_line(&line)?;
            match line.kind {
                WatchLineKind::Added | WatchLineKind::Modified => {
                    match decode(&mut self.interner, self.kind, line.object) {
                        Ok(decoded) => received.push(WatchActivity::Is(self.last_reported.share(decoded.object))),
                        Err(MissingName) => self.nameless += 1,
                    }
                }
                WatchLineKind::Deleted => match decode_name::<O>(&mut self.interner, self.kind, line.object) {
                    Ok((name, _)) => received.push(WatchActivity::Gone(Box::new(name))),
                    Err(MissingName) => self.nameless += 1,
                },
                WatchLineKind::Bookmark => {
                    let bookmark: Bookmark = read_json(line.object.get())?;
                    if bookmark.ends_list() {
                        let version = known_version(Some(bookmark.metadata.resource_version), Verb::Watch)?;
                        self.failed_streams = 0;
                        self.paged_until = None;
                        self.open = Some(lines);
                        return self.finish_list(received, version).await;
                    }
                }
                WatchLineKind::Error => return Err(read_status(line.object.get())?.into()),
            }
            self.require_room(received.len())?;
        }
    }

    async fn list_in_pages(&mut self) -> Result<(), Stop> {
        self.nameless = 0;
        let mut received = Vec::new();
        let (mut next, mut text) = (None, Vec::new());
        loop {
            api::page(&self.connection, &self.asked, self.page_objects, next, &mut text).await?;
            let page: Page =
                serde_json::from_slice(&text).map_err(|e| Failure::Unreadable(Verb::List, e.to_string()))?;
            for item in page.items.unwrap_or_default() {
                match decode_item(&mut self.interner, self.kind, item, page.api_version.as_deref()) {
                    Ok(decoded) => received.push(WatchActivity::Is(self.last_reported.share(decoded.object))),
                    Err(MissingName) => self.nameless += 1,
                }
            }
            self.require_room(received.len())?;
            next = page.metadata.next.filter(|token| !token.is_empty());
            if next.is_none() {
                let version = known_version(page.metadata.resource_version, Verb::List)?;
                self.page_objects.get_or_insert(PAGE_OBJECTS);
                return self.finish_list(received, version).await;
            }
        }
    }

    async fn finish_list(&mut self, received: Vec<WatchActivity<O>>, version: String) -> Result<(), Stop> {
        let objects = known_last(received);
        self.last_reported.replace(&objects);
        tracing::debug!(kind = %self.kind, objects = objects.len(), version, "listed");
        let change = Change::Replace(self.kind, objects);
        self.report(InformerReport::Change(Box::new(TimedChange { change, at: Instant::now().into_std() }))).await?;
        self.version = Some(version);
        self.succeed().await
    }

    /// Reports the changes after `version` until the watch ends.
    async fn watch(&mut self, version: String) -> Result<(), Stop> {
        let mut lines = match self.open.take() {
            Some(lines) => lines,
            None => api::watch(&self.connection, &self.asked, Start::Version(&version)).await?,
        };
        let timing = self.connection.timing.clone();
        let silence = timing.watch + timing.watch_grace;
        let began = Instant::now();
        let mut steady = false;
        loop {
            let patience = if steady { silence } else { timing.steady };
            match lines.next(patience).await {
                Read::Line(line) => {
                    let at = Instant::now().into_std();
                    self.hand_on(read_line(&line)?, at).await?;
                }
                Read::Silence if !steady => {
                    steady = true;
                    self.succeed().await?;
                }
                Read::End if steady || began.elapsed() >= timing.steady => return Ok(()),
                Read::End => return Err(Failure::EndedAtOnce.into()),
                other => return Err(failure_of(other, silence).into()),
            }
            // The first events may have been missed during a failure: objects may be stale until all of them have
            // arrived.
            if !steady && began.elapsed() >= timing.steady {
                steady = true;
                self.succeed().await?;
            }
        }
    }

    /// Reports the change in a line received at that time, and advances the resource version.
    async fn hand_on(&mut self, line: WatchLine<'_>, at: std::time::Instant) -> Result<(), Stop> {
        let kind = self.kind;
        let decoded = match line.kind {
            WatchLineKind::Added | WatchLineKind::Modified => decode(&mut self.interner, kind, line.object)
                .map(|decoded| (Change::Set(self.last_reported.report_change(decoded.object)), decoded.version)),
            WatchLineKind::Deleted => decode_name::<O>(&mut self.interner, kind, line.object).map(|(name, version)| {
                self.last_reported.remove(&name);
                (Change::Remove(kind, name), version)
            }),
            WatchLineKind::Bookmark => {
                let bookmark: Bookmark = read_json(line.object.get())?;
                self.version = Some(known_version(Some(bookmark.metadata.resource_version), Verb::Watch)?);
                return self.report(InformerReport::IsCurrent).await;
            }
            WatchLineKind::Error => return Err(read_status(line.object.get())?.into()),
        };
        match decoded {
            Ok((change, version)) => {
                self.require_room(self.last_reported.len())?;
                self.report(InformerReport::Change(Box::new(TimedChange { change, at }))).await?;
                if version.is_some() {
                    self.version = version;
                }
                Ok(())
            }
            Err(MissingName) => {
                self.nameless += 1;
                self.report_problems().await
            }
        }
    }

    /// The watch works again: clears the failure.
    async fn succeed(&mut self) -> Result<(), Stop> {
        self.backoff.reset();
        self.version_failures = 0;
        self.failure = None;
        self.unserved_answers = 0;
        if std::mem::take(&mut self.unserved) {
            self.report(InformerReport::Unserved(false)).await?;
        }
        self.report_problems().await?;
        self.report(InformerReport::IsCurrent).await
    }

    async fn report_problems(&mut self) -> Result<(), Stop> {
        let nameless = match self.nameless {
            0 => None,
            count => Some(format!("ignored {count} objects without metadata.name")),
        };
        let origin = watch_origin(self.resource().plural);
        let messages = self.failure.clone().into_iter().chain(nameless);
        let problems = messages.map(|message| Problem { origin: origin.clone(), message }).collect();
        self.report(InformerReport::Problems(problems)).await
    }

    async fn report(&mut self, report: InformerReport<O>) -> Result<(), Stop> {
        self.report.send((self.kind, report)).await.map_err(|_| Stop::Unheard)
    }
}

/// The objects of a list, sorted by name.
fn known_last<O: Watchable>(mut received: Vec<WatchActivity<O>>) -> Vec<O> {
    // Servers list almost in name order, so sorting is cheap. The stable sort puts the last entry of each name first.
    received.reverse();
    received.sort_by(|a, b| a.name().cmp(b.name()));
    received.dedup_by(|later, first| later.name() == first.name());
    let object = |received| match received {
        WatchActivity::Is(object) => Some(object),
        WatchActivity::Gone(_) => None,
    };
    received.into_iter().filter_map(object).collect()
}

/// The failure for the reason why reading a watch stopped.
fn failure_of(read: Read, patience: std::time::Duration) -> Failure {
    match read {
        Read::Silence => Failure::Silent(Verb::Watch, patience),
        Read::TooLong => Failure::TooLarge(Verb::Watch, LINE_BYTES),
        Read::Broken(e) => Failure::Unreachable(super::failure::causes(&e)),
        Read::Line(_) | Read::End => Failure::EndedAtOnce,
    }
}

/// A watch from an empty version would start anywhere, and miss deletions.
fn known_version(version: Option<String>, verb: Verb) -> Result<String, Failure> {
    let missing = || Failure::Unreadable(verb, "missing resourceVersion".into());
    version.filter(|version| !version.is_empty()).ok_or_else(missing)
}

fn read_line(line: &[u8]) -> Result<WatchLine<'_>, Failure> {
    serde_json::from_slice(line).map_err(|e| Failure::Unreadable(Verb::Watch, e.to_string()))
}

fn read_json<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Failure> {
    serde_json::from_str(text).map_err(|e| Failure::Unreadable(Verb::Watch, e.to_string()))
}

/// The failure in an ERROR event.
fn read_status(text: &str) -> Result<Failure, Failure> {
    read_json::<Status>(text).map(|status| Failure::of_status(Verb::Watch, status.boxed()))
}
