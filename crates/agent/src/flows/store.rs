//! The flow records of the node, for readers: those of the last hour, those of the open window, and new ones as their
//! windows close.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use ::delivery::{DeliveryFigures, DeliveryView};
use flow::{ConnectionLedger, FlowFilter, FlowRecord, RecordBatch, Ring, Tracker, Windows};
use jiff::Timestamp;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Maximum number of records that wait for a reader: those of one window. A slower reader loses the oldest.
const BEHIND: usize = MOST_RECORDS;

/// Maximum number of concurrent followers.
const FOLLOWERS: usize = 16;

/// Maximum number of tracked live connections: the usual `nf_conntrack_max` of a large node.
const MOST_CONNECTIONS: usize = 1 << 20;

/// Maximum number of distinct ends, ports and rules of live connections, about a kilobyte each. A pod that opens
/// connections to many ports has one for each.
const MOST_SUBJECTS: usize = 32_768;

/// Maximum number of records of one window.
const MOST_RECORDS: usize = 16_384;

/// Timeout of a reader that waits for a listing; then it gets the known records.
const LISTED_WITHIN: Duration = Duration::from_secs(1);

/// Timeout of the last close. Some listings take longer than [`LISTED_WITHIN`].
const FINISHED_WITHIN: Duration = Duration::from_millis(1500);

/// Flow records, written by the flow thread and read by clients of the API.
pub(crate) struct FlowStore {
    core: Mutex<Core>,
    sender: Sender<Arc<FlowRecord>>,
    followers: Arc<Semaphore>,
    /// Packets of drop events that were dropped, since the queue to the flow thread was full.
    dropped_denials: AtomicU64,
    /// Number of listings that readers have requested, and the last one that is complete.
    listings_requested: AtomicU64,
    listings_made: watch::Sender<u64>,
    /// Number of records that were pushed into the ring.
    closed: watch::Sender<u64>,
    /// Progress of the last close, at the end of the agent.
    last_close: watch::Sender<LastClose>,
    /// Metrics of the delivery to the aggregator, if enabled.
    delivery: OnceLock<DeliveryFigures>,
}

/// Progress of the close of the open window at the end of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastClose {
    NotRequested,
    Requested,
    Closed,
}

pub(crate) struct Core {
    pub(super) tracker: Tracker,
    pub(super) windows: Windows,
    pub(super) ring: Ring,
    pub(super) health: Health,
}

/// Health of the capture, on which the completeness of records depends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Health {
    /// When the thread subscribed to connection tracking; `None` while it is not subscribed.
    pub(crate) since: Option<Timestamp>,
    /// Events that the kernel dropped because the socket's buffer was full (`ENOBUFS`).
    pub(crate) lost_events: u64,
    /// Whether the kernel delivers end events reliably.
    pub(crate) reliable: bool,
    /// How often reliable delivery was switched off because connection tracking was nearly full.
    pub(crate) reliability_given_up: u64,
    /// Problems, as sentences for users.
    pub(crate) problems: Vec<String>,
}

/// A consistent snapshot of the figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FlowFigures {
    pub(crate) ledger: ConnectionLedger,
    pub(crate) health: Health,
    /// Time since which every record is kept; `None` without records.
    pub(crate) kept_since: Option<Timestamp>,
    pub(crate) records: usize,
    pub(crate) ring_bytes: usize,
    /// Records that were evicted from the ring before their hour was over, since it is bounded in bytes.
    pub(crate) evicted_records: u64,
    /// Observations without a record, since the records of a window are bounded.
    pub(crate) dropped_observations: u64,
    /// Records that were merged into one without a port, since their ends used many ports.
    pub(crate) folded_records: u64,
    /// Packets of drop events that are in no record, since the queue to the flow thread was full.
    pub(crate) dropped_denials: u64,
    /// `None` if records are not sent to an aggregator.
    pub(crate) delivery: Option<DeliveryView>,
}

/// Subscription to flow records.
pub(crate) struct FollowedFlows {
    filter: FlowFilter,
    past: VecDeque<Arc<FlowRecord>>,
    coming: Option<Receiver<Arc<FlowRecord>>>,
    _place: Option<OwnedSemaphorePermit>,
}

/// A line for a reader.
pub(crate) enum FlowItem {
    Record(Arc<FlowRecord>),
    /// Number of records that were skipped, since the reader was too slow.
    Lost(u64),
}

impl FlowStore {
    pub(crate) fn new(node: &str) -> FlowStore {
        let (sender, _) = channel(BEHIND);
        let core = Core {
            tracker: Tracker::new(MOST_CONNECTIONS, MOST_SUBJECTS),
            windows: Windows::new(node.into(), MOST_RECORDS),
            ring: Ring::new(flow::RING_BYTES),
            health: Health::default(),
        };
        FlowStore {
            core: Mutex::new(core),
            sender,
            followers: Arc::new(Semaphore::new(FOLLOWERS)),
            dropped_denials: AtomicU64::new(0),
            listings_requested: AtomicU64::new(0),
            listings_made: watch::Sender::new(0),
            closed: watch::Sender::new(0),
            last_close: watch::Sender::new(LastClose::NotRequested),
            delivery: OnceLock::new(),
        }
    }

    /// Requests a listing of connections from the flow thread, so that the open window includes those that began since
    /// the last listing. Waits for it, up to a timeout.
    pub(crate) async fn refresh(&self) {
        if self.core().health.since.is_none() {
            return;
        }
        let request = self.listings_requested.fetch_add(1, Ordering::Relaxed) + 1;
        let mut made = self.listings_made.subscribe();
        // On a timeout the records are older, which their timestamps show.
        drop(tokio::time::timeout(LISTED_WITHIN, made.wait_for(|made| *made >= request)).await);
    }

    /// The last requested listing, if it is not complete yet.
    pub(super) fn requested_listing(&self) -> Option<u64> {
        let requested = self.listings_requested.load(Ordering::Relaxed);
        (requested > *self.listings_made.borrow()).then_some(requested)
    }

    pub(super) fn answer_listing(&self, request: u64) {
        self.listings_made.send_replace(request);
    }

    pub(super) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the windows that are over, and publishes their records to followers.
    pub(super) fn close(&self, core: &mut Core, now: Timestamp) {
        let closed = core.windows.close(now, &core.tracker);
        self.publish(core, closed, now);
    }

    /// Requests the close of the open window from the flow thread, because the agent ends. Waits for it, up to a timeout.
    pub(crate) async fn finish(&self) {
        if self.core().health.since.is_none() {
            return;
        }
        self.last_close.send_replace(LastClose::Requested);
        let mut last = self.last_close.subscribe();
        if tokio::time::timeout(FINISHED_WITHIN, last.wait_for(|last| *last == LastClose::Closed)).await.is_err() {
            tracing::warn!("the flow records of the open window are lost: they are not complete before the end");
        }
    }

    pub(super) fn is_last_close_requested(&self) -> bool {
        *self.last_close.borrow() == LastClose::Requested
    }

    /// Closes all windows, the open one before its end.
    pub(super) fn close_last(&self, core: &mut Core, now: Timestamp) {
        let closed = core.windows.finish(now, &core.tracker);
        self.publish(core, closed, now);
        self.last_close.send_replace(LastClose::Closed);
    }

    fn publish(&self, core: &mut Core, closed: Vec<Arc<FlowRecord>>, now: Timestamp) {
        for record in &closed {
            // Sending fails only without a subscriber.
            drop(self.sender.send(record.clone()));
        }
        core.ring.push(closed);
        core.ring.expire(now);
        self.closed.send_replace(core.ring.counts().pushed);
    }

    /// The records that the filter admits, those of the open window last, and new ones if `follow`. `None` if there are
    /// too many followers.
    pub(crate) fn read(&self, filter: FlowFilter, follow: bool, now: Timestamp) -> Option<FollowedFlows> {
        let place = match follow {
            true => Some(self.followers.clone().try_acquire_owned().ok()?),
            false => None,
        };
        let core = self.core();
        let coming = follow.then(|| self.sender.subscribe());
        let mut past: VecDeque<Arc<FlowRecord>> =
            core.ring.records().filter(|record| filter.admits(record)).cloned().collect();
        // A follower receives the records of the open window when it closes.
        if !follow {
            let open = core.windows.open_records(now, &core.tracker);
            past.extend(open.into_iter().filter(|record| filter.admits(record)).map(Arc::new));
        }
        Some(FollowedFlows { filter, past, coming, _place: place })
    }

    /// Notifies of closed windows.
    pub(super) fn closed(&self) -> watch::Receiver<u64> {
        self.closed.subscribe()
    }

    /// Records of the ring, starting at a sequence number.
    pub(super) fn batch_from(&self, sequence: u64, most: usize) -> RecordBatch {
        self.core().ring.batch_from(sequence, most)
    }

    /// Number of the newest record of the ring.
    pub(super) fn newest(&self) -> u64 {
        *self.closed.borrow()
    }

    /// Records of the ring that an aggregator has never acknowledged.
    pub(super) fn undelivered(&self, figures: &DeliveryFigures) -> u64 {
        figures.undelivered(self.newest()).min(self.core().ring.records().len() as u64)
    }

    /// The metrics of the delivery, if enabled.
    pub(super) fn delivery(&self) -> Option<&DeliveryFigures> {
        self.delivery.get()
    }

    /// Sets the metrics of the delivery, once. Further calls have no effect.
    pub(super) fn set_delivery(&self, figures: DeliveryFigures) {
        self.delivery.get_or_init(|| figures);
    }

    /// Counts packets that are in no record. Never blocks.
    pub(super) fn drop_denials(&self, packets: u64) {
        self.dropped_denials.fetch_add(packets, Ordering::Relaxed);
    }

    pub(crate) fn figures(&self) -> FlowFigures {
        let core = self.core();
        let dropped = core.windows.dropped_records();
        FlowFigures {
            ledger: core.tracker.ledger(),
            health: core.health.clone(),
            kept_since: core.ring.since(),
            records: core.ring.records().len(),
            ring_bytes: core.ring.bytes(),
            evicted_records: core.ring.counts().left_by_bytes,
            dropped_observations: dropped.connection_observations + dropped.denial_observations,
            folded_records: core.windows.folded_records(),
            dropped_denials: self.dropped_denials.load(Ordering::Relaxed),
            delivery: self.delivery.get().map(DeliveryFigures::view),
        }
    }
}

impl FollowedFlows {
    /// The next line; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<FlowItem> {
        if let Some(record) = self.past.pop_front() {
            return Some(FlowItem::Record(record));
        }
        let coming = self.coming.as_mut()?;
        loop {
            match coming.recv().await {
                Ok(record) if self.filter.admits(&record) => return Some(FlowItem::Record(record)),
                Ok(_) => {}
                Err(RecvError::Lagged(lost)) => return Some(FlowItem::Lost(lost)),
                Err(RecvError::Closed) => return None,
            }
        }
    }

    /// The records that are available now.
    pub(crate) fn present(self) -> impl Iterator<Item = Arc<FlowRecord>> {
        self.past.into_iter()
    }
}

#[cfg(test)]
mod tests {
    use flow::{Endpoint, EndpointKind, FlowKey, FlowVerdict, Member, SideTrace, Subject, TraceVerdict};

    use super::*;

    /// Denied packets from one pod to the workload with this number.
    fn subject(number: usize) -> Subject {
        let pod = |name: String| Endpoint {
            kind: EndpointKind::Pod,
            namespace: Some("shop".into()),
            name: Some(name.into()),
            service: None,
            cluster: None,
            network: None,
        };
        let member = || Member {
            address: "10.1.0.1".parse().unwrap(),
            pod: None,
            node: None,
            labels: [].into(),
            identity: None,
        };
        let side = SideTrace {
            verdict: TraceVerdict::Denied,
            enforced_here: true,
            enforced: vec![],
            pending: vec![],
            passed_by: vec![],
        };
        let key = FlowKey {
            source: pod("web".into()),
            destination: pod(format!("db-{number}")),
            protocol: 6,
            port: Some(80),
            icmp_type: None,
            service: None,
            verdict: FlowVerdict::Denied,
            drop_cause: None,
            egress: side.clone(),
            ingress: side,
        };
        Subject { key: Arc::new(key), source: member(), destination: member(), generation: None }
    }

    #[tokio::test]
    async fn slow_follower_gets_the_number_of_lost_records() {
        let store = FlowStore::new("node-a");
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut follower = store.read(FlowFilter::default(), true, at(0)).unwrap();
        let close = |windows: i64| {
            let mut core = store.core();
            for window in 0..windows {
                for number in 0..MOST_RECORDS {
                    core.windows.denied(&subject(number), 1, at(window * 15));
                }
                store.close(&mut core, at((window + 1) * 15));
            }
        };
        close(2);
        // The queue holds the records of a whole window.
        let Some(FlowItem::Lost(lost)) = follower.next().await else { panic!("records were lost") };
        assert_eq!(lost, MOST_RECORDS as u64);
        let second = at(15);
        for _ in 0..MOST_RECORDS {
            let Some(FlowItem::Record(record)) = follower.next().await else { panic!("a record") };
            assert_eq!(record.window, second);
        }
    }
}
