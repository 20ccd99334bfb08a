//! Jobs: the policies that judge a pod's flows in one direction.

use std::collections::BTreeMap;
use std::sync::Arc;

use nft::{Name, Protocol};

use super::audit::AuditRole;
use super::{Direction, layout, names};
use crate::isolating_policies::IsolatingPolicies;
use crate::{ClusterState, Pod, Policy, PortRange, Ports};

/// The inputs of a program of NetworkPolicies.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Job {
    pub(super) direction: Direction,
    pub(super) role: AuditRole,
    /// Sorted by name. Empty for an unreadable pod, which is denied everything.
    pub(super) policies: Vec<Arc<Policy>>,
    /// Whether the pod may reach itself through a Service. Of an unreadable pod it may be unknown whether a cluster
    /// policy denies it.
    pub(super) reaches_itself: bool,
    pub(super) named: NamedPorts,
}

/// Named ports of ingress rules that the pod resolves, with their numbers.
pub(crate) type NamedPorts = BTreeMap<(Arc<str>, Protocol), u16>;

impl Job {
    /// `None` for a pod that no policy selects in the direction.
    pub(super) fn of(state: &ClusterState, pod: &Pod, direction: Direction) -> Option<Job> {
        let (role, policies) = match pod.unreadable {
            true => (AuditRole::Enforced, vec![]),
            false => {
                let IsolatingPolicies { enforced, audited } = IsolatingPolicies::of(state, pod, direction);
                match (enforced.is_empty(), audited.is_empty()) {
                    (true, true) => return None,
                    (false, _) => (AuditRole::Enforced, enforced),
                    (true, false) => (AuditRole::Audited, audited),
                }
            }
        };
        let reaches_itself = !pod.unreadable || !state.may_be_judged_by_cluster_policies(pod, direction);
        Some(Job { reaches_itself, ..Job::with(role, &policies, pod, direction) })
    }

    /// All policies that select the pod in the direction, as if they were enforced; `None` if there are none.
    pub(super) fn pending(state: &ClusterState, pod: &Pod, direction: Direction) -> Option<Job> {
        let policies = IsolatingPolicies::of(state, pod, direction).all();
        (!policies.is_empty()).then(|| Job::with(AuditRole::Pending, &policies, pod, direction))
    }

    fn with(role: AuditRole, policies: &[&Arc<Policy>], pod: &Pod, direction: Direction) -> Job {
        let named = match direction {
            Direction::Egress => NamedPorts::new(),
            Direction::Ingress => resolved_ports(policies, pod),
        };
        Job { direction, role, policies: policies.iter().copied().cloned().collect(), reaches_itself: true, named }
    }

    pub(super) fn chain(&self) -> Name {
        match &self.policies[..] {
            [] if self.reaches_itself => layout::end_chain(self.direction, self.role),
            [] => layout::deny_chain(self.direction),
            policies => names::program(self.direction, self.role, policies, &self.named),
        }
    }

    /// Whether both compile to the same program. Jobs of the same chain only differ if a policy does.
    pub(super) fn is_same(&self, other: &Job) -> bool {
        let same = |(a, b): (&Arc<Policy>, &Arc<Policy>)| Arc::ptr_eq(a, b);
        self.policies.len() == other.policies.len() && self.policies.iter().zip(&other.policies).all(same)
    }
}

pub(crate) fn resolved_ports(policies: &[&Arc<Policy>], pod: &Pod) -> NamedPorts {
    let rules = policies.iter().filter_map(|p| p.ingress.as_ref()).flatten();
    resolve_named(rules.map(|rule| &rule.ports), pod)
}

/// The numbers to which the pod resolves the named ports.
pub(super) fn resolve_named<'a>(ports: impl Iterator<Item = &'a Ports>, pod: &Pod) -> NamedPorts {
    let mut resolved = NamedPorts::new();
    for ports in ports {
        let Ports::Of(matches) = ports else { continue };
        for port in matches {
            if let PortRange::Named(name) = &port.range
                && let Some(number) = pod.resolve(name, port.protocol)
            {
                resolved.insert((name.clone(), port.protocol), number);
            }
        }
    }
    resolved
}
