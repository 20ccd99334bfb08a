//! The watch of the objects of one kind that have a label, with how it goes.

use tokio::sync::mpsc;

use super::informer::Informer;
use super::{REPORTS_QUEUED, Report, resume_panic};
use crate::{Connection, Told, Watched};

/// What a watch says, in the order in which things are.
#[derive(Debug, Clone, PartialEq)]
pub enum Followed<O: Watched> {
    Change(Told<O>),
    /// What has been said is everything, as of now.
    IsCurrent,
    /// A request has failed, or its answer broke off, and it is asked again.
    Restarts,
    /// What is wrong at present, in words; none once it is over.
    Failing(Option<String>),
}

/// Follows what the selector matches until nobody listens any more. An object that matches no longer is one that is gone.
///
/// It begins with a [`policy::Change::Replace`]; so does whatever comes after a list that had to be read again. While
/// there are more than `most` objects nothing of them is reported, which is a failure.
pub async fn watch_labelled<O: Watched>(
    connection: Connection,
    kind: O::Kind,
    selector: String,
    most: usize,
    sender: mpsc::Sender<Followed<O>>,
) {
    let (report, mut reports) = mpsc::channel(REPORTS_QUEUED);
    // It ends with this future, which whoever wants another list may drop.
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
            Report::Change(told) => Followed::Change(*told),
            Report::IsCurrent => Followed::IsCurrent,
            Report::Restarts => Followed::Restarts,
            Report::Problems(problems) => {
                let message = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                Followed::Failing((!message.is_empty()).then_some(message))
            }
            // Told only of kinds that need not be there, and of these there is nothing then, which is told as well.
            Report::Unserved(_) => continue,
        };
        if sender.send(followed).await.is_err() {
            return;
        }
    }
}
