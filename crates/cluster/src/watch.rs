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
mod last_told;
pub(crate) mod lean;
mod lines;
pub(crate) mod lookup;

use std::collections::BTreeMap;

use policy::Tracked;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use crate::{Connection, Event, Problem, Told, Watched};
use informer::Informer;

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

    let mut problems: BTreeMap<O::Kind, Vec<Problem>> = BTreeMap::new();
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
        for event in events(&mut problems, batch.drain(..)) {
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

/// What was ready together, as events: the changes in their order, then the problems if they are others now.
fn events<O: Watched>(
    known: &mut BTreeMap<O::Kind, Vec<Problem>>,
    reports: impl Iterator<Item = (O::Kind, Report<O>)>,
) -> impl Iterator<Item = Event<O>> {
    let before = known.clone();
    let mut changes = Vec::new();
    for (kind, report) in reports {
        match report {
            Report::Change(told) => changes.push(*told),
            Report::Problems(now) => {
                known.insert(kind, now);
            }
        }
    }
    let changes = (!changes.is_empty()).then_some(Event::Changes(changes));
    let mut now: Vec<Problem> = known.values().flatten().cloned().collect();
    now.sort();
    let problems = (*known != before).then_some(Event::Problems(now));
    changes.into_iter().chain(problems)
}

#[cfg(test)]
mod tests {
    use super::*;
    use policy::{Change, Kind, Object, ObjectName};

    fn problem(origin: &str) -> Problem {
        Problem { origin: origin.into(), message: "no".into() }
    }

    #[test]
    fn what_was_ready_together_is_one_event_and_problems_of_all_kinds_are_one_list() {
        let at = std::time::Instant::now();
        let removal = |name| Told { change: Change::Remove(Kind::Pod, ObjectName::new("a", name)), at };
        let mut known = BTreeMap::from([(Kind::Namespace, vec![problem("z")])]);
        let reports = [
            (Kind::Pod, Report::Change(Box::new(removal("1")))),
            (Kind::Pod, Report::Problems(vec![problem("a")])),
            (Kind::Pod, Report::Change(Box::new(removal("2")))),
        ];
        let events: Vec<Event> = events(&mut known, reports.into_iter()).collect();
        assert_eq!(
            events,
            [Event::Changes(vec![removal("1"), removal("2")]), Event::Problems(vec![problem("a"), problem("z")])]
        );
    }

    #[test]
    fn problems_that_stay_the_same_are_not_repeated() {
        let mut known = BTreeMap::new();
        let report = || [(Kind::Pod, Report::<Object>::Problems(vec![problem("a")]))].into_iter();
        assert_eq!(events(&mut known, report()).count(), 1);
        assert_eq!(events(&mut known, report()).count(), 0);
    }
}
