//! Aggregates the ports of ends that used many of them in one window.
//!
//! Each port has a separate record, and a pod chooses the ports that it connects to: without a bound a port scan would
//! evict the records of all other pods from the ring. The aggregated ports depend only on the records of the window, so
//! both nodes of the connections create the same records as far as they saw the same ports.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::open::Sum;
use crate::{Endpoint, FlowKey};

/// Limit of ports with separate records, per protocol and pair of ends. Workloads rarely listen on more.
pub(crate) const MOST_PORTS: usize = 16;

/// Limit of records with a port per source, which bounds scans of many destinations: a source that reaches it in each
/// window of an hour fills a quarter of the ring, at about 150 bytes per record.
pub(crate) const MOST_PORTS_OF_SOURCE: usize = 256;

/// The ends of connections, and their protocol.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ConnectionEnds {
    source: Endpoint,
    destination: Endpoint,
    protocol: u8,
}

impl ConnectionEnds {
    fn of(key: &FlowKey) -> ConnectionEnds {
        ConnectionEnds { source: key.source.clone(), destination: key.destination.clone(), protocol: key.protocol }
    }
}

/// Replaces the records of ends with more than [`MOST_PORTS`] ports, and of sources with more than
/// [`MOST_PORTS_OF_SOURCE`] records, by records without a port. Returns by how much the number of records fell.
pub(super) fn fold_ports(sums: &mut Vec<Sum>) -> u64 {
    let mut ports: HashMap<ConnectionEnds, BTreeSet<u16>> = HashMap::new();
    for key in sums.iter().map(|sum| &sum.key) {
        if let Some(port) = key.port {
            ports.entry(ConnectionEnds::of(key)).or_default().insert(port);
        }
    }
    let mut of_source: HashMap<Endpoint, usize> = HashMap::new();
    for (pair, ports) in &ports {
        let count = if ports.len() > MOST_PORTS { 1 } else { ports.len() };
        *of_source.entry(pair.source.clone()).or_insert(0) += count;
    }
    ports.retain(|pair, ports| {
        ports.len() > MOST_PORTS || (ports.len() > 1 && of_source[&pair.source] > MOST_PORTS_OF_SOURCE)
    });
    if ports.is_empty() {
        return 0;
    }
    let before = sums.len();
    let mut folded: HashMap<FlowKey, usize> = HashMap::new();
    let mut kept: Vec<Sum> = Vec::with_capacity(before);
    for mut sum in std::mem::take(sums) {
        if !ports.contains_key(&ConnectionEnds::of(&sum.key)) {
            kept.push(sum);
            continue;
        }
        let key = FlowKey { port: None, ..FlowKey::clone(&sum.key) };
        match folded.get(&key) {
            Some(index) => kept[*index].merge(&sum),
            None => {
                folded.insert(key.clone(), kept.len());
                sum.key = Arc::new(key);
                kept.push(sum);
            }
        }
    }
    *sums = kept;
    (before - sums.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, connection, subject};
    use crate::{FlowRecord, Subject, Tracker, Windows};

    /// Records of a window with one denied and one allowed connection per port.
    fn records(of: impl IntoIterator<Item = (u8, u16)>) -> Vec<Arc<FlowRecord>> {
        let (mut tracker, mut windows) = (Tracker::new(10_000, 10_000), Windows::new("worker-1".into(), 10_000));
        for (number, (destination, port)) in of.into_iter().enumerate() {
            let like = subject(destination);
            let key = FlowKey { port: Some(port), ..FlowKey::clone(&like.key) };
            let subject = Arc::new(Subject { key: Arc::new(key), ..Subject::clone(&like) });
            windows.denied(&subject, 2, at(0));
            tracker.begin(&connection(number as u16, None), subject, None, at(0), &mut windows);
        }
        windows.close(at(15_000), &tracker)
    }

    fn started(records: &[Arc<FlowRecord>]) -> u64 {
        records.iter().map(|record| record.connections.started).sum()
    }

    #[test]
    fn ports_of_a_scan_are_summed_up() {
        let scan = (1..=1_000).map(|port| (1, port)).chain([(2, 5432), (2, 5433)]);
        let records = records(scan);
        let ports: Vec<Option<u16>> = records.iter().map(|record| record.key.port).collect();
        assert_eq!(ports, [None, Some(5432), Some(5433)]);
        assert_eq!((started(&records), records[0].connections.live, records[0].denied_packets), (1_002, 1_000, 2_000));
    }

    #[test]
    fn few_ports_have_their_own_records() {
        let most = MOST_PORTS as u16;
        assert_eq!(records((1..=most).map(|port| (1, port))).len(), MOST_PORTS);
        assert_eq!(records((1..=most + 1).map(|port| (1, port))).len(), 1);
    }

    #[test]
    fn source_of_many_pairs_is_bounded() {
        let scan = (0..100).flat_map(|destination| [1, 2, 3].map(|port| (destination, port)));
        let records = records(scan.chain([(200, 80)]));
        assert_eq!((records.len(), started(&records)), (101, 301));
        assert_eq!(records.iter().filter(|record| record.key.port.is_some()).count(), 1);
    }
}
