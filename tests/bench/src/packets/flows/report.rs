//! The figures as tables and records, and whether the bars are met.

use std::fmt::Write;

use nfnetlink::Subscription;

use super::super::report::how;
use super::Size;
use super::cost::{Cost, TrackingConfig};
use super::edges::Edges;
use super::listener::Setup;
use super::run::{Run, Scenario};
use crate::figures::{Bar, Figure, median_of};
use crate::record::{Measurement, Record};
use crate::table::MarkdownTable;

/// Limits of the ratio between flow records and the same rules without accounting and events.
const ESTABLISHED_BELOW: f64 = 1.02;
const FIRST_BELOW: f64 = 1.10;

const SECTION: &str = "flows";

pub(super) fn of(size: &Size, costs: &[Vec<Cost>], edges: &Edges, runs: &[(Scenario, Vec<Run>)]) -> Measurement {
    let rounds = size.packets.rounds;
    let mut report = format!("\nflows: {}\n\naccounting and events, our rules with one policy\n\n", how(size.packets));
    write!(report, "{}\nbars\n{}", cost_table(costs), bars(costs)).expect("a String takes all");
    write!(report, "\n{} edges in a dynamic set with counters\n\n{}", edges.edges, edge_table(edges))
        .expect("a String takes all");
    write!(
        report,
        "\na listener at so many connections a second of one packet each, for {} s; {}\n\n{}",
        size.lasting.as_secs_f64(),
        median_of(rounds),
        run_table(runs)
    )
    .expect("a String takes all");
    let removed: u32 = runs.iter().flat_map(|(_, runs)| runs).map(|run| run.removed).sum();
    if removed > 0 {
        writeln!(report, "\n{removed} entries of all runs did not expire in time and were removed at once")
            .expect("a String takes all");
    }
    Measurement { report, records: records(costs, runs) }
}

fn over(own: &[f64], off: &[f64]) -> Figure {
    Figure::of(own.iter().zip(off).map(|(own, off)| own / off))
}

fn figure(runs: &[f64]) -> Figure {
    Figure::of(runs.iter().copied())
}

/// Each cost with its reference: the configuration of its group without accounting and events.
fn compared(groups: &[Vec<Cost>]) -> impl Iterator<Item = (&Cost, &Cost)> {
    groups.iter().flat_map(|group| group.iter().map(|cost| (cost, &group[0])))
}

fn cost_table(groups: &[Vec<Cost>]) -> MarkdownTable {
    let over_off = "over no accounting and no events";
    let mut table = MarkdownTable::new(["established, ns", over_off, "first packet, ns", over_off, "with"]);
    for (cost, off) in compared(groups) {
        let shown = |own: &[f64], off: &[f64]| [format!("{:.0}", figure(own)), format!("{:.3}", over(own, off))];
        let [established, established_over] = shown(&cost.established, &off.established);
        let [first, first_over] = shown(&cost.first, &off.first);
        table.row([established, established_over, first, first_over, with(cost, groups)]);
    }
    table
}

/// The configuration, and whether the second group's listeners for NEW events were open.
fn with(cost: &Cost, groups: &[Vec<Cost>]) -> String {
    let is_beside = groups.iter().skip(1).flatten().any(|beside| std::ptr::eq(beside, cost));
    let beside = if is_beside { ", beside listeners to new entries in other namespaces" } else { "" };
    format!("{}{beside}", cost.tracking)
}

fn bars(groups: &[Vec<Cost>]) -> String {
    let mut bars = String::new();
    let (records, off) =
        compared(groups).find(|(cost, _)| cost.tracking == TrackingConfig::RECORDS).expect("it was measured");
    for (packet, own, off, below) in [
        ("established packet", &records.established, &off.established, ESTABLISHED_BELOW),
        ("first packet", &records.first, &off.first, FIRST_BELOW),
    ] {
        let bar = Bar { figure: over(own, off).median(), below };
        writeln!(bars, "  {packet}, {}, over neither: {bar:.3}", records.tracking).expect("a String takes all");
    }
    bars
}

fn edge_table(edges: &Edges) -> MarkdownTable {
    let mut table = MarkdownTable::new(["first packet, ns", "over the first row", "the kernel's memory, MB", "set"]);
    let Edges { edges: _, without, known, unknown, empty_bytes, full_bytes } = edges;
    let megabytes = |bytes: &[f64]| format!("{:.1}", Figure::of(bytes.iter().map(|bytes| bytes / 1e6)));
    for (runs, memory, which) in [
        (without, "-".to_owned(), "none"),
        (unknown, megabytes(empty_bytes), "empty at the beginning of each turn: each packet brings an edge"),
        (known, megabytes(full_bytes), "full: each packet counts for an edge"),
    ] {
        let cells = [format!("{:.0}", figure(runs)), format!("{:.3}", over(runs, without)), memory, which.to_owned()];
        table.row(cells);
    }
    table
}

/// Percent of a processor.
fn processor(run: &Run) -> f64 {
    // The listener stops after the last entry has expired.
    100.0 * run.received.processor.as_secs_f64() / run.took.as_secs_f64()
}

fn run_table(runs: &[(Scenario, Vec<Run>)]) -> MarkdownTable {
    let head = [
        "asked",
        "opened a second",
        "buffer, MiB",
        "reliable",
        "events",
        "reads",
        "stands still, s",
        "% of a processor",
        "new lost, %",
        "destroyed lost, %",
        "losses reported",
        "entries when it goes on",
        "most entries",
        "s until none is left",
    ];
    let mut table = MarkdownTable::new(head);
    for (scenario, runs) in runs {
        let shown = |value: &dyn Fn(&Run) -> f64| Figure::of(runs.iter().map(value)).short();
        let lost = |received: u64, run: &Run| 100.0 * (1.0 - received as f64 / run.connections as f64);
        let still = Figure::of_any(runs.iter().filter_map(|run| run.entries_still).map(f64::from));
        table.row([
            scenario.rate.to_string(),
            shown(&|run| run.connections as f64 / run.took.as_secs_f64()),
            scenario.listener.mebibytes.to_string(),
            if scenario.listener.reliable { "yes".to_owned() } else { "no".to_owned() },
            match scenario.listener.subscription {
                Subscription::All => "new and removed".to_owned(),
                Subscription::Removed => "removed".to_owned(),
            },
            scenario.listener.reads.to_string(),
            if scenario.still.is_zero() { "-".to_owned() } else { scenario.still.as_secs_f64().to_string() },
            shown(&processor),
            match scenario.listener.subscription {
                Subscription::All => shown(&|run| lost(run.received.new, run)),
                Subscription::Removed => "-".to_owned(),
            },
            shown(&|run| lost(run.received.destroyed, run)),
            shown(&|run| run.received.losses as f64),
            still.map_or("-".into(), |figure| figure.short()),
            shown(&|run| f64::from(run.most_entries)),
            shown(&|run| run.emptied.as_secs_f64()),
        ]);
    }
    table
}

fn records(costs: &[Vec<Cost>], runs: &[(Scenario, Vec<Run>)]) -> Vec<Record> {
    let mut records = Vec::new();
    for (x, (cost, off)) in compared(costs).enumerate() {
        let (line, at) = (with(cost, costs), (x as f64, "way to use connection tracking"));
        for (packet, own, off) in
            [("established packet", &cost.established, &off.established), ("first packet", &cost.first, &off.first)]
        {
            records.push(Record::new(SECTION, (packet, &line), at, (&figure(own), "ns")));
            let subject = format!("{packet} over neither accounting nor events");
            records.push(Record::new(SECTION, (&subject, &line), at, (&over(own, off), "times")));
        }
    }
    for (scenario, runs) in runs.iter().filter(|(scenario, _)| scenario.still.is_zero()) {
        let Setup { subscription, mebibytes, reliable, reads } = scenario.listener;
        let events = match subscription {
            Subscription::All => "",
            Subscription::Removed => "removed entries, ",
        };
        let line = format!("{events}{mebibytes} MiB{}, reads {reads}", if reliable { ", reliable" } else { "" });
        let figure = Figure::of(runs.iter().map(processor));
        let at = (f64::from(scenario.rate), "connections a second");
        records.push(Record::new(SECTION, ("listener", &line), at, (&figure, "% of a processor")));
    }
    records
}
