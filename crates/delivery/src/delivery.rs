//! The agent's side of delivery: one sender per aggregator.
//!
//! A plain URL has one sender, however many addresses its host has. With `dns+` each address of the host is a separate
//! aggregator that receives every record: the replicas of a Deployment behind a headless Service. The name is resolved
//! periodically, so that replicas can be added and removed without reconfiguring the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flow::RecordBatch;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use crate::figures::DeliveryFigures;
use crate::sender::{Sender, Start};
use crate::target::{DeliveryTarget, Server};

/// Interval between lookups of the host name. The ring has an hour of records for an aggregator that is added later.
const LOOKUP: Duration = Duration::from_secs(10);

/// Limit of aggregators. Each receives every record, so more than a few are a misconfiguration.
const MOST_SERVERS: usize = 8;

/// Delivery of one agent.
pub struct Delivery {
    node: String,
    epoch: u64,
    target: Arc<DeliveryTarget>,
    figures: DeliveryFigures,
}

impl Delivery {
    /// `epoch` identifies the agent's process.
    pub fn new(node: String, epoch: u64, target: DeliveryTarget) -> Delivery {
        Delivery { node, epoch, target: Arc::new(target), figures: DeliveryFigures::default() }
    }

    pub fn figures(&self) -> DeliveryFigures {
        self.figures.clone()
    }

    /// Sends records until the agent shuts down. `batch` reads the ring from a sequence number; `closed` changes when
    /// records were pushed.
    pub async fn run<F>(self, closed: watch::Receiver<u64>, batch: F)
    where
        F: Fn(u64, usize) -> RecordBatch + Send + Sync + 'static,
    {
        if self.target.is_each_address() {
            let (host, port) = self.target.host_and_port();
            let host = host.to_owned();
            let lookup = move || {
                let host = host.clone();
                async move { tokio::net::lookup_host((host.as_str(), port)).await.map(Iterator::collect) }
            };
            self.run_to_each(closed, batch, lookup).await;
        } else {
            self.figures.add_server(None);
            self.sender(None, Start::FirstRecord).run(closed, batch).await;
        }
    }

    fn sender(&self, address: Option<SocketAddr>, start: Start) -> Sender {
        let server = Server::new(self.target.clone(), address);
        Sender::new(self.node.clone(), self.epoch, server, self.figures.clone(), start)
    }

    /// Sends records to each address that `lookup` returns. After a failed lookup the previous addresses remain in use.
    async fn run_to_each<F, L>(self, closed: watch::Receiver<u64>, batch: F, lookup: impl Fn() -> L)
    where
        F: Fn(u64, usize) -> RecordBatch + Send + Sync + 'static,
        L: Future<Output = io::Result<Vec<SocketAddr>>>,
    {
        let batch = Arc::new(batch);
        let mut tasks = JoinSet::new();
        let mut senders: BTreeMap<SocketAddr, AbortHandle> = BTreeMap::new();
        let mut start = Start::FirstRecord;
        let mut is_excess_logged = false;
        while closed.has_changed().is_ok() {
            let (host, _) = self.target.host_and_port();
            match lookup().await.map(of_one_family) {
                Ok(found) if found.is_empty() => self.figures.lookup_failed(format!("{host} has no address")),
                Err(error) => self.figures.lookup_failed(format!("cannot resolve {host}: {error}")),
                Ok(found) => {
                    self.figures.lookup_succeeded();
                    senders.retain(|address, task| {
                        // A task that ended is restarted.
                        let is_kept = found.contains(address) && !task.is_finished();
                        if !is_kept {
                            task.abort();
                            self.figures.remove_server(Some(*address));
                            tracing::info!("flow records are not sent to {host} at {address} any more");
                        }
                        is_kept
                    });
                    for address in
                        found.into_iter().filter(|address| !senders.contains_key(address)).collect::<Vec<_>>()
                    {
                        if senders.len() >= MOST_SERVERS {
                            if !is_excess_logged {
                                is_excess_logged = true;
                                tracing::warn!(
                                    "{host} has more than {MOST_SERVERS} addresses; flow records are not sent to {address}"
                                );
                            }
                            break;
                        }
                        tracing::info!("flow records are sent to {host} at {address}");
                        self.figures.add_server(Some(address));
                        let (sender, closed, batch) =
                            (self.sender(Some(address), start), closed.clone(), batch.clone());
                        let task = tasks.spawn(sender.run(closed, move |sequence, most| batch(sequence, most)));
                        senders.insert(address, task);
                    }
                    start = Start::OldestRecord;
                }
            }
            tokio::time::sleep(LOOKUP).await;
            while tasks.try_join_next().is_some() {}
        }
    }
}

/// Addresses of the family that the resolver prefers. A replica with an address of each family would receive every
/// record twice.
fn of_one_family(addresses: Vec<SocketAddr>) -> BTreeSet<SocketAddr> {
    let is_preferred_ipv4 = addresses.first().is_some_and(SocketAddr::is_ipv4);
    addresses.into_iter().filter(|address| address.is_ipv4() == is_preferred_ipv4).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::future::ready;
    use std::sync::Mutex;

    use feed::Access;

    use super::*;

    /// Delivery whose successive lookups return these addresses; the last result repeats.
    fn deliver(lookups: Vec<Option<Vec<SocketAddr>>>) -> (DeliveryFigures, watch::Sender<u64>) {
        let target = DeliveryTarget::new("dns+http://flows:1", Access::default(), None).unwrap();
        let delivery = Delivery::new("node".into(), 1, target);
        let figures = delivery.figures();
        let (closed, receiver) = watch::channel(0);
        let lookups = Mutex::new(VecDeque::from(lookups));
        let lookup = move || {
            let mut lookups = lookups.lock().unwrap();
            let found = if lookups.len() > 1 { lookups.pop_front() } else { lookups.front().cloned() };
            ready(found.flatten().ok_or_else(|| io::Error::other("no such host")))
        };
        let batch = |_, _| RecordBatch { first: 1, oldest: 1, newest: 0, records: Vec::new() };
        tokio::spawn(async move { delivery.run_to_each(receiver, batch, lookup).await });
        (figures, closed)
    }

    /// Loopback addresses with a port without a listener.
    fn hosts(hosts: impl IntoIterator<Item = u8>) -> Vec<SocketAddr> {
        hosts.into_iter().map(|host| SocketAddr::from(([127, 0, 0, host], 1))).collect()
    }

    async fn servers_after(figures: &DeliveryFigures, lookups: u32) -> usize {
        tokio::time::sleep(LOOKUP * lookups - LOOKUP / 2).await;
        figures.view().servers
    }

    #[tokio::test(start_paused = true)]
    async fn servers_follow_the_addresses_of_the_name() {
        let lookups = vec![None, Some(hosts([1, 2])), None, Some(hosts([2, 3])), Some(hosts([3]))];
        let (figures, _closed) = deliver(lookups);
        assert_eq!(servers_after(&figures, 1).await, 0);
        let failure = figures.view().failure.unwrap();
        assert_eq!(failure, "cannot resolve flows: no such host");
        let mut servers = Vec::new();
        for _ in 0..4 {
            tokio::time::sleep(LOOKUP).await;
            servers.push(figures.view().servers);
        }
        assert_eq!(servers, [2, 2, 2, 1], "a failed lookup keeps the servers");
        assert!(figures.view().failures > 2, "each server is called");
    }

    #[tokio::test(start_paused = true)]
    async fn addresses_beyond_the_bound_get_nothing() {
        let (figures, _closed) = deliver(vec![Some(hosts(1..=20))]);
        assert_eq!(servers_after(&figures, 3).await, MOST_SERVERS);
    }

    #[tokio::test(start_paused = true)]
    async fn delivery_ends_with_the_agent() {
        let (figures, closed) = deliver(vec![Some(hosts([1]))]);
        assert_eq!(servers_after(&figures, 1).await, 1);
        drop(closed);
        tokio::time::sleep(LOOKUP * 4).await;
        let called = figures.view().failures;
        tokio::time::sleep(LOOKUP * 30).await;
        assert_eq!(figures.view().failures, called);
    }

    #[test]
    fn one_family_is_used() {
        let mixed = ["[::1]:1", "127.0.0.1:1", "[::2]:1"].map(|text| text.parse().unwrap());
        let expected = ["[::1]:1", "[::2]:1"].map(|text| text.parse().unwrap());
        assert_eq!(of_one_family(mixed.into()), BTreeSet::from(expected));
    }
}
