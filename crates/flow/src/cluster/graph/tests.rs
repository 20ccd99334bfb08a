use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::testing::{cluster_records, pod, record_of};
use crate::{FlowRecord, join};

fn sum(records: &[&ClusterRecord], of: impl Fn(&FlowRecord) -> u64) -> u64 {
    records.iter().map(|joined| of(&joined.record)).sum()
}

/// Computes the expected fields directly from the records.
fn assert_traffic(traffic: &EdgeTraffic, records: &[&ClusterRecord]) -> Result<(), TestCaseError> {
    prop_assert_eq!(traffic.connections, sum(records, |record| record.connections.started));
    prop_assert_eq!(traffic.denied_packets, sum(records, |record| record.denied_packets));
    prop_assert_eq!(traffic.unknown_volume, sum(records, |record| record.unknown_volume));
    prop_assert_eq!(traffic.sent.is_some(), records.iter().any(|joined| joined.record.sent.is_some()));
    let bytes = |volume: Option<Volume>| volume.map_or(0, |volume| volume.bytes);
    prop_assert_eq!(bytes(traffic.sent), sum(records, |record| bytes(record.sent)));
    prop_assert_eq!(bytes(traffic.received), sum(records, |record| bytes(record.received)));
    let VerdictCounts { allowed, would_deny, denied } = traffic.verdicts;
    for (verdict, count) in
        [(FlowVerdict::Allowed, allowed), (FlowVerdict::WouldDeny, would_deny), (FlowVerdict::Denied, denied)]
    {
        let of: Vec<&ClusterRecord> =
            records.iter().copied().filter(|joined| joined.record.key.verdict == verdict).collect();
        prop_assert_eq!(count.records, of.len() as u64);
        prop_assert_eq!(count.connections, sum(&of, |record| record.connections.started));
        prop_assert_eq!(count.denied_packets, sum(&of, |record| record.denied_packets));
    }
    Ok(())
}

proptest! {
    #[test]
    fn edges_are_sums_over_records(records in cluster_records(), most_pairs in 1usize..40, most_edges in 1usize..20) {
        let mut builder = GraphBuilder::new();
        for joined in &records {
            builder.add_within(joined, most_pairs);
        }
        let graph = builder.finish(most_edges);
        let pairs: BTreeSet<_> =
            records.iter().map(|joined| (&joined.record.key.source, &joined.record.key.destination)).collect();
        prop_assert_eq!(graph.edges.len(), pairs.len().min(most_edges).min(most_pairs));
        prop_assert_eq!(graph.truncated, graph.edges.len() < pairs.len());
        let mut listed = BTreeSet::new();
        for edge in &graph.edges {
            let ends = (&graph.nodes[edge.source], &graph.nodes[edge.destination]);
            prop_assert!(listed.insert(ends), "an edge is listed once");
            let of: Vec<&ClusterRecord> = records
                .iter()
                .filter(|joined| (&joined.record.key.source, &joined.record.key.destination) == ends)
                .collect();
            assert_traffic(&edge.traffic, &of)?;
            prop_assert_eq!(Some(edge.first), of.iter().map(|joined| joined.record.first).min());
            prop_assert_eq!(Some(edge.last), of.iter().map(|joined| joined.record.last).max());
            for port in &edge.ports {
                let to_port: Vec<&ClusterRecord> = of
                    .iter()
                    .copied()
                    .filter(|joined| (joined.record.key.protocol, joined.record.key.port) == (port.protocol, port.port))
                    .collect();
                prop_assert_eq!(port.connections, sum(&to_port, |record| record.connections.started));
                prop_assert_eq!(port.denied_packets, sum(&to_port, |record| record.denied_packets));
            }
        }
        let others: Vec<&ClusterRecord> = records
            .iter()
            .filter(|joined| !listed.contains(&(&joined.record.key.source, &joined.record.key.destination)))
            .collect();
        assert_traffic(&graph.other, &others)?;
        // No edge outside the list is heavier than the lightest listed one.
        if most_pairs >= pairs.len() {
            let weight = |ends: &(&Endpoint, &Endpoint)| {
                let of: Vec<&ClusterRecord> = records
                    .iter()
                    .filter(|joined| (&joined.record.key.source, &joined.record.key.destination) == *ends)
                    .collect();
                sum(&of, |record| record.connections.started + record.denied_packets)
            };
            let lightest = listed.iter().map(weight).min().unwrap_or(u64::MAX);
            prop_assert!(pairs.difference(&listed).all(|ends| weight(ends) <= lightest));
        }
        let used: BTreeSet<usize> = graph.edges.iter().flat_map(|edge| [edge.source, edge.destination]).collect();
        prop_assert_eq!(used.len(), graph.nodes.len());
    }
}

#[test]
fn ports_of_a_scan_are_bounded() {
    let records: Vec<FlowRecord> = (1..=200)
        .map(|port| {
            let mut record = record_of("n1", 0);
            let key = Arc::make_mut(&mut record.key);
            key.port = Some(port);
            key.destination = pod("shop", "db");
            record.denied_packets = 1 + u64::from(port == 7);
            record
        })
        .collect();
    let mut builder = GraphBuilder::new();
    join(&records).iter().for_each(|joined| builder.add(joined));
    assert!(builder.pairs.values().all(|pair| pair.ports.len() == MOST_PORTS));
    let graph = builder.finish(10);
    let [edge] = &*graph.edges else { panic!("one edge") };
    assert_eq!((edge.ports.len(), edge.ports_truncated, edge.traffic.denied_packets), (LISTED_PORTS, true, 201));
    assert_eq!(edge.ports[0].port, Some(7), "the one with most packets is the first");
}
