//! The one task that owns what is known: takes changes in, and publishes what is different, in bursts.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cluster::{Event, Problem, Sync};
use feed::Pace;
use policy::{Diagnostic, Edges};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep_until;

use crate::channel::{Channel, Delta};
use crate::declared::{self, Lists};
use crate::directory::{Applied, Directory};
use crate::edges::Difference;
use crate::identity::{self, Chunk, Exception, Reader};
use crate::metrics::{FeedFigures, Metrics};
use crate::object::Object;
use crate::push::{Outbox, Pending};
use crate::status::Status;

/// How long kinds that only classify are waited for, once everything else is known. What comes later reclassifies.
const CLASSIFYING_WITHIN: Duration = Duration::from_secs(2);

/// A feed's way out.
pub(crate) struct Way {
    pub(crate) channel: Arc<Channel>,
    /// None if nothing is pushed.
    pub(crate) outbox: Option<Arc<Outbox>>,
    pub(crate) figures: FeedFigures,
}

pub(crate) struct Publisher {
    directory: Directory,
    edges: Edges,
    lists: Lists,
    /// What the edges have not been told of yet.
    applied: Applied,
    sync: Sync<Object>,
    /// When everything that is needed was known.
    complete: Option<Instant>,
    pace: Pace,
    /// When the first change came that is not published.
    waiting_since: Option<Instant>,
    identity: Way,
    declared: Way,
    source_problems: Vec<Problem>,
    status: watch::Sender<Arc<Status>>,
    metrics: Arc<Metrics>,
    elected: watch::Receiver<bool>,
    leads: watch::Sender<bool>,
}

/// What a publisher begins with.
pub(crate) struct Parts {
    pub(crate) directory: Directory,
    pub(crate) lists: Lists,
    pub(crate) identity: Way,
    pub(crate) declared: Way,
    pub(crate) status: watch::Sender<Arc<Status>>,
    pub(crate) metrics: Arc<Metrics>,
    /// Whether this process is to be the one that pushes and stores.
    pub(crate) elected: watch::Receiver<bool>,
    /// Whether it is, with something to push.
    pub(crate) leads: watch::Sender<bool>,
}

/// Milliseconds since 1970: greater at every start, as far as clocks go forward.
pub(crate) fn epoch_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

impl Publisher {
    pub(crate) fn new(parts: Parts) -> Publisher {
        let Parts { directory, lists, identity, declared, status, metrics, elected, leads } = parts;
        Publisher {
            directory,
            edges: Edges::new(),
            lists,
            applied: Applied::default(),
            sync: Sync::default(),
            complete: None,
            pace: Pace::new(),
            waiting_since: None,
            identity,
            declared,
            source_problems: vec![],
            status,
            metrics,
            elected,
            leads,
        }
    }

    /// Runs until the source ends.
    pub(crate) async fn run(mut self, mut events: mpsc::Receiver<Event<Object>>) {
        self.tell();
        loop {
            let due = self.next_turn();
            let turn = async {
                match due {
                    Some(at) => sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.take(event),
                    None => return,
                },
                () = turn => {}
                changed = self.elected.changed() => match changed {
                    Ok(()) => self.lead(),
                    Err(_) => return,
                },
            }
            let now = Instant::now();
            if self.directory.next_expiry().is_some_and(|at| at <= now) {
                self.directory.expire(now);
                self.pace.event(now);
            }
            self.publish(now);
        }
    }

    /// When something is to be done although nothing happens.
    fn next_turn(&self) -> Option<Instant> {
        let published = self.identity.channel.baseline().is_some();
        let due = match (published, self.complete) {
            (true, _) => self.pace.due(),
            (false, complete) => complete.map(|at| at + CLASSIFYING_WITHIN),
        };
        [due, self.directory.next_expiry()].into_iter().flatten().min()
    }

    fn take(&mut self, event: Event<Object>) {
        match event {
            Event::Changes(told) => {
                for told in told {
                    self.sync.observe([&told.change]);
                    self.waiting_since = Some(self.waiting_since.map_or(told.at, |at| at.min(told.at)));
                    self.applied.join(self.directory.apply(told.change, Instant::now()));
                }
                let now = Instant::now();
                self.pace.event(now);
                if self.complete.is_none() && self.sync.is_complete() {
                    self.complete = Some(now);
                }
            }
            Event::Problems(problems) => {
                for problem in problems.iter().filter(|problem| !self.source_problems.contains(problem)) {
                    tracing::warn!("{problem}");
                }
                self.source_problems = problems;
                self.tell();
            }
        }
    }

    fn publish(&mut self, now: Instant) {
        if self.identity.channel.baseline().is_some() {
            if self.pace.take(now) {
                self.publish_changes(now);
            }
            return;
        }
        let is_classified = self.sync.unlisted().next().is_none();
        let Some(complete) = self.complete else { return };
        if is_classified || complete + CLASSIFYING_WITHIN <= now {
            self.publish_first();
        }
    }

    /// The tables as they are now are where the epoch begins.
    fn publish_first(&mut self) {
        let (identities, lines) = (self.directory.take_changes(), self.follow());
        drop((identities, lines));
        self.pace = Pace::new();
        self.waiting_since = None;
        let (snapshot, exceptions) = self.table();
        self.identity.channel.publish(vec![], |at| identity::baseline(snapshot, exceptions, at));
        let lists = self.lists.clone();
        self.declared.channel.publish(vec![], |at| declared::baseline(lists, at));
        for way in [&self.identity, &self.declared] {
            if let Some(baseline) = way.channel.baseline() {
                way.figures.published(0, baseline.position, baseline.count);
                tracing::info!(
                    feed = way.channel.name,
                    version = baseline.version,
                    entries = baseline.count,
                    "published"
                );
            }
        }
        self.leads.send_replace(*self.elected.borrow());
        self.tell();
    }

    fn publish_changes(&mut self, now: Instant) {
        let identities = identity::chunks(self.directory.take_changes());
        let lines = declared::chunks(self.follow());
        if !identities.is_empty() {
            let (snapshot, exceptions) = self.table();
            let chunks: Vec<Arc<Chunk>> = identities.into_iter().map(Arc::new).collect();
            let delta = |chunk: &Arc<Chunk>| -> Delta {
                let chunk = chunk.clone();
                Box::new(move |at| chunk.json(at, Reader::Follower))
            };
            let deltas = chunks.iter().map(delta).collect();
            let events = self.identity.channel.publish(deltas, |at| identity::baseline(snapshot, exceptions, at));
            let pushed = |(event, chunk): (&Arc<feed::Event>, &Arc<Chunk>)| Pending {
                position: event.position,
                json: chunk.json(event.position, Reader::Relay).into(),
            };
            self.identity.tell(events.iter().zip(&chunks).map(pushed).collect());
        }
        if !lines.is_empty() {
            let lists = self.lists.clone();
            let delta = |chunk: declared::Chunk| -> Delta { Box::new(move |at| chunk.json(at)) };
            let deltas = lines.into_iter().map(delta).collect();
            let events = self.declared.channel.publish(deltas, |at| declared::baseline(lists, at));
            let pushed = |event: &Arc<feed::Event>| Pending { position: event.position, json: event.json.clone() };
            self.declared.tell(events.iter().map(pushed).collect());
        }
        if let Some(since) = self.waiting_since.take() {
            self.metrics.published(now.saturating_duration_since(since));
        }
        self.tell();
    }

    /// Brings the edges up to date; what differs in their text.
    fn follow(&mut self) -> Difference {
        let Applied { changed, renamed } = std::mem::take(&mut self.applied);
        let directory = &self.directory;
        let workload_of = |pod: &policy::Pod| directory.workload_of(pod);
        let changes = self.edges.update(directory.state(), &changed, &workload_of, &renamed);
        self.lists.apply(&changes)
    }

    fn table(&self) -> (crate::directory::Snapshot, Vec<Exception>) {
        let exceptions = self.directory.exceptions().map(|(sid, num)| Exception { sid, num }).collect();
        (self.directory.published().clone(), exceptions)
    }

    /// Another term begins, or this one has ended: who begins to push begins another epoch.
    fn lead(&mut self) {
        let elected = *self.elected.borrow_and_update();
        if self.identity.channel.baseline().is_some() {
            if elected {
                let (epoch, reason) = (epoch_now(), "this provider leads now");
                let (snapshot, exceptions) = self.table();
                self.identity.channel.renew(epoch, reason, |at| identity::baseline(snapshot, exceptions, at));
                let lists = self.lists.clone();
                self.declared.channel.renew(epoch, reason, |at| declared::baseline(lists, at));
            }
            self.leads.send_replace(elected);
        }
        self.tell();
    }

    fn tell(&self) {
        let mut problems = self.source_problems.clone();
        let denying = self.directory.state().problems();
        problems.extend(denying.into_iter().map(|Diagnostic { kind, object, field, message, .. }| Problem {
            origin: format!("{kind} {object} {field}"),
            message,
        }));
        problems.extend(self.directory.problems().cloned());
        if self.edges.is_withheld() {
            let message = format!("there are more than {}, so that none is published", policy::MOST_EDGES);
            problems.push(Problem { origin: "declared edges".into(), message });
        }
        let status = Status {
            missing: self.sync.missing().iter().map(ToString::to_string).collect(),
            published: self.identity.channel.baseline().is_some(),
            leads: *self.leads.borrow(),
            problems,
            cluster: self.status.borrow().cluster.clone(),
        };
        // An error means that nobody looks.
        drop(self.status.send(Arc::new(status)));
    }
}

impl Way {
    /// What was published goes to the relay, too.
    fn tell(&self, deltas: Vec<Pending>) {
        if let Some(baseline) = self.channel.baseline() {
            self.figures.published(deltas.len(), baseline.position, baseline.count);
        }
        if let Some(outbox) = &self.outbox {
            outbox.put(deltas);
            self.figures.waiting(outbox.waiting());
        }
    }
}
