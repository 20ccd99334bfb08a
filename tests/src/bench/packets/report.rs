//! The figures as tables and records, and whether the bars are met.

use std::fmt::Write;

use super::Size;
use super::series::{Line, POLICIES, Packet, Point, Series};
use crate::bench::figures::Bar;
use crate::bench::record::{Measured, Record};

/// An established flow's packet, over what connection tracking alone takes.
const ESTABLISHED_BELOW: f64 = 1.03;
/// A flow's first packet with one policy, over what connection tracking alone takes.
const FIRST_BELOW: f64 = 1.15;
/// The same with the most policies, over one policy.
const GROWTH_BELOW: f64 = 1.15;

const SECTION: &str = "packets";
const UNIT: &str = "ns";

pub(super) fn of(size: Size, all: &[Series]) -> Measured {
    let mut report = format!(
        "\npackets: {} runs of {} turns of {} batches of 64 packets each; ns a packet on one processor, from the \
         sender's system call to the receiver's\n",
        size.rounds, size.slices, size.batches
    );
    let (mut records, mut bars) = (Vec::new(), String::new());
    for series in all {
        table(&mut report, series).and_then(|()| write_bars(&mut bars, series)).expect("a String takes all");
        for point in series.runs.keys().filter(|(_, x)| *x > 0) {
            records.extend(of_point(series, *point));
        }
    }
    report.push_str("bars\n");
    report.push_str(&bars);
    Measured { report, records }
}

/// What the packet takes, and by how much that is more than with connection tracking alone.
fn of_point(series: &Series, point: Point) -> [Record; 2] {
    let (line, x) = point;
    let (packet, line_name, at) = (series.packet.to_string(), line.to_string(), (f64::from(x), series.unit));
    let over = series.ratio(point, reference(series, x));
    let absolute = Record::new(SECTION, (&packet, &line_name), at, (&series.figure(point), UNIT));
    let subject = format!("{packet} over conntrack alone");
    let relative = Record::new(SECTION, (&subject, &line_name), at, (&over, "times"));
    let relative = match (series.packet, line) {
        (Packet::Established, Line::Ours | Line::OursUnchecked) => relative.below(ESTABLISHED_BELOW),
        (Packet::First, Line::Ours | Line::OursUnchecked) if series.unit == POLICIES => relative.below(FIRST_BELOW),
        (
            Packet::Established | Packet::First,
            Line::Nothing | Line::Conntrack | Line::Ours | Line::OursUnchecked | Line::LinearNft | Line::LinearIptables,
        ) => relative,
    };
    [absolute, relative]
}

fn table(f: &mut String, series: &Series) -> std::fmt::Result {
    let Series { packet: subject, unit, .. } = series;
    writeln!(f, "{subject} by {unit}")?;
    let head = ["median (least-most)", "ns", "over conntrack alone", "ns more", "over the line's first"];
    writeln!(f, "  {:<38} {:<24} {:<22} {:>7}  {}", head[0], head[1], head[2], head[3], head[4])?;
    for &point in series.runs.keys() {
        let (line, x) = point;
        let name = if x == 0 { line.to_string() } else { format!("{line}, {x}") };
        let (figure, alone) = (series.figure(point), series.figure(reference(series, x)));
        let shown = format!("{figure:.0}");
        let over = format!("{:.3}", series.ratio(point, reference(series, x)));
        let more = figure.median() - alone.median();
        let growth = series.ratio(point, first(series, line)).median();
        writeln!(f, "  {name:<38} {shown:<24} {over:<22} {more:>7.0}  {growth:.3}")?;
    }
    series.missing.iter().try_for_each(|(line, reason)| writeln!(f, "  {line}: not measured, {reason}"))
}

/// Connection tracking alone, of the same traffic.
fn reference(series: &Series, x: u32) -> Point {
    let same = (Line::Conntrack, x);
    if series.runs.contains_key(&same) { same } else { (Line::Conntrack, 0) }
}

fn first(series: &Series, line: Line) -> Point {
    *series.runs.keys().find(|point| point.0 == line).expect("a point of the line")
}

fn write_bars(f: &mut String, series: &Series) -> std::fmt::Result {
    let Series { packet: subject, unit, .. } = series;
    let mut bar =
        |what: String, figure: f64, below: f64| writeln!(f, "  {subject}, {what}: {:.3}", Bar { figure, below });
    for line in [Line::Ours, Line::OursUnchecked] {
        let points: Vec<Point> = series.runs.keys().copied().filter(|point| point.0 == line).collect();
        let (Some(&smallest), Some(&largest)) = (points.first(), points.last()) else { continue };
        let over_alone = |point: Point| series.ratio(point, reference(series, point.1)).median();
        match series.packet {
            Packet::Established => {
                for point in [smallest, largest] {
                    let what = format!("{line}, {} {unit}, over conntrack alone", point.1);
                    bar(what, over_alone(point), ESTABLISHED_BELOW)?;
                }
            }
            // The other axes have no bar; how they grow stands in the tables.
            Packet::First if *unit == POLICIES => {
                let what = format!("{line}, {} {unit}, over conntrack alone", smallest.1);
                bar(what, over_alone(smallest), FIRST_BELOW)?;
                let growth = series.ratio(largest, smallest).median();
                bar(format!("{line}, {} {unit} over {}", largest.1, smallest.1), growth, GROWTH_BELOW)?;
            }
            Packet::First => {}
        }
    }
    Ok(())
}
