//! Delivery counters: records sent to each aggregator, for metrics and status.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Snapshot of the delivery counters, summed over all aggregators.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeliveryView {
    /// Current aggregators.
    pub servers: usize,
    /// Records in successful calls; a record that is sent again counts again.
    pub sent: u64,
    /// The last record that every aggregator has acknowledged.
    pub acknowledged: u64,
    /// Records that left the ring before they were acknowledged, for each aggregator that lacks them.
    pub dropped: u64,
    /// Failed calls, and failed lookups of the host name.
    pub failures: u64,
    /// Error of the last failed call to an aggregator, until a later call to it succeeds.
    pub failure: Option<String>,
}

/// Delivery counters, shared with the sender tasks.
#[derive(Debug, Clone, Default)]
pub struct DeliveryFigures(Arc<DeliveryState>);

#[derive(Debug, Default)]
struct DeliveryState {
    figures: Mutex<Figures>,
    /// Number of changes of acknowledged or dropped records.
    changes: watch::Sender<u64>,
    /// Whether the agent ends, so that failed calls are repeated without backoff.
    is_flushing: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Figures {
    /// Counters of removed aggregators and of lookups.
    totals: Totals,
    servers: BTreeMap<Option<SocketAddr>, ServerFigures>,
    lookup_failure: Option<String>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    sent: u64,
    dropped: u64,
    failures: u64,
}

impl Totals {
    fn add(&mut self, other: Totals) {
        let Totals { sent, dropped, failures } = other;
        self.sent += sent;
        self.dropped += dropped;
        self.failures += failures;
    }
}

#[derive(Debug, Default)]
struct ServerFigures {
    totals: Totals,
    acknowledged: u64,
    /// The highest record that was acknowledged or dropped. An aggregator that lost its memory acknowledges fewer.
    passed: u64,
    failure: Option<String>,
}

impl DeliveryFigures {
    pub fn view(&self) -> DeliveryView {
        let figures = self.lock();
        let mut totals = figures.totals;
        figures.servers.values().for_each(|server| totals.add(server.totals));
        let Totals { sent, dropped, failures } = totals;
        let failure = figures.lookup_failure.as_ref();
        DeliveryView {
            servers: figures.servers.len(),
            sent,
            acknowledged: figures.servers.values().map(|server| server.acknowledged).min().unwrap_or(0),
            dropped,
            failures,
            failure: failure.or_else(|| figures.servers.values().find_map(|server| server.failure.as_ref())).cloned(),
        }
    }

    /// Records up to `newest` that at least one aggregator has never acknowledged, without those counted as dropped.
    pub fn undelivered(&self, newest: u64) -> u64 {
        let figures = self.lock();
        let undelivered = figures.servers.values().map(|server| newest.saturating_sub(server.passed));
        undelivered.max().unwrap_or(newest)
    }

    /// Waits until every aggregator has acknowledged the records up to `newest`. From this call to the end of the
    /// process, senders repeat failed calls without backoff.
    pub async fn flush(&self, newest: u64) {
        self.0.is_flushing.send_replace(true);
        let mut changes = self.changes();
        while self.lock().servers.values().any(|server| server.acknowledged < newest) {
            // The sender lives as long as these figures.
            drop(changes.changed().await);
        }
    }

    /// Notifies of acknowledged and dropped records.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Waits until the agent ends.
    pub(crate) async fn flushing(&self) {
        // The sender lives as long as these figures.
        drop(self.0.is_flushing.subscribe().wait_for(|is_flushing| *is_flushing).await);
    }

    /// Counts records of an earlier agent process that no aggregator can receive any more.
    pub fn add_lost(&self, records: u64) {
        self.lock().totals.dropped += records;
    }

    pub(crate) fn add_server(&self, address: Option<SocketAddr>) {
        self.lock().servers.entry(address).or_default();
    }

    pub(crate) fn remove_server(&self, address: Option<SocketAddr>) {
        let mut figures = self.lock();
        if let Some(removed) = figures.servers.remove(&address) {
            figures.totals.add(removed.totals);
        }
        drop(figures);
        self.changed();
    }

    pub(crate) fn add_dropped(&self, address: Option<SocketAddr>, records: u64) {
        self.with(address, |server| server.totals.dropped += records);
    }

    /// Records up to this one are acknowledged or dropped.
    pub(crate) fn pass(&self, address: Option<SocketAddr>, record: u64) {
        self.with(address, |server| server.passed = record);
        self.changed();
    }

    fn changed(&self) {
        self.0.changes.send_modify(|changes| *changes += 1);
    }

    pub(crate) fn succeeded(&self, address: Option<SocketAddr>, name: &str, sent: usize, acknowledged: u64) {
        self.with(address, |server| {
            if server.failure.take().is_some() {
                tracing::info!("flow records are delivered to {name} again");
            }
            server.totals.sent += sent as u64;
            server.acknowledged = acknowledged;
        });
        self.changed();
    }

    pub(crate) fn failed(&self, address: Option<SocketAddr>, name: &str, why: String) {
        self.with(address, |server| {
            server.totals.failures += 1;
            if server.failure.as_ref() != Some(&why) {
                tracing::warn!("cannot deliver flow records to {name}, they are kept and sent later: {why}");
            }
            server.failure = Some(why);
        });
    }

    pub(crate) fn lookup_succeeded(&self) {
        self.lock().lookup_failure = None;
    }

    pub(crate) fn lookup_failed(&self, why: String) {
        let mut figures = self.lock();
        figures.totals.failures += 1;
        if figures.lookup_failure.as_ref() != Some(&why) {
            tracing::warn!("cannot look up the aggregators of flow records: {why}");
        }
        figures.lookup_failure = Some(why);
    }

    /// Later calls to a removed aggregator are not counted.
    fn with(&self, address: Option<SocketAddr>, change: impl FnOnce(&mut ServerFigures)) {
        if let Some(server) = self.lock().servers.get_mut(&address) {
            change(server);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Figures> {
        self.0.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_removed_servers_stay_in_the_sums() {
        let figures = DeliveryFigures::default();
        let [first, second] = [1, 2].map(|host| Some(SocketAddr::from(([127, 0, 0, host], 1))));
        figures.add_server(first);
        figures.add_server(second);
        figures.succeeded(first, "first", 10, 10);
        figures.succeeded(second, "second", 4, 4);
        figures.failed(first, "first", "down".into());
        let view = figures.view();
        assert_eq!((view.servers, view.sent, view.acknowledged, view.failures), (2, 14, 4, 1));
        assert_eq!(view.failure.as_deref(), Some("down"));

        figures.remove_server(first);
        figures.succeeded(first, "first", 1, 11);
        let expected = DeliveryView { servers: 1, sent: 14, acknowledged: 4, dropped: 0, failures: 1, failure: None };
        assert_eq!(figures.view(), expected);
    }

    #[test]
    fn failed_lookup_is_reported_until_one_succeeds() {
        let figures = DeliveryFigures::default();
        figures.lookup_failed("no such host".into());
        assert_eq!(figures.view().failure.as_deref(), Some("no such host"));
        figures.lookup_succeeded();
        assert_eq!((figures.view().failure, figures.view().failures), (None, 1));
    }

    #[tokio::test]
    async fn flush_waits_for_every_aggregator() {
        let figures = DeliveryFigures::default();
        figures.flush(9).await;
        let [first, second] = [1, 2].map(|host| Some(SocketAddr::from(([127, 0, 0, host], 1))));
        figures.add_server(first);
        figures.add_server(second);
        let flushed = tokio::spawn({
            let figures = figures.clone();
            async move { figures.flush(9).await }
        });
        figures.pass(first, 9);
        figures.succeeded(first, "first", 9, 9);
        figures.pass(second, 8);
        figures.succeeded(second, "second", 8, 8);
        tokio::task::yield_now().await;
        assert!(!flushed.is_finished());
        assert_eq!(figures.undelivered(9), 1);
        figures.remove_server(second);
        flushed.await.unwrap();
    }
}
