//! Time to list a large table: for a person with `nft list`, and for the agent, which dumps it and compares it with the
//! expected rules.

use std::time::Instant;

use nfnetlink::{Kernel, repair};

use super::figures::{Figure, median_of};
use super::packets::ours::Cluster;
use super::record::{Measurement, Record};
use super::table::MarkdownTable;
use kit::kernel_table::{load_netlink, nft};
use kit::netns::in_new_namespace;

/// Parameters of the measurement.
#[derive(Debug, Clone)]
pub struct Size {
    pub rounds: usize,
    /// Addresses in the largest set of each table.
    pub elements: Vec<u32>,
}

impl Size {
    /// The parameters of `docs/performance.md`.
    pub fn of_rounds(rounds: usize) -> Size {
        Size { rounds, elements: vec![1000, 10_000, 100_000] }
    }
}

const UNIT: &str = "ms";

/// Milliseconds of each run.
#[derive(Default)]
struct Times {
    nft: Vec<f64>,
    read: Vec<f64>,
    compared: Vec<f64>,
}

/// Measures, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(size: &Size) -> Measurement {
    let mut records = Vec::new();
    let mut table = MarkdownTable::new([
        "elements",
        "`nft list table inet ringfence`",
        "read back",
        "compared with what is wanted",
    ]);
    for &elements in &size.elements {
        let Times { nft, read, compared } = times(elements, size.rounds);
        let figures = [Figure::of(nft), Figure::of(read), Figure::of(compared)];
        table.row(std::iter::once(elements.to_string()).chain(figures.iter().map(Figure::short)));
        for (line, figure) in ["nft list table", "read back", "compared"].iter().zip(&figures) {
            let x = (f64::from(elements), "elements");
            records.push(Record::new("listing", ("looking at the table", line), x, (figure, UNIT)));
        }
    }
    let report = format!("\nlisting: ms, {}\n\n{table}", median_of(size.rounds));
    Measurement { report, records }
}

fn times(elements: u32, rounds: usize) -> Times {
    let ruleset = Cluster { peer_addresses: elements, ..Cluster::SMALLEST }.ruleset("ringfence");
    in_new_namespace(|| {
        load_netlink(&ruleset);
        let mut kernel = Kernel::open().expect("nf_tables");
        let mut times = Times::default();
        for _ in 0..rounds {
            let begun = Instant::now();
            let text = nft("list table inet ringfence");
            times.nft.push(milliseconds(begun));
            assert!(text.len() as u32 > elements, "nft lists less than there is");
            let begun = Instant::now();
            let observed = kernel.read(&ruleset.table).expect("the table can be read");
            times.read.push(milliseconds(begun));
            let begun = Instant::now();
            let operations = repair(observed.as_ref(), &ruleset);
            times.compared.push(milliseconds(begun));
            assert_eq!(operations, [], "what was just committed differs");
        }
        times
    })
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
