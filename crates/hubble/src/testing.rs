//! Joined records for tests: a fixed one, and random ones with few distinct names, so that filters match often.

use std::collections::BTreeSet;
use std::sync::Arc;

use flow::{
    ClusterRecord, Connections, EndSample, Endpoint, EndpointKind, FlowKey, FlowRecord, FlowVerdict, PolicyAction,
    PolicyHit, SeenBy, ServicePort, SideTrace, TraceVerdict,
};
use identity::{EndIdentity, ReservedIdentity};
use jiff::{SignedDuration, Timestamp};

pub(crate) fn pod(namespace: &str, name: &str) -> Endpoint {
    Endpoint {
        kind: EndpointKind::Pod,
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        service: None,
        cluster: None,
        network: None,
    }
}

pub(crate) fn side(verdict: TraceVerdict, hits: &[(&str, Option<&str>, PolicyAction)]) -> SideTrace {
    let hit = |(name, rule, action): &(&str, Option<&str>, PolicyAction)| PolicyHit {
        rule: rule.map(Into::into),
        action: *action,
        ..PolicyHit::isolation("shop", *name)
    };
    SideTrace {
        verdict,
        enforced_here: true,
        enforced: hits.iter().map(hit).collect(),
        pending: Vec::new(),
        passed_by: Vec::new(),
    }
}

pub(crate) fn sample(address: &str, pods: &[&str], label: &str) -> EndSample {
    EndSample {
        addresses: [address.parse().unwrap()].into(),
        pods: pods.iter().map(|pod| (*pod).into()).collect(),
        nodes: ["n1".into()].into(),
        labels: [label.into()].into(),
        identities: vec![EndIdentity::of_sid("rdsrexpux6y4o".parse().unwrap(), "shop".into())],
        truncated: false,
    }
}

/// From the pod `shop/web-0` to `shop/db:5432` through a Service, denied by the destination's policy.
pub(crate) fn denied() -> ClusterRecord {
    let window: Timestamp = "2026-05-04T12:00:00Z".parse().unwrap();
    let key = FlowKey {
        source: pod("shop", "web"),
        destination: pod("shop", "db"),
        protocol: 6,
        port: Some(5432),
        icmp_type: None,
        service: Some(ServicePort {
            namespace: "shop".into(),
            name: "db".into(),
            port_name: Some("postgres".into()),
            port: 5432,
        }),
        verdict: FlowVerdict::Denied,
        drop_cause: None,
        egress: side(TraceVerdict::Allowed, &[("web", Some("spec.egress[0]"), PolicyAction::Allow)]),
        ingress: side(TraceVerdict::Denied, &[("db", None, PolicyAction::Deny)]),
    };
    let record = FlowRecord {
        window,
        node: "n1".into(),
        key: Arc::new(key),
        sources: Arc::new(sample("10.0.1.7", &["shop/web-0"], "app=web")),
        destinations: Arc::new(sample("10.0.2.9", &["shop/db-0", "shop/db-1"], "app=db")),
        connections: Connections::default(),
        sent: None,
        received: None,
        unknown_volume: 0,
        denied_packets: 3,
        generation: Some(7),
        first: window,
        last: window + SignedDuration::from_millis(1_500),
    };
    ClusterRecord {
        record,
        source_verdict: Some(FlowVerdict::Allowed),
        destination_verdict: Some(FlowVerdict::Denied),
        seen_by: Arc::new(SeenBy {
            source: ["n1".into()].into(),
            destination: ["n2".into()].into(),
            other: BTreeSet::new(),
        }),
    }
}

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

pub(crate) fn random_record(random: &mut Random) -> ClusterRecord {
    let mut joined = denied();
    let verdicts = [FlowVerdict::Allowed, FlowVerdict::WouldDeny, FlowVerdict::Denied];
    let trace = |random: &mut Random| {
        let verdict = random.pick(&[
            TraceVerdict::NotIsolated,
            TraceVerdict::Allowed,
            TraceVerdict::Denied,
            TraceVerdict::WouldDeny,
        ]);
        let action = if verdict == TraceVerdict::Denied { PolicyAction::Deny } else { PolicyAction::Allow };
        let rule = random.pick(&[None, Some("spec.ingress[1]")]);
        side(verdict, &[(random.pick(&["web", "db"]), rule, action)])
    };
    let key = FlowKey {
        source: random_end(random),
        destination: random_end(random),
        protocol: random.pick(&[1, 6, 6, 17, 58, 132, 47]),
        port: random.pick(&[Some(80), Some(443), Some(5432), None]),
        icmp_type: None,
        service: random.chance(50).then(|| ServicePort {
            namespace: random.pick(&["shop", "pay"]).into(),
            name: random.pick(&["db", "web"]).into(),
            port_name: None,
            port: 80,
        }),
        verdict: random.pick(&verdicts),
        drop_cause: random.pick(&[None, None, Some("forged-source"), Some("tunnel"), Some("commit")]).map(Into::into),
        egress: trace(random),
        ingress: trace(random),
    };
    let side_verdict = |random: &mut Random| random.chance(75).then(|| random.pick(&verdicts));
    joined.source_verdict = side_verdict(random);
    joined.destination_verdict = side_verdict(random);
    let node = |random: &mut Random| BTreeSet::from([Arc::from(random.pick(&["n1", "n2", "node-3.zone"]))]);
    joined.seen_by = Arc::new(SeenBy { source: node(random), destination: node(random), other: BTreeSet::new() });
    joined.record.node = joined.seen_by.source.first().unwrap().clone();
    joined.record.sources = Arc::new(random_sample(random, &key.source));
    joined.record.destinations = Arc::new(random_sample(random, &key.destination));
    joined.record.key = Arc::new(key);
    joined
}

fn random_end(random: &mut Random) -> Endpoint {
    let end = pod(random.pick(&["shop", "pay", "default"]), random.pick(&["web", "db", "webhook"]));
    let bare = |kind| Endpoint { kind, namespace: None, name: None, ..end.clone() };
    match random.below(8) {
        0 => bare(EndpointKind::World),
        1 => Endpoint { name: Some("n1".into()), ..bare(EndpointKind::Node) },
        2 => Endpoint { kind: EndpointKind::RemoteCluster, cluster: Some("east".into()), ..end },
        3 => bare(EndpointKind::KubeApiserver),
        _ => end,
    }
}

fn random_sample(random: &mut Random, end: &Endpoint) -> EndSample {
    let addresses = ["10.0.1.7", "10.0.2.9", "192.0.2.1", "2001:db8::1"];
    let count = random.below(3);
    let pods = end.namespace.iter().flat_map(|namespace| {
        let name = end.name.as_deref().unwrap_or_default();
        (0..count).map(|number| format!("{namespace}/{name}-{number}").into()).collect::<Vec<Arc<str>>>()
    });
    let is_pod = end.kind == EndpointKind::Pod;
    EndSample {
        pods: pods.collect(),
        addresses: (0..count).map(|_| random.pick(&addresses).parse().unwrap()).collect(),
        nodes: BTreeSet::new(),
        labels: if is_pod {
            [random.pick(&["app=web", "app=db", "tier=front"]).into()].into()
        } else {
            BTreeSet::new()
        },
        identities: match random.chance(50) {
            true => vec![EndIdentity::reserved(random.pick(&[ReservedIdentity::World, ReservedIdentity::Host]), None)],
            false => Vec::new(),
        },
        truncated: false,
    }
}
