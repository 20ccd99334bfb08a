//! A network-namespace lab: nodes, their pods and the rest of the world, with real packets between them.
//!
//! Every node is a namespace that forwards. Each of its pods is a namespace behind a routed veth, as with the usual
//! CNI plugins: a host route on the node, a default route over a link-local next hop in the pod. All nodes are
//! connected to one more namespace, the world, which routes between them and holds every address from outside.
//! Neighbours are static and nothing is discovered, so a lab is ready as soon as it is built. It knows nothing of
//! policies: whoever runs in a node's namespace adds the rules.

mod addressing;
mod namespace;
mod packet;
mod probe;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use namespace::Namespace;
pub use probe::{probe_all, probe_all_within};

use crate::oracle::{World, node_of, owned_addresses};

/// The name of the namespace between the nodes in a [`Lab::named`].
pub const WORLD: &str = "world";

/// The full name of the namespace of a node, a pod or the world in a [`Lab::named`].
pub fn named(prefix: &str, title: &str) -> String {
    format!("{prefix}{}", title.replace('/', "."))
}

/// Removes the remaining namespaces of a [`Lab::named`]. Processes in them keep running.
pub fn remove_named(prefix: &str) {
    namespace::remove_with(prefix);
}

/// Nodes, pods and outside addresses of a lab.
#[derive(Debug, Clone, Default)]
pub struct LabSpec {
    pub nodes: Vec<NodeSpec>,
    /// The addresses of the world.
    pub outside: Vec<IpAddr>,
}

#[derive(Debug, Clone, Default)]
pub struct NodeSpec {
    pub name: String,
    /// The node's own addresses.
    pub addresses: Vec<IpAddr>,
    pub pods: Vec<PodSpec>,
}

#[derive(Debug, Clone, Default)]
pub struct PodSpec {
    /// Unique on its node.
    pub name: String,
    pub addresses: Vec<IpAddr>,
}

impl LabSpec {
    /// The lab in which `nodes` of the world are real, with the pods that have an address there; every other address of
    /// `addresses` is outside. A pod is named `namespace/name`.
    pub fn of_world(world: &World, nodes: &[&str], addresses: impl IntoIterator<Item = IpAddr>) -> LabSpec {
        let mut local = BTreeSet::new();
        let mut node = |node: &&str| {
            let mut pods: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
            for (address, pod) in owned_addresses(world).into_iter().filter(|(_, pod)| node_of(pod) == Some(*node)) {
                let part = |part: &Option<String>| part.clone().unwrap_or_default();
                let name = format!("{}/{}", part(&pod.metadata.namespace), part(&pod.metadata.name));
                pods.entry(name).or_default().push(address);
                local.insert(address);
            }
            let pods = pods.into_iter().map(|(name, addresses)| PodSpec { name, addresses }).collect();
            NodeSpec { name: node.to_string(), addresses: Vec::new(), pods }
        };
        let nodes = nodes.iter().map(&mut node).collect();
        let outside: BTreeSet<IpAddr> = addresses.into_iter().filter(|address| !local.contains(address)).collect();
        LabSpec { nodes, outside: outside.into_iter().collect() }
    }
}

/// A built lab. Its namespaces are removed on drop, after a panic too. The next lab of any process removes the
/// leftovers of a killed process, except those of a [`Lab::named`].
#[derive(Debug)]
pub struct Lab {
    namespaces: Vec<Namespace>,
    nodes: BTreeMap<String, usize>,
    addresses: BTreeMap<IpAddr, usize>,
    ports: probe::SourcePorts,
}

impl Lab {
    /// Builds the lab. Needs root and iproute2.
    ///
    /// # Panics
    /// If a command fails, or an address occurs twice.
    pub fn new(spec: &LabSpec) -> Lab {
        static LEFTOVERS: Once = Once::new();
        static LABS: AtomicU32 = AtomicU32::new(0);
        LEFTOVERS.call_once(namespace::remove_leftovers);

        let plan = addressing::plan(spec);
        let prefix = namespace::prefix(LABS.fetch_add(1, Ordering::Relaxed));
        let names = plan.namespaces.iter().map(|name| format!("{prefix}{name}")).collect();
        Lab::build(plan, names)
    }

    /// As [`Lab::new`], but the namespaces have names that a person can type: the prefix and then `world`, the node's
    /// name, or the pod's with dots for slashes. Only one such lab can exist; if its process is killed, it stays until
    /// [`remove_named`].
    ///
    /// # Panics
    /// As [`Lab::new`], or if a name is in use.
    pub fn named(spec: &LabSpec, prefix: &str) -> Lab {
        let plan = addressing::plan(spec);
        let names = plan.titles.iter().map(|title| named(prefix, title)).collect();
        Lab::build(plan, names)
    }

    /// Lets the namespaces outlive this process.
    pub fn keep(self) {
        std::mem::forget(self.namespaces);
    }

    fn build(plan: addressing::Plan, names: Vec<String>) -> Lab {
        let namespaces = Namespace::create_all(&names);
        for (namespace, links) in namespaces.iter().zip(&plan.links).filter(|(_, links)| !links.is_empty()) {
            namespace.run(|| namespace::ip(&addressing::with_names(links, &names)));
        }
        for ((namespace, commands), forwards) in namespaces.iter().zip(&plan.interfaces).zip(&plan.forwards) {
            namespace.run(|| {
                if *forwards {
                    namespace::forward();
                    namespace::keep_idle_flows();
                }
                namespace::ip(commands);
            });
        }
        for (namespace, commands) in namespaces.iter().zip(&plan.routes) {
            namespace.run(|| {
                namespace::await_carriers();
                namespace::ip(commands);
            });
        }
        for (place, namespace) in namespaces.iter().enumerate() {
            let own: Vec<IpAddr> =
                plan.addresses.iter().filter(|(_, at)| **at == place).map(|(address, _)| *address).collect();
            namespace.run(|| namespace::await_local_routes(&own));
        }
        Lab { namespaces, nodes: plan.nodes, addresses: plan.addresses, ports: probe::SourcePorts::default() }
    }

    /// Runs `work` on a thread in the node's namespace. Programs that it starts run there too.
    ///
    /// # Panics
    /// If the node does not exist, or `work` panics.
    pub fn node_exec<T: Send>(&self, node: &str, work: impl FnOnce() -> T + Send) -> T {
        let index = self.nodes.get(node).unwrap_or_else(|| panic!("no node {node} in the lab"));
        self.namespaces[*index].run(work)
    }

    /// Runs `work` on a thread in the namespace that has the address.
    ///
    /// # Panics
    /// If no namespace has it, or `work` panics.
    pub fn in_namespace_of<T: Send>(&self, address: IpAddr, work: impl FnOnce() -> T + Send) -> T {
        self.namespaces[self.place_of(address)].run(work)
    }

    /// The addresses, grouped by the namespaces that have them.
    ///
    /// # Panics
    /// If no namespace has one of them.
    pub fn by_namespace(&self, addresses: &[IpAddr]) -> Vec<Vec<IpAddr>> {
        let mut places: BTreeMap<usize, Vec<IpAddr>> = BTreeMap::new();
        for address in addresses {
            places.entry(self.place_of(*address)).or_default().push(*address);
        }
        places.into_values().collect()
    }

    /// The path of the node's namespace, for `ip netns`, `nsenter --net=` and the like.
    pub fn node_namespace_path(&self, node: &str) -> String {
        let index = self.nodes.get(node).unwrap_or_else(|| panic!("no node {node} in the lab"));
        self.namespaces[*index].path()
    }

    fn place_of(&self, address: IpAddr) -> usize {
        *self.addresses.get(&address).unwrap_or_else(|| panic!("no host of the lab has the address {address}"))
    }
}
