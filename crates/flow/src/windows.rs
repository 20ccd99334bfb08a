//! Open windows: observations of connections and denied packets, summed by key.

mod fold;
mod open;

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

use crate::{Connections, EndSample, FlowKey, FlowRecord, Subject, Tracker, Volume, WINDOW_SECONDS};
use open::OpenWindow;

/// Limit of consecutive windows without events that are closed with records of their live connections. Of a longer gap,
/// in which the agent was suspended or the clock was set forward, only the last windows get records: the others were
/// not observed, and a clock that is a year ahead would create two million windows.
pub const MOST_SILENT_WINDOWS: i64 = 4;

/// Open windows: the window of the last [`Windows::close`], and the next one, for events ahead of it.
///
/// Windows close in order and never reopen. An event before the open window, because the clock was set back or the
/// event was read late, counts in the open window. An event more than a window ahead of the last close counts as one
/// window ahead.
///
/// While the clock is behind the open window, that window stays open: [`Windows::ahead_of`] says by how much.
#[derive(Debug)]
pub struct Windows {
    node: Arc<str>,
    most_records: usize,
    /// The latest time of a close, or the first event; the number of its window is that of `current`.
    reference: Option<Timestamp>,
    current: OpenWindow,
    next: OpenWindow,
    /// Samples of the records closed last; equal samples of the next window share them.
    samples: HashMap<Arc<FlowKey>, [Arc<EndSample>; 2]>,
    dropped: DroppedRecords,
    skipped_windows: u64,
    folded_records: u64,
}

/// Observations without a record because their window had reached its limit of records. Sums over records plus these
/// equal the sums over all observations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DroppedRecords {
    /// Events and reports of counters of connections.
    pub connection_observations: u64,
    /// Reports of denied packets.
    pub denial_observations: u64,
    /// `live` is summed over the ends of windows.
    pub connections: Connections,
    pub sent: Volume,
    pub received: Volume,
    pub unknown_volume: u64,
    pub denied_packets: u64,
}

/// Amounts that an event adds to the record of its key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Observation {
    pub(crate) started: u64,
    pub(crate) ended: u64,
    pub(crate) lost: u64,
    /// `None` if the event has no counters.
    pub(crate) volume: Option<[Volume; 2]>,
    pub(crate) unknown_volume: u64,
    pub(crate) denied_packets: u64,
}

/// Window and time to which an event is attributed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EventTime {
    /// Number of the window since 1970.
    pub(crate) window: i64,
    pub(crate) at: Timestamp,
}

impl Windows {
    /// `node` is the name of the reporting node. `most_records` limits the records of each window, about 2 KB each
    /// while the window is open.
    pub fn new(node: Arc<str>, most_records: usize) -> Windows {
        Windows {
            node,
            most_records,
            reference: None,
            current: OpenWindow::new(most_records),
            next: OpenWindow::new(most_records),
            samples: HashMap::new(),
            dropped: DroppedRecords::default(),
            skipped_windows: 0,
            folded_records: 0,
        }
    }

    /// Counts packets that were denied, or would be if audited policies were enforced, according to the subject's
    /// verdict.
    pub fn denied(&mut self, subject: &Subject, packets: u64, at: Timestamp) {
        let place = self.place(at);
        let observation = Observation { denied_packets: packets, ..Observation::default() };
        if !self.open(place).add(subject, place.at, &observation) {
            self.dropped.denial_observations += 1;
            self.dropped.add(&observation);
        }
    }

    /// Closes the windows that ended at or before `now` and returns their records, by window and key. Every connection
    /// live at the end of a window is in `live` of exactly one of its records, or of [`Windows::dropped_records`].
    pub fn close(&mut self, now: Timestamp, tracker: &Tracker) -> Vec<Arc<FlowRecord>> {
        let reference = self.reference.unwrap_or(now);
        let (mut window, target) = (number(reference), number(now));
        self.reference = Some(reference.max(now));
        let mut records = Vec::new();
        while window < target {
            let silent = self.current.is_empty() && self.next.is_empty();
            if silent && target - window > MOST_SILENT_WINDOWS {
                self.skipped_windows += (target - MOST_SILENT_WINDOWS - window).unsigned_abs();
                window = target - MOST_SILENT_WINDOWS;
                continue;
            }
            let next = mem::replace(&mut self.next, OpenWindow::new(self.most_records));
            let mut current = mem::replace(&mut self.current, next);
            let live = live_at_end(window, tracker, &self.current);
            self.dropped.connections.live += current.add_live(live, start(window), start(window + 1));
            self.folded_records += current.fold_ports();
            let closed = current.into_records(start(window), &self.node, &self.samples);
            self.samples = closed
                .iter()
                .map(|record| {
                    let samples = [Arc::clone(&record.sources), Arc::clone(&record.destinations)];
                    (Arc::clone(&record.key), samples)
                })
                .collect();
            records.extend(closed.into_iter().map(Arc::new));
            window += 1;
        }
        records
    }

    /// Closes the windows that ended at or before `now`, and the open ones before their end, because the agent ends. The
    /// latter have no `live`: the next agent counts the connections that are live at the end of the window.
    pub fn finish(&mut self, now: Timestamp, tracker: &Tracker) -> Vec<Arc<FlowRecord>> {
        let mut records = self.close(now, tracker);
        let window = number(self.reference.unwrap_or(now));
        let [current, next] =
            [&mut self.current, &mut self.next].map(|open| mem::replace(open, OpenWindow::new(self.most_records)));
        for (window, mut open) in [(window, current), (window + 1, next)] {
            self.folded_records += open.fold_ports();
            records.extend(open.into_records(start(window), &self.node, &self.samples).into_iter().map(Arc::new));
        }
        records
    }

    /// Records of the open windows as of `now`: `live` counts the connections that are live now.
    pub fn open_records(&self, now: Timestamp, tracker: &Tracker) -> Vec<FlowRecord> {
        let reference = self.reference.unwrap_or(now);
        let window = number(reference);
        let mut windows = vec![(window, self.current.clone(), live_at_end(window, tracker, &self.next))];
        if !self.next.is_empty() {
            let none_later = OpenWindow::new(0);
            windows.push((window + 1, self.next.clone(), live_at_end(window + 1, tracker, &none_later)));
        }
        let mut records = Vec::new();
        for (window, mut open, live) in windows {
            let until = now.clamp(start(window), start(window + 1));
            open.add_live(live, start(window), until);
            open.fold_ports();
            records.extend(open.into_records(start(window), &self.node, &self.samples));
        }
        records
    }

    /// Sums of the observations dropped because their window was full.
    pub fn dropped_records(&self) -> DroppedRecords {
        self.dropped
    }

    /// Records aggregated into others, because their ends used more than 16 ports in the window or their source had
    /// more than 256 records.
    pub fn folded_records(&self) -> u64 {
        self.folded_records
    }

    /// Windows of a gap that were neither observed nor closed individually (see [`MOST_SILENT_WINDOWS`]).
    pub fn skipped_windows(&self) -> u64 {
        self.skipped_windows
    }

    /// By how much the begin of the open window is ahead of `now`; `None` if it is not. The clock was then set back,
    /// and no window closes until it has caught up.
    pub fn ahead_of(&self, now: Timestamp) -> Option<SignedDuration> {
        let begin = start(number(self.reference?));
        (begin > now).then(|| begin.duration_since(now))
    }

    /// Window and time to which an event at `at` is attributed.
    pub(crate) fn place(&mut self, at: Timestamp) -> EventTime {
        let reference = *self.reference.get_or_insert(at);
        let latest = reference.checked_add(SignedDuration::from_secs(WINDOW_SECONDS)).unwrap_or(Timestamp::MAX);
        let at = at.clamp(start(number(reference)), latest);
        EventTime { window: number(at), at }
    }

    pub(crate) fn add(&mut self, subject: &Arc<Subject>, place: EventTime, observation: Observation) {
        if !self.open(place).add_shared(subject, place.at, &observation) {
            self.dropped.connection_observations += 1;
            self.dropped.add(&observation);
        }
    }

    /// A connection that ended in the next window and began before it is live at the end of the current one, which
    /// closes after the end was observed.
    pub(crate) fn carry(&mut self, subject: &Arc<Subject>, place: EventTime, began_in: i64) {
        if began_in < place.window && self.is_next(place) && !self.next.carry(subject) {
            self.dropped.connections.live += 1;
        }
    }

    fn open(&mut self, place: EventTime) -> &mut OpenWindow {
        if self.is_next(place) { &mut self.next } else { &mut self.current }
    }

    fn is_next(&self, place: EventTime) -> bool {
        self.reference.is_some_and(|reference| number(reference) < place.window)
    }
}

impl DroppedRecords {
    fn add(&mut self, observation: &Observation) {
        let Observation { started, ended, lost, volume, unknown_volume, denied_packets } = *observation;
        self.connections += Connections { started, ended, live: 0, lost };
        let [sent, received] = volume.unwrap_or_default();
        self.sent += sent;
        self.received += received;
        self.unknown_volume = self.unknown_volume.saturating_add(unknown_volume);
        self.denied_packets = self.denied_packets.saturating_add(denied_packets);
    }
}

/// Connections live at the end of a window, by subject; events of the next window may have been observed already.
fn live_at_end(window: i64, tracker: &Tracker, next: &OpenWindow) -> open::LiveSubjects {
    let mut live = tracker.live_since(window);
    for (subject, count) in next.carried() {
        *live.entry(subject.clone()).or_insert(0) += count;
    }
    live
}

/// Number of the window of a time, counted from 1970.
fn number(at: Timestamp) -> i64 {
    at.as_second().div_euclid(WINDOW_SECONDS)
}

/// Begin of a window.
fn start(number: i64) -> Timestamp {
    let second = number.saturating_mul(WINDOW_SECONDS);
    Timestamp::from_second(second).unwrap_or(if second < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

#[cfg(test)]
mod sequence;
#[cfg(test)]
mod tests;
