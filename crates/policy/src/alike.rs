//! Pods by their labels: whom a selector matches is found by asking about each set of labels once, since most pods have
//! theirs in common with the others of their workload.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Labels, Pod, Selector};

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Alike {
    /// By namespace and labels, in the order of their names. Nothing within is empty.
    namespaces: BTreeMap<Arc<str>, BTreeMap<Labels, Vec<Arc<Pod>>>>,
}

impl Alike {
    /// The pod is none of those that are here.
    pub(crate) fn add(&mut self, pod: &Arc<Pod>) {
        let of_namespace = self.namespaces.entry(pod.name.namespace.clone()).or_default();
        // Most sets have few pods: room for one at a time.
        let pods = of_namespace.entry(pod.labels.clone()).or_insert_with(|| Vec::with_capacity(1));
        let place = pods.partition_point(|other| other.name.name < pod.name.name);
        pods.insert(place, pod.clone());
    }

    pub(crate) fn remove(&mut self, pod: &Pod) {
        let Some(of_namespace) = self.namespaces.get_mut(&pod.name.namespace) else { return };
        if let Some(pods) = of_namespace.get_mut(&pod.labels) {
            let place = pods.partition_point(|other| other.name.name < pod.name.name);
            if pods.get(place).is_some_and(|found| found.name == pod.name) {
                pods.remove(place);
            }
            if pods.is_empty() {
                of_namespace.remove(&pod.labels);
            }
        }
        if of_namespace.is_empty() {
            self.namespaces.remove(&pod.name.namespace);
        }
    }

    /// The pods of the namespace that the selector matches.
    pub(crate) fn selected<'a>(&'a self, namespace: &str, pods: &'a Selector) -> impl Iterator<Item = &'a Arc<Pod>> {
        let of_namespace = self.namespaces.get(namespace).into_iter().flatten();
        of_namespace.filter(|(labels, _)| pods.matches(labels)).flat_map(|(_, pods)| pods)
    }

    /// The pods of all namespaces that the selector matches.
    pub(crate) fn selected_anywhere<'a>(&'a self, pods: &'a Selector) -> impl Iterator<Item = &'a Arc<Pod>> {
        self.namespaces.values().flatten().filter(|(labels, _)| pods.matches(labels)).flat_map(|(_, pods)| pods)
    }
}
