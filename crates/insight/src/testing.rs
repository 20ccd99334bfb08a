//! States and observed edges for tests.

use std::collections::BTreeSet;
use std::sync::Arc;

use flow::{
    ClusterRecord, Connections, EndSample, Endpoint, EndpointKind, FlowKey, FlowRecord, FlowVerdict, Network,
    PolicyHit, SeenBy, SideTrace, TraceVerdict,
};
use jiff::Timestamp;
use policy::{Change, ClusterState, Kind, lower};
use serde_json::Value;

use crate::observed::ObservedEdge;

/// The state of a cluster with the objects of a manifest.
#[track_caller]
pub(crate) fn state_of(manifest: &str) -> ClusterState {
    let documents: Vec<Value> = serde_saphyr::from_multiple(manifest).unwrap();
    let mut state = ClusterState::new();
    for document in documents {
        let is_kind = |kind: &Kind| document["kind"] == kind.to_string();
        let kind = Kind::ALL.into_iter().find(is_kind).expect("a kind for enforcement");
        state.apply(Change::Set(lower(kind, &document).unwrap()));
    }
    state
}

/// The pods of a workload, `NAMESPACE/NAME`.
pub(crate) fn pod(workload: &str) -> Endpoint {
    let (namespace, name) = workload.split_once('/').unwrap();
    Endpoint {
        kind: EndpointKind::Pod,
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        service: None,
        cluster: None,
        network: None,
    }
}

pub(crate) fn node(name: &str) -> Endpoint {
    Endpoint { kind: EndpointKind::Node, namespace: None, name: Some(name.into()), ..pod("a/b") }
}

pub(crate) fn world() -> Endpoint {
    Endpoint { kind: EndpointKind::World, namespace: None, name: None, network: Some(Network::Public), ..pod("a/b") }
}

/// An allowed edge over TCP. `addresses` are those of an end that is not a pod.
pub(crate) fn edge(source: Endpoint, destination: Endpoint, port: Option<u16>, addresses: &[&str]) -> ObservedEdge {
    let sample = |end: &Endpoint| EndSample {
        addresses: match end.kind {
            EndpointKind::Pod | EndpointKind::UnknownPod => BTreeSet::new(),
            EndpointKind::World | EndpointKind::Node | EndpointKind::KubeApiserver | EndpointKind::RemoteCluster => {
                addresses.iter().map(|address| address.parse().unwrap()).collect()
            }
        },
        ..EndSample::default()
    };
    ObservedEdge {
        sources: sample(&source),
        destinations: sample(&destination),
        source,
        destination,
        protocol: 6,
        port,
        services: BTreeSet::new(),
        verdicts: [FlowVerdict::Allowed].into(),
        connections: 1,
        denied_packets: 0,
        first: Timestamp::UNIX_EPOCH,
        last: Timestamp::UNIX_EPOCH,
    }
}

/// A time of day 0.
pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_777_896_000 + seconds).unwrap()
}

/// A record of `shop/web` to `shop/api` that audited policies of both ends would have denied.
pub(crate) fn would_deny(node: &str, seconds: i64) -> ClusterRecord {
    let side = |pending: Vec<PolicyHit>| SideTrace {
        verdict: TraceVerdict::WouldDeny,
        enforced_here: true,
        enforced: vec![],
        pending,
        passed_by: vec![],
    };
    let of_cluster = PolicyHit { kind: "ClusterNetworkPolicy".into(), ..PolicyHit::isolation("", "tenants") };
    let hits = vec![PolicyHit::isolation("shop", "api"), of_cluster];
    let key = FlowKey {
        source: pod("shop/web"),
        destination: pod("shop/api"),
        protocol: 6,
        port: Some(81),
        icmp_type: None,
        service: None,
        verdict: FlowVerdict::WouldDeny,
        drop_cause: None,
        egress: side(vec![PolicyHit::isolation("shop", "api")]),
        ingress: side(hits),
    };
    let record = FlowRecord {
        window: at(seconds - seconds.rem_euclid(15)),
        node: node.into(),
        key: Arc::new(key),
        sources: Arc::new(EndSample { pods: ["shop/web-1".into()].into(), ..EndSample::default() }),
        destinations: Arc::default(),
        connections: Connections { started: 2, ..Connections::default() },
        sent: None,
        received: None,
        unknown_volume: 0,
        denied_packets: 3,
        generation: None,
        first: at(seconds),
        last: at(seconds),
    };
    ClusterRecord { record, source_verdict: None, destination_verdict: None, seen_by: SeenBy::default().into() }
}
