//! The thread that reads connection tracking: events as they come, and a listing for each window.
//!
//! It never blocks enforcement: it has sockets, a thread and a copy of the state of its own. If it ends, records end, and
//! the status says why.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use flow::{Connection, ConnectionId, Tuple, Volume, WINDOW_SECONDS};
use jiff::{SignedDuration, Timestamp};
use nfnetlink::{FlowEvent, FlowEvents, FlowMonitor, TrackedFlow, TrackedTuple, count_flows, list_flows};
use policy::Layout;
use tokio::sync::mpsc;

use super::attribution::{Attribution, Naming};
use super::feed::Message;
use super::replica::Replica;
use super::services::ServiceUpdate;
use super::store::{Core, FlowStore};

/// Bytes of events that may wait in the socket: some 40,000 of them, each of which the kernel counts with its overhead.
const RECEIVE_BUFFER: usize = 32 << 20;

/// Events are read so often. A thread that waits for each of them would be woken by the first packet of every connection,
/// which costs that packet more than all rules (docs/performance.md).
const READ_EVERY: Duration = Duration::from_millis(20);

/// Reads without events after which the update of a commit is no longer awaited, half a second: the event loop sends it just
/// after the commit, but may be slow on busy processors.
const MOST_READS_AWAITING_UPDATE: usize = 25;

/// Datagrams that are sorted and handled together.
const MOST_DATAGRAMS: usize = 1024;

/// The listing begins so long before the end of a window, so that volumes of live connections are in it.
const LISTING_BEFORE_END: SignedDuration = SignedDuration::from_millis(1000);

/// A window is closed so long after its end: events of its last moments are still on their way.
const CLOSED_AFTER_END: SignedDuration = SignedDuration::from_millis(500);

/// Fill of the connection tracking table at which the kernel no longer keeps ends of connections for this listener, and at
/// which it does so again, in percent: entries that wait for their delivery count towards the limit.
pub(crate) const GIVE_UP_AT: u64 = 70;
const TAKE_UP_AT: u64 = 50;

/// Failures of one kind are logged at most this often.
const LOGGED_EVERY: SignedDuration = SignedDuration::from_secs(60);

pub(crate) struct CaptureSettings {
    pub(crate) naming: Naming,
    /// Reads generations out of connection marks.
    pub(crate) layout: Layout,
    /// Why volumes may be unknown (connection tracking without accounting).
    pub(crate) problems: Vec<String>,
}

pub(crate) struct Capture {
    store: Arc<FlowStore>,
    messages: Receiver<Message>,
    services: mpsc::Receiver<ServiceUpdate>,
    attribution: Attribution,
    replica: Replica,
    standing_problems: Vec<String>,
    /// Why Services may be missing.
    service_problems: Vec<String>,
    /// When the listener was opened: older connections have volume that was not observed.
    opened: Option<Timestamp>,
    next_listing: Timestamp,
    next_close: Timestamp,
    /// When the events that have been handled were read: those of younger connections are still to come.
    events_read: Timestamp,
    /// Events were lost: a listing has to find what they said.
    relist: bool,
    last_logged: Option<Timestamp>,
}

/// Why the thread ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    /// The event loop is gone.
    Stopped,
}

impl Capture {
    pub(crate) fn new(
        store: Arc<FlowStore>,
        messages: Receiver<Message>,
        services: mpsc::Receiver<ServiceUpdate>,
        settings: CaptureSettings,
    ) -> Capture {
        let CaptureSettings { naming, layout, problems } = settings;
        let now = Timestamp::now();
        Capture {
            store,
            messages,
            services,
            attribution: Attribution::new(naming, layout),
            replica: Replica::default(),
            standing_problems: problems,
            service_problems: vec![],
            opened: None,
            next_listing: now,
            next_close: now,
            events_read: now,
            relist: false,
            last_logged: None,
        }
    }

    /// Runs until the event loop ends.
    pub(crate) fn run(mut self) {
        // Nothing can be named before the first state is in force.
        while self.replica.generation().is_none() {
            let Ok(message) = self.messages.recv() else { return };
            self.take(message);
            self.replica.advance_until_waiting(0);
        }
        let mut monitor = None;
        loop {
            if monitor.is_none() {
                match FlowMonitor::open(RECEIVE_BUFFER) {
                    Ok(opened) => {
                        monitor = Some(opened);
                        self.begin();
                        self.set_reliability(&mut monitor);
                    }
                    Err(error) => self.report(&format!("cannot receive conntrack events: {error}")),
                }
            }
            if self.turn(&mut monitor) == Err(End::Stopped) {
                return;
            }
        }
    }

    fn begin(&mut self) {
        let now = Timestamp::now();
        self.opened.get_or_insert(now);
        self.relist = true;
        self.next_close = end_of_window(now) + CLOSED_AFTER_END;
        let store = self.store.clone();
        store.core().health.since.get_or_insert(now);
    }

    /// Takes in what there is, and does what is due.
    fn turn(&mut self, monitor: &mut Option<FlowMonitor>) -> Result<(), End> {
        self.take_messages()?;
        self.events_read = Timestamp::now();
        let (events, drained) = self.receive(monitor);
        let received = Timestamp::now();
        let known = self.replica.waiting();
        // The update of a commit is sent just after it, and connections may be faster.
        for _ in 0..MOST_READS_AWAITING_UPDATE {
            std::thread::sleep(READ_EVERY);
            self.take_messages()?;
            if !self.awaits_update(&events) {
                break;
            }
        }
        let later = self.replica.waiting().saturating_sub(known);
        self.handle(events, received);
        if drained {
            // Every connection from before the commits that were known then is in the events that were read.
            self.replica.advance_until_waiting(later);
        }
        let now = Timestamp::now();
        // A clock that was set back makes the next listing seem far away.
        let is_due = now >= self.next_listing || self.next_listing > next_listing(now);
        if (self.relist && drained) || is_due {
            self.relist = false;
            self.next_listing = next_listing(now);
            self.attribution.refresh();
            self.list();
            self.set_reliability(monitor);
        }
        if now >= self.next_close || self.next_close > end_of_window(now) + CLOSED_AFTER_END {
            self.next_close = end_of_window(now) + CLOSED_AFTER_END;
            let store = self.store.clone();
            store.close(&mut store.core(), now);
        }
        Ok(())
    }

    /// Whether a connection was approved by a generation of which no update has come.
    fn awaits_update(&self, events: &[FlowEvent]) -> bool {
        let mut generations = events.iter().filter_map(|event| match event {
            FlowEvent::New(flow) => self.attribution.generation(flow.mark),
            FlowEvent::Destroyed(_) => None,
        });
        generations.any(|generation| !self.replica.has_generation(generation))
    }

    fn take_messages(&mut self) -> Result<(), End> {
        while let Ok(update) = self.services.try_recv() {
            match update {
                ServiceUpdate::Changes(changes) => {
                    let services = self.attribution.services();
                    changes.into_iter().for_each(|change| services.apply(change));
                }
                ServiceUpdate::Problems(problems) => {
                    self.service_problems = problems.iter().map(ToString::to_string).collect();
                    self.store.core().health.problems = self.problems();
                }
            }
        }
        loop {
            match self.messages.try_recv() {
                Ok(message) => self.take(message),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(End::Stopped),
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Update(update) => self.replica.enqueue(*update),
            Message::Denied(packets) => {
                if let Some(subject) = self.attribution.of_denied(&self.replica, &packets) {
                    let store = self.store.clone();
                    store.core().windows.denied(&subject, packets.count, packets.at);
                }
            }
        }
    }

    /// The events that wait, and whether there are no more of them.
    fn receive(&mut self, monitor: &mut Option<FlowMonitor>) -> (Vec<FlowEvent>, bool) {
        let Some(open) = monitor else { return (vec![], true) };
        let mut events = Vec::new();
        for _ in 0..MOST_DATAGRAMS {
            match open.next(Duration::ZERO) {
                Ok(Some(FlowEvents::Events(more))) => events.extend(more),
                Ok(Some(FlowEvents::Lost)) => {
                    self.store.core().health.lost_events += 1;
                    self.relist = true;
                }
                Ok(None) => return (events, true),
                Err(error) => {
                    self.report(&format!("cannot receive conntrack events: {error}"));
                    // A new socket begins with a listing.
                    *monitor = None;
                    self.relist = true;
                    return (events, true);
                }
            }
        }
        (events, false)
    }

    /// Handles events in the order of their times: those of two processors may come in another one. Events without a time
    /// have that of their arrival.
    fn handle(&mut self, events: Vec<FlowEvent>, received: Timestamp) {
        if events.is_empty() {
            return;
        }
        let mut timed: Vec<(Timestamp, FlowEvent)> = events
            .into_iter()
            .map(|event| {
                let at = match &event {
                    FlowEvent::New(flow) => flow.started_ns,
                    FlowEvent::Destroyed(flow) => flow.stopped_ns,
                };
                (at.and_then(timestamp).unwrap_or(received), event)
            })
            .collect();
        timed.sort_by_key(|(at, _)| *at);
        let store = self.store.clone();
        let mut core = store.core();
        for (at, event) in timed {
            match event {
                FlowEvent::New(flow) => {
                    let connection = connection(&flow);
                    if let Some(subject) = self.attribution.of_connection(&mut self.replica, &connection, at) {
                        let Core { tracker, windows, .. } = &mut *core;
                        tracker.begin(&connection, subject, None, at, windows);
                    }
                }
                FlowEvent::Destroyed(flow) => self.end(&mut core, &connection(&flow), at),
            }
        }
    }

    fn end(&mut self, core: &mut Core, ended: &Connection, at: Timestamp) {
        let Core { tracker, windows, health, .. } = core;
        if tracker.end(&ended.id, ended.volume, at, windows) {
            return;
        }
        // The event of its beginning was lost. One that is older than the listener was never counted as live.
        let Some(began) = ended.started.filter(|began| Some(*began) >= self.opened) else { return };
        if let Some(subject) = self.attribution.of_connection(&mut self.replica, ended, began) {
            // A duplicate is no connection that was found.
            health.found_late += u64::from(tracker.record_ended(ended, &subject, None, at, windows));
        }
    }

    /// Lists all connections: those whose beginning was missed are found, and volumes of live ones are measured.
    fn list(&mut self) {
        let store = self.store.clone();
        let mut core = store.core();
        core.tracker.begin_listing();
        let now = Timestamp::now();
        let listed = list_flows(|flow| self.visit(&mut core, &connection(&flow), now));
        match listed {
            Ok(()) => {
                let Core { tracker, windows, health, .. } = &mut *core;
                tracker.finish_listing(now, windows);
                let behind = windows.ahead_of(now).map(|ahead| {
                    format!(
                        "the clock was set back: records have the times of before for another {} s",
                        ahead.as_secs()
                    )
                });
                health.problems = self.problems().into_iter().chain(behind).collect();
            }
            Err(error) => {
                drop(core);
                self.report(&format!("cannot list conntrack entries: {error}"));
            }
        }
    }

    fn visit(&mut self, core: &mut Core, listed: &Connection, now: Timestamp) {
        let Core { tracker, windows, health, .. } = core;
        if tracker.measure(&listed.id, listed.volume, now, windows) {
            return;
        }
        let began = listed.started.unwrap_or(now);
        // The update of the commit that allowed it may not be here yet. A time after now is of a clock that was set back.
        if listed.started.is_some() && (self.events_read..=Timestamp::now()).contains(&began) {
            return;
        }
        let Some(subject) = self.attribution.of_connection(&mut self.replica, listed, began) else { return };
        // Packets from before this process listened were not observed, or were reported by an earlier process.
        let is_older = listed.started.is_none_or(|began| Some(began) < self.opened);
        let base = listed.volume.filter(|_| is_older);
        if !is_older {
            health.found_late += 1;
        }
        tracker.begin(listed, subject, base, now, windows);
    }

    /// Has the kernel keep ends of connections until they are delivered, as long as there is room for them.
    fn set_reliability(&mut self, monitor: &mut Option<FlowMonitor>) {
        let Some(monitor) = monitor else { return };
        let fill = match count_flows() {
            Ok(count) => {
                count.limit.filter(|limit| *limit > 0).map(|limit| u64::from(count.entries) * 100 / u64::from(limit))
            }
            Err(error) => {
                tracing::debug!("cannot count conntrack entries: {error}");
                None
            }
        };
        let store = self.store.clone();
        let mut core = store.core();
        let is_first = !core.health.reliable && core.health.reliability_given_up == 0;
        let wanted = match fill {
            Some(fill) if fill >= GIVE_UP_AT => false,
            Some(fill) if fill <= TAKE_UP_AT => true,
            Some(_) => core.health.reliable || is_first,
            None => false,
        };
        if wanted == core.health.reliable {
            return;
        }
        match monitor.set_reliable(wanted) {
            Ok(()) => {
                core.health.reliable = wanted;
                if !wanted {
                    core.health.reliability_given_up += 1;
                    tracing::warn!(
                        "connection tracking is more than {GIVE_UP_AT}% full: ends of connections may be lost from flow \
                         records (nf_conntrack_max)"
                    );
                }
            }
            Err(error) => {
                drop(core);
                self.report(&format!("cannot make conntrack events reliable (NETLINK_BROADCAST_ERROR): {error}"));
            }
        }
    }

    fn problems(&self) -> Vec<String> {
        self.standing_problems.iter().chain(&self.service_problems).cloned().collect()
    }

    fn report(&mut self, problem: &str) {
        let now = Timestamp::now();
        if self.last_logged.is_none_or(|last| now.duration_since(last).abs() >= LOGGED_EVERY) {
            tracing::warn!("flow records: {problem}");
            self.last_logged = Some(now);
        }
        let problems = self.problems().into_iter().chain([problem.to_owned()]).collect();
        self.store.core().health.problems = problems;
    }
}

/// The end of the window that the time is in.
fn end_of_window(now: Timestamp) -> Timestamp {
    let begin = now.as_second().div_euclid(WINDOW_SECONDS) * WINDOW_SECONDS;
    Timestamp::from_second(begin + WINDOW_SECONDS).unwrap_or(Timestamp::MAX)
}

/// The next listing that is not the one of just now.
fn next_listing(now: Timestamp) -> Timestamp {
    let end = end_of_window(now);
    let listing = end - LISTING_BEFORE_END;
    if listing > now { listing } else { end_of_window(end) - LISTING_BEFORE_END }
}

fn connection(flow: &TrackedFlow) -> Connection {
    Connection {
        id: ConnectionId { id: flow.id, zone: flow.zone, original: tuple(&flow.original) },
        reply: tuple(&flow.reply),
        mark: flow.mark,
        volume: flow.counters.map(|counters| counters.map(|c| Volume { packets: c.packets, bytes: c.bytes })),
        started: flow.started_ns.and_then(timestamp),
    }
}

fn tuple(tracked: &TrackedTuple) -> Tuple {
    let TrackedTuple { source, destination, protocol, source_port, destination_port, icmp_type } = *tracked;
    Tuple { source, destination, protocol, source_port, destination_port, icmp_type }
}

fn timestamp(nanoseconds: u64) -> Option<Timestamp> {
    Timestamp::from_nanosecond(i128::from(nanoseconds)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_precede_the_ends_of_windows() {
        let at = |milliseconds: i64| Timestamp::from_millisecond(milliseconds).unwrap();
        assert_eq!(end_of_window(at(0)), at(15_000));
        assert_eq!(end_of_window(at(14_999)), at(15_000));
        assert_eq!(next_listing(at(100)), at(14_000));
        assert_eq!(next_listing(at(14_000)), at(29_000));
        assert_eq!(next_listing(at(14_900)), at(29_000));
    }
}
