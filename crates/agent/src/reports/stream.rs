//! The latest events, and a stream of new ones for subscribers. A slow subscriber delays no other.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender, channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::drops::{DropLine, DropsQuery, NamedDrop};

/// Bound on kept events: some ten seconds at the highest rate, hours on a quiet node.
const KEPT: usize = 1024;

/// Events queued for a subscriber. One that lags further behind loses the oldest.
const BEHIND: usize = 1024;

/// Bound on concurrent followers, since queued events stay in memory for each; a person needs one or two. A query
/// without `follow` ends at once and does not count.
const FOLLOWERS: usize = 16;

#[derive(Debug)]
pub(crate) struct DropStream {
    /// Locked while sending too, so that a new subscriber gets each event once.
    kept: Mutex<RetainedEvents>,
    sender: Sender<Arc<NamedDrop>>,
    followers: Arc<Semaphore>,
}

#[derive(Debug)]
struct RetainedEvents {
    events: VecDeque<(Timestamp, Arc<NamedDrop>)>,
    since: Timestamp,
    forgotten: u64,
}

/// The events that a subscriber has not yet received.
#[derive(Debug)]
pub(crate) struct DropsReader {
    query: DropsQuery,
    past: VecDeque<Arc<NamedDrop>>,
    coming: Option<Receiver<Arc<NamedDrop>>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl DropStream {
    pub(crate) fn new() -> DropStream {
        let (sender, _) = channel(BEHIND);
        let kept = RetainedEvents { events: VecDeque::new(), since: Timestamp::now(), forgotten: 0 };
        DropStream { kept: Mutex::new(kept), sender, followers: Arc::new(Semaphore::new(FOLLOWERS)) }
    }

    pub(crate) fn report(&self, denial: NamedDrop, at: Timestamp) {
        let denial = Arc::new(denial);
        let mut kept = self.kept();
        if kept.events.len() >= KEPT {
            kept.events.pop_front();
            kept.forgotten += 1;
            kept.since = kept.events.front().map_or(at, |(oldest, _)| *oldest);
        }
        kept.events.push_back((at, denial.clone()));
        // It fails if there are no subscribers.
        drop(self.sender.send(denial));
    }

    /// Kept events, and new ones with `follow`. `None` if there are too many followers.
    pub(crate) fn subscribe(&self, query: DropsQuery) -> Option<DropsReader> {
        let place = match query.follow {
            true => Some(self.followers.clone().try_acquire_owned().ok()?),
            false => None,
        };
        let kept = self.kept();
        let coming = query.follow.then(|| self.sender.subscribe());
        let past =
            kept.events.iter().map(|(_, denial)| denial).filter(|denial| query.admits(denial)).cloned().collect();
        Some(DropsReader { query, past, coming, _place: place })
    }

    /// Time since which every event is kept, and the number of older events evicted.
    pub(crate) fn kept_since(&self) -> (Timestamp, u64) {
        let kept = self.kept();
        (kept.since, kept.forgotten)
    }

    fn kept(&self) -> MutexGuard<'_, RetainedEvents> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl DropsReader {
    /// The next line; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<DropLine> {
        if let Some(denial) = self.past.pop_front() {
            return Some(DropLine::Drop(Box::new(NamedDrop::clone(&denial))));
        }
        let coming = self.coming.as_mut()?;
        loop {
            match coming.recv().await {
                Ok(denial) if self.query.admits(&denial) => {
                    return Some(DropLine::Drop(Box::new(NamedDrop::clone(&denial))));
                }
                Ok(_) => {}
                Err(RecvError::Lagged(lost)) => return Some(DropLine::Lost { lost }),
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use policy::{Cause, Judgement};

    use super::*;
    use crate::api::drops::{DropEnd, EndKind};

    fn denial(count: u64, verdict: Judgement) -> NamedDrop {
        let end = DropEnd { address: None, kind: EndKind::Unknown, pod: None, node: None, cluster: None, set: None };
        NamedDrop {
            time: String::new(),
            verdict,
            cause: Cause::Ingress,
            direction: None,
            source: end.clone(),
            destination: end,
            source_identity: None,
            destination_identity: None,
            traffic: String::new(),
            policies: vec![],
            more_policies: 0,
            rule: None,
            passed_by: vec![],
            closest: None,
            would_allow: vec![],
            note: None,
            count,
            node: String::new(),
        }
    }

    fn second(number: u64) -> Timestamp {
        Timestamp::from_second(i64::try_from(number).unwrap()).unwrap()
    }

    fn report(stream: &DropStream, counts: impl IntoIterator<Item = u64>) {
        counts.into_iter().for_each(|count| stream.report(denial(count, Judgement::Denied), second(count)));
    }

    /// Counts of a subscriber's next lines; lost events are negative.
    async fn lines(reader: &mut DropsReader, number: usize) -> Vec<i64> {
        let mut counts = Vec::new();
        for _ in 0..number {
            counts.push(match reader.next().await {
                Some(DropLine::Drop(denial)) => i64::try_from(denial.count).unwrap(),
                Some(DropLine::Lost { lost }) => -i64::try_from(lost).unwrap(),
                None => break,
            });
        }
        counts
    }

    #[tokio::test]
    async fn follower_gets_past_and_new_denials_once() {
        let stream = DropStream::new();
        report(&stream, [1, 2]);
        let mut once = stream.subscribe(DropsQuery::default()).unwrap();
        let mut on = stream.subscribe(DropsQuery { follow: true, ..DropsQuery::default() }).unwrap();
        report(&stream, [3]);
        assert_eq!(lines(&mut once, 9).await, [1, 2]);
        assert_eq!(lines(&mut on, 3).await, [1, 2, 3]);
    }

    #[tokio::test]
    async fn slow_follower_loses_oldest_and_gets_loss_count() {
        let stream = DropStream::new();
        let mut slow = stream.subscribe(DropsQuery { follow: true, ..DropsQuery::default() }).unwrap();
        let behind = u64::try_from(BEHIND).unwrap();
        report(&stream, 1..=behind + 5);
        assert_eq!(lines(&mut slow, 2).await, [-5, 6]);
    }

    #[tokio::test]
    async fn stream_keeps_latest_denials_and_filters_by_verdict() {
        let stream = DropStream::new();
        let kept = u64::try_from(KEPT).unwrap();
        report(&stream, 1..=kept + 1);
        stream.report(denial(7, Judgement::WouldDeny), second(kept + 2));
        let would = DropsQuery { verdict: Some(Judgement::WouldDeny), ..DropsQuery::default() };
        assert_eq!(lines(&mut stream.subscribe(would).unwrap(), 9).await, [7]);
        assert_eq!(lines(&mut stream.subscribe(DropsQuery::default()).unwrap(), 1).await, [3]);
        assert_eq!(stream.kept_since(), (second(3), 2));
    }

    #[test]
    fn followers_are_bounded_but_kept_denials_stay_readable() {
        let (stream, follow) = (DropStream::new(), || DropsQuery { follow: true, ..DropsQuery::default() });
        let mut readers: Vec<Option<DropsReader>> = (0..FOLLOWERS).map(|_| stream.subscribe(follow())).collect();
        assert!(readers.iter().all(Option::is_some) && stream.subscribe(follow()).is_none());
        assert!(stream.subscribe(DropsQuery::default()).is_some());
        readers.pop();
        assert!(stream.subscribe(follow()).is_some());
    }
}
