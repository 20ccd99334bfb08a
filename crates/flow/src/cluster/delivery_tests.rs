//! Property tests of delivery with lost and repeated messages and restarts: receivers hold exactly the records of the
//! nodes.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Acceptance, BatchHead, ClusterStore, Inbox};
use crate::testing::{at, record_of};
use crate::{Connections, FlowRecord, RecordBatch, Ring};

/// Small, so that batches are split.
const MOST: usize = 3;

struct Agent {
    node: &'static str,
    epoch: u64,
    ring: Ring,
    /// Sequence number of the next record to send.
    next: u64,
}

#[derive(Debug, Clone)]
enum Step {
    /// The agents create this many records.
    Make { agent: usize, count: u64 },
    /// Sends a batch. Its request or its response may be lost, and the request may be redelivered at any later time.
    Send { agent: usize, arrives: bool, is_answered: bool, repeats: bool },
    /// Redelivers an earlier request.
    Repeat { index: usize },
    /// An agent restarts and loses its unsent records.
    RestartAgent { agent: usize },
    /// The receiver restarts and loses its state.
    RestartReceiver,
}

struct Receiver {
    inbox: Inbox,
    store: ClusterStore,
    /// By node and epoch: number of received records, and the newest sequence number that a batch reported.
    heard: BTreeMap<(Arc<str>, u64), (u64, u64)>,
    /// Latest epoch of each agent, whose missing records may still be sent.
    last: BTreeMap<Arc<str>, u64>,
    /// Clock in milliseconds. No two messages arrive at the same time.
    now: i64,
}

impl Receiver {
    fn new() -> Receiver {
        Receiver {
            inbox: Inbox::new(),
            store: ClusterStore::new(64 << 20),
            heard: BTreeMap::new(),
            last: BTreeMap::new(),
            now: 0,
        }
    }

    fn receive(&mut self, head: &BatchHead, records: &[Arc<FlowRecord>]) -> u64 {
        self.now += 1;
        let Acceptance { skip, acknowledged } = self.inbox.accept(head, at(self.now)).unwrap();
        let life = (Arc::clone(&head.node), head.epoch);
        if skip < head.count || self.heard.contains_key(&life) {
            self.last.insert(Arc::clone(&head.node), head.epoch);
            let (received, newest) = self.heard.entry(life).or_default();
            *received += head.count - skip;
            *newest = head.newest.max(*newest);
        }
        for record in records.iter().skip(usize::try_from(skip).unwrap()) {
            self.store.insert(FlowRecord::clone(record), at(0)).unwrap();
        }
        acknowledged
    }

    /// Records of ended epochs that batches reported but that were not received.
    fn unreceived(&self) -> u64 {
        let ended = self.heard.iter().filter(|((node, epoch), _)| self.last[node] != *epoch);
        ended.map(|(_, (received, newest))| newest - received).sum()
    }

    /// Number of times each record was received, by record number.
    fn received(&self) -> BTreeMap<u64, u64> {
        let mut received = BTreeMap::new();
        for window in self.store.windows() {
            for record in self.store.records(window) {
                *received.entry(record.connections.started).or_insert(0) += 1;
            }
        }
        received
    }
}

impl Agent {
    fn batch(&self) -> (BatchHead, Vec<Arc<FlowRecord>>) {
        let RecordBatch { first, oldest, newest, records } = self.ring.batch_from(self.next, MOST);
        let head =
            BatchHead { node: self.node.into(), epoch: self.epoch, first, oldest, newest, count: records.len() as u64 };
        (head, records)
    }
}

fn step() -> impl Strategy<Value = Step> {
    let agent = || 0usize..2;
    prop_oneof![
        4 => (agent(), 1u64..8).prop_map(|(agent, count)| Step::Make { agent, count }),
        8 => (agent(), any::<bool>(), any::<bool>(), any::<bool>())
            .prop_map(|(agent, arrives, is_answered, repeats)| Step::Send { agent, arrives, is_answered, repeats }),
        2 => (0usize..8).prop_map(|index| Step::Repeat { index }),
        1 => agent().prop_map(|agent| Step::RestartAgent { agent }),
        1 => Just(Step::RestartReceiver),
    ]
}

proptest! {
    #[test]
    fn each_record_is_received_once(steps in vec(step(), 0..60)) {
        let mut agents = ["n1", "n2"].map(|node| Agent { node, epoch: 1, ring: Ring::default(), next: 1 });
        let mut receiver = Receiver::new();
        // Records in the rings of the current agents, and records lost with earlier epochs.
        let (mut made, mut kept) = (0, [vec![], vec![]]);
        let mut in_flight: Vec<(BatchHead, Vec<Arc<FlowRecord>>)> = Vec::new();
        let mut was_restarted = false;
        for step in steps {
            match step {
                Step::Make { agent, count } => {
                    for _ in 0..count {
                        made += 1;
                        let connections = Connections { started: made, ..Connections::default() };
                        let record = FlowRecord { connections, ..record_of(agents[agent].node, i64::try_from(made % 3).unwrap()) };
                        agents[agent].ring.push([Arc::new(record)]);
                        kept[agent].push(made);
                    }
                }
                Step::Send { agent, arrives, is_answered, repeats } => {
                    let (head, records) = agents[agent].batch();
                    if arrives {
                        let acknowledged = receiver.receive(&head, &records);
                        if is_answered {
                            agents[agent].next = acknowledged + 1;
                        }
                    }
                    if repeats && in_flight.len() < 8 {
                        in_flight.push((head, records));
                    }
                }
                Step::Repeat { index } => {
                    if let Some((head, records)) = in_flight.get(index) {
                        receiver.receive(head, records);
                    }
                }
                Step::RestartAgent { agent } => {
                    let this = &mut agents[agent];
                    // The inbox tracks four epochs per agent.
                    if this.epoch < 4 {
                        *this = Agent { node: this.node, epoch: this.epoch + 1, ring: Ring::default(), next: 1 };
                        kept[agent].clear();
                    }
                }
                Step::RestartReceiver => {
                    receiver = Receiver::new();
                    was_restarted = true;
                }
            }
            prop_assert!(receiver.received().values().all(|times| *times == 1), "received twice");
        }
        // Once no more messages are lost, every record in the agents' rings is received, whatever was received before.
        for agent in &mut agents {
            while agent.next <= agent.ring.counts().pushed || {
                let (head, records) = agent.batch();
                receiver.receive(&head, &records) + 1 != agent.next
            } {
                let (head, records) = agent.batch();
                agent.next = receiver.receive(&head, &records) + 1;
            }
        }
        let received = receiver.received();
        prop_assert!(received.values().all(|times| *times == 1), "received twice");
        for number in kept.iter().flatten() {
            prop_assert!(received.contains_key(number), "record {number} was lost");
        }
        // Missing records are counted if a batch reported them before the agent ended.
        let missing = made - received.len() as u64;
        receiver.inbox.expire(at(receiver.now + 60_000));
        prop_assert_eq!(receiver.inbox.counts().missed, receiver.unreceived());
        prop_assert!(was_restarted || receiver.unreceived() <= missing);
        prop_assert_eq!(receiver.inbox.counts().received, received.len() as u64);
    }
}
