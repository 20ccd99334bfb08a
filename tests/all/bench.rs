//! The benchmark measures what it says, in a size that tells nothing of time.

use std::time::Duration;

use tests::agent_process::program;
use tests::bench::drops::{Size, measure};
use tests::bench::record::Measured;
use tests::bench::{cni, listing, mutex, packets};

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
    let report = measure(&program(), size);
    println!("{report}");
    // With reporting and without it the packets reach the rules, but for some that a full queue of the kernel lost.
    for line in report.lines().filter(|line| line.contains("packets that the rules dropped")) {
        let medians = line.split_once('%').expect("the unit").1.split_whitespace().step_by(2).take(2);
        let medians: Vec<f64> = medians.map(|text| text.parse().expect("a number")).collect();
        assert!(medians.len() == 2 && medians.iter().all(|median| (50.0..=100.0).contains(median)), "{line}");
    }
    assert_eq!(report.lines().filter(|line| line.contains("bar ")).count(), 8, "{report}");
}

#[test]
fn the_section_of_packets_measures_every_layout() {
    let Measured { report, records } =
        packets::measure(packets::Size { rounds: 1, slices: 1, batches: 1, divisor: 1000 });
    println!("{report}");
    let series = |end: &str| records.iter().filter(|record| record.series.ends_with(end)).count();
    // Two packets by three axes, and the first by three more; each in two sizes, or in one if the smaller is the larger.
    assert!(series(": ours") >= 30 && series(": conntrack alone") >= 22, "{report}");
    assert_eq!(series("linear, nftables"), 8, "{report}");
    assert!(series("linear, iptables and ipset") == 8 || report.contains("ipset: not measured"), "{report}");
    assert!(records.iter().all(|record| record.y > 0.0));
    assert_eq!(report.lines().filter(|line| line.contains("bar ")).count(), 12, "{report}");
}

#[test]
fn the_section_of_listing_reports_every_size() {
    let Measured { report, records } = listing::measure(&listing::Size { rounds: 1, elements: vec![10, 300] });
    println!("{report}");
    assert_eq!(records.len(), 6, "{report}");
}

#[test]
fn the_section_of_the_mutex_reports_every_way() {
    let Measured { report, records } = mutex::measure(mutex::Size { rounds: 1, elements: 3000, programs: 10 });
    println!("{report}");
    assert_eq!(records.len(), 20, "{report}");
}

#[test]
fn the_section_of_cni_reports_both_chains() {
    let Measured { report, records } = cni::measure(&program(), cni::Size { rounds: 1, containers: 3, starts: 2 });
    println!("{report}");
    assert_eq!(records.len(), 12, "{report}");
}
