//! Follows the objects of one kind that match a label selector, together with the state of the watch.

use tokio::sync::mpsc;

use super::informer::Informer;
use super::{InformerReport, REPORTS_QUEUED, resume_panic};
use crate::{ApiClient, TimedChange, Watchable};

/// An event of the watch, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum LabelledEvent<O: Watchable> {
    Change(TimedChange<O>),
    /// All objects up to now have been reported.
    IsCurrent,
    /// A request failed or its response ended early; it will be retried.
    Restarts,
    /// The current failure as a message; `None` once it is resolved.
    Failing(Option<String>),
}

/// Follows the objects that match the selector until the receiver is dropped. An object that no longer matches counts
/// as removed.
///
/// The first event is a [`policy::Change::Replace`]; so is every relist. While there are more than `most` objects none
/// of them is reported, and the watch is failing.
pub async fn watch_labelled<O: Watchable>(
    connection: ApiClient,
    kind: O::Kind,
    selector: String,
    most: usize,
    sender: mpsc::Sender<LabelledEvent<O>>,
) {
    let (report, mut reports) = mpsc::channel(REPORTS_QUEUED);
    // The tasks are aborted when this future is dropped, which is how callers cancel it.
    let mut watches = tokio::task::JoinSet::new();
    watches.spawn(Informer::<O>::new(&connection, kind, report).labelled(selector, most).run());
    loop {
        let report = tokio::select! {
            report = reports.recv() => match report {
                Some((_, report)) => report,
                None => {
                    resume_panic(watches.join_next().await);
                    return;
                }
            },
            () = sender.closed() => return,
        };
        let followed = match report {
            InformerReport::Change(timed) => LabelledEvent::Change(*timed),
            InformerReport::IsCurrent => LabelledEvent::IsCurrent,
            InformerReport::Restarts => LabelledEvent::Restarts,
            InformerReport::Problems(problems) => {
                let message = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                LabelledEvent::Failing((!message.is_empty()).then_some(message))
            }
            // Only reported for optional kinds, together with an empty `Replace`.
            InformerReport::Unserved(_) => continue,
        };
        if sender.send(followed).await.is_err() {
            return;
        }
    }
}
