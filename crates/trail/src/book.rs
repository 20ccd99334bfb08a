//! Tracks which received records are exported: by window while the records are in memory, and by agent across a
//! restart, when agents resend the records in their rings.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::settlement::{EdgeKey, Excess, Totals};

/// Age at which a node's position is dropped. An agent's ring holds one hour, so the agent can no longer resend
/// exported records.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_hours(2);

/// Position of the export. With the spools, it is the only state that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportPosition {
    /// Number of the last pass whose batches are all in the spool.
    pub pass: u64,
    /// Windows that begin earlier are covered by a pass.
    pub window: Timestamp,
    pub nodes: BTreeMap<Arc<str>, NodePosition>,
    pub excess: Vec<(Timestamp, EdgeKey, Totals)>,
}

/// Position of one agent: its records up to `sequence` are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodePosition {
    pub epoch: u64,
    pub sequence: u64,
    /// Newest window received from the node.
    pub newest: Timestamp,
}

/// A window with unexported records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DueWindow {
    pub window: Timestamp,
    /// For each record of the window, in order of arrival, whether it is exported.
    pub exported: Vec<bool>,
    /// An earlier pass covered the window or exported some of its records.
    pub is_late: bool,
}

#[derive(Debug)]
struct Node {
    position: NodePosition,
    /// Runs of unexported records: the last sequence number and the window of each run.
    pending: VecDeque<(u64, Timestamp)>,
}

/// Export marks of the received records.
#[derive(Debug)]
pub struct Book {
    windows: BTreeMap<Timestamp, Vec<bool>>,
    nodes: HashMap<Arc<str>, Node>,
    excess: Excess,
    /// Windows that begin earlier are covered by a pass.
    passed: Timestamp,
    pass: u64,
    /// Windows that begin earlier are not exported.
    since: Timestamp,
    evicted: u64,
    /// Windows that begin earlier are covered by a pass of an earlier process.
    resumed: Timestamp,
    /// Agents that have not yet resent all of their exported records.
    unsent: BTreeMap<Arc<str>, NodePosition>,
}

impl Book {
    /// Without a position, windows before `since` count as exported: an earlier process may have exported them.
    pub fn new(position: Option<ExportPosition>, since: Timestamp) -> Book {
        let Some(ExportPosition { pass, window, nodes, excess }) = position else {
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

    /// Numbers the next passes after `pass`.
    #[must_use]
    pub fn after_pass(self, pass: u64) -> Book {
        Book { pass: self.pass.max(pass), ..self }
    }

    /// Records the arrival of a stored record. Must be called once per record, in order of arrival.
    pub fn note(&mut self, node: &Arc<str>, epoch: u64, sequence: u64, window: Timestamp) {
        if self.unsent.get(node).is_some_and(|last| last.epoch == epoch && last.sequence <= sequence) {
            self.unsent.remove(node);
        }
        let fresh =
            || Node { position: NodePosition { epoch, sequence: 0, newest: Timestamp::MIN }, pending: VecDeque::new() };
        let known = self.nodes.entry(Arc::clone(node)).or_insert_with(fresh);
        if known.position.epoch < epoch {
            // Records of an earlier epoch cannot be resent: the agent lost them when it restarted.
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

    /// Windows before `settled` with unexported records, oldest first. `kept` lists the windows in memory: marks of
    /// other windows are dropped, and their unexported records counted.
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
            // A window after `passed` has exported records if the clock was ahead at its export and was set back since.
            is_late: *window < self.passed || marks.contains(&true),
        })
        .collect()
    }

    /// Totals per edge that the exported lines of a window count beyond its exported records.
    pub fn excess(&self, window: Timestamp) -> BTreeMap<EdgeKey, Totals> {
        self.excess.get(&window).cloned().unwrap_or_default()
    }

    /// Marks the due windows as exported, except records that arrived after [`Book::due`], and stores their excess.
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

    /// The position to write once the windows before `settled` are exported. Must be called under the same lock as
    /// [`Book::due`], so that both cover the same records.
    pub fn advance(&mut self, settled: Timestamp) -> ExportPosition {
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
        ExportPosition {
            pass: self.pass,
            window: self.passed,
            nodes: self.nodes.iter().map(|(name, node)| (Arc::clone(name), node.position)).collect(),
            excess: Vec::new(),
        }
    }

    /// Excess of all windows, for a position.
    pub fn all_excess(&self) -> Vec<(Timestamp, EdgeKey, Totals)> {
        let edges =
            self.excess.iter().flat_map(|(window, edges)| edges.iter().map(|(edge, totals)| (*window, edge, totals)));
        edges.map(|(window, edge, totals)| (window, edge.clone(), *totals)).collect()
    }

    /// Number of records expired or evicted before their export.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Windows that begin earlier are covered by a pass.
    pub fn passed(&self) -> Timestamp {
        self.passed
    }

    /// Nodes whose exported records of a window are not in memory: an earlier process exported them, and the agents
    /// have not resent them. How many of their connections are exported is unknown.
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
