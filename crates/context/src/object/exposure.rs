//! Objects that expose Services to the outside: Ingresses, and the Gateways and routes of the Gateway API.

use std::collections::BTreeSet;
use std::net::IpAddr;

use policy::{Interner, ObjectName};
use serde_json::Value;

use super::{Exposure, WatchedKind, WatchedReader};

/// Parses one object of a kind, and collects the Services it names.
struct Backends<'a> {
    reader: WatchedReader<'a>,
    namespace: &'a str,
    services: BTreeSet<ObjectName>,
    addresses: BTreeSet<IpAddr>,
    interner: &'a mut Interner,
}

const CONSEQUENCE: &str =
    "the workloads that this field refers to do not count as exposed, and an address has no record";

/// Backends in `spec.defaultBackend` and `spec.rules[].http.paths[].backend` (networking.k8s.io/v1).
pub(super) fn lower_ingress(name: ObjectName, object: &Value, interner: &mut Interner) -> Exposure {
    let mut backends = Backends::new(WatchedKind::Ingress, &name, interner);
    let spec = backends.reader.object(&object["spec"], "spec");
    backends.ingress_backend(&spec["defaultBackend"], "spec.defaultBackend");
    for (index, rule) in backends.reader.objects(&spec["rules"], "spec.rules") {
        let path = format!("spec.rules[{index}].http");
        let http = backends.reader.object(&rule["http"], &path);
        let path = format!("{path}.paths");
        for (index, entry) in backends.reader.objects(&http["paths"], &path) {
            backends.ingress_backend(&entry["backend"], &format!("{path}[{index}].backend"));
        }
    }
    let status = backends.reader.object(&object["status"], "status");
    let balancer = backends.reader.object(&status["loadBalancer"], "status.loadBalancer");
    // An entry has an address or a host name.
    for (index, entry) in backends.reader.objects(&balancer["ingress"], "status.loadBalancer.ingress") {
        if !matches!(&entry["ip"], Value::Null) && entry["ip"] != "" {
            let path = format!("status.loadBalancer.ingress[{index}].ip");
            backends.addresses.extend(backends.reader.address(&entry["ip"], &path));
        }
    }
    backends.exposure(WatchedKind::Ingress, name.clone())
}

/// Addresses in `status.addresses[]` (gateway.networking.k8s.io/v1), without host names and custom types of
/// controllers.
pub(super) fn lower_gateway(name: ObjectName, object: &Value, interner: &mut Interner) -> Exposure {
    let mut backends = Backends::new(WatchedKind::Gateway, &name, interner);
    let status = backends.reader.object(&object["status"], "status");
    for (index, entry) in backends.reader.objects(&status["addresses"], "status.addresses") {
        let path = format!("status.addresses[{index}]");
        let sort = backends.reader.text(&entry["type"], &format!("{path}.type"));
        if sort.unwrap_or("IPAddress") == "IPAddress" {
            backends.addresses.extend(backends.reader.address(&entry["value"], &format!("{path}.value")));
        }
    }
    backends.exposure(WatchedKind::Gateway, name.clone())
}

/// Backends in `spec.rules[].backendRefs[]`, which all kinds of route have.
pub(super) fn lower_route(kind: WatchedKind, name: ObjectName, object: &Value, interner: &mut Interner) -> Exposure {
    let mut backends = Backends::new(kind, &name, interner);
    let spec = backends.reader.object(&object["spec"], "spec");
    for (index, rule) in backends.reader.objects(&spec["rules"], "spec.rules") {
        let path = format!("spec.rules[{index}].backendRefs");
        for (index, reference) in backends.reader.objects(&rule["backendRefs"], &path) {
            backends.route_backend(reference, &format!("{path}[{index}]"));
        }
    }
    backends.exposure(kind, name.clone())
}

impl<'a> Backends<'a> {
    fn new(kind: WatchedKind, name: &'a ObjectName, interner: &'a mut Interner) -> Backends<'a> {
        let reader = WatchedReader::new(kind, name, CONSEQUENCE);
        Backends { reader, namespace: &name.namespace, services: BTreeSet::new(), addresses: BTreeSet::new(), interner }
    }

    /// A Service in the namespace of the Ingress; a resource backend is ignored.
    fn ingress_backend(&mut self, backend: &Value, path: &str) {
        let backend = self.reader.object(backend, path);
        if backend.is_null() {
            return;
        }
        match (&backend["service"], &backend["resource"]) {
            (Value::Null, Value::Null) => {
                self.reader.not_understood(path, "expected service or resource (networking.k8s.io/v1)");
            }
            (Value::Null, _) => {}
            (service, _) => {
                let path = format!("{path}.service");
                let service = self.reader.object(service, &path);
                if !service.is_null()
                    && let Some(name) = self.reader.needed_text(&service["name"], &format!("{path}.name"))
                {
                    self.add(self.namespace, name);
                }
            }
        }
    }

    /// A Service, by default in the namespace of the route; other kinds are ignored.
    fn route_backend(&mut self, reference: &Value, path: &str) {
        let mut text = |field: &str| {
            let value = &reference[field];
            let text = self.reader.text(value, &format!("{path}.{field}"));
            // An invalid value is unknown, and must not be treated as the default.
            text.map(Some).or_else(|| value.is_null().then_some(None))
        };
        let (Some(group), Some(kind), Some(namespace)) = (text("group"), text("kind"), text("namespace")) else {
            return;
        };
        if !group.unwrap_or("").is_empty() || kind.unwrap_or("Service") != "Service" {
            return;
        }
        if let Some(name) = self.reader.needed_text(&reference["name"], &format!("{path}.name")) {
            self.add(namespace.filter(|namespace| !namespace.is_empty()).unwrap_or(self.namespace), name);
        }
    }

    fn add(&mut self, namespace: &str, name: &str) {
        let name = ObjectName { namespace: self.interner.text(namespace), name: self.interner.text(name) };
        self.services.insert(name);
    }

    fn exposure(self, kind: WatchedKind, name: ObjectName) -> Exposure {
        Exposure {
            kind,
            name,
            services: self.services.into_iter().collect(),
            addresses: self.addresses.into_iter().collect(),
            problems: self.reader.problems(),
        }
    }
}

#[cfg(test)]
mod tests {
    use cluster::Watchable;
    use serde_json::json;

    use super::*;
    use crate::object::WatchedObject;

    fn check(kind: WatchedKind, spec: Value, services: &[&str], problems: &[&str]) {
        let object = json!({"metadata": {"namespace": "shop", "name": "in"}, "spec": spec});
        let Ok(WatchedObject::Exposure(exposure)) = WatchedObject::lower(&mut Interner::new(), kind, &object) else {
            panic!("no exposure")
        };
        let named: Vec<String> = exposure.services.iter().map(ObjectName::to_string).collect();
        assert_eq!(named, services, "{spec}");
        assert_eq!(exposure.kind, kind);
        let origins: Vec<&str> = exposure.problems.iter().map(|problem| problem.origin.as_str()).collect();
        let expected: Vec<String> = problems.iter().map(|path| format!("{kind} shop/in {path}")).collect();
        assert_eq!(origins, expected, "{spec}");
    }

    #[test]
    fn ingress_names_services_of_default_backend_and_rules() {
        let path = |name: &str| json!({"path": "/", "backend": {"service": {"name": name, "port": {"number": 80}}}});
        let spec = json!({
            "defaultBackend": {"service": {"name": "web"}},
            "rules": [
                {"host": "a", "http": {"paths": [path("shop"), path("web")]}},
                {"host": "b"},
                {"http": {"paths": [path("api"), {"backend": {"resource": {"kind": "Bucket", "name": "x"}}}]}},
            ],
        });
        check(WatchedKind::Ingress, spec, &["shop/api", "shop/shop", "shop/web"], &[]);
        check(WatchedKind::Ingress, Value::Null, &[], &[]);
    }

    fn addresses(kind: WatchedKind, status: Value) -> (Vec<String>, usize) {
        let object = json!({"metadata": {"namespace": "shop", "name": "in"}, "status": status});
        let Ok(WatchedObject::Exposure(exposure)) = WatchedObject::lower(&mut Interner::new(), kind, &object) else {
            panic!("no exposure")
        };
        (exposure.addresses.iter().map(ToString::to_string).collect(), exposure.problems.len())
    }

    #[test]
    fn ingress_has_the_addresses_of_its_status() {
        let status = json!({"loadBalancer": {"ingress": [
            {"ip": "203.0.113.9", "ports": []}, {"hostname": "a.example.com"}, {"ip": "2001:db8::9"},
            {"ip": "203.0.113.9"}, {"ip": "", "hostname": "b"}, {"ip": "::ffff:203.0.113.8"}, {"ip": "x"}, {"ip": 7},
        ]}});
        let expected = ["203.0.113.8", "203.0.113.9", "2001:db8::9"].map(String::from).to_vec();
        assert_eq!(addresses(WatchedKind::Ingress, status.clone()), (expected, 2));
        assert_eq!(addresses(WatchedKind::HttpRoute, status), (vec![], 0));
    }

    #[test]
    fn gateway_has_the_addresses_of_its_status() {
        let status = json!({"addresses": [
            {"value": "203.0.113.9"}, {"type": "IPAddress", "value": "2001:db8::9"},
            {"type": "Hostname", "value": "a.example.com"}, {"type": "example.com/own", "value": "7"},
            {"type": "IPAddress", "value": "x"}, {"type": "IPAddress"},
        ]});
        let expected = ["203.0.113.9", "2001:db8::9"].map(String::from).to_vec();
        assert_eq!(addresses(WatchedKind::Gateway, status), (expected, 2));
    }

    #[test]
    fn route_names_services_of_its_rules() {
        let spec = json!({
            "parentRefs": [{"name": "gateway"}],
            "rules": [
                {"backendRefs": [{"name": "web", "port": 80}, {"name": "db", "namespace": "data", "kind": "Service", "group": ""}]},
                {"matches": []},
                {"backendRefs": [{"name": "far", "group": "multicluster.x-k8s.io", "kind": "ServiceImport"}, {"name": "web"}]},
            ],
        });
        for kind in [
            WatchedKind::HttpRoute,
            WatchedKind::GrpcRoute,
            WatchedKind::TlsRoute,
            WatchedKind::TcpRoute,
            WatchedKind::UdpRoute,
        ] {
            check(kind, spec.clone(), &["data/db", "shop/web"], &[]);
        }
    }

    #[test]
    fn ingress_keeps_valid_backends_and_reports_invalid_ones() {
        let old = json!({"backend": {"serviceName": "old", "servicePort": 80}});
        let spec = json!({
            "defaultBackend": {"service": {"name": 7}},
            "rules": [7, {"http": {"paths": [old, {"backend": {"service": {"name": "web"}}}]}}, {"http": "x"}],
        });
        let problems = [
            "spec.defaultBackend.service.name",
            "spec.rules[0]",
            "spec.rules[1].http.paths[0].backend",
            "spec.rules[2].http",
        ];
        check(WatchedKind::Ingress, spec, &["shop/web"], &problems);
        check(WatchedKind::Ingress, json!("x"), &[], &["spec"]);
    }

    #[test]
    fn route_keeps_valid_backends_and_reports_invalid_ones() {
        let spec = json!({"rules": [
            {"backendRefs": [{"name": "web"}, {"namespace": 7, "name": "x"}, {"kind": "Service"}, 7]},
            {"backendRefs": {"name": "y"}},
        ]});
        let problems = [
            "spec.rules[0].backendRefs[3]",
            "spec.rules[0].backendRefs[1].namespace",
            "spec.rules[0].backendRefs[2].name",
            "spec.rules[1].backendRefs",
        ];
        check(WatchedKind::HttpRoute, spec, &["shop/web"], &problems);
    }
}
