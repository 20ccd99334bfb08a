//! Follows a folder: it is read at the start, after every inotify event, and periodically.

use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{EventStream, Inotify, WatchMask, Watches};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::files::{FOLDER, Files};
use super::{Folder, FolderError};
use crate::{Problem, SourceEvent, TimedChange, Watched};

/// Debounce: a save, or an update of a ConfigMap, is a burst of events; the folder is read this long after the last
/// one.
const SETTLE: Duration = Duration::from_millis(50);

/// Maximum debounce, for a folder that changes continuously.
const SETTLE_AT_MOST: Duration = Duration::from_millis(500);

/// Resync interval. Events are lost on overflow, on file systems without inotify, and where a watch could not be added.
const RESCAN: Duration = Duration::from_secs(30);

/// Interval after a scan that failed or was unstable. A notification may be missing: of a folder that has replaced the
/// watched one, or of a change in the last walk.
const RETRY: Duration = Duration::from_secs(1);

/// Buffer for the events of one read; the kernel keeps the rest. An event with the longest name has 272 bytes.
const EVENT_BYTES: usize = 4096;

/// The state kept between two scans.
struct Follower<O: Watched> {
    files: Files<O>,
    /// The last reported folder.
    folder: Option<Folder<O>>,
    /// Why inotify is unavailable, so that changes are noticed late.
    late: Option<String>,
}

/// Reports the objects of a folder, or of a single file: all kinds at first, later the changed kinds. Returns once the
/// receiver is dropped; a folder that is missing at the start is an error, one removed later a [`Problem`].
pub async fn watch_folder<O: Watched, E: From<SourceEvent<O>>>(
    path: &Path,
    sender: mpsc::Sender<E>,
) -> Result<(), FolderError> {
    let mut follower = Follower { files: Files::new(path), folder: None, late: None };
    let mut notices = match Inotify::init().and_then(|inotify| inotify.into_event_stream(vec![0; EVENT_BYTES])) {
        Ok(notices) => Some(notices),
        Err(e) => {
            follower.late = Some(e.to_string());
            None
        }
    };
    let mut first = true;
    let mut noticed = Instant::now();
    loop {
        let watches = notices.as_ref().map(EventStream::watches);
        let (returned, outcome) = in_background(move || follower.scan(watches)).await;
        follower = returned;
        let pause = if outcome.is_err() || follower.files.is_unstable() { RETRY } else { RESCAN };
        let events = match outcome {
            Err(e) if first => return Err(e),
            outcome => follower.events(outcome.err(), noticed.into_std()),
        };
        first = false;
        for event in events {
            if sender.send(event.into()).await.is_err() {
                return Ok(());
            }
        }
        noticed = tokio::select! {
            first_notice = burst_end(notices.as_mut()) => first_notice,
            () = sleep(pause) => Instant::now(),
            () = sender.closed() => return Ok(()),
        }
    }
}

/// Waits for a burst of events to end, and returns when it began; pending forever without inotify.
async fn burst_end(notices: Option<&mut EventStream<Vec<u8>>>) -> Instant {
    let Some(notices) = notices else { return std::future::pending().await };
    match notices.next().await {
        Some(Ok(_)) => {}
        // The resync timer continues to run.
        Some(Err(_)) | None => return std::future::pending().await,
    }
    let began = Instant::now();
    let deadline = began + SETTLE_AT_MOST;
    while Instant::now() < deadline
        && let Ok(Some(Ok(_))) = timeout(SETTLE, notices.next()).await
    {}
    began
}

/// Runs file system calls, which block, off the event loop.
async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}

impl<O: Watched> Follower<O> {
    fn scan(mut self, watches: Option<Watches>) -> (Follower<O>, Result<(), FolderError>) {
        // CLOSE_WRITE instead of MODIFY, so that a partially written file is not read.
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        let mut late = None;
        let outcome = self.files.scan(&mut |folder| {
            if let Some(watches) = &watches
                && let Err(e) = watches.clone().add(folder, mask)
            {
                late = Some(e.to_string());
            }
        });
        if watches.is_some() {
            self.late = late;
        }
        (self, outcome)
    }

    /// The events of the last scan, which was triggered by an inotify event at `noticed`.
    fn events(&mut self, failure: Option<FolderError>, noticed: std::time::Instant) -> Vec<SourceEvent<O>> {
        let mut folder = match (&failure, &self.folder) {
            (Some(_), Some(before)) => Folder { problems: vec![], ..before.clone() },
            _ => self.files.folder(),
        };
        if let Some(error) = failure {
            let message = format!("{}; the previous contents of the folder are used", error.reason);
            folder.problems.push(Problem { origin: error.path.display().to_string(), message });
        }
        if let Some(reason) = &self.late {
            let message = format!("inotify failed, so the folder is polled every {RESCAN:?}: {reason}");
            folder.problems.push(Problem { origin: FOLDER.into(), message });
        }
        folder.problems.sort();
        let before = self.folder.take();
        let known = before.as_ref().map(Folder::changes);
        let changes = folder.changes().into_iter().filter(|change| !known.as_ref().is_some_and(|k| k.contains(change)));
        let changes: Vec<TimedChange<O>> = changes.map(|change| TimedChange { change, at: noticed }).collect();
        let mut events = Vec::new();
        if !changes.is_empty() {
            events.push(SourceEvent::Changes(changes));
        }
        if before.map_or(vec![], |before| before.problems) != folder.problems {
            events.push(SourceEvent::Problems(folder.problems.clone()));
        }
        self.folder = Some(folder);
        events
    }
}
