//! The bodies of the fuzz targets. Each accepts any bytes and panics if an invariant does not hold; inputs that once
//! caused a panic are kept in `fuzz/regressions/` and run with the tests.

mod clusters;
mod conflists;
mod conntrack;
mod dns_answers;
mod dns_streams;
mod edges;
mod exposures;
mod records;
mod remote_sets;
mod rulesets;

pub use clusters::clusters;
pub use conflists::conflists;
pub use conntrack::conntrack;
pub use dns_answers::dns_answers;
pub use dns_streams::dns_streams;
pub use edges::edges;
pub use exposures::exposures;
pub use records::records;
pub use remote_sets::remote_sets;
pub use rulesets::rulesets;

use cni::protocol::{Request, Response};
use feed::sse::{self, ParsedEvent, Parser};
use feed::{Follower, Next, Position};
use nft::{Packet, Stop, evaluate};
use policy::{Change, ClusterState, Kind, Layout, check, lower, translate};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};

use crate::generate::{probes, tiered_world, world};
use crate::objects::state_of;
use kit::oracle::{World, judge};

const NODES: [&str; 2] = ["node-a", "node-b"];

/// Derives a cluster and flows from the first bytes, and mutations of its policies from the rest. The ruleset must be
/// valid and agree with the oracle.
pub fn objects(bytes: &[u8]) {
    let Some((seed, edits)) = bytes.split_at_checked(4) else { return };
    let mut runner = runner(seed);
    let Ok(drawn) = world().new_tree(&mut runner) else { return };
    let mut world = drawn.current();
    mangle(&mut world.policies, edits, &[]);
    agree(&world, &mut runner);
}

/// Like [`objects`], with mutations of the cluster's ClusterNetworkPolicies.
pub fn cluster_policies(bytes: &[u8]) {
    let Some((seed, edits)) = bytes.split_at_checked(4) else { return };
    let mut runner = runner(seed);
    let Ok(drawn) = tiered_world().new_tree(&mut runner) else { return };
    let mut world = drawn.current();
    let parts = [
        json!("Accept"),
        json!("Deny"),
        json!("Pass"),
        json!("Admin"),
        json!("Baseline"),
        json!(1000),
        json!({"namespaces": {}}),
        json!({"nodes": {}}),
        json!({"networks": ["10.1.0.0/16", "::/0"]}),
        json!([{"networks": ["0.0.0.0/0"]}]),
        json!([{"domainNames": ["*.example.org"]}]),
        json!({"pods": {"podSelector": {"matchLabels": {"app": "web"}}}}),
        json!({"tcp": {"destinationPort": {"range": {"start": 79, "end": 81}}}}),
        json!([{"destinationNamedPort": "http"}]),
    ];
    mangle(&mut world.cluster_policies, edits, &parts);
    agree(&world, &mut runner);
    check(&state_of(&world));
}

/// The rulesets of the world must be valid and agree with the oracle on flows that the runner draws.
fn agree(world: &World, runner: &mut TestRunner) {
    let Ok(drawn) = probes(world).new_tree(runner) else { return };
    let state = state_of(world);
    for node in NODES {
        let ruleset = translate(&state, node, &layout()).ruleset.in_first_generation();
        assert_eq!(ruleset.validate(), vec![]);
        for probe in drawn.current() {
            let packet = Packet::first(probe.source, probe.destination, probe.protocol, probe.port);
            let passes = evaluate(&ruleset, &packet).stop == Stop::Accepted;
            assert_eq!(passes, judge(world, node, &probe).passes(), "{node}: {probe:?} in {world:?}");
        }
    }
}

/// A test runner for generators, seeded with a few bytes.
fn runner(seed: &[u8]) -> TestRunner {
    let seed: Vec<u8> = seed.iter().copied().cycle().take(32).collect();
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    TestRunner::new_with_rng(Config { failure_persistence: None, ..Config::default() }, rng)
}

/// Each four bytes of `edits` choose a policy, a place in it, a new value and the operation (see [`replace`]). `parts`
/// are values in addition to the usual ones.
fn mangle(policies: &mut [Value], edits: &[u8], parts: &[Value]) {
    for edit in edits.chunks_exact(4) {
        let count = policies.len().max(1);
        let Some(policy) = policies.get_mut(usize::from(edit[0]) % count) else { return };
        if let Some(spec) = policy.get_mut("spec") {
            replace(spec, [edit[1], edit[2], edit[3]], parts);
        }
    }
}

/// Replaces the value at an index within another one, depth first, or adds an unknown field or an item next to it.
fn replace(within: &mut Value, [place, with, how]: [u8; 3], parts: &[Value]) {
    let wrong = [
        json!(null),
        json!(0),
        json!(80),
        json!(70_000),
        json!(-1),
        json!(1.5),
        json!(true),
        json!(""),
        json!("TCP"),
        json!("tcp"),
        json!("http"),
        json!("80"),
        json!("In"),
        json!("Exists"),
        json!("Egress"),
        json!("10.0.0.0/8"),
        json!("::/0"),
        json!("10.1.0.0/16/8"),
        json!([]),
        json!({}),
        json!([{}]),
        json!([null]),
        json!(["x"]),
        json!({"app": "web"}),
        json!({"matchLabels": {"app": null}}),
        json!({"ipBlock": {"cidr": "10.1.0.1/24"}}),
    ];
    let with = usize::from(with) % (wrong.len() + parts.len());
    let Some(value) = wrong.iter().chain(parts).nth(with) else { return };
    let Some(target) = nth(within, &mut usize::from(place)) else { return };
    match (how % 4, target) {
        (0, Value::Object(fields)) => drop(fields.insert("newerField".into(), value.clone())),
        (1, Value::Array(items)) => items.push(value.clone()),
        (_, target) => *target = value.clone(),
    }
}

/// The value with this index, depth first.
fn nth<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().find_map(|item| nth(item, left)),
        Value::Object(fields) => fields.values_mut().find_map(|field| nth(field, left)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// Reads the bytes as a file of manifests. Any content must be lowered, translated and checked without panic.
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
        assert_eq!(translate(&state, node, &layout()).ruleset.in_first_generation().validate(), vec![]);
    }
    check(&state);
}

/// Decodes the bytes as a netlink message of the kernel or as a logged packet; the first byte chooses the decoder.
pub fn netlink(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    match kind % 12 {
        0 => drop(nfnetlink::decode_tables(bytes)),
        1 => drop(nfnetlink::decode_chains(bytes)),
        2 => drop(nfnetlink::decode_rules(bytes)),
        3 => drop(nfnetlink::decode_sets(bytes)),
        4 => drop(nfnetlink::decode_elements(bytes)),
        5 => drop(nfnetlink::decode_replies(bytes)),
        6 => drop(nfnetlink::decode_changes(bytes)),
        7 => drop(nfnetlink::decode_logged(bytes)),
        8 => drop(nfnetlink::decode_flow_records(bytes)),
        9 => drop(nfnetlink::decode_rule_counters(bytes)),
        10 => check_packet_head(0x0800, bytes),
        _ => check_packet_head(0x86dd, bytes),
    }
}

/// The addresses of a packet of this `ETH_P_*` must be of one family, and it has ports or an ICMP type, never both.
fn check_packet_head(ether_type: u16, packet: &[u8]) {
    if let Some(head) = nfnetlink::PacketHead::parse(ether_type, packet) {
        assert_eq!(head.source.is_ipv4(), head.destination.is_ipv4());
        assert!(head.ports.is_none() || head.icmp.is_none(), "{head:?}");
    }
}

fn layout() -> Layout {
    match Layout::for_table("ringfence") {
        Ok(layout) => layout,
        Err(e) => panic!("{e}"),
    }
}

/// Messages between the CNI plugin and the agent, and stored state of the plugin, must be decoded to the encoded value,
/// or refused.
///
/// # Panics
/// If something is accepted that is encoded differently.
pub fn cni(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 3 {
        0 => {
            if let Ok(request) = Request::from_line(bytes) {
                let line = request.to_line().expect("what was read is short enough");
                assert_eq!(Request::from_line(&line).expect("it was written by us"), request);
            }
        }
        1 => {
            if let Ok(response) = Response::from_line(bytes) {
                let line = response.to_line().expect("what was read is short enough");
                assert_eq!(Response::from_line(&line).expect("it was written by us"), response);
            }
        }
        _ => {
            if let Ok(attachment) = serde_json::from_slice::<cni::AttachmentRecord>(bytes) {
                let text = serde_json::to_vec(&attachment).expect("plain fields");
                assert_eq!(
                    serde_json::from_slice::<cni::AttachmentRecord>(&text).expect("it was written by us"),
                    attachment
                );
            }
        }
    }
}

/// Parses the bytes as server-sent events. The first byte is the length of the chunks into which they are split.
///
/// # Panics
/// If the result depends on the chunks, or a delta is accepted that is not the next one.
pub fn stream(bytes: &[u8]) {
    let Some((&piece, bytes)) = bytes.split_first() else { return };
    let whole = parsed([bytes].into_iter());
    assert_eq!(parsed(bytes.chunks(usize::from(piece).max(1))), whole);
    let mut follower = Follower::new();
    for event in whole {
        let before = follower.position();
        let Ok(at) = event.id.parse::<Position>() else { continue };
        let next = match event.event.as_str() {
            sse::POSITION => follower.begins(at),
            sse::PULL => follower.pull_requested(at, "it says so"),
            // Baselines have no separate events.
            "message" => follower.baseline(at),
            _ => follower.delta(at),
        };
        if next == Next::Apply {
            assert_eq!(before.map(Position::next), follower.position());
        }
    }
}

fn parsed<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Vec<ParsedEvent> {
    let (mut parser, mut events) = (Parser::new(), vec![]);
    for piece in pieces {
        if parser.push(piece, &mut events).is_err() {
            panic!("no input is as long as the longest event");
        }
    }
    events
}
