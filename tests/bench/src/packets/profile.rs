//! Time of a packet rule by rule: our ruleset, cut off after each rule that the packet meets; all of these alternate.
//!
//! The rules are those of the translation, and their order is that of an evaluation of the ruleset on the packet, so
//! that nothing here has to be kept in sync with either.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use nft::{Chain, Flow, Hook, Name, Packet as Frame, Rule, Ruleset, State, Stop};

use super::ours::Cluster;
use super::place::{CLIENT, CLIENT_INTERFACE, Rules, SERVER, try_run};
use super::report::how;
use super::series::{Packet, Point, RuleLayout};
use super::traffic::{CLIENT_PORT, PORT, Traffic};
use super::turns::{MAIN, Places, Variant};
use super::{Size, on_one_processor};
use crate::figures::Figure;
use crate::record::{Measurement, Record};
use crate::table::MarkdownTable;

const SECTION: &str = "profile";
const UDP: u8 = 17;

/// The whole ruleset, and the rules that a packet meets.
struct Way {
    ruleset: Ruleset,
    met: Vec<(Name, usize)>,
}

/// Results of a path: the median of each run, of conntrack alone, of each cut, and of all rules.
struct Profile {
    packet: Packet,
    line: RuleLayout,
    way: Way,
    runs: BTreeMap<Point, Vec<f64>>,
}

const ALONE: Point = (RuleLayout::Conntrack, 0);

/// Measures, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(size: Size) -> Measurement {
    on_one_processor(|| {
        let ways = [Packet::Established, Packet::First]
            .into_iter()
            .flat_map(|packet| [(packet, RuleLayout::Ours, true), (packet, RuleLayout::OursUnchecked, false)]);
        let profiles: Vec<Profile> = ways.map(|(packet, line, checked)| profile(packet, line, checked, size)).collect();
        let mut report = format!("\nprofile: {}\n", how(size));
        for profile in &profiles {
            write!(report, "\n{}, {}, one policy\n\n{}", profile.packet, profile.line, profile.table())
                .expect("a String takes all");
        }
        Measurement { report, records: profiles.iter().flat_map(Profile::records).collect() }
    })
}

fn profile(packet: Packet, line: RuleLayout, check_sources: bool, size: Size) -> Profile {
    let cluster = Cluster { check_sources, ..Cluster::SMALLEST };
    let way = Way::of(cluster.ruleset("whole"), packet);
    let traffic = match packet {
        Packet::Established => Traffic::Established,
        Packet::First => Traffic::FirstBetweenPods,
    };
    let mut places = Places::new();
    let whole = places.load(MAIN, &way.ruleset);
    let variant = |point, rules| Variant { point, place: MAIN, rules, traffic: traffic.clone() };
    let mut variants = vec![variant(ALONE, Rules::None)];
    for count in 0..=way.met.len() {
        let table = nft::Table::inet(Name::new(&format!("cut-{count}")).expect("a name"));
        let rules = places.load(MAIN, &Ruleset { table, ..way.cut_off(count) });
        variants.push(variant(cut(count), rules));
    }
    variants.push(variant((line, 0), whole.clone()));
    // A cut before the approval does not set the mark that an established flow has, so the whole ruleset establishes
    // it.
    places.establish(MAIN, &whole);
    let runs = places.run(&variants, size);
    if packet == Packet::Established {
        let listed = places.place(MAIN).on_node(|| try_run("conntrack", &["-L", "-p", "udp"], ""));
        let listed = listed.unwrap_or_else(|e| panic!("conntrack -L: {e}"));
        let flow = listed.lines().find(|line| line.contains(&format!("sport={CLIENT_PORT} dport={PORT} ")));
        let is_approved = flow.is_some_and(|flow| flow.contains(&format!(" mark={} ", mark_of(&way.ruleset))));
        assert!(is_approved, "the established flow is not approved any more: {flow:?}");
    }
    Profile { packet, line, way, runs }
}

/// The point of the ruleset cut off after this many rules.
fn cut(count: usize) -> Point {
    (RuleLayout::CutOff, u32::try_from(count).expect("a packet meets few rules"))
}

/// The first packet of the measured flow.
fn first_packet() -> Frame {
    let first = Frame::first(CLIENT.into(), SERVER.into(), UDP, Some(PORT));
    Frame { interface: Some(CLIENT_INTERFACE.parse().expect("a short name")), ..first }
}

/// The connection mark that the rules set on the measured flow.
fn mark_of(ruleset: &Ruleset) -> u32 {
    let evaluation = nft::evaluate(ruleset, &first_packet());
    assert_eq!(evaluation.stop, Stop::Accepted, "the measured flow is allowed");
    evaluation.mark
}

/// The packet of the measured flow, which the ruleset has approved or not seen yet.
fn frame(ruleset: &Ruleset, packet: Packet) -> Frame {
    let first = first_packet();
    match packet {
        Packet::First => first,
        Packet::Established => {
            let approved = |flow: Flow| Flow { mark: mark_of(ruleset), ..flow };
            Frame { state: State::Established, flow: first.flow.clone().map(approved), ..first }
        }
    }
}

impl Way {
    /// Without the rules that drop packets without an interface check, since no packet is checked here.
    fn of(mut ruleset: Ruleset, packet: Packet) -> Way {
        let is_early = |chain: &Chain| chain.hook == Some(Hook::EarlyPrerouting);
        let early: Vec<Name> =
            ruleset.chains.iter().filter(|(_, chain)| is_early(chain)).map(|(name, _)| name.clone()).collect();
        for name in early {
            ruleset.chains.remove(&name);
        }
        let met = nft::rules_met(&ruleset, &frame(&ruleset, packet), Hook::Forward);
        Way { ruleset, met }
    }

    /// The ruleset in which the packet meets the first `count` rules and then the end of the chain, whose policy
    /// accepts: the chains on its path end after the last of these. Everything else is kept, because the rules refer to
    /// it.
    fn cut_off(&self, count: usize) -> Ruleset {
        let mut lengths: BTreeMap<&Name, usize> = self.met.iter().map(|(chain, _)| (chain, 0)).collect();
        for (chain, rule) in &self.met[..count] {
            lengths.insert(chain, rule + 1);
        }
        let mut ruleset = self.ruleset.clone();
        for (name, length) in lengths {
            let chain = &self.ruleset.chains[name];
            let rules = chain.rules[..length].to_vec();
            ruleset.chains.insert(name.clone(), Arc::new(Chain { hook: chain.hook, rules }));
        }
        ruleset
    }

    /// The last rule of a cut in nft syntax.
    fn last(&self, count: usize) -> String {
        match self.met[..count].last() {
            None => "a base chain at the forward hook, empty".into(),
            Some((chain, rule)) => {
                let rule = Rule { comment: None, ..self.ruleset.chains[chain].rules[*rule].clone() };
                format!("`{chain}`: `{rule}`")
            }
        }
    }
}

impl Profile {
    fn figure(&self, point: Point) -> Figure {
        Figure::of(self.runs[&point].iter().copied())
    }

    fn over_alone(&self, point: Point) -> Figure {
        Figure::of(self.runs[&point].iter().zip(&self.runs[&ALONE]).map(|(a, b)| a / b))
    }

    /// Conntrack alone, each cut, and all rules, with their labels.
    fn steps(&self) -> Vec<(Point, String)> {
        let cuts = (0..=self.way.met.len()).map(|count| (cut(count), self.way.last(count)));
        let all = ((self.line, 0), "all rules, of which the packet meets no others".into());
        std::iter::once((ALONE, "conntrack alone".into())).chain(cuts).chain([all]).collect()
    }

    fn table(&self) -> MarkdownTable {
        let mut table = MarkdownTable::new(["ns", "more than the row above", "over conntrack alone", "up to and with"]);
        let steps = self.steps();
        for (number, (point, words)) in steps.iter().enumerate() {
            let more = number.checked_sub(1).map(|above| {
                let (own, above) = (&self.runs[point], &self.runs[&steps[above].0]);
                Figure::of(own.iter().zip(above).map(|(own, above)| own - above))
            });
            // The minimum of differences may be negative, which would be unreadable next to a hyphen.
            let more = more.map_or("-".into(), |more| {
                format!("{:+.0} ({:+.0} to {:+.0})", more.median(), more.least(), more.most())
            });
            let (figure, over) = (format!("{:.0}", self.figure(*point)), format!("{:.3}", self.over_alone(*point)));
            table.row([&figure, &more, &over, words]);
        }
        table
    }

    fn records(&self) -> Vec<Record> {
        let (packet, line) = (self.packet.to_string(), self.line.to_string());
        let relative = format!("{packet} over conntrack alone");
        let record = |count: usize| {
            let (x, point) = ((count as f64, "rules met"), cut(count));
            [
                Record::new(SECTION, (&packet, &line), x, (&self.figure(point), "ns")),
                Record::new(SECTION, (&relative, &line), x, (&self.over_alone(point), "times")),
            ]
        };
        (0..=self.way.met.len()).flat_map(record).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_ruleset_accepts_packet_after_same_rules() {
        for (check_sources, packet) in
            [(true, Packet::First), (false, Packet::First), (true, Packet::Established), (false, Packet::Established)]
        {
            let way = Way::of(Cluster { check_sources, ..Cluster::SMALLEST }.ruleset("t"), packet);
            assert!(!way.met.is_empty());
            let frame = frame(&way.ruleset, packet);
            for count in 0..=way.met.len() {
                let cut = way.cut_off(count);
                assert_eq!(nft::rules_met(&cut, &frame, Hook::Forward), way.met[..count], "in\n{cut}");
                assert_eq!(nft::evaluate(&cut, &frame).stop, Stop::Accepted);
            }
        }
    }

    #[test]
    fn established_packet_meets_the_approval_rule_only() {
        for check_sources in [true, false] {
            let way = Way::of(Cluster { check_sources, ..Cluster::SMALLEST }.ruleset("t"), Packet::Established);
            let met: Vec<String> = (1..=way.met.len()).map(|count| way.last(count)).collect();
            assert!(matches!(&met[..], [approval] if approval.contains("ct mark")), "{met:?}");
        }
    }
}
