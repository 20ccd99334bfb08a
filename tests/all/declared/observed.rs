//! Observed edges between pods and pods of other clusters have the declaration that the oracle's verdicts require.

use std::cell::Cell;
use std::net::IpAddr;

use flow::{EndSample, Endpoint, EndpointKind, FlowVerdict};
use insight::{Declaration, DeclaredEdges, ObservedEdge};
use jiff::Timestamp;
use kit::oracle::{Side, judge, owned_addresses};

use super::expected::{NODE, enforced_on_one_node, remote_addresses};
use super::*;

/// Each pod is a workload.
const APART: usize = 1_000;

#[derive(Debug, Default)]
struct Judged {
    declared: Cell<usize>,
    undeclared: Cell<usize>,
    not_governed: Cell<usize>,
    /// Declared by a line that holds for some pairs of addresses.
    partial: Cell<usize>,
}

fn endpoint(kind: EndpointKind, namespace: &str, name: &str, cluster: Option<&str>) -> Endpoint {
    Endpoint {
        kind,
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        service: None,
        cluster: cluster.map(Into::into),
        network: None,
    }
}

fn edge(ends: [(Endpoint, IpAddr); 2], (protocol, port): (u8, Option<u16>)) -> ObservedEdge {
    let [(source, from), (destination, to)] = ends;
    let sample = |address| EndSample { addresses: [address].into(), ..EndSample::default() };
    ObservedEdge {
        source,
        destination,
        protocol,
        port,
        services: BTreeSet::new(),
        verdicts: [FlowVerdict::Allowed].into(),
        connections: 1,
        denied_packets: 0,
        sources: sample(from),
        destinations: sample(to),
        first: Timestamp::UNIX_EPOCH,
        last: Timestamp::UNIX_EPOCH,
    }
}

fn judge_edges(world: &World, probes: &[Probe], judged: &Judged) -> Result<(), TestCaseError> {
    let state = state_of(world);
    let edges = fresh(&state, APART, usize::MAX);
    let declared = DeclaredEdges::new(edges.snapshot(), edges.withheld());
    let enforced = enforced_on_one_node(world);
    let name = workload_of(APART);
    let traffics: BTreeSet<(u8, Option<u16>)> = probes
        .iter()
        .filter(|p| p.port.is_some())
        .map(|p| (p.protocol, p.port))
        .take(8)
        .chain([(Probe::ICMP, None)])
        .collect();
    for (own, pod) in owned_addresses(&enforced) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let own_end = endpoint(EndpointKind::Pod, namespace, &name(pod.metadata.name.as_deref().unwrap()), None);
        let remote = remote_addresses(&enforced).into_iter().filter(|(other, _)| other.is_ipv4() == own.is_ipv4());
        for (other, set) in remote {
            let other_end = endpoint(EndpointKind::RemoteCluster, &set.namespace, &set.name, Some(&set.cluster));
            for (egress, traffic) in traffics.iter().flat_map(|traffic| [(true, *traffic), (false, *traffic)]) {
                let mut ends = [(own_end.clone(), own), (other_end.clone(), other)];
                if !egress {
                    ends.reverse();
                }
                let [(_, source), (_, destination)] = ends;
                let flow = Probe { source, destination, protocol: traffic.0, port: traffic.1 };
                let verdicts = judge(&enforced, NODE, &flow);
                let passes = verdicts.egress != Side::Denied && verdicts.ingress != Side::Denied;
                let declaration = declared.declaration(&edge(ends, traffic), &state);
                let about = || format!("{flow} {declaration:?} {verdicts:?}\n{world:?}");
                let (is_allowed, count) = match declaration {
                    Declaration::Declared { partial: false } => (true, &judged.declared),
                    Declaration::Undeclared => (false, &judged.undeclared),
                    Declaration::NotGoverned => (true, &judged.not_governed),
                    Declaration::Declared { partial: true } => (passes, &judged.partial),
                    Declaration::Unknown => return Err(TestCaseError::fail(about())),
                };
                prop_assert_eq!(passes, is_allowed, "{}", about());
                count.set(count.get() + 1);
            }
        }
    }
    Ok(())
}

#[test]
fn observed_remote_edge_is_judged_as_oracle_does() {
    let judged = Judged::default();
    let mut runner = TestRunner::new(Config { cases: 120, failure_persistence: None, ..Config::default() });
    let strategy = connected_world().prop_flat_map(|world| (probes(&world), Just(world)));
    let checked = runner.run(&strategy, |(probes, world)| judge_edges(&world, &probes, &judged));
    if let Err(failure) = checked {
        panic!("{failure}");
    }
    println!("{judged:?}");
    let Judged { declared, undeclared, not_governed, partial } = &judged;
    assert!(declared.get() > 500 && undeclared.get() > 5_000 && not_governed.get() > 5_000, "{judged:?}");
    assert!(partial.get() * 10 < declared.get(), "{judged:?}");
}
