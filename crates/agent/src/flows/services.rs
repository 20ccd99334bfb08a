//! Directory of Services by address, and of the addresses of API servers.
//!
//! Services only name flows: enforcement neither waits for them nor depends on them. If they cannot be listed, flows
//! have no Service.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::Hash;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use cluster::{AddressSource, ApiClient, EndpointSlice, FolderError, Problem, Service, SourceEvent};
use cluster::{ServiceKind, ServiceObject, TimedChange};
use policy::{Change, ObjectName, Protocol, SourceObject};
use tokio::sync::mpsc;

/// Maximum number of Services with one address that a lookup visits. Cluster addresses are unique, and a few Services
/// share that of a load balancer; but users who may write Services may give one external address to any number of them.
const MOST_VISITED: usize = 64;

/// Services by address and node port, and the addresses of API servers. Memory is proportional to the objects: an
/// address refers to its Services, which have the ports.
#[derive(Debug, Default)]
pub(crate) struct ServiceDirectory {
    services: BTreeMap<ObjectName, Arc<Service>>,
    slices: BTreeMap<ObjectName, Arc<EndpointSlice>>,
    /// The Services with an address; the first one names the flow.
    by_address: Index<IpAddr, (AddressSource, ObjectName)>,
    by_node_port: Index<(Protocol, u16), NodePortHolder>,
    api_servers: HashSet<IpAddr>,
}

/// A Service with a node port, and the name of the port.
type NodePortHolder = (ObjectName, Option<Arc<str>>);

impl ServiceDirectory {
    pub(crate) fn apply(&mut self, change: Change<ServiceObject>) {
        match change {
            Change::Set(object) => self.set(object),
            Change::Remove(kind, name) => self.remove(kind, &name),
            Change::Replace(kind, objects) => {
                let listed: BTreeSet<&ObjectName> = objects.iter().map(ServiceObject::name).collect();
                let gone: Vec<ObjectName> = self.names(kind).filter(|name| !listed.contains(name)).cloned().collect();
                for name in gone {
                    self.remove(kind, &name);
                }
                for object in objects.into_iter().filter(|object| object.kind() == kind) {
                    self.set(object);
                }
            }
        }
    }

    /// The Service port with this address (cluster, load balancer or external address), or, for an address of a node
    /// (`is_node`), this node port. `protocol` is the number in the IP header.
    ///
    /// Precedence between Services with the same address and port: cluster address, then load balancer address, then
    /// `externalIPs`; then the first by name.
    pub(crate) fn service_port(
        &self,
        address: IpAddr,
        is_node: bool,
        protocol: u8,
        port: u16,
    ) -> Option<flow::ServicePort> {
        let protocol = Protocol::from_number(protocol)?;
        let asked = |name: &ObjectName, port_name: &Option<Arc<str>>| {
            let ObjectName { namespace, name } = name.clone();
            flow::ServicePort { namespace, name, port_name: port_name.clone(), port }
        };
        let by_address = self.by_address.get(&address).take(MOST_VISITED).find_map(|(_, name)| {
            let found = self.services.get(name)?.port(protocol, port)?;
            Some(asked(name, &found.name))
        });
        if by_address.is_some() || !is_node {
            return by_address;
        }
        self.by_node_port.get(&(protocol, port)).next().map(|(name, port_name)| asked(name, port_name))
    }

    /// Whether the address is an endpoint of the Service `default/kubernetes`.
    pub(crate) fn is_api_server(&self, address: IpAddr) -> bool {
        self.api_servers.contains(&address)
    }

    fn set(&mut self, object: ServiceObject) {
        match object {
            ServiceObject::Service(service) => {
                self.remove(ServiceKind::Service, &service.name);
                for found in &service.addresses {
                    self.by_address.insert(found.address, (found.source, service.name.clone()));
                }
                for (key, port_name) in node_ports(&service) {
                    self.by_node_port.insert(key, (service.name.clone(), port_name));
                }
                self.services.insert(service.name.clone(), service);
            }
            ServiceObject::EndpointSlice(slice) => {
                self.slices.insert(slice.name.clone(), slice);
                self.count_api_servers();
            }
        }
    }

    fn remove(&mut self, kind: ServiceKind, name: &ObjectName) {
        match kind {
            ServiceKind::Service => {
                let Some(service) = self.services.remove(name) else { return };
                for found in &service.addresses {
                    self.by_address.remove(&found.address, &(found.source, name.clone()));
                }
                for (key, port_name) in node_ports(&service) {
                    self.by_node_port.remove(&key, &(name.clone(), port_name));
                }
            }
            ServiceKind::EndpointSlice => {
                self.slices.remove(name);
                self.count_api_servers();
            }
        }
    }

    /// Only the slice of `default/kubernetes` has addresses.
    fn count_api_servers(&mut self) {
        self.api_servers = self.slices.values().flat_map(|slice| slice.addresses.iter().copied()).collect();
    }

    fn names(&self, kind: ServiceKind) -> Box<dyn Iterator<Item = &ObjectName> + '_> {
        match kind {
            ServiceKind::Service => Box::new(self.services.keys()),
            ServiceKind::EndpointSlice => Box::new(self.slices.keys()),
        }
    }
}

fn node_ports(service: &Service) -> impl Iterator<Item = ((Protocol, u16), Option<Arc<str>>)> {
    service.ports.iter().filter_map(|port| Some(((port.protocol, port.node_port?), port.name.clone())))
}

/// Sorted values of each key. Every key has a value.
#[derive(Debug)]
struct Index<K, V>(HashMap<K, BTreeSet<V>>);

impl<K, V> Default for Index<K, V> {
    fn default() -> Index<K, V> {
        Index(HashMap::new())
    }
}

impl<K: Eq + Hash, V: Ord> Index<K, V> {
    fn get(&self, key: &K) -> impl Iterator<Item = &V> {
        self.0.get(key).into_iter().flatten()
    }

    fn insert(&mut self, key: K, value: V) {
        self.0.entry(key).or_default().insert(value);
    }

    fn remove(&mut self, key: &K, value: &V) {
        if let Some(values) = self.0.get_mut(key) {
            values.remove(value);
            if values.is_empty() {
                self.0.remove(key);
            }
        }
    }
}

/// Source of Services, the same as that of the other objects.
pub(crate) enum ServiceSource {
    Cluster(ApiClient),
    Manifests(PathBuf),
}

/// A message of [`watch_services`].
#[derive(Debug, PartialEq)]
pub(crate) enum ServiceUpdate {
    Changes(Vec<TimedChange<ServiceObject>>),
    /// Current problems because of which Services may be missing.
    Problems(Vec<Problem>),
}

/// Capacity of the event queue. When it is full, the watches stop reading.
const EVENTS_QUEUED: usize = 16;

/// Lists and watches Services and the EndpointSlice of `default/kubernetes` until the receiver is closed. A problem,
/// such as missing permissions, is logged when it begins; the watch is retried.
pub(crate) async fn watch_services(
    source: ServiceSource,
    updates: mpsc::Sender<ServiceUpdate>,
) -> Result<(), FolderError> {
    let (events, mut incoming) = mpsc::channel(EVENTS_QUEUED);
    let watch = async {
        match source {
            ServiceSource::Cluster(connection) => {
                cluster::watch_cluster::<ServiceObject, _>(connection, events).await;
                Ok(())
            }
            ServiceSource::Manifests(folder) => cluster::watch_folder::<ServiceObject, _>(&folder, events).await,
        }
    };
    let forward = async {
        let mut known = Vec::new();
        while let Some(event) = incoming.recv().await {
            let update = match event {
                SourceEvent::Changes(changes) => ServiceUpdate::Changes(changes),
                SourceEvent::Problems(problems) => {
                    warn_of_new(&known, &problems);
                    known.clone_from(&problems);
                    ServiceUpdate::Problems(problems)
                }
                // Every API server has both kinds.
                SourceEvent::Unserved(_) => continue,
            };
            if updates.send(update).await.is_err() {
                break;
            }
        }
        // Closing the channel ends the watch.
        incoming.close();
    };
    tokio::join!(watch, forward).0
}

fn warn_of_new(known: &[Problem], problems: &[Problem]) {
    for problem in problems.iter().filter(|problem| !known.contains(problem)) {
        tracing::warn!("flow records may lack Services and API servers: {problem}");
    }
}

#[cfg(test)]
mod tests;
