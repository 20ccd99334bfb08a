//! Generation of the cluster.

use policy::Kind;

use super::policies::Sort;
use super::random::Random;
use super::{Cluster, Hosts, Namespace, PODS_OF_NODE, Phase, Pod, Policy, Ports, Size, Workload};

/// Namespaces of every cluster, each with its first workload. Policies refer to them by name.
pub(super) const SPECIAL: [&str; 4] = ["kube-system", "monitoring", "ingress-nginx", "databases"];

pub(super) const TEAMS: usize = 50;
pub(super) const ENVS: [&str; 4] = ["prod", "staging", "test", "dev"];
pub(super) const COMPONENTS: [&str; 6] = ["backend", "worker", "frontend", "gateway", "cache", "scheduler"];

/// Names of the teams' applications.
const APPS: [&str; 20] = [
    "orders", "cart", "catalog", "search", "payments", "invoices", "shipping", "accounts", "login", "profiles",
    "reviews", "mail", "reports", "images", "prices", "stock", "returns", "loyalty", "chat", "audit",
];

/// Version of the initial objects, above those of a test's own objects.
const FIRST_VERSION: u64 = 1_000_000;

const REPLICAS: std::ops::RangeInclusive<usize> = 2..=20;

/// One workload in this many is a StatefulSet.
const STATEFUL_ONCE_IN: usize = 10;

pub(super) fn cluster(size: Size, random: Random) -> Cluster {
    let nodes = vec![Hosts::default(); size.pods.div_ceil(PODS_OF_NODE).max(2)];
    let mut cluster = Cluster {
        size,
        namespaces: Vec::new(),
        workloads: Vec::new(),
        pods: Vec::new(),
        policies: Vec::new(),
        nodes,
        random,
        next_id: 0,
        version: FIRST_VERSION,
        local_pods: 0,
        finished: 0,
    };
    let mut members = Vec::new();
    for index in 0..size.namespaces {
        let share = size.pods * (index + 1) / size.namespaces - size.pods * index / size.namespaces;
        members.extend(namespace(&mut cluster, index, share));
    }
    place(&mut cluster, &members);
    for namespace in 0..size.namespaces {
        let share = size.policies * (namespace + 1) / size.namespaces - size.policies * namespace / size.namespaces;
        policies(&mut cluster, namespace, share);
    }
    debug_assert_eq!(Kind::NEEDED.map(|kind| cluster.count(kind)), [size.namespaces, size.pods, size.policies]);
    cluster
}

/// Creates the namespace with workloads for that many pods; returns the workload of each pod.
fn namespace(cluster: &mut Cluster, index: usize, pods: usize) -> Vec<usize> {
    let team = cluster.random.below(TEAMS);
    let env = *cluster.random.one_of(&ENVS);
    let name = match SPECIAL.get(index) {
        Some(name) => (*name).to_owned(),
        None => format!("team-{team:02}-{}-{index:04}", cluster.random.one_of(&APPS)),
    };
    let first = cluster.workloads.len();
    let mut members = Vec::new();
    while members.len() < pods {
        let number = cluster.workloads.len() - first;
        let replicas = REPLICAS.start() + cluster.random.below(REPLICAS.end() - REPLICAS.start() + 1);
        let workload = workload(cluster, index, number);
        let place = cluster.workloads.len();
        cluster.workloads.push(workload);
        members.extend(std::iter::repeat_n(place, replicas.min(pods - members.len())));
    }
    let workloads = first..cluster.workloads.len();
    let version = cluster.next_version();
    cluster.namespaces.push(Namespace { name, team, env, version, workloads });
    members
}

fn workload(cluster: &mut Cluster, namespace: usize, number: usize) -> Workload {
    let random = &mut cluster.random;
    let (special, is_first) = (SPECIAL.get(namespace).copied(), number == 0);
    let is_dns = special == Some("kube-system") && is_first;
    let is_database = special == Some("databases");
    let app = match special {
        Some("kube-system") if is_first => "coredns".to_owned(),
        Some("monitoring") if is_first => "prometheus".to_owned(),
        Some("ingress-nginx") if is_first => "ingress-nginx".to_owned(),
        Some(name) => format!("{}-{number}", if is_database { "postgres" } else { name }),
        // The same names everywhere, unique within a namespace.
        None if number < APPS.len() => APPS[(namespace + number) % APPS.len()].to_owned(),
        None => format!("{}-{number}", random.one_of(&APPS)),
    };
    Workload {
        namespace,
        app,
        component: COMPONENTS[random.below(COMPONENTS.len())],
        ports: if is_dns {
            Ports::Dns
        } else if is_database {
            Ports::Database
        } else {
            Ports::Web
        },
        stateful: is_database || random.once_in(STATEFUL_ONCE_IN),
        is_dns,
        next: 0,
    }
}

/// Distributes the pods over the nodes, up to the limit of each.
fn place(cluster: &mut Cluster, members: &[usize]) {
    let mut nodes: Vec<u32> = (0..members.len()).map(|index| (index / PODS_OF_NODE) as u32).collect();
    cluster.random.shuffle(&mut nodes);
    for (workload, node) in members.iter().zip(nodes) {
        add_pod(cluster, *workload, node).expect("a node has room for its pods");
    }
}

/// Adds a pod of the workload on the node and returns its index; `None` if the node has no free address.
pub(super) fn add_pod(cluster: &mut Cluster, workload: usize, node: u32) -> Option<usize> {
    let host = cluster.nodes[node as usize].take()?;
    let (id, version) = (cluster.next_id(), cluster.next_version());
    let owner = &mut cluster.workloads[workload];
    let number = owner.next;
    owner.next += 1;
    let component = owner.component;
    let release = cluster.random.below(5) as u8;
    let phase = Phase::Running;
    let pod = Pod { id, workload, number, node, host, phase, component, template: release, release, version };
    cluster.local_pods += usize::from(pod.is_local());
    cluster.pods.push(pod);
    Some(cluster.pods.len() - 1)
}

/// Every namespace has the first two policies, and some of the others.
fn policies(cluster: &mut Cluster, namespace: usize, count: usize) {
    let mut others = Sort::OTHERS;
    cluster.random.shuffle(&mut others);
    let sorts = Sort::EVERYWHERE.into_iter().chain(others.into_iter().cycle()).take(count);
    for sort in sorts {
        add_policy(cluster, namespace, sort);
    }
}

pub(super) fn add_policy(cluster: &mut Cluster, namespace: usize, sort: Sort) -> usize {
    let (id, version, seed) = (cluster.next_id(), cluster.next_version(), cluster.random.next());
    cluster.policies.push(Policy { id, namespace, sort, seed, version });
    cluster.policies.len() - 1
}
