//! The pods of a state by workload, as flow records name them.

use std::collections::BTreeMap;
use std::sync::Arc;

use identity::Workload;
use policy::{ClusterState, Interner, ObjectName, Pod};

/// The workloads of a state.
pub struct WorkloadIndex<'a> {
    pub state: &'a ClusterState,
    by_workload: BTreeMap<ObjectName, Vec<&'a Arc<Pod>>>,
}

impl<'a> WorkloadIndex<'a> {
    /// Pods without an address of their own belong to no workload here: those that have ended, and those on the network
    /// of their node.
    pub fn of(state: &'a ClusterState) -> WorkloadIndex<'a> {
        let mut interner = Interner::new();
        let mut by_workload: BTreeMap<ObjectName, Vec<&'a Arc<Pod>>> = BTreeMap::new();
        for pod in state.pods().filter(|pod| !pod.host_network && !pod.finished) {
            let name = Workload::of(pod, &mut interner).name;
            let name = ObjectName { namespace: pod.name.namespace.clone(), name };
            by_workload.entry(name).or_default().push(pod);
        }
        WorkloadIndex { state, by_workload }
    }

    /// The pods of a workload; empty if it has none now.
    pub fn pods_of(&self, workload: &ObjectName) -> &[&'a Arc<Pod>] {
        self.by_workload.get(workload).map_or(&[], Vec::as_slice)
    }

    /// The workloads of a namespace with their pods, by name.
    pub fn workloads_in(&self, namespace: &str) -> impl Iterator<Item = (&ObjectName, &[&'a Arc<Pod>])> {
        let from = ObjectName::new(namespace, "");
        let namespace: Arc<str> = namespace.into();
        let rest = self.by_workload.range(from..);
        rest.take_while(move |(name, _)| name.namespace == namespace).map(|(name, pods)| (name, pods.as_slice()))
    }
}
