use std::time::Instant;

use serde_json::{Value, json};

use super::{FILE, stage, start};
use crate::stage::{NODE, namespace, pod, policy};

/// Number of dual-stack pods and of their labels; each label has a policy that selects peers by it.
const PODS: usize = 5000;
const LABELS: usize = 10;

const ELEMENTS: u64 = 100_000;

#[test]
fn large_table_is_repaired_after_foreign_flush() {
    let stage = stage();
    let labels: Vec<String> = (0..LABELS).map(|n| format!("l{n}=v")).collect();
    let mut objects: Vec<Value> = vec![namespace("shop", ""), pod("server", NODE, "app=server", &super::SERVER)];
    // Peers of one port would share one set.
    let on_port = |n: usize| {
        let from = json!([{"podSelector": {"matchLabels": {format!("l{n}"): "v"}}}]);
        json!({"ingress": [{"from": from, "ports": [{"port": 8000 + n}]}]})
    };
    objects.extend((0..LABELS).map(|n| policy(&format!("server-{n}"), "app=server", on_port(n))));
    for number in 0..PODS {
        let (high, low) = (number / 250, number % 250 + 1);
        let addresses = [format!("10.2.{high}.{low}"), format!("fd00:2::{number:x}")];
        let addresses = addresses.each_ref().map(String::as_str);
        objects.push(pod(&format!("peer-{number}"), "node-b", &labels.join(","), &addresses));
    }
    stage.write_objects(FILE, &objects);
    let mut agent = start(&stage, "off");
    agent.until_ready();
    assert!(agent.metric("ringfence_elements") >= ELEMENTS);
    let generation = stage.kernel_generation();

    let begin = Instant::now();
    stage.nft("flush ruleset");
    let flushed = begin.elapsed();
    agent.until("the rules are back", |_| (stage.kernel_generation() == generation + 2).then_some(()));
    let back = begin.elapsed();
    println!("{ELEMENTS} elements were back {:?} after the flush, which took {flushed:?}", back - flushed);
    assert!(stage.enforces(&stage.state_of_manifests()));
    let line =
        agent.until_logged(&["repaired the tables, which another program had changed", "program=\"nft (process "]);
    println!("{line}");
    assert_eq!(agent.metric("ringfence_repairs_total"), 1);
}
