//! A generated cluster of any size, modelled on large ones: the same at every run, in the JSON of an API server.
//!
//! - A namespace for every 100 pods, with the labels `team` (one of 50) and `env` (one of 4); among them `kube-system`
//!   with the DNS pods, `monitoring`, `ingress-nginx` and `databases`, to which policies of all others refer.
//! - Workloads of 2 to 20 replicas with the labels that Deployments and charts give their pods. Every tenth is a
//!   StatefulSet, whose pods each have a unique label: shared label sets meet unshared ones.
//! - 110 pods on a node, the usual limit, placed at random: the node of the agent has pods of as many namespaces as
//!   with a scheduler. Every tenth pod has an IPv6 address too.
//! - Ten policies in a namespace, of the kinds that people write (`policies.rs`): every pod is isolated both ways, most
//!   peers are selected by labels of namespaces, so that a pod anywhere is the peer of some pod here.
//!
//! The objects are stored in compact form; JSON is written on request. [`events`] has the events of the cluster.

pub mod events;
mod generation;
mod json;
mod policies;
mod random;
mod template;

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use cluster::{MissingName, Watchable};
use policy::{Change, ClusterState, Interner, Kind};

use policies::Sort;
use random::Random;

/// The node of the agent.
pub const NODE: &str = "node-0000";

/// Pods of a node: the kubelet's usual limit.
pub const PODS_OF_NODE: usize = 110;

const PODS_OF_NAMESPACE: usize = 100;
const POLICIES_OF_NAMESPACE: usize = 10;

/// Fewer namespaces would only be the special ones, and none with the pods of a team.
const FEWEST_NAMESPACES: usize = 8;

const SEED: u64 = 20_261_121;

/// How large the cluster is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub namespaces: usize,
    pub pods: usize,
    pub policies: usize,
    pub local_pods: usize,
}

impl Size {
    /// Derives the size of everything else from the number of pods.
    pub fn of_pods(pods: usize) -> Size {
        let namespaces = (pods / PODS_OF_NAMESPACE).max(FEWEST_NAMESPACES);
        let policies = namespaces * POLICIES_OF_NAMESPACE;
        Size { namespaces, pods, policies, local_pods: PODS_OF_NODE.min(pods) }
    }
}

#[derive(Debug, Clone)]
struct Namespace {
    name: String,
    team: usize,
    env: &'static str,
    version: u64,
    /// Indices into the workloads.
    workloads: std::ops::Range<usize>,
}

#[derive(Debug, Clone)]
struct Workload {
    namespace: usize,
    app: String,
    component: &'static str,
    ports: Ports,
    /// A StatefulSet: its pods have ordinals and a unique label.
    stateful: bool,
    is_dns: bool,
    /// The next ordinal of a pod.
    next: u32,
}

/// How a workload's containers name their ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ports {
    Web,
    Dns,
    Database,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Succeeded,
}

#[derive(Debug, Clone)]
struct Pod {
    /// Unique among all pods, including removed ones.
    id: u32,
    workload: usize,
    /// Ordinal within its workload.
    number: u32,
    node: u32,
    /// Its address within its node's range.
    host: u8,
    phase: Phase,
    component: &'static str,
    /// The template that it was created from, and the value of its release label.
    template: u8,
    release: u8,
    version: u64,
}

impl Pod {
    fn is_local(&self) -> bool {
        self.node == 0
    }

    fn is_dual_stack(&self) -> bool {
        self.id.is_multiple_of(10)
    }

    fn v4(&self) -> Ipv4Addr {
        Ipv4Addr::new(10, 64 + (self.node / 256) as u8, (self.node % 256) as u8, self.host)
    }

    fn v6(&self) -> Ipv6Addr {
        Ipv6Addr::new(0xfd00, 0x64, 0, self.node as u16, 0, 0, 0, self.host.into())
    }
}

#[derive(Debug, Clone)]
struct Policy {
    id: u32,
    namespace: usize,
    sort: Sort,
    /// The seed of all other choices.
    seed: u64,
    version: u64,
}

/// The current objects, and the state of the random events.
#[derive(Debug, Clone)]
pub struct Cluster {
    size: Size,
    namespaces: Vec<Namespace>,
    workloads: Vec<Workload>,
    pods: Vec<Pod>,
    policies: Vec<Policy>,
    /// Hosts in use on each node, and the last one allocated.
    nodes: Vec<Hosts>,
    random: Random,
    next_id: u32,
    version: u64,
    local_pods: usize,
    finished: usize,
}

#[derive(Debug, Clone, Default)]
struct Hosts {
    used: [u64; 4],
    last: u8,
}

impl Hosts {
    const FIRST: u8 = 2;
    const LAST: u8 = 254;

    /// Allocates the next free host as IPAM plugins do: an address is reused as late as possible.
    fn take(&mut self) -> Option<u8> {
        let after = (self.last.max(Self::FIRST - 1) + 1)..=Self::LAST;
        let host = after.chain(Self::FIRST..=Self::LAST).find(|host| !self.has(*host))?;
        self.used[usize::from(host / 64)] |= 1 << (host % 64);
        self.last = host;
        Some(host)
    }

    fn give_back(&mut self, host: u8) {
        self.used[usize::from(host / 64)] &= !(1 << (host % 64));
    }

    fn has(&self, host: u8) -> bool {
        self.used[usize::from(host / 64)] & (1 << (host % 64)) != 0
    }
}

impl Cluster {
    pub fn of(size: Size) -> Cluster {
        generation::cluster(size, Random::seeded(SEED))
    }

    pub fn size(&self) -> Size {
        self.size
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Objects of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        match kind {
            Kind::Namespace => self.namespaces.len(),
            Kind::Pod => self.pods.len(),
            Kind::NetworkPolicy => self.policies.len(),
            Kind::Node | Kind::ClusterNetworkPolicy => 0,
        }
    }

    /// Pods of the agent's node.
    pub fn local_pods(&self) -> usize {
        self.local_pods
    }

    /// Appends the JSON of an object as a list item of the server, which omits `kind` and `apiVersion`.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn write(&self, kind: Kind, index: usize, out: &mut Vec<u8>) {
        json::write(self, kind, index, json::Form::Listed, out);
    }

    /// Appends the object's line of a streaming list.
    ///
    /// # Panics
    /// As [`Cluster::write`].
    pub fn write_added(&self, kind: Kind, index: usize, out: &mut Vec<u8>) {
        out.extend(b"{\"type\":\"ADDED\",\"object\":");
        json::write(self, kind, index, json::Form::Watched, out);
        out.extend(b"}\n");
    }

    /// The initial lists of a program that watches these objects.
    pub fn lists<O: Watchable>(&self) -> Vec<Change<O>>
    where
        O::Kind: TryFrom<Kind, Error: fmt::Debug>,
    {
        let (mut interner, mut text) = (Interner::new(), Vec::new());
        let mut object = |kind, index| {
            text.clear();
            json::write(self, kind, index, json::Form::Watched, &mut text);
            lowered(&mut interner, kind, &text)
        };
        let mut list = |kind: Kind| {
            let objects = (0..self.count(kind)).map(|index| object(kind, index)).collect();
            Change::Replace(kind.try_into().expect(NEEDED_BY_ALL), objects)
        };
        Kind::NEEDED.map(&mut list).into()
    }

    /// An agent's state after its initial sync.
    pub fn state(&self) -> ClusterState {
        let mut state = ClusterState::new();
        for change in self.lists() {
            state.apply(change);
        }
        state
    }

    /// The size in bytes of the JSON of all objects of a kind.
    pub fn json_bytes(&self, kind: Kind) -> usize {
        let mut text = Vec::new();
        let length = |index| {
            text.clear();
            self.write(kind, index, &mut text);
            text.len()
        };
        (0..self.count(kind)).map(length).sum()
    }

    fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn next_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    fn workloads_of(&self, namespace: usize) -> &[Workload] {
        &self.workloads[self.namespaces[namespace].workloads.clone()]
    }
}

/// Why a kind that enforcement needs is a kind of every program.
const NEEDED_BY_ALL: &str = "every program watches what enforcement needs";

/// # Panics
/// If the text is not the JSON of a named object.
fn lowered<O: Watchable>(interner: &mut Interner, kind: Kind, text: &[u8]) -> O
where
    O::Kind: TryFrom<Kind, Error: fmt::Debug>,
{
    let value: serde_json::Value = serde_json::from_slice(text).expect("JSON");
    let kind = kind.try_into().expect(NEEDED_BY_ALL);
    O::lower(interner, kind, &value).unwrap_or_else(|MissingName| panic!("generated objects have names: {value}"))
}

#[cfg(test)]
mod tests {
    use policy::{Layout, translate};

    use super::*;

    #[test]
    fn cluster_has_counts_of_its_size() {
        let size = Size::of_pods(1_000);
        assert_eq!(size, Size { namespaces: 10, pods: 1_000, policies: 100, local_pods: 110 });
        let cluster = Cluster::of(size);
        assert_eq!(Kind::NEEDED.map(|kind| cluster.count(kind)), [10, 1_000, 100]);
        assert_eq!(cluster.local_pods(), 110);
        let bytes = |kind| cluster.json_bytes(kind) / cluster.count(kind);
        assert!((3_000..=6_000).contains(&bytes(Kind::Pod)), "{}", bytes(Kind::Pod));
        let state = cluster.state();
        assert_eq!((state.namespaces().count(), state.pods().count(), state.policies().count()), (10, 1_000, 100));
        assert_eq!(state.problems(), []);
        let addresses: usize = state.pods().map(|pod| state.addresses_of(pod).count()).sum();
        assert_eq!(addresses, 1_100);
        let own_label = "statefulset.kubernetes.io/pod-name";
        let stateful = state.pods().filter(|pod| pod.labels.contains_key(own_label)).count();
        assert!((50..=350).contains(&stateful), "{stateful}");
    }

    #[test]
    fn rules_of_node_use_the_whole_cluster() {
        let cluster = Cluster::of(Size::of_pods(1_000));
        let layout = Layout::for_table("ringfence").unwrap();
        let translation = translate(&cluster.state(), NODE, &layout);
        assert!(translation.programs.len() > 20, "{}", translation.programs.len());
        assert!(translation.ruleset.element_count() > 300, "{}", translation.ruleset.element_count());
    }
}
