//! Live connections, and the ledger of all connections.

mod recent_ends;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::shared_key::ByAddress;
use crate::windows::Observation;
use crate::{ConnectionId, CountedFlow, Subject, Volume, Windows};
use recent_ends::RecentEnds;

/// Tolerance within which two creation times of one ID belong to the same connection: the NEW event has a separate
/// timestamp, which the kernel takes slightly later than that of the entry.
const SAME_BEGIN: SignedDuration = SignedDuration::from_millis(100);

/// Consecutive listings without a live connection after which it counts as lost. After the first one its end event may
/// still be in the socket's queue.
const LISTINGS_TO_LOSE: u8 = 2;

/// A map whose capacity exceeds this multiple of its entries is shrunk, unless it is small.
const SPARSE: usize = 8;
const SMALL: usize = 1024;

/// Counters of the connections of one tracker. Invariant: `started == ended + live + lost`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConnectionLedger {
    /// Tracked connections, including those that existed when the agent started.
    pub started: u64,
    /// Connections with an end event.
    pub ended: u64,
    /// Connections tracked now.
    pub live: u64,
    /// Connections that disappeared without an end event.
    pub lost: u64,
    /// Connections not tracked because the tracker was full, and ends of connections whose beginning is unknown;
    /// excluded from the other counters. A connection counts once for its event, and once for each listing that finds
    /// it untracked.
    pub untracked: u64,
}

/// Live connections of a node, up to a bound, with the counters that each has reported so far. Observations are added
/// to the [`Windows`], which must be the same in all calls.
///
/// Counters are cumulative: each report adds the difference to the previous one. A connection without counters
/// (`nf_conntrack_acct` was off when it was created), or with counters that lack packets (of a flowtable), has a partly
/// unknown volume, never 0. Counters below those of an earlier report were reset (`conntrack -Z`): nothing is added,
/// the new values are the base of the next report, and a part of the volume is unknown.
///
/// ```
/// use std::sync::Arc;
/// use flow::{CountedFlow, Tracker, Volume, Windows};
/// # fn example(connection: CountedFlow, subject: Arc<flow::Subject>, at: jiff::Timestamp) {
/// let mut windows = Windows::new("worker-1".into(), 10_000);
/// let mut tracker = Tracker::new(262_144, 32_768);
/// tracker.begin(&connection, subject, None, at, &mut windows);
/// let volume = [Volume { packets: 5, bytes: 400 }, Volume { packets: 4, bytes: 9_000 }];
/// assert!(tracker.end(&CountedFlow { volume: Some(volume), ..connection }, at, &mut windows));
/// assert_eq!((tracker.ledger().started, tracker.ledger().ended, tracker.ledger().live), (1, 1, 0));
/// # }
/// ```
#[derive(Debug)]
pub struct Tracker {
    live: HashMap<ConnectionId, TrackedConnection>,
    most: usize,
    /// Subjects of live connections, with their number of connections.
    subjects: HashMap<ByAddress<Subject>, u32>,
    most_subjects: usize,
    started: u64,
    ended: u64,
    lost: u64,
    untracked: u64,
    /// Number of the current or the last listing (conntrack dump).
    listing: u64,
    listing_runs: bool,
    /// Connections that ended during the listing, whose unread lines may still contain them. Bounded by the limit of
    /// tracked connections.
    ended_in_listing: HashSet<ConnectionId>,
    /// Whether the set is full. An untracked connection in a line may then have ended.
    more_ended_in_listing: bool,
    recent_ends: RecentEnds,
}

#[derive(Debug)]
struct TrackedConnection {
    subject: Arc<Subject>,
    /// Counters of the last report.
    counted: [Volume; 2],
    /// A report had no counters, or they lacked packets: a part of the volume is unknown.
    is_incomplete: bool,
    /// The window in which its volume was last counted as unknown.
    unknown_in: Option<i64>,
    /// Creation time in the kernel.
    made: Option<Timestamp>,
    /// The window in which it began.
    began_in: i64,
    /// Time of the last observation; monotonic per connection.
    latest: Timestamp,
    /// Number of the last listing that contained it, or that was running when it began.
    listed: u64,
    /// Consecutive listings that did not contain it.
    missed: u8,
}

impl TrackedConnection {
    /// Whether the kernel created this connection at that time, rather than another one with the reused ID.
    fn is_of(&self, made: Option<Timestamp>) -> bool {
        match (self.made, made) {
            (Some(old), Some(new)) => new.duration_since(old).abs() <= SAME_BEGIN,
            (None, _) | (_, None) => true,
        }
    }

    /// Volume that a report of counters adds to the earlier reports.
    fn measure(&mut self, volume: Option<[Volume; 2]>, window: i64) -> Observation {
        let is_reset =
            volume.is_some_and(|volume| volume.iter().zip(&self.counted).any(|(new, old)| new.packets < old.packets));
        self.is_incomplete |= volume.is_none() || is_reset;
        let is_unknown = self.is_incomplete && self.unknown_in != Some(window);
        if is_unknown {
            self.unknown_in = Some(window);
        }
        let added = volume.map(|volume| {
            let added = [volume[0] - self.counted[0], volume[1] - self.counted[1]];
            self.counted = volume;
            added
        });
        Observation { volume: added, unknown_volume: u64::from(is_unknown), ..Observation::default() }
    }
}

impl Tracker {
    /// `most` limits the tracked connections, about 250 bytes each, and `most_subjects` their distinct subjects, about
    /// a kilobyte each: a pod may open each connection to another port, and each then has a separate subject.
    pub fn new(most: usize, most_subjects: usize) -> Tracker {
        Tracker {
            live: HashMap::new(),
            most,
            subjects: HashMap::new(),
            most_subjects,
            started: 0,
            ended: 0,
            lost: 0,
            untracked: 0,
            listing: 0,
            listing_runs: false,
            ended_in_listing: HashSet::new(),
            more_ended_in_listing: false,
            recent_ends: RecentEnds::default(),
        }
    }

    /// Subject of a live connection.
    pub fn subject(&self, id: &ConnectionId) -> Option<&Arc<Subject>> {
        self.live.get(id).map(|tracked| &tracked.subject)
    }

    /// Adds a new connection (NEW event), or one that a listing contains although its NEW event was lost. `base` is the
    /// volume of a connection from before the agent started: it is not counted, and the part of it that belongs to the
    /// window is unknown. `None` counts from 0. Counters of the connection, if it has any, are a first report; NEW
    /// events have none.
    ///
    /// If the connection is already tracked, only its counters are used, unless the kernel created it at another time
    /// than the tracked one: then the tracked one is lost and its ID was reused. Returns whether it is tracked now and
    /// was not before.
    pub fn begin(
        &mut self,
        connection: &CountedFlow,
        subject: Arc<Subject>,
        base: Option<[Volume; 2]>,
        at: Timestamp,
        windows: &mut Windows,
    ) -> bool {
        let CountedFlow { id, reply: _, mark: _, has_reply: _, volume, started: made } = connection;
        self.ended_in_listing.remove(id);
        if let Some(tracked) = self.live.get_mut(id) {
            if tracked.is_of(*made) {
                tracked.made = tracked.made.or(*made);
                if volume.is_some() {
                    self.measure(connection, at, windows);
                }
                return false;
            }
            self.remove(id, None, at, windows, Removal::Lost);
        }
        let subject = ByAddress(subject);
        let has_room = self.subjects.len() < self.most_subjects || self.subjects.contains_key(&subject);
        if self.live.len() >= self.most || !has_room {
            self.untracked += 1;
            return false;
        }
        *self.subjects.entry(subject.clone()).or_insert(0) += 1;
        let ByAddress(subject) = subject;
        let place = windows.place(at);
        let mut tracked = TrackedConnection {
            subject,
            counted: base.unwrap_or_default(),
            is_incomplete: false,
            unknown_in: None,
            made: *made,
            began_in: place.window,
            latest: place.at,
            listed: self.listing,
            missed: 0,
        };
        let volume = match (base, volume) {
            (Some(_), _) => {
                tracked.unknown_in = Some(place.window);
                Observation { unknown_volume: 1, ..Observation::default() }
            }
            (None, Some(_)) => tracked.measure(*volume, place.window),
            (None, None) => Observation::default(),
        };
        windows.add(&tracked.subject, place, Observation { started: 1, ..volume });
        self.live.insert(*id, tracked);
        self.started += 1;
        true
    }

    /// Adds a connection of which only the end is known: its NEW event was lost, or the tracker was full. It counts as
    /// started and ended. False if its end was already counted and this is a duplicate.
    pub fn record_ended(
        &mut self,
        connection: &CountedFlow,
        subject: &Arc<Subject>,
        base: Option<[Volume; 2]>,
        at: Timestamp,
        windows: &mut Windows,
    ) -> bool {
        if self.end(connection, at, windows) {
            return true;
        }
        if self.recent_ends.contains(&connection.id, connection.started) {
            return false;
        }
        let volume = connection.volume.map(|volume| {
            let base = base.unwrap_or_default();
            [volume[0] - base[0], volume[1] - base[1]]
        });
        let place = windows.place(at);
        let unknown_volume = u64::from(volume.is_none());
        windows.add(
            subject,
            place,
            Observation { started: 1, ended: 1, volume, unknown_volume, ..Observation::default() },
        );
        self.started += 1;
        self.ended += 1;
        self.recent_ends.insert(&connection.id, connection.started);
        self.remember_end(connection.id);
        true
    }

    /// Adds the counters of a line of a listing: the difference to the last report counts in the window of `at`. False
    /// if the connection is untracked and cannot have ended since the listing began: the caller must then `begin` it.
    pub fn measure(&mut self, listed: &CountedFlow, at: Timestamp, windows: &mut Windows) -> bool {
        let CountedFlow { id, volume, started: made, .. } = listed;
        let Some(tracked) = self.live.get_mut(id) else {
            return self.more_ended_in_listing || self.ended_in_listing.contains(id);
        };
        if !tracked.is_of(*made) {
            return false;
        }
        tracked.listed = self.listing;
        tracked.missed = 0;
        let place = windows.place(at.max(tracked.latest));
        tracked.latest = place.at;
        let observation = tracked.measure(*volume, place.window);
        windows.add(&tracked.subject, place, observation);
        true
    }

    /// Ends a connection (DESTROY event) with its last counters. False if it is not tracked.
    pub fn end(&mut self, ended: &CountedFlow, at: Timestamp, windows: &mut Windows) -> bool {
        let CountedFlow { id, volume, started: made, .. } = ended;
        if self.live.get(id).is_none_or(|tracked| !tracked.is_of(*made)) {
            return false;
        }
        self.remove(id, *volume, at, windows, Removal::Ended);
        self.remember_end(*id);
        true
    }

    /// Must be called before the listing is requested from the kernel. An earlier listing that has not finished is
    /// discarded.
    pub fn begin_listing(&mut self) {
        self.listing += 1;
        self.listing_runs = true;
        self.ended_in_listing.clear();
        self.more_ended_in_listing = false;
    }

    /// Must be called after all lines of the listing were read; not if it was interrupted or incomplete. Connections
    /// that began before the listing and are missing from two consecutive listings are lost. Returns their number.
    pub fn finish_listing(&mut self, at: Timestamp, windows: &mut Windows) -> u64 {
        if !std::mem::take(&mut self.listing_runs) {
            return 0;
        }
        self.ended_in_listing = HashSet::new();
        self.more_ended_in_listing = false;
        let mut gone = Vec::new();
        for (id, tracked) in &mut self.live {
            if tracked.listed != self.listing {
                tracked.missed += 1;
                if tracked.missed >= LISTINGS_TO_LOSE {
                    gone.push(*id);
                }
            }
        }
        for id in &gone {
            self.remove(id, None, at, windows, Removal::Lost);
        }
        self.shrink();
        gone.len() as u64
    }

    /// Shrinks the maps after a flood of connections.
    fn shrink(&mut self) {
        if self.live.capacity() / SPARSE > self.live.len().max(SMALL) {
            self.live.shrink_to(self.live.len().max(SMALL));
            self.subjects.shrink_to(self.subjects.len().max(SMALL));
        }
    }

    /// A connection that has ended cannot be attributed to a time.
    pub fn count_untracked(&mut self) {
        self.untracked += 1;
    }

    pub fn ledger(&self) -> ConnectionLedger {
        ConnectionLedger {
            started: self.started,
            ended: self.ended,
            live: self.live.len() as u64,
            lost: self.lost,
            untracked: self.untracked,
        }
    }

    /// All live connections, in no particular order.
    pub fn live(&self) -> impl Iterator<Item = (&ConnectionId, &Arc<Subject>)> {
        self.live.iter().map(|(id, tracked)| (id, &tracked.subject))
    }

    /// Live connections that began in a window or before it, by subject.
    pub(crate) fn live_since(&self, window: i64) -> HashMap<ByAddress<Subject>, u64> {
        let mut subjects = HashMap::new();
        for tracked in self.live.values().filter(|tracked| tracked.began_in <= window) {
            *subjects.entry(ByAddress(Arc::clone(&tracked.subject))).or_insert(0) += 1;
        }
        subjects
    }

    fn remove(
        &mut self,
        id: &ConnectionId,
        volume: Option<[Volume; 2]>,
        at: Timestamp,
        windows: &mut Windows,
        removal: Removal,
    ) {
        let Some(mut tracked) = self.live.remove(id) else { return };
        self.release(&tracked.subject);
        // The end event of a lost connection may still arrive.
        self.recent_ends.insert(id, tracked.made);
        let place = windows.place(at.max(tracked.latest));
        let measured = tracked.measure(volume, place.window);
        let (ended, lost) = match removal {
            Removal::Ended => (1, 0),
            Removal::Lost => (0, 1),
        };
        self.ended += ended;
        self.lost += lost;
        windows.add(&tracked.subject, place, Observation { ended, lost, ..measured });
        windows.carry(&tracked.subject, place, tracked.began_in);
    }

    fn release(&mut self, subject: &Arc<Subject>) {
        let subject = ByAddress(Arc::clone(subject));
        if let Some(connections) = self.subjects.get_mut(&subject) {
            *connections -= 1;
            if *connections == 0 {
                self.subjects.remove(&subject);
            }
        }
    }

    fn remember_end(&mut self, id: ConnectionId) {
        if !self.listing_runs {
            return;
        }
        if self.ended_in_listing.len() < self.most {
            self.ended_in_listing.insert(id);
        } else {
            self.more_ended_in_listing = true;
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Removal {
    Ended,
    Lost,
}

#[cfg(test)]
mod tests;
