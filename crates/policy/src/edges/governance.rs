//! The governance of a workload, published beside its edges: whether it is governed, by which policies, and its lines
//! for addresses of no pod.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::classes::Classes;
use super::lines::Line;
use super::outside;
use super::terms::Terms;
use super::vocabulary::NodeIndex;
use super::workloads::Workload;
use crate::{Direction, ObjectName, Tier};

/// The name of a ClusterNetworkPolicy in its tier.
type TieredName = (Tier, Arc<str>);

/// The governance of a workload with pods. Lines are generated on demand, since they are many times more numerous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Governance {
    pub(super) name: ObjectName,
    /// By direction, as the fields below: some policy isolates pods of the workload, or has rules for them.
    governed: [bool; 2],
    /// The NetworkPolicies that isolate pods, sorted by name. Workloads with the same policies share them.
    by: [Arc<[ObjectName]>; 2],
    /// The ClusterNetworkPolicies with rules for pods. Workloads with the same policies share them.
    cluster_policies: [Arc<[TieredName]>; 2],
    outside: Arc<[Line]>,
}

impl Governance {
    /// `None` for a workload without pods.
    pub(super) fn of(workload: &Workload, classes: &Classes, nodes: &NodeIndex) -> Option<Governance> {
        let outside: Vec<Line> =
            Direction::BOTH.into_iter().flat_map(|d| outside::lines(workload, d, classes, nodes)).collect();
        workload.nature.exists().then(|| Governance {
            name: workload.name.clone(),
            governed: Direction::BOTH.map(|direction| workload.nature.governed(direction)),
            by: Direction::BOTH.map(|direction| governing(workload, direction, classes, |terms| &terms.by)),
            cluster_policies: Direction::BOTH
                .map(|direction| governing(workload, direction, classes, |terms| &terms.cluster_policies)),
            // All empty lists share one allocation.
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
            let of_cluster = move |(tier, policy): &(Tier, Arc<str>)| Line::ClusterGoverns {
                tier: *tier,
                policy: policy.clone(),
                direction,
                workload: self.name.clone(),
            };
            let cluster_policies = self.cluster_policies[at].iter().map(of_cluster);
            governed.into_iter().chain(self.by[at].iter().map(line)).chain(cluster_policies)
        };
        Direction::BOTH.into_iter().flat_map(of_direction).chain(self.outside.iter().cloned())
    }
}

/// The policies of some pod of the workload, without duplicates; `of` returns those of its terms.
fn governing<T: Clone + Ord>(
    workload: &Workload,
    direction: Direction,
    classes: &Classes,
    of: impl Fn(&Terms) -> &Arc<[T]>,
) -> Arc<[T]> {
    let mut terms = workload.classes.iter().filter_map(|class| classes.slots[*class].terms(direction));
    let Some(first) = terms.next() else { return Arc::default() };
    let others: Vec<_> = terms.filter(|terms| of(terms) != of(first)).collect();
    if others.is_empty() {
        return of(first).clone();
    }
    let all: BTreeSet<&T> = others.into_iter().chain([first]).flat_map(|terms| of(terms).iter()).collect();
    all.into_iter().cloned().collect()
}

fn governed(direction: Direction, workload: &ObjectName) -> Line {
    match direction {
        Direction::Egress => Line::EgressGoverned(workload.clone()),
        Direction::Ingress => Line::IngressGoverned(workload.clone()),
    }
}
