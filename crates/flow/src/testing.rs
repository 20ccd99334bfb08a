//! Endpoints, connections and records for tests.

use std::sync::Arc;

use identity::{EndIdentity, ReservedIdentity};
use jiff::{SignedDuration, Timestamp};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;

use crate::{
    ClusterRecord, ConnectionId, Connections, CountedFlow, EndSample, Endpoint, EndpointKind, FlowKey, FlowRecord,
    FlowVerdict, Member, Network, PolicyAction, PolicyHit, SeenBy, ServicePort, SideTrace, Subject, TraceVerdict,
    Tuple, Volume,
};

/// The time this many milliseconds after a fixed begin of a window.
pub(crate) fn at(milliseconds: i64) -> Timestamp {
    Timestamp::from_second(1_777_896_000).unwrap() + SignedDuration::from_millis(milliseconds)
}

pub(crate) fn volume(packets: u64, bytes: u64) -> Volume {
    Volume { packets, bytes }
}

pub(crate) fn endpoint(kind: EndpointKind) -> Endpoint {
    Endpoint { kind, namespace: None, name: None, service: None, cluster: None, network: None }
}

pub(crate) fn pod(namespace: &str, workload: &str) -> Endpoint {
    Endpoint {
        namespace: Some(namespace.into()),
        name: Some(workload.into()),
        service: Some(namespace.into()),
        ..endpoint(EndpointKind::Pod)
    }
}

pub(crate) fn side(verdict: TraceVerdict, enforced: Vec<PolicyHit>) -> SideTrace {
    SideTrace { verdict, enforced_here: true, enforced, pending: Vec::new(), passed_by: Vec::new() }
}

pub(crate) fn hit(name: &str, rule: Option<&str>, action: PolicyAction) -> PolicyHit {
    let (namespace, name) = name.split_once('/').unwrap();
    PolicyHit { rule: rule.map(Into::into), action, ..PolicyHit::isolation(namespace, name) }
}

pub(crate) fn member(address: &str, pod: &str) -> Member {
    Member {
        address: address.parse().unwrap(),
        pod: Some(pod.into()),
        node: Some("worker-1".into()),
        labels: [("app".into(), pod.split_once('/').unwrap().1.into())].into(),
        identity: None,
    }
}

/// TCP from a pod of workload `shop/web` to port 5432 of the pod `shop/db-NUMBER`.
pub(crate) fn subject(number: u8) -> Arc<Subject> {
    let key = FlowKey {
        source: pod("shop", "web"),
        destination: pod("shop", &format!("db-{number}")),
        protocol: 6,
        port: Some(5432),
        icmp_type: None,
        service: None,
        verdict: FlowVerdict::Allowed,
        drop_cause: None,
        egress: side(TraceVerdict::NotIsolated, Vec::new()),
        ingress: side(TraceVerdict::Allowed, vec![hit("shop/db", Some("spec.ingress[0]"), PolicyAction::Allow)]),
    };
    Arc::new(Subject {
        key: Arc::new(key),
        source: member("10.0.1.7", "shop/web-0"),
        destination: member(&format!("10.0.2.{number}"), &format!("shop/db-{number}")),
        generation: Some(7),
    })
}

/// A record of `subject(1)`. `window` is the number of the window; window 0 begins at `at(0)`.
pub(crate) fn record_of(node: &str, window: i64) -> FlowRecord {
    let Subject { key, source, destination, generation } = Subject::clone(&subject(1));
    let (mut sources, mut destinations) = (EndSample::default(), EndSample::default());
    sources.add(&source);
    destinations.add(&destination);
    let begin = at(window * 15_000);
    FlowRecord {
        window: begin,
        node: node.into(),
        key,
        sources: Arc::new(sources),
        destinations: Arc::new(destinations),
        connections: Connections::default(),
        sent: None,
        received: None,
        unknown_volume: 0,
        denied_packets: 0,
        generation,
        first: begin,
        last: begin,
    }
}

/// A connection from a port, as in a NEW event: without counters.
pub(crate) fn connection(source_port: u16, made: Option<Timestamp>) -> CountedFlow {
    let original = Tuple {
        source: "10.0.1.7".parse().unwrap(),
        destination: "10.0.2.1".parse().unwrap(),
        protocol: 6,
        source_port: Some(source_port),
        destination_port: Some(5432),
        icmp_type: None,
    };
    let reply = Tuple {
        source: original.destination,
        destination: original.source,
        source_port: original.destination_port,
        destination_port: original.source_port,
        ..original
    };
    CountedFlow {
        id: ConnectionId { id: u32::from(source_port), zone: 0, original },
        reply,
        mark: 0,
        has_reply: false,
        volume: None,
        started: made,
    }
}

/// Records with few distinct names, so that filters and groups often match.
pub(crate) fn records() -> impl Strategy<Value = Vec<FlowRecord>> {
    vec(record(), 0..24)
}

/// Joined records, reported by either node or both.
pub(crate) fn cluster_records() -> impl Strategy<Value = Vec<ClusterRecord>> {
    vec((record(), any::<[bool; 2]>()), 0..24).prop_map(|records| {
        let joined = records.into_iter().map(|(mut record, [at_source, at_destination])| {
            let key = Arc::make_mut(&mut record.key);
            key.egress.enforced_here = at_source;
            key.ingress.enforced_here = at_destination;
            let verdict = key.verdict;
            ClusterRecord {
                record,
                source_verdict: at_source.then_some(verdict),
                destination_verdict: at_destination.then_some(verdict),
                seen_by: Arc::new(SeenBy::default()),
            }
        });
        joined.collect()
    })
}

fn record() -> impl Strategy<Value = FlowRecord> {
    let counts = (0u64..4, 0u64..4, 0u64..4, 0u64..4);
    let window = (0i64..4, 0i64..15_000, 0i64..15_000);
    (window, select(vec!["n1", "n2"]), key(), sample(), sample(), counts, option_volumes(), 0u64..3, 0u64..9).prop_map(
        |(
            (window, a, b),
            node,
            key,
            sources,
            destinations,
            counts,
            [sent, received],
            unknown_volume,
            denied_packets,
        )| {
            let (started, ended, live, lost) = counts;
            FlowRecord {
                window: at(window * 15_000),
                node: node.into(),
                key: Arc::new(key),
                sources: Arc::new(sources),
                destinations: Arc::new(destinations),
                connections: Connections { started, ended, live, lost },
                sent,
                received,
                unknown_volume,
                denied_packets,
                generation: (started > 0).then_some(7),
                first: at(window * 15_000 + a.min(b)),
                last: at(window * 15_000 + a.max(b)),
            }
        },
    )
}

fn option_volumes() -> impl Strategy<Value = [Option<Volume>; 2]> {
    let some = || prop::option::of((0u64..3, 0u64..5).prop_map(|(packets, bytes)| Volume { packets, bytes }));
    [some(), some()]
}

fn key() -> impl Strategy<Value = FlowKey> {
    let service = (select(vec!["shop", "pay"]), select(vec!["web", "db"]), select(vec![None, Some("http")]));
    let service = prop::option::of(service.prop_map(|(namespace, name, port_name)| ServicePort {
        namespace: namespace.into(),
        name: name.into(),
        port_name: port_name.map(Into::into),
        port: 80,
    }));
    let verdict = select(vec![FlowVerdict::Allowed, FlowVerdict::WouldDeny, FlowVerdict::Denied]);
    let port = select(vec![None, Some(80), Some(443)]);
    (any_endpoint(), any_endpoint(), select(vec![1u8, 6, 17]), port, service, verdict, trace(), trace()).prop_map(
        |(source, destination, protocol, port, service, verdict, egress, ingress)| FlowKey {
            source,
            destination,
            protocol,
            port,
            icmp_type: (protocol == 1).then_some(8),
            service,
            verdict,
            drop_cause: None,
            egress,
            ingress,
        },
    )
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let namespaced = (select(vec!["shop", "pay"]), select(vec!["web", "db"]), any::<bool>()).prop_map(
        |(namespace, name, remote)| Endpoint {
            kind: if remote { EndpointKind::RemoteCluster } else { EndpointKind::Pod },
            cluster: remote.then(|| "east".into()),
            ..pod(namespace, name)
        },
    );
    let network = prop::option::of(select(vec![Network::Private, Network::Public]));
    let world = network.prop_map(|network| Endpoint { network, ..endpoint(EndpointKind::World) });
    prop_oneof![
        4 => namespaced,
        1 => select(vec!["n1", "web"])
            .prop_map(|name| Endpoint { name: Some(name.into()), ..endpoint(EndpointKind::Node) }),
        1 => world,
        1 => select(vec![EndpointKind::KubeApiserver, EndpointKind::UnknownPod]).prop_map(endpoint),
    ]
}

fn trace() -> impl Strategy<Value = SideTrace> {
    let hits = || {
        let actions = select(vec![(None, PolicyAction::Deny), (Some("spec.ingress[0]"), PolicyAction::Allow)]);
        let hits = (select(vec!["shop/db", "shop/web", "pay/db"]), actions);
        vec(hits.prop_map(|(name, (rule, action))| hit(name, rule, action)), 0..3)
    };
    (hits(), hits()).prop_map(|(enforced, pending)| SideTrace { pending, ..side(TraceVerdict::Allowed, enforced) })
}

fn sample() -> impl Strategy<Value = EndSample> {
    let addresses = btree_set(select(vec!["10.0.1.7", "10.0.2.9", "192.0.2.1", "2001:db8::1"]), 0..3);
    let pods = btree_set(select(vec!["shop/web", "shop/web-0", "pay/db-0"]), 0..3);
    (addresses, pods, any::<bool>(), any::<bool>()).prop_map(|(addresses, pods, truncated, world)| EndSample {
        addresses: addresses.into_iter().map(|address| address.parse().unwrap()).collect(),
        pods: pods.into_iter().map(Into::into).collect(),
        nodes: ["worker-1".into()].into(),
        labels: ["app=web".into()].into(),
        identities: world.then(|| EndIdentity::reserved(ReservedIdentity::World, None)).into_iter().collect(),
        truncated,
    })
}
