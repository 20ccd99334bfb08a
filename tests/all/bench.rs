//! The benchmark measures what it says, in a size that tells nothing of time.

use std::time::Duration;

use tests::agent_process::program;
use tests::bench::drops::{Size, measure};

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
