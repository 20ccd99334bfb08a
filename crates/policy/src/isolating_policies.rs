//! The policies that judge a pod, split into enforced and audited ones.

use std::sync::Arc;

use crate::{ClusterState, Direction, Enforcement, Pod, Policy};

/// The policies that select a pod in a direction, sorted by name.
///
/// Policies are additive. So if any is enforced, only enforced policies judge: an audited one can neither deny what
/// they allow nor allow what they deny. If all are audited, the pod is not isolated, and flows that none of them allows
/// are reported.
pub(crate) struct IsolatingPolicies<'a> {
    pub(crate) enforced: Vec<&'a Arc<Policy>>,
    pub(crate) audited: Vec<&'a Arc<Policy>>,
}

impl<'a> IsolatingPolicies<'a> {
    pub(crate) fn of(state: &'a ClusterState, pod: &'a Pod, direction: Direction) -> IsolatingPolicies<'a> {
        let selects = |policy: &&Arc<Policy>| policy.rules(direction).is_some() && policy.selector.matches(&pod.labels);
        let selecting = state.policies_in(&pod.name.namespace).filter(selects);
        let (enforced, audited) = selecting.partition(|policy| match state.enforcement(policy) {
            Enforcement::Enforce => true,
            Enforcement::Audit => false,
        });
        IsolatingPolicies { enforced, audited }
    }

    /// All of them, as if all were enforced.
    pub(crate) fn all(mut self) -> Vec<&'a Arc<Policy>> {
        self.enforced.append(&mut self.audited);
        self.enforced.sort_by(|a, b| a.name.cmp(&b.name));
        self.enforced
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.enforced.is_empty() && self.audited.is_empty()
    }
}
