//! What a list of declared edges says, one statement at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::remote::RemoteSet;
use crate::{Block, Direction, ObjectName};

use super::FlowPorts;

/// One statement. Workloads are `namespace/workload`. Lines that say the same are equal.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Line {
    /// Flows from pods of the source to pods of the destination are declared.
    Edge {
        source: End,
        destination: End,
        ports: FlowPorts,
        /// For some pairs of the pods that it speaks of, not for all.
        partial: bool,
    },
    /// Some policy isolates pods of the workload for ingress.
    IngressGoverned(ObjectName),
    /// Some policy isolates pods of the workload for egress.
    EgressGoverned(ObjectName),
    /// The policy is one of those that isolate pods of the workload in the direction.
    Governs { policy: ObjectName, direction: Direction, workload: ObjectName },
    /// Flows from addresses that are no pod's of this cluster are declared.
    FromBlock { block: Block, destination: ObjectName, ports: FlowPorts, partial: bool },
    /// Flows to addresses that are no pod's of this cluster are declared.
    ToBlock { source: ObjectName, block: Block, ports: FlowPorts, partial: bool },
}

/// One end of an edge.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    /// Every workload there is. Addresses that are no pod's of this cluster are not among them.
    Any,
    Workload(ObjectName),
    /// The other end is a workload.
    Remote(Arc<RemoteSet>),
}

/// How the lines differ from those of before. In order, each line once, and none in both.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EdgeChanges {
    pub adds: Vec<Line>,
    pub removes: Vec<Line>,
}

impl EdgeChanges {
    pub fn is_empty(&self) -> bool {
        self.adds.is_empty() && self.removes.is_empty()
    }

    /// Of what was added and removed, each line in turns, however often.
    pub(super) fn settled(mut adds: Vec<Line>, removes: Vec<Line>) -> EdgeChanges {
        if removes.is_empty() {
            adds.sort_unstable();
            adds.dedup();
            return EdgeChanges { adds, removes };
        }
        let mut balance: BTreeMap<Line, isize> = BTreeMap::new();
        for (lines, by) in [(adds, 1), (removes, -1)] {
            for line in lines {
                *balance.entry(line).or_default() += by;
            }
        }
        let mut changes = EdgeChanges::default();
        for (line, balance) in balance {
            match balance.signum() {
                1 => changes.adds.push(line),
                -1 => changes.removes.push(line),
                _ => {}
            }
        }
        changes
    }
}
