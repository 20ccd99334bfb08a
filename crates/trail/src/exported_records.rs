//! Tracks which received records are exported: by window while the records are in memory, and by agent across a
//! restart, when agents resend the records in their rings.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize};

use crate::window_lines::{EdgeKey, Excess, RecordTotals};

/// Age at which the position of an epoch is dropped. An agent's ring holds one hour, so the agent can no longer resend
/// exported records.
const FORGOTTEN_AFTER: SignedDuration = SignedDuration::from_hours(2);

/// Epochs of a node with a position: the running agent, and earlier ones whose records may still arrive or be in windows
/// of the last hour. Beyond it the oldest two are merged.
const MOST_EPOCHS: usize = 8;

/// ExportPosition of the export. With the spools, it is the only state that survives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportPosition {
    /// Number of the last pass whose batches are all in the spool.
    pub pass: u64,
    /// Windows that begin earlier are covered by a pass.
    pub window: Timestamp,
    /// Positions of each node, one per epoch, in the order of their last records: the last one is that of the running agent.
    #[serde(deserialize_with = "read_nodes")]
    pub nodes: BTreeMap<Arc<str>, Vec<EpochPosition>>,
    pub excess: Vec<(Timestamp, EdgeKey, RecordTotals)>,
}

/// ExportPosition of one agent process: its records up to `sequence` are exported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochPosition {
    /// Identifies the process. Epochs have no order: an agent whose clock was set back starts with a lower one.
    pub epoch: u64,
    pub sequence: u64,
    /// Newest window received from the process.
    pub newest: Timestamp,
}

/// Reads positions with several epochs per node, and those of earlier versions with one.
fn read_nodes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<Arc<str>, Vec<EpochPosition>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Positions {
        One(EpochPosition),
        Several(Vec<EpochPosition>),
    }
    let nodes: BTreeMap<Arc<str>, Positions> = BTreeMap::deserialize(deserializer)?;
    let epochs = nodes.into_iter().map(|(name, positions)| match positions {
        Positions::One(position) => (name, vec![position]),
        Positions::Several(positions) => (name, positions),
    });
    Ok(epochs.collect())
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
struct Epoch {
    position: EpochPosition,
    /// Runs of unexported records: the last sequence number and the window of each run.
    pending: VecDeque<(u64, Timestamp)>,
}

/// The epoch of a record, moved to the end of the node's epochs. A new one if it is unknown.
fn current(epochs: &mut Vec<Epoch>, epoch: u64) -> &mut Epoch {
    let known = epochs.iter().rposition(|known| known.position.epoch == epoch);
    let entry = match known {
        Some(index) if index + 1 == epochs.len() => None,
        Some(index) => Some(epochs.remove(index)),
        None => {
            let position = EpochPosition { epoch, sequence: 0, newest: Timestamp::MIN };
            Some(Epoch { position, pending: VecDeque::new() })
        }
    };
    epochs.extend(entry);
    if epochs.len() > MOST_EPOCHS {
        // The exported records of the oldest epoch stay unknown after a restart.
        let newest = epochs.remove(0).position.newest;
        epochs[0].position.newest = epochs[0].position.newest.max(newest);
    }
    epochs.last_mut().expect("an epoch was found or added")
}

/// Export marks of the received records.
#[derive(Debug)]
pub struct ExportProgress {
    windows: BTreeMap<Timestamp, Vec<bool>>,
    nodes: HashMap<Arc<str>, Vec<Epoch>>,
    excess: Excess,
    /// Windows that begin earlier are covered by a pass.
    passed: Timestamp,
    pass: u64,
    /// Windows that begin earlier are not exported.
    since: Timestamp,
    evicted: u64,
    /// Windows that begin earlier are covered by a pass of an earlier process.
    resumed: Timestamp,
    /// Epochs of which not all exported records are in memory: the running agent has not yet resent them, and earlier
    /// agents cannot.
    unsent: BTreeMap<Arc<str>, Vec<EpochPosition>>,
    /// Last known agents that have not yet resent all of their exported records.
    awaited: BTreeMap<Arc<str>, EpochPosition>,
}

impl ExportProgress {
    /// Without a position, windows before `since` count as exported: an earlier process may have exported them.
    pub fn new(position: Option<ExportPosition>, since: Timestamp) -> ExportProgress {
        let Some(ExportPosition { pass, window, nodes, excess }) = position else {
            return ExportProgress {
                windows: BTreeMap::new(),
                nodes: HashMap::new(),
                excess: Excess::new(),
                passed: Timestamp::MIN,
                pass: 0,
                since,
                evicted: 0,
                resumed: Timestamp::MIN,
                unsent: BTreeMap::new(),
                awaited: BTreeMap::new(),
            };
        };
        let mut by_window = Excess::new();
        for (window, edge, totals) in excess {
            by_window.entry(window).or_default().insert(edge, totals);
        }
        let unsent = nodes.clone();
        let last = |(name, epochs): (&Arc<str>, &Vec<EpochPosition>)| Some((Arc::clone(name), *epochs.last()?));
        let awaited = nodes.iter().filter_map(last).collect();
        let epoch = |position| Epoch { position, pending: VecDeque::new() };
        let node = |(name, epochs): (_, Vec<EpochPosition>)| (name, epochs.into_iter().map(epoch).collect());
        ExportProgress {
            windows: BTreeMap::new(),
            nodes: nodes.into_iter().map(node).collect(),
            excess: by_window,
            passed: window,
            pass,
            since: Timestamp::MIN,
            evicted: 0,
            resumed: window,
            unsent,
            awaited,
        }
    }

    /// Numbers the next passes after `pass`.
    #[must_use]
    pub fn after_pass(self, pass: u64) -> ExportProgress {
        ExportProgress { pass: self.pass.max(pass), ..self }
    }

    /// Records the arrival of a stored record. Must be called once per record, in order of arrival.
    pub fn record_arrival(&mut self, node: &Arc<str>, epoch: u64, sequence: u64, window: Timestamp) {
        let is_resent = |last: &EpochPosition| last.epoch == epoch && last.sequence <= sequence;
        if let Some(epochs) = self.unsent.get_mut(node) {
            epochs.retain(|last| !is_resent(last));
            if epochs.is_empty() {
                self.unsent.remove(node);
            }
        }
        if self.awaited.get(node).is_some_and(is_resent) {
            self.awaited.remove(node);
        }
        let known = current(self.nodes.entry(Arc::clone(node)).or_default(), epoch);
        let is_exported = window < self.since || sequence <= known.position.sequence;
        known.position.newest = known.position.newest.max(window);
        if !is_exported {
            match known.pending.back_mut() {
                Some((last, of)) if *of == window => *last = sequence,
                Some(_) | None => known.pending.push_back((sequence, window)),
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
    pub fn excess(&self, window: Timestamp) -> BTreeMap<EdgeKey, RecordTotals> {
        self.excess.get(&window).cloned().unwrap_or_default()
    }

    /// Marks the due windows as exported, except records that arrived after [`ExportProgress::due`], and stores their excess.
    pub fn exported(&mut self, due: &[DueWindow], excess: Vec<(Timestamp, BTreeMap<EdgeKey, RecordTotals>)>) {
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
    /// [`ExportProgress::due`], so that both cover the same records.
    pub fn advance(&mut self, settled: Timestamp) -> ExportPosition {
        self.passed = settled;
        self.pass += 1;
        for epoch in self.nodes.values_mut().flatten() {
            while let Some((last, _)) = epoch.pending.front().filter(|(_, window)| *window < settled) {
                epoch.position.sequence = *last;
                epoch.pending.pop_front();
            }
        }
        // A clock that is ahead settles windows of the future; agents still have the records of the last hour.
        let newest = self.nodes.values().flatten().map(|epoch| epoch.position.newest).max();
        let now = newest.map_or(settled, |newest| newest.min(settled));
        let forgotten = now.checked_sub(FORGOTTEN_AFTER).unwrap_or(Timestamp::MIN);
        self.nodes.retain(|_, epochs| {
            epochs.retain(|epoch| epoch.position.newest >= forgotten);
            !epochs.is_empty()
        });
        self.excess.retain(|window, _| *window >= forgotten);
        let positions = |epochs: &Vec<Epoch>| epochs.iter().map(|epoch| epoch.position).collect();
        ExportPosition {
            pass: self.pass,
            window: self.passed,
            nodes: self.nodes.iter().map(|(name, epochs)| (Arc::clone(name), positions(epochs))).collect(),
            excess: Vec::new(),
        }
    }

    /// Excess of all windows, for a position.
    pub fn all_excess(&self) -> Vec<(Timestamp, EdgeKey, RecordTotals)> {
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

    /// Nodes whose exported records of a window are not in memory: an earlier process exported them, and their agents have
    /// not resent them. How many of their connections are exported is unknown.
    pub fn unknown_nodes(&self, window: Timestamp) -> BTreeSet<Arc<str>> {
        if window >= self.resumed {
            return BTreeSet::new();
        }
        let unsent = self.unsent.iter().filter(|(_, epochs)| epochs.iter().any(|last| last.newest >= window));
        unsent.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Whether agents may still resend exported records of windows since then.
    pub fn awaits_agents(&self, since: Timestamp) -> bool {
        since < self.resumed && self.awaited.values().any(|last| last.newest >= since)
    }
}

#[cfg(test)]
mod tests;
