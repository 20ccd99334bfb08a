//! Compares the incremental translation with a full one, in a separate thread.
//!
//! The event loop only shares a snapshot of the state; translation and comparison do not delay it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nft::{Operation, Ruleset, difference};
use policy::{ClusterState, Layout, Translation, translate};

use crate::background::Background;

/// Maximum number of differences that are listed.
const DIFFERENCES_NAMED: usize = 5;

/// A snapshot of the state and its incremental translation.
pub(crate) struct TranslationCheck {
    pub(crate) state: Arc<ClusterState>,
    pub(crate) node: Arc<str>,
    pub(crate) layout: Layout,
    pub(crate) followed: Translation,
}

/// Differences between the full and the incremental translation; empty if they are equal.
pub(crate) type Differences = Vec<String>;

impl TranslationCheck {
    pub(crate) fn run(self) -> Differences {
        let TranslationCheck { state, node, layout, followed } = self;
        let fresh = translate(&state, &node, &layout);
        let mut found: Differences =
            operations(&followed.ruleset.in_first_generation(), &fresh.ruleset.in_first_generation());
        for (family, followed, fresh) in
            [("bridge", &followed.bridge, &fresh.bridge), ("netdev", &followed.edge, &fresh.edge)]
        {
            match (followed, fresh) {
                (Some(followed), Some(fresh)) => found.extend(operations(followed, fresh)),
                (None, None) => {}
                (Some(_), None) | (None, Some(_)) => {
                    found.push(format!("only one of them has a table of family {family}"));
                }
            }
        }
        if followed.programs != fresh.programs {
            found.push("the policies and pods of the programs differ".into());
        }
        if followed.diagnostics != fresh.diagnostics {
            found.push("the diagnostics differ".into());
        }
        if followed.pods_on_node != fresh.pods_on_node {
            found.push(format!(
                "pods on the node: {} in the current translation, {} in the fresh one",
                followed.pods_on_node, fresh.pods_on_node
            ));
        }
        found
    }
}

fn operations(followed: &Ruleset, fresh: &Ruleset) -> Vec<String> {
    let operations = difference(followed, fresh);
    let mut found: Vec<String> = operations.iter().take(DIFFERENCES_NAMED).map(Operation::to_string).collect();
    if let Some(more @ 1..) = operations.len().checked_sub(DIFFERENCES_NAMED) {
        found.push(format!("and {more} more operations"));
    }
    // A difference that no operation expresses also counts.
    if found.is_empty() && followed != fresh {
        found.push(format!("the rulesets of table {} differ", fresh.table));
    }
    found
}

/// When the translation is checked.
///
/// Sans-I/O: callers pass the present time.
#[derive(Debug)]
pub(crate) struct CheckSchedule {
    /// `None` if checks are off.
    interval: Option<Duration>,
    next: Option<Instant>,
    is_running: bool,
}

impl CheckSchedule {
    pub(crate) fn new(interval: Option<Duration>, now: Instant) -> CheckSchedule {
        let mut schedule = CheckSchedule { interval, next: None, is_running: false };
        schedule.postpone(now);
        schedule
    }

    /// When the next check is due; `None` while one runs, or if checks are off.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next.filter(|_| !self.is_running)
    }

    /// Records that a check begins, and schedules the next one.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.postpone(now);
        self.is_running = true;
    }

    /// Records that the check has ended.
    pub(crate) fn end(&mut self) {
        self.is_running = false;
    }

    /// Postpones the check. Adds jitter (3/4 to 5/4 of the interval), so that the nodes of a cluster do not check
    /// simultaneously.
    pub(crate) fn postpone(&mut self, now: Instant) {
        self.next = self.interval.map(|interval| now + interval.mul_f64(0.75 + 0.5 * drawn()));
    }
}

/// Runs one check at a time, in a thread.
pub(crate) struct CheckThread {
    running: Background<Differences>,
    /// [`TranslationCheck::run`], except in tests of the event loop.
    run: fn(TranslationCheck) -> Differences,
}

impl Default for CheckThread {
    fn default() -> CheckThread {
        CheckThread { running: Background::default(), run: TranslationCheck::run }
    }
}

impl CheckThread {
    #[cfg(test)]
    pub(crate) fn running(run: fn(TranslationCheck) -> Differences) -> CheckThread {
        CheckThread { run, ..CheckThread::default() }
    }

    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(&mut self, check: TranslationCheck) -> std::io::Result<()> {
        let run = self.run;
        self.running.start("check", move || run(check))
    }

    /// The differences that the running check found; `None` if it panicked. Pending while no check runs. Cancel safe.
    pub(crate) async fn outcome(&mut self) -> Option<Differences> {
        self.running.outcome().await.ok()
    }
}

/// A random number in [0, 1), different in each process and call.
fn drawn() -> f64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let bits = RandomState::new().build_hasher().finish();
    f64::from((bits >> 32) as u32) / f64::from(u32::MAX)
}
