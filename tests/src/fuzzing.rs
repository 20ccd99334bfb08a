//! What the fuzz targets do. Each takes any bytes and panics where a claim does not hold; inputs that once made one
//! panic are kept in `fuzz/regressions/` and run with the tests.

use nft::{Packet, Stop, evaluate};
use policy::{Change, ClusterState, Kind, Layout, check, lower, translate};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::generate::{probes, world};
use crate::objects::state_of;
use crate::oracle::judge;

const NODES: [&str; 2] = ["node-a", "node-b"];

/// Bytes that say which cluster and flows to draw. The ruleset is valid and agrees with the oracle.
pub fn objects(bytes: &[u8]) {
    let rng = TestRng::from_seed(RngAlgorithm::PassThrough, bytes);
    let mut runner = TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng);
    let Ok(drawn) = world().new_tree(&mut runner) else { return };
    let world = drawn.current();
    let Ok(drawn) = probes(&world).new_tree(&mut runner) else { return };
    let state = state_of(&world);
    for node in NODES {
        let ruleset = translate(&state, node, &layout()).ruleset;
        assert_eq!(ruleset.validate(), vec![]);
        for probe in drawn.current() {
            let packet = Packet::first(probe.source, probe.destination, probe.protocol, probe.port);
            let passes = evaluate(&ruleset, &packet).stop == Stop::Accepted;
            assert_eq!(passes, judge(&world, node, &probe).passes(), "{node}: {probe:?} in {world:?}");
        }
    }
}

/// A text as a file of manifests. Whatever it holds can be lowered, translated and checked.
pub fn manifest(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(documents) = cluster::manifest::parse(text) else { return };
    let mut state = ClusterState::new();
    for document in documents {
        for kind in Kind::ALL {
            if let Ok(object) = lower(kind, &document.value) {
                state.apply(Change::Set(object));
            }
        }
    }
    let nodes: Vec<String> = state.pods().filter_map(|p| p.node.as_ref()).map(|n| n.to_string()).collect();
    for node in nodes.iter().take(4) {
        assert_eq!(translate(&state, node, &layout()).ruleset.validate(), vec![]);
    }
    check(&state);
}

/// Bytes as the kernel's answer to each kind of dump.
pub fn netlink(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    match kind % 6 {
        0 => drop(nfnetlink::decode_tables(bytes)),
        1 => drop(nfnetlink::decode_chains(bytes)),
        2 => drop(nfnetlink::decode_rules(bytes)),
        3 => drop(nfnetlink::decode_sets(bytes)),
        4 => drop(nfnetlink::decode_elements(bytes)),
        _ => drop(nfnetlink::decode_replies(bytes)),
    }
}

fn layout() -> Layout {
    match Layout::for_table("ringfence") {
        Ok(layout) => layout,
        Err(e) => panic!("{e}"),
    }
}
