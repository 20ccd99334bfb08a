//! A folder followed: read at the start, after every change that inotify tells of, and from time to time.

use std::path::Path;
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{EventStream, Inotify, WatchMask, Watches};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};

use super::files::Files;
use super::{Folder, FolderError};
use crate::{Event, Problem, Told, Watched};

/// One save, or one update of a ConfigMap, is a burst of events; this long after the last of them it is read.
const SETTLE: Duration = Duration::from_millis(50);

/// A folder that never rests is read nevertheless.
const SETTLE_AT_MOST: Duration = Duration::from_millis(500);

/// Events can be lost: by an overflow, on file systems that send none, where a watch could not be set.
const RESCAN: Duration = Duration::from_secs(30);

/// Room for events in one read; the kernel keeps the rest. One event with the longest name is 272 bytes.
const EVENT_BYTES: usize = 4096;

/// A folder's state between two scans.
struct Follower<O: Watched> {
    files: Files<O>,
    /// What was reported last.
    folder: Option<Folder<O>>,
    /// Why changes are noticed late.
    late: Option<String>,
}

/// Reports what a folder, or a single file, says: all kinds at first, later the kinds that changed. Ends when nobody
/// listens any more; a folder that is not there at the start is an error, one that goes later a [`Problem`].
pub async fn watch_folder<O: Watched>(path: &Path, sender: mpsc::Sender<Event<O>>) -> Result<(), FolderError> {
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
        let events = match outcome {
            Err(e) if first => return Err(e),
            outcome => follower.events(outcome.err(), noticed.into_std()),
        };
        first = false;
        for event in events {
            if sender.send(event).await.is_err() {
                return Ok(());
            }
        }
        noticed = tokio::select! {
            first_notice = settled(notices.as_mut()) => first_notice,
            () = sleep(RESCAN) => Instant::now(),
            () = sender.closed() => return Ok(()),
        }
    }
}

/// Waits for a change and the end of its burst, and gives when that began; for ever without inotify.
async fn settled(notices: Option<&mut EventStream<Vec<u8>>>) -> Instant {
    let Some(notices) = notices else { return std::future::pending().await };
    match notices.next().await {
        Some(Ok(_)) => {}
        // The timer goes on.
        Some(Err(_)) | None => return std::future::pending().await,
    }
    let began = Instant::now();
    let deadline = began + SETTLE_AT_MOST;
    while Instant::now() < deadline
        && let Ok(Some(Ok(_))) = timeout(SETTLE, notices.next()).await
    {}
    began
}

/// File systems block.
async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}

impl<O: Watched> Follower<O> {
    fn scan(mut self, watches: Option<Watches>) -> (Follower<O>, Result<(), FolderError>) {
        // What is written while it is read: only whole writes, so that a file that is being written is not seen half.
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

    /// What is to be reported of the scan that was just made because of what was noticed at that moment.
    fn events(&mut self, failure: Option<FolderError>, noticed: std::time::Instant) -> Vec<Event<O>> {
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
            folder.problems.push(Problem { origin: "manifest folder".into(), message });
        }
        folder.problems.sort();
        let before = self.folder.take();
        let known = before.as_ref().map(Folder::changes);
        let changes = folder.changes().into_iter().filter(|change| !known.as_ref().is_some_and(|k| k.contains(change)));
        let changes: Vec<Told<O>> = changes.map(|change| Told { change, at: noticed }).collect();
        let mut events = Vec::new();
        if !changes.is_empty() {
            events.push(Event::Changes(changes));
        }
        if before.map_or(vec![], |before| before.problems) != folder.problems {
            events.push(Event::Problems(folder.problems.clone()));
        }
        self.folder = Some(folder);
        events
    }
}
