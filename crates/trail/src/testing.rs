//! Records for tests.

use std::collections::BTreeSet;
use std::sync::Arc;

use flow::{
    Connections, EndSample, Endpoint, EndpointKind, FlowKey, FlowRecord, FlowVerdict, ServicePort, SideTrace,
    TraceVerdict, Volume,
};
use jiff::{SignedDuration, Timestamp};

use crate::entry::{Entry, Namespaces};
use crate::window_lines::{SettledRecord, TrailRecord, WindowState, new_lines};

/// Start of a window.
pub(crate) fn window(number: i64) -> Timestamp {
    Timestamp::from_second(1_777_896_000).unwrap() + SignedDuration::from_secs(15 * number)
}

pub(crate) fn pod(namespace: &str, workload: &str) -> Endpoint {
    Endpoint {
        kind: EndpointKind::Pod,
        namespace: Some(namespace.into()),
        name: Some(workload.into()),
        service: Some(namespace.into()),
        cluster: None,
        network: None,
    }
}

pub(crate) fn nodes(names: &BTreeSet<Arc<str>>) -> Arc<EndSample> {
    Arc::new(EndSample { nodes: names.clone(), ..EndSample::default() })
}

/// A record of a node for connections from `shop/web` to `data/db`. The node enforces egress if it is in `clients`, and
/// ingress if it is in `servers`.
pub(crate) fn record(node: &str, number: i64, clients: &[&str], servers: &[&str], started: u64) -> FlowRecord {
    let set = |names: &[&str]| names.iter().map(|name| Arc::from(*name)).collect::<BTreeSet<Arc<str>>>();
    let side = |enforced_here| SideTrace {
        verdict: TraceVerdict::NotIsolated,
        enforced_here,
        enforced: Vec::new(),
        pending: Vec::new(),
        passed_by: Vec::new(),
    };
    let (clients, servers) = (set(clients), set(servers));
    let key = FlowKey {
        source: pod("shop", "web"),
        destination: pod("data", "db"),
        protocol: 6,
        port: Some(5432),
        icmp_type: None,
        service: None,
        verdict: FlowVerdict::Allowed,
        drop_cause: None,
        egress: side(clients.contains(node)),
        ingress: side(servers.contains(node)),
    };
    let begin = window(number);
    FlowRecord {
        window: begin,
        node: node.into(),
        key: Arc::new(key),
        sources: nodes(&clients),
        destinations: nodes(&servers),
        connections: Connections { started, ended: started, live: 0, lost: 0 },
        sent: Some(Volume { packets: started, bytes: started * 100 }),
        received: None,
        unknown_volume: 0,
        denied_packets: 0,
        generation: Some(7),
        first: begin,
        last: begin,
    }
}

pub(crate) fn with_service(mut record: FlowRecord, name: &str) -> FlowRecord {
    let service = ServicePort { namespace: "data".into(), name: name.into(), port_name: None, port: 5432 };
    Arc::make_mut(&mut record.key).service = Some(service);
    record
}

/// The lines of records of one window.
pub(crate) fn trail_of(records: Vec<FlowRecord>) -> Vec<TrailRecord> {
    let settled = |record| SettledRecord { record, is_exported: false };
    let settled: Vec<SettledRecord> = records.into_iter().map(settled).collect();
    new_lines(&settled, &mut WindowState::default()).records
}

pub(crate) fn entries(records: Vec<FlowRecord>) -> Vec<Entry> {
    let mut namespaces = Namespaces::default();
    let lines = trail_of(records).into_iter();
    lines.map(|record| Entry::new("east", record, &mut namespaces).unwrap()).collect()
}
