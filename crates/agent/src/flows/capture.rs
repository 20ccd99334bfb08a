//! The thread that reads connection tracking: end events of connections, and listings (netlink dumps) of the open ones.
//!
//! There is a listing for each window, one after each commit, and one for each reader. The kernel sends no events of
//! new connections, whose first packets would pay for them (docs/performance.md). So a connection is known once it is
//! listed or has ended. It is attributed once every update that its rules may belong to was received and followed by a
//! listing: only then all connections from before that commit are known.
//!
//! It never blocks enforcement: it has its own sockets, thread and copy of the state. If the thread ends, recording
//! ends, and the status shows why.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use flow::{ConnectionId, CountedFlow, Tuple};
use jiff::{SignedDuration, Timestamp};
use nfnetlink::{FlowEvent, FlowEvents, FlowMonitor, Subscription, TrackedFlow, TrackedTuple, count_flows, list_flows};
use policy::Layout;
use tokio::sync::mpsc;

use super::accounting::{ConntrackSetting, ConntrackSettings};
use super::attribution::{Attribution, NameInputs};
use super::feed::{DeniedPackets, FeedMessage};
use super::offload::OffloadedVolume;
use super::pending_connections::{Backlog, FirstReport};
use super::replica::Replica;
use super::schedule::{CaptureSchedule, begin_of_window};
use super::services::ServiceUpdate;
use super::store::{Core, FlowStore};

/// Receive buffer in bytes: some 40,000 events, each of which the kernel counts with its overhead.
const RECEIVE_BUFFER: usize = 32 << 20;

/// Polling interval of events. A thread that blocks on each event would be woken in the path of a packet, which costs
/// that packet more than all rules (docs/performance.md). A commit is announced within this time.
const READ_INTERVAL: Duration = Duration::from_millis(20);

/// Further reads while the update of a commit is awaited, half a second: the event loop sends it just after the commit,
/// but may be slow on busy processors.
const MOST_READS_AWAITING_UPDATE: usize = 25;

/// A connection that began so recently may have been judged by a state whose update is outstanding.
const RECENT: SignedDuration = SignedDuration::from_secs(1);

/// Maximum number of datagrams that are sorted and processed together.
const MOST_DATAGRAMS: usize = 16_384;

/// Maximum number of connections that are counted while readers of the records wait.
const MOST_AT_ONCE: usize = 1024;

/// Maximum number of connections that wait for attribution, about 250 bytes each. Beyond it they are attributed early.
const MOST_WAITING: usize = 65_536;

/// Interval at which the fill level of the connection tracking table is read: a flood fills the table within seconds.
const COUNTED_EVERY: Duration = Duration::from_secs(1);

/// Maximum number of denied packets that wait for the names of their time. Beyond it they are named early.
const MOST_DENIALS_WAITING: usize = 4096;

/// Fill level of the connection tracking table, in percent, at which reliable delivery of end events is switched off,
/// and below which it is switched on again: undelivered entries count towards the table's limit.
pub(crate) const GIVE_UP_AT: u64 = 70;
const TAKE_UP_AT: u64 = 50;

/// Rate limit of log messages about one kind of failure.
const LOGGED_EVERY: SignedDuration = SignedDuration::from_secs(60);

pub(crate) struct CaptureSettings {
    pub(crate) naming: NameInputs,
    /// Decodes generations from connection marks.
    pub(crate) layout: Layout,
    pub(crate) accounting: ConntrackSettings,
    /// Why volumes may be unknown (connection tracking without accounting).
    pub(crate) problems: Vec<String>,
}

pub(crate) struct Capture {
    store: Arc<FlowStore>,
    messages: Receiver<FeedMessage>,
    services: mpsc::Receiver<ServiceUpdate>,
    attribution: Attribution,
    replica: Replica,
    backlog: Backlog,
    /// Denied packets, each with the number of earlier updates that were sent to the replica.
    denials: VecDeque<(u64, Box<DeniedPackets>)>,
    accounting: ConntrackSettings,
    offloaded: OffloadedVolume,
    standing_problems: Vec<String>,
    off_at_start: Vec<ConntrackSetting>,
    /// Conntrack sysctls that other programs have changed.
    changed_settings: Vec<String>,
    /// Why Services may be missing.
    service_problems: Vec<String>,
    /// When the listener was opened: older connections have unobserved volume.
    opened: Option<Timestamp>,
    schedule: CaptureSchedule,
    /// The socket is new, or events were lost: a listing must recover their content.
    relist: bool,
    /// Messages that the full socket had dropped at the last reading.
    dropped_messages: u32,
    /// Whether all waiting events have been read since the last listing for a window.
    is_drained: bool,
    counted: Option<Instant>,
    last_logged: Option<Timestamp>,
}

/// Why the thread ended.
#[derive(Debug, PartialEq, Eq)]
enum CaptureEnd {
    /// The event loop has ended.
    Stopped,
    /// The agent ends, and all windows are closed.
    Finished,
}

impl Capture {
    pub(crate) fn new(
        store: Arc<FlowStore>,
        messages: Receiver<FeedMessage>,
        services: mpsc::Receiver<ServiceUpdate>,
        settings: CaptureSettings,
    ) -> Capture {
        let CaptureSettings { naming, layout, accounting, problems } = settings;
        store.core().health.problems.clone_from(&problems);
        Capture {
            store,
            messages,
            services,
            attribution: Attribution::new(naming, layout),
            replica: Replica::default(),
            backlog: Backlog::default(),
            denials: VecDeque::new(),
            off_at_start: accounting.off(),
            changed_settings: vec![],
            accounting,
            offloaded: OffloadedVolume::default(),
            standing_problems: problems,
            service_problems: vec![],
            opened: None,
            schedule: CaptureSchedule::beginning_at(Timestamp::now()),
            relist: false,
            dropped_messages: 0,
            is_drained: false,
            counted: None,
            last_logged: None,
        }
    }

    /// Runs until the event loop ends.
    pub(crate) fn run(mut self) {
        // Nothing can be named before the first state is in force.
        while self.replica.generation().is_none() {
            let Ok(message) = self.messages.recv() else { return };
            self.handle_message(message);
            self.replica.advance_until_waiting(0);
        }
        let mut monitor = None;
        loop {
            if monitor.is_none() {
                match FlowMonitor::open(self.subscription(), RECEIVE_BUFFER) {
                    Ok(opened) => {
                        monitor = Some(opened);
                        self.begin();
                        self.set_reliability(&mut monitor);
                    }
                    Err(error) => self.report(&format!("cannot receive conntrack events: {error}")),
                }
            }
            match self.step(&mut monitor) {
                Ok(()) => {}
                Err(CaptureEnd::Stopped | CaptureEnd::Finished) => return,
            }
        }
    }

    /// Without entry timestamps only a NEW event gives the start of a connection.
    fn subscription(&self) -> Subscription {
        if self.accounting.has_times() { Subscription::Removed } else { Subscription::All }
    }

    fn begin(&mut self) {
        let now = Timestamp::now();
        self.opened.get_or_insert(now);
        self.relist = true;
        self.dropped_messages = 0;
        let store = self.store.clone();
        let mut core = store.core();
        core.health.since.get_or_insert(now);
        // Both values belong to the socket.
        core.health.reliable = false;
        self.counted = None;
    }

    /// One iteration: reads messages and events, and lists connections and closes windows when due.
    fn step(&mut self, monitor: &mut Option<FlowMonitor>) -> Result<(), CaptureEnd> {
        self.receive_messages()?;
        let begin = Timestamp::now();
        // A clock that was set back would make all connections look older than the listener.
        self.opened = self.opened.map(|opened| opened.min(begin));
        let request = self.store.requested_listing();
        let is_last = self.store.is_last_close_requested();
        let for_window = self.schedule.is_listing_due(begin);
        let is_wanted = is_last || self.relist || request.is_some() || self.replica.waiting() > 0;
        let is_listed = (for_window || (is_wanted && self.schedule.allows_listing())) && self.list(for_window);
        if self.counted.is_none_or(|counted| counted.elapsed() >= COUNTED_EVERY) {
            self.counted = Some(Instant::now());
            self.set_reliability(monitor);
        }
        let (events, drained) = self.receive(monitor);
        self.is_drained |= drained;
        let received = Timestamp::now();
        let known = self.replica.waiting();
        self.add(events, received);
        // The update of a commit is sent just after it, so a connection may arrive first.
        for _ in 0..MOST_READS_AWAITING_UPDATE {
            std::thread::sleep(READ_INTERVAL);
            self.receive_messages()?;
            if !self.awaits_update(received) {
                break;
            }
        }
        let later = self.replica.waiting().saturating_sub(known);
        // Every connection from before the known commits is in the listing, or in the events that were read.
        let covered = if is_listed && drained { known } else { 0 };
        let has_room = self.backlog.len() <= MOST_WAITING;
        let limit = self.replica.commit_behind(covered).filter(|_| has_room && !is_last);
        self.attribute(limit);
        if covered > 0 {
            self.replica.advance_until_waiting(later);
        }
        let store = self.store.clone();
        let mut core = store.core();
        self.name_denials(&mut core);
        if let Some(request) = request.filter(|_| is_listed) {
            store.answer_listing(request);
        }
        let now = Timestamp::now();
        if is_last {
            store.close_last(&mut core, now);
            return Err(CaptureEnd::Finished);
        }
        if self.schedule.is_listed(now) && self.schedule.is_close_due(now) {
            store.close(&mut core, now);
        }
        Ok(())
    }

    /// Whether a recent connection was approved by a generation whose update has not been received.
    fn awaits_update(&self, received: Timestamp) -> bool {
        let recent = self.backlog.reports().filter(|reported| received.duration_since(reported.began()) < RECENT);
        recent
            .filter_map(|reported| self.attribution.generation(reported.connection().mark))
            .any(|generation| !self.replica.knows_generation(generation))
    }

    fn receive_messages(&mut self) -> Result<(), CaptureEnd> {
        while let Ok(update) = self.services.try_recv() {
            match update {
                ServiceUpdate::Changes(changes) => {
                    // Changes of one update were received together.
                    let age = changes.first().map(|received| received.at.elapsed()).unwrap_or_default();
                    let at =
                        Timestamp::now().saturating_sub(SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX));
                    let changes = changes.into_iter().map(|received| received.change).collect();
                    self.replica.enqueue_services(changes, at.unwrap_or(Timestamp::MIN));
                }
                ServiceUpdate::Problems(problems) => {
                    self.service_problems = problems.iter().map(ToString::to_string).collect();
                    self.store.core().health.problems = self.problems();
                }
            }
        }
        loop {
            match self.messages.try_recv() {
                Ok(message) => self.handle_message(message),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(CaptureEnd::Stopped),
            }
        }
    }

    fn handle_message(&mut self, message: FeedMessage) {
        match message {
            FeedMessage::Update(update) => self.replica.enqueue(*update),
            // Nothing can be named before the first state is in force.
            FeedMessage::Denied(packets) if self.replica.announced() == 0 => self.store.drop_denials(packets.count),
            FeedMessage::Denied(packets) => self.denials.push_back((self.replica.announced(), packets)),
        }
    }

    /// Names denied packets whose earlier updates are all applied.
    fn name_denials(&mut self, core: &mut Core) {
        let is_over = self.denials.len().saturating_sub(MOST_DENIALS_WAITING);
        let named = self.denials.iter().take_while(|(announced, _)| *announced <= self.replica.revision()).count();
        for (_, packets) in self.denials.drain(..named.max(is_over)) {
            if let Some(subject) = self.attribution.of_denied(&self.replica, &packets) {
                core.windows.denied(&subject, packets.count, packets.at);
            }
        }
    }

    /// Reads the waiting events. The flag is true if the socket was drained.
    fn receive(&mut self, monitor: &mut Option<FlowMonitor>) -> (Vec<FlowEvent>, bool) {
        let Some(open) = monitor else { return (vec![], true) };
        let mut events = Vec::new();
        for _ in 0..MOST_DATAGRAMS {
            match open.next(Duration::ZERO) {
                Ok(Some(FlowEvents::Events(more))) => events.extend(more),
                Ok(Some(FlowEvents::Lost)) => {
                    let dropped = open.dropped_messages().unwrap_or(self.dropped_messages.wrapping_add(1));
                    let lost = dropped.wrapping_sub(self.dropped_messages);
                    self.dropped_messages = dropped;
                    self.store.core().health.lost_events += u64::from(lost);
                    self.relist = true;
                }
                Ok(None) => return (events, true),
                Err(error) => {
                    self.report(&format!("cannot receive conntrack events: {error}"));
                    // A new socket starts with a listing.
                    *monitor = None;
                    self.relist = true;
                    return (events, true);
                }
            }
        }
        (events, false)
    }

    /// Events without a timestamp get their arrival time.
    fn add(&mut self, events: Vec<FlowEvent>, received: Timestamp) {
        for event in events {
            self.backlog.push(match event {
                FlowEvent::New(flow) => FirstReport::Open {
                    at: flow.started_ns.and_then(timestamp).unwrap_or(received),
                    connection: connection(&flow, &mut self.offloaded),
                },
                FlowEvent::Destroyed(flow) => FirstReport::Ended {
                    at: flow.stopped_ns.and_then(timestamp).unwrap_or(received),
                    connection: connection(&flow, &mut self.offloaded),
                },
            });
        }
    }

    /// Attributes the connections that began before the limit, sorted by start: the replica only moves forward.
    fn attribute(&mut self, limit: Option<Timestamp>) {
        let store = self.store.clone();
        for part in self.backlog.take_before(limit).chunks(MOST_AT_ONCE) {
            let mut core = store.core();
            for reported in part {
                let began = reported.began();
                match reported {
                    FirstReport::Open { connection, at: _ } => {
                        if let Some(subject) = self.attribution.of_connection(&mut self.replica, connection, began) {
                            let Core { tracker, windows, .. } = &mut *core;
                            tracker.begin(connection, subject, None, began, windows);
                        }
                    }
                    FirstReport::Ended { connection, at } => {
                        self.end(&mut core, connection, *at);
                        self.attribution.forget(connection);
                    }
                }
            }
        }
    }

    fn end(&mut self, core: &mut Core, ended: &CountedFlow, at: Timestamp) {
        let Core { tracker, windows, .. } = core;
        if tracker.end(ended, at, windows) {
            return;
        }
        // No listing contained it. A connection older than the listener was never counted as live.
        let Some(began) = ended.started else {
            // The timestamps of entries were switched off meanwhile, or the connection is older than they are.
            if self.attribution.of_connection(&mut self.replica, ended, at).is_some() {
                tracker.count_untracked();
            }
            return;
        };
        if Some(began) < self.opened {
            return;
        }
        if let Some(subject) = self.attribution.of_connection(&mut self.replica, ended, began) {
            tracker.record_ended(ended, &subject, None, at, windows);
        }
    }

    /// Lists all connections: new ones are found, and volumes of known ones are measured. The listing for a window
    /// belongs to the one that has just ended, and detects lost end events: the connection is missing, although the
    /// kernel may keep its end event for some time. Such an event may also wait in the socket, unless that was drained
    /// since the previous listing for a window. Returns whether the listing is complete.
    fn list(&mut self, for_window: bool) -> bool {
        let finds_lost = for_window && std::mem::take(&mut self.is_drained);
        self.attribution.refresh();
        let (began, now) = (Instant::now(), Timestamp::now());
        let measured = match for_window {
            true => begin_of_window(now) - SignedDuration::from_nanos(1),
            false => now,
        };
        if for_window {
            self.offloaded.renew();
            let changed = self.accounting.renew(&self.off_at_start);
            self.changed_settings = changed.into_iter().filter(|p| !self.standing_problems.contains(p)).collect();
        }
        if finds_lost {
            self.store.core().tracker.begin_listing();
        }
        let mut batch = Vec::with_capacity(MOST_AT_ONCE);
        let listed = list_flows(|flow| {
            batch.push(connection(&flow, &mut self.offloaded));
            if batch.len() == MOST_AT_ONCE {
                self.visit(batch.drain(..), measured, now);
            }
        });
        self.visit(batch.drain(..), measured, now);
        self.schedule.listed(began.elapsed());
        match listed {
            Ok(()) => {
                let store = self.store.clone();
                let mut core = store.core();
                let Core { tracker, windows, health, .. } = &mut *core;
                self.relist = false;
                if finds_lost {
                    tracker.finish_listing(now, windows);
                }
                let behind = windows.ahead_of(now).map(|ahead| {
                    format!(
                        "the clock was set back: records have the times of before for another {} s",
                        ahead.as_secs()
                    )
                });
                health.problems = self.problems().into_iter().chain(behind).collect();
                true
            }
            Err(error) => {
                self.relist = true;
                self.report(&format!("cannot list conntrack entries: {error}"));
                false
            }
        }
    }

    /// Processes connections of a listing.
    fn visit(&mut self, lines: impl Iterator<Item = CountedFlow>, measured: Timestamp, now: Timestamp) {
        if self.backlog.len() >= MOST_WAITING {
            self.attribute(None);
        }
        let store = self.store.clone();
        let mut core = store.core();
        let Core { tracker, windows, .. } = &mut *core;
        for listed in lines {
            if tracker.measure(&listed, measured, windows) {
                continue;
            }
            if listed.started.is_some_and(|began| Some(began) >= self.opened) {
                self.backlog.push(FirstReport::Open { connection: listed, at: now });
                continue;
            }
            // Packets from before this process listened were not observed, or were reported by an earlier process.
            let began = listed.started.unwrap_or(Timestamp::MIN);
            if let Some(subject) = self.attribution.of_connection(&mut self.replica, &listed, began) {
                tracker.begin(&listed, subject, listed.volume, now, windows);
            }
        }
    }

    /// Requests reliable delivery of end events while the connection tracking table has room for undelivered entries.
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
            None => core.health.reliable,
        };
        if wanted == core.health.reliable {
            return;
        }
        match monitor.set_reliable(wanted) {
            Ok(()) => {
                core.health.reliable = wanted;
                if !wanted {
                    // Each retransmission of an event counted as a message.
                    self.dropped_messages = monitor.dropped_messages().unwrap_or(self.dropped_messages);
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
        let offloaded = self.offloaded.problem().map(String::from);
        let standing = self.standing_problems.iter().chain(&self.changed_settings).chain(&self.service_problems);
        standing.cloned().chain(offloaded).collect()
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

impl Drop for Capture {
    /// The thread has ended, with the event loop or by a panic.
    fn drop(&mut self) {
        let mut core = self.store.core();
        core.health.since = None;
        core.health.problems = vec!["the thread of flow records has ended: restart the agent".to_owned()];
    }
}

/// `IPS_SEEN_REPLY`
const SEEN_REPLY: u32 = 1 << 1;

fn connection(flow: &TrackedFlow, offloaded: &mut OffloadedVolume) -> CountedFlow {
    CountedFlow {
        id: ConnectionId { id: flow.id, zone: flow.zone, original: tuple(&flow.original) },
        reply: tuple(&flow.reply),
        mark: flow.mark,
        has_reply: flow.status & SEEN_REPLY != 0,
        volume: offloaded.volume(flow),
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
