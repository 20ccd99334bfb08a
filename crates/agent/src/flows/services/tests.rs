use cluster::{ServicePortSpec, Watchable};
use policy::Interner;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::{Value, json};

use super::*;

fn object(kind: ServiceKind, name: &str, rest: Value) -> ServiceObject {
    let (namespace, name) = name.split_once('/').unwrap();
    let mut object = json!({"metadata": {"namespace": namespace, "name": name}});
    object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    ServiceObject::lower(&mut Interner::new(), kind, &object).unwrap()
}

fn service(name: &str, spec: Value) -> Change<ServiceObject> {
    Change::Set(object(ServiceKind::Service, name, json!({"spec": spec})))
}

fn slice(name: &str, addresses: Value) -> Change<ServiceObject> {
    Change::Set(object(ServiceKind::EndpointSlice, name, json!({"endpoints": [{"addresses": addresses}]})))
}

fn directory(changes: impl IntoIterator<Item = Change<ServiceObject>>) -> ServiceDirectory {
    let mut directory = ServiceDirectory::default();
    changes.into_iter().for_each(|change| directory.apply(change));
    directory
}

/// `namespace/name:port name` of the Service that a client asked for.
fn asked(directory: &ServiceDirectory, address: &str, is_node: bool, protocol: u8, port: u16) -> Option<String> {
    let found = directory.service_port(address.parse().unwrap(), is_node, protocol, port)?;
    assert_eq!(found.port, port);
    let port_name = found.port_name.map(|name| format!(":{name}")).unwrap_or_default();
    Some(format!("{}/{}{port_name}", found.namespace, found.name))
}

fn web() -> Change<ServiceObject> {
    service(
        "shop/web",
        json!({
            "type": "NodePort", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00:96::7"],
            "externalIPs": ["203.0.113.5"],
            "ports": [
                {"name": "http", "port": 80, "nodePort": 30080},
                {"port": 53, "protocol": "UDP", "nodePort": 30080},
                {"name": "s", "port": 80, "protocol": "SCTP"},
            ],
        }),
    )
}

#[test]
fn service_is_found_by_address_protocol_and_port() {
    let directory = directory([web()]);
    for address in ["10.96.0.7", "fd00:96::7", "203.0.113.5"] {
        assert_eq!(asked(&directory, address, false, 6, 80).as_deref(), Some("shop/web:http"), "{address}");
        assert_eq!(asked(&directory, address, false, 17, 53).as_deref(), Some("shop/web"), "{address}");
        assert_eq!(asked(&directory, address, false, 132, 80).as_deref(), Some("shop/web:s"), "{address}");
        for (protocol, port) in [(17, 80), (6, 53), (6, 30080), (1, 0)] {
            assert_eq!(asked(&directory, address, false, protocol, port), None, "{address} {protocol} {port}");
        }
    }
    assert_eq!(asked(&directory, "10.96.0.8", false, 6, 80), None);
}

#[test]
fn node_port_counts_at_addresses_of_nodes_only() {
    let directory = directory([web()]);
    assert_eq!(asked(&directory, "192.0.2.1", true, 6, 30080).as_deref(), Some("shop/web:http"));
    assert_eq!(asked(&directory, "2001:db8::1", true, 17, 30080).as_deref(), Some("shop/web"));
    assert_eq!(asked(&directory, "192.0.2.1", false, 6, 30080), None);
    assert_eq!(asked(&directory, "192.0.2.1", true, 132, 30080), None);
    assert_eq!(asked(&directory, "192.0.2.1", true, 6, 80), None);
}

#[test]
fn cluster_ip_outranks_external_ip_of_other_service() {
    let thief = json!({"clusterIP": "10.96.0.9", "externalIPs": ["10.96.0.7"], "ports": [{"port": 80}, {"port": 81}]});
    let directory = directory([service("a/thief", thief), web()]);
    assert_eq!(asked(&directory, "10.96.0.7", false, 6, 80).as_deref(), Some("shop/web:http"));
    // No other Service has the port.
    assert_eq!(asked(&directory, "10.96.0.7", false, 6, 81).as_deref(), Some("a/thief"));
}

#[test]
fn services_share_the_address_of_a_load_balancer() {
    let of = |name: &str, port: u16| {
        let status = json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.9"}]}});
        let spec = json!({"type": "LoadBalancer", "ports": [{"port": port}]});
        Change::Set(object(ServiceKind::Service, name, json!({"spec": spec, "status": status})))
    };
    let directory = directory([of("shop/a", 80), of("shop/b", 443)]);
    assert_eq!(asked(&directory, "203.0.113.9", false, 6, 80).as_deref(), Some("shop/a"));
    assert_eq!(asked(&directory, "203.0.113.9", false, 6, 443).as_deref(), Some("shop/b"));
}

#[test]
fn lookup_visits_a_bounded_number_of_services() {
    let claims = |number: usize| {
        let spec = json!({"externalIPs": ["10.96.0.7"], "ports": [{"port": 1000 + number}]});
        service(&format!("a/claims-{number:04}"), spec)
    };
    let directory = directory((0..2 * MOST_VISITED).map(claims).chain([web()]));
    assert_eq!(asked(&directory, "10.96.0.7", false, 6, 80).as_deref(), Some("shop/web:http"));
    assert_eq!(asked(&directory, "10.96.0.7", false, 6, 1000).as_deref(), Some("a/claims-0000"));
    assert_eq!(asked(&directory, "10.96.0.7", false, 6, 1000 + MOST_VISITED as u16), None);
}

#[test]
fn api_servers_follow_their_endpoint_slice() {
    let is = |directory: &ServiceDirectory, address: &str| directory.is_api_server(address.parse().unwrap());
    let addresses = json!(["192.0.2.1", "2001:db8::1"]);
    let mut directory =
        directory([slice("default/kubernetes", addresses.clone()), slice("shop/kubernetes", addresses)]);
    assert!(is(&directory, "192.0.2.1") && is(&directory, "2001:db8::1") && !is(&directory, "192.0.2.2"));
    directory.apply(slice("default/kubernetes", json!(["192.0.2.2"])));
    assert!(!is(&directory, "192.0.2.1") && is(&directory, "192.0.2.2"));
    directory.apply(Change::Replace(ServiceKind::EndpointSlice, vec![]));
    assert!(!is(&directory, "192.0.2.2"));
}

const NAMES: [&str; 4] = ["a/x", "a/y", "b/x", "b/y"];
const ADDRESSES: [&str; 4] = ["10.96.0.1", "10.96.0.2", "fd00:96::1", "192.0.2.1"];

fn services() -> impl Strategy<Value = ServiceObject> {
    let ports = prop::collection::vec((1..4u16, prop::bool::ANY, prop::option::of(1..4u16)), 0..3);
    let addresses = || subsequence(&ADDRESSES[..], 0..3);
    (select(&NAMES[..]), addresses(), addresses(), ports).prop_map(|(name, cluster, external, ports)| {
        let port = |(port, udp, node_port): (u16, bool, Option<u16>)| {
            json!({"port": port, "protocol": if udp { "UDP" } else { "TCP" }, "nodePort": node_port})
        };
        let ports: Vec<Value> = ports.into_iter().map(port).collect();
        let spec = json!({"clusterIPs": cluster, "externalIPs": external, "ports": ports});
        object(ServiceKind::Service, name, json!({"spec": spec}))
    })
}

fn changes() -> impl Strategy<Value = Change<ServiceObject>> {
    prop_oneof![
        4 => services().prop_map(Change::Set),
        2 => select(&NAMES[..]).prop_map(|name| Change::Remove(ServiceKind::Service, name.parse().unwrap())),
        1 => prop::collection::vec(services(), 0..3).prop_map(|objects| Change::Replace(ServiceKind::Service, objects)),
    ]
}

/// Oracle: the expected answer from a scan of all objects.
fn expected(
    known: &BTreeMap<ObjectName, Arc<Service>>,
    address: IpAddr,
    is_node: bool,
    port: u16,
) -> Option<ObjectName> {
    let has = |service: &&Arc<Service>, of: fn(&ServicePortSpec) -> Option<u16>| {
        service.ports.iter().any(|found| found.protocol == Protocol::Tcp && of(found) == Some(port))
    };
    let claims = known.values().filter(|service| has(service, |port| Some(port.port))).filter_map(|service| {
        let claim = service.addresses.iter().find(|claim| claim.address == address)?;
        Some((claim.source, service.name.clone()))
    });
    let by_address = claims.min().map(|(_, name)| name);
    let by_node_port = || known.values().find(|service| is_node && has(service, |port| port.node_port));
    by_address.or_else(|| by_node_port().map(|service| service.name.clone()))
}

proptest! {
    /// After any sequence of changes, the indices match the remaining objects.
    #[test]
    fn lookups_agree_with_a_scan_after_any_changes(changes in prop::collection::vec(changes(), 0..12)) {
        let directory = directory(changes);
        for address in ADDRESSES.map(|address| address.parse::<IpAddr>().unwrap()) {
            for (port, is_node) in (1..4).flat_map(|port| [(port, false), (port, true)]) {
                let found = directory.service_port(address, is_node, 6, port);
                let found = found.map(|found| ObjectName { namespace: found.namespace, name: found.name });
                prop_assert_eq!(found, expected(&directory.services, address, is_node, port));
            }
        }
        let entries: usize = directory.services.values().map(|service| service.addresses.len()).sum();
        prop_assert_eq!(directory.by_address.0.values().map(BTreeSet::len).sum::<usize>(), entries);
    }
}

#[tokio::test]
async fn services_of_a_folder_arrive_and_follow_it() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let web = |address: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{namespace: shop, name: web}}\n\
             spec: {{clusterIP: {address}, ports: [{{port: 80}}]}}\n"
        )
    };
    write("web.yaml", &web("10.96.0.7"));
    let (updates, mut incoming) = mpsc::channel(1);
    let watch = tokio::spawn(watch_services(ServiceSource::Manifests(folder.path().into()), updates));
    let mut directory = ServiceDirectory::default();
    for (address, problems) in [("10.96.0.7", 0), ("10.96.0.8", 0)] {
        write("web.yaml", &web(address));
        while asked(&directory, address, false, 6, 80).is_none() {
            match incoming.recv().await.expect("the watch goes on") {
                ServiceUpdate::Changes(changes) => {
                    changes.into_iter().for_each(|received| directory.apply(received.change));
                }
                ServiceUpdate::Problems(found) => assert_eq!(found.len(), problems),
            }
        }
    }
    write("broken.yaml", "kind: [");
    let problems = tokio::time::timeout(std::time::Duration::from_secs(30), async {
        loop {
            match incoming.recv().await.expect("the watch goes on") {
                ServiceUpdate::Problems(found) => break found,
                ServiceUpdate::Changes(_) => {}
            }
        }
    });
    assert!(problems.await.unwrap()[0].origin.starts_with("broken.yaml"));
    drop(incoming);
    write("web.yaml", &web("10.96.0.9"));
    watch.await.unwrap().unwrap();
}
