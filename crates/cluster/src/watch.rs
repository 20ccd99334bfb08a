//! The API server as a source: one informer per kind, whose reports are merged.
//!
//! An informer never gives up and never skips an event. It keeps the resource version of the last reported event; after
//! any failure it resumes the watch from there, and relists if the server has expired that version. kube's own
//! `watcher` is not used because it continues after a line that it could not decode (the event is lost), keeps
//! requesting a version that was refused with status 410, and retries without backoff if a server ends watches as they
//! begin.

mod api;
mod decode;
mod discovery;
pub(crate) mod failure;
mod informer;
mod labelled;
mod last_reported;
pub(crate) mod lean_json;
mod lines;
pub(crate) mod lookup;

use std::collections::{BTreeMap, BTreeSet};

use policy::SourceObject;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use crate::{ApiClient, Problem, SourceEvent, TimedChange, Watchable};
use informer::Informer;
pub use labelled::{LabelledEvent, watch_labelled};

/// Capacity of the queue of reports from all informers. When it is full, the informers stop reading, and TCP
/// backpressure reaches the server: enough to lower objects in parallel with the consumer, and a few hundred kilobytes
/// at most.
const REPORTS_QUEUED: usize = 1024;

/// Maximum number of changes per event, so that a storm of watch events becomes few transactions without long delays.
const CHANGES_BATCHED: usize = 512;

/// A report of an informer.
enum InformerReport<O: SourceObject> {
    Change(Box<TimedChange<O>>),
    /// All current problems.
    Problems(Vec<Problem>),
    /// Whether the server does not serve this optional kind.
    Unserved(bool),
    /// All objects up to now have been reported.
    IsCurrent,
    /// A request failed or its response ended early; it will be retried.
    Restarts,
}

/// The last reported state apart from changes.
struct ReportedState<O: Watchable> {
    problems: BTreeMap<O::Kind, Vec<Problem>>,
    unserved: BTreeSet<O::Kind>,
}

impl<O: Watchable> Default for ReportedState<O> {
    fn default() -> ReportedState<O> {
        ReportedState { problems: BTreeMap::new(), unserved: BTreeSet::new() }
    }
}

/// Follows the API server until the receiver is dropped.
///
/// The first changes of each kind are one [`policy::Change::Replace`]; so is every relist, which thus includes missed
/// deletions.
pub async fn watch_cluster<O: Watchable, E: From<SourceEvent<O>>>(connection: ApiClient, sender: mpsc::Sender<E>) {
    let (report, mut reports) = mpsc::channel(REPORTS_QUEUED);
    let mut watches = JoinSet::new();
    for kind in O::KINDS {
        watches.spawn(Informer::new(&connection, *kind, report.clone()).run());
    }
    drop(report);

    let mut reported = ReportedState::default();
    let mut batch = Vec::with_capacity(CHANGES_BATCHED);
    loop {
        tokio::select! {
            received = reports.recv_many(&mut batch, CHANGES_BATCHED) => if received == 0 { return },
            ended = watches.join_next() => {
                resume_panic(ended);
                return;
            }
            () = sender.closed() => return,
        }
        for event in events(&mut reported, batch.drain(..)) {
            if sender.send(event.into()).await.is_err() {
                return;
            }
        }
    }
}

/// An informer ends only when the receiver is dropped. If one panics, the process must not appear alive because of the
/// others.
fn resume_panic(ended: Option<Result<(), JoinError>>) {
    if let Some(Err(error)) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

/// The reports that were ready together, as events: the changes in order, then the other state where it has changed.
fn events<O: Watchable>(
    reported: &mut ReportedState<O>,
    reports: impl Iterator<Item = (O::Kind, InformerReport<O>)>,
) -> impl Iterator<Item = SourceEvent<O>> {
    let (problems_before, unserved_before) = (reported.problems.clone(), reported.unserved.clone());
    let ReportedState { problems, unserved } = reported;
    let mut changes = Vec::new();
    for (kind, report) in reports {
        match report {
            InformerReport::Change(timed) => changes.push(*timed),
            InformerReport::Problems(now) => {
                problems.insert(kind, now);
            }
            InformerReport::Unserved(true) => {
                unserved.insert(kind);
            }
            InformerReport::Unserved(false) => {
                unserved.remove(&kind);
            }
            InformerReport::IsCurrent | InformerReport::Restarts => {}
        }
    }
    let changes = (!changes.is_empty()).then_some(SourceEvent::Changes(changes));
    let mut now: Vec<Problem> = problems.values().flatten().cloned().collect();
    now.sort();
    let told_problems = (*problems != problems_before).then_some(SourceEvent::Problems(now));
    let told_unserved =
        (*unserved != unserved_before).then(|| SourceEvent::Unserved(unserved.iter().copied().collect()));
    changes.into_iter().chain(told_problems).chain(told_unserved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::{Change, Kind, Object, ObjectName};

    fn problem(origin: &str) -> Problem {
        Problem { origin: origin.into(), message: "no".into() }
    }

    #[test]
    fn ready_changes_coalesce_and_problems_merge_across_kinds() {
        let at = std::time::Instant::now();
        let removal = |name| TimedChange { change: Change::Remove(Kind::Pod, ObjectName::new("a", name)), at };
        let problems = BTreeMap::from([(Kind::Namespace, vec![problem("z")])]);
        let mut reported = ReportedState { problems, ..ReportedState::default() };
        let reports = [
            (Kind::Pod, InformerReport::Change(Box::new(removal("1")))),
            (Kind::Pod, InformerReport::Problems(vec![problem("a")])),
            (Kind::Pod, InformerReport::Change(Box::new(removal("2")))),
        ];
        let events: Vec<SourceEvent> = events(&mut reported, reports.into_iter()).collect();
        assert_eq!(
            events,
            [
                SourceEvent::Changes(vec![removal("1"), removal("2")]),
                SourceEvent::Problems(vec![problem("a"), problem("z")])
            ]
        );
    }

    #[test]
    fn problems_and_unserved_kinds_are_reported_on_change() {
        let mut reported = ReportedState::default();
        let mut events_of = |report: InformerReport<Object>| -> Vec<SourceEvent> {
            events(&mut reported, [(Kind::Pod, report)].into_iter()).collect()
        };
        assert_eq!(
            events_of(InformerReport::Problems(vec![problem("a")])),
            [SourceEvent::Problems(vec![problem("a")])]
        );
        assert_eq!(events_of(InformerReport::Problems(vec![problem("a")])), []);
        assert_eq!(events_of(InformerReport::Unserved(true)), [SourceEvent::Unserved(vec![Kind::Pod])]);
        assert_eq!(events_of(InformerReport::Unserved(true)), []);
        assert_eq!(events_of(InformerReport::Unserved(false)), [SourceEvent::Unserved(vec![])]);
    }
}
