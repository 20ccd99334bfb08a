//! The figures as a table, and whether the bars are met.

use std::fmt;

use super::super::figures::{Bar, Figure};
use super::{Flood, Run, Size, Target};

/// Limit of the agent's processor time in a flood, in percent of a core.
const AGENT_BELOW_PERCENT: f64 = 5.0;

/// Limit of the slowdown by reporting, of an established packet in a flood and of any packet while nothing is denied: a
/// smaller one is within the spread of the runs.
const SPEED_KEPT_BELOW: f64 = 1.05;

pub(super) struct DropsReport {
    pub(super) size: Size,
    pub(super) off: Vec<Run>,
    pub(super) on: Vec<Run>,
    pub(super) lasting: [Flood; 2],
}

impl DropsReport {
    fn quiet(&self, of: impl Fn(&Run) -> f64) -> [Figure; 2] {
        [&self.off, &self.on].map(|runs| Figure::of(runs.iter().map(&of)))
    }

    fn floods(&self, target: Target, of: impl Fn(&Flood) -> f64) -> [Figure; 2] {
        let flood = |run: &Run| run.floods.iter().find(|flood| flood.target == target).map(&of);
        [&self.off, &self.on].map(|runs| Figure::of(runs.iter().filter_map(flood)))
    }
}

impl fmt::Display for DropsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Size { rounds, packets, .. } = self.size;
        writeln!(f, "\ndrops: {packets} denied packets, {rounds} runs without and with reporting in turn")?;
        writeln!(
            f,
            "median (least-most)                            off                    on                     on/off"
        )?;
        writeln!(f, "nothing is denied")?;
        let established = self.quiet(|run| run.quiet.established_nanos);
        let first = self.quiet(|run| run.quiet.first_nanos);
        row(f, "established packet, ns", &established, 0)?;
        row(f, "first packet of an allowed flow, ns", &first, 0)?;
        let mut bars = vec![
            ("established packets, nothing denied, on/off".to_owned(), ratio(&established)),
            ("first packets, nothing denied, on/off".to_owned(), ratio(&first)),
        ];
        for target in Target::ALL {
            writeln!(f, "flood to {target}")?;
            row(f, "denied packet, ns of the sender", &self.floods(target, nanos_per_packet), 0)?;
            row(f, "packets that the rules dropped, %", &self.floods(target, dropped_percent), 1)?;
            let established = self.floods(target, |flood| flood.established_nanos);
            row(f, "established packet meanwhile, ns", &established, 0)?;
            let agent = self.floods(target, agent_percent);
            row(f, "agent, % of a core while it lasts", &agent, 2)?;
            let with_afterwards = self.floods(target, agent_millis_per_million);
            row(f, "agent, ms for 1,000,000 packets, in the end", &with_afterwards, 0)?;
            bars.push((format!("agent, % of a core, flood to {target}"), percent(agent[1].median())));
            bars.push((format!("established packets, flood to {target}, on/off"), ratio(&established)));
        }
        for flood in &self.lasting {
            let (seconds, agent) = (flood.took.as_secs_f64(), agent_percent(flood));
            let rate = flood.sent as f64 / seconds;
            writeln!(
                f,
                "flood to {} for {seconds:.0} s, one run: {rate:.0} packets/s, agent {agent:.2} % of a core",
                flood.target
            )?;
            bars.push((format!("agent, % of a core, lasting flood to {}", flood.target), percent(agent)));
        }
        writeln!(f, "bars")?;
        bars.iter().try_for_each(|(what, bar)| writeln!(f, "  {what}: {bar}"))
    }
}

fn row(f: &mut fmt::Formatter<'_>, what: &str, [off, on]: &[Figure; 2], digits: usize) -> fmt::Result {
    let [left, right] = [off, on].map(|figure| format!("{figure:.digits$}"));
    let ratio = on.over(off);
    let ratio = if ratio.is_finite() { format!("{ratio:.2}") } else { "-".into() };
    writeln!(f, "  {what:<44} {left:<22} {right:<22} {ratio}")
}

fn ratio([off, on]: &[Figure; 2]) -> Bar {
    Bar { figure: on.over(off), below: SPEED_KEPT_BELOW }
}

fn percent(figure: f64) -> Bar {
    Bar { figure, below: AGENT_BELOW_PERCENT }
}

fn nanos_per_packet(flood: &Flood) -> f64 {
    flood.took.as_nanos() as f64 / flood.sent as f64
}

fn dropped_percent(flood: &Flood) -> f64 {
    100.0 * flood.dropped as f64 / flood.sent as f64
}

fn agent_percent(flood: &Flood) -> f64 {
    100.0 * flood.agent.as_secs_f64() / flood.took.as_secs_f64()
}

fn agent_millis_per_million(flood: &Flood) -> f64 {
    1000.0 * flood.agent_with_afterwards.as_secs_f64() * 1e6 / flood.sent as f64
}
