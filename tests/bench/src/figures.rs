//! Figures of several runs, and how they compare.

use std::fmt;

/// One figure, measured several times.
#[derive(Debug, Clone)]
pub(super) struct Figure(Vec<f64>);

impl Figure {
    /// # Panics
    /// If there are no runs, or a run is not a number.
    pub(super) fn of(runs: impl IntoIterator<Item = f64>) -> Figure {
        let mut runs: Vec<f64> = runs.into_iter().collect();
        assert!(!runs.is_empty() && runs.iter().all(|run| run.is_finite()), "{runs:?}");
        runs.sort_by(f64::total_cmp);
        Figure(runs)
    }

    /// `None` without runs.
    ///
    /// # Panics
    /// If a run is not a number.
    pub(super) fn of_any(runs: impl IntoIterator<Item = f64>) -> Option<Figure> {
        let mut runs = runs.into_iter().peekable();
        runs.peek()?;
        Some(Figure::of(runs))
    }

    pub(super) fn median(&self) -> f64 {
        let (runs, middle) = (&self.0, self.0.len() / 2);
        if runs.len() % 2 == 1 { runs[middle] } else { f64::midpoint(runs[middle - 1], runs[middle]) }
    }

    pub(super) fn least(&self) -> f64 {
        self.0[0]
    }

    pub(super) fn most(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    /// At least two digits, and one decimal below 100; minimum and maximum only where they differ from the median.
    pub(super) fn short(&self) -> String {
        let digits = match self.median() {
            median if median >= 100.0 || median == 0.0 => 0,
            median => (1.0 - median.log10().floor()).max(1.0) as usize,
        };
        let [median, least, most] = [self.median(), self.least(), self.most()].map(|n| format!("{n:.digits$}"));
        if least == median && most == median { median } else { format!("{median} ({least}-{most})") }
    }

    /// The ratio of the medians.
    pub(super) fn over(&self, other: &Figure) -> f64 {
        self.median() / other.median()
    }
}

/// The median, and in brackets minimum and maximum.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        write!(f, "{:.digits$} ({:.digits$}-{:.digits$})", self.median(), self.least(), self.most())
    }
}

/// A report's description of figures of this many runs.
pub(super) fn median_of(runs: usize) -> String {
    match runs {
        1 => "one run".into(),
        runs => format!("the median of {runs} runs (least-most)"),
    }
}

/// Distribution of many single events.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    pub(super) least: f64,
    pub(super) median: f64,
    pub(super) p99: f64,
    pub(super) most: f64,
}

impl Spread {
    /// `None` without samples.
    pub(super) fn of(samples: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        samples.sort_by(f64::total_cmp);
        let last = samples.len().checked_sub(1)?;
        // Nearest-rank percentile.
        let percentile = |percent: usize| samples[(samples.len() * percent).div_ceil(100).saturating_sub(1)];
        Some(Spread { least: samples[0], median: percentile(50), p99: percentile(99), most: samples[last] })
    }
}

/// An upper limit of a figure, and whether it is met.
pub(super) struct Bar {
    pub(super) figure: f64,
    pub(super) below: f64,
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let met = if self.figure < self.below { "met" } else { "NOT MET" };
        let digits = f.precision().unwrap_or(2);
        write!(f, "{:.digits$}, bar {}: {met}", self.figure, self.below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_middle_value_or_mean_of_two() {
        assert_eq!(Figure::of([3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Figure::of([4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(format!("{:.1}", Figure::of([3.0, 1.0, 2.0])), "2.0 (1.0-3.0)");
    }

    #[test]
    fn short_figure_has_significant_digits_and_visible_spread() {
        let shown = |runs: [f64; 3]| Figure::of(runs).short();
        assert_eq!(shown([0.121, 0.119, 0.123]), "0.12");
        assert_eq!(shown([0.042, 0.051, 0.039]), "0.042 (0.039-0.051)");
        assert_eq!(shown([12.91, 13.1, 17.4]), "13.1 (12.9-17.4)");
        assert_eq!(shown([172.4, 172.3, 180.0]), "172 (172-180)");
        assert_eq!(shown([0.0, 0.0, 2.0]), "0 (0-2)");
    }

    #[test]
    fn percentile_is_smallest_value_covering_its_share() {
        let spread = Spread::of((1..=100).rev().map(f64::from));
        assert_eq!(spread, Some(Spread { least: 1.0, median: 50.0, p99: 99.0, most: 100.0 }));
        assert_eq!(Spread::of([7.0]), Some(Spread { least: 7.0, median: 7.0, p99: 7.0, most: 7.0 }));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn a_bar_is_met_below_it() {
        let shown = |figure| Bar { figure, below: 5.0 }.to_string();
        assert_eq!([shown(4.99), shown(5.0)], ["4.99, bar 5: met", "5.00, bar 5: NOT MET"]);
    }
}
