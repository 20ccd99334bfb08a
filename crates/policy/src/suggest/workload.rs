//! Workloads: pods that a policy can select together, by labels that all of them have permanently.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::translate::digest;
use crate::{ClusterState, Labels, Pod};

/// Labels that controllers write and that differ between pods, rollouts or runs. They belong to Deployments and
/// DaemonSets, StatefulSets, Jobs (<https://kubernetes.io/docs/reference/labels-annotations-taints/>).
const PASSING_LABELS: [&str; 11] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "controller-uid",
    "job-name",
    "job-completion-index",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/job-completion-index",
];

/// Labels whose values usually name the workload, the best first.
const NAMING_LABELS: [&str; 3] = ["app.kubernetes.io/name", "app", "k8s-app"];

/// Longest name of a workload before a digest: `ringfence-suggested-`, the name, `-`, the digest and a number up to
/// `-999` fill the 63 characters that any name in Kubernetes may have.
const LONGEST_NAME: usize = 30;
/// Length of a digest in characters (40 bits): few workloads of one namespace have the same plain name.
const DIGEST_LENGTH: usize = 8;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Workload {
    pub(super) namespace: Arc<str>,
    /// Not empty.
    labels: Labels,
}

impl Workload {
    /// `None` for a pod without distinguishing labels.
    pub(super) fn of(pod: &Pod) -> Option<Workload> {
        let lasting = pod.labels.iter().filter(|(key, _)| !PASSING_LABELS.contains(&key.as_ref()));
        let labels: Labels = lasting.map(|(key, value)| (key.clone(), value.clone())).collect();
        (!labels.is_empty()).then(|| Workload { namespace: pod.name.namespace.clone(), labels })
    }

    /// `namespace/name`, as in suggestions.
    pub(super) fn title(&self, workloads: &Workloads) -> String {
        let names = workloads.names(&self.namespace);
        let name = names.get(self).cloned().unwrap_or_else(|| self.plain_name());
        format!("{}/{name}", self.namespace)
    }

    /// A LabelSelector that matches these pods and no other known pods of the namespace. Pods of other workloads may
    /// have the same labels and more, which the selector excludes.
    pub(super) fn selector(&self, workloads: &Workloads) -> Value {
        let mut absent: BTreeSet<&str> = BTreeSet::new();
        let others = workloads.names(&self.namespace);
        let wider = others.keys().filter(|other| *other != self && self.is_part_of(other));
        for other in wider {
            let more: Vec<&str> =
                other.labels.keys().map(|key| &**key).filter(|key| !self.labels.contains_key(key)).collect();
            if !more.iter().any(|key| absent.contains(key)) {
                absent.extend(more.first());
            }
        }
        let labels: BTreeMap<&str, &str> = self.labels.iter().map(|(key, value)| (&**key, &**value)).collect();
        let mut selector = json!({"matchLabels": labels});
        if !absent.is_empty() {
            let expressions = absent.iter().map(|key| json!({"key": key, "operator": "DoesNotExist"}));
            selector["matchExpressions"] = expressions.collect();
        }
        selector
    }

    fn is_part_of(&self, other: &Workload) -> bool {
        self.labels.iter().all(|(key, value)| other.labels.get(key) == Some(value))
    }

    /// A readable name from the labels, with valid characters.
    fn plain_name(&self) -> String {
        let named = NAMING_LABELS.iter().filter_map(|key| self.labels.get(key));
        let mut candidates = named.chain(self.labels.values()).map(|value| as_name(value));
        candidates.find(|name| !name.is_empty()).unwrap_or_else(|| "pods".into())
    }
}

/// Lower case letters, digits and `-`, without `-` at either end (RFC 1123); may be empty.
fn as_name(text: &str) -> String {
    let allowed = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let mut name: String = text.chars().map(allowed).collect::<String>().trim_matches('-').to_owned();
    name.truncate(LONGEST_NAME);
    name.trim_end_matches('-').to_owned()
}

/// The workloads of the current state, by namespace. A namespace's workloads are computed on first use and cached,
/// since that visits all its pods.
pub struct Workloads<'a> {
    pub(super) state: &'a ClusterState,
    named: RefCell<BTreeMap<Arc<str>, Rc<WorkloadNames>>>,
}

/// Workloads with their names in suggestions.
type WorkloadNames = BTreeMap<Workload, String>;

impl<'a> Workloads<'a> {
    /// Names are computed when a namespace is first asked for.
    pub fn of(state: &'a ClusterState) -> Workloads<'a> {
        Workloads { state, named: RefCell::default() }
    }

    pub(super) fn names(&self, namespace: &Arc<str>) -> Rc<WorkloadNames> {
        let mut named = self.named.borrow_mut();
        named.entry(namespace.clone()).or_insert_with(|| Rc::new(names(self.state, namespace))).clone()
    }
}

/// The names of all workloads of a namespace. Names that would be equal get a digest of the labels.
fn names(state: &ClusterState, namespace: &str) -> WorkloadNames {
    let workloads: BTreeSet<Workload> = state.pods_in(namespace).filter_map(|pod| Workload::of(pod)).collect();
    let mut called: BTreeMap<String, usize> = BTreeMap::new();
    for workload in &workloads {
        *called.entry(workload.plain_name()).or_default() += 1;
    }
    let name = |workload: Workload| {
        let plain = workload.plain_name();
        let name = match called.get(&plain) {
            Some(2..) => {
                let labels: BTreeMap<&str, &str> = workload.labels.iter().map(|(k, v)| (&**k, &**v)).collect();
                format!("{plain}-{}", &digest(&labels)[..DIGEST_LENGTH])
            }
            Some(_) | None => plain,
        };
        (workload, name)
    };
    workloads.into_iter().map(name).collect()
}
