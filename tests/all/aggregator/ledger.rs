//! The ledger of observed edges of a large cluster, and at its bound.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use flow::{FlowKey, FlowRecord};
use generator::flows::{GeneratedCluster, NODES};
use jiff::{SignedDuration, Timestamp};
use kit::provider_process::{Provider, free_port};
use serde_json::Value;
use tempfile::TempDir;

use super::{Agent, plain};

/// Workloads of the generated cluster, which has about five edges for each. `LEDGER_WORKLOADS` sets another number.
const WORKLOADS: usize = 2_000;

/// The windows settle within seconds.
const OBSERVED: Duration = Duration::from_secs(200);

/// An aggregator that has added all edges of a cluster to its ledger, or left them out.
fn serve(cluster: &GeneratedCluster, more: &[&str]) -> (Provider, usize) {
    let address = free_port();
    let mut aggregator = Provider::start_aggregator(address, [&["--edges", "on"], more].concat());
    aggregator.until_ready();
    let now = Timestamp::now().as_second();
    let window = Timestamp::from_second(now - now % 15 - 90).unwrap();
    let by_node = NODES.map(|node| (node, cluster.records(node, window)));
    let windows = by_node.iter().map(|(_, records)| 1 + records.len() / 5_000).max().unwrap_or(1);
    let mut edges = std::collections::BTreeSet::new();
    for (node, records) in by_node {
        edges.extend(records.iter().map(|record| {
            let key = &record.key;
            format!("{} {} {} {:?}", key.source, key.destination, key.protocol, key.port)
        }));
        let agent = Agent::start(node, 1, plain(address));
        // A window and the ring of an agent have limits. Records of one edge are of one window on all nodes.
        for number in 0..windows {
            let earlier = window - SignedDuration::from_secs(15 * number as i64);
            let of_window = records.iter().filter(|record| share(&record.key, windows) == number);
            let moved =
                |record: &FlowRecord| FlowRecord { window: earlier, first: earlier, last: earlier, ..record.clone() };
            agent.push(of_window.map(moved));
            agent.until_acknowledged();
        }
    }
    aggregator.until_within(OBSERVED, "all edges are observed", |aggregator| {
        let counts = counts(aggregator);
        let number = |name: &str| counts[name].as_u64().unwrap() as usize;
        (number("edges") + number("leftOutRecords") >= edges.len()).then_some(())
    });
    (aggregator, edges.len())
}

/// Which of `windows` has the records of an edge.
fn share(FlowKey { source, destination, port, .. }: &FlowKey, windows: usize) -> usize {
    let mut hasher = DefaultHasher::new();
    (source, destination, port).hash(&mut hasher);
    (hasher.finish() % windows as u64) as usize
}

fn counts(aggregator: &Provider) -> Value {
    aggregator.try_json("/v1/edges?limit=1").unwrap()["counts"].clone()
}

fn resident_kib(aggregator: &Provider) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", aggregator.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn ledger_of_many_edges_answers_queries() {
    let workloads = std::env::var("LEDGER_WORKLOADS").map_or(WORKLOADS, |text| text.parse().unwrap());
    let cluster = GeneratedCluster::with_workloads(workloads);
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("cluster.json"), cluster.manifests().to_string()).unwrap();
    let manifests = folder.path().display().to_string();
    let more =
        ["--watch-policies", "on", "--manifests", &manifests, "--edge-memory-mib", "512", "--memory-mib", "1024"];
    let (mut aggregator, edges) = serve(&cluster, &more);
    let counts = counts(&aggregator);
    assert_eq!(counts["edges"].as_u64(), Some(edges as u64), "{counts}");
    let bytes_per_edge = counts["bytes"].as_u64().unwrap() / edges as u64;
    assert!((1_024..4_096).contains(&bytes_per_edge), "{bytes_per_edge} bytes");
    aggregator.until_within(OBSERVED, "the policies are known", |aggregator| {
        (aggregator.try_json("/v1/edges?limit=1").unwrap()["policies"] == "known").then_some(())
    });
    println!("{edges} edges: {bytes_per_edge} bytes each by estimate, {} KiB resident", resident_kib(&aggregator));
    for path in [
        "/v1/edges?limit=10000",
        "/v1/edges?limit=10000&violation=yes",
        "/v1/edges?limit=10000&namespace=team-00",
        "/v1/edges/unseen",
        "/v1/edges/first-seen",
        "/v1/readiness",
        "/v1/suggestions?namespace=team-00",
    ] {
        let started = Instant::now();
        let answer = aggregator.get(path);
        let took = started.elapsed();
        println!("{path}: {} ms, {} kB", took.as_millis(), answer.body.len() / 1_000);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        // Not a measurement, but a query that is quadratic in the edges would not end in time.
        assert!(took < Duration::from_secs(30), "{path} took {took:?}");
    }
    let violations = aggregator.try_json("/v1/edges?limit=10000&violation=yes").unwrap();
    let is_denied = |edge: &Value| edge["verdicts"]["allowed"]["records"] == 0;
    assert!(violations["edges"].as_array().unwrap().iter().all(is_denied), "{violations:#}");
}

#[test]
fn full_ledger_reports_edges_left_out() {
    let cluster = GeneratedCluster::with_workloads(300);
    let (aggregator, edges) = serve(&cluster, &["--edge-memory-mib", "1"]);
    let counts = counts(&aggregator);
    let number = |name: &str| counts[name].as_u64().unwrap();
    assert!(number("bytes") <= 1 << 20, "{counts}");
    assert!(number("edges") > 300 && number("edges") < edges as u64, "{counts}");
    assert_eq!(number("edges") + number("leftOutRecords"), edges as u64, "{counts}");
    let left_out = aggregator.metric("ringfence_flows_observed_edges_left_out_records_total", &[]);
    assert_eq!(left_out, number("leftOutRecords") as f64);
    let coverage = aggregator.try_json("/v1/flows/coverage").unwrap();
    assert!(coverage["problems"].to_string().contains("--edge-memory-mib"), "{coverage:#}");
}
