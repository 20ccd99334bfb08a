//! The parties: the pods of the example and the three outside addresses, each with its place in the matrix.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use policy::{ClusterState, Object};

use super::expected::PairTable;
use super::screen::{FAINT, Screen, seconds};
use kit::lab::{LabSpec, NodeSpec, PodSpec};

/// The heading over parties that are not pods.
pub const OUTSIDE: &str = "outside";

/// Parties outside: a name, addresses, and the port if it is a destination.
const OUTSIDERS: [(&str, [&str; 2], Option<u16>); 3] = [
    ("internet", ["203.0.113.5", "2001:db8:cafe::5"], None),
    ("pay", ["198.51.100.10", "2001:db8:51::10"], Some(443)),
    ("test", ["198.51.100.200", "2001:db8:51:ff::10"], Some(443)),
];

/// A party that opens connections, accepts them, or both.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Party {
    /// The pod's name, unique in the example.
    pub name: String,
    /// The pod's namespace, or [`OUTSIDE`].
    pub group: String,
    /// `None` outside.
    pub node: Option<String>,
    /// IPv4, then IPv6.
    pub addresses: [IpAddr; 2],
    /// The port on which it accepts connections.
    pub port: Option<u16>,
}

impl Party {
    pub fn is_pod(&self) -> bool {
        self.node.is_some()
    }

    /// `namespace/name` of a pod.
    pub fn full_name(&self) -> String {
        if self.is_pod() { format!("{}/{}", self.group, self.name) } else { self.name.clone() }
    }
}

/// The example: its policies and its parties.
#[derive(Debug)]
pub struct Shop {
    pub state: ClusterState,
    /// Pods in the order of the manifests, then `internet`.
    pub sources: Vec<Party>,
    /// Pods in the order of the manifests, then the destinations outside.
    pub destinations: Vec<Party>,
}

impl Shop {
    pub fn read(folder: &Path) -> anyhow::Result<Shop> {
        let found = cluster::read_folder(folder)?;
        if let Some(problem) = found.problems.first() {
            bail!("the example cannot be read: {problem}");
        }
        let mut state = ClusterState::new();
        for change in found.changes() {
            state.apply(change);
        }
        let mut pods: Vec<_> = found
            .objects
            .iter()
            .filter_map(|found| match &found.object {
                Object::Pod(pod) => Some((&found.origin, pod)),
                Object::Namespace(_) | Object::Policy(_) | Object::Node(_) | Object::ClusterPolicy(_) => None,
            })
            .collect();
        pods.sort_by_key(|(origin, _)| *origin);
        let pods: Vec<Party> = pods.into_iter().map(|(_, pod)| party(pod)).collect::<anyhow::Result<_>>()?;
        ensure!(!pods.is_empty(), "no pods in {}", folder.display());
        let outsiders: Vec<Party> = OUTSIDERS.iter().map(outsider).collect();
        let mut names: Vec<&str> = pods.iter().chain(&outsiders).map(|party| party.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!("two in {} are called {}", folder.display(), twice[0]);
        }
        let (destinations, sources): (Vec<Party>, Vec<Party>) =
            outsiders.into_iter().partition(|outsider| outsider.port.is_some());
        Ok(Shop {
            state,
            sources: pods.iter().cloned().chain(sources).collect(),
            destinations: pods.into_iter().chain(destinations).collect(),
        })
    }

    /// A value for each cell of the matrix, in rows. Cells of a party with itself and of two outside parties are
    /// `None`.
    pub fn table<T>(&self, mut value: impl FnMut(&Party, &Party) -> T) -> PairTable<T> {
        let mut cell = |source: &Party, destination: &Party| {
            let tried = source.name != destination.name && (source.is_pod() || destination.is_pod());
            tried.then(|| value(source, destination))
        };
        let mut row = |source| self.destinations.iter().map(|destination| cell(source, destination)).collect();
        self.sources.iter().map(&mut row).collect()
    }

    /// Pods, then outside parties.
    pub fn everyone(&self) -> impl Iterator<Item = &Party> {
        self.sources.iter().chain(self.destinations.iter().filter(|party| !party.is_pod()))
    }

    /// A pod or an outside party, by name.
    pub fn party(&self, name: &str) -> anyhow::Result<&Party> {
        self.everyone().find(|party| party.name == name).with_context(|| format!("the example has no {name}"))
    }

    /// The nodes that have pods.
    pub fn nodes(&self) -> Vec<&str> {
        let mut nodes: Vec<&str> = self.everyone().filter_map(|party| party.node.as_deref()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes
    }

    pub fn lab_spec(&self) -> LabSpec {
        let mut nodes: BTreeMap<&str, Vec<PodSpec>> = self.nodes().into_iter().map(|node| (node, Vec::new())).collect();
        let mut outside = Vec::new();
        for party in self.everyone() {
            match party.node.as_deref().and_then(|node| nodes.get_mut(node)) {
                Some(pods) => pods.push(PodSpec { name: party.full_name(), addresses: party.addresses.to_vec() }),
                None => outside.extend(party.addresses),
            }
        }
        let node = |(name, pods): (&str, Vec<PodSpec>)| NodeSpec { name: name.into(), addresses: Vec::new(), pods };
        LabSpec { nodes: nodes.into_iter().map(node).collect(), outside }
    }

    pub(super) fn introduce(&self, screen: &Screen, built_in: Duration) {
        for node in self.nodes() {
            let pods: Vec<String> =
                self.everyone().filter(|party| party.node.as_deref() == Some(node)).map(Party::full_name).collect();
            screen.line(format_args!("   {node:8} {}", pods.join(" ")));
        }
        let outside: Vec<String> = self
            .everyone()
            .filter(|party| !party.is_pod())
            .map(|party| format!("{} ({})", party.name, party.addresses[0]))
            .collect();
        screen.line(format_args!("   {OUTSIDE:8} {}", outside.join(" ")));
        screen.line(format_args!(
            "   Everyone has an IPv4 and an IPv6 address; every pod is a network namespace. {FAINT}{}{FAINT:#}",
            seconds(built_in)
        ));
    }
}

fn party(pod: &policy::Pod) -> anyhow::Result<Party> {
    let name = &pod.name;
    let family = |v4: bool| pod.addresses.iter().find(|address| address.is_ipv4() == v4);
    let (Some(v4), Some(v6)) = (family(true), family(false)) else {
        bail!("pod {name} needs an address of each family to be shown here");
    };
    let node = pod.node.as_ref().with_context(|| format!("pod {name} is on no node"))?;
    let port = pod.ports.first().with_context(|| format!("pod {name} has no named port to connect to"))?;
    Ok(Party {
        name: name.name.to_string(),
        group: name.namespace.to_string(),
        node: Some(node.to_string()),
        addresses: [v4, v6],
        port: Some(port.number),
    })
}

fn outsider((name, addresses, port): &(&str, [&str; 2], Option<u16>)) -> Party {
    Party {
        name: (*name).into(),
        group: OUTSIDE.into(),
        node: None,
        addresses: addresses.map(|address| address.parse().expect("an address")),
        port: *port,
    }
}
