//! The figures as tables.

use std::fmt;

use super::super::fed::thousands;
use super::super::figures::Figure;
use super::super::record::{Measured, Record};
use super::Run;

pub(super) struct Report {
    pub(super) runs: Vec<Run>,
}

impl Report {
    pub(super) fn measured(&self) -> Measured {
        let mut records = Vec::new();
        for run in &self.runs {
            let x = (run.cluster.pods as f64, "pods");
            let mut put = |subject: &str, line: &str, y: (f64, &str)| {
                records.push(Record::new("storms", (subject, line), x, (&Figure::of([y.0]), y.1)));
            };
            put("a storm of events", "transactions", (run.storm.commits as f64, "transactions"));
            put("a storm of events", "until the rules are right", (run.storm.right.as_secs_f64(), "s"));
            put("a storm of events", "processor time of the agent", (run.storm.agent.as_secs_f64(), "s"));
            for steady in &run.steady {
                let Some(latency) = steady.latency else { continue };
                for (what, figure) in [("p50", latency.median), ("p99", latency.p99), ("most", latency.most)] {
                    put("latency under steady events", &format!("{}/s, {what}", steady.rate), (figure, "ms"));
                }
            }
        }
        Measured { report: self.to_string(), records }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nstorms: events within a second")?;
        writeln!(
            f,
            "  {:<8} {:>7} {:>12} {:>8} {:>19} {:>9}   at the end",
            "pods", "events", "transactions", "sent, s", "rules are right, s", "agent, s"
        )?;
        for run in &self.runs {
            let storm = &run.storm;
            writeln!(
                f,
                "  {:<8} {:>7} {:>12} {:>8.2} {:>19.2} {:>9.2}   {}",
                thousands(run.cluster.pods),
                storm.events,
                storm.commits,
                storm.sent.as_secs_f64(),
                storm.right.as_secs_f64(),
                storm.agent.as_secs_f64(),
                verdict(storm.operations_missing),
            )?;
        }
        writeln!(f, "steady events: from the server's socket to the kernel, ms")?;
        writeln!(
            f,
            "  {:<8} {:>7} {:>7} {:>9} {:>9} {:>9} {:>12} {:>9} {:>13}   at the end",
            "pods", "rate/s", "events", "p50", "p99", "most", "own mean", "commits/s", "agent, %"
        )?;
        for run in &self.runs {
            for steady in &run.steady {
                let seconds = steady.took.as_secs_f64();
                write!(f, "  {:<8} {:>7} {:>7}", thousands(run.cluster.pods), steady.rate, steady.events)?;
                match steady.latency {
                    Some(latency) => write!(f, " {:>9.2} {:>9.2} {:>9.2}", latency.median, latency.p99, latency.most)?,
                    None => write!(f, " {:>29}", "none was seen")?,
                }
                write!(f, " {:>12.2} {:>9.1}", steady.own_mean, steady.commits as f64 / seconds)?;
                write!(f, " {:>13.1}", 100.0 * steady.agent.as_secs_f64() / seconds)?;
                write!(f, "   {}", verdict(steady.operations_missing))?;
                match steady.missed {
                    0 => writeln!(f)?,
                    missed => writeln!(f, "; {missed} of {} addresses were not announced", steady.watched)?,
                }
            }
        }
        Ok(())
    }
}

/// Whether the kernel had in the end what a fresh translation asks for.
fn verdict(operations_missing: Option<usize>) -> String {
    match operations_missing {
        Some(0) => "the rules are right".into(),
        Some(operations) => format!("THE RULES ARE WRONG: {operations} operations missing"),
        None => "THERE ARE NO RULES".into(),
    }
}
