//! One chart: curves over two axes, with their labels.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;

use super::super::record::Record;

pub(super) struct Chart {
    pub(super) title: String,
    pub(super) x_unit: String,
    pub(super) y_unit: String,
    /// Each ordered by its points.
    pub(super) lines: BTreeMap<String, Vec<Record>>,
}

const WIDTH: u32 = 1000;
const HEIGHT: u32 = 520;
/// Where the curves end and their names begin.
const NAMES_FROM: u32 = 640;

/// Colours of the curves, distinguishable on white by most people with colour blindness too.
const COLOURS: [RGBColor; 10] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 80, 40),
    RGBColor(100, 100, 100),
    RGBColor(148, 103, 189),
    RGBColor(150, 150, 0),
];

const BAR: RGBColor = RGBColor(60, 60, 60);

/// A logarithmic axis shows a tenth of the minimum and not more than the data.
const NEXT_ON_LOG_AXIS: f64 = 1.6;

/// Figures with a larger ratio than this are drawn on a logarithmic axis.
const LOG_FROM: f64 = 50.0;

impl Chart {
    pub(super) fn draw(&self, path: &Path) -> anyhow::Result<()> {
        let area = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
        let drawn = area.fill(&WHITE).map_err(|e| e.to_string()).and_then(|()| self.draw_on(&area));
        drawn.and_then(|()| area.present().map_err(|e| e.to_string())).map_err(anyhow::Error::msg)
    }

    fn points(&self) -> impl Iterator<Item = &Record> {
        self.lines.values().flatten()
    }

    fn draw_on(&self, area: &Area<'_>) -> Result<(), String> {
        let (left, right) = area.split_horizontally(NAMES_FROM);
        let x = range(self.points().map(|point| point.x));
        let heights = |point: &Record| [point.y, point.least, point.most].into_iter().chain(point.bar);
        let y = range(self.points().flat_map(heights));
        // A logarithmic axis cannot start at 0, and has hardly any labels for a range of less than two decades.
        match (x.start > 0.0, y.start > 0.0 && y.end / y.start > LOG_FROM) {
            (true, true) => self.draw_curves(&left, widened(&x).log_scale(), widened(&y).log_scale())?,
            (true, false) => self.draw_curves(&left, widened(&x).log_scale(), from_nothing(&y))?,
            (false, _) => self.draw_curves(&left, from_nothing(&x), from_nothing(&y))?,
        }
        self.draw_names(&right).map_err(|e| e.to_string())
    }

    fn draw_curves<X, Y>(&self, area: &Area<'_>, x: X, y: Y) -> Result<(), String>
    where
        X: AsRangedCoord<Value = f64>,
        Y: AsRangedCoord<Value = f64>,
        X::CoordDescType: ValueFormatter<f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let failed = |e: &dyn std::fmt::Display| e.to_string();
        let mut builder = ChartBuilder::on(area);
        builder.caption(&self.title, ("sans-serif", 20)).margin(14).x_label_area_size(44).y_label_area_size(64);
        let mut chart = builder.build_cartesian_2d(x, y).map_err(|e| failed(&e))?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(&*self.x_unit).y_desc(&*self.y_unit).label_style(("sans-serif", 13));
        mesh.light_line_style(RGBColor(240, 240, 240)).bold_line_style(RGBColor(215, 215, 215));
        mesh.x_label_formatter(&|x| short(*x)).y_label_formatter(&|y| short(*y)).draw().map_err(|e| failed(&e))?;
        for (line, colour) in self.lines.values().zip(COLOURS.iter().cycle()) {
            let points: Vec<(f64, f64)> = line.iter().map(|point| (point.x, point.y)).collect();
            let curve = LineSeries::new(points.clone(), colour.stroke_width(2));
            chart.draw_series(curve).map_err(|e| failed(&e))?;
            let dots = points.into_iter().map(|point| Circle::new(point, 3, colour.filled()));
            chart.draw_series(dots).map_err(|e| failed(&e))?;
            let spreads = line.iter().filter(|point| point.least < point.most);
            let spread =
                |point: &Record| PathElement::new([(point.x, point.least), (point.x, point.most)], colour.mix(0.6));
            chart.draw_series(spreads.map(spread)).map_err(|e| failed(&e))?;
        }
        let bars = self.points().filter_map(|point| Some((point.x, point.bar?)));
        chart.draw_series(bars.map(|place| Cross::new(place, 6, BAR.stroke_width(2)))).map_err(|e| failed(&e))?;
        Ok(())
    }

    /// The names beside the curves, ordered by where the curves end.
    fn draw_names(&self, area: &Area<'_>) -> Result<(), DrawingAreaErrorKind<std::io::Error>> {
        const LINE: i32 = 24;
        const FIRST: i32 = 60;
        let ends_at = |line: &[Record]| line.last().map_or(0.0, |point| point.y);
        let mut names: Vec<_> = self.lines.iter().zip(COLOURS.iter().cycle()).collect();
        names.sort_by(|((_, a), _), ((_, b), _)| ends_at(b).total_cmp(&ends_at(a)));
        for (row, ((name, _), colour)) in (0..).zip(names) {
            let y = FIRST + LINE * row;
            area.draw(&PathElement::new([(4, y), (26, y)], colour.stroke_width(2)))?;
            area.draw(&Circle::new((15, y), 3, colour.filled()))?;
            area.draw(&Text::new(name.clone(), (34, y - 7), ("sans-serif", 14)))?;
        }
        if self.points().any(|point| point.bar.is_some()) {
            let y = FIRST + LINE * self.lines.len() as i32;
            area.draw(&Cross::new((15, y), 6, BAR.stroke_width(2)))?;
            area.draw(&Text::new("to stay below", (34, y - 7), ("sans-serif", 14)))?;
        }
        Ok(())
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn range(numbers: impl Iterator<Item = f64>) -> Range<f64> {
    let (least, most) =
        numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), n| (least.min(n), most.max(n)));
    least..most
}

fn widened(range: &Range<f64>) -> Range<f64> {
    range.start / NEXT_ON_LOG_AXIS..range.end * NEXT_ON_LOG_AXIS
}

fn from_nothing(range: &Range<f64>) -> Range<f64> {
    range.start.min(0.0)..(range.end * 1.1).max(f64::MIN_POSITIVE)
}

/// The number in a form that fits an axis.
fn short(number: f64) -> String {
    match number.abs() {
        n if n >= 1e6 => format!("{}M", trimmed(number / 1e6)),
        n if n >= 1e3 => format!("{}k", trimmed(number / 1e3)),
        _ => trimmed(number),
    }
}

fn trimmed(number: f64) -> String {
    let text = format!("{number:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_on_axes_are_short() {
        assert_eq!([0.0, 0.05, 20.0, 1_500.0, 1e6].map(short), ["0", "0.05", "20", "1.5k", "1M"]);
    }
}
