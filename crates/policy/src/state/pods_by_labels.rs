//! Index of pods by label set. A selector is evaluated once per label set, since most pods have the same labels as the
//! others of their workload.
//!
//! Label sets are scattered in memory, and reading thousands takes milliseconds. So each label set has a Bloom filter
//! beside it, which rules out most non-matches.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::btree_packing::pack;
use crate::{Labels, Operator, Pod, Selector};

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct PodsByLabels {
    /// By namespace and labels, sorted. Inner maps and groups are never empty.
    namespaces: BTreeMap<Arc<str>, BTreeMap<Labels, Group>>,
}

/// The pods with the same labels.
#[derive(Debug, Clone, PartialEq)]
struct Group {
    marks: Marks,
    pods: Vec<Arc<Pod>>,
}

impl PodsByLabels {
    /// Adds the pod, which must not be present.
    pub(crate) fn add(&mut self, pod: &Arc<Pod>) {
        let of_namespace = self.namespaces.entry(pod.name.namespace.clone()).or_default();
        // Most label sets have few pods, so capacity starts at one.
        let new = || Group { marks: Marks::of(&pod.labels), pods: Vec::with_capacity(1) };
        let pods = &mut of_namespace.entry(pod.labels.clone()).or_insert_with(new).pods;
        let place = pods.partition_point(|other| other.name.name < pod.name.name);
        pods.insert(place, pod.clone());
    }

    /// Repacks the maps.
    pub(crate) fn pack(&mut self) {
        self.namespaces.values_mut().for_each(pack);
    }

    pub(crate) fn remove(&mut self, pod: &Pod) {
        let Some(of_namespace) = self.namespaces.get_mut(&pod.name.namespace) else { return };
        if let Some(Group { pods, .. }) = of_namespace.get_mut(&pod.labels) {
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

    /// The pods of the namespaces that the selector matches.
    pub(crate) fn selected<'a>(
        &'a self,
        namespaces: impl Iterator<Item = &'a Arc<str>>,
        pods: &'a Selector,
    ) -> impl Iterator<Item = &'a Arc<Pod>> {
        matching(namespaces.filter_map(|namespace| self.namespaces.get(namespace)), pods)
    }

    /// The pods of all namespaces that the selector matches.
    pub(crate) fn selected_anywhere<'a>(&'a self, pods: &'a Selector) -> impl Iterator<Item = &'a Arc<Pod>> {
        matching(self.namespaces.values(), pods)
    }
}

fn matching<'a>(
    namespaces: impl Iterator<Item = &'a BTreeMap<Labels, Group>>,
    pods: &'a Selector,
) -> impl Iterator<Item = &'a Arc<Pod>> {
    let sought = Sought::by(pods);
    let matches = move |(labels, group): &(&Labels, &Group)| sought.may_be(group.marks) && pods.matches(labels);
    namespaces.flatten().filter(matches).flat_map(|(_, group)| &group.pods)
}

/// A Bloom filter of labels, with one bit set per label.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Marks(u64);

impl Marks {
    fn of(labels: &Labels) -> Marks {
        Marks(labels.iter().fold(0, |marks, (key, value)| marks | mark(key, value)))
    }
}

/// The bit of a label (FNV-1a).
fn mark(key: &str, value: &str) -> u64 {
    let bytes = key.bytes().chain([b'=']).chain(value.bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    1 << (hash >> 58)
}

/// For each label that a selector requires, the bits of the allowed values.
struct Sought(Vec<u64>);

impl Sought {
    fn by(selector: &Selector) -> Sought {
        let values = selector.requirements().filter_map(|requirement| match &requirement.operator {
            Operator::In(values) => Some(values.iter().fold(0, |marks, value| marks | mark(&requirement.key, value))),
            Operator::NotIn(_) | Operator::Exists | Operator::DoesNotExist => None,
        });
        Sought(values.collect())
    }

    /// Whether labels with these marks may match.
    fn may_be(&self, marks: Marks) -> bool {
        self.0.iter().all(|any_of| marks.0 & any_of != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Requirement;

    #[test]
    fn marks_never_rule_out_labels_that_match() {
        let labels = |n: usize| -> Labels {
            let pair = |i: usize| (format!("key-{}", i % 7).into(), format!("value-{}", i * n % 13).into());
            (0..n % 9).map(pair).collect()
        };
        let selector = |n: usize| {
            let values = |from: usize| (from..from + n % 3 + 1).map(|v| format!("value-{}", v % 13).into()).collect();
            let operator = |i: usize| match (n + i) % 4 {
                0 => Operator::NotIn(values(i)),
                1 => Operator::Exists,
                _ => Operator::In(values(n)),
            };
            Selector::of((0..n % 4).map(|i| Requirement { key: format!("key-{i}").into(), operator: operator(i) }))
        };
        let mut counts = [0, 0, 0];
        for (labels, selector) in (0..200).flat_map(|l| (0..200).map(move |s| (labels(l), selector(s)))) {
            let (matches, may_be) = (selector.matches(&labels), Sought::by(&selector).may_be(Marks::of(&labels)));
            assert!(may_be || !matches, "{selector} {labels:?}");
            counts[usize::from(matches) + usize::from(may_be)] += 1;
        }
        assert!(counts.iter().all(|count| *count > 1_000), "ruled out, in vain not, matching: {counts:?}");
    }
}
