//! The published edges, and their delta since the last update.

use std::collections::BTreeMap;

use imbl::OrdMap;

use super::FlowPorts;
use super::groups::edge;
use super::line::Line;
use super::workloads::Workloads;
use crate::Direction;

/// Represents all workloads in wildcard edges.
pub(super) const ANYONE: u32 = u32::MAX;

/// The direction, the governed workload, its partner, and whether the edge is partial.
pub(super) type Key = (Direction, u32, u32, bool);

#[derive(Debug, Clone, Default)]
pub(super) struct PublishedEdges {
    pub(super) edges: OrdMap<Key, FlowPorts>,
    pub(super) added: Vec<Line>,
    pub(super) removed: Vec<Line>,
}

impl PublishedEdges {
    pub(super) fn set(
        &mut self,
        direction: Direction,
        anchor: u32,
        partner: u32,
        partial: bool,
        ports: FlowPorts,
        workloads: &Workloads,
    ) {
        let key = (direction, anchor, partner, partial);
        let line = |ports| edge(key, ports, |workload| workloads.slots[workload].name.clone());
        let before = match ports.is_none() {
            true => self.edges.remove(&key),
            false => self.edges.insert(key, ports.clone()),
        };
        if before.as_ref() == Some(&ports) {
            return;
        }
        self.removed.extend(before.map(line));
        self.added.extend((!ports.is_none()).then(|| line(ports)));
    }

    /// Replaces all lines of the workload, given by partner; no ports are empty.
    pub(super) fn replace(
        &mut self,
        direction: Direction,
        anchor: u32,
        lines: BTreeMap<(u32, bool), FlowPorts>,
        workloads: &Workloads,
    ) {
        let all = (direction, anchor, 0, false)..=(direction, anchor, u32::MAX, true);
        let of_before = self.edges.range(all).map(|((_, _, partner, partial), _)| (*partner, *partial));
        let gone: Vec<(u32, bool)> = of_before.filter(|key| !lines.contains_key(key)).collect();
        for (partner, partial) in gone {
            self.set(direction, anchor, partner, partial, FlowPorts::none(), workloads);
        }
        for ((partner, partial), ports) in lines {
            self.set(direction, anchor, partner, partial, ports, workloads);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.edges.len()
    }
}
