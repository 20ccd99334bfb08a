use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use feed::Position;
use feed::client::{FeedSource, FollowerTiming, Update, follow};
use kit::agent_process::until;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::table::FollowedTable;

/// Short backoffs, to keep the tests fast.
const TIMING: FollowerTiming = FollowerTiming {
    connect: Duration::from_secs(5),
    read_timeout: Duration::from_secs(45),
    retry_first: Duration::from_millis(20),
    retry_longest: Duration::from_millis(200),
};

/// Follows a feed of a provider, until it is dropped.
pub(super) struct Follower {
    feed: &'static str,
    seen: Arc<Mutex<FollowerState>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone)]
pub(super) struct FollowerState {
    pub(super) table: FollowedTable,
    pub(super) position: Option<Position>,
    pub(super) baselines: usize,
    pub(super) deltas: usize,
    /// The reason of each disconnect.
    pub(super) lost: Vec<String>,
}

impl Follower {
    pub(super) fn start(address: SocketAddr, feed: &'static str) -> Follower {
        let (name, form) = feed.split_once("?form=").map_or((feed, None), |(name, form)| (name, Some(form)));
        let source = FeedSource::new(vec![format!("http://{address}").parse().unwrap()], name);
        Follower::of(FeedSource { form: form.map(String::from), ..source }, feed)
    }

    /// Follows the source's feed.
    pub(super) fn of(source: FeedSource, feed: &'static str) -> Follower {
        let table = FollowedTable::empty(feed);
        let seen = FollowerState { table, position: None, baselines: 0, deltas: 0, lost: vec![] };
        let seen = Arc::new(Mutex::new(seen));
        let (stop, stopped) = oneshot::channel();
        let shared = seen.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let source = FeedSource { timing: TIMING, ..source };
            runtime.block_on(async {
                let (sender, updates) = mpsc::channel(4);
                tokio::select! {
                    ended = follow(source, sender) => ended.unwrap(),
                    () = take(feed, updates, &shared) => {}
                    // A sent value and a dropped sender mean the same.
                    _ = stopped => {}
                }
            });
        });
        Follower { feed, seen, stop: Some(stop), thread: Some(thread) }
    }

    pub(super) fn seen(&self) -> FollowerState {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until the follower has this table.
    #[track_caller]
    pub(super) fn until_has(&self, table: &FollowedTable) {
        let feed = self.feed;
        let waited = std::panic::AssertUnwindSafe(|| {
            until("a follower's table is that of a fresh start", || (self.seen().table == *table).then_some(()));
        });
        if std::panic::catch_unwind(waited).is_err() {
            panic!("a follower of {feed} has {:#?}\nwhere a fresh start has {table:#?}", self.seen());
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        drop(self.stop.take());
        kit::threads::end(self.thread.take());
    }
}

async fn take(feed: &str, mut updates: mpsc::Receiver<Update>, seen: &Mutex<FollowerState>) {
    while let Some(update) = updates.recv().await {
        let mut seen = seen.lock().unwrap();
        match update {
            Update::Baseline { head, bytes } => {
                seen.table = FollowedTable::of(feed, &bytes);
                assert_eq!(head.count, seen.table.len() as u64);
                seen.position = Some(head.position);
                seen.baselines += 1;
            }
            Update::Delta { position, json } => {
                assert_eq!(seen.position.map(Position::next), Some(position));
                let delta: Value = serde_json::from_slice(&json).unwrap();
                assert_eq!(
                    (delta["epoch"].as_u64(), delta["seq"].as_u64()),
                    (Some(position.epoch), Some(position.seq))
                );
                seen.table.apply(&delta);
                seen.position = Some(position);
                seen.deltas += 1;
            }
            Update::Resumed { position } => assert_eq!(seen.position, Some(position)),
            Update::Lost(lost) => seen.lost.push(lost.to_string()),
        }
    }
}
