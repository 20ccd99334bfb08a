//! Services, and the addresses of API servers: they name flows and classify addresses. Enforcement does not depend on
//! them, so both kinds are [optional](Need::Optional).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use policy::{Interner, Labels, ObjectName, Protocol, SourceObject, lower_name};
use serde_json::Value;

use crate::Keep::{self, Each, Only, Whole};
use crate::{Manifests, MissingName, Need, ObjectReader, Problem, Resource, Watchable};

/// The EndpointSlice that API servers publish of themselves: that of the Service `kubernetes` in the namespace
/// `default`.
const API_SERVERS: (&str, &str) = ("default", "kubernetes");

type ServiceReader<'a> = ObjectReader<'a, ServiceKind>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ServiceKind {
    Service,
    /// Only that of the Service `default/kubernetes`: the addresses of the API servers.
    EndpointSlice,
}

impl fmt::Display for ServiceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ServiceKind::Service => "Service",
            ServiceKind::EndpointSlice => "EndpointSlice",
        })
    }
}

#[derive(Debug, Clone, PartialEq)]
pub enum ServiceObject {
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Service {
    pub name: ObjectName,
    /// Empty if the Service has no selector, or an invalid one.
    pub selector: Labels,
    /// The type is LoadBalancer or NodePort, or there are externalIPs.
    pub exposed: bool,
    /// The addresses for clients, sorted and without duplicates.
    pub addresses: Box<[ServiceAddress]>,
    /// Sorted by protocol and port.
    pub ports: Box<[ServicePortSpec]>,
    pub problems: Box<[Problem]>,
}

/// An address of a Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServiceAddress {
    pub source: AddressSource,
    pub address: IpAddr,
}

/// The field of a Service address, in order of precedence if several Services claim one: the API server allocates
/// cluster IPs, controllers write those of load balancers, and any writer of a Service its externalIPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressSource {
    ClusterIp,
    LoadBalancer,
    ExternalIp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePortSpec {
    pub name: Option<Arc<str>>,
    pub protocol: Protocol,
    pub port: u16,
    pub node_port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct EndpointSlice {
    pub name: ObjectName,
    /// Sorted, without duplicates; empty unless the slice belongs to the Service `default/kubernetes`.
    pub addresses: Vec<IpAddr>,
    pub problems: Box<[Problem]>,
}

impl ServiceObject {
    /// The problems with invalid fields.
    pub fn problems(&self) -> &[Problem] {
        match self {
            ServiceObject::Service(o) => &o.problems,
            ServiceObject::EndpointSlice(o) => &o.problems,
        }
    }
}

impl SourceObject for ServiceObject {
    type Kind = ServiceKind;

    fn kind(&self) -> ServiceKind {
        match self {
            ServiceObject::Service(_) => ServiceKind::Service,
            ServiceObject::EndpointSlice(_) => ServiceKind::EndpointSlice,
        }
    }

    fn name(&self) -> &ObjectName {
        match self {
            ServiceObject::Service(o) => &o.name,
            ServiceObject::EndpointSlice(o) => &o.name,
        }
    }
}

impl Watchable for ServiceObject {
    const KINDS: &'static [ServiceKind] = &[ServiceKind::Service, ServiceKind::EndpointSlice];
    const NAMESPACE: Option<ServiceKind> = None;

    fn resource(kind: ServiceKind) -> Resource {
        let (plural, group, keep, only) = match kind {
            ServiceKind::Service => ("services", "", SERVICE, None),
            ServiceKind::EndpointSlice => ("endpointslices", "discovery.k8s.io", ENDPOINT_SLICE, Some(API_SERVERS)),
        };
        Resource {
            plural,
            group,
            version: "v1",
            alternatives: &[],
            need: Need::Optional,
            manifests: Manifests::OfGroup,
            keep,
            only,
        }
    }

    fn lower(interner: &mut Interner, kind: ServiceKind, object: &Value) -> Result<ServiceObject, MissingName> {
        let name = lower_name(interner, &object["metadata"]).ok_or(MissingName)?;
        Ok(match kind {
            ServiceKind::Service => ServiceObject::Service(Arc::new(lower_service(name, object, interner))),
            ServiceKind::EndpointSlice => ServiceObject::EndpointSlice(Arc::new(lower_slice(name, object))),
        })
    }
}

const METADATA: (&str, Keep) = ("metadata", Only(&[("name", Whole), ("namespace", Whole), ("resourceVersion", Whole)]));

const ENDPOINT_SLICE: Keep =
    Only(&[METADATA, ("addressType", Whole), ("endpoints", Each(&Only(&[("addresses", Whole)])))]);

const PORT: Keep = Only(&[("name", Whole), ("protocol", Whole), ("port", Whole), ("nodePort", Whole)]);

const SERVICE: Keep = Only(&[
    METADATA,
    (
        "spec",
        Only(&[
            ("type", Whole),
            ("selector", Whole),
            ("clusterIP", Whole),
            ("clusterIPs", Whole),
            ("externalIPs", Whole),
            ("ports", Each(&PORT)),
        ]),
    ),
    ("status", Only(&[("loadBalancer", Only(&[("ingress", Each(&Only(&[("ip", Whole)])))]))])),
]);

/// Whether and how clients reach Services of a type.
enum Reach {
    /// ExternalName: an alias, whose other fields have no meaning.
    Elsewhere,
    Inside,
    Outside,
}

fn lower_service(name: ObjectName, object: &Value, interner: &mut Interner) -> Service {
    let mut reader = ServiceReader::new(ServiceKind::Service, &name, "the field is ignored");
    let spec = reader.object(&object["spec"], "spec");
    let reach = match reader.text(&spec["type"], "spec.type").unwrap_or("ClusterIP") {
        "ClusterIP" => Reach::Inside,
        "NodePort" | "LoadBalancer" => Reach::Outside,
        "ExternalName" => Reach::Elsewhere,
        other => {
            reader.not_understood("spec.type", &format!("unknown type '{}'", other.escape_debug()));
            Reach::Inside
        }
    };
    let (selector, exposed, addresses, ports) = match reach {
        Reach::Elsewhere => (Labels::new(), false, Box::default(), Box::default()),
        Reach::Inside | Reach::Outside => {
            let selector = selector(&spec["selector"], &mut reader, interner);
            let has_external_addresses = spec["externalIPs"].as_array().is_some_and(|addresses| !addresses.is_empty());
            let exposed = matches!(reach, Reach::Outside) || has_external_addresses;
            let status = reader.object(&object["status"], "status");
            let addresses = addresses(spec, status, &mut reader);
            (selector, exposed, addresses, ports(&spec["ports"], &mut reader, interner))
        }
    };
    let problems = reader.problems();
    Service { name, selector, exposed, addresses, ports, problems }
}

/// Without an invalid pair the selector would be wider and match other pods, so it is empty then.
fn selector(value: &Value, reader: &mut ServiceReader<'_>, interner: &mut Interner) -> Labels {
    let Value::Object(pairs) = reader.object(value, "spec.selector") else { return Labels::new() };
    let mut understood = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        match value {
            Value::String(text) => understood.push((key.as_str(), text.as_str())),
            other => {
                reader.expected("a string", other, &format!("spec.selector.{}", key.escape_debug()));
                return Labels::new();
            }
        }
    }
    interner.labels(understood)
}

fn addresses(spec: &Value, status: &Value, reader: &mut ServiceReader<'_>) -> Box<[ServiceAddress]> {
    let mut found = Vec::new();
    let mut add = |source, address: Option<IpAddr>| {
        found.extend(address.map(|address| ServiceAddress { source, address }));
    };
    // `None` marks a headless Service.
    let is_none = |value: &Value| value.is_null() || value == "" || value == "None";
    if !is_none(&spec["clusterIP"]) {
        add(AddressSource::ClusterIp, reader.address(&spec["clusterIP"], "spec.clusterIP"));
    }
    for (index, value) in reader.items(&spec["clusterIPs"], "spec.clusterIPs").iter().enumerate() {
        // The first one repeats `clusterIP`.
        if !is_none(value) && *value != spec["clusterIP"] {
            add(AddressSource::ClusterIp, reader.address(value, &format!("spec.clusterIPs[{index}]")));
        }
    }
    let balancer = reader.object(&status["loadBalancer"], "status.loadBalancer");
    for (index, entry) in reader.objects(&balancer["ingress"], "status.loadBalancer.ingress") {
        // An ingress entry has an IP or a hostname.
        if !is_none(&entry["ip"]) {
            let path = format!("status.loadBalancer.ingress[{index}].ip");
            add(AddressSource::LoadBalancer, reader.address(&entry["ip"], &path));
        }
    }
    for address in reader.addresses(&spec["externalIPs"], "spec.externalIPs") {
        add(AddressSource::ExternalIp, Some(address));
    }
    found.sort_by_key(|found| (found.address, found.source));
    found.dedup_by_key(|found| found.address);
    found.sort_unstable();
    found.into()
}

fn ports(value: &Value, reader: &mut ServiceReader<'_>, interner: &mut Interner) -> Box<[ServicePortSpec]> {
    let mut found = Vec::new();
    for (index, entry) in reader.objects(value, "spec.ports") {
        let path = |field: &str| format!("spec.ports[{index}].{field}");
        let protocol = match reader.text(&entry["protocol"], &path("protocol")).unwrap_or("TCP") {
            "TCP" => Protocol::Tcp,
            "UDP" => Protocol::Udp,
            "SCTP" => Protocol::Sctp,
            other => {
                reader.not_understood(&path("protocol"), &format!("unknown protocol '{}'", other.escape_debug()));
                continue;
            }
        };
        let Some(port) = port(&entry["port"], &path("port"), reader) else { continue };
        let name = reader.text(&entry["name"], &path("name")).filter(|name| !name.is_empty());
        let node_port = match &entry["nodePort"] {
            Value::Null => None,
            value if value.as_u64() == Some(0) => None,
            value => self::port(value, &path("nodePort"), reader),
        };
        found.push(ServicePortSpec { name: name.map(|name| interner.text(name)), protocol, port, node_port });
    }
    found.sort_by_key(|found| (found.protocol, found.port));
    found.into()
}

fn port(value: &Value, path: &str, reader: &mut ServiceReader<'_>) -> Option<u16> {
    let port = value.as_u64().and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0);
    if port.is_none() {
        reader.not_understood(path, &format!("invalid port {value}: expected 1 to 65535"));
    }
    port
}

impl Service {
    /// The Service port with this number.
    pub fn port(&self, protocol: Protocol, port: u16) -> Option<&ServicePortSpec> {
        let place = self.ports.partition_point(|found| (found.protocol, found.port) < (protocol, port));
        self.ports.get(place).filter(|found| (found.protocol, found.port) == (protocol, port))
    }
}

/// Addresses in `endpoints[].addresses[]` (discovery.k8s.io/v1). The owner of an address does not depend on the
/// readiness of its endpoint.
fn lower_slice(name: ObjectName, object: &Value) -> EndpointSlice {
    let consequence = "the address does not count as that of an API server";
    let mut reader = ServiceReader::new(ServiceKind::EndpointSlice, &name, consequence);
    let mut addresses = Vec::new();
    let is_of_api_servers = (&*name.namespace, &*name.name) == API_SERVERS;
    // A slice of type FQDN has no IP addresses.
    if is_of_api_servers && object["addressType"] != "FQDN" {
        for (index, endpoint) in reader.objects(&object["endpoints"], "endpoints") {
            let path = format!("endpoints[{index}].addresses");
            addresses.extend(reader.addresses(&endpoint["addresses"], &path));
        }
    }
    addresses.sort_unstable();
    addresses.dedup();
    let problems = reader.problems();
    EndpointSlice { name, addresses, problems }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::read_lean;

    fn lower(kind: ServiceKind, object: &Value) -> ServiceObject {
        let whole = ServiceObject::lower(&mut Interner::new(), kind, object).unwrap();
        let lean = read_lean(ServiceObject::resource(kind).keep, &object.to_string()).unwrap();
        assert_eq!(ServiceObject::lower(&mut Interner::new(), kind, &lean), Ok(whole.clone()), "{object}");
        whole
    }

    fn service(spec: Value) -> Arc<Service> {
        service_with(spec, Value::Null)
    }

    fn service_with(spec: Value, status: Value) -> Arc<Service> {
        let object = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec, "status": status});
        match lower(ServiceKind::Service, &object) {
            ServiceObject::Service(service) => service,
            ServiceObject::EndpointSlice(slice) => panic!("{slice:?}"),
        }
    }

    fn selected(service: &Service) -> Vec<String> {
        service.selector.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn service_is_exposed_by_type_or_external_ips() {
        let selector = json!({"app": "web"});
        for (spec, exposed) in [
            (json!({"selector": selector}), false),
            (json!({"selector": selector, "type": "ClusterIP", "externalIPs": []}), false),
            (json!({"selector": selector, "type": "ClusterIP", "externalIPs": ["203.0.113.5"]}), true),
            (json!({"selector": selector, "type": "NodePort"}), true),
            (json!({"selector": selector, "type": "LoadBalancer"}), true),
        ] {
            let service = service(spec.clone());
            assert_eq!((service.exposed, selected(&service)), (exposed, vec!["app=web".to_owned()]), "{spec}");
            assert!(service.problems.is_empty(), "{spec}");
        }
    }

    #[test]
    fn external_name_service_selects_no_pods() {
        let service =
            service(json!({"selector": {"app": "web"}, "type": "ExternalName", "externalIPs": ["203.0.113.5"]}));
        assert_eq!((service.exposed, service.selector.is_empty(), service.problems.len()), (false, true, 0));
    }

    #[test]
    fn invalid_service_selector_selects_nothing_and_is_problem() {
        for selector in [json!("app=web"), json!([]), json!({"app": 7, "tier": "front"}), json!({"app": null})] {
            let service = service(json!({"selector": selector, "type": "LoadBalancer"}));
            assert!(service.exposed && service.selector.is_empty(), "{selector}");
            assert_eq!(service.problems.len(), 1, "{selector}");
            assert!(service.problems[0].origin.starts_with("Service shop/web spec.selector"), "{selector}");
        }
    }

    #[test]
    fn invalid_service_fields_keep_valid_selector() {
        let service = service(json!({"selector": {"app": "web"}, "type": "Teleport", "externalIPs": "203.0.113.5"}));
        assert_eq!((service.exposed, selected(&service), service.problems.len()), (false, vec!["app=web".into()], 2));
    }

    fn addresses(service: &Service) -> Vec<(AddressSource, String)> {
        service.addresses.iter().map(|found| (found.source, found.address.to_string())).collect()
    }

    #[test]
    fn service_has_addresses_of_both_families_once() {
        let spec = json!({
            "type": "LoadBalancer", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00:96::7"],
            "externalIPs": ["203.0.113.5", "10.96.0.7", "::ffff:203.0.113.9"],
        });
        let status = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}, {"hostname": "lb.example"}]}});
        let service = service_with(spec, status);
        let expected = [
            (AddressSource::ClusterIp, "10.96.0.7"),
            (AddressSource::ClusterIp, "fd00:96::7"),
            (AddressSource::LoadBalancer, "203.0.113.9"),
            (AddressSource::ExternalIp, "203.0.113.5"),
        ];
        assert_eq!(addresses(&service), expected.map(|(source, text)| (source, text.to_owned())));
        assert_eq!(service.problems, Box::default());
    }

    #[test]
    fn headless_and_external_name_services_have_no_addresses() {
        for spec in [
            json!({"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]}),
            json!({"clusterIP": "", "ports": [{"port": 80}]}),
            json!({"type": "ExternalName", "clusterIP": "10.96.0.7", "externalIPs": ["x"], "ports": [{"port": 0}]}),
        ] {
            let service = service(spec.clone());
            assert_eq!((addresses(&service), service.problems.len()), (vec![], 0), "{spec}");
        }
    }

    #[test]
    fn service_has_named_ports_and_node_ports() {
        let service = service(json!({"ports": [
            {"name": "http", "port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP", "nodePort": 0},
            {"name": "", "port": 132, "protocol": "SCTP"},
        ]}));
        let port = |name: Option<&str>, protocol, port, node_port| ServicePortSpec {
            name: name.map(Into::into),
            protocol,
            port,
            node_port,
        };
        let expected = [
            port(Some("http"), Protocol::Tcp, 80, Some(30080)),
            port(None, Protocol::Udp, 53, None),
            port(None, Protocol::Sctp, 132, None),
        ];
        assert_eq!((&*service.ports, service.problems.len()), (&expected[..], 0));
    }

    #[test]
    fn malformed_port_or_address_is_skipped_and_named() {
        let service = service(json!({
            "clusterIP": "10.96.0.x", "externalIPs": [7, "203.0.113.5"],
            "ports": [{"port": "80"}, {"port": 70_000}, {"port": 80, "protocol": "ICMP"}, {"port": 81, "nodePort": -1}, 7],
        }));
        assert_eq!(addresses(&service), [(AddressSource::ExternalIp, "203.0.113.5".to_owned())]);
        assert_eq!(service.ports.iter().map(|port| port.port).collect::<Vec<_>>(), [81]);
        let origins: Vec<&str> = service.problems.iter().map(|problem| problem.origin.as_str()).collect();
        let expected = [
            "spec.clusterIP",
            "spec.externalIPs[0]",
            "spec.ports[4]",
            "spec.ports[0].port",
            "spec.ports[1].port",
            "spec.ports[2].protocol",
            "spec.ports[3].nodePort",
        ];
        assert_eq!(origins, expected.map(|path| format!("Service shop/web {path}")));
    }

    fn slice(name: &str, whole: Value) -> EndpointSlice {
        let name: ObjectName = name.parse().unwrap();
        let mut object = json!({"metadata": {"namespace": &*name.namespace, "name": &*name.name}});
        object.as_object_mut().unwrap().extend(whole.as_object().unwrap().clone());
        match lower(ServiceKind::EndpointSlice, &object) {
            ServiceObject::EndpointSlice(slice) => (*slice).clone(),
            ServiceObject::Service(service) => panic!("{service:?}"),
        }
    }

    fn texts(slice: &EndpointSlice) -> Vec<String> {
        slice.addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn api_servers_are_endpoints_of_the_service_kubernetes() {
        let endpoints = json!({"addressType": "IPv4", "endpoints": [
            {"addresses": ["192.0.2.2"]}, {"addresses": ["192.0.2.1", "192.0.2.2"], "conditions": {"ready": false}},
        ]});
        assert_eq!(texts(&slice("default/kubernetes", endpoints.clone())), ["192.0.2.1", "192.0.2.2"]);
        for other in ["shop/kubernetes", "default/web", "kube-system/kubernetes"] {
            assert_eq!(slice(other, endpoints.clone()).addresses, [] as [IpAddr; 0], "{other}");
        }
        let names = json!({"addressType": "FQDN", "endpoints": [{"addresses": ["api.example.com"]}]});
        let names = slice("default/kubernetes", names);
        assert!(names.addresses.is_empty() && names.problems.is_empty());
    }

    #[test]
    fn endpoint_without_valid_address_is_a_problem() {
        let endpoints = json!({"endpoints": [{"addresses": ["192.0.2.2", "x", 7]}, 7, {"addresses": "192.0.2.3"}]});
        let slice = slice("default/kubernetes", endpoints);
        let origins: Vec<&str> = slice.problems.iter().map(|problem| problem.origin.as_str()).collect();
        let of = |path: &str| format!("EndpointSlice default/kubernetes {path}");
        assert_eq!(texts(&slice), ["192.0.2.2"]);
        let expected =
            ["endpoints[1]", "endpoints[0].addresses[1]", "endpoints[0].addresses[2]", "endpoints[2].addresses"];
        assert_eq!(origins, expected.map(of));
    }
}
