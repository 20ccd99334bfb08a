//! Which namespaces, links, addresses and routes a lab consists of, as the commands of `ip` that make them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::LabSpec;

/// The plan of a lab. The lists run in parallel, one entry per namespace.
pub(super) struct Plan {
    /// Short names without special characters, independent of the names of nodes and pods.
    pub(super) namespaces: Vec<String>,
    /// `world`, or the name of a node or a pod.
    pub(super) titles: Vec<String>,
    /// Whether the namespace forwards.
    pub(super) forwards: Vec<bool>,
    /// The links that the namespace makes. All links must exist before interfaces are set up.
    pub(super) links: Vec<Vec<Link>>,
    /// Commands that set the interfaces up. All interfaces must be up before routes are added.
    pub(super) interfaces: Vec<Vec<String>>,
    /// Addresses, routes and neighbours.
    pub(super) routes: Vec<Vec<String>>,
    pub(super) nodes: BTreeMap<String, usize>,
    pub(super) addresses: BTreeMap<IpAddr, usize>,
}

/// A veth from the namespace that creates it to another one.
pub(super) struct Link {
    here: String,
    there: String,
    peer: usize,
    indices: [usize; 2],
}

/// The world's namespace.
const WORLD: usize = 0;

/// The next hops. Pods reach their node, and nodes and the world reach each other, through unassigned link-local
/// addresses with static neighbour entries.
const NEXT_HOPS: [&str; 2] = ["169.254.1.1", "fe80::1"];

/// Every link joins two interfaces with these hardware addresses.
const MAKER: &str = "02:00:00:00:00:01";
const PEER: &str = "02:00:00:00:00:02";

pub(super) fn plan(spec: &LabSpec) -> Plan {
    let mut plan = Plan {
        namespaces: Vec::new(),
        titles: Vec::new(),
        forwards: Vec::new(),
        links: Vec::new(),
        interfaces: Vec::new(),
        routes: Vec::new(),
        nodes: BTreeMap::new(),
        addresses: BTreeMap::new(),
    };
    let world = plan.add_namespace("world".into(), super::WORLD, true);
    assert_eq!(world, WORLD);
    plan.add_addresses(WORLD, "lo", &spec.outside);

    for (number, node) in spec.nodes.iter().enumerate() {
        let here = plan.add_namespace(format!("node-{number}"), &node.name, true);
        assert!(plan.nodes.insert(node.name.clone(), here).is_none(), "two nodes are called {}", node.name);
        plan.add_addresses(here, "lo", &node.addresses);

        let downlink = format!("node{number}");
        plan.connect(WORLD, &downlink, here, "uplink");
        plan.default_route(here, "uplink");
        plan.next_hops(WORLD, &downlink, PEER);
        plan.routes_over_next_hop(WORLD, &downlink, &node.addresses);

        for (index, pod) in node.pods.iter().enumerate() {
            let inside = plan.add_namespace(format!("node-{number}-pod-{index}"), &pod.name, false);
            let port = format!("pod{index}");
            plan.connect(here, &port, inside, "eth0");
            plan.add_addresses(inside, "eth0", &pod.addresses);
            plan.default_route(inside, "eth0");
            for address in &pod.addresses {
                plan.routes[here].push(format!("neigh add {address} lladdr {PEER} dev {port} nud permanent"));
                plan.routes[here].push(format!("route add {} dev {port}", host(*address)));
            }
            plan.routes_over_next_hop(WORLD, &downlink, &pod.addresses);
        }
    }
    plan
}

impl Plan {
    fn add_namespace(&mut self, name: String, title: &str, forwards: bool) -> usize {
        self.namespaces.push(name);
        self.titles.push(title.into());
        self.forwards.push(forwards);
        self.links.push(Vec::new());
        self.interfaces.push(vec!["link set lo up".into()]);
        self.routes.push(Vec::new());
        self.namespaces.len() - 1
    }

    fn add_addresses(&mut self, place: usize, device: &str, addresses: &[IpAddr]) {
        for address in addresses {
            assert!(self.addresses.insert(*address, place).is_none(), "{address} is in two places of the lab");
            let without_detection = if address.is_ipv6() { " nodad" } else { "" };
            self.routes[place].push(format!("addr add {} dev {device}{without_detection}", host(*address)));
        }
    }

    fn connect(&mut self, here: usize, port: &str, there: usize, port_there: &str) {
        // The two ends of a link need different interface indices: with equal ones the kernel treats the veth as a
        // device without a lower one, and reports its carrier up to a second late (net/core/link_watch.c, urgent
        // events).
        let links: usize = self.links.iter().map(Vec::len).sum();
        let indices = [10 + 2 * links, 11 + 2 * links];
        self.links[here].push(Link { here: port.into(), there: port_there.into(), peer: there, indices });
        for (place, device) in [(here, port), (there, port_there)] {
            self.interfaces[place].push(format!("link set {device} addrgenmode none"));
            self.interfaces[place].push(format!("link set {device} up"));
        }
    }

    /// The next hop is the creator of the link.
    fn default_route(&mut self, place: usize, device: &str) {
        self.next_hops(place, device, MAKER);
        for (every, hop) in ["0.0.0.0/0", "::/0"].iter().zip(NEXT_HOPS) {
            self.routes[place].push(format!("route add {every} via {hop} dev {device} onlink"));
        }
    }

    fn next_hops(&mut self, place: usize, device: &str, hardware: &str) {
        for hop in NEXT_HOPS {
            self.routes[place].push(format!("neigh add {hop} lladdr {hardware} dev {device} nud permanent"));
        }
    }

    fn routes_over_next_hop(&mut self, place: usize, device: &str, addresses: &[IpAddr]) {
        for address in addresses {
            let hop = NEXT_HOPS[usize::from(address.is_ipv6())];
            self.routes[place].push(format!("route add {} via {hop} dev {device} onlink", host(*address)));
        }
    }
}

/// The commands that create the links, given the full names of the namespaces.
pub(super) fn with_names(links: &[Link], names: &[String]) -> Vec<String> {
    let command = |Link { here, there, peer, indices: [index, peer_index] }: &Link| {
        let peer = &names[*peer];
        format!(
            "link add {here} index {index} address {MAKER} type veth \
             peer name {there} index {peer_index} address {PEER} netns {peer}"
        )
    };
    links.iter().map(command).collect()
}

fn host(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}
