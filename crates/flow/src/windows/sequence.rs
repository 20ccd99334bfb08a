//! Property tests with duplicated and lost events, listings, restarts, clock jumps and reached limits: nothing is
//! counted twice, and observations without a record are counted.

use std::collections::{BTreeMap, HashMap};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::testing::{at, connection, subject};
use crate::{ConnectionId, ConnectionLedger, CountedFlow};

const SUBJECTS: u8 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Delivery {
    Lost,
    Once,
    Twice,
}

#[derive(Debug, Clone)]
enum Op {
    Open {
        subject: u8,
        accounting: bool,
        event: Delivery,
    },
    Traffic {
        pick: usize,
        packets: [u16; 2],
    },
    Close {
        pick: usize,
        event: Delivery,
    },
    /// The end event was late rather than lost.
    LateEnd {
        pick: usize,
    },
    /// The ID of an ended connection is reused.
    Reuse {
        pick: usize,
        event: Delivery,
    },
    /// Connections end after the kernel has written them to the listing, and before the agent reads its lines.
    Listing {
        ends: Vec<usize>,
        finishes: bool,
    },
    Denied {
        subject: u8,
        packets: u8,
    },
    Wait {
        milliseconds: u16,
    },
    Jump {
        seconds: i64,
    },
    CloseWindows,
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let delivery = || prop_oneof![1 => Just(Delivery::Lost), 4 => Just(Delivery::Once), 1 => Just(Delivery::Twice)];
    let pick = 0..64usize;
    prop_oneof![
        6 => (0..SUBJECTS, prop::bool::weighted(0.8), delivery())
            .prop_map(|(subject, accounting, event)| Op::Open { subject, accounting, event }),
        6 => (pick.clone(), any::<[u16; 2]>()).prop_map(|(pick, packets)| Op::Traffic { pick, packets }),
        4 => (pick.clone(), delivery()).prop_map(|(pick, event)| Op::Close { pick, event }),
        2 => pick.clone().prop_map(|pick| Op::LateEnd { pick }),
        2 => (pick.clone(), delivery()).prop_map(|(pick, event)| Op::Reuse { pick, event }),
        3 => (vec(pick, 0..3), prop::bool::weighted(0.9))
            .prop_map(|(ends, finishes)| Op::Listing { ends, finishes }),
        2 => (0..SUBJECTS, any::<u8>()).prop_map(|(subject, packets)| Op::Denied { subject, packets }),
        4 => (0..20_000u16).prop_map(|milliseconds| Op::Wait { milliseconds }),
        1 => (-200i64..200).prop_map(|seconds| Op::Jump { seconds }),
        4 => Just(Op::CloseWindows),
        1 => Just(Op::Restart),
    ]
}

/// A connection in the kernel.
struct KernelFlow {
    connection: CountedFlow,
    subject: u8,
    accounting: bool,
    counters: [Volume; 2],
    lives: bool,
    /// Whether its end was reported to the tracker.
    end_reported: bool,
    /// Index in `histories`, if it was tracked.
    history: Option<usize>,
    /// Created before the last restart.
    is_old: bool,
}

impl KernelFlow {
    fn new(connection: CountedFlow, subject: u8, accounting: bool) -> KernelFlow {
        let counters = Default::default();
        KernelFlow {
            connection,
            subject,
            accounting,
            counters,
            lives: true,
            end_reported: false,
            history: None,
            is_old: false,
        }
    }
}

/// A tracked connection: its initial volume, and the last reported counters.
struct History {
    subject: u8,
    base: [Volume; 2],
    reported: Option<[Volume; 2]>,
    ended: bool,
}

struct World {
    bounds: [usize; 2],
    subjects: Vec<Arc<Subject>>,
    entries: Vec<KernelFlow>,
    milliseconds: i64,
    latest: i64,
    tracker: Tracker,
    windows: Windows,
    /// Since the last restart.
    histories: Vec<History>,
    tracked: HashMap<ConnectionId, usize>,
    denied: u64,
    closed: Vec<Arc<FlowRecord>>,
}

impl World {
    fn new(bounds: [usize; 2]) -> World {
        World {
            bounds,
            subjects: (0..SUBJECTS).map(subject).collect(),
            entries: Vec::new(),
            milliseconds: 0,
            latest: 0,
            tracker: Tracker::new(bounds[0], 1_000),
            windows: Windows::new("worker-1".into(), bounds[1]),
            histories: Vec::new(),
            tracked: HashMap::new(),
            denied: 0,
            closed: Vec::new(),
        }
    }

    fn now(&self) -> Timestamp {
        at(self.milliseconds)
    }

    fn pick(&self, pick: usize, lives: bool) -> Option<usize> {
        let candidates: Vec<usize> =
            (0..self.entries.len()).filter(|index| self.entries[*index].lives == lives).collect();
        candidates.get(pick.checked_rem(candidates.len())?).copied()
    }

    fn counters(&self, index: usize) -> Option<[Volume; 2]> {
        let entry = &self.entries[index];
        entry.accounting.then_some(entry.counters)
    }

    /// Connection as in a NEW event (`volume` is `None`) or in a line of a listing.
    fn begin(&mut self, index: usize, volume: Option<[Volume; 2]>, base: Option<[Volume; 2]>) {
        let entry = &self.entries[index];
        let connection = CountedFlow { volume, ..entry.connection.clone() };
        let (id, number, now) = (connection.id, entry.subject, self.now());
        let before = self.tracker.ledger().started;
        let subject = Arc::clone(&self.subjects[usize::from(number)]);
        self.tracker.begin(&connection, subject, base, now, &mut self.windows);
        if self.tracker.ledger().started > before {
            self.tracked.insert(id, self.histories.len());
            self.entries[index].history = Some(self.histories.len());
            // The volume from before the agent started is not a report.
            let reported = volume.filter(|_| base.is_none());
            let base = base.unwrap_or_default();
            self.histories.push(History { subject: number, base, reported, ended: false });
        } else if self.tracker.subject(&id).is_some() {
            self.report(&id, volume);
        }
    }

    fn report(&mut self, id: &ConnectionId, volume: Option<[Volume; 2]>) -> usize {
        let history = self.tracked[id];
        self.histories[history].reported = volume.or(self.histories[history].reported);
        history
    }

    fn is_tracked(&self, index: usize) -> bool {
        let KernelFlow { connection, history, .. } = &self.entries[index];
        let tracked = self.tracker.subject(&connection.id).and_then(|_| self.tracked.get(&connection.id));
        tracked.is_some() && tracked == history.as_ref()
    }

    /// Connection as in its end event.
    fn ended(&self, index: usize) -> CountedFlow {
        CountedFlow { volume: self.counters(index), ..self.entries[index].connection.clone() }
    }

    fn end(&mut self, index: usize) {
        let (ended, now, was_tracked) = (self.ended(index), self.now(), self.is_tracked(index));
        assert_eq!(self.tracker.end(&ended, now, &mut self.windows), was_tracked);
        self.entries[index].end_reported = true;
        if was_tracked {
            let history = self.report(&ended.id, ended.volume);
            self.histories[history].ended = true;
            self.tracked.remove(&ended.id);
        }
    }

    /// End event of a connection whose beginning is unknown.
    fn record_ended(&mut self, index: usize) {
        let (ended, now, number) = (self.ended(index), self.now(), self.entries[index].subject);
        let subject = Arc::clone(&self.subjects[usize::from(number)]);
        assert!(self.tracker.record_ended(&ended, &subject, None, now, &mut self.windows));
        let entry = &mut self.entries[index];
        (entry.end_reported, entry.history) = (true, Some(self.histories.len()));
        let base = Default::default();
        self.histories.push(History { subject: number, base, reported: ended.volume, ended: true });
    }

    fn deliver_end(&mut self, index: usize, event: Delivery) {
        self.entries[index].lives = false;
        match event {
            Delivery::Lost => return,
            Delivery::Once | Delivery::Twice if !self.is_tracked(index) => self.record_ended(index),
            Delivery::Once | Delivery::Twice => self.end(index),
        }
        if event == Delivery::Twice {
            self.end(index);
            self.repeat_end(index);
        }
    }

    /// End event of a connection that may count as lost and whose ID may have been reused.
    fn deliver_late_end(&mut self, index: usize) {
        let KernelFlow { history, is_old, .. } = self.entries[index];
        match history {
            _ if self.is_tracked(index) => self.end(index),
            Some(_) => {
                self.end(index);
                self.repeat_end(index);
            }
            // The agent ignores the end of a connection that was created before the agent started.
            None if is_old => {}
            None => self.record_ended(index),
        }
    }

    /// Repeats an end event as if the beginning of the connection were unknown.
    fn repeat_end(&mut self, index: usize) {
        let (ended, now) = (self.ended(index), self.now());
        let subject = Arc::clone(&self.subjects[usize::from(self.entries[index].subject)]);
        assert!(!self.tracker.record_ended(&ended, &subject, None, now, &mut self.windows));
    }

    fn list(&mut self, ends: &[usize], finishes: bool) {
        let lines: Vec<(usize, Option<[Volume; 2]>)> = (0..self.entries.len())
            .filter(|index| self.entries[*index].lives)
            .map(|index| (index, self.counters(index)))
            .collect();
        self.tracker.begin_listing();
        for pick in ends {
            if let Some(index) = self.pick(*pick, true) {
                self.deliver_end(index, Delivery::Once);
            }
        }
        for (index, volume) in lines {
            let listed = CountedFlow { volume, ..self.entries[index].connection.clone() };
            let now = self.now();
            if !self.tracker.measure(&listed, now, &mut self.windows) {
                self.begin(index, volume, None);
            } else if self.is_tracked(index) {
                self.report(&listed.id, volume);
            }
        }
        if finishes {
            let now = self.now();
            self.tracker.finish_listing(now, &mut self.windows);
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Open { subject, accounting, event } => {
                let made = Some(at(1_000_000 + 1000 * self.entries.len() as i64));
                let connection = connection(self.entries.len() as u16, made);
                self.open(KernelFlow::new(connection, *subject, *accounting), *event);
            }
            Op::Traffic { pick, packets } => {
                if let Some(index) = self.pick(*pick, true) {
                    for (counter, packets) in self.entries[index].counters.iter_mut().zip(packets) {
                        let packets = u64::from(*packets);
                        *counter += Volume { packets, bytes: packets * 1_400 };
                    }
                }
            }
            Op::Close { pick, event } => {
                if let Some(index) = self.pick(*pick, true) {
                    self.deliver_end(index, *event);
                }
            }
            Op::LateEnd { pick } => {
                let waiting: Vec<usize> = (0..self.entries.len())
                    .filter(|index| !self.entries[*index].lives && !self.entries[*index].end_reported)
                    .collect();
                if let Some(place) = pick.checked_rem(waiting.len()) {
                    self.deliver_late_end(waiting[place]);
                }
            }
            Op::Reuse { pick, event } => {
                if let Some(index) = self.pick(*pick, false) {
                    let id = self.entries[index].connection.id;
                    if self.entries.iter().any(|entry| entry.lives && entry.connection.id == id) {
                        return;
                    }
                    let made = Some(at(1_000_000 + 1000 * self.entries.len() as i64));
                    let connection = CountedFlow { started: made, ..self.entries[index].connection.clone() };
                    let (subject, accounting) = (self.entries[index].subject, self.entries[index].accounting);
                    self.open(KernelFlow::new(connection, subject, accounting), *event);
                }
            }
            Op::Listing { ends, finishes } => self.list(ends, *finishes),
            Op::Denied { subject, packets } => {
                let now = self.now();
                self.windows.denied(&self.subjects[usize::from(*subject)], u64::from(*packets), now);
                self.denied += u64::from(*packets);
            }
            Op::Wait { milliseconds } => self.milliseconds += i64::from(*milliseconds),
            Op::Jump { seconds } => self.milliseconds += seconds * 1_000,
            Op::CloseWindows => self.close_windows(),
            Op::Restart => self.restart(),
        }
        self.latest = self.latest.max(self.milliseconds);
    }

    fn open(&mut self, entry: KernelFlow, event: Delivery) {
        self.entries.push(entry);
        let times = match event {
            Delivery::Lost => 0,
            Delivery::Once => 1,
            Delivery::Twice => 2,
        };
        for _ in 0..times {
            self.begin(self.entries.len() - 1, None, None);
        }
    }

    fn close_windows(&mut self) {
        let now = self.now();
        let records = self.windows.close(now, &self.tracker);
        let open = self.windows.open_records(now, &self.tracker);
        let quiet = open.iter().all(|record| {
            let Connections { started, ended, live: _, lost } = record.connections;
            (started, ended, lost) == (0, 0, 0)
        });
        if let Some(newest) = records.last().map(|record| record.window)
            && quiet
            && self.windows.dropped_records() == DroppedRecords::default()
        {
            let live: u64 =
                records.iter().filter(|record| record.window == newest).map(|record| record.connections.live).sum();
            assert_eq!(live, self.tracker.ledger().live, "live in the last window");
        }
        self.closed.extend(records);
    }

    /// Restarts the agent: existing connections were created before it.
    fn restart(&mut self) {
        self.check_life();
        self.tracker = Tracker::new(self.bounds[0], 1_000);
        self.windows = Windows::new("worker-1".into(), self.bounds[1]);
        self.histories.clear();
        self.tracked.clear();
        self.denied = 0;
        self.closed.clear();
        for index in 0..self.entries.len() {
            (self.entries[index].history, self.entries[index].is_old) = (None, true);
            if self.entries[index].lives {
                let base = self.counters(index);
                self.begin(index, base, base);
            }
        }
    }

    /// Closes all windows and compares their sums with the observations since the last restart.
    fn check_life(&mut self) {
        self.milliseconds = self.latest + 60_000;
        self.latest = self.milliseconds;
        self.close_windows();
        let ledger = self.tracker.ledger();
        let dropped = self.windows.dropped_records();
        let sum = |part: fn(&FlowRecord) -> u64| -> u64 { self.closed.iter().map(|record| part(record)).sum() };

        assert_eq!(ledger.started, self.histories.len() as u64);
        assert_eq!(ledger.ended, self.histories.iter().filter(|history| history.ended).count() as u64);
        assert_eq!(sum(|record| record.connections.started) + dropped.connections.started, ledger.started);
        assert_eq!(sum(|record| record.connections.ended) + dropped.connections.ended, ledger.ended);
        assert_eq!(sum(|record| record.connections.lost) + dropped.connections.lost, ledger.lost);
        assert_eq!(sum(|record| record.denied_packets) + dropped.denied_packets, self.denied);

        let mut expected: BTreeMap<Arc<FlowKey>, [Volume; 2]> = BTreeMap::new();
        for History { subject, base, reported, ended: _ } in &self.histories {
            if let Some(reported) = reported {
                let key = &self.subjects[usize::from(*subject)].key;
                let volume = expected.entry(Arc::clone(key)).or_default();
                for direction in 0..2 {
                    volume[direction] += reported[direction] - base[direction];
                }
            }
        }
        let mut recorded: BTreeMap<Arc<FlowKey>, [Volume; 2]> = BTreeMap::new();
        for record in &self.closed {
            assert_eq!(record.sent.is_some(), record.received.is_some());
            if let (Some(sent), Some(received)) = (record.sent, record.received) {
                let volume = recorded.entry(Arc::clone(&record.key)).or_default();
                volume[0] += sent;
                volume[1] += received;
            }
        }
        if dropped == DroppedRecords::default() {
            assert_eq!(recorded, expected, "volume of each key");
            self.check_chain();
        }
        let total = |volumes: &BTreeMap<Arc<FlowKey>, [Volume; 2]>, direction: usize| -> Volume {
            volumes.values().map(|volume| volume[direction]).sum()
        };
        assert_eq!(total(&recorded, 0) + dropped.sent, total(&expected, 0));
        assert_eq!(total(&recorded, 1) + dropped.received, total(&expected, 1));
        self.check_windows();
    }

    /// For each key, the connections live at the end of a window were live at the end of the previous one or began in
    /// it.
    fn check_chain(&self) {
        let mut windows: BTreeMap<Timestamp, HashMap<&FlowKey, Connections>> = BTreeMap::new();
        for record in &self.closed {
            windows.entry(record.window).or_default().insert(&record.key, record.connections);
        }
        let mut before: HashMap<&FlowKey, u64> = HashMap::new();
        for records in windows.values() {
            for subject in &self.subjects {
                let live = before.entry(&subject.key).or_insert(0);
                let connections = records.get(&*subject.key).copied().unwrap_or_default();
                assert_eq!(*live + connections.started, connections.live + connections.ended + connections.lost);
                *live = connections.live;
            }
        }
    }

    /// Windows close once, in order and within their limits.
    fn check_windows(&self) {
        for pair in self.closed.windows(2) {
            assert!((pair[0].window, &pair[0].key) < (pair[1].window, &pair[1].key));
        }
        let mut counts: HashMap<Timestamp, usize> = HashMap::new();
        for record in &self.closed {
            assert!(record.window <= record.first && record.first <= record.last);
            assert!(record.last <= record.window_end());
            assert_eq!(record.window.as_second() % WINDOW_SECONDS, 0);
            *counts.entry(record.window).or_default() += 1;
        }
        assert!(counts.values().all(|count| *count <= self.bounds[1]));
    }

    fn check_ledger(&self) {
        let ConnectionLedger { started, ended, live, lost, untracked: _ } = self.tracker.ledger();
        assert_eq!(started, ended + live + lost, "ledger");
        assert!(live <= self.bounds[0] as u64);
    }
}

fn run(bounds: [usize; 2], ops: &[Op]) {
    let mut world = World::new(bounds);
    for op in ops {
        world.apply(op);
        world.check_ledger();
    }
    world.check_life();
    let lives = world.entries.iter().filter(|entry| entry.lives).count();
    for _ in 0..2 {
        world.list(&[], true);
    }
    if lives <= bounds[0] {
        // The capacity used by ended connections was freed only now.
        world.list(&[], true);
        assert_eq!(world.tracker.ledger().live, lives as u64, "listings lead to what the kernel has");
    }
    world.check_ledger();
    world.check_life();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn sums_over_windows_equal_observations(ops in vec(op(), 0..120)) {
        run([1_000, 1_000], &ops);
    }

    #[test]
    fn sums_hold_when_bounds_are_reached(bounds in [0..6usize, 0..4usize], ops in vec(op(), 0..120)) {
        run(bounds, &ops);
    }
}
