//! The demo's expectation matches the policies of the example.

use std::path::PathBuf;

use demos::demo::expected::{NotExpectation, parse, read};
use demos::demo::shop::Shop;
use demos::demo::trail::pair;
use kit::oracle::{Probe, World, judge};
use policy::{Traffic, explain};

fn example() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/shop")
}

fn shop() -> Shop {
    Shop::read(&example()).unwrap()
}

/// The unmodified manifests, for the oracle.
fn world() -> World {
    let mut world = World::default();
    for file in ["namespaces.yaml", "pods.yaml", "policies.yaml"] {
        let text = std::fs::read_to_string(example().join(file)).unwrap();
        for document in cluster::manifest::parse(&text).unwrap() {
            let value = document.value;
            match value["kind"].as_str().unwrap() {
                "Namespace" => world.namespaces.push(serde_json::from_value(with_name_label(value)).unwrap()),
                "Pod" => world.pods.push(serde_json::from_value(value).unwrap()),
                "NetworkPolicy" => world.policies.push(value),
                kind => panic!("a {kind} in the example"),
            }
        }
    }
    world
}

/// The label that the API server adds to every namespace.
fn with_name_label(mut namespace: serde_json::Value) -> serde_json::Value {
    let name = namespace["metadata"]["name"].clone();
    namespace["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
    namespace
}

#[test]
fn expected_cells_equal_explanation_and_oracle() {
    let (shop, world) = (shop(), world());
    let nodes = shop.nodes();
    let expected = read(&example(), &shop).unwrap();
    for family in [0, 1] {
        let explained = shop.table(|source, destination| {
            let traffic = Traffic::Port(nft::Protocol::Tcp, destination.port.unwrap());
            explain(&shop.state, source.addresses[family], destination.addresses[family], traffic).allowed
        });
        assert_eq!(explained, expected);
        let judged = shop.table(|source, destination| {
            let (source, destination, port) =
                (source.addresses[family], destination.addresses[family], destination.port);
            let probe = Probe { source, destination, protocol: Probe::TCP, port };
            nodes.iter().all(|node| judge(&world, node, &probe).passes())
        });
        assert_eq!(judged, expected);
    }
}

fn text() -> String {
    std::fs::read_to_string(example().join("expected.txt")).unwrap()
}

#[test]
fn an_expectation_for_another_cast_is_refused() {
    let shop = shop();
    assert_eq!(parse("# only a comment\n", &shop), Err(NotExpectation::Empty));
    let renamed = text().replace("cache-1", "cash-1");
    assert!(matches!(parse(&renamed, &shop), Err(NotExpectation::Columns { .. })));
    let longer = text() + "stranger ok\n";
    assert!(matches!(parse(&longer, &shop), Err(NotExpectation::Surplus { .. })));
    let shorter = text().lines().filter(|line| !line.starts_with("internet")).collect::<Vec<_>>().join("\n");
    assert_eq!(parse(&shorter, &shop), Err(NotExpectation::Missing("internet".into())));
}

#[test]
fn cell_without_verdict_is_refused() {
    let shop = shop();
    let unclear = text().replacen(" ok ", " OK ", 1);
    assert!(
        matches!(parse(&unclear, &shop), Err(NotExpectation::Cell { cell, wanted: "ok or --", .. }) if cell == "OK")
    );
    let about_itself = text().replacen(" = ", " ok ", 1);
    assert!(matches!(parse(&about_itself, &shop), Err(NotExpectation::Cell { wanted: "=", .. })));
}

#[test]
fn every_demo_is_a_step_of_the_check() {
    let read =
        |name: &str| std::fs::read_to_string(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(name)).unwrap();
    let (makefile, check) = (read("Makefile"), read(".ci/run"));
    let targets = makefile.lines().filter_map(|line| line.split_once(':')).map(|(target, _)| target);
    let demos: Vec<&str> = targets.filter(|target| target.starts_with("demo")).collect();
    assert!(demos.len() >= 4, "{demos:?}");
    for demo in demos {
        assert!(check.lines().any(|line| line == format!("make {demo}")), "{demo}");
    }
}

/// The pairs that `make demo-flows` chooses.
#[test]
fn shop_has_pairs_of_pods_between_nodes() {
    let shop = shop();
    let expected = read(&example(), &shop).unwrap();
    for is_allowed in [true, false] {
        let (source, destination) = pair(&shop, &expected, is_allowed).expect("a pair on two nodes");
        assert_ne!(source.node, destination.node);
        let traffic = Traffic::Port(nft::Protocol::Tcp, destination.port.unwrap());
        let explained = explain(&shop.state, source.addresses[0], destination.addresses[0], traffic);
        assert_eq!(explained.allowed, is_allowed);
    }
}
