//! Nodes, from their objects and their pods: addresses, pods on the host network, and whether an agent enforces
//! policies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use policy::Labels;

use super::Stale;
use crate::exposure::selects;
use crate::object::{self, IdentityPod};
use crate::record::Record;

/// Selects the agents' pods: those of a namespace that have all of these labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSelector {
    pub namespace: Arc<str>,
    /// Not empty: an empty selector selects nothing.
    pub labels: Labels,
}

#[derive(Debug)]
pub(super) struct Nodes {
    agent: Option<AgentSelector>,
    nodes: HashMap<Arc<str>, Node>,
    /// The nodes whose objects have the address. No set is empty.
    by_address: BTreeMap<IpAddr, BTreeSet<Arc<str>>>,
}

#[derive(Debug, Default)]
struct Node {
    object: Option<Arc<object::IdentityNode>>,
    /// Unfinished pods, sorted by pointer, so that a lookup dereferences no other pod.
    pods: Vec<Arc<IdentityPod>>,
    agents: usize,
    /// The node's own record, cached until something changes.
    record: Option<Arc<Record>>,
}

impl Nodes {
    pub(super) fn new(agent: Option<AgentSelector>) -> Nodes {
        Nodes { agent, nodes: HashMap::new(), by_address: BTreeMap::new() }
    }

    /// Whether policies are enforced on the node. False for a pod without a node.
    pub(super) fn is_managed(&self, node: Option<&str>) -> bool {
        self.agent.is_none() || node.and_then(|node| self.nodes.get(node)).is_some_and(|node| node.agents > 0)
    }

    /// The pods on the host network of the node.
    pub(super) fn on_host(&self, node: &str) -> impl Iterator<Item = &Arc<IdentityPod>> {
        self.nodes.get(node).into_iter().flat_map(|node| &node.pods).filter(|pod| pod.base.host_network)
    }

    /// The addresses in the node's object.
    pub(super) fn addresses(&self, node: &str) -> impl Iterator<Item = IpAddr> {
        let object = self.nodes.get(node).and_then(|node| node.object.as_ref());
        object.into_iter().flat_map(|object| object.base.addresses.iter())
    }

    /// Whether the node's object has a control-plane label.
    pub(super) fn is_of_control_plane(&self, node: &str) -> bool {
        self.nodes.get(node).and_then(|node| node.object.as_ref()).is_some_and(|object| object.control_plane)
    }

    /// The node whose object has the address; if several have it, the one of the pods on its host network (`of_pods`),
    /// else the first by name. If no object has the address, `of_pods`.
    pub(super) fn with_address<'a>(&'a self, address: IpAddr, of_pods: Option<&'a Arc<str>>) -> Option<&'a Arc<str>> {
        match self.by_address.get(&address) {
            Some(nodes) => of_pods.and_then(|node| nodes.get(node)).or_else(|| nodes.first()),
            None => of_pods,
        }
    }

    /// Upserts or removes the node's object.
    pub(super) fn set_object(&mut self, name: &Arc<str>, new: Option<Arc<object::IdentityNode>>, stale: &mut Stale) {
        let entry = self.nodes.entry(name.clone()).or_default();
        if entry.object == new {
            self.remove_if_empty(name);
            return;
        }
        let old = std::mem::replace(&mut entry.object, new.clone());
        for address in old.iter().flat_map(|object| object.base.addresses.iter()) {
            if let Some(nodes) = self.by_address.get_mut(&address) {
                nodes.remove(name);
                if nodes.is_empty() {
                    self.by_address.remove(&address);
                }
            }
        }
        for address in new.iter().flat_map(|object| object.base.addresses.iter()) {
            self.by_address.entry(address).or_default().insert(name.clone());
        }
        stale.addresses.extend(old.iter().chain(&new).flat_map(|object| object.base.addresses.iter()));
        stale.nodes.mark(name.clone());
        self.remove_if_empty(name);
    }

    fn remove_if_empty(&mut self, name: &str) {
        if self.nodes.get(name).is_some_and(|node| node.pods.is_empty() && node.object.is_none()) {
            self.nodes.remove(name);
        }
    }

    pub(super) fn record(&self, node: &str) -> Option<&Arc<Record>> {
        self.nodes.get(node)?.record.as_ref()
    }

    pub(super) fn set_record(&mut self, node: &str, record: Option<Arc<Record>>) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.record = record;
        }
    }

    /// Inserts, replaces or removes a pod.
    pub(super) fn update_pod(
        &mut self,
        old: Option<&Arc<IdentityPod>>,
        new: Option<&Arc<IdentityPod>>,
        stale: &mut Stale,
    ) {
        let before: Vec<(Arc<str>, bool)> = self.managed(old).into_iter().chain(self.managed(new)).collect();
        for pod in old.into_iter().chain(new).filter(|pod| pod.base.host_network) {
            stale.nodes.extend(pod.base.node.clone());
        }
        if let Some((node, pod)) = old.and_then(|pod| Some((on_node(pod)?, pod))) {
            self.remove(node, pod);
        }
        if let Some((node, pod)) = new.and_then(|pod| Some((on_node(pod)?, pod))) {
            self.upsert(node, pod);
        }
        for (node, was) in before {
            if self.is_managed(Some(&node)) != was {
                let pods = self.nodes.get(&node).into_iter().flat_map(|node| &node.pods);
                stale.addresses.extend(pods.flat_map(|pod| pod.base.addresses.iter()));
            }
        }
    }

    fn managed(&self, pod: Option<&Arc<IdentityPod>>) -> Option<(Arc<str>, bool)> {
        let node = on_node(pod?)?;
        Some((node.clone(), self.is_managed(Some(node))))
    }

    fn upsert(&mut self, name: &Arc<str>, pod: &Arc<IdentityPod>) {
        let is_agent = self.is_agent(pod);
        let node = self.nodes.entry(name.clone()).or_default();
        if let Err(place) = node.place(pod) {
            node.pods.insert(place, pod.clone());
            node.agents += usize::from(is_agent);
        }
    }

    fn remove(&mut self, name: &Arc<str>, pod: &Arc<IdentityPod>) {
        let is_agent = self.is_agent(pod);
        let Some(node) = self.nodes.get_mut(name) else { return };
        if let Ok(place) = node.place(pod) {
            node.pods.remove(place);
            node.agents -= usize::from(is_agent);
        }
        self.remove_if_empty(name);
    }

    /// A failing agent does not count: it may never have committed a rule, or none since the node booted.
    fn is_agent(&self, pod: &IdentityPod) -> bool {
        let matches = |agent: &AgentSelector| {
            agent.namespace == pod.base.name.namespace && selects(&agent.labels, &pod.base.labels) && !pod.failing
        };
        self.agent.as_ref().is_some_and(matches)
    }
}

impl Node {
    fn place(&self, pod: &Arc<IdentityPod>) -> Result<usize, usize> {
        self.pods.binary_search_by_key(&Arc::as_ptr(pod), Arc::as_ptr)
    }
}

/// The node of an unfinished pod.
fn on_node(pod: &IdentityPod) -> Option<&Arc<str>> {
    pod.base.node.as_ref().filter(|_| !pod.base.finished)
}
