//! Counts policies by enforcement, updated incrementally: there are many policies, and the counts are read after every
//! change.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::{Enforcement, Policy, Severity};

/// Policies counted by enforcement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PolicyCounts {
    /// Policies that deny.
    pub enforced: usize,
    /// Policies that only report.
    pub audited: usize,
    /// Policies with invalid parts, which are not included in the other counts.
    pub not_understood: usize,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Tally {
    counts: PolicyCounts,
    /// Number of valid policies without their own annotation, by namespace. Never zero.
    silent: BTreeMap<Arc<str>, usize>,
}

impl Tally {
    pub(crate) fn counts(&self) -> PolicyCounts {
        self.counts
    }

    /// Adds a policy. `in_namespace` is the enforcement of the namespace's policies without an annotation.
    pub(crate) fn add(&mut self, policy: &Policy, in_namespace: Enforcement) {
        *self.counts.of(policy, in_namespace) += 1;
        if is_silent(policy) {
            *self.silent.entry(policy.name.namespace.clone()).or_default() += 1;
        }
    }

    /// Removes a policy. `in_namespace` is the enforcement of the namespace's policies without an annotation.
    pub(crate) fn remove(&mut self, policy: &Policy, in_namespace: Enforcement) {
        *self.counts.of(policy, in_namespace) -= 1;
        let namespace = &*policy.name.namespace;
        if is_silent(policy)
            && let Some(count) = self.silent.get_mut(namespace)
        {
            *count -= 1;
            if *count == 0 {
                self.silent.remove(namespace);
            }
        }
    }

    /// The enforcement of the namespace's policies without an annotation changed.
    pub(crate) fn change_enforcement(&mut self, namespace: &str, from: Enforcement, to: Enforcement) {
        let count = self.silent.get(namespace).copied().unwrap_or(0);
        *self.counts.understood(from) -= count;
        *self.counts.understood(to) += count;
    }

    /// Namespaces with policies without an annotation.
    pub(crate) fn silent_namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        self.silent.keys()
    }
}

impl PolicyCounts {
    fn of(&mut self, policy: &Policy, in_namespace: Enforcement) -> &mut usize {
        match policy.is_understood() {
            true => self.understood(policy.enforcement.unwrap_or(in_namespace)),
            false => &mut self.not_understood,
        }
    }

    fn understood(&mut self, enforcement: Enforcement) -> &mut usize {
        match enforcement {
            Enforcement::Enforce => &mut self.enforced,
            Enforcement::Audit => &mut self.audited,
        }
    }
}

fn is_silent(policy: &Policy) -> bool {
    policy.is_understood() && policy.enforcement.is_none()
}

impl Policy {
    /// Whether no part of it was lowered to denial.
    pub fn is_understood(&self) -> bool {
        self.problems.iter().all(|problem| match problem.severity {
            Severity::Warning => true,
            Severity::Error => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::{Change, ClusterState, Kind, ObjectName, lower};

    fn object(kind: Kind, namespace: &str, name: &str, said: &Value, protocol: &str) -> Change {
        let metadata = json!({"namespace": namespace, "name": name, "annotations": {"ringfence.io/enforcement": said}});
        let spec = json!({"podSelector": {}, "ingress": [{"ports": [{"protocol": protocol}]}]});
        let object = json!({"apiVersion": "networking.k8s.io/v1", "metadata": metadata, "spec": spec});
        Change::Set(lower(kind, &object).unwrap())
    }

    fn changes() -> impl Strategy<Value = Change> {
        let name = || prop_oneof!["a", "b", "c"];
        let said = prop_oneof![
            Just(Value::Null),
            Just(json!("audit")),
            Just(json!("enforce")),
            Just(json!("off")),
            Just(json!("on"))
        ];
        let policy = (name(), name(), said.clone(), prop_oneof![4 => Just("TCP"), 1 => Just("QUIC")]);
        let policy =
            policy.prop_map(|(ns, name, said, protocol)| object(Kind::NetworkPolicy, &ns, &name, &said, protocol));
        let namespace = (name(), said).prop_map(|(name, said)| object(Kind::Namespace, "", &name, &said, "TCP"));
        prop_oneof![
            4 => policy.clone(),
            3 => namespace.clone(),
            2 => (name(), name()).prop_map(|(ns, name)| Change::Remove(Kind::NetworkPolicy, ObjectName::new(&ns, &name))),
            1 => name().prop_map(|name| Change::Remove(Kind::Namespace, ObjectName::new("", &name))),
            1 => prop::collection::vec(policy, 0..6).prop_map(|set| replace(Kind::NetworkPolicy, set)),
            1 => prop::collection::vec(namespace, 0..3).prop_map(|set| replace(Kind::Namespace, set)),
        ]
    }

    fn replace(kind: Kind, set: Vec<Change>) -> Change {
        let object = |change| match change {
            Change::Set(object) => Some(object),
            Change::Remove(..) | Change::Replace(..) => None,
        };
        Change::Replace(kind, set.into_iter().filter_map(object).collect())
    }

    fn recounted(state: &ClusterState) -> PolicyCounts {
        let mut counts = PolicyCounts::default();
        for policy in state.policies() {
            match (policy.is_understood(), state.enforcement(policy)) {
                (false, _) => counts.not_understood += 1,
                (true, Enforcement::Enforce) => counts.enforced += 1,
                (true, Enforcement::Audit) => counts.audited += 1,
            }
        }
        counts
    }

    proptest! {
        #[test]
        fn incremental_counts_equal_full_recount(
            changes in prop::collection::vec(changes(), 0..40),
            turned in 0..40_usize,
        ) {
            let mut state = ClusterState::new();
            for (i, change) in changes.into_iter().enumerate() {
                if i == turned {
                    state.set_default_enforcement(Enforcement::Audit);
                }
                state.apply(change);
                prop_assert_eq!(state.policy_counts(), recounted(&state));
                prop_assert_eq!(state.policy_count(), state.policies().count());
                prop_assert_eq!(state.namespace_count(), state.namespaces().count());
                let walked = state.policies().flat_map(|o| &o.problems);
                let walked = walked.chain(state.namespaces().flat_map(|o| &o.problems)).count();
                prop_assert_eq!(state.problems().len(), walked);
            }
        }
    }
}
