//! What is said of a workload beside its edges: that it is governed, by which policies, and what it may exchange with
//! addresses that are no pod's.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::classes::Classes;
use super::line::Line;
use super::outside;
use super::workloads::Workload;
use crate::{Direction, ObjectName};

/// Of a workload with pods. Lines are made of it when somebody asks: there are many times more of them than of these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) name: ObjectName,
    /// By direction, as are the others: some policy isolates pods of it.
    governed: [bool; 2],
    /// The policies that do, in the order of their names. Workloads of the same policies share them.
    by: [Arc<[ObjectName]>; 2],
    outside: Arc<[Line]>,
}

impl Standing {
    /// None of a workload without pods.
    pub(super) fn of(workload: &Workload, classes: &Classes) -> Option<Standing> {
        let outside: Vec<Line> =
            Direction::BOTH.into_iter().flat_map(|d| outside::lines(workload, d, classes)).collect();
        workload.nature.exists().then(|| Standing {
            name: workload.name.clone(),
            governed: Direction::BOTH.map(|direction| workload.nature.governed(direction)),
            by: Direction::BOTH.map(|direction| governing(workload, direction, classes)),
            // Of nothing there is one that all share.
            outside: if outside.is_empty() { Arc::default() } else { outside.into() },
        })
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = Line> + '_ {
        let of_direction = move |direction: Direction| {
            let at = direction as usize;
            let line = move |policy: &ObjectName| Line::Governs {
                policy: policy.clone(),
                direction,
                workload: self.name.clone(),
            };
            let governed = self.governed[at].then(|| governed(direction, &self.name));
            governed.into_iter().chain(self.by[at].iter().map(line))
        };
        Direction::BOTH.into_iter().flat_map(of_direction).chain(self.outside.iter().cloned())
    }
}

/// The policies that isolate some pod of the workload, each once.
fn governing(workload: &Workload, direction: Direction, classes: &Classes) -> Arc<[ObjectName]> {
    let mut terms = workload.classes.iter().filter_map(|class| classes.slots[*class].terms(direction));
    let Some(first) = terms.next() else { return Arc::default() };
    let others: Vec<_> = terms.filter(|terms| terms.by != first.by).collect();
    if others.is_empty() {
        return first.by.clone();
    }
    let all: BTreeSet<&ObjectName> = others.into_iter().chain([first]).flat_map(|terms| terms.by.iter()).collect();
    all.into_iter().cloned().collect()
}

fn governed(direction: Direction, workload: &ObjectName) -> Line {
    match direction {
        Direction::Egress => Line::EgressGoverned(workload.clone()),
        Direction::Ingress => Line::IngressGoverned(workload.clone()),
    }
}
