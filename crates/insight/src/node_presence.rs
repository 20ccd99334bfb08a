//! Gaps in the reports of nodes: the records of a node that did not report are not evidence about audited policies.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use flow::NodeReport;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// Silence of a node before it counts as not reporting: agents send every 15 s, and their longest backoff is 30 s.
pub const SILENT_AFTER: SignedDuration = SignedDuration::from_secs(90);

/// An agent that was not restarted resends the records of the last hour, however long the aggregator was unavailable.
const AGENT_KEEPS: SignedDuration = SignedDuration::from_hours(1);

/// Limit of stored gaps per node; above it, the two oldest are merged.
const MOST_GAPS: usize = 64;

/// The last reports of nodes, and the gaps between reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePresence {
    nodes: BTreeMap<Arc<str>, Presence>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Presence {
    /// When the node was first observed.
    since: Timestamp,
    /// `None` if it never reported. The alias is the field's name in state files of earlier versions.
    #[serde(alias = "heard")]
    last_reported: Option<Timestamp>,
    epoch: u64,
    missed: u64,
    gaps: VecDeque<(Timestamp, Timestamp)>,
}

/// A node that did not report for a part of a time range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeGap {
    pub node: Arc<str>,
    /// Seconds without reports within the range.
    pub seconds: u64,
    /// Last time the node reported; null if it never did.
    pub last_reported: Option<Timestamp>,
    /// Whether it does not report now.
    pub is_silent: bool,
}

impl NodePresence {
    /// Records the last reports of all agents.
    pub fn record_reports(&mut self, reports: &[NodeReport], now: Timestamp) {
        for NodeReport { node, epoch, last_reported, missed, acknowledged: _, behind: _ } in reports {
            let Some(presence) = self.nodes.get_mut(node) else {
                let gaps = VecDeque::new();
                let (epoch, missed, last_reported) = (*epoch, *missed, Some(*last_reported));
                self.nodes.insert(node.clone(), Presence { since: now, last_reported, epoch, missed, gaps });
                continue;
            };
            let last = presence.last_reported.unwrap_or(presence.since);
            if *last_reported <= last && presence.last_reported.is_some() {
                continue;
            }
            let silence = last_reported.duration_since(last);
            let restarted = presence.epoch != *epoch;
            let is_gap = match presence.last_reported {
                None => silence > SILENT_AFTER,
                // Flows while no agent ran were not observed; records that an agent dropped were not received.
                Some(_) if restarted => silence > SILENT_AFTER,
                Some(_) => silence > AGENT_KEEPS || *missed > presence.missed,
            };
            if is_gap {
                presence.add_gap(last, *last_reported);
            }
            (presence.last_reported, presence.epoch, presence.missed) = (Some(*last_reported), *epoch, *missed);
        }
    }

    /// Adds the nodes of the cluster that have never reported, and removes those that have left it.
    pub fn update<'a>(&mut self, nodes: impl IntoIterator<Item = &'a Arc<str>>, now: Timestamp) {
        let nodes: BTreeSet<&Arc<str>> = nodes.into_iter().collect();
        self.nodes.retain(|node, _| nodes.contains(node));
        for node in nodes {
            self.nodes.entry(node.clone()).or_insert_with(|| Presence {
                since: now,
                last_reported: None,
                epoch: 0,
                missed: 0,
                gaps: VecDeque::new(),
            });
        }
    }

    /// Number of nodes that are known.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Nodes that did not report for some of the time from `since` to `now`, the longest first.
    pub fn gaps(&self, since: Timestamp, now: Timestamp) -> Vec<NodeGap> {
        let mut gaps: Vec<NodeGap> = Vec::new();
        for (node, presence) in &self.nodes {
            let last = presence.last_reported.unwrap_or(presence.since);
            let is_silent = now.duration_since(last) > SILENT_AFTER;
            let open = is_silent.then_some((last, now));
            let within =
                presence.gaps.iter().copied().chain(open).map(|(from, until)| {
                    until.min(now).duration_since(from.max(since)).as_secs().max(0).unsigned_abs()
                });
            let seconds = within.sum();
            if seconds > 0 {
                gaps.push(NodeGap { node: node.clone(), seconds, last_reported: presence.last_reported, is_silent });
            }
        }
        gaps.sort_by(|a, b| (b.seconds, &a.node).cmp(&(a.seconds, &b.node)));
        gaps
    }
}

impl Presence {
    fn add_gap(&mut self, from: Timestamp, until: Timestamp) {
        self.gaps.push_back((from, until));
        if self.gaps.len() > MOST_GAPS
            && let (Some((first, _)), Some(second)) = (self.gaps.pop_front(), self.gaps.front_mut())
        {
            second.0 = first;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_777_896_000 + seconds).unwrap()
    }

    fn report(last_reported: i64, epoch: u64, missed: u64) -> NodeReport {
        NodeReport { node: "n1".into(), epoch, acknowledged: 0, behind: 0, last_reported: at(last_reported), missed }
    }

    fn gaps_of(reports: &[NodeReport], now: i64) -> Vec<(u64, bool)> {
        let mut presence = NodePresence::default();
        for report in reports {
            presence.record_reports(std::slice::from_ref(report), report.last_reported);
        }
        presence.gaps(at(0), at(now)).into_iter().map(|gap| (gap.seconds, gap.is_silent)).collect()
    }

    #[test]
    fn node_that_reports_has_no_gap() {
        assert_eq!(gaps_of(&[report(0, 1, 0), report(15, 1, 0), report(1_000, 1, 0)], 1_010), []);
    }

    #[test]
    fn silence_restarts_and_lost_records_are_gaps() {
        assert_eq!(gaps_of(&[report(0, 1, 0)], 200), [(200, true)]);
        assert_eq!(gaps_of(&[report(0, 1, 0), report(300, 2, 0)], 310), [(300, false)]);
        assert_eq!(gaps_of(&[report(0, 1, 0), report(30, 1, 5)], 40), [(30, false)]);
        assert_eq!(gaps_of(&[report(0, 1, 0), report(4_000, 1, 0)], 4_010), [(4_000, false)]);
    }

    #[test]
    fn gaps_are_cut_to_the_time() {
        let mut presence = NodePresence::default();
        for report in [report(0, 1, 0), report(300, 2, 0)] {
            presence.record_reports(std::slice::from_ref(&report), report.last_reported);
        }
        assert_eq!(presence.gaps(at(200), at(310))[0].seconds, 100);
        assert_eq!(presence.gaps(at(300), at(310)), []);
    }

    #[test]
    fn node_without_agent_is_silent() {
        let mut presence = NodePresence::default();
        let nodes: [Arc<str>; 2] = ["n1".into(), "n2".into()];
        presence.update(&nodes, at(0));
        presence.record_reports(&[report(10, 1, 0)], at(10));
        let gaps = presence.gaps(at(0), at(110));
        assert_eq!(gaps.len(), 2, "the reporting node is silent as well: {gaps:?}");
        presence.record_reports(&[report(100, 1, 0)], at(100));
        let gaps = presence.gaps(at(0), at(100));
        let [gap] = &*gaps else { panic!("{gaps:?}") };
        assert_eq!((&*gap.node, gap.seconds, gap.last_reported), ("n2", 100, None));
        presence.update(&nodes[..1], at(110));
        assert_eq!(presence.gaps(at(0), at(110)), []);
    }

    #[test]
    fn state_files_of_earlier_versions_are_read() {
        let mut presence = NodePresence::default();
        presence.record_reports(&[report(10, 1, 0)], at(10));
        let text = serde_json::to_string(&presence).unwrap();
        assert!(text.contains("last_reported"), "{text}");
        let earlier: NodePresence = serde_json::from_str(&text.replace("last_reported", "heard")).unwrap();
        assert_eq!(earlier, presence);
    }

    #[test]
    fn gaps_are_bounded_and_only_grow_by_merging() {
        let mut presence = NodePresence::default();
        for index in 0..=2 * MOST_GAPS as i64 {
            let report = report(index * 200, index as u64, 0);
            presence.record_reports(std::slice::from_ref(&report), report.last_reported);
        }
        assert_eq!(presence.nodes["n1"].gaps.len(), MOST_GAPS);
        assert_eq!(presence.gaps(at(0), at(200 * 2 * MOST_GAPS as i64))[0].seconds, 200 * 2 * MOST_GAPS as u64);
    }
}
