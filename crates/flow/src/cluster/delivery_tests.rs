//! Delivery from nodes to the aggregator while messages are lost or repeated, processes restart and memory runs out.
//!
//! Every record is received once: it is in the store, or counted as evicted or refused. A connection that both nodes report
//! is counted once by the join.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::{
    Acceptance, BatchHead, ClusterCounts, ClusterRecord, ClusterStore, Inbox, InboxCounts, RefusedRecord, join,
};
use crate::testing::{at, record_of, subject};
use crate::{Connections, EndSample, Endpoint, FlowKey, FlowRecord, FlowVerdict, RecordBatch, Ring};

/// Few, so that batches are cut.
const MOST: usize = 3;

struct Agent {
    node: &'static str,
    epoch: u64,
    ring: Ring,
    /// The record that is sent next.
    next: u64,
}

#[derive(Debug, Clone)]
enum Step {
    /// Connections from a pod of `n1` to one of `n2`, and which of the two nodes report them.
    Connect { reporters: [bool; 2], count: u64 },
    /// A batch is sent. Its request or its answer may be lost, and the request may arrive again at any later time.
    Send { agent: usize, arrives: bool, is_answered: bool, repeats: bool },
    /// A request that arrived before arrives again.
    Repeat { index: usize },
    /// An agent ends with all that it has not sent, and another begins.
    RestartAgent { agent: usize },
    /// The receiver loses all that it has.
    RestartReceiver,
}

/// Node and number: two nodes report the connections of one number.
type RecordId = (Arc<str>, u64);

struct Receiver {
    inbox: Inbox,
    store: ClusterStore,
    /// Records that the inbox accepted, with their windows and whether the store took them.
    accepted: BTreeMap<RecordId, (Timestamp, bool)>,
    /// For each agent epoch with received records: their number, and the newest reported sequence number.
    received: BTreeMap<(Arc<str>, u64), (u64, u64)>,
    /// The latest epoch of each agent, which may still send its missing records.
    last: BTreeMap<Arc<str>, u64>,
    /// Milliseconds. Messages arrive one after the other.
    now: i64,
}

impl Receiver {
    fn new(most_bytes: usize) -> Receiver {
        Receiver {
            inbox: Inbox::new(),
            store: ClusterStore::new(most_bytes),
            accepted: BTreeMap::new(),
            received: BTreeMap::new(),
            last: BTreeMap::new(),
            now: 0,
        }
    }

    fn receive(&mut self, head: &BatchHead, records: &[Arc<FlowRecord>]) -> u64 {
        self.now += 1;
        let Acceptance { skip, acknowledged } = self.inbox.accept(head, at(self.now)).unwrap();
        let life = (Arc::clone(&head.node), head.epoch);
        if skip < head.count || self.received.contains_key(&life) {
            self.last.insert(Arc::clone(&head.node), head.epoch);
            let (received, newest) = self.received.entry(life).or_default();
            *received += head.count - skip;
            *newest = head.newest.max(*newest);
        }
        for record in records.iter().skip(usize::try_from(skip).unwrap()) {
            let is_stored = match self.store.insert(FlowRecord::clone(record), at(NOW)) {
                Ok(()) => true,
                Err(refused) => {
                    assert_eq!(refused, RefusedRecord::TooOld);
                    assert!(record.window < self.store.left_before());
                    false
                }
            };
            let repeated = self.accepted.insert(id_of(record), (record.window, is_stored));
            assert_eq!(repeated, None, "accepted twice");
        }
        acknowledged
    }

    /// Records of ended epochs that were reported and not received.
    fn unreceived(&self) -> u64 {
        let ended = self.received.iter().filter(|((node, epoch), _)| self.last[node] != *epoch);
        ended.map(|(_, (received, newest))| newest - received).sum()
    }

    /// Asserts that the accepted records are those of the store and those counted as evicted, without a window of which only
    /// a part is in memory.
    fn check(&self) {
        let is_evicted = |window: Timestamp| window < self.store.left_before();
        let mut kept = BTreeMap::<Timestamp, Vec<RecordId>>::new();
        let mut evicted = 0;
        for (id, (window, is_stored)) in &self.accepted {
            match (is_stored, is_evicted(*window)) {
                (true, false) => kept.entry(*window).or_default().push(id.clone()),
                (true, true) => evicted += 1,
                (false, is_evicted) => assert!(is_evicted, "refused, though its window is in memory"),
            }
        }
        assert_eq!(self.store.windows().collect::<Vec<_>>(), kept.keys().copied().collect::<Vec<_>>());
        for (window, ids) in kept {
            let records = self.store.records(window);
            let mut stored: Vec<RecordId> = records.iter().map(id_of).collect();
            stored.sort();
            assert_eq!(stored, ids, "records of a window");
            check_join(&records);
        }
        let stored = self.accepted.values().filter(|(_, is_stored)| *is_stored).count() as u64;
        assert_eq!(self.store.counts(), ClusterCounts { kept: stored, left_by_age: 0, left_by_bytes: evicted });
    }
}

/// Asserts that each edge is one record with the verdicts of the nodes that report it. Its sum is that of the source's node if
/// that reports, and of the destination's otherwise.
fn check_join(records: &[FlowRecord]) {
    let mut sums = BTreeMap::<Endpoint, [Option<u64>; 2]>::new();
    for record in records {
        let side = usize::from(&*record.node != NODES[0]);
        *sums.entry(record.key.destination.clone()).or_default()[side].get_or_insert(0) += record.connections.started;
    }
    let joined = join(records);
    assert_eq!(joined.len(), sums.len(), "one record for each edge");
    for ClusterRecord { record, source_verdict, destination_verdict, seen_by } in joined {
        let [at_source, at_destination] = sums[&record.key.destination];
        assert_eq!(record.connections.started, at_source.or(at_destination).unwrap());
        assert_eq!(source_verdict, at_source.map(|_| FlowVerdict::Allowed));
        assert_eq!(destination_verdict, at_destination.map(|_| destination_verdict_of(&record.key)));
        assert_eq!(
            [seen_by.source.len(), seen_by.destination.len()],
            [at_source, at_destination].map(|sum| usize::from(sum.is_some()))
        );
    }
}

/// The nodes of sources and of destinations.
const NODES: [&str; 2] = ["n1", "n2"];

/// Milliseconds at which records are received, after all windows of a case.
const NOW: i64 = 200 * 15_000;

/// Memory budgets of the store: all records of a case, a few windows, less than one.
const BUDGETS: [usize; 4] = [64 << 20, 16_384, 8_192, 1_024];

/// Bytes of a ring with a few records.
const SMALL_RING: usize = 16_384;

fn id_of(record: &FlowRecord) -> RecordId {
    (Arc::clone(&record.node), record.connections.started)
}

/// The destination's node denies the connections of one of two edges.
fn destination_verdict_of(key: &FlowKey) -> FlowVerdict {
    if key.destination == subject(0).key.destination { FlowVerdict::Denied } else { FlowVerdict::Allowed }
}

/// The record of a node about the connections of a number; side 0 is the source's. Six numbers share a window, and some belong
/// to the window after it, so that records arrive out of the order of windows.
fn report(side: usize, number: u64) -> FlowRecord {
    let window = i64::try_from(number / 6 + number % 5 / 4).unwrap();
    let record = record_of(NODES[side], window);
    let subject = subject(u8::from(number.is_multiple_of(2)));
    let mut key = FlowKey::clone(&subject.key);
    (key.egress.enforced_here, key.ingress.enforced_here) = (side == 0, side == 1);
    if side == 1 {
        key.verdict = destination_verdict_of(&key);
    }
    let sources = EndSample { nodes: [NODES[0].into()].into(), ..EndSample::clone(&record.sources) };
    FlowRecord {
        key: Arc::new(key),
        sources: Arc::new(sources),
        connections: Connections { started: number, ..Connections::default() },
        ..record
    }
}

impl Agent {
    fn batch(&self) -> (BatchHead, Vec<Arc<FlowRecord>>) {
        let RecordBatch { first, oldest, newest, records } = self.ring.batch_from(self.next, MOST);
        let head =
            BatchHead { node: self.node.into(), epoch: self.epoch, first, oldest, newest, count: records.len() as u64 };
        (head, records)
    }

    /// Sends the next batch. Returns it, in case it arrives again.
    fn send(&mut self, receiver: &mut Receiver, arrives: bool, is_answered: bool) -> (BatchHead, Vec<Arc<FlowRecord>>) {
        let (head, records) = self.batch();
        if arrives {
            let acknowledged = receiver.receive(&head, &records);
            if is_answered {
                self.next = acknowledged + 1;
            }
        }
        (head, records)
    }
}

fn step() -> impl Strategy<Value = Step> {
    let agent = || 0usize..2;
    prop_oneof![
        4 => (any::<[bool; 2]>(), 1u64..8).prop_map(|(reporters, count)| Step::Connect { reporters, count }),
        8 => (agent(), any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(agent, arrives, is_answered, repeats)| Step::Send { agent, arrives, is_answered, repeats }),
        2 => (0usize..8).prop_map(|index| Step::Repeat { index }),
        1 => agent().prop_map(|agent| Step::RestartAgent { agent }),
        1 => Just(Step::RestartReceiver),
    ]
}

proptest! {
    #[test]
    fn each_record_is_received_once(steps in vec(step(), 0..60), most_bytes in select(&BUDGETS[..])) {
        let mut agents = NODES.map(|node| Agent { node, epoch: 1, ring: Ring::default(), next: 1 });
        let mut receiver = Receiver::new(most_bytes);
        let (mut connections, mut reported) = (0, 0);
        // The records of running agents.
        let mut kept: [Vec<RecordId>; 2] = [vec![], vec![]];
        let mut in_flight: Vec<(BatchHead, Vec<Arc<FlowRecord>>)> = Vec::new();
        let mut was_restarted = false;
        for step in steps {
            match step {
                Step::Connect { reporters, count } => {
                    for _ in 0..count {
                        connections += 1;
                        for (side, _) in reporters.into_iter().enumerate().filter(|(_, reports)| *reports) {
                            let record = report(side, connections);
                            kept[side].push(id_of(&record));
                            agents[side].ring.push([Arc::new(record)]);
                            reported += 1;
                        }
                    }
                }
                Step::Send { agent, arrives, is_answered, repeats } => {
                    let sent = agents[agent].send(&mut receiver, arrives, is_answered);
                    in_flight.extend(Some(sent).filter(|_| repeats && in_flight.len() < 8));
                }
                Step::Repeat { index } => {
                    if let Some((head, records)) = in_flight.get(index) {
                        receiver.receive(head, records);
                    }
                }
                Step::RestartAgent { agent } => {
                    let this = &mut agents[agent];
                    // The receiver distinguishes four epochs.
                    if this.epoch < 4 {
                        *this = Agent { node: this.node, epoch: this.epoch + 1, ring: Ring::default(), next: 1 };
                        kept[agent].clear();
                    }
                }
                Step::RestartReceiver => {
                    receiver = Receiver::new(most_bytes);
                    was_restarted = true;
                }
            }
            receiver.check();
        }
        // Once messages arrive again, all that agents have is received, whatever was received before.
        for agent in &mut agents {
            while agent.next <= agent.ring.counts().pushed || {
                let (head, records) = agent.batch();
                receiver.receive(&head, &records) + 1 != agent.next
            } {
                let (head, records) = agent.batch();
                agent.next = receiver.receive(&head, &records) + 1;
            }
        }
        receiver.check();
        for id in kept.iter().flatten() {
            prop_assert!(receiver.accepted.contains_key(id), "record {id:?} was lost");
        }
        // Missing records were counted, if the agent reported them before it ended.
        let missing = reported - receiver.accepted.len() as u64;
        receiver.inbox.expire(at(receiver.now + 60_000));
        prop_assert_eq!(receiver.inbox.counts().missed, receiver.unreceived());
        prop_assert!(was_restarted || receiver.unreceived() <= missing);
        prop_assert_eq!(receiver.inbox.counts().received, receiver.accepted.len() as u64);
    }
    /// Rings of a few records overflow: each record is received once or counted as missed.
    #[test]
    fn records_that_leave_rings_are_missed(steps in vec(step(), 0..60)) {
        let mut agents = NODES.map(|node| Agent { node, epoch: 1, ring: Ring::new(SMALL_RING), next: 1 });
        let mut receiver = Receiver::new(BUDGETS[0]);
        let mut connections = 1;
        // Records from before the first batch of a node are not missed.
        for (side, agent) in agents.iter_mut().enumerate() {
            agent.ring.push([Arc::new(report(side, connections))]);
            let (head, records) = agent.batch();
            agent.next = receiver.receive(&head, &records) + 1;
        }
        let mut in_flight: Vec<(BatchHead, Vec<Arc<FlowRecord>>)> = Vec::new();
        for step in steps {
            match step {
                Step::Connect { reporters, count } => {
                    for _ in 0..count {
                        connections += 1;
                        for (side, _) in reporters.into_iter().enumerate().filter(|(_, reports)| *reports) {
                            agents[side].ring.push([Arc::new(report(side, connections))]);
                        }
                    }
                }
                Step::Send { agent, arrives, is_answered, repeats } => {
                    let sent = agents[agent].send(&mut receiver, arrives, is_answered);
                    in_flight.extend(Some(sent).filter(|_| repeats && in_flight.len() < 8));
                }
                Step::Repeat { index } => {
                    if let Some((head, records)) = in_flight.get(index) {
                        receiver.receive(head, records);
                    }
                }
                Step::RestartAgent { .. } | Step::RestartReceiver => {}
            }
        }
        for agent in &mut agents {
            while agent.next <= agent.ring.counts().pushed {
                let (head, records) = agent.batch();
                agent.next = receiver.receive(&head, &records) + 1;
            }
        }
        receiver.check();
        let pushed: u64 = agents.iter().map(|agent| agent.ring.counts().pushed).sum();
        let InboxCounts { received, missed, repeated: _ } = receiver.inbox.counts();
        prop_assert_eq!(received, receiver.accepted.len() as u64);
        prop_assert_eq!(received + missed, pushed);
    }
}

#[test]
fn small_ring_overflows() {
    let mut ring = Ring::new(SMALL_RING);
    ring.push((1..20).map(|number| Arc::new(report(0, number))));
    assert!((2..15).contains(&ring.records().len()), "{}", ring.records().len());
}
