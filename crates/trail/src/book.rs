//! Which of the received records the trail has: by window while they are in memory, and by agent for the time after a
//! restart, when agents send again what they still have.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::settlement::{EdgeKey, Excess, Totals};

/// An agent that has sent nothing for so long has no record any more that is in the trail: its ring has an hour.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_hours(2);

/// How far the trail is. What is on disk with it is the whole memory of an exporter that starts again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Position {
    /// Number of the last pass whose batches are all in the spool.
    pub pass: u64,
    /// The windows that begin earlier were passed.
    pub window: Timestamp,
    pub nodes: BTreeMap<Arc<str>, NodePosition>,
    pub excess: Vec<(Timestamp, EdgeKey, Totals)>,
}

/// The records of an agent up to a sequence number are in the trail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePosition {
    pub epoch: u64,
    pub sequence: u64,
    /// The newest window of the node that was received.
    pub newest: Timestamp,
}

/// A window with records that the trail does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueWindow {
    pub window: Timestamp,
    /// For each record of the window, in the order of arrival, whether the trail has it.
    pub exported: Vec<bool>,
    /// The trail has passed the window.
    pub is_late: bool,
}

#[derive(Debug)]
struct Node {
    position: NodePosition,
    /// Runs of records that are not in the trail: the last sequence number, and the window.
    pending: VecDeque<(u64, Timestamp)>,
}

/// Marks of received records.
#[derive(Debug)]
pub struct Book {
    windows: BTreeMap<Timestamp, Vec<bool>>,
    nodes: HashMap<Arc<str>, Node>,
    excess: Excess,
    /// The windows that begin earlier were passed.
    passed: Timestamp,
    pass: u64,
    /// Windows that begin earlier are not exported.
    since: Timestamp,
    evicted: u64,
    /// Windows that begin earlier were passed by an earlier process.
    resumed: Timestamp,
    /// Agents that have not sent all of their exported records again.
    unsent: BTreeMap<Arc<str>, NodePosition>,
}

impl Book {
    /// `since`: earlier windows are taken for exported, since nothing is known of what an earlier process exported.
    pub fn new(position: Option<Position>, since: Timestamp) -> Book {
        let Some(Position { pass, window, nodes, excess }) = position else {
            return Book {
                windows: BTreeMap::new(),
                nodes: HashMap::new(),
                excess: Excess::new(),
                passed: Timestamp::MIN,
                pass: 0,
                since,
                evicted: 0,
                resumed: Timestamp::MIN,
                unsent: BTreeMap::new(),
            };
        };
        let mut by_window = Excess::new();
        for (window, edge, totals) in excess {
            by_window.entry(window).or_default().insert(edge, totals);
        }
        let unsent = nodes.clone();
        let node = |(name, position)| (name, Node { position, pending: VecDeque::new() });
        Book {
            windows: BTreeMap::new(),
            nodes: nodes.into_iter().map(node).collect(),
            excess: by_window,
            passed: window,
            pass,
            since: Timestamp::MIN,
            evicted: 0,
            resumed: window,
            unsent,
        }
    }

    /// Passes are numbered after this one.
    #[must_use]
    pub fn after_pass(self, pass: u64) -> Book {
        Book { pass: self.pass.max(pass), ..self }
    }

    /// A record was received and is kept. To be called once for each, in the order of arrival.
    pub fn note(&mut self, node: &Arc<str>, epoch: u64, sequence: u64, window: Timestamp) {
        if self.unsent.get(node).is_some_and(|last| last.epoch == epoch && last.sequence <= sequence) {
            self.unsent.remove(node);
        }
        let fresh =
            || Node { position: NodePosition { epoch, sequence: 0, newest: Timestamp::MIN }, pending: VecDeque::new() };
        let known = self.nodes.entry(Arc::clone(node)).or_insert_with(fresh);
        if known.position.epoch < epoch {
            // Records of the earlier life cannot be sent again.
            *known = fresh();
        }
        let is_of_life = known.position.epoch == epoch;
        let is_exported = window < self.since || (is_of_life && sequence <= known.position.sequence);
        if is_of_life {
            known.position.newest = known.position.newest.max(window);
            if !is_exported {
                match known.pending.back_mut() {
                    Some((last, of)) if *of == window => *last = sequence,
                    Some(_) | None => known.pending.push_back((sequence, window)),
                }
            }
        }
        self.windows.entry(window).or_default().push(is_exported);
    }

    /// Windows before `settled` with records that the trail does not have, the oldest first. `kept` are the windows that
    /// are in memory: marks of others are dropped, and counted where the trail had not
    /// their records.
    pub fn due(&mut self, settled: Timestamp, kept: &BTreeSet<Timestamp>) -> Vec<DueWindow> {
        let evicted = &mut self.evicted;
        self.windows.retain(|window, marks| {
            let is_kept = kept.contains(window);
            if !is_kept {
                *evicted += marks.iter().filter(|is_exported| !**is_exported).count() as u64;
            }
            is_kept
        });
        let settled_windows = self.windows.range(..settled);
        let due = settled_windows.filter(|(_, marks)| marks.iter().any(|is_exported| !is_exported));
        due.map(|(window, marks)| DueWindow {
            window: *window,
            exported: marks.clone(),
            // Windows after `passed` have exported records if they settled too early, by a clock that was set back since.
            is_late: *window < self.passed || marks.contains(&true),
        })
        .collect()
    }

    /// What the trail has of edges of a window beyond their exported records.
    pub fn excess(&self, window: Timestamp) -> BTreeMap<EdgeKey, Totals> {
        self.excess.get(&window).cloned().unwrap_or_default()
    }

    /// The due windows are in the trail. Records that arrived meanwhile are not.
    pub fn exported(&mut self, due: &[DueWindow], excess: Vec<(Timestamp, BTreeMap<EdgeKey, Totals>)>) {
        for DueWindow { window, exported, is_late: _ } in due {
            if let Some(marks) = self.windows.get_mut(window) {
                marks.iter_mut().take(exported.len()).for_each(|mark| *mark = true);
            }
        }
        for (window, edges) in excess {
            if edges.is_empty() {
                self.excess.remove(&window);
            } else {
                self.excess.insert(window, edges);
            }
        }
    }

    /// The next position, once the windows before `settled` are in the trail. Called with the same lock as [`Book::due`], for
    /// the records that were there then.
    pub fn advance(&mut self, settled: Timestamp) -> Position {
        self.passed = settled;
        self.pass += 1;
        for node in self.nodes.values_mut() {
            while let Some((last, _)) = node.pending.front().filter(|(_, window)| *window < settled) {
                node.position.sequence = *last;
                node.pending.pop_front();
            }
        }
        let forgotten = settled.checked_sub(FORGOTTEN_AFTER).unwrap_or(Timestamp::MIN);
        self.nodes.retain(|_, node| node.position.newest >= forgotten);
        self.excess.retain(|window, _| *window >= forgotten);
        Position {
            pass: self.pass,
            window: self.passed,
            nodes: self.nodes.iter().map(|(name, node)| (Arc::clone(name), node.position)).collect(),
            excess: Vec::new(),
        }
    }

    /// All that is kept of edges, for a position.
    pub fn all_excess(&self) -> Vec<(Timestamp, EdgeKey, Totals)> {
        let edges =
            self.excess.iter().flat_map(|(window, edges)| edges.iter().map(|(edge, totals)| (*window, edge, totals)));
        edges.map(|(window, edge, totals)| (window, edge.clone(), *totals)).collect()
    }

    /// Records that left memory before they were exported.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// The windows that begin earlier were passed.
    pub fn passed(&self) -> Timestamp {
        self.passed
    }

    /// Nodes whose exported records of a window are not in memory: an earlier process exported them, and they were not sent
    /// again. What the trail has of their connections is not known.
    pub fn unknown_nodes(&self, window: Timestamp) -> BTreeSet<Arc<str>> {
        if window >= self.resumed {
            return BTreeSet::new();
        }
        let unsent = self.unsent.iter().filter(|(_, last)| last.newest >= window);
        unsent.map(|(name, _)| Arc::clone(name)).collect()
    }
}

#[cfg(test)]
mod tests;
