//! Messages of the event loop to the flow thread: changes of the cluster state, commits and denied packets.
//!
//! The loop never waits for the thread. Changes that exceed the queue are kept up to a bound; beyond it the whole state
//! is sent once there is room again.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use policy::remote::RemoteChange;
use policy::{Attachment, AttachmentId, Cause, Change, ClusterRuleName, ClusterState, Direction};

use super::store::FlowStore;
use crate::api::drops::{DropEnd, NamedDrop};
use crate::reports::{FirstPacket, PacketFlow};

/// Capacity of the queue: some seconds of a busy node.
const MESSAGES_QUEUED: usize = 1024;

/// Maximum number of changes that wait for room in the queue. Beyond it a copy of the whole state is cheaper.
const MOST_MUTATIONS: usize = 16_384;

/// Shortest interval between copies of the whole state, which take some milliseconds in a large cluster.
const WHOLE_STATES_APART: Duration = Duration::from_secs(1);

/// One change of the cluster state.
#[derive(Debug, Clone)]
pub(crate) enum Mutation {
    Object(Change),
    Remote(RemoteChange),
    Attach(Attachment),
    Detach(AttachmentId),
    ReplaceAttachments(Vec<Attachment>),
    /// An address was learned for a domain name.
    Learn(Arc<str>, IpAddr),
    RemoveLearned(Arc<str>, IpAddr),
}

/// The delta between two states, or a whole state.
#[derive(Debug)]
pub(crate) enum Progress {
    State(Box<ClusterState>),
    Mutations(Vec<Mutation>),
}

/// An enforced state.
#[derive(Debug)]
pub(crate) struct EnforcedState {
    pub(crate) progress: Progress,
    /// Generation of its approvals.
    pub(crate) generation: u32,
    /// Times just before and just after the commit. Either state may have judged flows that began in between.
    pub(crate) before: Timestamp,
    pub(crate) after: Timestamp,
}

/// Denied packets of one flow, as in a drop event.
#[derive(Debug)]
pub(crate) struct DeniedPackets {
    pub(crate) source: DropEnd,
    pub(crate) destination: DropEnd,
    pub(crate) flow: PacketFlow,
    pub(crate) first: FirstPacket,
    pub(crate) cause: Cause,
    pub(crate) direction: Option<Direction>,
    pub(crate) by: DenyingPolicies,
    pub(crate) count: u64,
    pub(crate) at: Timestamp,
}

/// The policies behind a denial.
#[derive(Debug, Clone, Default)]
pub(crate) struct DenyingPolicies {
    /// Policies that isolate the pod, `namespace/name`, unless a rule denied.
    pub(crate) isolating: Vec<String>,
    /// The rule of a ClusterNetworkPolicy that denied.
    pub(crate) rule: Option<ClusterRuleName>,
    /// Rules of ClusterNetworkPolicies that passed the packets to the next tier.
    pub(crate) passed_by: Vec<ClusterRuleName>,
}

impl DeniedPackets {
    pub(crate) fn new(denial: &NamedDrop, flow: PacketFlow, first: FirstPacket, at: Timestamp) -> DeniedPackets {
        DeniedPackets {
            source: denial.source.clone(),
            destination: denial.destination.clone(),
            flow,
            first,
            cause: denial.cause,
            direction: denial.direction,
            by: DenyingPolicies {
                isolating: denial.policies.clone(),
                rule: denial.rule.clone(),
                passed_by: denial.passed_by.clone(),
            },
            count: denial.count,
            at,
        }
    }
}

#[derive(Debug)]
pub(crate) enum FeedMessage {
    Update(Box<EnforcedState>),
    Denied(Box<DeniedPackets>),
}

/// The present time by both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClockReading {
    pub(crate) monotonic: Instant,
    /// Flow records have wall-clock times.
    pub(crate) wall: Timestamp,
}

/// The sending end of the queue. It reads no clock.
pub(crate) struct FlowFeed {
    sender: SyncSender<FeedMessage>,
    mutations: Vec<Mutation>,
    /// The thread needs the whole state: at the start, and after changes were dropped.
    whole: bool,
    /// Generation of the last update that was sent.
    generation: Option<u32>,
    /// Times just before the oldest unsent commit, and just after the newest one.
    before: Option<Timestamp>,
    after: Option<Timestamp>,
    /// The queue was full; the whole state is not copied again before this time.
    whole_not_before: Option<Instant>,
    /// The flow thread has ended.
    has_ended: bool,
    store: Arc<FlowStore>,
}

pub(crate) fn feed(store: Arc<FlowStore>) -> (FlowFeed, Receiver<FeedMessage>) {
    let (sender, receiver) = sync_channel(MESSAGES_QUEUED);
    let feed = FlowFeed {
        sender,
        mutations: vec![],
        whole: true,
        generation: None,
        before: None,
        after: None,
        whole_not_before: None,
        has_ended: false,
        store,
    };
    (feed, receiver)
}

impl FlowFeed {
    /// Records a change of the state for the next update.
    pub(crate) fn record(&mut self, mutation: Mutation) {
        if self.whole {
            return;
        }
        self.mutations.push(mutation);
        if self.mutations.len() > MOST_MUTATIONS {
            (self.mutations, self.whole) = (vec![], true);
        }
    }

    /// Records the times just before and just after a commit.
    pub(crate) fn record_commit(&mut self, began: Timestamp, ended: Timestamp) {
        self.before.get_or_insert(began);
        self.after = Some(ended);
    }

    /// Publishes the enforced state: sends the delta since the last update, if there is room.
    pub(crate) fn publish(&mut self, state: &ClusterState, generation: u32, now: ClockReading) {
        if !self.whole && self.mutations.is_empty() && self.generation == Some(generation) {
            (self.before, self.after) = (None, None);
            return;
        }
        if self.has_ended {
            return;
        }
        if self.whole && self.whole_not_before.is_some_and(|at| now.monotonic < at) {
            return;
        }
        let progress = match self.whole {
            true => Progress::State(Box::new(state.clone())),
            false => Progress::Mutations(std::mem::take(&mut self.mutations)),
        };
        let after = self.after.take().unwrap_or(now.wall);
        let update = EnforcedState { progress, generation, before: self.before.take().unwrap_or(after), after };
        match self.sender.try_send(FeedMessage::Update(Box::new(update))) {
            Ok(()) => (self.whole, self.generation) = (false, Some(generation)),
            Err(TrySendError::Full(FeedMessage::Update(update))) => {
                (self.before, self.after) = (Some(update.before), Some(update.after));
                match update.progress {
                    Progress::State(_) => self.whole_not_before = Some(now.monotonic + WHOLE_STATES_APART),
                    Progress::Mutations(mutations) => self.mutations = mutations,
                }
            }
            // The thread has ended.
            Err(TrySendError::Full(FeedMessage::Denied(_)) | TrySendError::Disconnected(_)) => {
                (self.whole, self.has_ended) = (true, true);
            }
        }
    }

    pub(crate) fn denied(&mut self, packets: DeniedPackets) {
        let count = packets.count;
        if self.sender.try_send(FeedMessage::Denied(Box::new(packets))).is_err() {
            self.store.drop_denials(count);
        }
    }
}
