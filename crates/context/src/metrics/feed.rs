//! Metrics of one feed, and the state of its relay and store for the status.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use feed::Position;

use super::{Families, number};

/// Destinations of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FeedDestination {
    Relay,
    Store,
}

impl FeedDestination {
    pub(crate) const ALL: [FeedDestination; 2] = [FeedDestination::Relay, FeedDestination::Store];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            FeedDestination::Relay => "relay",
            FeedDestination::Store => "store",
        }
    }
}

/// State of the deliveries to an outlet.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeliveryState {
    pub(crate) last: Option<Instant>,
    /// Error of the last try, until one succeeds.
    pub(crate) failure: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct FeedFigures {
    pub(crate) name: &'static str,
    families: Families,
    shared: Arc<SharedFigures>,
}

#[derive(Debug, Default)]
struct SharedFigures {
    backlog: AtomicUsize,
    subscribers: AtomicUsize,
    delivered: Mutex<[DeliveryState; 2]>,
}

impl FeedFigures {
    pub(super) fn new(name: &'static str, families: Families) -> FeedFigures {
        let label = [("feed", name)];
        // Creates the series, so that they are exported as 0.
        drop(families.deltas.get_or_create(&label));
        drop(families.dropped_subscribers.get_or_create(&label));
        let figures = FeedFigures { name, families, shared: Arc::default() };
        for outlet in FeedDestination::ALL {
            drop(figures.families.deliveries.get_or_create(&figures.pair(outlet)));
            drop(figures.families.failures.get_or_create(&figures.pair(outlet)));
            drop(figures.families.reseeds.get_or_create(&figures.pair(outlet)));
        }
        figures
    }

    pub(crate) fn published(&self, deltas: usize, at: Position, entries: usize) {
        let label = [("feed", self.name)];
        self.families.deltas.get_or_create(&label).inc_by(deltas as u64);
        self.families.sequence.get_or_create(&label).set(i64::try_from(at.seq).unwrap_or(i64::MAX));
        self.families.entries.get_or_create(&label).set(number(entries));
    }

    pub(crate) fn encoded(&self, bytes: usize) {
        self.families.baseline_bytes.get_or_create(&[("feed", self.name)]).set(number(bytes));
    }

    pub(crate) fn waiting(&self, deltas: usize) {
        self.shared.backlog.store(deltas, Ordering::Relaxed);
    }

    pub(crate) fn subscribed(&self) {
        self.shared.subscribers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn left(&self) {
        self.shared.subscribers.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn subscribers(&self) -> usize {
        self.shared.subscribers.load(Ordering::Relaxed)
    }

    pub(crate) fn dropped(&self) {
        self.families.dropped_subscribers.get_or_create(&[("feed", self.name)]).inc();
    }

    pub(crate) fn took(&self, outlet: FeedDestination, time: Duration) {
        self.families.took.get_or_create(&self.pair(outlet)).observe(time.as_secs_f64());
    }

    pub(crate) fn delivered(&self, outlet: FeedDestination) {
        self.families.deliveries.get_or_create(&self.pair(outlet)).inc();
        self.lock()[outlet as usize] = DeliveryState { last: Some(Instant::now()), failure: None };
    }

    /// The outlet has lost its content, which is delivered again.
    pub(crate) fn reseeded(&self, outlet: FeedDestination) {
        self.families.reseeds.get_or_create(&self.pair(outlet)).inc();
    }

    /// The outlet responds and has its content: clears an earlier failure.
    pub(crate) fn confirmed(&self, outlet: FeedDestination) {
        self.lock()[outlet as usize].failure = None;
    }

    /// Records a failure. Returns true if it differs from the last one.
    pub(crate) fn failed(&self, outlet: FeedDestination, why: &str) -> bool {
        self.families.failures.get_or_create(&self.pair(outlet)).inc();
        let mut delivered = self.lock();
        let known = &mut delivered[outlet as usize].failure;
        let is_news = known.as_deref() != Some(why);
        *known = Some(why.to_owned());
        is_news
    }

    pub(crate) fn of(&self, outlet: FeedDestination) -> DeliveryState {
        self.lock()[outlet as usize].clone()
    }

    pub(crate) fn backlog(&self) -> usize {
        self.shared.backlog.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, now: Instant) {
        let label = [("feed", self.name)];
        self.families.backlog.get_or_create(&label).set(number(self.backlog()));
        self.families.subscribers.get_or_create(&label).set(number(self.subscribers()));
        for outlet in FeedDestination::ALL {
            let age = self.of(outlet).last.map_or(f64::NAN, |at| now.saturating_duration_since(at).as_secs_f64());
            self.families.last_success_age.get_or_create(&self.pair(outlet)).set(age);
        }
    }

    fn pair(&self, outlet: FeedDestination) -> super::Pairs {
        [("feed", self.name), ("outlet", outlet.as_str())]
    }

    fn lock(&self) -> MutexGuard<'_, [DeliveryState; 2]> {
        self.shared.delivered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
