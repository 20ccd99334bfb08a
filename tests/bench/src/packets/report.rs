//! The figures as tables and records, and whether the bars are met.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::Size;
use super::series::{CLUSTER_POLICIES, POLICIES, Packet, Point, RuleLayout, Series};
use crate::figures::{Bar, Figure, median_of};
use crate::record::{Measurement, Record};
use crate::table::MarkdownTable;

/// Limit of an established packet's ratio to conntrack alone.
fn established_below(line: RuleLayout) -> f64 {
    if line == RuleLayout::OursUnchecked { 1.035 } else { 1.055 }
}

/// Limit of a first packet's ratio to conntrack alone, with one policy.
fn first_below(line: RuleLayout) -> f64 {
    if line == RuleLayout::OursUnchecked { 1.15 } else { 1.17 }
}

/// Limit of the ratio between the most policies and one policy.
const GROWTH_BELOW: f64 = 1.15;

/// Limit of the ratio between this number of cluster policies and one.
fn cluster_growth_below(policies: u32) -> f64 {
    if policies <= 100 { 1.25 } else { 1.5 }
}

const SECTION: &str = "packets";
const UNIT: &str = "ns";

pub(super) fn of(size: Size, all: &[Series]) -> Measurement {
    let mut report = format!("\npackets: {}\n\nby policies\n\n{}", how(size), by_policies(all));
    for series in all {
        for (line, reason) in &series.missing {
            writeln!(report, "{}, {line}: not measured, {reason}", series.packet).expect("a String takes all");
        }
    }
    write!(report, "\nours, by what else could make it longer\n\n{}", by_others(all)).expect("a String takes all");
    let mut bars = String::new();
    all.iter().try_for_each(|series| write_bars(&mut bars, series)).expect("a String takes all");
    write!(report, "\nbars\n{bars}").expect("a String takes all");
    Measurement { report, records: all.iter().flat_map(records).collect() }
}

/// The method of measuring packets, for a report.
pub(super) fn how(size: Size) -> String {
    let Size { rounds, slices, batches, divisor: _ } = size;
    format!(
        "ns a packet on one processor, from the sender's system call to the receiver's; {} of {slices} \
         turns of {batches} batches of 64 packets each; ratios are taken in one run",
        median_of(rounds)
    )
}

fn records(series: &Series) -> Vec<Record> {
    let places: BTreeSet<u32> = series.runs.keys().map(|(_, x)| *x).filter(|x| *x > 0).collect();
    let of_point = |point: Point| {
        let own = BTreeSet::from([point.1]);
        // A value that is independent of the axis becomes a constant line.
        let at = if point.1 == 0 { &places } else { &own };
        at.iter().flat_map(|x| of_point(series, point, *x)).collect::<Vec<Record>>()
    };
    series.runs.keys().copied().flat_map(of_point).collect()
}

/// Records of the packet's time, its difference to conntrack alone, and to one policy.
fn of_point(series: &Series, point: Point, x: u32) -> Vec<Record> {
    let line = point.0;
    let (packet, line_name, at) = (series.packet.to_string(), line.to_string(), (f64::from(x), series.unit));
    let (smallest, largest) = ends(series, line);
    let record =
        |subject: &str, figure: &Figure, unit: &str| Record::new(SECTION, (subject, &line_name), at, (figure, unit));
    let absolute = record(&packet, &series.figure(point), UNIT);
    let over = series.ratio(point, reference(series, point.1));
    let relative = record(&format!("{packet} over conntrack alone"), &over, "times");
    let grown = || record(&format!("{packet} over one policy"), &series.ratio(point, smallest), "times");
    let is_ours = match line {
        RuleLayout::Ours | RuleLayout::OursUnchecked => true,
        RuleLayout::Nothing
        | RuleLayout::Conntrack
        | RuleLayout::CutOff
        | RuleLayout::LinearNft
        | RuleLayout::LinearIptables => false,
    };
    match series.packet {
        Packet::Established if is_ours => vec![absolute, relative.below(established_below(line))],
        Packet::First if series.unit == POLICIES && point.1 > 0 => {
            let relative = if is_ours && point == smallest { relative.below(first_below(line)) } else { relative };
            let grown = if is_ours && point == largest { grown().below(GROWTH_BELOW) } else { grown() };
            vec![absolute, relative, grown]
        }
        Packet::Established | Packet::First => vec![absolute, relative],
    }
}

/// Every layout, with both packets.
fn by_policies(all: &[Series]) -> MarkdownTable {
    let of = |packet| all.iter().find(|series| series.unit == POLICIES && series.packet == packet);
    let both = [of(Packet::Established), of(Packet::First)];
    let head = [
        "",
        "established, ns",
        "over conntrack alone",
        "first packet, ns",
        "over conntrack alone",
        "over the line's first",
    ];
    let mut table = MarkdownTable::new(head);
    let points: BTreeSet<Point> = both.iter().flatten().flat_map(|series| series.runs.keys().copied()).collect();
    for point in points {
        let (line, x) = point;
        let mut row = vec![if x == 0 { line.to_string() } else { format!("{line}, {x}") }];
        let measured = both.map(|series| series.filter(|series| series.runs.contains_key(&point)));
        for series in measured {
            row.extend(series.map_or(["-".into(), "-".into()], |series| figures(series, point)));
        }
        let growth = measured[1].map(|series| series.ratio(point, ends(series, line).0).median());
        row.push(growth.map_or("-".into(), |growth| format!("{growth:.3}")));
        table.row(row);
    }
    table
}

/// Our layout, along all other axes.
fn by_others(all: &[Series]) -> MarkdownTable {
    let head = ["", "first packet, ns", "over conntrack alone", "ns more", "established, ns", "over conntrack alone"];
    let mut table = MarkdownTable::new(head);
    for series in all.iter().filter(|series| series.unit != POLICIES && series.packet == Packet::First) {
        let established = all.iter().find(|s| s.unit == series.unit && s.packet == Packet::Established);
        for point in series.runs.keys().copied().filter(|point| point.0 == RuleLayout::Ours) {
            let more = series.figure(point).median() - series.figure(reference(series, point.1)).median();
            let [first, over] = figures(series, point);
            let mut row = vec![format!("{} {}", point.1, series.unit), first, over, format!("{more:.0}")];
            row.extend(established.map_or(["-".into(), "-".into()], |series| figures(series, point)));
            table.row(row);
        }
    }
    table
}

/// Nanoseconds, and the ratio to conntrack alone.
fn figures(series: &Series, point: Point) -> [String; 2] {
    let over = series.ratio(point, reference(series, point.1));
    [format!("{:.0}", series.figure(point)), format!("{over:.3}")]
}

/// Conntrack alone, with the same traffic.
fn reference(series: &Series, x: u32) -> Point {
    let same = (RuleLayout::Conntrack, x);
    if series.runs.contains_key(&same) { same } else { (RuleLayout::Conntrack, 0) }
}

/// The first and the last point of a line.
fn ends(series: &Series, line: RuleLayout) -> (Point, Point) {
    let mut points = series.runs.keys().copied().filter(|point| point.0 == line);
    let first = points.next().expect("a point of the line");
    (first, points.next_back().unwrap_or(first))
}

fn write_bars(f: &mut String, series: &Series) -> std::fmt::Result {
    let Series { packet: subject, unit, .. } = series;
    let mut bar =
        |what: String, figure: f64, below: f64| writeln!(f, "  {subject}, {what}: {:.3}", Bar { figure, below });
    for line in [RuleLayout::Ours, RuleLayout::OursUnchecked] {
        if !series.runs.keys().any(|point| point.0 == line) {
            continue;
        }
        let (smallest, largest) = ends(series, line);
        let over_alone = |point: Point| series.ratio(point, reference(series, point.1)).median();
        match series.packet {
            Packet::Established => {
                for point in [smallest, largest] {
                    let what = format!("{line}, {} {unit}, over conntrack alone", point.1);
                    bar(what, over_alone(point), established_below(line))?;
                }
            }
            // The other axes have no bar; their growth is in the tables.
            Packet::First if *unit == POLICIES => {
                let what = format!("{line}, {} {unit}, over conntrack alone", smallest.1);
                bar(what, over_alone(smallest), first_below(line))?;
                let growth = series.ratio(largest, smallest).median();
                bar(format!("{line}, {} {unit} over {}", largest.1, smallest.1), growth, GROWTH_BELOW)?;
            }
            Packet::First if *unit == CLUSTER_POLICIES => {
                for point in series.runs.keys().copied().filter(|point| point.0 == line && *point != smallest) {
                    let growth = series.ratio(point, smallest).median();
                    bar(
                        format!("{line}, {} {unit} over {}", point.1, smallest.1),
                        growth,
                        cluster_growth_below(point.1),
                    )?;
                }
            }
            Packet::First => {}
        }
    }
    Ok(())
}
