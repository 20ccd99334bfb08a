//! The figures as tables, and whether the rules were right.

use std::fmt;

use super::super::fed::thousands;
use super::super::figures::{Figure, Spread, median_of};
use super::super::record::{Measurement, Record};
use super::super::table::MarkdownTable;
use super::{Runs, Steady, Storm};

pub(super) struct StormsReport {
    pub(super) clusters: Vec<Runs>,
}

type OfStorm = fn(&Storm) -> f64;
type OfLatency = fn(&Spread) -> f64;

/// Figures of a storm: label, unit and selector.
const OF_STORMS: [(&str, &str, OfStorm); 3] = [
    ("transactions", "transactions", |storm| storm.commits as f64),
    ("until the rules are right", "s", |storm| storm.right.as_secs_f64()),
    ("processor time of the agent", "s", |storm| storm.agent.as_secs_f64()),
];

/// Figures of single events, in milliseconds.
const OF_EVENTS: [(&str, OfLatency); 3] =
    [("p50", |latency| latency.median), ("p99", |latency| latency.p99), ("most", |latency| latency.most)];

impl Runs {
    fn storms(&self, of: impl Fn(&Storm) -> f64) -> Figure {
        Figure::of(self.runs.iter().map(|run| of(&run.storm)))
    }

    fn rates(&self) -> impl Iterator<Item = usize> {
        self.runs[0].steady.iter().map(|steady| steady.rate)
    }

    fn at_rate(&self, rate: usize) -> impl Iterator<Item = &Steady> {
        self.runs.iter().flat_map(|run| &run.steady).filter(move |steady| steady.rate == rate)
    }

    fn steady(&self, rate: usize, of: impl Fn(&Steady) -> f64) -> Figure {
        Figure::of(self.at_rate(rate).map(of))
    }

    /// `None` if no event was observed.
    fn latency(&self, rate: usize, of: impl Fn(&Spread) -> f64) -> Option<Figure> {
        Figure::of_any(self.at_rate(rate).filter_map(|steady| steady.latency.as_ref().map(&of)))
    }
}

impl StormsReport {
    pub(super) fn measured(&self) -> Measurement {
        let mut records = Vec::new();
        for runs in &self.clusters {
            let x = (runs.cluster.pods as f64, "pods");
            let mut put = |subject: &str, line: &str, figure: &Figure, unit: &str| {
                records.push(Record::new("storms", (subject, line), x, (figure, unit)));
            };
            for (what, unit, of) in OF_STORMS {
                put("a storm of events", what, &runs.storms(of), unit);
            }
            for rate in runs.rates() {
                for (what, of) in OF_EVENTS {
                    let Some(figure) = runs.latency(rate, of) else { continue };
                    put("latency under steady events", &format!("{rate}/s, {what}"), &figure, "ms");
                }
            }
        }
        Measurement { report: self.to_string(), records }
    }

    fn storms(&self) -> MarkdownTable {
        let mut table = MarkdownTable::new([
            "pods",
            "events",
            "transactions",
            "sent after, s",
            "rules are right after, s",
            "processor time of the agent, s",
            "at the end",
        ]);
        for runs in &self.clusters {
            let shown = |of: OfStorm| format!("{:.2}", runs.storms(of));
            let verdicts = runs.runs.iter().map(|run| run.storm.operations_missing);
            table.row([
                thousands(runs.cluster.pods),
                runs.runs[0].storm.events.to_string(),
                format!("{:.0}", runs.storms(|storm| storm.commits as f64)),
                shown(|storm| storm.sent.as_secs_f64()),
                shown(|storm| storm.right.as_secs_f64()),
                shown(|storm| storm.agent.as_secs_f64()),
                verdict(verdicts),
            ]);
        }
        table
    }

    fn steady(&self) -> MarkdownTable {
        let mut table = MarkdownTable::new([
            "pods",
            "events a second",
            "p50",
            "p99",
            "most",
            "the agent's own mean",
            "commits a second",
            "agent, % of a processor",
            "at the end",
        ]);
        for runs in &self.clusters {
            for rate in runs.rates() {
                let latency = |of: OfLatency| runs.latency(rate, of).map_or("-".into(), |f| f.short());
                let steady = |of: fn(&Steady) -> f64| runs.steady(rate, of);
                let verdicts = runs.at_rate(rate).map(|steady| steady.operations_missing);
                let (missed, watched) = runs
                    .at_rate(rate)
                    .fold((0, 0), |(missed, watched), steady| (missed + steady.missed, watched + steady.watched));
                let mut end = verdict(verdicts);
                if missed > 0 {
                    end.push_str(&format!("; {missed} of {watched} addresses were not announced"));
                }
                table.row([
                    thousands(runs.cluster.pods),
                    rate.to_string(),
                    latency(OF_EVENTS[0].1),
                    latency(OF_EVENTS[1].1),
                    latency(OF_EVENTS[2].1),
                    steady(|steady| steady.own_mean).short(),
                    format!("{:.0}", steady(|steady| steady.commits as f64 / steady.took.as_secs_f64())),
                    format!("{:.1}", steady(|s| 100.0 * s.agent.as_secs_f64() / s.took.as_secs_f64())),
                    end,
                ]);
            }
        }
        table
    }
}

impl fmt::Display for StormsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = median_of(self.clusters.first().map_or(0, |runs| runs.runs.len()));
        writeln!(f, "\nstorms: events within a second, {runs}\n")?;
        write!(f, "{}", self.storms())?;
        writeln!(f, "\nsteady events: from the server's socket to the kernel, ms, {runs}\n")?;
        write!(f, "{}", self.steady())
    }
}

/// Whether the kernel's final rules equal a fresh translation in every run.
fn verdict(operations_missing: impl Iterator<Item = Option<usize>>) -> String {
    let (mut wrong, mut none) = (0, false);
    for missing in operations_missing {
        match missing {
            Some(operations) => wrong = wrong.max(operations),
            None => none = true,
        }
    }
    match (wrong, none) {
        (_, true) => "THERE ARE NO RULES".into(),
        (0, false) => "the rules are right".into(),
        (operations, false) => format!("THE RULES ARE WRONG: {operations} operations missing"),
    }
}
