//! Flow records of clusters that do not exist: the demo's shop, and a cluster of any size. Each node reports its side.

mod manifests;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use flow::{
    Connections, EndSample, Endpoint, EndpointKind, FlowKey, FlowRecord, FlowVerdict, Network, PolicyAction, PolicyHit,
    ServicePort, SideTrace, TraceVerdict, Volume,
};
use jiff::Timestamp;
pub use manifests::pod_of_deployment;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// Nodes of a generated cluster.
pub const NODES: [&str; 4] = ["worker-1", "worker-2", "worker-3", "worker-4"];

/// Workloads of a generated namespace.
const PARTS: [&str; 12] =
    ["gateway", "api", "auth", "catalog", "orders", "search", "worker", "scheduler", "cache", "db", "queue", "reports"];

/// One end of generated flows.
#[derive(Debug, Clone)]
struct End {
    endpoint: Endpoint,
    /// `None` outside the cluster.
    node: Option<&'static str>,
    address: IpAddr,
}

/// Flows from one end to another that recur in every window.
#[derive(Debug, Clone)]
struct Edge {
    source: End,
    destination: End,
    protocol: u8,
    port: u16,
    service: Option<ServicePort>,
    verdict: FlowVerdict,
    egress: SideTrace,
    ingress: SideTrace,
    /// Connections in a window; packets of denied flows. Edges without any are declared only.
    rate: u64,
    /// Only [`GeneratedCluster::late_records`] has it.
    is_late: bool,
}

/// A cluster with the flows of its workloads.
#[derive(Debug, Clone, Default)]
pub struct GeneratedCluster {
    edges: Vec<Edge>,
}

impl GeneratedCluster {
    /// The shop of `examples/shop`, with a policy in audit.
    pub fn shop() -> GeneratedCluster {
        let pod = |namespace: &str, name: &str, number: usize| pod(namespace, name, NODES[number % 2], number);
        let [web, checkout, api, worker] =
            [("web", 0), ("checkout", 1), ("api", 2), ("worker", 3)].map(|(name, number)| pod("shop", name, number));
        let [db, cache, backup] =
            [("db", 4), ("cache", 5), ("backup", 6)].map(|(name, number)| pod("data", name, number));
        let [prometheus, debug] = [("prometheus", 7), ("debug", 8)].map(|(name, number)| pod("ops", name, number));
        let mut cluster = GeneratedCluster::default();
        cluster.allow(&world(), &web, 8080, 120, "web-from-anywhere");
        cluster.allow(&web, &api, 9090, 80, "api-from-tiers");
        cluster.allow(&checkout, &api, 9091, 12, "api-from-tiers");
        cluster.allow(&api, &db, 5432, 60, "db-from-api");
        cluster.allow(&worker, &cache, 6379, 30, "cache-from-worker");
        cluster.allow(&backup, &db, 5432, 2, "backup-to-db");
        cluster.pass(&worker, &outside(EndpointKind::KubeApiserver), TCP, 443, 1);
        for (number, target) in [&web, &api, &worker].into_iter().enumerate() {
            cluster.allow(&prometheus, target, 9100 + number as u16, 3, "metrics");
        }
        cluster.deny(&debug, &db, 5432, 9, "default-deny");
        cluster.deny(&world(), &api, 9090, 4, "default-deny");
        cluster.audit(&checkout, &world(), 443, 5, "checkout-egress");
        cluster.allow(&worker, &api, 9099, 0, "api-from-tiers");
        cluster.pass_late(&debug, &backup, 22);
        cluster
    }

    /// A cluster with this many workloads, in namespaces of up to 12, and the same flows on each call.
    pub fn with_workloads(workloads: usize) -> GeneratedCluster {
        let mut cluster = GeneratedCluster::default();
        let ends: Vec<End> = (0..workloads)
            .map(|number| {
                let namespace = format!("team-{:02}", number / PARTS.len());
                pod(&namespace, PARTS[number % PARTS.len()], NODES[number % NODES.len()], number)
            })
            .collect();
        let dns = pod("kube-system", "coredns", NODES[0], workloads);
        let prometheus = pod("monitoring", "prometheus", NODES[1], workloads + 1);
        let controller = pod("ingress", "controller", NODES[2], workloads + 2);
        cluster.allow(&world(), &controller, 443, 400, "from-anywhere");
        for (number, end) in ends.iter().enumerate() {
            cluster.pass(end, &dns, UDP, 53, 4 + (number as u64 % 9));
            cluster.allow(&prometheus, end, 9100, 1, "metrics");
        }
        for (team, members) in ends.chunks(PARTS.len()).enumerate() {
            cluster.allow(&controller, &members[0], 8080, 40 - team as u64 % 17, "from-ingress");
            // Each part opens connections to the parts that follow it closely.
            for (number, member) in members.iter().enumerate().skip(1) {
                for step in [1, 3].into_iter().filter(|step| *step <= number) {
                    let rate = 3 + ((team * 7 + number * 3 + step) % 23) as u64;
                    let policy = format!("{}-from-team", PARTS[number]);
                    cluster.allow(&members[number - step], member, 5000 + number as u16, rate, &policy);
                }
            }
            if let ([_, _, auth, ..], [.., db, _, _]) = (members, members)
                && team % 3 == 0
            {
                cluster.allow(auth, db, 5432, 0, "db-from-team");
            }
            let next = &ends[(team * PARTS.len() + 3 * PARTS.len() + 1) % ends.len()];
            let from = &members[members.len() - 1];
            match team % 5 {
                0 => cluster.deny(from, next, 5432, 6, "default-deny"),
                1 => cluster.audit(from, next, 8080, 5, "least-privilege"),
                2 => cluster.audit(from, &world(), 443, 3, "egress"),
                _ => cluster.allow(from, next, 8080, 8, "from-teams"),
            }
        }
        if let [first, .., last] = &*ends {
            cluster.pass_late(first, &dns, 9153);
            cluster.pass_late(last, &world(), 25);
        }
        cluster
    }

    /// Adds flows between ends whose names are markup, as a hostile sender of records could choose them.
    pub fn add_hostile_names(&mut self) {
        let names = ["<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"><svg onload=alert(1)>"];
        let ends: Vec<End> = names.iter().enumerate().map(|(at, name)| pod("<b>ns</b>", name, NODES[0], at)).collect();
        self.allow(&ends[0], &ends[1], 80, 7, "<i>policy</i>");
        self.deny(&ends[1], &ends[2], 80, 7, "<i>policy</i>");
    }

    /// Records of a node for a window.
    pub fn records(&self, node: &str, window: Timestamp) -> Vec<FlowRecord> {
        self.records_of(node, window, false)
    }

    /// Records of a node for a window, of flows that begin later than the others.
    pub fn late_records(&self, node: &str, window: Timestamp) -> Vec<FlowRecord> {
        self.records_of(node, window, true)
    }

    fn records_of(&self, node: &str, window: Timestamp, late: bool) -> Vec<FlowRecord> {
        let edges = self.edges.iter().filter(|edge| edge.is_late == late && edge.rate > 0 && edge.is_seen_by(node));
        edges.map(|edge| edge.record(node, window)).collect()
    }

    fn allow(&mut self, source: &End, destination: &End, port: u16, rate: u64, policy: &str) {
        let hit = rule_hit(destination, policy);
        let ingress = trace(TraceVerdict::Allowed, vec![hit], vec![]);
        self.add(source, destination, TCP, port, FlowVerdict::Allowed, not_isolated(source), ingress, rate);
    }

    /// Flows that no policy judges.
    fn pass(&mut self, source: &End, destination: &End, protocol: u8, port: u16, rate: u64) {
        let traces = (not_isolated(source), not_isolated(destination));
        self.add(source, destination, protocol, port, FlowVerdict::Allowed, traces.0, traces.1, rate);
    }

    /// Flows of the late records, which no policy judges.
    fn pass_late(&mut self, source: &End, destination: &End, port: u16) {
        self.pass(source, destination, TCP, port, 1);
        if let Some(edge) = self.edges.last_mut() {
            edge.is_late = true;
        }
    }

    fn deny(&mut self, source: &End, destination: &End, port: u16, rate: u64, policy: &str) {
        let ingress = trace(TraceVerdict::Denied, vec![isolation(destination, policy)], vec![]);
        self.add(source, destination, TCP, port, FlowVerdict::Denied, not_isolated(source), ingress, rate);
    }

    /// Flows that a policy of the source's namespace in audit would deny.
    fn audit(&mut self, source: &End, destination: &End, port: u16, rate: u64, policy: &str) {
        let egress = trace(TraceVerdict::WouldDeny, vec![], vec![isolation(source, policy)]);
        let ingress = match destination.node {
            Some(_) => trace(TraceVerdict::Allowed, vec![rule_hit(destination, "from-teams")], vec![]),
            None => not_isolated(destination),
        };
        self.add(source, destination, TCP, port, FlowVerdict::WouldDeny, egress, ingress, rate);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of an edge")]
    fn add(
        &mut self,
        source: &End,
        destination: &End,
        protocol: u8,
        port: u16,
        verdict: FlowVerdict,
        egress: SideTrace,
        ingress: SideTrace,
        rate: u64,
    ) {
        let service = match (&destination.endpoint.namespace, &destination.endpoint.name) {
            (Some(namespace), Some(name)) if port != 9100 => Some(ServicePort {
                namespace: namespace.clone(),
                name: name.clone(),
                port_name: Some("main".into()),
                port,
            }),
            _ => None,
        };
        let (source, destination) = (source.clone(), destination.clone());
        let is_late = false;
        self.edges.push(Edge { source, destination, protocol, port, service, verdict, egress, ingress, rate, is_late });
    }
}

impl Edge {
    fn is_seen_by(&self, node: &str) -> bool {
        let is_denied_before = self.verdict == FlowVerdict::Denied && self.egress.verdict == TraceVerdict::Denied;
        self.source.node == Some(node) || self.destination.node == Some(node) && !is_denied_before
    }

    fn record(&self, node: &str, window: Timestamp) -> FlowRecord {
        let Edge { source, destination, protocol, port, service, verdict, egress, ingress, rate, is_late: _ } = self;
        let here = |side: &SideTrace, end: &End| SideTrace { enforced_here: end.node == Some(node), ..side.clone() };
        let judges_denial = *verdict != FlowVerdict::Denied || destination.node == Some(node);
        let is_denied = *verdict == FlowVerdict::Denied && judges_denial;
        let connections = if is_denied { 0 } else { *rate };
        let volume =
            |factor: u64| (!is_denied).then_some(Volume { packets: connections * 12, bytes: connections * factor });
        FlowRecord {
            window,
            node: node.into(),
            key: Arc::new(FlowKey {
                source: source.endpoint.clone(),
                destination: destination.endpoint.clone(),
                protocol: *protocol,
                port: Some(*port),
                icmp_type: None,
                service: if source.node == Some(node) { service.clone() } else { None },
                verdict: if judges_denial { *verdict } else { FlowVerdict::Allowed },
                drop_cause: None,
                egress: here(egress, source),
                ingress: here(ingress, destination),
            }),
            sources: sample(source),
            destinations: sample(destination),
            connections: Connections { started: connections, ended: connections, live: 0, lost: 0 },
            sent: volume(900),
            received: volume(14_000),
            unknown_volume: 0,
            denied_packets: if is_denied { *rate } else { 0 },
            generation: Some(41),
            first: window,
            last: window,
        }
    }
}

fn pod(namespace: &str, name: &str, node: &'static str, number: usize) -> End {
    End {
        endpoint: Endpoint {
            kind: EndpointKind::Pod,
            namespace: Some(namespace.into()),
            name: Some(name.into()),
            service: Some(namespace.into()),
            cluster: None,
            network: None,
        },
        node: Some(node),
        address: Ipv4Addr::new(10, 0, (number / 250) as u8, (number % 250) as u8 + 1).into(),
    }
}

fn world() -> End {
    outside(EndpointKind::World)
}

/// An end without a namespace.
fn outside(kind: EndpointKind) -> End {
    End {
        endpoint: Endpoint {
            kind,
            namespace: None,
            name: None,
            service: None,
            cluster: None,
            network: (kind == EndpointKind::World).then_some(Network::Public),
        },
        node: None,
        address: Ipv4Addr::new(203, 0, 113, 5).into(),
    }
}

fn sample(end: &End) -> Arc<EndSample> {
    let Endpoint { namespace, name, .. } = &end.endpoint;
    let pod = namespace.as_ref().zip(name.as_ref()).map(|(namespace, name)| format!("{namespace}/{name}-7d4b9c-x2k4p"));
    Arc::new(EndSample {
        addresses: [end.address].into(),
        pods: pod.into_iter().map(Into::into).collect(),
        nodes: end.node.into_iter().map(Into::into).collect(),
        labels: name.iter().map(|name| format!("app={name}").into()).collect(),
        ..EndSample::default()
    })
}

fn trace(verdict: TraceVerdict, enforced: Vec<PolicyHit>, pending: Vec<PolicyHit>) -> SideTrace {
    SideTrace { verdict, enforced_here: false, enforced, pending, passed_by: vec![] }
}

fn not_isolated(end: &End) -> SideTrace {
    let verdict = if end.node.is_some() { TraceVerdict::NotIsolated } else { TraceVerdict::NotAPod };
    trace(verdict, vec![], vec![])
}

fn rule_hit(end: &End, policy: &str) -> PolicyHit {
    PolicyHit { rule: Some("spec.ingress[0]".into()), action: PolicyAction::Allow, ..isolation(end, policy) }
}

fn isolation(end: &End, policy: &str) -> PolicyHit {
    PolicyHit::isolation(end.endpoint.namespace.clone().unwrap_or_else(|| "default".into()), policy)
}
