//! What a ring of the default size holds, and whether it takes the memory that it says. One test alone in its process,
//! which measures the process.

use std::sync::Arc;

use flow::{
    Connection, ConnectionId, Endpoint, EndpointKind, FlowKey, FlowRecord, Member, PolicyAction, PolicyHit, RING_AGE,
    RING_BYTES, Ring, SideTrace, Subject, TraceVerdict, Tracker, Tuple, Verdict, WINDOW_SECONDS, Windows,
};
use jiff::{SignedDuration, Timestamp};

/// Edges of a node that are seen in every window, each between two workloads of three pods.
const EDGES: u16 = 400;

const REPLICAS: u8 = 3;

fn endpoint(name: String) -> Endpoint {
    Endpoint {
        kind: EndpointKind::Pod,
        namespace: Some("checkout".into()),
        name: Some(name.into()),
        service: Some("checkout".into()),
        cluster: None,
        network: None,
    }
}

fn side(policy: &str) -> SideTrace {
    SideTrace {
        verdict: TraceVerdict::Allowed,
        enforced_here: true,
        enforced: vec![PolicyHit {
            kind: "NetworkPolicy".into(),
            namespace: "checkout".into(),
            name: policy.into(),
            rule: Some("spec.ingress[0]".into()),
            action: PolicyAction::Allow,
        }],
        pending: Vec::new(),
    }
}

fn member(workload: &str, network: u8, edge: u16, replica: u8) -> Member {
    let [high, low] = edge.to_be_bytes();
    let label = |key: &str, value: &str| (key.into(), value.into());
    Member {
        address: [10, network + high, low, replica].into(),
        pod: Some(format!("checkout/{workload}-7d4b9c6f5d-{replica}xk2p").into()),
        node: Some(format!("worker-{replica}").into()),
        labels: [label("app.kubernetes.io/name", workload), label("app.kubernetes.io/part-of", "checkout")].into(),
        identity: None,
    }
}

fn subjects(edge: u16) -> Vec<Arc<Subject>> {
    let (client, server) = (format!("storefront-{edge}"), format!("payments-{edge}"));
    let key = Arc::new(FlowKey {
        source: endpoint(client.clone()),
        destination: endpoint(server.clone()),
        protocol: 6,
        port: Some(8443),
        icmp_type: None,
        service: None,
        verdict: Verdict::Allowed,
        drop_cause: None,
        egress: side("default-egress"),
        ingress: side("payments"),
    });
    (0..REPLICAS)
        .map(|replica| {
            Arc::new(Subject {
                key: Arc::clone(&key),
                source: member(&client, 20, edge, replica),
                destination: member(&server, 30, edge, replica),
                generation: Some(1),
            })
        })
        .collect()
}

fn connection(source: &Member, destination: &Member) -> Connection {
    let original = Tuple {
        source: source.address,
        destination: destination.address,
        protocol: 6,
        source_port: Some(40_000),
        destination_port: Some(8443),
        icmp_type: None,
    };
    Connection { id: ConnectionId { id: 0, zone: 0, original }, reply: original, mark: 0, volume: None, started: None }
}

/// Resident memory that is the process's own.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn ring_of_default_size_holds_an_hour() {
    let begin = Timestamp::from_second(1_777_896_000).unwrap();
    let mut windows = Windows::new("worker-1".into(), 10_000);
    let mut tracker = Tracker::new(10_000);
    for subject in (0..EDGES).flat_map(subjects) {
        let connection = connection(&subject.source, &subject.destination);
        tracker.begin(&connection, subject, None, begin, &mut windows);
    }
    let records = windows.close(begin + SignedDuration::from_secs(WINDOW_SECONDS), &tracker);

    // Records that share nothing, as those of edges that are seen once.
    let texts: Vec<String> = records.iter().map(|record| serde_json::to_string(record).unwrap()).collect();
    let before = resident_bytes();
    let mut ring = Ring::default();
    while ring.counts().left_by_bytes == 0 {
        for text in &texts {
            ring.push([Arc::new(serde_json::from_str::<FlowRecord>(text).unwrap())]);
        }
    }
    let taken = resident_bytes() - before;
    let distinct = ring.bytes() / ring.records().len();
    println!("distinct records: {} of {distinct} bytes, {taken} bytes for {}", ring.records().len(), ring.bytes());
    assert!(ring.records().len() > 7_500);
    assert!(ring.bytes() <= RING_BYTES && ring.bytes() > RING_BYTES - 65_536);
    assert!(taken < RING_BYTES / 8 * 9, "{taken} bytes for {RING_BYTES}");
    assert!(taken > RING_BYTES / 8 * 5, "{taken} bytes for {RING_BYTES}");

    let hour = RING_AGE.as_secs() / WINDOW_SECONDS;
    let mut ring = Ring::default();
    for window in 0..=hour {
        let window = begin + SignedDuration::from_secs(window * WINDOW_SECONDS);
        // Windows share keys and samples from one to the next.
        ring.push(records.iter().map(|record| Arc::new(FlowRecord { window, ..(**record).clone() })));
        ring.expire(window);
    }
    println!("shared records: {} bytes each", ring.bytes() / ring.records().len());
    assert_eq!(ring.counts().left_by_bytes, 0, "{} bytes", ring.bytes());
    assert_eq!(ring.records().len() as i64, i64::from(EDGES) * (hour + 1));
}
