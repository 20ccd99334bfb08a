//! The API server as a source: a watch per kind, and their reports put together.
//!
//! A watch never gives up and never skips. It remembers the version up to which it knows everything, and moves it only
//! past what it has handed on; whatever breaks, it asks again from there, and lists anew when the server no
//! longer knows that version. kube's own `watcher` is not used because it goes on reading behind a line that it could
//! not decode (the change in that line is lost), asks for ever from a version that was refused with 410 as a status,
//! and comes back without a pause to a server that ends watches as they begin.

mod api;
mod backoff;
mod decode;
pub(crate) mod failure;
mod informer;
mod labelled;
mod last_told;
pub(crate) mod lean;
mod lines;
pub(crate) mod lookup;

use std::collections::{BTreeMap, BTreeSet};

use policy::Tracked;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use crate::{Connection, Event, Problem, Told, Watched};
use informer::Informer;
pub use labelled::{Followed, watch_labelled};

/// Reports on the way from the watches, of all kinds together. When it is full, the watches stop reading and TCP makes
/// the server wait: enough to lower in parallel with whoever applies, and a few hundred kilobytes at most.
const REPORTS_QUEUED: usize = 1024;

/// Changes in one event at most, so that a storm of events becomes few transactions and none waits for its end.
const CHANGES_BATCHED: usize = 512;

/// What a watch has to say.
enum Report<O: Tracked> {
    Change(Box<Told<O>>),
    /// All its problems at present.
    Problems(Vec<Problem>),
    /// Whether the server does not know the kind, and need not.
    Unserved(bool),
    /// What has been reported is everything, as of now.
    IsCurrent,
    /// A request has failed, or its answer broke off, and it is asked again.
    Restarts,
}

/// What was reported last of that which is not a change.
struct Standing<O: Watched> {
    problems: BTreeMap<O::Kind, Vec<Problem>>,
    unserved: BTreeSet<O::Kind>,
}

impl<O: Watched> Default for Standing<O> {
    fn default() -> Standing<O> {
        Standing { problems: BTreeMap::new(), unserved: BTreeSet::new() }
    }
}

/// Follows the API server until nobody listens any more.
///
/// The first changes of each kind are one [`policy::Change::Replace`]; so is every list that had to be read again,
/// which carries the deletions of the meantime.
pub async fn watch_cluster<O: Watched>(connection: Connection, sender: mpsc::Sender<Event<O>>) {
    let (report, mut reports) = mpsc::channel(REPORTS_QUEUED);
    let mut watches = JoinSet::new();
    for kind in O::KINDS {
        watches.spawn(Informer::new(&connection, *kind, report.clone()).run());
    }
    drop(report);

    let mut standing = Standing::default();
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
        for event in events(&mut standing, batch.drain(..)) {
            if sender.send(event).await.is_err() {
                return;
            }
        }
    }
}

/// A watch ends only with its listener. One that panicked must not leave the others to make it look alive.
fn resume_panic(ended: Option<Result<(), JoinError>>) {
    if let Some(Err(error)) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
}

/// What was ready together, as events: the changes in their order, then what stands if it is otherwise now.
fn events<O: Watched>(
    standing: &mut Standing<O>,
    reports: impl Iterator<Item = (O::Kind, Report<O>)>,
) -> impl Iterator<Item = Event<O>> {
    let (problems_before, unserved_before) = (standing.problems.clone(), standing.unserved.clone());
    let Standing { problems, unserved } = standing;
    let mut changes = Vec::new();
    for (kind, report) in reports {
        match report {
            Report::Change(told) => changes.push(*told),
            Report::Problems(now) => {
                problems.insert(kind, now);
            }
            Report::Unserved(true) => {
                unserved.insert(kind);
            }
            Report::Unserved(false) => {
                unserved.remove(&kind);
            }
            Report::IsCurrent | Report::Restarts => {}
        }
    }
    let changes = (!changes.is_empty()).then_some(Event::Changes(changes));
    let mut now: Vec<Problem> = problems.values().flatten().cloned().collect();
    now.sort();
    let told_problems = (*problems != problems_before).then_some(Event::Problems(now));
    let told_unserved = (*unserved != unserved_before).then(|| Event::Unserved(unserved.iter().copied().collect()));
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
        let removal = |name| Told { change: Change::Remove(Kind::Pod, ObjectName::new("a", name)), at };
        let problems = BTreeMap::from([(Kind::Namespace, vec![problem("z")])]);
        let mut standing = Standing { problems, ..Standing::default() };
        let reports = [
            (Kind::Pod, Report::Change(Box::new(removal("1")))),
            (Kind::Pod, Report::Problems(vec![problem("a")])),
            (Kind::Pod, Report::Change(Box::new(removal("2")))),
        ];
        let events: Vec<Event> = events(&mut standing, reports.into_iter()).collect();
        assert_eq!(
            events,
            [Event::Changes(vec![removal("1"), removal("2")]), Event::Problems(vec![problem("a"), problem("z")])]
        );
    }

    #[test]
    fn problems_and_unserved_kinds_are_reported_on_change() {
        let mut standing = Standing::default();
        let mut told = |report: Report<Object>| -> Vec<Event> {
            events(&mut standing, [(Kind::Pod, report)].into_iter()).collect()
        };
        assert_eq!(told(Report::Problems(vec![problem("a")])), [Event::Problems(vec![problem("a")])]);
        assert_eq!(told(Report::Problems(vec![problem("a")])), []);
        assert_eq!(told(Report::Unserved(true)), [Event::Unserved(vec![Kind::Pod])]);
        assert_eq!(told(Report::Unserved(true)), []);
        assert_eq!(told(Report::Unserved(false)), [Event::Unserved(vec![])]);
    }
}
