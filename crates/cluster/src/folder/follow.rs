//! Follows a folder: it is read at the start, after every inotify event, and periodically.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use inotify::{EventStream, Inotify, WatchMask, Watches};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::files::{FOLDER, Files};
use super::{Folder, FolderError};
use crate::{BurstLimits, Problem, SourceEvent, TimedChange, Watchable, burst_end};

/// Debounce after inotify events.
const BURST: BurstLimits = BurstLimits { quiet: Duration::from_millis(50), longest: Duration::from_millis(500) };

/// Resync interval. Events are lost on overflow, on file systems without inotify, and where a watch could not be added.
const RESCAN: Duration = Duration::from_secs(30);

/// Interval after a scan that failed or was unstable. A notification may be missing: of a folder that has replaced the
/// watched one, or of a change in the last walk.
const RETRY: Duration = Duration::from_secs(1);

/// Buffer for the events of one read; the kernel keeps the rest. An event with the longest name has 272 bytes.
const EVENT_BYTES: usize = 4096;

/// A scan that takes longer is reported. The largest folder within the limits is read in a few seconds, and a read of a
/// network file system that hangs may never end.
const SCAN_TIME: Duration = Duration::from_secs(10);

/// The last report of a followed folder.
struct Follower<O: Watchable> {
    /// The last reported folder, without the problem of a scan that has not ended.
    folder: Option<Folder<O>>,
    /// The last reported problems.
    problems: Vec<Problem>,
    /// Why inotify is unavailable, so that changes are noticed late.
    late: Option<String>,
}

/// A scan that has ended.
struct Scan<O: Watchable> {
    files: Files<O>,
    outcome: Result<(), FolderError>,
    /// Why a folder could not be watched.
    late: Option<String>,
}

/// Reports the objects of a folder, or of a single file: all kinds at first, later the changed kinds. Returns once the
/// receiver is dropped; a folder that is missing at the start is an error, one removed later a [`Problem`].
pub async fn watch_folder<O: Watchable, E: From<SourceEvent<O>>>(
    path: &Path,
    sender: mpsc::Sender<E>,
) -> Result<(), FolderError> {
    let mut files = Files::new(path);
    let mut follower = Follower { folder: None, problems: vec![], late: None };
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
        let is_watched = watches.is_some();
        let scanning = in_background(move || Scan::run(files, watches));
        let Some(scan) = follower.scan_end(scanning, SCAN_TIME, &sender).await else { return Ok(()) };
        files = scan.files;
        if is_watched {
            follower.late = scan.late;
        }
        let pause = if scan.outcome.is_err() || files.is_unstable() { RETRY } else { RESCAN };
        let events = match scan.outcome {
            Err(e) if first => return Err(e),
            outcome => follower.events(&files, outcome.err(), noticed.into_std()),
        };
        first = false;
        for event in events {
            if sender.send(event.into()).await.is_err() {
                return Ok(());
            }
        }
        noticed = tokio::select! {
            first_notice = burst_end(notices.as_mut(), BURST) => first_notice,
            () = sleep(pause) => Instant::now(),
            () = sender.closed() => return Ok(()),
        }
    }
}

/// Runs file system calls, which block, off the event loop.
async fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(e) => std::panic::resume_unwind(e.into_panic()),
    }
}

impl<O: Watchable> Scan<O> {
    fn run(mut files: Files<O>, watches: Option<Watches>) -> Scan<O> {
        // CLOSE_WRITE instead of MODIFY, so that a partially written file is not read.
        let mask = WatchMask::CLOSE_WRITE
            | WatchMask::CREATE
            | WatchMask::MOVE
            | WatchMask::DELETE
            | WatchMask::ATTRIB
            | WatchMask::DELETE_SELF
            | WatchMask::MOVE_SELF;
        let mut late = None;
        let outcome = files.scan(&mut |folder| {
            if let Some(watches) = &watches
                && let Err(e) = watches.clone().add(folder, mask)
            {
                late = Some(e.to_string());
            }
        });
        Scan { files, outcome, late }
    }
}

impl<O: Watchable> Follower<O> {
    /// Waits for the scan to end, and reports a scan that has not ended after `limit` as a problem, which the events of
    /// the scan then remove. `None` if the receiver was dropped.
    async fn scan_end<T, E: From<SourceEvent<O>>>(
        &mut self,
        scanning: impl Future<Output = T>,
        limit: Duration,
        sender: &mpsc::Sender<E>,
    ) -> Option<T> {
        let began = jiff::Timestamp::now();
        let mut scanning = pin!(scanning);
        tokio::select! {
            scan = &mut scanning => return Some(scan),
            () = sleep(limit) => {}
            () = sender.closed() => return None,
        }
        self.problems.push(Problem {
            origin: FOLDER.into(),
            message: format!(
                "the scan of the manifest folder has not ended since {began:.0}; changes are not in force. Look for a file \
                 system that hangs, and for symbolic links to large folders or to files that are not manifests"
            ),
        });
        self.problems.sort();
        let report = SourceEvent::Problems(self.problems.clone());
        if sender.send(report.into()).await.is_err() {
            return None;
        }
        tokio::select! {
            scan = scanning => Some(scan),
            () = sender.closed() => None,
        }
    }

    /// The events of the last scan, which was triggered by an inotify event at `noticed`.
    fn events(
        &mut self,
        files: &Files<O>,
        failure: Option<FolderError>,
        noticed: std::time::Instant,
    ) -> Vec<SourceEvent<O>> {
        let mut folder = match (&failure, &self.folder) {
            (Some(_), Some(before)) => Folder { problems: vec![], ..before.clone() },
            _ => files.folder(),
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
        if self.problems != folder.problems {
            self.problems.clone_from(&folder.problems);
            events.push(SourceEvent::Problems(folder.problems.clone()));
        }
        self.folder = Some(folder);
        events
    }
}

#[cfg(test)]
mod tests {
    use policy::Object;
    use tokio::sync::oneshot;

    use super::*;

    fn follower() -> Follower<Object> {
        Follower { folder: None, problems: vec![], late: None }
    }

    async fn next_problems(events: &mut mpsc::Receiver<SourceEvent>) -> Vec<String> {
        match events.recv().await {
            Some(SourceEvent::Problems(problems)) => problems.iter().map(Problem::to_string).collect(),
            event => panic!("expected problems, got {event:?}"),
        }
    }

    #[tokio::test]
    async fn long_scan_is_problem_until_it_ends() {
        let place = tempfile::tempdir().unwrap();
        let mut files = Files::new(place.path());
        files.scan(&mut |_| {}).unwrap();
        let mut follower = follower();
        follower.events(&files, None, std::time::Instant::now());
        let (sender, mut events) = mpsc::channel::<SourceEvent>(8);
        let (end, scanning) = oneshot::channel();
        let observe = async {
            let problems = next_problems(&mut events).await;
            assert!(matches!(&problems[..], [problem] if problem.contains("has not ended since")), "{problems:?}");
            assert!(end.send(files).is_ok());
        };
        let (scan, ()) = tokio::join!(follower.scan_end(scanning, Duration::ZERO, &sender), observe);
        let events = follower.events(&scan.unwrap().unwrap(), None, std::time::Instant::now());
        assert_eq!(events, [SourceEvent::Problems(vec![])]);
    }

    #[tokio::test]
    async fn short_scan_is_not_reported() {
        let (sender, mut events) = mpsc::channel::<SourceEvent>(8);
        assert_eq!(follower().scan_end(async { 7 }, SCAN_TIME, &sender).await, Some(7));
        drop(sender);
        assert_eq!(events.recv().await, None);
    }

    #[tokio::test]
    async fn endless_scan_ends_with_its_receiver() {
        let (sender, mut events) = mpsc::channel::<SourceEvent>(8);
        let mut follower = follower();
        let observe = async {
            next_problems(&mut events).await;
            drop(events);
        };
        let endless = std::future::pending::<()>();
        let (scan, ()) = tokio::join!(follower.scan_end(endless, Duration::ZERO, &sender), observe);
        assert_eq!(scan, None);
    }
}
