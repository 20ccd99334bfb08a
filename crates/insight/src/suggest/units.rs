//! Units: pods that a policy selects together, with the smallest selector that matches them alone.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use flow::Endpoint;
use identity::LabelFilter;
use policy::{ObjectName, Pod};
use serde_json::{Value, json};

use crate::WorkloadIndex;

/// Labels that name a workload, the best first: the service identity, the recommended labels of Kubernetes, and those
/// that were used before.
const NAMING_LABELS: [&str; 10] = [
    identity::SERVICE_LABEL,
    "app.kubernetes.io/name",
    "app",
    "k8s-app",
    "name",
    "app.kubernetes.io/component",
    "app.kubernetes.io/instance",
    "component",
    "role",
    "tier",
];

/// Labels of a single pod, beside those that identities exclude.
const PASSING_LABELS: [&str; 2] = ["job-completion-index", "batch.kubernetes.io/job-completion-index"];

/// Longest name of a unit: a name with its prefix and number stays below 63 bytes.
const LONGEST_NAME: usize = 38;

/// Pods of one or several workloads that labels do not distinguish.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Unit {
    pub(super) namespace: Arc<str>,
    /// Unique in the namespace.
    pub(super) name: String,
    pub(super) workloads: BTreeSet<Arc<str>>,
    selector: UnitSelector,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct UnitSelector {
    labels: BTreeMap<Arc<str>, Arc<str>>,
    absent: BTreeSet<Arc<str>>,
}

/// Why an end has no unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoUnit {
    /// No pod of the workload exists.
    Gone,
    /// Its pods have no stable label in common.
    Unlabelled,
}

/// The units of all namespaces, each computed on first use.
pub(super) struct Units<'a> {
    directory: &'a WorkloadIndex<'a>,
    by_namespace: RefCell<BTreeMap<Arc<str>, Rc<NamespaceUnits>>>,
}

pub(super) type NamespaceUnits = BTreeMap<Arc<str>, Option<Rc<Unit>>>;

impl<'a> Units<'a> {
    pub(super) fn of(directory: &'a WorkloadIndex<'a>) -> Units<'a> {
        Units { directory, by_namespace: RefCell::default() }
    }

    /// The unit of an end that is a pod.
    pub(super) fn find(&self, end: &Endpoint) -> Result<Rc<Unit>, NoUnit> {
        let (Some(namespace), Some(name)) = (&end.namespace, &end.name) else { return Err(NoUnit::Gone) };
        let mut known = self.by_namespace.borrow_mut();
        let units =
            known.entry(namespace.clone()).or_insert_with(|| Rc::new(units_in(self.directory, namespace))).clone();
        match units.get(name) {
            None => Err(NoUnit::Gone),
            Some(None) => Err(NoUnit::Unlabelled),
            Some(Some(unit)) => Ok(unit.clone()),
        }
    }
}

/// A candidate for a unit.
struct Group<'a> {
    workloads: BTreeSet<Arc<str>>,
    pods: Vec<&'a Arc<Pod>>,
}

/// Workloads that no selector distinguishes are merged until each unit has a selector of its own.
pub(super) fn units_in(directory: &WorkloadIndex, namespace: &Arc<str>) -> NamespaceUnits {
    let mut groups: Vec<Group> = directory
        .workloads_in(namespace)
        .map(|(name, pods)| Group { workloads: [name.name.clone()].into(), pods: pods.to_vec() })
        .collect();
    let mut selectors;
    loop {
        selectors = groups.iter().map(|group| selector_of(directory, namespace, group)).collect::<Vec<_>>();
        let clash = selectors.iter().enumerate().find_map(|(at, selected)| match selected {
            UnitSelection::Alone(_) | UnitSelection::Unlabelled => None,
            UnitSelection::With(pod) => {
                Some((at, groups.iter().position(|group| group.pods.iter().any(|p| p.name == *pod))))
            }
        });
        match clash {
            None => break,
            Some((at, Some(other))) => {
                let merged = groups.remove(at.max(other));
                let into = &mut groups[at.min(other)];
                into.workloads.extend(merged.workloads);
                into.pods.extend(merged.pods);
            }
            // A pod that is in no group cannot be merged; a selector would match it too.
            Some((at, None)) => {
                let lost = groups.remove(at);
                groups.push(Group { workloads: lost.workloads, pods: vec![] });
            }
        }
    }
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut units = NamespaceUnits::new();
    for (group, selected) in groups.into_iter().zip(selectors) {
        let unit = match selected {
            UnitSelection::Alone(selector) => {
                let name = free_name(&group, &selector, &mut names);
                let workloads = group.workloads.clone();
                Some(Rc::new(Unit { namespace: namespace.clone(), name, workloads, selector }))
            }
            UnitSelection::With(_) | UnitSelection::Unlabelled => None,
        };
        units.extend(group.workloads.into_iter().map(|workload| (workload, unit.clone())));
    }
    units
}

enum UnitSelection {
    Alone(UnitSelector),
    /// Any selector of the group's labels also matches this pod of another group.
    With(ObjectName),
    Unlabelled,
}

fn selector_of(directory: &WorkloadIndex, namespace: &str, group: &Group) -> UnitSelection {
    let Some((first, more)) = group.pods.split_first() else { return UnitSelection::Unlabelled };
    let filter = LabelFilter::default();
    let is_lasting = |key: &str| filter.includes(key) && !PASSING_LABELS.contains(&key);
    let is_common = |key: &Arc<str>, value: &Arc<str>| more.iter().all(|pod| pod.labels.get(key) == Some(value));
    let lasting = first.labels.iter().filter(|(key, value)| is_lasting(key) && is_common(key, value));
    let common: BTreeMap<Arc<str>, Arc<str>> = lasting.map(|(key, value)| (key.clone(), value.clone())).collect();
    if common.is_empty() || group.pods.iter().any(|pod| pod.unreadable) {
        return UnitSelection::Unlabelled;
    }
    let own: BTreeSet<&ObjectName> = group.pods.iter().map(|pod| &pod.name).collect();
    let others = directory.state.pods_in(namespace).filter(|pod| !own.contains(&pod.name));
    let others: Vec<&Arc<Pod>> = others.filter(|pod| !pod.host_network && !pod.finished && !pod.unreadable).collect();
    // The naming labels first, then the others by name.
    let rank = |key: &str| NAMING_LABELS.iter().position(|naming| *naming == key).unwrap_or(NAMING_LABELS.len());
    let mut keys: Vec<&Arc<str>> = common.keys().collect();
    keys.sort_by_key(|key| rank(key));
    let matches = |pod: &Pod, key: &Arc<str>| pod.labels.get(key) == common.get(key);
    let single = keys.iter().find(|key| !others.iter().any(|other| matches(other, key)));
    let chosen: Vec<&Arc<str>> = match single {
        Some(key) => vec![*key],
        None => {
            let mut left: Vec<&Arc<Pod>> = others.clone();
            let mut chosen = vec![keys[0]];
            left.retain(|other| matches(other, keys[0]));
            for key in &keys[1..] {
                let before = left.len();
                left.retain(|other| matches(other, key));
                if left.len() < before {
                    chosen.push(*key);
                }
            }
            chosen
        }
    };
    let mut absent: BTreeSet<Arc<str>> = BTreeSet::new();
    for other in others.iter().filter(|other| chosen.iter().all(|key| matches(other, key))) {
        if other.labels.iter().any(|(key, _)| absent.contains(key)) {
            continue;
        }
        let is_extra = |key: &str| is_lasting(key) && !group.pods.iter().any(|pod| pod.labels.get(key).is_some());
        match other.labels.iter().map(|(key, _)| key).find(|key| is_extra(key)) {
            Some(key) => {
                absent.insert(key.clone());
            }
            None => return UnitSelection::With(other.name.clone()),
        }
    }
    let labels = chosen.into_iter().map(|key| (key.clone(), common[key].clone())).collect();
    UnitSelection::Alone(UnitSelector { labels, absent })
}

/// The workload's name, or a label's value if there are several workloads.
fn free_name(group: &Group, selector: &UnitSelector, names: &mut BTreeSet<String>) -> String {
    let by_label = || {
        let named = NAMING_LABELS.iter().find_map(|key| selector.labels.get(*key));
        named.or(selector.labels.values().next()).map(|value| as_name(value)).unwrap_or_default()
    };
    let first = || group.workloads.first().map(|name| as_name(name)).unwrap_or_default();
    let plain = if group.workloads.len() == 1 { first() } else { by_label() };
    let plain = [plain, first(), "pods".into()].into_iter().find(|name| !name.is_empty()).unwrap_or_default();
    let numbered = (2_usize..).map(|number| format!("{plain}-{number}"));
    let mut candidates = std::iter::once(plain.clone()).chain(numbered);
    let name = candidates.find(|name| !names.contains(name)).unwrap_or(plain);
    names.insert(name.clone());
    name
}

/// Lower case letters, digits and `-`, without `-` at either end (RFC 1123); may be empty.
fn as_name(text: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let mut name: String = text.chars().map(allowed).collect::<String>().trim_matches('-').to_owned();
    name.truncate(LONGEST_NAME);
    name.trim_end_matches('-').to_owned()
}

impl Unit {
    /// A LabelSelector.
    pub(super) fn selector(&self) -> Value {
        let UnitSelector { labels, absent } = &self.selector;
        let labels: BTreeMap<&str, &str> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
        let mut selector = json!({"matchLabels": labels});
        if !absent.is_empty() {
            let expressions = absent.iter().map(|key| json!({"key": &**key, "operator": "DoesNotExist"}));
            selector["matchExpressions"] = expressions.collect();
        }
        selector
    }

    /// Whether it is the pod's.
    pub(super) fn selects(&self, pod: &Pod) -> bool {
        let UnitSelector { labels, absent } = &self.selector;
        pod.name.namespace == self.namespace
            && labels.iter().all(|(key, value)| pod.labels.get(key) == Some(value))
            && !absent.iter().any(|key| pod.labels.get(key).is_some())
    }
}
