//! Live connections, and the ledger of all that began.

mod recent_ends;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::shared::ByAddress;
use crate::windows::Observation;
use crate::{Connection, ConnectionId, Subject, Volume, Windows};
use recent_ends::RecentEnds;

/// Two times of one id that are no further apart are of one connection: the event of its beginning has a time of its own,
/// which the kernel takes a little later than that of the entry.
const SAME_BEGIN: SignedDuration = SignedDuration::from_millis(100);

/// Listings in a row that miss a live connection until it counts as lost. The end event of a connection that the first one
/// misses may still be in the socket's queue.
const LISTINGS_TO_LOSE: u8 = 2;

/// A map that has room for more than so many times its entries is shrunk, unless it is small.
const SPARSE: usize = 8;
const SMALL: usize = 1024;

/// Counters of the connections of one tracker: `started == ended + live + lost` at every moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Connections that were tracked, with those that the agent found when it started.
    pub started: u64,
    /// Connections of which an end event came.
    pub ended: u64,
    /// Connections tracked now.
    pub live: u64,
    /// Connections that are gone although no end event came.
    pub lost: u64,
    /// Beginnings that were not tracked because the tracker was full, and ends of connections whose beginning is not known; in
    /// none of the others. A connection counts once for its event, and once for each listing that finds it untracked.
    pub untracked: u64,
}

/// The live connections of a node, up to a bound, and the counters that each has reported so far. Observations are added to
/// the [`Windows`], which have to be the same in all calls.
///
/// Counters are cumulative: each report adds what is more than in the one before. A connection may have no counters
/// (`nf_conntrack_acct` was off when it was made), or some that lack packets (of a flowtable): then a part of its volume is
/// unknown, never 0. Counters below those of an earlier report were reset (`conntrack -Z`): nothing is added, counting goes
/// on from there, and a part of the volume is unknown.
///
/// ```
/// use std::sync::Arc;
/// use flow::{Connection, Tracker, Volume, Windows};
/// # fn example(connection: Connection, subject: Arc<flow::Subject>, at: jiff::Timestamp) {
/// let mut windows = Windows::new("worker-1".into(), 10_000);
/// let mut tracker = Tracker::new(262_144, 32_768);
/// tracker.begin(&connection, subject, None, at, &mut windows);
/// let volume = [Volume { packets: 5, bytes: 400 }, Volume { packets: 4, bytes: 9_000 }];
/// assert!(tracker.end(&Connection { volume: Some(volume), ..connection }, at, &mut windows));
/// assert_eq!((tracker.ledger().started, tracker.ledger().ended, tracker.ledger().live), (1, 1, 0));
/// # }
/// ```
#[derive(Debug)]
pub struct Tracker {
    live: HashMap<ConnectionId, Tracked>,
    most: usize,
    /// The subjects of live connections, and how many each of them has.
    subjects: HashMap<ByAddress<Subject>, u32>,
    most_subjects: usize,
    started: u64,
    ended: u64,
    lost: u64,
    untracked: u64,
    /// Number of the listing that runs, or of the last one.
    listing: u64,
    listing_runs: bool,
    /// Connections that ended while the listing runs, which may still have them in lines that are yet to be read. At most as
    /// many as are tracked.
    ended_in_listing: HashSet<ConnectionId>,
    /// Whether the set is full. A line of an untracked connection may then be one that ended.
    more_ended_in_listing: bool,
    recent_ends: RecentEnds,
}

#[derive(Debug)]
struct Tracked {
    subject: Arc<Subject>,
    /// Counters of the last report.
    counted: [Volume; 2],
    /// A report had no counters, or they lacked packets: a part of its volume is unknown.
    is_incomplete: bool,
    /// The window in which its volume was last counted as unknown.
    unknown_in: Option<i64>,
    /// When the kernel made it.
    made: Option<Timestamp>,
    /// The window in which it began.
    began_in: i64,
    /// Time of its last observation: those of one connection never go back.
    latest: Timestamp,
    /// Number of the last listing that had it, or that ran when it began.
    listed: u64,
    /// Listings in a row that did not have it.
    missed: u8,
}

impl Tracked {
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
    /// At most `most` connections are tracked at a time, about 250 bytes each, with `most_subjects` different subjects, of
    /// about a kilobyte: a pod may open each connection to another port, so that each has a subject of its own.
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

    /// A connection was made (NEW event), or is in a listing although no NEW event came. `base` is the volume that it had
    /// before the agent knew of it, which is not counted: of connections that are older than the agent. How much of it
    /// belongs to the window is unknown. `None` counts from 0. Counters of the connection, if it has any, are a first report;
    /// NEW events have none.
    ///
    /// A connection that is tracked already is a duplicate, of which only counters are used, unless the kernel made it at
    /// another time than the tracked one: then that one is lost, and the id is used again.
    pub fn begin(
        &mut self,
        connection: &Connection,
        subject: Arc<Subject>,
        base: Option<[Volume; 2]>,
        at: Timestamp,
        windows: &mut Windows,
    ) {
        let Connection { id, reply: _, mark: _, volume, started: made } = connection;
        self.ended_in_listing.remove(id);
        if let Some(tracked) = self.live.get_mut(id) {
            if tracked.is_of(*made) {
                tracked.made = tracked.made.or(*made);
                if volume.is_some() {
                    self.measure(connection, at, windows);
                }
                return;
            }
            self.remove(id, None, at, windows, Removal::Lost);
        }
        let subject = ByAddress(subject);
        let has_room = self.subjects.len() < self.most_subjects || self.subjects.contains_key(&subject);
        if self.live.len() >= self.most || !has_room {
            self.untracked += 1;
            return;
        }
        *self.subjects.entry(subject.clone()).or_insert(0) += 1;
        let ByAddress(subject) = subject;
        let place = windows.place(at);
        let mut tracked = Tracked {
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
    }

    /// A connection of which only the end is known: its NEW event was lost, or it was not tracked because the tracker was
    /// full. It counts as started and ended. False if its end was counted already, and this is a duplicate.
    pub fn record_ended(
        &mut self,
        connection: &Connection,
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

    /// Counters of a line of a listing: what was added since the last report goes into the window of `at`. False if the
    /// connection is neither tracked nor may have ended since the listing began: it is one to `begin`.
    pub fn measure(&mut self, listed: &Connection, at: Timestamp, windows: &mut Windows) -> bool {
        let Connection { id, volume, started: made, .. } = listed;
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

    /// A connection has ended (DESTROY event), with its last counters. False if it is not tracked.
    pub fn end(&mut self, ended: &Connection, at: Timestamp, windows: &mut Windows) -> bool {
        let Connection { id, volume, started: made, .. } = ended;
        if self.live.get(id).is_none_or(|tracked| !tracked.is_of(*made)) {
            return false;
        }
        self.remove(id, *volume, at, windows, Removal::Ended);
        self.remember_end(*id);
        true
    }

    /// To be called before the listing is requested from the kernel. A listing that began before and has not finished counts
    /// for nothing.
    pub fn begin_listing(&mut self) {
        self.listing += 1;
        self.listing_runs = true;
        self.ended_in_listing.clear();
        self.more_ended_in_listing = false;
    }

    /// To be called when all lines of the listing were read; not if it was interrupted or incomplete. Connections that began
    /// before the listing and were in none of its lines, twice in a row, are lost. Returns how many.
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

    /// Gives back what a flood has left behind.
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

    pub fn ledger(&self) -> Ledger {
        Ledger {
            started: self.started,
            ended: self.ended,
            live: self.live.len() as u64,
            lost: self.lost,
            untracked: self.untracked,
        }
    }

    /// All live connections, in no order.
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
        // The event of the end of a lost connection may follow all the same.
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
