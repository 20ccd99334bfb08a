//! Which flows are asked for, and under which names.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{Container, Pod};
use tests::lab::LabSpec;
use tests::oracle::{Probe, World, node_of, owned_addresses, owner};

/// The addresses of nodes: those of pods on the host network, as far as no pod has them for itself.
pub(super) struct NodeAddresses {
    /// The nodes that are said to have the address. More than one: nobody can tell.
    nodes: BTreeMap<IpAddr, BTreeSet<String>>,
}

impl NodeAddresses {
    pub(super) fn of(world: &World) -> NodeAddresses {
        let mut nodes: BTreeMap<IpAddr, BTreeSet<String>> = BTreeMap::new();
        for pod in world.pods.iter().filter(|pod| is_on_host_network(pod) && !is_finished(pod)) {
            let Some(node) = node_of(pod) else { continue };
            for address in addresses(pod).filter(|address| owner(world, *address).is_none()) {
                nodes.entry(address).or_default().insert(node.into());
            }
        }
        NodeAddresses { nodes }
    }

    /// The lab for the probes, in which nodes have their addresses.
    pub(super) fn lab_spec(&self, world: &World, nodes: &[&str], probes: &[Probe]) -> LabSpec {
        let addresses = probes.iter().flat_map(|probe| [probe.source, probe.destination]);
        let mut spec = LabSpec::of_world(world, nodes, addresses);
        spec.outside.retain(|address| self.node_of(*address).is_none());
        for node in &mut spec.nodes {
            let own = self.nodes.keys().copied().filter(|address| self.node_of(*address) == Some(&node.name));
            node.addresses = own.collect();
        }
        spec
    }

    fn node_of(&self, address: IpAddr) -> Option<&str> {
        self.nodes.get(&address)?.iter().next().map(String::as_str)
    }

    pub(super) fn is_disputed(&self, probe: &Probe) -> bool {
        let disputed = |address| self.nodes.get(&address).is_some_and(|nodes| nodes.len() > 1);
        disputed(probe.source) || disputed(probe.destination)
    }

    /// Between a node and a pod of its own, in either direction: no packet of it is forwarded.
    pub(super) fn is_within_node(&self, world: &World, probe: &Probe) -> bool {
        let pod_node = |address| owner(world, address).and_then(node_of);
        let between = |host, pod| self.node_of(host).is_some_and(|node| pod_node(pod) == Some(node));
        between(probe.source, probe.destination) || between(probe.destination, probe.source)
    }

    /// Between every node and every pod, both ways.
    pub(super) fn probes(&self, world: &World) -> Vec<Probe> {
        let pods = owned_addresses(world).into_keys().collect::<Vec<IpAddr>>();
        let pairs = self.nodes.keys().flat_map(|host| pods.iter().map(move |pod| (*host, *pod)));
        let pairs = pairs.filter(|(host, pod)| host.is_ipv4() == pod.is_ipv4());
        let both = pairs.flat_map(|(host, pod)| [(host, pod), (pod, host)]);
        both.map(|(source, destination)| Probe { source, destination, protocol: Probe::TCP, port: Some(80) }).collect()
    }
}

fn is_on_host_network(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true)
}

fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn addresses(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let status = pod.status.iter();
    let texts = status.flat_map(|s| s.pod_ips.iter().flatten().map(|entry| &entry.ip).chain(&s.pod_ip));
    texts.map(|text| text.parse().expect("generated pods have addresses"))
}

/// A pod that no node runs has nobody to judge its packets, and no place in a lab.
pub(super) fn bound_to_a_node(world: &World, probe: &Probe) -> bool {
    [probe.source, probe.destination].into_iter().all(|a| owner(world, a).is_none_or(|pod| node_of(pod).is_some()))
}

/// What an agent is asked: source, destination and traffic in a person's words.
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

/// Every way to ask for the probe: by addresses, by the names of its pods, by the name of its port.
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

/// The probe's port by the name that its destination has for it. The first container's word counts, and what is all
/// digits is asked for as a number.
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
