//! Real packets through real rules: the kernel's verdicts equal the oracle's.

use std::collections::BTreeSet;

use kit::lab::{Lab, LabSpec, probe_all};
use kit::oracle::{Probe, World, judge};
use nfnetlink::Kernel;
use nft::{Ruleset, create};
use policy::{Layout, translate};
use tests::generate::{draw_probes, draw_tiered_worlds, draw_worlds};
use tests::objects::state_of;

use crate::reporting::GROUP;

const NODES: [&str; 2] = ["node-a", "node-b"];

/// Random clusters, and probes of each.
const CLUSTERS: usize = 60;
const PROBES: usize = 120;

fn commit(ruleset: &Ruleset) {
    let mut kernel = Kernel::open().expect("nf_tables, as root");
    let generation = kernel.generation().expect("the generation");
    kernel.commit(&create(ruleset), generation).expect("the commit");
}

/// Every node of the lab gets the rules for its part of the world. One node at a time logs denied packets.
fn enforce(lab: &Lab, world: &World, number: usize) {
    let state = state_of(world);
    for (index, node) in NODES.into_iter().enumerate() {
        let log_group = (index == number % NODES.len()).then_some(GROUP);
        let layout = Layout::for_table("ringfence").unwrap().logging_to(log_group);
        let ruleset = translate(&state, node, &layout).ruleset.in_first_generation();
        lab.node_exec(node, || commit(&ruleset));
    }
}

/// Probes that a packet can be built for and that leave their namespace.
fn sendable(probe: &Probe) -> bool {
    let v4 = probe.source.is_ipv4();
    let family_fits = v4 == probe.destination.is_ipv4()
        && match probe.protocol {
            Probe::ICMP => v4,
            Probe::ICMPV6 => !v4,
            _ => true,
        };
    family_fits && probe.source != probe.destination && probe.port != Some(0)
}

/// Without ports or identifiers, conntrack treats all packets between two addresses as one flow, in either direction:
/// only the first such probe of a pair is a flow's first packet.
pub(crate) fn distinguishable(probes: Vec<Probe>) -> Vec<Probe> {
    let mut seen = BTreeSet::new();
    let told_apart = |p: &Probe| p.port.is_some() || matches!(p.protocol, Probe::ICMP | Probe::ICMPV6);
    let ends = |p: &Probe| (p.protocol, p.source.min(p.destination), p.source.max(p.destination));
    probes.into_iter().filter(|p| sendable(p) && (told_apart(p) || seen.insert(ends(p)))).collect()
}

/// Sends the probes of each world, and asserts the oracle's verdict on each.
fn compare(worlds: Vec<World>) {
    let (mut passed, mut dropped) = (0, 0);
    for (number, world) in worlds.into_iter().enumerate() {
        let probes: Vec<Probe> = distinguishable(draw_probes(&world, PROBES));
        let addresses = probes.iter().flat_map(|p| [p.source, p.destination]);
        let lab = Lab::new(&LabSpec::of_world(&world, &NODES, addresses));
        enforce(&lab, &world, number);
        for (probe, arrived) in probes.iter().zip(probe_all(&lab, &probes)) {
            let judged = NODES.map(|node| judge(&world, node, probe));
            // Packets between two outside addresses pass no node, and those to the own address do not leave their pod.
            let expected = probe.source == probe.destination || judged.iter().all(|j| j.passes());
            assert_eq!(arrived, expected, "cluster {number}: {probe:?} judged {judged:?} in\n{world:?}");
            if expected { passed += 1 } else { dropped += 1 }
        }
    }
    println!("{passed} probes passed and {dropped} were dropped, all as the oracle says");
    assert!(passed > 500 && dropped > 500, "too few flows with one of the verdicts");
}

#[test]
fn every_probe_gets_the_verdict_of_the_oracle() {
    compare(draw_worlds(CLUSTERS));
}

#[test]
fn cluster_policies_decide_packets_as_the_oracle() {
    compare(draw_tiered_worlds(CLUSTERS));
}
