//! Numbers of known objects, by kind and enforcement.

use std::collections::BTreeSet;

use policy::{ClusterState, PolicyCounts};

use crate::api::status::Policies;
use crate::gate::{AttachmentState, attachment_state};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) namespaces: usize,
    pub(crate) pods: usize,
    pub(crate) network_policies: usize,
    pub(crate) nodes: usize,
    pub(crate) cluster_network_policies: usize,
    pub(crate) attachments: usize,
    pub(crate) remote_sets: usize,
    /// Learned addresses of domain names.
    pub(crate) domain_names: usize,
    pub(crate) policies: Policies,
    /// Pods that are attached here but whose objects are unknown.
    pub(crate) unknown_pods: usize,
}

impl Counts {
    /// All zero.
    pub(crate) const NONE: Counts = Counts {
        namespaces: 0,
        pods: 0,
        network_policies: 0,
        nodes: 0,
        cluster_network_policies: 0,
        attachments: 0,
        remote_sets: 0,
        domain_names: 0,
        policies: Policies { enforced: 0, audit: 0, not_understood: 0 },
        unknown_pods: 0,
    };

    pub(crate) fn of(state: &ClusterState) -> Counts {
        let PolicyCounts { enforced, audited, not_understood } = state.policy_counts();
        let unknown = state.attachments().filter(|a| attachment_state(state, a) == AttachmentState::Unknown);
        Counts {
            namespaces: state.namespace_count(),
            pods: state.pod_count(),
            network_policies: state.policy_count(),
            nodes: state.node_count(),
            cluster_network_policies: state.cluster_policy_count(),
            attachments: state.attachments().count(),
            remote_sets: state.remote_set_count(),
            domain_names: state.learned_addresses().count(),
            policies: Policies { enforced, audit: audited, not_understood },
            unknown_pods: unknown.map(|a| &a.pod).collect::<BTreeSet<_>>().len(),
        }
    }
}

impl Default for Counts {
    fn default() -> Counts {
        Counts::NONE
    }
}

#[cfg(test)]
mod tests {
    use policy::{Attachment, AttachmentId, Change, Enforcement, Kind, ObjectName, lower};
    use serde_json::{Value, json};

    use super::*;

    fn policy(name: &str, protocol: &str, annotations: Value) -> Change {
        let ports = json!([{"port": 80, "protocol": protocol}]);
        let spec = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"ports": ports}]});
        let metadata = json!({"namespace": "shop", "name": name, "annotations": annotations});
        let object = json!({"apiVersion": "networking.k8s.io/v1", "metadata": metadata, "spec": spec});
        Change::Set(lower(Kind::NetworkPolicy, &object).unwrap())
    }

    fn says(enforcement: &str) -> Value {
        json!({"ringfence.io/enforcement": enforcement})
    }

    #[test]
    fn policy_with_problems_counts_as_not_understood() {
        let mut state = ClusterState::new();
        state.apply(policy("good", "TCP", json!({})));
        state.apply(policy("strange", "QUIC", json!({})));
        state.apply(policy("strange-in-audit", "QUIC", says("audit")));
        let counts = Counts::of(&state);
        assert_eq!(counts.policies, Policies { enforced: 1, audit: 0, not_understood: 2 });
        assert_eq!(counts.network_policies, 3);
    }

    #[test]
    fn policy_counts_follow_own_namespace_or_default_enforcement() {
        let namespace = json!({"metadata": {"name": "shop", "annotations": says("audit")}});
        let namespace = Change::Set(lower(Kind::Namespace, &namespace).unwrap());
        let counts = |default: Enforcement, namespace: Option<&Change>| {
            let mut state = ClusterState::new();
            state.set_default_enforcement(default);
            for (name, annotations) in [("none", json!({})), ("audit", says("audit")), ("enforce", says("enforce"))] {
                state.apply(policy(name, "TCP", annotations));
            }
            if let Some(namespace) = namespace {
                state.apply(namespace.clone());
            }
            Counts::of(&state).policies
        };
        let expected = |enforced, audit| Policies { enforced, audit, not_understood: 0 };
        assert_eq!(counts(Enforcement::Enforce, None), expected(2, 1));
        assert_eq!(counts(Enforcement::Enforce, Some(&namespace)), expected(1, 2));
        assert_eq!(counts(Enforcement::Audit, None), expected(1, 2));
    }

    #[test]
    fn unknown_pod_with_two_attachments_counts_once() {
        let mut state = ClusterState::new();
        for (interface, address) in [("eth0", "10.1.0.5"), ("eth1", "10.1.0.6")] {
            state.attach(Attachment {
                id: AttachmentId { container: "c".into(), interface: interface.into() },
                pod: ObjectName::new("shop", "web"),
                uid: None,
                addresses: vec![address.parse().unwrap()],
                host_interface: None,
                bridged: false,
                input_interface: None,
                hardware_address: None,
                link_local: vec![],
                since: 1,
            });
        }
        let counts = Counts::of(&state);
        assert_eq!((counts.attachments, counts.unknown_pods), (2, 1));
    }
}
