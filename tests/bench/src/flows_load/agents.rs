//! Agents without a kernel: the records of their nodes, their rings and their senders.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use delivery::{Delivery, DeliveryFigures, DeliveryTarget};
use feed::Access;
use flow::{
    Connections, EndSample, Endpoint, EndpointKind, FlowKey, FlowRecord, FlowVerdict, Member, PolicyAction, PolicyHit,
    Ring, ServicePort, SideTrace, TraceVerdict, Volume,
};
use jiff::Timestamp;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::Size;

/// Pods of a workload.
const REPLICAS: usize = 3;

/// Number of workloads that each workload calls.
const CALLED: usize = 6;

/// Deadline for the delivery of all records.
const DELIVERY: Duration = Duration::from_secs(600);

/// Bytes of a connection, both directions together.
const BYTES: u64 = 4_000;

/// The records put into rings.
#[derive(Debug, Clone, Default)]
pub(super) struct InjectedRecords {
    pub(super) records: u64,
    /// Each connection once, although both nodes report it.
    pub(super) connections: u64,
    pub(super) windows: BTreeMap<Timestamp, OfWindow>,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OfWindow {
    pub(super) records: u64,
    pub(super) connections: u64,
}

pub(super) struct Agents {
    nodes: Vec<Node>,
    injected: InjectedRecords,
    edges: usize,
    /// Stops the senders on drop.
    _runtime: Runtime,
}

struct Node {
    name: Arc<str>,
    ring: Arc<Mutex<Ring>>,
    closed: watch::Sender<u64>,
    figures: DeliveryFigures,
    reports: Vec<EdgeSide>,
}

/// A node's flows between two workloads, reported in each window.
struct EdgeSide {
    key: Arc<FlowKey>,
    sources: Arc<EndSample>,
    destinations: Arc<EndSample>,
    /// The connections of a window are divided among the pairs of pods of their client's node.
    shares: Vec<Share>,
    /// Whether the clients are on this node, so that a connection is counted once.
    has_clients: bool,
}

/// Numbers of the client's and the server's pod, and their share of the connections.
type ClientShare = (usize, usize, Share);

/// Share of one pair of pods in the connections of a window.
#[derive(Clone, Copy)]
struct Share {
    /// Index of the pair among the `pairs` of the client's node.
    place: u64,
    pairs: u64,
}

impl Share {
    fn of(self, connections: u64) -> u64 {
        connections / self.pairs + u64::from(self.place < connections % self.pairs)
    }
}

impl Agents {
    pub(super) fn start(size: &Size, address: SocketAddr) -> Agents {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let (reports, edges) = reports(size);
        let start = |(number, reports): (usize, Vec<EdgeSide>)| {
            let ring = Arc::new(Mutex::new(Ring::default()));
            let (closed, changes) = watch::channel(0);
            let target = DeliveryTarget::new(&format!("http://{address}"), Access::default(), None).expect("a target");
            let delivery = Delivery::new(name_of(number), 1, target);
            let (figures, read) = (delivery.figures(), ring.clone());
            let read =
                move |sequence, most| read.lock().unwrap_or_else(PoisonError::into_inner).batch_from(sequence, most);
            runtime.spawn(delivery.run(changes, read));
            Node { name: name_of(number).into(), ring, closed, figures, reports }
        };
        let nodes = reports.into_iter().enumerate().map(start).collect();
        Agents { nodes, injected: InjectedRecords::default(), edges, _runtime: runtime }
    }

    /// Closes a window of all agents, in which each has opened this many connections.
    pub(super) fn close(&mut self, window: Timestamp, connections: u64) {
        let of_window = self.injected.windows.entry(window).or_default();
        for node in &self.nodes {
            let records = node.reports.iter().map(|report| {
                let count = report.shares.iter().map(|share| share.of(connections)).sum();
                of_window.records += 1;
                of_window.connections += if report.has_clients { count } else { 0 };
                Arc::new(record(node, report, window, count))
            });
            let mut ring = node.ring.lock().unwrap_or_else(PoisonError::into_inner);
            ring.push(records);
            node.closed.send_replace(ring.counts().pushed);
            assert_eq!(ring.counts().left_by_bytes, 0, "the ring of an agent holds an hour");
        }
        self.injected.records += of_window.records;
        self.injected.connections += of_window.connections;
    }

    /// # Panics
    /// If the aggregator does not acknowledge the records.
    pub(super) fn until_acknowledged(&self) {
        let deadline = Instant::now() + DELIVERY;
        for node in &self.nodes {
            let newest = node.ring.lock().unwrap_or_else(PoisonError::into_inner).counts().pushed;
            while node.figures.view().acknowledged < newest {
                assert!(Instant::now() < deadline, "{}: {:?}", node.name, node.figures.view());
                std::thread::sleep(Duration::from_millis(5));
            }
            assert_eq!(node.figures.view().dropped, 0);
        }
    }

    pub(super) fn injected(&self) -> InjectedRecords {
        self.injected.clone()
    }

    /// The number of distinct combinations of source, destination, protocol and port.
    pub(super) fn edges(&self) -> usize {
        self.edges
    }
}

fn record(node: &Node, report: &EdgeSide, window: Timestamp, count: u64) -> FlowRecord {
    let volume = |bytes: u64| Some(Volume { packets: count * 6, bytes: count * bytes });
    FlowRecord {
        window,
        node: node.name.clone(),
        key: report.key.clone(),
        sources: report.sources.clone(),
        destinations: report.destinations.clone(),
        connections: Connections { started: count, ended: count, live: 0, lost: 0 },
        sent: volume(BYTES / 4),
        received: volume(BYTES * 3 / 4),
        unknown_volume: 0,
        denied_packets: 0,
        generation: Some(7),
        first: window,
        last: window,
    }
}

fn name_of(node: usize) -> String {
    format!("worker-{node}")
}

/// The side of a connection whose node reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Side {
    Client,
    Server,
    Both,
}

/// Source, destination and port.
type Edge = (usize, usize, u16);

/// The reports of each node, and the number of edges. Pods are spread over the nodes, and each calls the pods of six
/// workloads, each at one port.
fn reports(size: &Size) -> (Vec<Vec<EdgeSide>>, usize) {
    let workloads = size.pods.div_ceil(REPLICAS);
    let node_of = |pod: usize| pod % size.agents;
    let pods_of = |workload: usize| (0..size.pods).skip(workload).step_by(workloads);
    // Pairs of pods by the client's node.
    let mut pairs: Vec<Vec<(usize, usize, Edge)>> = vec![Vec::new(); size.agents];
    let mut edges = std::collections::BTreeSet::new();
    for client in 0..size.pods {
        let source = client % workloads;
        for call in 0..CALLED.min(workloads - 1) {
            let destination = (source + 1 + call * 13 % (workloads - 1)) % workloads;
            let port = 8_000 + u16::try_from(destination % 7).expect("a small number");
            let edge = (source, destination, port);
            edges.insert(edge);
            pairs[node_of(client)].extend(pods_of(destination).map(|server| (client, server, edge)));
        }
    }
    let mut shares: Vec<BTreeMap<(Edge, Side), Vec<ClientShare>>> = vec![BTreeMap::new(); size.agents];
    for of_node in &pairs {
        for (place, (client, server, edge)) in of_node.iter().enumerate() {
            let share = Share { place: place as u64, pairs: of_node.len() as u64 };
            let (here, there) = (node_of(*client), node_of(*server));
            let sides = match here == there {
                true => vec![(here, Side::Both)],
                false => vec![(here, Side::Client), (there, Side::Server)],
            };
            for (node, side) in sides {
                shares[node].entry((*edge, side)).or_default().push((*client, *server, share));
            }
        }
    }
    let node_name = |pod: usize| Arc::from(name_of(node_of(pod)));
    let report = |((edge, side), of_edge): ((Edge, Side), Vec<ClientShare>)| {
        let (mut sources, mut destinations) = (EndSample::default(), EndSample::default());
        for (client, server, _) in &of_edge {
            sources.add(&member(*client, workloads, node_name(*client)));
            destinations.add(&member(*server, workloads, node_name(*server)));
        }
        EdgeSide {
            key: Arc::new(key(edge, side)),
            sources: Arc::new(sources),
            destinations: Arc::new(destinations),
            shares: of_edge.into_iter().map(|(_, _, share)| share).collect(),
            has_clients: side != Side::Server,
        }
    };
    (shares.into_iter().map(|of_node| of_node.into_iter().map(report).collect()).collect(), edges.len())
}

fn namespace(workload: usize) -> String {
    format!("team-{}", workload % 87)
}

fn workload_name(workload: usize) -> String {
    format!("service-{workload}")
}

fn member(pod: usize, workloads: usize, node: Arc<str>) -> Member {
    let workload = pod % workloads;
    let [_, _, high, low] = u32::try_from(pod).expect("few pods").to_be_bytes();
    let name = workload_name(workload);
    Member {
        address: Ipv4Addr::new(10, 1, high, low).into(),
        pod: Some(format!("{}/{name}-5f6d8c7b9-{pod:05}", namespace(workload)).into()),
        node: Some(node),
        labels: [("app".into(), name.as_str().into()), ("version".into(), "v1".into())].into(),
        identity: None,
    }
}

fn key((source, destination, port): Edge, side: Side) -> FlowKey {
    let end = |workload: usize| Endpoint {
        kind: EndpointKind::Pod,
        namespace: Some(namespace(workload).into()),
        name: Some(workload_name(workload).into()),
        service: Some(namespace(workload).into()),
        cluster: None,
        network: None,
    };
    let trace = |workload: usize, rule: &str, enforced_here: bool| SideTrace {
        verdict: TraceVerdict::Allowed,
        enforced_here,
        enforced: vec![PolicyHit {
            rule: Some(rule.into()),
            action: PolicyAction::Allow,
            ..PolicyHit::isolation(namespace(workload), workload_name(workload))
        }],
        pending: Vec::new(),
        passed_by: Vec::new(),
    };
    let asks_for_service = side != Side::Server;
    FlowKey {
        source: end(source),
        destination: end(destination),
        protocol: 6,
        port: Some(port),
        icmp_type: None,
        service: asks_for_service.then(|| ServicePort {
            namespace: namespace(destination).into(),
            name: workload_name(destination).into(),
            port_name: Some("http".into()),
            port: 80,
        }),
        verdict: FlowVerdict::Allowed,
        drop_cause: None,
        egress: trace(source, "spec.egress[0]", side != Side::Server),
        ingress: trace(destination, "spec.ingress[0]", side != Side::Client),
    }
}
