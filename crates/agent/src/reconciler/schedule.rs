//! The timers of the reconciler: when to commit, retry, repair and resync.
//!
//! Sans-I/O: callers pass the present time, and sleep until [`Schedule::next`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pacing::Backoff;

/// Shortest interval between two commits: it coalesces a burst into at most a thousand transactions a second. A change
/// after an idle period does not wait.
const COMMITS_APART: Duration = Duration::from_millis(1);
/// Debounce delay as a multiple of the duration of the last attempt, so that a steady stream of small changes uses a
/// fifth of a processor. `LONGEST_APART` caps it, since all waiting changes are coalesced into one commit anyway.
const COMMITS_APART_TIMES: u32 = 4;
const LONGEST_APART: Duration = Duration::from_millis(10);

/// Initial backoff after a failed commit; doubles up to the resync interval.
const FIRST_RETRY: Duration = Duration::from_millis(250);

/// Heartbeat interval of the event loop, used by the liveness probe.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Shortest interval between two repairs after foreign commits: a program that fights ours costs ten repairs a second.
const REPAIRS_APART: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// The state has changed: the debounced commit.
    Commit,
    /// The last attempt to commit failed.
    Retry,
    /// Another program has committed a change of the tables.
    Repair,
    Resync,
    Heartbeat,
    /// The deadline of the earliest pending CNI ADD.
    GateDeadline,
    TranslationCheck,
    /// The earliest expiry of a learned address.
    NameExpiry,
    /// Learned addresses are not saved yet.
    SaveNames,
}

pub(super) struct Schedule {
    armed: BTreeMap<Timer, Instant>,
    resync_interval: Duration,
    backoff: Backoff,
    last_repair: Option<Instant>,
    last_attempt: Option<Instant>,
    /// Duration of the last attempt to commit, including translation.
    attempt_took: Duration,
}

impl Schedule {
    pub(super) fn new(resync_interval: Duration, now: Instant) -> Schedule {
        Schedule {
            armed: [(Timer::Resync, now + resync_interval), (Timer::Heartbeat, now + HEARTBEAT)].into(),
            resync_interval,
            backoff: Backoff::new(FIRST_RETRY, resync_interval),
            last_repair: None,
            last_attempt: None,
            attempt_took: Duration::ZERO,
        }
    }

    /// When the next timer expires. The heartbeat is always armed.
    pub(super) fn next(&self) -> Option<Instant> {
        self.armed.values().min().copied()
    }

    /// The timers that have expired by `now`, except the commit, which [`Schedule::begin_commit`] disarms. Resync and
    /// heartbeat are armed again, the others are disarmed.
    pub(super) fn expire(&mut self, now: Instant) -> BTreeSet<Timer> {
        let expired: BTreeSet<Timer> = self
            .armed
            .iter()
            .filter(|(timer, at)| **timer != Timer::Commit && **at <= now)
            .map(|(timer, _)| *timer)
            .collect();
        self.armed.retain(|timer, _| !expired.contains(timer));
        if expired.contains(&Timer::Resync) {
            self.armed.insert(Timer::Resync, now + self.resync_interval);
        }
        if expired.contains(&Timer::Repair) {
            self.last_repair = Some(now);
        }
        self.armed.insert(Timer::Heartbeat, now + HEARTBEAT);
        expired
    }

    /// Sets or disarms a timer whose time is determined elsewhere.
    pub(super) fn set(&mut self, timer: Timer, at: Option<Instant>) {
        match at {
            Some(at) => self.armed.insert(timer, at),
            None => self.armed.remove(&timer),
        };
    }

    /// Requests a commit. Later requests do not postpone it.
    pub(super) fn request_commit(&mut self, now: Instant) {
        let apart = (self.attempt_took * COMMITS_APART_TIMES).clamp(COMMITS_APART, LONGEST_APART);
        let earliest = self.last_attempt.map_or(now, |last| (last + apart).max(now));
        self.armed.entry(Timer::Commit).or_insert(earliest);
    }

    /// Requests a commit without a debounce delay.
    pub(super) fn request_immediate_commit(&mut self, now: Instant) {
        self.armed.insert(Timer::Commit, now);
    }

    /// Begins the pending commit if its debounce delay is over, or in any case if it must not wait any longer. Returns
    /// whether it begins.
    pub(super) fn begin_commit(&mut self, now: Instant, at_once: bool) -> bool {
        let is_due = self.armed.get(&Timer::Commit).is_some_and(|at| at_once || *at <= now);
        if is_due {
            self.armed.remove(&Timer::Commit);
        }
        is_due
    }

    pub(super) fn is_commit_pending(&self) -> bool {
        self.armed.contains_key(&Timer::Commit)
    }

    /// Requests a repair after a foreign commit. Later requests do not postpone it.
    pub(super) fn request_repair(&mut self, now: Instant) {
        let earliest = self.last_repair.map_or(now, |last| (last + REPAIRS_APART).max(now));
        self.armed.entry(Timer::Repair).or_insert(earliest);
    }

    /// Records a successful attempt to commit or verify, which ended now.
    pub(super) fn record_success(&mut self, now: Instant) {
        self.last_attempt = Some(now);
        self.backoff.reset();
        self.armed.remove(&Timer::Retry);
    }

    /// Records a failed attempt, which ended now. Returns the backoff until the retry.
    pub(super) fn record_failure(&mut self, now: Instant) -> Duration {
        self.last_attempt = Some(now);
        let backoff = self.backoff.wait_exactly();
        self.armed.insert(Timer::Retry, now + backoff);
        backoff
    }

    /// Records how long an attempt to commit took, for the debounce delay.
    pub(super) fn record_duration(&mut self, took: Duration) {
        self.attempt_took = took;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESYNC: Duration = Duration::from_secs(30);

    fn schedule() -> (Schedule, Instant) {
        let now = Instant::now();
        (Schedule::new(RESYNC, now), now)
    }

    fn expired(schedule: &mut Schedule, at: Instant) -> Vec<Timer> {
        schedule.expire(at).into_iter().collect()
    }

    #[test]
    fn first_commit_is_immediate_and_later_ones_debounced() {
        let (mut schedule, now) = schedule();
        schedule.request_commit(now);
        assert!(schedule.begin_commit(now, false));
        schedule.record_success(now);
        for (took, apart) in [(0, 1), (2, 8), (900, 10)] {
            schedule.record_duration(Duration::from_millis(took));
            schedule.request_commit(now);
            // A later request neither postpones nor repeats it.
            schedule.request_commit(now + Duration::from_micros(500));
            let apart = Duration::from_millis(apart);
            assert_eq!(schedule.next(), Some(now + apart));
            assert!(!schedule.begin_commit(now + apart - Duration::from_micros(1), false));
            assert!(schedule.begin_commit(now + apart, false));
            assert!(!schedule.is_commit_pending());
        }
        schedule.request_commit(now);
        assert!(schedule.begin_commit(now, true), "a verification does not wait for the delay");
        assert!(!schedule.begin_commit(now, true), "nothing is pending");
        let idle = now + Duration::from_secs(1);
        schedule.request_commit(idle);
        assert_eq!(schedule.next(), Some(idle));
    }

    #[test]
    fn backoff_doubles_up_to_resync_interval() {
        let (mut schedule, now) = schedule();
        let backoffs: Vec<u128> = (0..9).map(|_| schedule.record_failure(now).as_millis()).collect();
        assert_eq!(backoffs, [250, 500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
        schedule.record_success(now);
        assert_eq!(schedule.record_failure(now), FIRST_RETRY);
        assert_eq!(expired(&mut schedule, now + FIRST_RETRY), [Timer::Retry]);
        assert!(expired(&mut schedule, now + FIRST_RETRY).is_empty(), "it is armed by the next failure only");
    }

    #[test]
    fn repairs_are_at_most_ten_per_second() {
        let (mut schedule, now) = schedule();
        schedule.request_repair(now);
        assert_eq!(expired(&mut schedule, now), [Timer::Repair]);
        schedule.request_repair(now);
        assert!(expired(&mut schedule, now + REPAIRS_APART - Duration::from_millis(1)).is_empty());
        assert_eq!(expired(&mut schedule, now + REPAIRS_APART), [Timer::Repair]);
    }

    #[test]
    fn resync_and_heartbeat_are_armed_again() {
        let (mut schedule, now) = schedule();
        assert_eq!(schedule.next(), Some(now + HEARTBEAT));
        assert_eq!(expired(&mut schedule, now + RESYNC), [Timer::Resync, Timer::Heartbeat]);
        assert_eq!(schedule.next(), Some(now + RESYNC + HEARTBEAT));
        assert_eq!(expired(&mut schedule, now + RESYNC * 2), [Timer::Resync, Timer::Heartbeat]);
    }

    #[test]
    fn gate_deadline_is_set_and_disarmed() {
        let (mut schedule, now) = schedule();
        schedule.set(Timer::GateDeadline, Some(now + Duration::from_secs(1)));
        schedule.set(Timer::GateDeadline, Some(now + Duration::from_secs(2)));
        assert_eq!(schedule.next(), Some(now + Duration::from_secs(2)));
        schedule.set(Timer::GateDeadline, None);
        assert_eq!(schedule.next(), Some(now + HEARTBEAT));
    }
}
