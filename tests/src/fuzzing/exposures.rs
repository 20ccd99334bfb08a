//! Services, Ingresses, Gateways and their routes, which expose a workload to the outside; and EndpointSlices.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use cluster::{Watchable, read_lean};
use context::directory::{Directory, Settings};
use context::numbers::REST;
use context::object::{WatchedKind, WatchedObject};
use context::record::Record;
use identity::{LabelFilter, Space};
use policy::{Change, Interner};
use serde_json::{Value, json};

use super::replace;

const KINDS: [WatchedKind; 9] = [
    WatchedKind::Service,
    WatchedKind::EndpointSlice,
    WatchedKind::Ingress,
    WatchedKind::Gateway,
    WatchedKind::HttpRoute,
    WatchedKind::GrpcRoute,
    WatchedKind::TlsRoute,
    WatchedKind::TcpRoute,
    WatchedKind::UdpRoute,
];

/// The first byte is a kind. After an even second byte the rest is the JSON of an object, after an odd one it selects
/// mutations of an example. The stored fields must be equivalent to the whole object, and the directory must be a
/// function of its objects.
///
/// # Panics
/// If that does not hold.
pub fn exposures(bytes: &[u8]) {
    let Some((&[kind, form], rest)) = bytes.split_first_chunk::<2>() else { return };
    let kind = KINDS[usize::from(kind) % KINDS.len()];
    let (text, whole) = match form % 2 {
        0 => match (std::str::from_utf8(rest), serde_json::from_slice::<Value>(rest)) {
            (Ok(text), Ok(whole)) => (text.to_owned(), whole),
            (Ok(_) | Err(_), _) => return,
        },
        _ => {
            let mut object = example(kind);
            let (edits, _) = rest.as_chunks::<3>();
            edits.iter().for_each(|edit| replace(&mut object, *edit, &[]));
            (object.to_string(), object)
        }
    };
    let lower = |value: &Value| WatchedObject::lower(&mut Interner::new(), kind, value);
    if let Ok(lean) = read_lean(WatchedObject::resource(kind).keep, &text) {
        assert_eq!(lower(&lean), lower(&whole), "{kind}: {text}");
    }
    let Ok(object) = lower(&whole) else { return };
    if let WatchedObject::Exposure(exposure) = &object {
        assert!(exposure.services.windows(2).all(|pair| pair[0] < pair[1]), "{exposure:?}");
        assert!(exposure.addresses.windows(2).all(|pair| pair[0] < pair[1]), "{exposure:?}");
    }
    let mut others = surroundings();
    others.retain(|known| (known.kind(), known.name()) != (kind, object.name()));
    let behind = [others.clone(), vec![object.clone()]].concat();
    let first = [vec![object.clone()], others.clone()].concat();
    assert_eq!(table(&behind), table(&first), "{object:?}");
    let now = Instant::now();
    let mut directory = directory(&behind, now);
    directory.apply(Change::Remove(kind, object.name().clone()), now);
    assert_eq!(shown(&directory), table(&others), "{object:?}");
    assert!(directory.problems().count() == 0, "{object:?}");
}

/// An object of the kind with every field that is read.
fn example(kind: WatchedKind) -> Value {
    let backend = |name: &str| json!({"service": {"name": name, "port": {"number": 80}}});
    let mut object = match kind {
        WatchedKind::Service => json!({"spec": {
            "type": "LoadBalancer", "selector": {"app": "web"}, "externalIPs": ["203.0.113.5"], "ports": [{"port": 80}],
        }}),
        WatchedKind::EndpointSlice => json!({
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.1", "10.0.0.1"]}, {"addresses": ["192.0.2.2"], "conditions": {}}],
        }),
        WatchedKind::Ingress => json!({
            "spec": {
                "defaultBackend": backend("web"),
                "rules": [{"host": "a", "http": {"paths": [{"path": "/", "backend": backend("api")}]}}, {"host": "b"}],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.6"}, {"hostname": "a.example"}]}},
        }),
        WatchedKind::Gateway => json!({
            "spec": {"gatewayClassName": "x"},
            "status": {"addresses": [{"value": "203.0.113.7"}, {"type": "Hostname", "value": "a.example"}]},
        }),
        WatchedKind::HttpRoute
        | WatchedKind::GrpcRoute
        | WatchedKind::TlsRoute
        | WatchedKind::TcpRoute
        | WatchedKind::UdpRoute => json!({"spec": {
            "parentRefs": [{"name": "gateway"}],
            "rules": [
                {"backendRefs": [{"name": "web", "namespace": "shop", "kind": "Service", "group": "", "port": 80}]},
                {"backendRefs": [{"name": "api", "port": 80}, {"name": "bucket", "kind": "Bucket", "group": "example.com"}]},
            ],
        }}),
        WatchedKind::Namespace
        | WatchedKind::Pod
        | WatchedKind::NetworkPolicy
        | WatchedKind::Node
        | WatchedKind::ClusterNetworkPolicy => json!({}),
    };
    // Only the EndpointSlice of the API servers is read.
    let (namespace, name) = if kind == WatchedKind::EndpointSlice { ("default", "kubernetes") } else { ("shop", "in") };
    object["metadata"] = json!({"namespace": namespace, "name": name});
    object
}

/// Pods in two namespaces, and the Services in front of them.
fn surroundings() -> Vec<WatchedObject> {
    let pod = |namespace: &str, app: &str, address: &str| {
        json!({
            "metadata": {"namespace": namespace, "name": app, "labels": {"app": app}},
            "spec": {"nodeName": "node-a"},
            "status": {"phase": "Running", "podIPs": [{"ip": address}]},
        })
    };
    let service = |namespace: &str, app: &str| json!({"metadata": {"namespace": namespace, "name": app}, "spec": {"selector": {"app": app}}});
    let objects = [
        (WatchedKind::Namespace, json!({"metadata": {"name": "shop"}})),
        (WatchedKind::Namespace, json!({"metadata": {"name": "other"}})),
        (WatchedKind::Pod, pod("shop", "web", "10.0.0.1")),
        (WatchedKind::Pod, pod("shop", "api", "10.0.0.2")),
        (WatchedKind::Pod, pod("other", "web", "10.0.0.3")),
        (WatchedKind::Service, service("shop", "web")),
        (WatchedKind::Service, service("shop", "api")),
        (WatchedKind::Service, service("other", "web")),
    ];
    let mut interner = Interner::new();
    objects.iter().filter_map(|(kind, object)| WatchedObject::lower(&mut interner, *kind, object).ok()).collect()
}

fn directory(objects: &[WatchedObject], now: Instant) -> Directory {
    let mut directory = Directory::new(Settings {
        cluster_id: "test".into(),
        filter: LabelFilter::default(),
        pod_detail: false,
        agent: None,
        node: None,
        numbers: Space::STANDARD,
    });
    for object in objects {
        directory.apply(Change::Set(object.clone()), now);
    }
    directory.expire(now + REST);
    directory
}

fn shown(directory: &Directory) -> BTreeMap<IpAddr, Arc<Record>> {
    directory.current().table.iter().map(|(address, record)| (address, record.clone())).collect()
}

fn table(objects: &[WatchedObject]) -> BTreeMap<IpAddr, Arc<Record>> {
    shown(&directory(objects, Instant::now()))
}
