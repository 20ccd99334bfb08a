//! Requests to explain flows, by address and by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod};
use kit::lab::LabSpec;
use kit::oracle::{Probe, World, node_of, nodes_with, owned_addresses, owner};

/// The addresses of nodes.
pub(super) struct NodeAddresses {
    /// The nodes that claim the address. With more than one, its node is ambiguous.
    nodes: BTreeMap<IpAddr, BTreeSet<String>>,
}

impl NodeAddresses {
    pub(super) fn of(world: &World) -> NodeAddresses {
        let known = world.pods.iter().flat_map(addresses).collect::<BTreeSet<IpAddr>>();
        let nodes = known.into_iter().map(|address| (address, nodes_with(world, address)));
        let nodes = nodes.filter(|(_, nodes)| !nodes.is_empty());
        NodeAddresses { nodes: nodes.map(|(a, nodes)| (a, nodes.into_iter().map(String::from).collect())).collect() }
    }

    /// The lab for the probes, with the nodes' addresses.
    pub(super) fn lab_spec(&self, world: &World, nodes: &[&str], probes: &[Probe]) -> LabSpec {
        let addresses = probes.iter().flat_map(|probe| [probe.source, probe.destination]);
        let mut spec = LabSpec::of_world(world, nodes, addresses);
        spec.outside.retain(|address| !self.nodes.contains_key(address));
        for node in &mut spec.nodes {
            let is_its = |nodes: &BTreeSet<String>| nodes.first() == Some(&node.name);
            node.addresses =
                self.nodes.iter().filter(|(_, nodes)| is_its(nodes)).map(|(address, _)| *address).collect();
        }
        spec
    }

    pub(super) fn is_disputed(&self, probe: &Probe) -> bool {
        let disputed = |address| self.nodes.get(&address).is_some_and(|nodes| nodes.len() > 1);
        disputed(probe.source) || disputed(probe.destination)
    }

    /// Probes between every node and every pod, in both directions.
    pub(super) fn probes(&self, world: &World) -> Vec<Probe> {
        let pods = owned_addresses(world).into_keys().collect::<Vec<IpAddr>>();
        let pairs = self.nodes.keys().flat_map(|host| pods.iter().map(move |pod| (*host, *pod)));
        let pairs = pairs.filter(|(host, pod)| host.is_ipv4() == pod.is_ipv4());
        let both = pairs.flat_map(|(host, pod)| [(host, pod), (pod, host)]);
        both.map(|(source, destination)| Probe { source, destination, protocol: Probe::TCP, port: Some(80) }).collect()
    }
}

fn addresses(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let status = pod.status.iter();
    let texts = status.flat_map(|s| s.pod_ips.iter().flatten().map(|entry| &entry.ip).chain(&s.pod_ip));
    texts.map(|text| text.parse().expect("generated pods have addresses"))
}

/// A pod without a node has no ruleset for its packets, and no place in a lab.
pub(super) fn bound_to_a_node(world: &World, probe: &Probe) -> bool {
    [probe.source, probe.destination].into_iter().all(|a| owner(world, a).is_none_or(|pod| node_of(pod).is_some()))
}

/// A request to the agent: source, destination and traffic as a user would type them.
pub(super) struct Question {
    words: [String; 3],
    by_pod_name: bool,
    by_port_name: bool,
}

impl Question {
    pub(super) fn words(&self) -> [&str; 3] {
        [&self.words[0], &self.words[1], &self.words[2]]
    }

    pub(super) fn names_pods(&self) -> bool {
        self.by_pod_name
    }

    pub(super) fn names_port(&self) -> bool {
        self.by_port_name
    }

    pub(super) fn target(&self) -> String {
        let [source, destination, traffic] = &self.words;
        format!("/v1/explain?source={source}&destination={destination}&traffic={traffic}")
    }
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words.join(" "))
    }
}

/// Every way to request the probe: by addresses, by the names of its pods, by the name of its port.
pub(super) fn questions(world: &World, probe: &Probe) -> Vec<Question> {
    let addresses = [probe.source, probe.destination].map(|address| address.to_string());
    let names = [probe.source, probe.destination].map(|address| match owner(world, address) {
        Some(pod) => name(pod),
        None => address.to_string(),
    });
    let number = match (probe.port, protocol_word(probe)) {
        (Some(port), Some(protocol)) => format!("{port}/{protocol}"),
        (_, _) => "icmp".into(),
    };
    let ask = |ends: &[String; 2], traffic: &str, by_port_name| {
        let words = [ends[0].clone(), ends[1].clone(), traffic.into()];
        Question { words, by_pod_name: *ends != addresses, by_port_name }
    };
    let mut asked = vec![ask(&addresses, &number, false)];
    if names != addresses {
        asked.push(ask(&names, &number, false));
    }
    asked.extend(port_name(world, probe).map(|traffic| ask(&addresses, &traffic, true)));
    asked
}

fn name(pod: &Pod) -> String {
    let part = |part: &Option<String>| part.clone().expect("generated pods have names");
    format!("{}/{}", part(&pod.metadata.namespace), part(&pod.metadata.name))
}

fn protocol_word(probe: &Probe) -> Option<&'static str> {
    match probe.protocol {
        Probe::TCP => Some("tcp"),
        Probe::UDP => Some("udp"),
        Probe::SCTP => Some("sctp"),
        _ => None,
    }
}

/// The name of the probe's port at its destination. The first container's name wins, and a name of digits only would be
/// parsed as a number.
fn port_name(world: &World, probe: &Probe) -> Option<String> {
    let word = protocol_word(probe)?;
    let spec = owner(world, probe.destination)?.spec.as_ref()?;
    let goes_on = |container: &&Container| container.restart_policy.as_deref() == Some("Always");
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(goes_on));
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    let mut numbers: BTreeMap<&str, i32> = BTreeMap::new();
    for port in ports.filter(|port| port.protocol.as_deref().unwrap_or("TCP").eq_ignore_ascii_case(word)) {
        if let Some(name) = port.name.as_deref().filter(|name| name.contains(|c: char| c.is_ascii_alphabetic())) {
            numbers.entry(name).or_insert(port.container_port);
        }
    }
    let found = numbers.into_iter().find(|(_, number)| Some(*number) == probe.port.map(i32::from));
    found.map(|(name, _)| format!("{name}/{word}"))
}
