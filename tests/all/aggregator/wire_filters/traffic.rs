//! Random connections with few distinct names, and the records by which agents report them.

use std::collections::BTreeSet;
use std::sync::Arc;

use flow::{
    Connections, EndSample, Endpoint, EndpointKind, FlowKey, FlowRecord, FlowVerdict, Network, PolicyAction, PolicyHit,
    PolicyTier, ServicePort, SideTrace, TraceVerdict, Volume, WINDOW_SECONDS,
};
use identity::{EndIdentity, ReservedIdentity};
use jiff::{SignedDuration, Timestamp};

pub(crate) const NODES: [&str; 3] = ["n1", "n2", "node-3.zone"];

const WINDOWS: usize = 20;

/// Deterministic random numbers (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    pub(crate) fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    pub(crate) fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// Which sides of a connection agents report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportingSides {
    Source,
    Destination,
    /// By two nodes.
    Apart,
    /// By the node of both pods.
    Together,
    /// Packets that no policy judged.
    Neither,
}

/// Connections of one key in one window.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) reported: ReportingSides,
    /// Report of the source's node, or the only one.
    pub(crate) first: FlowRecord,
    /// Report of the destination's node about connections that two nodes report.
    pub(crate) second: Option<FlowRecord>,
}

impl Traffic {
    pub(crate) fn records(&self) -> impl Iterator<Item = &FlowRecord> {
        [&self.first].into_iter().chain(&self.second)
    }

    pub(crate) fn key(&self) -> &FlowKey {
        &self.first.key
    }

    pub(crate) fn last_record(&self) -> &FlowRecord {
        self.second.as_ref().unwrap_or(&self.first)
    }

    pub(crate) fn source_verdict(&self) -> Option<FlowVerdict> {
        match self.reported {
            ReportingSides::Source | ReportingSides::Apart | ReportingSides::Together => Some(self.first.key.verdict),
            ReportingSides::Destination | ReportingSides::Neither => None,
        }
    }

    pub(crate) fn destination_verdict(&self) -> Option<FlowVerdict> {
        match self.reported {
            ReportingSides::Destination | ReportingSides::Apart | ReportingSides::Together => {
                Some(self.last_record().key.verdict)
            }
            ReportingSides::Source | ReportingSides::Neither => None,
        }
    }

    /// The stricter verdict.
    pub(crate) fn verdict(&self) -> FlowVerdict {
        self.first.key.verdict.max(self.last_record().key.verdict)
    }
}

/// Draws connections with different times. Their windows are in the past.
pub(crate) fn draw(random: &mut Random, count: usize) -> Vec<Traffic> {
    let now = Timestamp::now().as_second();
    let newest = Timestamp::from_second(now - now % WINDOW_SECONDS - 60).unwrap();
    (0..count).map(|number| traffic(random, number, newest)).collect()
}

fn traffic(random: &mut Random, number: usize, newest: Timestamp) -> Traffic {
    // The service identity is in no protocol; it keeps connections of the same names apart.
    let service: Arc<str> = format!("shop/{number}").into();
    let (source, destination) = (end(random, &service), end(random, &service));
    let are_pods = [&source, &destination].map(|end| end.kind == EndpointKind::Pod);
    let mut reported = match are_pods {
        _ if random.chance(6) => ReportingSides::Neither,
        [true, true] => random.pick(&[
            ReportingSides::Source,
            ReportingSides::Destination,
            ReportingSides::Apart,
            ReportingSides::Apart,
            ReportingSides::Together,
        ]),
        [true, false] => ReportingSides::Source,
        [false, true] => ReportingSides::Destination,
        [false, false] => ReportingSides::Neither,
    };
    let (egress, ingress) = match reported {
        ReportingSides::Neither => (not_a_pod(), not_a_pod()),
        ReportingSides::Source | ReportingSides::Destination | ReportingSides::Apart | ReportingSides::Together => {
            (side(random, are_pods[0]), side(random, are_pods[1]))
        }
    };
    let (at_source, at_destination) = (verdict_of(&egress), verdict_of(&ingress));
    // Packets denied at the source never reach the destination.
    if reported == ReportingSides::Apart && at_source == FlowVerdict::Denied {
        reported = ReportingSides::Source;
    }
    let protocol = random.pick(&[1, 6, 6, 6, 17, 58, 132, 47]);
    let has_port = matches!(protocol, 6 | 17 | 132) && random.chance(90);
    let at_node = |node_reports: [bool; 2], verdict, service| FlowKey {
        source: source.clone(),
        destination: destination.clone(),
        protocol,
        port: has_port.then_some([80, 443, 5432, 53][number % 4]),
        icmp_type: matches!(protocol, 1 | 58).then_some(8),
        service,
        verdict,
        drop_cause: None,
        egress: SideTrace { enforced_here: node_reports[0], ..egress.clone() },
        ingress: SideTrace { enforced_here: node_reports[1], ..ingress.clone() },
    };
    let client = random.chance(50).then(|| ServicePort {
        namespace: random.pick(&["shop", "pay", "default"]).into(),
        name: random.pick(&["db", "web"]).into(),
        port_name: random.pick(&[None, Some("http".into())]),
        port: 80,
    });
    let (first, second) = match reported {
        ReportingSides::Source => (at_node([true, false], at_source, client), None),
        ReportingSides::Destination => (at_node([false, true], at_destination, None), None),
        ReportingSides::Together => (at_node([true, true], at_source.max(at_destination), client), None),
        ReportingSides::Apart => {
            (at_node([true, false], at_source, client), Some(at_node([false, true], at_destination, None)))
        }
        ReportingSides::Neither => {
            let cause = random.pick(&["forged-source", "unknown-address", "tunnel", "other-protocol", "stray"]);
            let key = at_node([false, false], FlowVerdict::Denied, None);
            (FlowKey { drop_cause: Some(cause.into()), ..key }, None)
        }
    };
    let window = newest - SignedDuration::from_secs(WINDOW_SECONDS) * (number % WINDOWS) as i32;
    let samples = [sample(random, &source), sample(random, &destination)].map(Arc::new);
    let record = |key: FlowKey, node: &str| FlowRecord {
        window,
        node: node.into(),
        key: Arc::new(key),
        sources: samples[0].clone(),
        destinations: samples[1].clone(),
        connections: Connections { started: number as u64 + 1, ended: 1, live: 2, lost: 0 },
        sent: Some(Volume { packets: 3, bytes: 300 }),
        received: None,
        unknown_volume: 0,
        denied_packets: 0,
        generation: Some(7),
        first: window,
        last: window + SignedDuration::from_millis(20) * (number / WINDOWS) as i32,
    };
    let nodes = random.pick(&[[0, 1], [1, 0], [2, 1], [0, 2]]).map(|node| NODES[node]);
    Traffic { reported, first: record(first, nodes[0]), second: second.map(|key| record(key, nodes[1])) }
}

fn end(random: &mut Random, service: &Arc<str>) -> Endpoint {
    let namespace = random.pick(&["shop", "shop", "pay", "default"]);
    let pod = Endpoint {
        kind: EndpointKind::Pod,
        namespace: Some(namespace.into()),
        name: Some(random.pick(&["web", "db", "webhook"]).into()),
        service: Some(service.clone()),
        cluster: None,
        network: None,
    };
    let nameless = |kind| Endpoint { kind, namespace: None, name: None, ..pod.clone() };
    match random.below(14) {
        0 => Endpoint { network: Some(Network::Public), ..nameless(EndpointKind::World) },
        1 => Endpoint { network: Some(Network::Private), ..nameless(EndpointKind::World) },
        2 => Endpoint { name: Some(random.pick(&["n1", "n2"]).into()), ..nameless(EndpointKind::Node) },
        3 => nameless(EndpointKind::KubeApiserver),
        4 => Endpoint { kind: EndpointKind::RemoteCluster, cluster: Some("east".into()), ..pod },
        5 => nameless(EndpointKind::UnknownPod),
        _ => pod,
    }
}

fn not_a_pod() -> SideTrace {
    SideTrace {
        verdict: TraceVerdict::NotAPod,
        enforced_here: false,
        enforced: vec![],
        pending: vec![],
        passed_by: vec![],
    }
}

fn side(random: &mut Random, is_pod: bool) -> SideTrace {
    if !is_pod {
        return not_a_pod();
    }
    let of_cluster = |random: &mut Random, action| PolicyHit {
        kind: "ClusterNetworkPolicy".into(),
        namespace: "".into(),
        name: random.pick(&["web", "tenants"]).into(),
        tier: Some(random.pick(&[PolicyTier::Admin, PolicyTier::Baseline])),
        rule: Some("spec.egress[3]".into()),
        rule_name: None,
        action,
    };
    let hit = |random: &mut Random, action, rule: Option<&str>| match random.chance(25) {
        true => of_cluster(random, action),
        false => PolicyHit {
            rule: rule.map(Into::into),
            action,
            ..PolicyHit::isolation(random.pick(&["shop", "pay"]), random.pick(&["web", "db"]))
        },
    };
    let (allow, deny) = (PolicyAction::Allow, PolicyAction::Deny);
    let (verdict, enforced, pending) = match random.below(6) {
        0 | 1 => (TraceVerdict::NotIsolated, vec![], vec![]),
        2 => (TraceVerdict::Allowed, vec![hit(random, allow, Some("spec.egress[0]"))], vec![]),
        3 => {
            let enforced = vec![hit(random, allow, Some("spec.ingress[2]"))];
            (TraceVerdict::WouldDeny, enforced, vec![hit(random, deny, None)])
        }
        4 => (TraceVerdict::WouldDeny, vec![], vec![hit(random, deny, None)]),
        _ => {
            let rule = random.pick(&[None, None, None, Some("spec.egress[1]")]);
            let pending = if random.chance(30) { vec![hit(random, allow, Some("spec.egress[0]"))] } else { vec![] };
            (TraceVerdict::Denied, vec![hit(random, deny, rule), hit(random, deny, None)], pending)
        }
    };
    let passed_by = if random.chance(20) { vec![of_cluster(random, PolicyAction::Pass)] } else { vec![] };
    SideTrace { verdict, enforced_here: false, enforced, pending, passed_by }
}

fn verdict_of(side: &SideTrace) -> FlowVerdict {
    match side.verdict {
        TraceVerdict::Denied => FlowVerdict::Denied,
        TraceVerdict::WouldDeny => FlowVerdict::WouldDeny,
        TraceVerdict::NotAPod
        | TraceVerdict::NotIsolated
        | TraceVerdict::Itself
        | TraceVerdict::OwnNode
        | TraceVerdict::Allowed
        | TraceVerdict::WouldAllow
        | TraceVerdict::Unreadable
        | TraceVerdict::Unknown => FlowVerdict::Allowed,
    }
}

fn sample(random: &mut Random, end: &Endpoint) -> EndSample {
    let is_pod = end.kind == EndpointKind::Pod;
    let pods = match (&end.namespace, &end.name) {
        (Some(namespace), Some(name)) if is_pod => {
            (0..random.below(3)).map(|number| format!("{namespace}/{name}-{number}").into()).collect()
        }
        _ => BTreeSet::new(),
    };
    let addresses = ["10.0.1.7", "10.0.2.9", "192.0.2.1", "2001:db8::1", "fd00::5"];
    let labels = ["app=web", "app=db", "tier=front", "tier=back"];
    let identity = |random: &mut Random| match random.below(3) {
        0 => EndIdentity::of_sid("rdsrexpux6y4o".parse().unwrap(), "shop".into()),
        1 => EndIdentity::reserved(ReservedIdentity::Init, None),
        _ => EndIdentity::reserved(ReservedIdentity::Host, None),
    };
    EndSample {
        addresses: (0..random.below(3)).map(|_| random.pick(&addresses).parse().unwrap()).collect(),
        pods,
        nodes: BTreeSet::new(),
        labels: (0..random.below(3)).filter(|_| is_pod).map(|_| random.pick(&labels).into()).collect(),
        identities: match random.below(3) {
            0 => vec![],
            1 => vec![identity(random)],
            _ => vec![EndIdentity::of_sid("rdsrexpux6y4o".parse().unwrap(), "shop".into()), identity(random)],
        },
        truncated: false,
    }
}
