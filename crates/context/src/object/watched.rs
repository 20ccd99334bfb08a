//! Resource names of the kinds, the fields that are kept of their objects, and their lowering.

use std::sync::Arc;

use cluster::Keep::{self, Each, Only, Whole};
use cluster::{
    Manifests, MissingName, NODE_ANNOTATIONS, Need, OWNER_REFERENCES, POD_SPEC, Resource, ServiceKind, ServiceObject,
    Watchable,
};
use policy::{Interner, ObjectName, SourceObject, lower_name};
use serde_json::Value;

use super::{WatchedKind, WatchedObject, exposure, nodes, pod};

impl SourceObject for WatchedObject {
    type Kind = WatchedKind;

    fn kind(&self) -> WatchedKind {
        self.kind()
    }

    fn name(&self) -> &ObjectName {
        self.name()
    }
}

impl Watchable for WatchedObject {
    const KINDS: &'static [WatchedKind] = &WatchedKind::ALL;
    const NAMESPACE: Option<WatchedKind> = Some(WatchedKind::Namespace);

    fn resource(kind: WatchedKind) -> Resource {
        let (plural, group, version, keep) = match kind {
            WatchedKind::Namespace => return policy::Object::resource(policy::Kind::Namespace),
            WatchedKind::Pod => return Resource { keep: POD, ..policy::Object::resource(policy::Kind::Pod) },
            WatchedKind::NetworkPolicy => return policy::Object::resource(policy::Kind::NetworkPolicy),
            WatchedKind::Node => return Resource { keep: NODE, ..policy::Object::resource(policy::Kind::Node) },
            WatchedKind::ClusterNetworkPolicy => return policy::Object::resource(policy::Kind::ClusterNetworkPolicy),
            WatchedKind::Service => return ServiceObject::resource(ServiceKind::Service),
            WatchedKind::EndpointSlice => return ServiceObject::resource(ServiceKind::EndpointSlice),
            WatchedKind::Gateway => ("gateways", GATEWAY, "v1", GATEWAY_STATUS),
            WatchedKind::Ingress => ("ingresses", "networking.k8s.io", "v1", INGRESS),
            WatchedKind::HttpRoute => ("httproutes", GATEWAY, "v1", ROUTE),
            WatchedKind::GrpcRoute => ("grpcroutes", GATEWAY, "v1", ROUTE),
            WatchedKind::TlsRoute => ("tlsroutes", GATEWAY, "v1alpha2", ROUTE),
            WatchedKind::TcpRoute => ("tcproutes", GATEWAY, "v1alpha2", ROUTE),
            WatchedKind::UdpRoute => ("udproutes", GATEWAY, "v1alpha2", ROUTE),
        };
        let (need, manifests) = (Need::Optional, Manifests::OfGroup);
        Resource { plural, group, version, alternatives: &[], need, manifests, keep, only: None }
    }

    fn lower(interner: &mut Interner, kind: WatchedKind, object: &Value) -> Result<WatchedObject, MissingName> {
        let exposure = |exposure| Ok(WatchedObject::Exposure(Arc::new(exposure)));
        match kind {
            WatchedKind::Namespace => lower_base(interner, policy::Kind::Namespace, object),
            WatchedKind::Pod => lower_base(interner, policy::Kind::Pod, object),
            WatchedKind::NetworkPolicy => lower_base(interner, policy::Kind::NetworkPolicy, object),
            WatchedKind::Node => lower_base(interner, policy::Kind::Node, object),
            WatchedKind::ClusterNetworkPolicy => lower_base(interner, policy::Kind::ClusterNetworkPolicy, object),
            WatchedKind::Service => lower_service(interner, ServiceKind::Service, object),
            WatchedKind::EndpointSlice => lower_service(interner, ServiceKind::EndpointSlice, object),
            WatchedKind::Gateway => exposure(exposure::lower_gateway(name_of(interner, object)?, object, interner)),
            WatchedKind::Ingress => exposure(exposure::lower_ingress(name_of(interner, object)?, object, interner)),
            WatchedKind::HttpRoute
            | WatchedKind::GrpcRoute
            | WatchedKind::TlsRoute
            | WatchedKind::TcpRoute
            | WatchedKind::UdpRoute => {
                exposure(exposure::lower_route(kind, name_of(interner, object)?, object, interner))
            }
        }
    }
}

/// Lowers an object that enforcement uses.
fn lower_base(interner: &mut Interner, kind: policy::Kind, object: &Value) -> Result<WatchedObject, MissingName> {
    Ok(match policy::Object::lower(interner, kind, object)? {
        policy::Object::Namespace(namespace) => WatchedObject::Namespace(namespace),
        policy::Object::Pod(base) => WatchedObject::Pod(Arc::new(pod::lower(base, object, interner))),
        policy::Object::Policy(policy) => WatchedObject::Policy(policy),
        policy::Object::Node(base) => WatchedObject::Node(Arc::new(nodes::lower_node(base, object))),
        policy::Object::ClusterPolicy(policy) => WatchedObject::ClusterPolicy(policy),
    })
}

fn lower_service(interner: &mut Interner, kind: ServiceKind, object: &Value) -> Result<WatchedObject, MissingName> {
    Ok(match ServiceObject::lower(interner, kind, object)? {
        ServiceObject::Service(service) => WatchedObject::Service(service),
        ServiceObject::EndpointSlice(slice) => WatchedObject::EndpointSlice(slice),
    })
}

fn name_of(interner: &mut Interner, object: &Value) -> Result<ObjectName, MissingName> {
    lower_name(interner, &object["metadata"]).ok_or(MissingName)
}

const GATEWAY: &str = "gateway.networking.k8s.io";

/// Fields of a container status that show a failed container.
const CONTAINER_STATUS: Keep = Only(&[
    ("restartCount", Whole),
    ("state", Only(&[("waiting", Only(&[("reason", Whole)])), ("terminated", Only(&[("exitCode", Whole)]))])),
]);

/// The fields that enforcement reads, the owner references, readiness and container failures.
const POD: Keep = Only(&[
    (
        "metadata",
        Only(&[
            ("name", Whole),
            ("namespace", Whole),
            ("uid", Whole),
            ("resourceVersion", Whole),
            ("labels", Whole),
            ("annotations", Only(&[("kubernetes.io/config.mirror", Whole)])),
            ("deletionTimestamp", Whole),
            ("creationTimestamp", Whole),
            ("ownerReferences", OWNER_REFERENCES),
        ]),
    ),
    ("spec", POD_SPEC),
    (
        "status",
        Only(&[
            ("phase", Whole),
            ("podIP", Whole),
            ("podIPs", Whole),
            ("startTime", Whole),
            ("conditions", Each(&Only(&[("type", Whole), ("status", Whole)]))),
            ("containerStatuses", Each(&CONTAINER_STATUS)),
            ("initContainerStatuses", Each(&CONTAINER_STATUS)),
        ]),
    ),
]);

const METADATA: (&str, Keep) = ("metadata", Only(&[("name", Whole), ("namespace", Whole), ("resourceVersion", Whole)]));

/// The fields that enforcement reads; the labels include the role of a node.
const NODE: Keep = Only(&[
    (
        "metadata",
        Only(&[("name", Whole), ("resourceVersion", Whole), ("labels", Whole), ("annotations", NODE_ANNOTATIONS)]),
    ),
    ("spec", Only(&[("podCIDR", Whole), ("podCIDRs", Whole)])),
    ("status", Only(&[("addresses", Whole)])),
]);

const GATEWAY_STATUS: Keep =
    Only(&[METADATA, ("status", Only(&[("addresses", Each(&Only(&[("type", Whole), ("value", Whole)])))]))]);

const INGRESS: Keep = Only(&[
    METADATA,
    (
        "spec",
        Only(&[
            ("defaultBackend", Whole),
            ("rules", Each(&Only(&[("http", Only(&[("paths", Each(&Only(&[("backend", Whole)])))]))]))),
        ]),
    ),
    ("status", Only(&[("loadBalancer", Only(&[("ingress", Each(&Only(&[("ip", Whole)])))]))])),
]);

const BACKEND: Keep = Only(&[("group", Whole), ("kind", Whole), ("namespace", Whole), ("name", Whole)]);

const ROUTE: Keep = Only(&[METADATA, ("spec", Only(&[("rules", Each(&Only(&[("backendRefs", Each(&BACKEND))])))]))]);

#[cfg(test)]
mod tests {
    use cluster::read_lean;
    use serde_json::json;

    use super::*;

    /// A complete object as the server sends it, with fields that lowering uses and many that it does not.
    fn whole(kind: WatchedKind) -> Value {
        let metadata = json!({
            "name": "web", "namespace": "shop", "uid": "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", "resourceVersion": "7",
            "labels": {"app": "web", "tier": "front", "node-role.kubernetes.io/control-plane": ""}, "generation": 3,
            "annotations": {
                "kubernetes.io/config.mirror": "hash", "ringfence.io/enforcement": "audit", "other": "{}",
                "flannel.alpha.coreos.com/public-ip": "198.51.100.7",
            },
            "deletionTimestamp": "2026-01-02T03:04:06Z", "creationTimestamp": "2026-01-02T03:04:05Z",
            "ownerReferences": [{"kind": "Team", "name": "a"}, {"kind": "ReplicaSet", "name": "w", "controller": true}],
            "managedFields": [{"fieldsV1": {"f:spec": {}}}],
        });
        let references = json!([{"name": "web", "namespace": "other", "kind": "Service", "group": "", "weight": 1}]);
        let backend = json!({"service": {"name": "api", "port": {"number": 80}}});
        let (spec, status) = match kind {
            WatchedKind::Namespace => (json!({"finalizers": []}), json!({"phase": "Active"})),
            WatchedKind::Pod => (
                json!({
                    "nodeName": "node-a", "hostNetwork": false, "volumes": [{"name": "tmp"}],
                    "containers": [{"image": "x", "ports": [{"name": "http", "containerPort": 80, "hostPort": 8080}]}],
                    "initContainers": [{"restartPolicy": "Always", "ports": [{"containerPort": 81, "hostPort": 81}]}],
                }),
                json!({
                    "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                    "startTime": "2026-01-02T03:04:05Z", "hostIP": "192.0.2.1",
                    "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": "True"}],
                    "containerStatuses": [
                        {"name": "main", "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}},
                        {"name": "other", "restartCount": 0, "state": {"terminated": {"exitCode": 0}}},
                    ],
                    "initContainerStatuses": [{"name": "init", "restartCount": 0, "state": {"running": {}}}],
                }),
            ),
            WatchedKind::NetworkPolicy => (
                json!({"podSelector": {}, "ingress": [{"from": [{"podSelector": {}}], "ports": [{"port": 80}]}]}),
                Value::Null,
            ),
            WatchedKind::ClusterNetworkPolicy => {
                let peers = json!([{"namespaces": {"matchLabels": {"team": "a"}}}]);
                let protocols = json!([{"tcp": {"destinationPort": {"number": 80}}}]);
                let rule = json!({"name": "a", "action": "Deny", "from": peers, "protocols": protocols});
                let subject = json!({"namespaces": {}});
                (json!({"tier": "Admin", "priority": 5, "subject": subject, "ingress": [rule]}), Value::Null)
            }
            WatchedKind::Node => (
                json!({"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"], "providerID": "x"}),
                json!({
                    "addresses": [
                        {"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "node-a"},
                    ],
                    "images": [{"names": ["x"]}],
                }),
            ),
            WatchedKind::EndpointSlice => {
                let endpoints = json!([{"addresses": ["192.0.2.1", "192.0.2.2"], "conditions": {"ready": true}}]);
                let metadata = json!({"name": "kubernetes", "namespace": "default", "resourceVersion": "7"});
                return json!({
                    "metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": [{"port": 6443}],
                });
            }
            WatchedKind::Gateway => (
                json!({"gatewayClassName": "x", "listeners": [{"port": 80}]}),
                json!({"addresses": [{"type": "IPAddress", "value": "203.0.113.9"}], "conditions": []}),
            ),
            WatchedKind::Service => (
                json!({
                    "type": "ClusterIP", "selector": {"app": "web", "tier": "front"}, "externalIPs": ["203.0.113.5"],
                    "ports": [
                        {"name": "http", "port": 80, "nodePort": 30080, "protocol": "TCP", "targetPort": 8080},
                        {"name": "dns", "port": 53, "nodePort": 30053, "protocol": "UDP"},
                    ],
                    "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00:96::1"],
                }),
                json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}}),
            ),
            WatchedKind::Ingress => (
                json!({
                    "ingressClassName": "x", "tls": [{"hosts": ["a"]}], "defaultBackend": {"service": {"name": "web"}},
                    "rules": [{"host": "a", "http": {"paths": [{"path": "/", "pathType": "Exact", "backend": backend}]}}],
                }),
                json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.9", "hostname": "a", "ports": []}]}}),
            ),
            WatchedKind::HttpRoute
            | WatchedKind::GrpcRoute
            | WatchedKind::TlsRoute
            | WatchedKind::TcpRoute
            | WatchedKind::UdpRoute => (
                json!({"parentRefs": [{"name": "gateway"}], "rules": [{"matches": [{}], "backendRefs": references}]}),
                json!({"parents": []}),
            ),
        };
        json!({"metadata": metadata, "spec": spec, "status": status})
    }

    /// Replaces the n-th value within another one. Returns whether it exists.
    fn replace_nth(value: &mut Value, n: &mut usize, with: &Value) -> bool {
        if *n == 0 {
            *value = with.clone();
            return true;
        }
        *n -= 1;
        match value {
            Value::Object(fields) => fields.values_mut().any(|field| replace_nth(field, n, with)),
            Value::Array(items) => items.iter_mut().any(|item| replace_nth(item, n, with)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
        }
    }

    #[test]
    fn lean_object_lowers_like_whole_with_any_values() {
        let wrong = [
            json!(null),
            json!(true),
            json!(7),
            json!(-1.5),
            json!(""),
            json!("text"),
            json!([]),
            json!([null, "text", {"name": 7, "kind": "x", "controller": true}]),
            json!({}),
            json!({"newerField": "text", "name": "text", "status": 7, "hostPort": "80", "resource": {}}),
        ];
        for kind in WatchedKind::ALL {
            let keep = WatchedObject::resource(kind).keep;
            for wrong in &wrong {
                // Place 0 is the object itself, which would no longer be an object.
                for place in 1.. {
                    let mut object = whole(kind);
                    if !replace_nth(&mut object, &mut place.clone(), wrong) {
                        assert!(place >= 16, "{kind} has {place} places");
                        break;
                    }
                    let lean = read_lean(keep, &object.to_string()).unwrap();
                    let (of_lean, of_whole) = (
                        WatchedObject::lower(&mut Interner::new(), kind, &lean),
                        WatchedObject::lower(&mut Interner::new(), kind, &object),
                    );
                    assert_eq!(of_lean, of_whole, "{kind}: {object}");
                    assert_eq!(lean["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"]);
                }
            }
        }
    }

    #[test]
    fn fixtures_fill_every_field_without_problems() {
        for kind in WatchedKind::ALL {
            let object = WatchedObject::lower(&mut Interner::new(), kind, &whole(kind)).unwrap();
            assert_eq!(object.kind(), kind);
            assert_eq!(object.problems(), [], "{kind}");
            match object {
                WatchedObject::Namespace(_) | WatchedObject::Policy(_) | WatchedObject::ClusterPolicy(_) => {}
                WatchedObject::Pod(pod) => assert!(*pod.workload == *"w" && pod.ready && pod.host_port),
                WatchedObject::Service(service) => {
                    assert!(service.exposed && service.selector.len() == 2);
                    assert_eq!((service.addresses.len(), service.ports.len()), (4, 2));
                }
                WatchedObject::Node(node) => assert!(node.control_plane && node.base.addresses.iter().count() == 2),
                WatchedObject::EndpointSlice(slice) => assert_eq!(slice.addresses.len(), 2),
                WatchedObject::Exposure(exposure) => {
                    assert_eq!(exposure.services.is_empty(), kind == WatchedKind::Gateway, "{kind}");
                    let has_addresses = matches!(kind, WatchedKind::Ingress | WatchedKind::Gateway);
                    assert_eq!(!exposure.addresses.is_empty(), has_addresses, "{kind}");
                }
            }
        }
    }

    #[test]
    fn shared_kinds_lower_like_policy_crate() {
        for base in policy::Kind::ALL {
            let kind = WatchedKind::from(base);
            let whole = whole(kind);
            let ours = WatchedObject::lower(&mut Interner::new(), kind, &whole).unwrap();
            let theirs = policy::lower(base, &whole).unwrap();
            match (ours, theirs) {
                (WatchedObject::Namespace(a), policy::Object::Namespace(b)) => assert_eq!(a, b),
                (WatchedObject::Pod(a), policy::Object::Pod(b)) => assert_eq!(a.base, b),
                (WatchedObject::Policy(a), policy::Object::Policy(b)) => assert_eq!(a, b),
                (WatchedObject::Node(a), policy::Object::Node(b)) => assert_eq!(a.base, b),
                (WatchedObject::ClusterPolicy(a), policy::Object::ClusterPolicy(b)) => assert_eq!(a, b),
                (ours, theirs) => panic!("{ours:?} is not {theirs:?}"),
            }
        }
    }

    #[test]
    fn kinds_are_needed_that_enforcement_rests_on() {
        let needed: Vec<WatchedKind> =
            WatchedKind::ALL.into_iter().filter(|kind| WatchedObject::resource(*kind).need == Need::Needed).collect();
        assert_eq!(needed, WatchedKind::NEEDED);
    }
}
