//! Received flow records: receipt of batches, the settled watermark, and reads by queries, streams and exports.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use access::Principal;
use delivery::{BATCH_RECORDS, PushReceipt, PushRequest, UndecodableRecord, decode_record};
use flow::{
    CLUSTER_AGE, CLUSTER_AHEAD, ClusterCounts, ClusterRecord, ClusterStore, FlowFilters, FlowRecord, Inbox,
    InboxCounts, JoinedWindows, NodeReport, RefusedRecord, WINDOW_SECONDS, join,
};
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tonic::Status;
use trail::{DueWindow, EdgeKey, ExportPosition, ExportProgress, RecordTotals, SettledRecord, WindowState};

/// Delay after the end of a window until it is settled: later records are late. Agents close a window up to 15 s after
/// its end and send it immediately; the clocks of nodes differ by some seconds.
pub(crate) const SETTLE_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// Largest backward step of the aggregator's clock that leaves the settled watermark unchanged. After a larger step the
/// watermark follows, since otherwise no window would be settled until the clock reaches it again.
const CLOCK_TOLERANCE: SignedDuration = SignedDuration::from_secs(60);

/// Age beyond that of expiry at which all records of a batch are too old because of a wrong clock. An agent may resend records
/// that expire meanwhile, which are refused one by one.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(5);

/// Exclusive upper bound of sequence numbers: a million records a second for 500 years.
const MOST_SEQUENCE: u64 = 1 << 54;

/// Age of the windows that are joined ahead of queries: the range of the page unless its user chooses another.
const JOINED_AHEAD: SignedDuration = SignedDuration::from_mins(15);

/// Divisor of the memory for records that gives the memory of cached joined windows: the two nodes of a connection
/// report what is one joined record, and many nodes report the connections of a workload.
const JOINED_SHARE: usize = 8;

/// Records of all nodes.
pub(crate) struct Aggregate {
    core: Mutex<Core>,
    /// Never locked together with `core`.
    joined: Mutex<JoinedWindows>,
    settled: watch::Sender<Timestamp>,
}

struct Core {
    inbox: Inbox,
    store: ClusterStore,
    refused: BTreeMap<RefusedRecord, u64>,
    undecodable: u64,
    /// Refused batches: invalid, not received in time, above the limit of nodes, or of another node than the sender's.
    refused_batches: u64,
    /// Records received after their window was settled.
    late: u64,
    /// Watermark: windows that begin earlier are settled.
    settled: Timestamp,
    /// Marks of the records that a reader has, by [`Reader`]; `None` without the reader.
    export_progress: [Option<ExportProgress>; 2],
}

/// A reader that reads each record once, also across restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Exports,
    /// The ledger of observed edges.
    Edges,
}

/// Consistent snapshot of the counters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) inbox: InboxCounts,
    pub(crate) store: ClusterCounts,
    pub(crate) refused: BTreeMap<RefusedRecord, u64>,
    pub(crate) undecodable: u64,
    pub(crate) refused_batches: u64,
    /// Records received after their window was settled.
    pub(crate) late: u64,
    /// Sorted by name.
    pub(crate) nodes: Vec<NodeReport>,
    pub(crate) oldest_window: Option<Timestamp>,
    pub(crate) windows: usize,
    pub(crate) records: usize,
    pub(crate) bytes: usize,
    /// Bound of `bytes`.
    pub(crate) most_bytes: usize,
    /// Estimated bytes of cached joined records.
    pub(crate) joined_bytes: usize,
}

impl Aggregate {
    pub(crate) fn new(most_bytes: usize) -> Aggregate {
        let core = Core {
            inbox: Inbox::new(),
            store: ClusterStore::new(most_bytes - most_bytes / JOINED_SHARE),
            refused: BTreeMap::new(),
            undecodable: 0,
            refused_batches: 0,
            late: 0,
            settled: Timestamp::MIN,
            export_progress: [None, None],
        };
        let joined = JoinedWindows::new(most_bytes / JOINED_SHARE);
        Aggregate { core: Mutex::new(core), joined: Mutex::new(joined), settled: watch::Sender::new(Timestamp::MIN) }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn joined(&self) -> MutexGuard<'_, JoinedWindows> {
        self.joined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives a batch. An undecodable record is counted and still acknowledged: otherwise its agent would resend it
    /// forever.
    ///
    /// # Errors
    /// If the batch is refused.
    pub(crate) fn receive(
        &self,
        request: &PushRequest,
        sender: Option<&Principal>,
        now: Timestamp,
    ) -> Result<PushReceipt, Status> {
        if let Some(bound_to) = sender.and_then(|sender| sender.node.as_ref()).filter(|node| **node != request.node) {
            self.core().refused_batches += 1;
            return Err(Status::permission_denied(format!(
                "the token is bound to node '{bound_to}', and the records are of node '{}'",
                request.node.escape_debug()
            )));
        }
        if let Some(why) = fault(request) {
            self.core().refused_batches += 1;
            return Err(Status::invalid_argument(why));
        }
        let decoded: Vec<Result<FlowRecord, UndecodableRecord>> =
            request.records.iter().map(|text| decode_record(text, &request.node)).collect();
        let mut guard = self.core();
        let core = &mut *guard;
        if let Some(why) = clock_fault(&decoded, now) {
            core.refused_batches += 1;
            return Err(Status::failed_precondition(why));
        }
        let acceptance = match core.inbox.accept(&request.head(), now) {
            Ok(acceptance) => acceptance,
            Err(error) => {
                core.refused_batches += 1;
                return Err(Status::resource_exhausted(error.to_string()));
            }
        };
        let mut problem = None;
        let numbered = (request.first..).zip(decoded);
        for (sequence, record) in numbered.skip(usize::try_from(acceptance.skip).unwrap_or(usize::MAX)) {
            match record {
                Ok(record) => {
                    let (node, window) = (Arc::clone(&record.node), record.window);
                    match core.store.insert(record, now) {
                        Ok(()) => {
                            core.late += u64::from(window < core.settled);
                            for progress in core.export_progress.iter_mut().flatten() {
                                progress.record_arrival(&node, request.epoch, sequence, window);
                            }
                        }
                        Err(refused) => {
                            *core.refused.entry(refused).or_insert(0) += 1;
                            problem = Some(refused.to_string());
                        }
                    }
                }
                Err(error) => {
                    core.undecodable += 1;
                    problem = Some(error.to_string());
                }
            }
        }
        drop(guard);
        if let Some(problem) = problem {
            tracing::debug!(node = request.node, version = request.version, "records refused, the last one: {problem}");
        }
        Ok(PushReceipt { acknowledged: acceptance.acknowledged })
    }

    /// Counts a batch that was not received in time.
    pub(crate) fn refuse_batch(&self) {
        self.core().refused_batches += 1;
    }

    /// Advances the settled watermark to the windows that ended [`SETTLE_AFTER`] ago: streams and exports read each
    /// window once, when it is settled. The watermark goes back only if the clock was set back.
    pub(crate) fn advance_watermark(&self, now: Timestamp) {
        let begin = settled_at(now);
        let mut core = self.core();
        if begin.saturating_add(CLOCK_TOLERANCE).is_ok_and(|tolerated| tolerated < core.settled) {
            tracing::warn!(
                "the clock was set back: it was at least {:#} ahead; records of windows that had settled too early are late",
                core.settled.duration_since(begin)
            );
            core.settled = begin;
        }
        core.settled = core.settled.max(begin);
        let settled = core.settled;
        drop(core);
        self.settled.send_if_modified(|last| std::mem::replace(last, settled) != settled);
    }

    /// Subscribes to the watermark: windows that begin earlier are settled, with or without records. It goes back only
    /// if the clock was set back.
    pub(crate) fn settled(&self) -> watch::Receiver<Timestamp> {
        self.settled.subscribe()
    }

    /// Starts to track which records a reader has.
    pub(crate) fn mark(&self, reader: Reader, progress: ExportProgress) {
        self.core().export_progress[reader as usize] = Some(progress);
    }

    /// Whether agents known from before a restart have not yet resent the records of the last `resent` that the reader has.
    pub(crate) fn awaits_agents(&self, reader: Reader, now: Timestamp, resent: SignedDuration) -> bool {
        let since = now.checked_sub(resent).unwrap_or(Timestamp::MIN);
        self.core().export_progress[reader as usize].as_ref().is_some_and(|progress| progress.awaits_agents(since))
    }

    /// Windows before `settled` with records that the reader does not have, and its position once it has them. `None`
    /// without the reader.
    pub(crate) fn begin_pass(&self, reader: Reader, settled: Timestamp) -> Option<(Vec<DueWindow>, ExportPosition)> {
        let core = &mut *self.core();
        let kept = core.store.windows().collect();
        let progress = core.export_progress[reader as usize].as_mut()?;
        Some((progress.due(settled, &kept), progress.advance(settled)))
    }

    /// Records of a due window; `None` if it was expired or evicted.
    pub(crate) fn read_settled(&self, reader: Reader, due: &DueWindow) -> Option<(Vec<SettledRecord>, WindowState)> {
        let core = self.core();
        let progress = core.export_progress[reader as usize].as_ref()?;
        let records = core.store.records(due.window);
        if records.len() < due.exported.len() {
            return None;
        }
        let pairs = records.into_iter().zip(&due.exported);
        let settled = pairs.map(|(record, exported)| SettledRecord { record, is_exported: *exported });
        let state = WindowState {
            is_late: due.is_late,
            unknown_nodes: progress.unknown_nodes(due.window),
            excess: progress.excess(due.window),
        };
        Some((settled.collect(), state))
    }

    /// Marks the windows as read. Returns the excess of all windows.
    pub(crate) fn end_pass(
        &self,
        reader: Reader,
        done: &[DueWindow],
        excess: Vec<(Timestamp, BTreeMap<EdgeKey, RecordTotals>)>,
    ) -> Vec<(Timestamp, EdgeKey, RecordTotals)> {
        let core = &mut *self.core();
        let Some(progress) = &mut core.export_progress[reader as usize] else { return Vec::new() };
        progress.exported(done, excess);
        progress.all_excess()
    }

    /// Number of records expired or evicted before the reader had them.
    pub(crate) fn unread(&self, reader: Reader) -> u64 {
        self.core().export_progress[reader as usize].as_ref().map_or(0, ExportProgress::evicted)
    }

    /// Expires old nodes and windows.
    pub(crate) fn expire(&self, now: Timestamp) {
        let mut core = self.core();
        core.inbox.expire(now);
        core.store.expire(now);
        let since = core.store.left_before();
        drop(core);
        self.joined().remove_before(since);
    }

    /// Starts of the windows that a query reads, oldest first.
    pub(crate) fn windows(&self, filters: &FlowFilters) -> Vec<Timestamp> {
        self.core().store.windows().filter(|begin| filters.admits_window(*begin)).collect()
    }

    /// Windows that begin earlier were expired or evicted; the least time if none was.
    pub(crate) fn left_before(&self) -> Timestamp {
        self.core().store.left_before()
    }

    /// Joined records of a window that the filters admit.
    pub(crate) fn read(&self, window: Timestamp, filters: &FlowFilters) -> Vec<ClusterRecord> {
        let mut joined = self.read_joined(window);
        joined.retain(|joined| filters.admits(&joined.record));
        joined
    }

    /// Joined records of a window, from the cache if no records have arrived since. The join runs without a lock.
    fn read_joined(&self, window: Timestamp) -> Vec<ClusterRecord> {
        let len = self.core().store.len_of_window(window);
        let cached = self.joined().get(window, len);
        if let Some(joined) = cached {
            return joined;
        }
        let records = self.core().store.records(window);
        let joined = join(&records);
        self.joined().insert(window, records.len(), &joined);
        joined
    }

    /// Joins the settled windows of the last [`JOINED_AHEAD`], so that the first query of a page finds them in the cache.
    /// `joined` has the number of records that each window had when it was joined here: a window that the cache has evicted
    /// since does not fit, and is not joined again.
    pub(crate) fn join_ahead(&self, now: Timestamp, joined: &mut BTreeMap<Timestamp, usize>) {
        let since = now.checked_sub(JOINED_AHEAD).unwrap_or(Timestamp::MIN);
        let core = self.core();
        let wanted = core.store.windows().filter(|window| (since..core.settled).contains(window));
        let wanted: BTreeMap<Timestamp, usize> =
            wanted.map(|window| (window, core.store.len_of_window(window))).collect();
        drop(core);
        // Newest first: a page that opens meanwhile has less to wait for.
        let stale = wanted.iter().rev().filter(|(window, len)| joined.get(*window) != Some(*len));
        for (window, _) in stale {
            self.read_joined(*window);
        }
        *joined = wanted;
    }

    pub(crate) fn figures(&self) -> Figures {
        let joined_bytes = self.joined().bytes();
        let core = self.core();
        let mut nodes: Vec<NodeReport> = core.inbox.nodes().collect();
        nodes.sort_by(|a, b| a.node.cmp(&b.node));
        Figures {
            inbox: core.inbox.counts(),
            store: core.store.counts(),
            refused: core.refused.clone(),
            undecodable: core.undecodable,
            refused_batches: core.refused_batches,
            late: core.late,
            nodes,
            oldest_window: core.store.windows().next(),
            windows: core.store.windows().count(),
            records: core.store.len(),
            bytes: core.store.bytes(),
            most_bytes: core.store.most_bytes(),
            joined_bytes,
        }
    }
}

/// Reason to refuse a malformed batch, checked before its sequence numbers are added up and its records decoded.
fn fault(request: &PushRequest) -> Option<&'static str> {
    let PushRequest { node, epoch: _, first, oldest, newest, records, version: _ } = request;
    if node.is_empty() || node.len() > 253 {
        return Some("expected the name of a node");
    }
    if records.len() > BATCH_RECORDS {
        return Some("expected at most 2048 records");
    }
    let are_positions = *first > 0 && *oldest > 0 && *newest < MOST_SEQUENCE && *oldest <= newest.saturating_add(1);
    let last = first.saturating_add(records.len() as u64) - 1;
    (!are_positions || last > *newest).then_some("expected sequence numbers from 1, of records that the agent has made")
}

/// Reason to refuse a batch of which no record could be stored because the clocks of its node and of the aggregator differ.
/// It is not acknowledged, so that the agent still has the records when the clock is right again.
fn clock_fault(records: &[Result<FlowRecord, UndecodableRecord>], now: Timestamp) -> Option<String> {
    let windows = || records.iter().flatten().map(|record| record.window);
    let (oldest, newest) = (windows().min()?, windows().max()?);
    let expired = now.checked_sub(CLUSTER_AGE).and_then(|expired| expired.checked_sub(CLOCKS_DIFFER));
    if expired.is_ok_and(|expired| newest < expired) {
        return Some(format!(
            "the newest record is of {newest}, and it is {now}: the clock of the node is behind, or that of the aggregator ahead"
        ));
    }
    let ahead = now.checked_add(CLUSTER_AHEAD).unwrap_or(Timestamp::MAX);
    (oldest > ahead).then(|| {
        format!(
            "the oldest record is of {oldest}, and it is {now}: the clock of the node is ahead, or that of the aggregator behind"
        )
    })
}

/// The settled watermark at `now`: windows that begin earlier are settled.
pub(crate) fn settled_at(now: Timestamp) -> Timestamp {
    window_of(now.checked_sub(SETTLE_AFTER).unwrap_or(Timestamp::MIN))
}

/// Start of the window that contains a time.
pub(crate) fn window_of(time: Timestamp) -> Timestamp {
    let seconds = time.as_second();
    Timestamp::from_second(seconds - seconds.rem_euclid(WINDOW_SECONDS)).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-05-04T12:00:20Z".parse().unwrap()
    }

    fn record(node: &str, verdict: &str) -> Vec<u8> {
        let sample = r#"{"addresses":[],"pods":[],"nodes":["n1"],"labels":[],"identities":[],"truncated":false}"#;
        let trace = |here: bool| format!(r#"{{"verdict":"allowed","enforcedHere":{here},"enforced":[],"pending":[]}}"#);
        format!(
            r#"{{"window":"2026-05-04T12:00:00Z","node":"{node}","source":{{"kind":"pod","namespace":"shop","name":"web"}},
            "destination":{{"kind":"pod","namespace":"shop","name":"db"}},"protocol":6,"port":5432,"verdict":"{verdict}",
            "egress":{},"ingress":{},"sources":{sample},"destinations":{sample},
            "connections":{{"started":2,"ended":1,"live":1,"lost":0}},"unknownVolume":0,"deniedPackets":0,
            "first":"2026-05-04T12:00:01Z","last":"2026-05-04T12:00:09Z"}}"#,
            trace(node == "n1"),
            trace(node == "n2"),
        )
        .into_bytes()
    }

    fn request(node: &str, first: u64, records: Vec<Vec<u8>>) -> PushRequest {
        let newest = first + records.len() as u64 - 1;
        PushRequest { node: node.into(), epoch: 1, first, oldest: 1, newest, records, version: "test".into() }
    }

    fn bound_to(node: &str) -> Principal {
        Principal { user: "agent".into(), groups: vec![], node: Some(node.into()) }
    }

    #[test]
    fn records_of_both_nodes_become_one() {
        let aggregate = Aggregate::new(1 << 20);
        for node in ["n1", "n2"] {
            let batch = request(node, 1, vec![record(node, "allowed")]);
            assert_eq!(aggregate.receive(&batch, None, now()).unwrap().acknowledged, 1);
            assert_eq!(aggregate.receive(&batch, None, now()).unwrap().acknowledged, 1);
        }
        let filters = FlowFilters::default();
        let windows = aggregate.windows(&filters);
        let [joined] = &*aggregate.read(windows[0], &filters) else { panic!("one record") };
        assert_eq!((joined.record.connections.started, joined.seen_by.destination.len()), (2, 1));
        let figures = aggregate.figures();
        assert_eq!((figures.inbox.received, figures.inbox.repeated, figures.records), (2, 2, 2));
    }

    #[test]
    fn records_that_arrive_after_a_query_are_read() {
        let aggregate = Aggregate::new(1 << 20);
        aggregate.receive(&request("n1", 1, vec![record("n1", "allowed")]), None, now()).unwrap();
        let read = |text: &str| {
            let filters = FlowFilters::parse([("verdict", text)], now()).unwrap();
            aggregate.windows(&filters).iter().flat_map(|window| aggregate.read(*window, &filters)).collect::<Vec<_>>()
        };
        assert_eq!((read("allowed").len(), read("denied").len()), (1, 0));
        let cached = aggregate.figures().joined_bytes;
        assert!(cached > 0);
        assert_eq!(read("allowed"), read("allowed"));
        aggregate.receive(&request("n2", 1, vec![record("n2", "allowed")]), None, now()).unwrap();
        assert_eq!(read("allowed")[0].seen_by.destination.len(), 1);
        aggregate.expire(now() + SignedDuration::from_hours(2));
        assert_eq!((read("allowed").len(), aggregate.figures().joined_bytes), (0, 0));
    }

    #[test]
    fn settled_windows_are_joined_ahead_of_queries() {
        let aggregate = Aggregate::new(1 << 20);
        aggregate.receive(&request("n1", 1, vec![record("n1", "allowed")]), None, now()).unwrap();
        let mut known = BTreeMap::new();
        let mut joined = |after: SignedDuration| {
            aggregate.advance_watermark(now() + after);
            aggregate.join_ahead(now() + after, &mut known);
            aggregate.figures().joined_bytes
        };
        assert_eq!(joined(SignedDuration::ZERO), 0, "the window is not settled");
        let one = joined(SignedDuration::from_mins(2));
        assert!(one > 0);
        // A late record, after which the window is joined again.
        aggregate.receive(&request("n2", 1, vec![record("n2", "denied")]), None, now()).unwrap();
        assert!(joined(SignedDuration::from_mins(2)) > one);
        let old = Aggregate::new(1 << 20);
        old.receive(&request("n1", 1, vec![record("n1", "allowed")]), None, now()).unwrap();
        old.advance_watermark(now() + SignedDuration::from_mins(20));
        old.join_ahead(now() + SignedDuration::from_mins(20), &mut BTreeMap::new());
        assert_eq!(old.figures().joined_bytes, 0, "the window is too old");
    }

    #[test]
    fn token_bound_to_another_node_is_refused() {
        let aggregate = Aggregate::new(1 << 20);
        let batch = request("n1", 1, vec![record("n1", "allowed")]);
        let refused = aggregate.receive(&batch, Some(&bound_to("n2")), now()).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::PermissionDenied);
        assert_eq!((aggregate.figures().records, aggregate.figures().refused_batches), (0, 1));
        assert!(aggregate.receive(&batch, Some(&bound_to("n1")), now()).is_ok());
    }

    #[test]
    fn implausible_batches_are_refused() {
        let aggregate = Aggregate::new(1 << 20);
        let good = request("n1", 1, vec![record("n1", "allowed")]);
        for bad in [
            PushRequest { first: 0, ..good.clone() },
            PushRequest { oldest: 0, ..good.clone() },
            PushRequest { first: u64::MAX, newest: u64::MAX, ..good.clone() },
            PushRequest { newest: u64::MAX, ..good.clone() },
            PushRequest { oldest: 9, ..good.clone() },
            PushRequest { first: 2, ..good.clone() },
            PushRequest { node: "n".repeat(254), ..good.clone() },
            request("n1", 1, vec![vec![]; BATCH_RECORDS + 1]),
        ] {
            let refused = aggregate.receive(&bad, None, now()).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::InvalidArgument, "{refused}");
        }
        assert_eq!((aggregate.figures().refused_batches, aggregate.figures().records), (8, 0));
        assert!(aggregate.receive(&good, None, now()).is_ok());
        let alive = PushRequest { first: 2, records: vec![], ..good };
        assert!(aggregate.receive(&alive, None, now()).is_ok());
    }

    #[test]
    fn record_of_newer_agent_is_counted_and_acknowledged() {
        let aggregate = Aggregate::new(1 << 20);
        let batch = request("n1", 1, vec![record("n1", "postponed"), record("n2", "allowed"), record("n1", "allowed")]);
        assert_eq!(aggregate.receive(&batch, None, now()).unwrap().acknowledged, 3);
        let figures = aggregate.figures();
        assert_eq!((figures.undecodable, figures.records), (2, 1));
    }

    #[test]
    fn records_of_settled_windows_are_late() {
        let aggregate = Aggregate::new(1 << 20);
        let settled = aggregate.settled();
        aggregate.advance_watermark("2026-05-04T12:00:44Z".parse().unwrap());
        assert_eq!(*settled.borrow(), "2026-05-04T12:00:00Z".parse().unwrap());
        aggregate.receive(&request("n1", 1, vec![record("n1", "allowed")]), None, now()).unwrap();
        assert_eq!(aggregate.figures().late, 0);
        aggregate.advance_watermark("2026-05-04T12:00:45Z".parse().unwrap());
        assert!(settled.has_changed().unwrap());
        aggregate.receive(&request("n1", 2, vec![record("n1", "allowed")]), None, now()).unwrap();
        assert_eq!((aggregate.figures().late, aggregate.figures().records), (1, 2));
    }

    #[test]
    fn clock_that_was_ahead_settles_windows_again() {
        let aggregate = Aggregate::new(1 << 20);
        let settled = aggregate.settled();
        let settles = |now: &str| {
            aggregate.advance_watermark(now.parse().unwrap());
            settled.borrow().to_string()
        };
        assert_eq!(settles("2026-05-04T12:00:45Z"), "2026-05-04T12:00:15Z");
        assert_eq!(settles("2026-05-04T11:59:45Z"), "2026-05-04T12:00:15Z", "within the tolerance");
        assert_eq!(settles("2027-05-04T12:00:00Z"), "2027-05-04T11:59:30Z");
        assert_eq!(settles("2026-05-04T12:01:00Z"), "2026-05-04T12:00:30Z");
        assert_eq!(settles("2026-05-04T12:01:15Z"), "2026-05-04T12:00:45Z");
    }

    #[test]
    fn batch_is_not_acknowledged_while_clocks_differ() {
        let aggregate = Aggregate::new(1 << 20);
        let batch = request("n1", 1, vec![record("n1", "allowed"), record("n1", "allowed")]);
        for ahead in [SignedDuration::from_hours(24), SignedDuration::from_secs(-60)] {
            let refused = aggregate.receive(&batch, None, now() + ahead).unwrap_err();
            assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
            assert!(refused.message().contains("the clock of the node is"), "{refused}");
            aggregate.expire(now() + ahead);
        }
        assert_eq!((aggregate.figures().refused_batches, aggregate.figures().inbox.received), (2, 0));
        assert_eq!(aggregate.receive(&batch, None, now()).unwrap().acknowledged, 2);
        assert_eq!(aggregate.figures().records, 2);
        // Records that expire on their way are acknowledged: their agent would send them forever.
        let old = now() + SignedDuration::from_mins(62);
        let next = request("n1", 3, vec![record("n1", "allowed")]);
        assert_eq!(aggregate.receive(&next, None, old).unwrap().acknowledged, 3);
        assert_eq!(aggregate.figures().refused[&RefusedRecord::TooOld], 1);
    }

    #[test]
    fn query_reads_the_windows_since_a_time() {
        let aggregate = Aggregate::new(1 << 20);
        aggregate.receive(&request("n1", 1, vec![record("n1", "allowed")]), None, now()).unwrap();
        let since = |text| FlowFilters::parse([("since", text)], now()).unwrap();
        assert_eq!(aggregate.windows(&since("10s")).len(), 1);
        assert_eq!(aggregate.windows(&since("5s")).len(), 0);
    }
}
