use flow::{FlowKey, FlowRecord, SeenBy, SideTrace};
use proptest::prelude::*;

use super::*;

const LIMITS: LedgerLimits = LedgerLimits {
    bytes: 1 << 20,
    retention: SignedDuration::from_hours(24 * 30),
    learning: SignedDuration::from_hours(1),
};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_777_896_000 + seconds).unwrap()
}

fn pod(name: &str) -> Endpoint {
    Endpoint {
        kind: EndpointKind::Pod,
        namespace: Some("shop".into()),
        name: Some(name.into()),
        service: Some("shop".into()),
        cluster: None,
        network: None,
    }
}

/// A record to `shop/db` in the window at a time.
fn record(source: &str, port: u16, verdict: FlowVerdict, started: u64, seconds: i64) -> ClusterRecord {
    let side = SideTrace {
        verdict: TraceVerdict::NotIsolated,
        enforced_here: true,
        enforced: vec![],
        pending: vec![],
        passed_by: vec![],
    };
    let key = FlowKey {
        source: pod(source),
        destination: pod("db"),
        protocol: 6,
        port: Some(port),
        icmp_type: None,
        service: None,
        verdict,
        drop_cause: None,
        egress: side.clone(),
        ingress: side,
    };
    let sample = |name: &str| {
        Arc::new(EndSample { pods: [format!("shop/{name}-{seconds}").into()].into(), ..EndSample::default() })
    };
    let denied = u64::from(verdict != FlowVerdict::Allowed);
    let record = FlowRecord {
        window: at(seconds - seconds.rem_euclid(15)),
        node: "n1".into(),
        key: Arc::new(key),
        sources: sample(source),
        destinations: sample("db"),
        connections: Connections { started, ..Connections::default() },
        sent: None,
        received: None,
        unknown_volume: 0,
        denied_packets: denied,
        generation: None,
        first: at(seconds),
        last: at(seconds + 1),
    };
    ClusterRecord {
        record,
        source_verdict: Some(verdict),
        destination_verdict: None,
        seen_by: SeenBy::default().into(),
    }
}

fn through_json(ledger: &EdgeLedger) -> EdgeLedger {
    let text = serde_json::to_string(&ledger.save()).unwrap();
    EdgeLedger::restore(serde_json::from_str(&text).unwrap(), ledger.limits())
}

fn records() -> impl Strategy<Value = Vec<ClusterRecord>> {
    let verdict = prop::sample::select(vec![FlowVerdict::Allowed, FlowVerdict::WouldDeny, FlowVerdict::Denied]);
    let one = (prop::sample::select(vec!["web", "api", "job"]), 1u16..4, verdict, 0u64..5, 0i64..40_000);
    let one = one.prop_map(|(source, port, verdict, started, seconds)| record(source, port, verdict, started, seconds));
    prop::collection::vec(one, 0..60)
}

proptest! {
    #[test]
    fn sums_equal_injected_ones_across_restores(records in records(), every in 1usize..20, bytes in 2_000usize..20_000) {
        let mut ledger = EdgeLedger::new(LedgerLimits { bytes, ..LIMITS }, at(0));
        for (index, record) in records.iter().enumerate() {
            ledger.add(record);
            if index % every == 0 {
                let restored = through_json(&ledger);
                prop_assert_eq!(&restored, &ledger);
                ledger = restored;
            }
            prop_assert!(ledger.counts().bytes <= bytes + 1_000, "by at most one sample");
        }
        let counts = ledger.counts();
        let sum = |of: fn(&LedgerEdge) -> u64| ledger.edges().map(of).sum::<u64>();
        let connections = records.iter().map(|joined| joined.record.connections.started).sum::<u64>();
        prop_assert_eq!(counts.records + counts.left_out_records, records.len() as u64);
        prop_assert_eq!(sum(|edge| edge.observed.connections) + counts.left_out_connections, connections);
        prop_assert_eq!(sum(|edge| edge.observed.connections), counts.connections);
        let by_verdict = sum(|edge| {
            let VerdictCounts { allowed, would_deny, denied } = &edge.by_verdict;
            allowed.records + would_deny.records + denied.records
        });
        prop_assert_eq!(by_verdict, counts.records);
        let bytes_now = ledger.edges().map(size_of_edge).sum::<usize>();
        prop_assert_eq!(counts.bytes, bytes_now);
    }

    #[test]
    fn each_edge_is_an_event_once(records in records(), every in 1usize..20) {
        let mut ledger = EdgeLedger::new(LIMITS, at(0));
        let mut raised: Vec<FirstSeen> = Vec::new();
        for (index, record) in records.iter().enumerate() {
            ledger.add(record);
            if index % every == 0 {
                raised.extend(ledger.pending().iter().cloned());
                ledger.confirm(ledger.pending().len());
                ledger = through_json(&ledger);
            }
        }
        raised.extend(ledger.pending().iter().cloned());
        let mut expected: BTreeMap<(Option<Arc<str>>, Option<u16>), Timestamp> = BTreeMap::new();
        for ClusterRecord { record, .. } in &records {
            expected.entry((record.key.source.name.clone(), record.key.port)).or_insert(record.first);
        }
        expected.retain(|_, first| *first >= at(3_600));
        prop_assert!(raised.len() <= 9, "one for each edge");
        let raised: BTreeMap<_, _> =
            raised.iter().map(|event| (event, &event.joined.record.key)).map(|(event, key)| {
                ((key.source.name.clone(), key.port), event.at())
            }).collect();
        prop_assert_eq!(raised, expected);
    }
}

#[test]
fn edges_leave_after_retention_and_are_counted() {
    let mut ledger = EdgeLedger::new(LIMITS, at(0));
    ledger.add(&record("web", 80, FlowVerdict::Allowed, 3, 0));
    ledger.add(&record("web", 81, FlowVerdict::Allowed, 2, 60));
    let day = 24 * 3_600;
    ledger.expire(at(30 * day + 30));
    let counts = ledger.counts();
    assert_eq!((counts.edges, counts.expired_edges, counts.expired_connections), (1, 1, 3));
    assert_eq!(counts.bytes, ledger.edges().map(size_of_edge).sum::<usize>());
}

#[test]
fn full_sample_of_pods_lists_the_newest() {
    let mut ledger = EdgeLedger::new(LIMITS, at(0));
    (0..=200).for_each(|second| ledger.add(&record("web", 80, FlowVerdict::Allowed, 1, second)));
    let edge = ledger.edges().next().unwrap();
    assert!(edge.observed.sources.truncated && edge.observed.sources.pods.contains("shop/web-200"));
    assert!(edge.observed.sources.pods.len() <= flow::MOST_MEMBERS);
    assert_eq!((edge.observed.first, edge.observed.last), (at(0), at(201)));
}

#[test]
fn events_beyond_the_bound_are_counted() {
    let mut ledger = EdgeLedger::new(LedgerLimits { bytes: 64 << 20, ..LIMITS }, at(0));
    let ports = u16::try_from(MOST_PENDING).unwrap() + 3;
    (1..=ports).for_each(|port| ledger.add(&record("web", port, FlowVerdict::Denied, 0, 4_000)));
    assert_eq!((ledger.pending().len(), ledger.counts().left_out_events), (MOST_PENDING, 3));
    ledger.confirm(MOST_PENDING);
    assert_eq!((ledger.pending().len(), ledger.recent().len()), (0, MOST_RECENT));
}

#[test]
fn verdicts_of_older_records_are_left_out() {
    let mut ledger = EdgeLedger::new(LIMITS, at(0));
    ledger.add(&record("web", 80, FlowVerdict::Allowed, 1, 0));
    ledger.add(&record("web", 80, FlowVerdict::WouldDeny, 1, 600));
    ledger.add(&record("web", 80, FlowVerdict::Denied, 0, 1_200));
    let edge = through_json(&ledger).edges().next().unwrap().clone();
    let verdicts = |since: i64| edge.observed_since(at(since)).map(|edge| Vec::from_iter(edge.verdicts));
    let all = vec![FlowVerdict::Allowed, FlowVerdict::WouldDeny, FlowVerdict::Denied];
    assert_eq!((verdicts(0), verdicts(601)), (Some(all.clone()), Some(all.clone())), "a flow passed since then");
    assert_eq!((verdicts(602), verdicts(1_202)), (Some(vec![FlowVerdict::Denied]), None));

    // A version that did not write the field left verdicts without their time.
    let older = LedgerEdge { last_passed: None, ..edge.clone() };
    assert_eq!(older.observed_since(at(602)).map(|edge| Vec::from_iter(edge.verdicts)), Some(all));
}
