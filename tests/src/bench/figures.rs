//! Figures of several runs, and how they compare.

use std::fmt;

/// One figure, measured several times.
#[derive(Debug, Clone)]
pub(super) struct Figure(Vec<f64>);

impl Figure {
    /// # Panics
    /// If there is no run, or a run gave no number.
    pub(super) fn of(runs: impl IntoIterator<Item = f64>) -> Figure {
        let mut runs: Vec<f64> = runs.into_iter().collect();
        assert!(!runs.is_empty() && runs.iter().all(|run| run.is_finite()), "{runs:?}");
        runs.sort_by(f64::total_cmp);
        Figure(runs)
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

    /// Of medians.
    pub(super) fn over(&self, other: &Figure) -> f64 {
        self.median() / other.median()
    }
}

/// The median, and in brackets the least and the most.
impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = f.precision().unwrap_or(0);
        write!(f, "{:.digits$} ({:.digits$}-{:.digits$})", self.median(), self.least(), self.most())
    }
}

/// What a figure has to stay below, and whether it does.
pub(super) struct Bar {
    pub(super) figure: f64,
    pub(super) below: f64,
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let met = if self.figure < self.below { "met" } else { "NOT MET" };
        write!(f, "{:.2}, bar {}: {met}", self.figure, self.below)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one_or_between_the_two_middle_ones() {
        assert_eq!(Figure::of([3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Figure::of([4.0, 1.0, 2.0, 3.0]).median(), 2.5);
        assert_eq!(format!("{:.1}", Figure::of([3.0, 1.0, 2.0])), "2.0 (1.0-3.0)");
    }

    #[test]
    fn a_bar_is_met_below_it() {
        let shown = |figure| Bar { figure, below: 5.0 }.to_string();
        assert_eq!([shown(4.99), shown(5.0)], ["4.99, bar 5: met", "5.00, bar 5: NOT MET"]);
    }
}
