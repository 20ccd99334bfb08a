use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::testing::{hit, pod, record_of, side, volume};
use crate::{PolicyAction, ServicePort};

/// From `shop/web` on `from` to `shop/db` on `to`, reported by `node`.
fn seen(node: &str, [from, to]: [&str; 2], started: u64) -> FlowRecord {
    let mut record = record_of(node, 0);
    let key = Arc::make_mut(&mut record.key);
    key.egress.enforced_here = node == from;
    key.ingress.enforced_here = node == to;
    Arc::make_mut(&mut record.sources).nodes = [from.into()].into();
    Arc::make_mut(&mut record.destinations).nodes = [to.into()].into();
    record.connections = Connections { started, ended: started, live: 0, lost: 0 };
    record.sent = Some(volume(started, started * 100));
    record.received = Some(volume(started, started * 1_000));
    record
}

fn with_key(mut record: FlowRecord, change: impl FnOnce(&mut FlowKey)) -> FlowRecord {
    change(Arc::make_mut(&mut record.key));
    record
}

fn denied(record: FlowRecord, packets: u64) -> FlowRecord {
    let record = with_key(record, |key| {
        key.verdict = FlowVerdict::Denied;
        key.ingress.verdict = TraceVerdict::Denied;
        key.ingress.enforced = vec![hit("shop/db", None, PolicyAction::Deny)];
    });
    FlowRecord { connections: Connections::default(), sent: None, received: None, denied_packets: packets, ..record }
}

fn service(name: &str) -> ServicePort {
    ServicePort { namespace: "shop".into(), name: name.into(), port_name: None, port: 80 }
}

fn joined(records: impl IntoIterator<Item = FlowRecord>) -> Vec<ClusterRecord> {
    join(&records.into_iter().collect::<Vec<_>>())
}

fn nodes(names: &[&str]) -> BTreeSet<Arc<str>> {
    names.iter().map(|name| Arc::from(*name)).collect()
}

#[test]
fn largest_counts_of_both_nodes_are_joined() {
    let most = Connections { started: u64::MAX, ended: u64::MAX, live: u64::MAX, lost: u64::MAX };
    let source = FlowRecord { connections: most, ..seen("n1", ["n1", "n2"], 1) };
    let mut destination = FlowRecord { connections: most, ..seen("n2", ["n1", "n2"], 1) };
    // The node has no agent, so that the counts of both sides are compared.
    Arc::make_mut(&mut destination.sources).nodes.insert("n9".into());
    let [one] = &*joined([source, destination]) else { panic!("one record") };
    assert_eq!(one.record.connections, most);
}

/// A node may report as many keys of one edge: a scan of all pairs took minutes.
#[test]
fn thousands_of_keys_per_edge_are_joined_quickly() {
    let of_rule = |record: FlowRecord, rule: u64| {
        let hits = vec![hit(&format!("shop/p{rule}"), None, PolicyAction::Allow)];
        with_key(record, |key| key.ingress.enforced = hits)
    };
    let count = crate::MOST_RECORDS_PER_NODE as u64;
    let at_source = (0..count).map(|rule| of_rule(seen("n1", ["n1", "n2"], 1), rule));
    let at_destination = (0..count).map(|rule| of_rule(seen("n2", ["n1", "n2"], 1), count / 2 + rule));
    let records: Vec<FlowRecord> = at_source.chain(at_destination).collect();
    let started = std::time::Instant::now();
    let joined = join(&records);
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    let both = joined.iter().filter(|one| one.source_verdict.is_some() && one.destination_verdict.is_some());
    assert!(both.count() as u64 >= count / 2);
}

#[test]
fn both_nodes_of_a_connection_make_one_record() {
    let asked = with_key(seen("n1", ["n1", "n2"], 3), |key| key.service = Some(service("db")));
    let records = joined([seen("n2", ["n1", "n2"], 3), asked]);
    let [one] = &*records else { panic!("{records:?}") };
    assert_eq!(one.record.connections.started, 3);
    assert_eq!(one.record.sent, Some(volume(3, 300)));
    assert_eq!(one.record.key.service, Some(service("db")));
    assert!(one.record.key.egress.enforced_here && one.record.key.ingress.enforced_here);
    assert_eq!(*one.seen_by, SeenBy { source: nodes(&["n1"]), destination: nodes(&["n2"]), other: nodes(&[]) });
    assert_eq!((one.source_verdict, one.destination_verdict), (Some(FlowVerdict::Allowed), Some(FlowVerdict::Allowed)));
}

#[test]
fn connection_within_a_node_is_seen_by_both() {
    let records = joined([seen("n1", ["n1", "n1"], 2)]);
    let [one] = &*records else { panic!("{records:?}") };
    assert_eq!((one.record.connections.started, one.source_verdict), (2, one.destination_verdict));
    assert_eq!(*one.seen_by, SeenBy { source: nodes(&["n1"]), destination: nodes(&["n1"]), other: nodes(&[]) });
}

#[test]
fn destination_counts_where_source_has_no_agent() {
    let records = joined([seen("n2", ["n1", "n2"], 4)]);
    let [one] = &*records else { panic!("{records:?}") };
    assert_eq!((one.record.connections.started, one.record.sent), (4, Some(volume(4, 400))));
    assert_eq!((one.source_verdict, one.destination_verdict), (None, Some(FlowVerdict::Allowed)));
}

#[test]
fn flow_denied_at_its_destination_has_both_verdicts() {
    // The source's node knows the destination's policies but does not enforce them.
    let passed = with_key(seen("n1", ["n1", "n2"], 3), |key| {
        key.ingress.verdict = TraceVerdict::Denied;
        key.ingress.enforced = vec![hit("shop/db", None, PolicyAction::Deny)];
    });
    let records = joined([passed, denied(seen("n2", ["n1", "n2"], 0), 9)]);
    let [one] = &*records else { panic!("{records:?}") };
    assert_eq!((one.source_verdict, one.destination_verdict), (Some(FlowVerdict::Allowed), Some(FlowVerdict::Denied)));
    assert_eq!((one.record.key.verdict, one.record.denied_packets), (FlowVerdict::Denied, 9));
    assert_eq!(one.record.connections.started, 3, "connections that the source's node confirmed");
}

#[test]
fn flow_denied_at_its_source_joins_nothing() {
    let records = joined([denied(seen("n1", ["n1", "n2"], 0), 5), seen("n2", ["n1", "n2"], 2)]);
    assert_eq!(records.len(), 2);
    let verdicts: Vec<_> = records.iter().map(|one| (one.source_verdict, one.destination_verdict)).collect();
    assert_eq!(verdicts, [(None, Some(FlowVerdict::Allowed)), (Some(FlowVerdict::Denied), None)]);
}

#[test]
fn source_behind_snat_stays_a_separate_record() {
    let translated = with_key(seen("n2", ["n1", "n2"], 2), |key| {
        key.source = Endpoint { kind: crate::EndpointKind::Node, name: Some("n1".into()), ..pod("x", "x") };
    });
    let records = joined([seen("n1", ["n1", "n2"], 2), translated]);
    assert_eq!(records.len(), 2);
    assert!(records.iter().all(|one| one.record.connections.started == 2));
}

#[test]
fn several_services_share_the_report_of_the_destination() {
    let by = |name: &str, started| with_key(seen("n1", ["n1", "n2"], started), |key| key.service = Some(service(name)));
    let there = with_key(seen("n2", ["n1", "n2"], 5), |key| key.verdict = FlowVerdict::WouldDeny);
    let there = FlowRecord { denied_packets: 7, ..there };
    let records = joined([by("a", 2), by("b", 3), there]);
    let facts: Vec<_> = records
        .iter()
        .map(|one| (one.record.connections.started, one.destination_verdict, one.record.denied_packets))
        .collect();
    let verdict = Some(FlowVerdict::WouldDeny);
    assert_eq!(facts, [(2, verdict, 7), (3, verdict, 0)]);
}

#[test]
fn verdicts_of_labels_within_a_workload_stay_apart() {
    // Some pods of a workload are allowed and others are not; both nodes distinguish them by the rules.
    let refused = |record: FlowRecord| {
        with_key(record, |key| {
            key.ingress = SideTrace {
                enforced_here: key.ingress.enforced_here,
                ..side(TraceVerdict::Denied, vec![hit("shop/db", None, PolicyAction::Deny)])
            };
        })
    };
    let records = joined([
        seen("n1", ["n1", "n2"], 4),
        refused(seen("n1", ["n1", "n2"], 2)),
        denied(seen("n2", ["n1", "n2"], 0), 6),
        seen("n2", ["n1", "n2"], 4),
    ]);
    let facts: Vec<_> = records
        .iter()
        .map(|one| (one.record.connections.started, one.source_verdict, one.destination_verdict))
        .collect();
    let (allowed, denied) = (Some(FlowVerdict::Allowed), Some(FlowVerdict::Denied));
    assert_eq!(facts, [(4, allowed, allowed), (2, allowed, denied)]);
}

#[test]
fn policies_under_way_do_not_count_connections_twice() {
    let earlier = with_key(seen("n1", ["n1", "n2"], 3), |key| {
        key.ingress.verdict = TraceVerdict::NotIsolated;
        key.ingress.enforced.clear();
    });
    let records = joined([earlier, seen("n2", ["n1", "n2"], 3)]);
    let [one] = &*records else { panic!("{records:?}") };
    assert_eq!((one.record.connections.started, one.record.key.ingress.verdict), (3, TraceVerdict::Allowed));
}

#[test]
fn larger_count_wins_where_agents_are_missing() {
    // The destination's node reports the connections of n1, which has an agent, and of n3, which has none.
    let mut there = seen("n2", ["n1", "n2"], 5);
    Arc::make_mut(&mut there.sources).nodes.insert("n3".into());
    let records = joined([seen("n1", ["n1", "n2"], 2), there]);
    let [one] = &*records else { panic!("{records:?}") };
    assert_eq!((one.record.connections.started, one.record.sent, &*one.record.node), (5, Some(volume(5, 500)), "n2"));
}

#[test]
fn different_connections_of_a_workload_are_added() {
    let records = joined([seen("n1", ["n1", "n4"], 2), seen("n2", ["n3", "n2"], 5)]);
    let started: Vec<u64> = records.iter().map(|one| one.record.connections.started).collect();
    assert_eq!((records.len(), started.iter().sum::<u64>()), (2, 7));
}

#[test]
fn summed_up_ports_of_one_node_count_once() {
    let at = |port: Option<u16>, record: FlowRecord| with_key(record, |key| key.port = port);
    for (at_source, at_destination) in [(None, Some(5432)), (Some(5432), None)] {
        let records =
            joined([at(at_source, seen("n1", ["n1", "n2"], 17)), at(at_destination, seen("n2", ["n1", "n2"], 16))]);
        let started: u64 = records.iter().map(|one| one.record.connections.started).sum();
        assert_eq!((records.len(), started), (2, 17), "{at_source:?}");
    }
    // Connections to another port are not joined.
    let records = joined([at(Some(80), seen("n1", ["n1", "n2"], 1)), at(Some(443), seen("n2", ["n1", "n2"], 2))]);
    assert_eq!(records.iter().map(|one| one.record.connections.started).sum::<u64>(), 3);
}

#[test]
fn cluster_record_has_the_json_of_a_record() {
    let records = joined([seen("n1", ["n1", "n2"], 1)]);
    let text = serde_json::to_string(&records[0]).unwrap();
    let plain: FlowRecord = serde_json::from_str(&text).unwrap();
    assert_eq!(plain, records[0].record);
    assert!(
        text.contains(r#""sourceVerdict":"allowed","destinationVerdict":null,"seenBy":{"source":["n1"]"#),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<ClusterRecord>(&text).unwrap(), records[0]);
}

const NODES: [&str; 4] = ["n1", "n2", "n3", "n4"];

proptest! {
    /// Each workload runs on one node; some nodes have no agent.
    #[test]
    fn joined_counts_are_those_of_all_connections(
        flows in vec((0usize..4, 0usize..4, 1u64..50, prop::option::of(0u8..2), any::<bool>()), 0..40),
        agents in vec(any::<bool>(), 4),
    ) {
        let mut records = Vec::new();
        let mut expected = [0; 2];
        for (from, to, started, asked, is_denied) in flows {
            let is_denied = is_denied && from != to;
            if agents[from] || (agents[to] && !is_denied) {
                expected[0] += started;
            }
            if agents[to] && is_denied {
                expected[1] += started;
            }
            for node in BTreeSet::from([from, to]).into_iter().filter(|node| agents[*node]) {
                let record = seen(NODES[node], [NODES[from], NODES[to]], started);
                let record = with_key(record, |key| {
                    key.source = pod("shop", &format!("web-{from}"));
                    key.destination = pod("shop", &format!("db-{to}"));
                    if node == from {
                        key.service = asked.map(|number| service(&format!("s{number}")));
                    }
                });
                records.push(if is_denied && node == to { denied(record, started) } else { record });
            }
        }
        let sums = joined(records);
        let started: u64 = sums.iter().map(|one| one.record.connections.started).sum();
        let bytes: u64 = sums.iter().filter_map(|one| one.record.sent).map(|sent| sent.bytes).sum();
        let packets: u64 = sums.iter().map(|one| one.record.denied_packets).sum();
        prop_assert_eq!([started, packets], expected);
        prop_assert_eq!(bytes, started * 100);
    }
}
