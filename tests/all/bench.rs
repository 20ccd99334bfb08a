//! The benchmark measures what it reports; the sizes here are too small for meaningful times.

use std::time::Duration;

use bench::drops::{self, Size};
use bench::record::{Measurement, Record};
use bench::{cni, connections, context, curves, events, flows_load, listing, memory, mutex, packets, start, storms};
use kit::agent_process::program;

/// Number of pods, small enough to generate a cluster quickly.
const PODS: usize = 300;

/// Every figure of this subject is greater than zero.
fn assert_measured(records: &[Record], subject: &str, lines: usize) {
    let of_subject: Vec<&Record> =
        records.iter().filter(|record| record.series.split(": ").next() == Some(subject)).collect();
    assert_eq!(of_subject.len(), lines, "{subject}: {of_subject:#?}");
    assert!(of_subject.iter().all(|record| record.y > 0.0), "{subject}: {of_subject:#?}");
}

#[test]
fn the_section_of_drops_reports_every_figure() {
    let size = Size {
        rounds: 1,
        packets: 2000,
        quiet: Duration::from_millis(20),
        first_packets: 64,
        afterwards: Duration::from_millis(20),
        lasting: Duration::from_millis(50),
    };
    let report = drops::measure(&program(), size);
    println!("{report}");
    // With and without reporting, packets reach the rules, except those that a full kernel queue loses (many on a busy
    // machine).
    for line in report.lines().filter(|line| line.contains("packets that the rules dropped")) {
        let medians = line.split_once('%').expect("the unit").1.split_whitespace().step_by(2).take(2);
        let medians: Vec<f64> = medians.map(|text| text.parse().expect("a number")).collect();
        assert!(medians.len() == 2 && medians.iter().all(|median| *median > 0.0 && *median <= 100.0), "{line}");
    }
    assert_eq!(report.lines().filter(|line| line.contains("bar ")).count(), 8, "{report}");
}

#[test]
fn section_of_connections_measures_the_agent() {
    let (warmup, lasting) = (Duration::from_millis(100), Duration::from_secs(1));
    let size = connections::Size { rounds: 1, rates: vec![1_000, 5_000], warmup, lasting };
    let Measurement { report, records } = connections::measure(&program(), &size);
    println!("{report}");
    // In such a short time the agent may use less CPU time than the kernel counts.
    assert_eq!(records.len(), 2, "{records:#?}");
    assert_eq!(report.lines().filter(|line| line.contains("bar 20")).count(), 1, "{report}");
    let opened = |line: &str| line.split('|').nth(2).and_then(|cell| cell.trim().parse().ok());
    let opened: Vec<f64> = report.lines().filter_map(opened).collect();
    assert!(opened.len() == 2 && opened.iter().all(|opened| *opened > 0.0), "{report}");
}

#[test]
fn section_of_flows_load_loses_nothing_uncounted() {
    let tick = Duration::from_millis(50);
    // The benchmark compares the agents' reports with the aggregator's answers.
    let size = flows_load::Size { rounds: 1, agents: 8, pods: 40, rate: 100, history: 12, live: 2, tick };
    let Measurement { report, records } = flows_load::measure(&size);
    println!("{report}");
    assert!(records.len() == 2 && records[0].y > 0.0, "{records:#?}");
    assert_eq!(report.lines().filter(|line| line.contains("bar 300")).count(), 1, "{report}");
    // 8 agents, 14 windows of 15 s, 100 connections a second.
    assert!(
        report.lines().any(|line| line.contains("connections of /v1/flows") && line.contains("168000")),
        "{report}"
    );
}

#[test]
fn section_of_events_measures_every_event_kind() {
    let size = events::Size { pods: vec![PODS], rounds: 2, events: 5, time: Duration::from_secs(60) };
    let Measurement { report, records } = events::measure(&size);
    println!("{report}");
    // With few events on a small cluster, the events of other kinds may change nothing.
    for kind in ["remote pod added", "local pod added", "local pod removed", "policy added"] {
        for subject in ["event to kernel, median", "bare commit of the same operations, median"] {
            let found = records.iter().find(|record| record.series == format!("{subject}: {kind}"));
            assert!(found.is_some_and(|record| record.y > 0.0), "{subject}: {kind}: {records:#?}");
        }
    }
}

#[test]
fn section_of_starts_measures_parts_without_restart_commits() {
    let Measurement { report, records } = start::measure(&program(), &start::Size { pods: vec![PODS], rounds: 1 });
    println!("{report}");
    assert_measured(&records, "into force", 4);
    assert!(report.contains("commits of a start that finds the right rules, 300 pods: 0.00, bar 1: met"), "{report}");
}

#[test]
fn section_of_memory_measures_after_start_and_events() {
    let size = memory::Size { pods: vec![PODS], rounds: 2, events: 500 };
    let Measurement { report, records } = memory::measure(&program(), &size);
    println!("{report}");
    assert_measured(&records, "by size of the cluster", 2);
    assert_measured(&records, "over events", 1 + memory::POINTS);
}

#[test]
fn section_of_storms_measures_transactions_and_ends_consistent() {
    let (pods, rates, lasting) = (vec![PODS], vec![100], Duration::from_secs(1));
    let size = storms::Size { pods, rounds: 2, events: 500, rates, lasting };
    let Measurement { report, records } = storms::measure(&program(), &size);
    println!("{report}");
    assert_measured(&records, "a storm of events", 3);
    assert_measured(&records, "latency under steady events", 3);
    assert_eq!(report.matches("the rules are right").count(), 2, "{report}");
    assert!(!report.contains("not announced"), "{report}");
}

#[test]
fn curves_are_drawn_of_what_was_measured() {
    let point = |series: &str, x: f64, x_unit: &str, y: f64| Record {
        section: "events".into(),
        series: series.into(),
        x,
        x_unit: x_unit.into(),
        y,
        y_unit: "ms".into(),
        least: y / 2.0,
        most: y * 2.0,
        bar: None,
        taken: None,
    };
    let records = [
        point("event to kernel: remote pod added", 1e3, "pods", 0.25),
        point("event to kernel: remote pod added", 1e5, "pods", 0.5),
        point("event to kernel: policy added", 1e3, "pods", 2.0),
        point("memory: over events", 0.0, "events", 60.0),
        point("memory: over events", 1e6, "events", 61.0),
    ];
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("records.json");
    std::fs::write(&file, serde_json::to_string(&records).expect("records are JSON")).expect("a file");
    let drawn = curves::draw_svg(&file, folder.path()).expect("curves");
    let names: Vec<&str> = drawn.iter().filter_map(|path| path.file_name()?.to_str()).collect();
    assert_eq!(names, ["events-event-to-kernel-by-pods-in-ms.svg", "events-memory-by-events-in-ms.svg"]);
    let text = std::fs::read_to_string(&drawn[0]).expect("SVG");
    for shown in ["remote pod added", "policy added", "pods", "ms", "polyline"] {
        assert!(text.contains(shown), "{shown} is not in {text}");
    }
}

#[test]
fn section_of_packets_measures_layouts_and_places_bars() {
    let Measurement { report, records } =
        packets::measure(packets::Size { rounds: 1, slices: 1, batches: 1, divisor: 1000 });
    println!("{report}");
    let series = |end: &str| records.iter().filter(|record| record.series.ends_with(end)).count();
    // Two packets along four axes, and the first along four more; each in two sizes, or in one if the smaller is the
    // larger.
    assert!(series(": ours") >= 30 && series(": conntrack alone") >= 22, "{report}");
    // For each packet the time and its ratio, in two sizes, and for the first packet its growth.
    assert_eq!(series("linear, nftables"), 10, "{report}");
    assert!(series("linear, iptables and ipset") == 10 || report.contains("ipset: not measured"), "{report}");
    assert!(records.iter().all(|record| record.y > 0.0));
    assert_eq!(report.lines().filter(|line| line.contains("bar ")).count(), 15, "{report}");
    let at = |series: &str| -> Vec<(f64, Option<f64>)> {
        let of_series = records.iter().filter(|record| record.x_unit == "policies" && record.series == series);
        of_series.map(|record| (record.x, record.bar)).collect()
    };
    assert_eq!(at("first packet: no table"), [(1.0, None), (10.0, None)]);
    assert_eq!(at("established packet: conntrack alone"), [(1.0, None), (10.0, None)]);
    assert_eq!(at("established packet over conntrack alone: ours"), [(1.0, Some(1.055)), (10.0, Some(1.055))]);
    assert_eq!(at("first packet over conntrack alone: ours"), [(1.0, Some(1.17)), (10.0, None)]);
    assert_eq!(at("first packet over one policy: ours"), [(1.0, None), (10.0, Some(1.15))]);
}

#[test]
fn section_of_flows_reports_costs_and_losses() {
    let size = packets::flows::Size {
        packets: packets::Size { rounds: 1, slices: 1, batches: 1, divisor: 1 },
        rates: vec![500],
        lasting: Duration::from_millis(200),
        still: Duration::from_millis(50),
        expiry: Duration::ZERO,
        edge_ends: [3, 4],
    };
    let Measurement { report, records } = packets::flows::measure(&size);
    println!("{report}");
    assert_measured(&records, "established packet", 11);
    assert_measured(&records, "first packet", 11);
    assert_measured(&records, "listener", 6);
    assert_eq!(report.lines().filter(|line| line.contains("bar ")).count(), 2, "{report}");
    // These few connections fit into every buffer, so the columns of lost ones show 0.
    let scenarios: Vec<&str> = report.lines().filter(|line| line.starts_with("| 500 ")).collect();
    assert_eq!(scenarios.len(), 12, "{report}");
    for scenario in scenarios {
        let cells: Vec<&str> = scenario.split('|').map(str::trim).collect();
        let of_new = if cells[5] == "removed" { "-" } else { "0" };
        assert_eq!(cells[9..=11], [of_new, "0", "0"], "{scenario}");
    }
}

#[test]
fn section_of_profile_measures_every_evaluated_rule() {
    let size = packets::Size { rounds: 2, slices: 1, batches: 1, divisor: 1 };
    let Measurement { report, records } = packets::profile::measure(size);
    println!("{report}");
    let of = |series: &str| records.iter().filter(|record| record.series == series).count();
    // Two records: the empty chain and the approval. The source check is at another hook.
    assert_eq!(of("established packet: ours"), 2, "{report}");
    assert_eq!(of("established packet: ours, --source-check off"), 2, "{report}");
    assert!(of("first packet: ours") > of("established packet: ours"), "{report}");
    assert!(records.iter().all(|record| record.y > 0.0), "{report}");
}

#[test]
fn the_section_of_listing_reports_every_size() {
    let Measurement { report, records } = listing::measure(&listing::Size { rounds: 1, elements: vec![10, 300] });
    println!("{report}");
    assert_eq!(records.len(), 6, "{report}");
}

#[test]
fn the_section_of_the_mutex_reports_every_way() {
    let Measurement { report, records } = mutex::measure(mutex::Size { rounds: 1, elements: 3000, programs: 10 });
    println!("{report}");
    assert_eq!(records.len(), 20, "{report}");
}

#[test]
fn the_section_of_cni_reports_both_chains() {
    let size = cni::Size { rounds: 1, containers: 3, starts: 2, pods: PODS };
    let Measurement { report, records } = cni::measure(&program(), size);
    println!("{report}");
    // Seven lines with median and 99th percentile, for a small cluster and a larger one.
    assert_eq!(records.len(), 28, "{report}");
}

#[test]
fn section_of_context_measures_baselines_events_and_subscribers() {
    let size = context::Size {
        pods: vec![PODS],
        rounds: 2,
        events: 5,
        subscribers: 50,
        silent: 5,
        deltas: 2,
        steady: 20,
        storm: 500,
    };
    let Measurement { report, records } = context::measure(&size);
    println!("{report}");
    assert_measured(&records, "baseline", 2);
    assert_measured(&records, "one event, median", 11);
    assert_measured(&records, "size of the database", 2);
    assert_measured(&records, "a delta on its way", 1);
    assert_measured(&records, "a change amid 100 events per second", 2);
    assert!(report.contains("330 addresses"), "{report}");
}
