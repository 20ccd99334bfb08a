//! Receive positions of each agent, so that each record is counted once.
//!
//! An agent numbers its records and sends those after the last acknowledged one. A receiver with fewer records, because
//! it started later, acknowledges its own position, and the agent resumes there if its ring still has the records.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};

/// Limit of nodes with a position: twice the number that Kubernetes supports. Batches of further nodes are refused.
pub const MOST_NODES: usize = 10_000;

/// Epochs per agent with a position, so that a late batch of an earlier epoch is recognised.
const MOST_EPOCHS: usize = 4;

/// Silence after which an epoch counts as ended if there is a later one: a batch arrives within 30 s or not at all.
const ENDED_AFTER: SignedDuration = SignedDuration::from_secs(60);

/// Silence after which a node expires. By then no received record is left in its ring.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_hours(2);

/// Position of a batch in the ring of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchHead {
    pub node: Arc<str>,
    /// Start of the agent process. A later start has a greater number unless the clock was set back.
    pub epoch: u64,
    /// Sequence number of the first record.
    pub first: u64,
    /// Sequence number of the oldest record that the agent can still send.
    pub oldest: u64,
    /// Sequence number of the newest record of the agent.
    pub newest: u64,
    /// Number of records.
    pub count: u64,
}

/// Decision about a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acceptance {
    /// Number of records at the start of the batch to skip, because they were received before. All of them if the batch
    /// leaves a gap that has to be filled first.
    pub skip: u64,
    /// Last record received in this epoch. The agent resumes after it.
    pub acknowledged: u64,
}

/// Batch of a new node above the limit of nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("records of at most {MOST_NODES} nodes are received")]
pub struct TooManyNodes;

/// Records received and missed since the receiver started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InboxCounts {
    pub received: u64,
    /// Records received again and not counted twice.
    pub repeated: u64,
    /// Records of known nodes that were never received: they left the agent's ring, or the agent ended before it sent
    /// them. Monotonic.
    pub missed: u64,
}

/// Receive position of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeReport {
    pub node: Arc<str>,
    pub epoch: u64,
    pub acknowledged: u64,
    /// Records that were still unsent when the agent sent its last batch.
    pub behind: u64,
    pub last_reported: Timestamp,
    /// Records of the node that were never received. Monotonic while the node is known.
    pub missed: u64,
}

/// Receive positions of all agents.
#[derive(Debug, Default)]
pub struct Inbox {
    nodes: HashMap<Arc<str>, Node>,
    received: u64,
    repeated: u64,
    missed: u64,
}

#[derive(Debug)]
struct Node {
    missed: u64,
    /// Ordered by the time of the last received record, ascending.
    epochs: Vec<Epoch>,
}

#[derive(Debug)]
struct Epoch {
    epoch: u64,
    acknowledged: u64,
    newest: u64,
    /// Records after `acknowledged` that were counted as missed.
    missed: u64,
    last_reported: Timestamp,
}

impl Inbox {
    pub fn new() -> Inbox {
        Inbox::default()
    }

    /// Decides about a batch and records the new position. Must be called once per batch; the caller then counts the
    /// records after the first `skip`.
    ///
    /// # Errors
    /// If the node is unknown and the limit of nodes is reached.
    pub fn accept(&mut self, head: &BatchHead, now: Timestamp) -> Result<Acceptance, TooManyNodes> {
        let known_node = self.nodes.get(&head.node);
        let is_known = known_node.is_some();
        if !is_known && self.nodes.len() >= MOST_NODES {
            return Err(TooManyNodes);
        }
        let known = known_node.and_then(|node| node.epochs.iter().find(|known| known.epoch == head.epoch));
        let last = known.map_or(0, |epoch| epoch.acknowledged);
        let (known_newest, known_missed) = known.map_or((0, 0), |epoch| (epoch.newest, epoch.missed));
        let due = last.saturating_add(1).max(head.oldest);
        if let Some(known) = self.epoch_mut(head) {
            known.last_reported = now;
            known.newest = known.newest.max(head.newest);
        }
        // The agent can still send the records of the gap before this batch, or the batch is an empty heartbeat.
        if head.first > due || head.count == 0 {
            return Ok(Acceptance { skip: head.count, acknowledged: due - 1 });
        }
        let end = head.first.saturating_add(head.count);
        if end <= due {
            self.repeated += head.count;
            return Ok(Acceptance { skip: head.count, acknowledged: last.max(due - 1) });
        }
        let skip = due - head.first;
        self.repeated += skip;
        self.received += head.count - skip;
        // Records from before this receiver started are not missed.
        let left = if is_known { (due - last - 1).saturating_sub(known_missed) } else { 0 };
        self.missed += left;
        let node = self.nodes.entry(Arc::clone(&head.node)).or_insert_with(|| Node { missed: 0, epochs: Vec::new() });
        node.missed += left;
        node.epochs.retain(|known| known.epoch != head.epoch);
        let acknowledged = end - 1;
        // A late batch may report an older `newest` than an earlier arrival.
        let newest = head.newest.max(acknowledged).max(known_newest);
        let missed = known_missed.saturating_sub(acknowledged - last);
        node.epochs.push(Epoch { epoch: head.epoch, acknowledged, newest, missed, last_reported: now });
        if node.epochs.len() > MOST_EPOCHS {
            let unsent = node.epochs.remove(0).unsent();
            node.missed += unsent;
            self.missed += unsent;
        }
        Ok(Acceptance { skip, acknowledged })
    }

    fn epoch_mut(&mut self, head: &BatchHead) -> Option<&mut Epoch> {
        self.nodes.get_mut(&head.node)?.epochs.iter_mut().find(|known| known.epoch == head.epoch)
    }

    /// Counts the unsent records of ended agents as missed, and expires nodes after two hours of silence.
    pub fn expire(&mut self, now: Timestamp) {
        let missed = &mut self.missed;
        self.nodes.retain(|_, node| {
            let last_reported = node.latest().map(|epoch| epoch.last_reported);
            let has_ended = |epoch: &Epoch| {
                Some(epoch.last_reported) < last_reported && now.duration_since(epoch.last_reported) >= ENDED_AFTER
            };
            for epoch in node.epochs.iter_mut().filter(|epoch| has_ended(epoch)) {
                let unsent = epoch.unsent();
                epoch.missed += unsent;
                node.missed += unsent;
                *missed += unsent;
            }
            let is_kept =
                last_reported.is_some_and(|last_reported| now.duration_since(last_reported) < FORGOTTEN_AFTER);
            if !is_kept {
                *missed += node.epochs.iter().map(Epoch::unsent).sum::<u64>();
            }
            is_kept
        });
    }

    pub fn counts(&self) -> InboxCounts {
        InboxCounts { received: self.received, repeated: self.repeated, missed: self.missed }
    }

    /// Nodes that have sent a batch in the last two hours, in no particular order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeReport> {
        self.nodes.iter().map(|(name, node)| {
            let last = node.latest();
            NodeReport {
                node: Arc::clone(name),
                epoch: last.map_or(0, |epoch| epoch.epoch),
                acknowledged: last.map_or(0, |epoch| epoch.acknowledged),
                behind: last.map_or(0, Epoch::unsent),
                last_reported: last.map_or(Timestamp::MIN, |epoch| epoch.last_reported),
                missed: node.missed,
            }
        })
    }
}

impl Node {
    /// Epoch with the most recent batch.
    fn latest(&self) -> Option<&Epoch> {
        self.epochs.iter().max_by_key(|epoch| epoch.last_reported)
    }
}

impl Epoch {
    /// Records that were neither received nor counted as missed.
    fn unsent(&self) -> u64 {
        self.newest.saturating_sub(self.acknowledged + self.missed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::at;

    fn head(epoch: u64, first: u64, count: u64, oldest: u64) -> BatchHead {
        BatchHead { node: "n1".into(), epoch, first, oldest, newest: first + count - 1, count }
    }

    fn accepted(skip: u64, acknowledged: u64) -> Result<Acceptance, TooManyNodes> {
        Ok(Acceptance { skip, acknowledged })
    }

    #[test]
    fn repeated_records_are_counted_once() {
        let mut inbox = Inbox::new();
        assert_eq!(inbox.accept(&head(1, 1, 5, 1), at(0)), accepted(0, 5));
        assert_eq!(inbox.accept(&head(1, 1, 5, 1), at(0)), accepted(5, 5));
        assert_eq!(inbox.accept(&head(1, 4, 5, 1), at(0)), accepted(2, 8));
        assert_eq!(inbox.counts(), InboxCounts { received: 8, repeated: 7, missed: 0 });
    }

    #[test]
    fn new_receiver_has_the_agent_go_back() {
        let mut inbox = Inbox::new();
        assert_eq!(inbox.accept(&head(1, 90, 5, 40), at(0)), accepted(5, 39));
        assert_eq!(inbox.nodes().len(), 0, "nothing was received");
        assert_eq!(inbox.accept(&head(1, 40, 55, 40), at(0)), accepted(0, 94));
        assert_eq!(inbox.counts(), InboxCounts { received: 55, repeated: 0, missed: 0 });
    }

    #[test]
    fn batch_without_records_marks_its_agent_alive() {
        let mut inbox = Inbox::new();
        let empty = |next: u64| BatchHead { newest: next - 1, count: 0, ..head(1, next, 1, 1) };
        assert_eq!(inbox.accept(&empty(6), at(0)), accepted(0, 0), "the agent goes back");
        assert_eq!(inbox.accept(&head(1, 1, 5, 1), at(0)), accepted(0, 5));
        assert_eq!(inbox.accept(&empty(6), at(15_000)), accepted(0, 5));
        assert_eq!(inbox.nodes().next().unwrap().last_reported, at(15_000));
        assert_eq!(inbox.counts(), InboxCounts { received: 5, repeated: 0, missed: 0 });
    }

    #[test]
    fn records_that_left_the_agents_ring_are_missed() {
        let mut inbox = Inbox::new();
        assert_eq!(inbox.accept(&head(1, 1, 5, 1), at(0)), accepted(0, 5));
        assert_eq!(inbox.accept(&head(1, 9, 2, 9), at(0)), accepted(0, 10));
        assert_eq!(inbox.counts().missed, 3);
    }

    #[test]
    fn unsent_records_of_an_ended_agent_are_missed() {
        let mut inbox = Inbox::new();
        let more_to_come = BatchHead { newest: 9, ..head(1, 1, 5, 1) };
        assert_eq!(inbox.accept(&more_to_come, at(0)), accepted(0, 5));
        assert_eq!(inbox.counts().missed, 0);
        assert_eq!(inbox.nodes().next().unwrap().behind, 4);
        assert_eq!(inbox.accept(&head(2, 1, 3, 1), at(1_000)), accepted(0, 3));
        inbox.expire(at(59_999));
        assert_eq!(inbox.counts().missed, 0, "its last batch may arrive yet");
        inbox.expire(at(60_000));
        inbox.expire(at(75_000));
        assert_eq!(inbox.counts(), InboxCounts { received: 8, repeated: 0, missed: 4 });
        assert_eq!(inbox.nodes().next().unwrap().epoch, 2);
    }

    #[test]
    fn late_batch_of_an_ended_agent_is_received() {
        let mut inbox = Inbox::new();
        let more_to_come = BatchHead { newest: 9, ..head(1, 1, 5, 1) };
        assert_eq!(inbox.accept(&more_to_come, at(0)), accepted(0, 5));
        assert_eq!(inbox.accept(&head(2, 1, 3, 1), at(1_000)), accepted(0, 3));
        assert_eq!(inbox.accept(&head(1, 6, 2, 1), at(30_000)), accepted(0, 7));
        assert_eq!(inbox.accept(&BatchHead { count: 0, ..head(2, 4, 1, 1) }, at(45_000)), accepted(0, 3));
        inbox.expire(at(90_000));
        assert_eq!(inbox.counts(), InboxCounts { received: 10, repeated: 0, missed: 2 });
        // Records counted as missed are not counted again.
        let with_more = BatchHead { newest: 11, ..head(1, 9, 1, 9) };
        assert_eq!(inbox.accept(&with_more, at(91_000)), accepted(0, 9));
        assert_eq!(inbox.accept(&head(2, 4, 1, 1), at(92_000)), accepted(0, 4));
        inbox.expire(at(200_000));
        assert_eq!(inbox.counts(), InboxCounts { received: 12, repeated: 0, missed: 4 }, "the tenth and the eleventh");
    }

    #[test]
    fn late_batch_keeps_the_newest_number() {
        let mut inbox = Inbox::new();
        let first = BatchHead { newest: 5, ..head(1, 1, 3, 1) };
        assert_eq!(inbox.accept(&first, at(0)), accepted(0, 3));
        // The batch was sent when the agent had four records.
        assert_eq!(inbox.accept(&head(1, 4, 1, 1), at(0)), accepted(0, 4));
        assert_eq!(inbox.accept(&head(2, 1, 1, 1), at(1_000)), accepted(0, 1));
        inbox.expire(at(60_000));
        assert_eq!(inbox.counts().missed, 1);
    }

    #[test]
    fn silent_nodes_make_room_for_others() {
        let mut inbox = Inbox::new();
        for number in 0..MOST_NODES {
            let head = BatchHead { node: format!("n{number}").into(), ..head(1, 1, 1, 1) };
            assert_eq!(inbox.accept(&head, at(0)), accepted(0, 1));
        }
        let further = BatchHead { node: "further".into(), ..head(1, 1, 1, 1) };
        assert_eq!(inbox.accept(&further, at(0)), Err(TooManyNodes));
        inbox.expire(at(2 * 3_600_000));
        assert_eq!(inbox.accept(&further, at(0)), accepted(0, 1));
    }
}
